#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "backend.hpp"

/// NVIDIA's driver and AMD's HIP runtime have the same functions with the same arguments under two names, and number
/// their errors alike. What works by them alone stands here once; the two plugins add names, devices and compilers.
namespace fastpath_gpu {

/// Functions of a driver; each returns 0 or an error. An address on the device is a pointer here. CUDA's CUdeviceptr is
/// an integer of the same size, which the calling conventions of 64-bit machines pass in the same register.
struct DriverFunctions {
  int (*allocate)(void** memory, std::size_t bytes) = nullptr;
  int (*release)(void* memory) = nullptr;
  int (*memory_info)(std::size_t* free_bytes, std::size_t* total_bytes) = nullptr;
  int (*copy_to_device)(void* to, const void* from, std::size_t bytes, void* stream) = nullptr;
  int (*copy_from_device)(void* to, void* from, std::size_t bytes, void* stream) = nullptr;
  int (*copy_on_device)(void* to, void* from, std::size_t bytes, void* stream) = nullptr;
  int (*fill)(void* to, unsigned char value, std::size_t bytes, void* stream) = nullptr;
  int (*create_stream)(void** stream, unsigned flags) = nullptr;
  int (*destroy_stream)(void* stream) = nullptr;
  int (*synchronize_stream)(void* stream) = nullptr;
  int (*create_event)(void** event, unsigned flags) = nullptr;
  int (*destroy_event)(void* event) = nullptr;
  int (*record)(void* event, void* stream) = nullptr;
  int (*wait)(void* stream, void* event, unsigned flags) = nullptr;
  int (*load_module)(void** module, const void* image) = nullptr;
  int (*unload_module)(void* module) = nullptr;
  int (*find_function)(void** function, void* module, const char* name) = nullptr;
  int (*launch)(void* function, unsigned groups_x, unsigned groups_y, unsigned groups_z, unsigned items_x,
                unsigned items_y, unsigned items_z, unsigned shared_bytes, void* stream, void** arguments,
                void** extra) = nullptr;
};

/// Errors that both vendors number alike.
enum DriverError : int {
  kDriverOk = 0,
  kDriverOutOfMemory = 2,
  kDriverNotInitialized = 3,
  kDriverDeinitialized = 4,
  kDriverStub = 34,
  kDriverTooOld = 35,
  kDriverDeviceBusy = 46,
  kDriverNoDevice = 100,
  kDriverInvalidImage = 200,
  kDriverNoBinary = 209,
  kDriverEcc = 214,
  kDriverInvalidPtx = 218,
  kDriverNvlink = 220,
  kDriverNoJitCompiler = 221,
  kDriverUnsupportedPtx = 222,
  kDriverJitDisabled = 223,
  kDriverContained = 226,
  kDriverIllegalAddress = 700,
  kDriverOutOfResources = 701,
  kDriverLaunchTimeout = 702,
  kDriverContextDestroyed = 709,
  kDriverAssert = 710,
  kDriverStackError = 714,
  kDriverLaunchFailed = 719,
  kDriverNotSupported = 801,
};

/// What an error means to who called.
enum class DriverFault {
  none,
  out_of_memory,  ///< Recoverable.
  resources,      ///< A kernel needs more than the device has.
  busy,           ///< Somebody else has the device for themselves.
  code,           ///< The driver cannot run this code.
  not_supported,  ///< The device or driver has no such thing.
  no_driver,      ///< None that could be used, or none that still can: a child of the process that opened it.
  lost,           ///< Nothing on this device works any more.
  other,          ///< Most likely a bug of this plugin.
};
DriverFault classify(int error) noexcept;

/// A driver that was opened: its functions and what the vendors do in ways of their own. Thread-safe.
class Driver {
 public:
  virtual ~Driver() = default;
  const DriverFunctions& functions() const noexcept { return functions_; }

  /// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)".
  virtual std::string error_text(int error) const = 0;
  /// "driver for CUDA 12.4": what code must not be newer than.
  virtual std::string version_text() const = 0;
  /// The devices, without a context on any. @throws sdk::Unavailable if there is none, or it does not answer.
  virtual std::vector<sdk::DeviceDescription> devices() const = 0;
  /// What code for a device may assume. Same errors.
  virtual Target target(int ordinal) const = 0;
  /// Work-items that one launch may have; 0: as many as groups of any size make.
  virtual std::int64_t max_items() const noexcept { return 0; }

  /// The context of a device that all users in the process share, held until it is released.
  virtual int retain(int ordinal, void** context) = 0;
  virtual void release(int ordinal) noexcept = 0;
  /// Makes it the calling thread's, and puts back what was; always in pairs.
  virtual int enter(int ordinal, void* context, int* previous) = 0;
  virtual void leave(int previous) noexcept = 0;
  /// What another plugin needs to work in this context.
  virtual fp_native native(int ordinal, void* context, void* stream) const = 0;

 protected:
  DriverFunctions functions_;
};

/// An open device of such a driver. Streams and events are the driver's own: an fp_stream is a CUstream or hipStream_t.
/// A null stream is one of the device's own that the call waits for, after everything on streams that were made here.
class DriverDevice : public BackendDevice {
 public:
  /// @param name  "cuda:0", for messages. @param compiler  Outlives the device. @throws as the driver answers.
  DriverDevice(std::shared_ptr<Driver> driver, Backend& compiler, int ordinal, std::string name, Target target);
  ~DriverDevice() override;

  const Target& target() const override { return target_; }
  void* allocate(std::uint64_t bytes) override;
  void release(void* memory) noexcept override;
  void copy_to_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t bytes,
                      fp_stream* stream) override;
  void copy_from_device(void* to, const void* from, std::uint64_t from_offset, std::uint64_t bytes,
                        fp_stream* stream) override;
  void copy_on_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t from_offset,
                      std::uint64_t bytes, fp_stream* stream) override;
  void fill_zero(void* memory, std::uint64_t offset, std::uint64_t bytes, fp_stream* stream) override;
  fp_stream* create_stream() override;
  void destroy_stream(fp_stream* stream) noexcept override;
  void synchronize(fp_stream* stream) override;
  fp_event* create_event() override;
  void destroy_event(fp_event* event) noexcept override;
  void record(fp_event* event, fp_stream* stream) override;
  void wait(fp_stream* stream, fp_event* event) override;
  void memory_info(std::uint64_t* free_bytes, std::uint64_t* total_bytes) override;
  fp_native native(fp_stream* stream) override;
  Binary compile(const Program& program, std::unique_ptr<Module>& module) override;
  std::unique_ptr<Module> load(const Program& program, const Binary& binary) override;
  void launch(Module& module, std::size_t kernel, std::int64_t groups, std::span<const BoundArgument> arguments,
              fp_stream* stream) override;

 private:
  class Scope;
  class LoadedModule;

  /// Turns an error into an exception. `doing` says what was tried, of the kernel of this name if there is one.
  void check(int error, const char* doing, const char* kernel = nullptr) const;
  /// The stream to enqueue on; for null the device's own, once all others are done.
  void* begin(fp_stream* stream);
  void end(fp_stream* stream, const char* doing, const char* kernel = nullptr);
  void synchronize_all();
  /// For destructors: as much as can be done.
  template <class Action>
  void quietly(Action action) noexcept;

  std::shared_ptr<Driver> driver_;
  Backend& compiler_;
  const DriverFunctions& functions_;
  int ordinal_;
  std::string name_;
  Target target_;
  void* context_ = nullptr;
  void* own_stream_ = nullptr;

  std::mutex mutex_;
  std::set<void*> streams_;  // made here and not destroyed
};

}  // namespace fastpath_gpu
