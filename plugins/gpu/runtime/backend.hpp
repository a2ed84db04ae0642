#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fastpath/sdk/device.hpp"
#include "fastpath/sdk/error.hpp"
#include "generator/program.hpp"
#include "generator/target.hpp"

/// What a vendor's plugin adds to the generator: devices, memory, a compiler, launches. The rest of a plugin
/// (plugin.hpp) is the same for all. Errors are the SDK's (fastpath/sdk/error.hpp): Unavailable without driver, device
/// or compiler, std::bad_alloc or Failure(FP_E_OUT_OF_MEMORY) for the device's memory; and DeviceLost.
namespace fastpath_gpu {

/// An error after which nothing on the device works. The runtime answers every later call on it with the same text.
class DeviceLost : public sdk::Failure {
 public:
  explicit DeviceLost(const std::string& text) : Failure(FP_E_DEVICE_LOST, text) {}
};

/// What a compiler says of one kernel; -1 where it says nothing.
struct KernelResources {
  std::string kernel;
  std::int64_t registers = -1;     ///< Per work-item (vector registers on AMD).
  std::int64_t shared_bytes = -1;  ///< Static shared memory of a group.
  std::int64_t spill_bytes = -1;   ///< Per work-item: what does not fit in registers.
  std::int64_t code_bytes = -1;
};

/// Compiled code of a program: what the disk cache keeps.
struct Binary {
  std::vector<std::uint8_t> code;  ///< Empty if the driver does not give it out; nothing is kept then.
  std::vector<KernelResources> resources;
};

/// Code that is loaded on a device. Kernels of one source share it, also between threads.
class Module {
 public:
  virtual ~Module() = default;
};

/// An argument of a launch with its memory found.
struct BoundArgument {
  bool is_buffer = false;
  void* memory = nullptr;  ///< As DeviceMemory::allocate returned it; null for an array that the host did not give.
  std::int64_t value = 0;  ///< The integer, or the byte offset into memory.
};

/// An open device. Called from several threads: distinct streams, but a module in several at once.
/// The runtime puts compile() and load() together with the disk cache; neither looks at a cache of its own.
class BackendDevice : public sdk::DeviceMemory {
 public:
  virtual const Target& target() const = 0;
  /// Compiles for this device. @throws Refused with the compiler's words if the source does not compile, Unavailable
  /// without a compiler. @param module  Out, may stay null: what load() would make of the result, where compiling made
  /// it on the way.
  virtual Binary compile(const Program& program, std::unique_ptr<Module>& module) = 0;
  /// Whether the driver keeps compiled code on disk itself, and would have to compile more to hand it out. The runtime
  /// then calls build_module() for each source, and keeps nothing.
  virtual bool driver_keeps_code() const { return false; }
  /// Compiles and loads, without the binary. Same errors as compile(). It may be code that other devices have too.
  virtual std::shared_ptr<Module> build_module(const Program& program) {
    std::unique_ptr<Module> module;
    const Binary binary = compile(program, module);
    return module != nullptr ? std::move(module) : load(program, binary);
  }
  /// Says that the device is lost, once: nothing is shared with one that is opened later.
  virtual void lost() noexcept {}
  /// Loads what compile() gave, here or in another process. @throws Refused if the driver does not take it: the runtime
  /// then compiles anew.
  virtual std::unique_ptr<Module> load(const Program& program, const Binary& binary) = 0;
  /// Enqueues one kernel. A null stream: complete on return. Allocates nothing on the device and waits for nothing if
  /// there is a stream.
  virtual void launch(Module& module, std::size_t kernel, std::int64_t groups, std::span<const BoundArgument> arguments,
                      fp_stream* stream) = 0;
};

/// One vendor. One object a process; called from several threads.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual Language language() const = 0;
  /// Creates no context. @throws Unavailable naming what is missing: the driver's library, a device.
  virtual std::vector<sdk::DeviceDescription> devices() = 0;
  virtual std::unique_ptr<BackendDevice> open(const sdk::DeviceDescription& device) = 0;
  /// Names compiler, version and options, as far as they change the code that is made of a source for a target. Empty
  /// where there is no compiler: then any binary of that source and target will do.
  virtual std::string compiler(const Target& target) = 0;
  /// Compiles for an architecture, with no device needed. @throws Unavailable without the compiler's library, or where
  /// only a device can compile; Refused with its words if the source does not compile.
  virtual Binary compile(const Program& program, const Target& target) = 0;
  /// Last call, when all devices are closed: gives back what was kept for the next one.
  virtual void shutdown() noexcept {}
};

}  // namespace fastpath_gpu
