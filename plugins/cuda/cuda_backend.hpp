#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/backend.hpp"
#include "runtime/driver.hpp"
#include "runtime/runtime_compiler.hpp"

namespace fastpath_cuda {

namespace sdk = fastpath::sdk;
namespace gpu = fastpath_gpu;

/// NVIDIA: the driver's library and NVRTC, both opened when they are first needed.
class CudaBackend final : public gpu::Backend {
 public:
  /// Names or paths of the libraries, in the order in which they are tried.
  struct Libraries {
    std::vector<std::string> driver, compiler;
    static Libraries usual();
  };
  explicit CudaBackend(Libraries libraries = Libraries::usual()) : libraries_(std::move(libraries)) {}

  gpu::Language language() const override { return gpu::Language::cuda; }
  std::vector<sdk::DeviceDescription> devices() override;
  std::unique_ptr<gpu::BackendDevice> open(const sdk::DeviceDescription& device) override;
  std::string compiler(const gpu::Target& target) override;
  gpu::Binary compile(const gpu::Program& program, const gpu::Target& target) override;

 private:
  class CudaDriver;
  std::shared_ptr<CudaDriver> driver();
  const gpu::RuntimeCompiler& opened_compiler();

  Libraries libraries_;
  std::mutex mutex_;
  std::shared_ptr<CudaDriver> driver_;  // once it could be opened
  std::optional<gpu::RuntimeCompiler> compiler_;
  std::string no_compiler_;  // why it could not be opened
};

/// Registers, shared memory and spills of each kernel, from what ptxas reports; the size of the code from the cubin.
std::vector<gpu::KernelResources> resources_of(const gpu::Program& program, const std::vector<std::uint8_t>& cubin,
                                               const std::string& log);

}  // namespace fastpath_cuda
