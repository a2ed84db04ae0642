#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "generator/program.hpp"

namespace fastpath_gpu::test {

/// In which order the work-items of a group go from one barrier to the next. A kernel whose result depends on it lacks
/// a barrier, or two of its items write to one place.
enum class ItemOrder { ascending, descending, shuffled };

/// The source of a program, Language::host, compiled by the system's C++ compiler and loaded. Kernels run on the
/// calling thread, one at a time in a process. Each group starts with its shared memory full of NaNs.
class HostProgram {
 public:
  /// @throws std::runtime_error with the compiler's words.
  explicit HostProgram(const Program& program);
  ~HostProgram();
  HostProgram(const HostProgram&) = delete;
  HostProgram& operator=(const HostProgram&) = delete;

  /// @param memory  The address of a buffer, without its offset.
  /// @throws std::runtime_error naming the kernel if not all items of a group reach the same barrier.
  void run(const Launch& launch, const std::function<void*(const Buffer&)>& memory, ItemOrder order);

 private:
  using Kernel = void (*)(void* const* buffers, const long long* values);
  std::vector<KernelInfo> infos_;
  std::vector<Kernel> kernels_;
  std::string folder_;
  void* library_ = nullptr;
};

}  // namespace fastpath_gpu::test
