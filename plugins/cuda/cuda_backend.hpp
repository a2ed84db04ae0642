#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/driver_backend.hpp"

namespace fastpath_cuda {

namespace sdk = fastpath::sdk;
namespace gpu = fastpath_gpu;

/// NVIDIA: the driver's library and NVRTC, both opened when they are first needed.
class CudaBackend final : public gpu::DriverBackend {
 public:
  /// Names or paths of the libraries, in the order in which they are tried.
  struct Libraries {
    std::vector<std::string> driver, compiler;
    static Libraries usual();
  };
  explicit CudaBackend(Libraries libraries = Libraries::usual());

  gpu::Language language() const override { return gpu::Language::cuda; }
  gpu::Binary compile(const gpu::Program& program, const gpu::Target& target) override;

 private:
  class CudaDriver;
  std::shared_ptr<gpu::Driver> open_driver() const override;
  std::vector<std::string> options(const gpu::Target& target) const override;

  const Libraries libraries_;
};

/// Registers, shared memory and spills of each kernel, from what ptxas reports; the size of the code from the cubin.
std::vector<gpu::KernelResources> resources_of(const gpu::Program& program, const std::vector<std::uint8_t>& cubin,
                                               const std::string& log);

}  // namespace fastpath_cuda
