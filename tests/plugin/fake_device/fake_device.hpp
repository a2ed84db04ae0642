#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "counters.h"
#include "fastpath/sdk/device.hpp"

/// A device that exists only in this process, and is stricter than any real one: its addresses are no addresses of the
/// host, work on a stream is not done before somebody waits for it, and work that uses the same memory without an order
/// between them is refused.
namespace fake_device {

namespace sdk = fastpath::sdk;

/// The process's counters.
fake_device_counters& counters();
inline void count(std::int64_t& counter, std::int64_t by = 1) { std::atomic_ref(counter) += by; }

/// Memory behind a device address. Kept by whatever still uses it.
struct Block {
  std::uintptr_t address = 0;
  std::vector<std::byte> bytes;
};

/// One use of memory by a piece of work.
struct Use {
  std::shared_ptr<Block> block;
  bool writes = false;
};

/// A piece of memory, checked to lie inside one allocation.
struct Range {
  std::shared_ptr<Block> block;
  std::byte* data = nullptr;  ///< Where it really is.
};

class FakeDevice : public sdk::Device, public sdk::DeviceMemory {
 public:
  static constexpr std::uint64_t kMemory = std::uint64_t{256} << 20;

  FakeDevice();
  ~FakeDevice() override;
  sdk::DeviceMemory* memory() noexcept override { return this; }

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

  /// The kind of the native handles; FP_NATIVE_NONE: it has none.
  void set_native(std::int32_t kind) { native_ = kind; }
  /// The first run of a kernel finds it lost.
  void lose_at_first_run() { lose_at_run_ = true; }
  /// @throws Failure(FP_E_DEVICE_LOST) once it is lost.
  virtual void need();
  /// Whether kernels look at what the host grants them of a tensor.
  virtual bool checks_access() const { return true; }
  /// submit() for a run of a kernel.
  void run(fp_stream* stream, std::vector<Use> uses, std::function<void()> work);
  /// @throws InvalidArgument unless the bytes lie inside one allocation of this device.
  Range resolve(const void* handle, std::uint64_t offset, std::uint64_t bytes);
  /// Does the work in its turn: at once without a stream, else not before somebody waits for the stream.
  /// @throws InvalidArgument if it uses memory that another stream still works on, with no event between them.
  void submit(fp_stream* stream, std::vector<Use> uses, std::function<void()> work);

 protected:
  /// Work whose order nothing says is refused; else it is done in some order.
  bool strict_ = true;
  std::atomic<bool> lost_{false};
  std::uint64_t used_ = 0;
  std::uintptr_t next_address_;

 private:
  using Clock = std::map<const void*, std::uint64_t>;  // per stream, up to which ticket its work comes before
  struct Work {
    std::uint64_t ticket = 0;
    std::vector<Use> uses;
    std::function<void()> run;  // empty: waits for `until` on stream `other`
    const void* other = nullptr;
    std::uint64_t until = 0;
  };
  struct Stream {
    std::deque<Work> pending;
    std::uint64_t last_ticket = 0;
    Clock after;
    std::exception_ptr failure;
  };
  struct Event {
    const void* stream = nullptr;  // null: not recorded, or recorded without a stream
    std::uint64_t ticket = 0;
    Clock clock;
  };

  Range resolve_locked(const void* handle, std::uint64_t offset, std::uint64_t bytes);
  void submit_locked(fp_stream* stream, std::vector<Use> uses, std::function<void()> work);
  Stream& stream_of(const void* stream);
  void execute(const void* stream, std::uint64_t ticket);

  std::mutex mutex_;
  bool lose_at_run_ = false;
  std::int32_t native_ = FP_NATIVE_EXT;
  std::map<std::uintptr_t, std::shared_ptr<Block>> blocks_;
  std::map<const void*, std::unique_ptr<Stream>> streams_;
  std::map<const void*, std::unique_ptr<Event>> events_;
};

}  // namespace fake_device
