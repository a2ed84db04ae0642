#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fastpath/sdk/device.hpp"
#include "generator/program.hpp"
#include "generator/target.hpp"

/// What a vendor's plugin adds to the generator: devices, memory, a compiler, launches. Errors are the SDK's
/// (fastpath/sdk/error.hpp): Unavailable without driver, device or compiler, std::bad_alloc for the device's memory,
/// DeviceLost for an error after which nothing on the device works.
namespace fastpath_gpu {

/// What a compiler says of one kernel; -1 where it says nothing.
struct KernelResources {
  std::string kernel;
  std::int64_t registers = -1;     ///< Per work-item (vector registers on AMD).
  std::int64_t shared_bytes = -1;  ///< Static shared memory of a group.
  std::int64_t spill_bytes = -1;   ///< Per work-item: what does not fit in registers.
  std::int64_t code_bytes = -1;
};

/// Compiled code of a program.
struct Binary {
  std::vector<std::uint8_t> code;
  std::vector<KernelResources> resources;
};

/// Code that is loaded on a device.
class Module {
 public:
  virtual ~Module() = default;
};

/// An argument of a launch with its memory found.
struct BoundArgument {
  bool is_buffer = false;
  void* memory = nullptr;  ///< As DeviceMemory::allocate returned it.
  std::int64_t value = 0;  ///< The integer, or the byte offset into memory.
};

/// An open device. Called from several threads, on distinct modules and streams.
class BackendDevice : public sdk::Device, public sdk::DeviceMemory {
 public:
  sdk::DeviceMemory* memory() noexcept override { return this; }
  virtual const Target& target() const = 0;
  /// Compiles, or takes from the cache, and loads. @throws Refused with the compiler's words if it does not compile.
  virtual std::unique_ptr<Module> load(const Program& program) = 0;
  /// Enqueues one kernel. A null stream: complete on return.
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
  /// Compiles for an architecture, with no device needed. @throws Unavailable without the compiler's library,
  /// Refused with its words if the source does not compile.
  virtual Binary compile(const Program& program, const Target& target) = 0;
};

}  // namespace fastpath_gpu
