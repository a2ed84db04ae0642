#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "icd.hpp"
#include "runtime/backend.hpp"

namespace fastpath_opencl {

namespace gpu = fastpath_gpu;

/// A device as OpenCL names it.
struct Handle {
  cl_platform_id platform = nullptr;
  cl_device_id device = nullptr;
};

/// An OpenCL context, and code that was built in it. It may live longer than the open device that it was made for.
/// May be used from several threads.
class Context {
 public:
  /// Code that is kept for when it is needed again; what was not needed for longest goes first.
  static constexpr std::size_t kMostCode = 128;

  /// @throws as check() if the driver makes none.
  Context(const Icd& cl, const Handle& handle);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  cl_context get() const noexcept { return context_; }
  /// The code of this source: what was built earlier, else what `build` makes, one source at a time.
  std::shared_ptr<gpu::Module> code(const std::string& source,
                                    const std::function<std::shared_ptr<gpu::Module>()>& build);

  /// Nothing works in it any more: it is for no other device.
  void abandon() noexcept { abandoned_ = true; }
  bool abandoned() const noexcept { return abandoned_; }

 private:
  struct Code {
    std::string source;
    std::shared_ptr<gpu::Module> module;
    std::uint64_t used;
  };
  const Icd& cl_;
  cl_context context_ = nullptr;
  std::atomic<bool> abandoned_{false};
  std::mutex mutex_;
  std::vector<Code> code_;
  std::uint64_t uses_ = 0;
};

}  // namespace fastpath_opencl
