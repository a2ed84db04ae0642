#include "cuda_backend.hpp"
#include "runtime/plugin.hpp"

namespace fastpath_cuda {
namespace {

class CudaPlugin final : public gpu::GpuPlugin {
 public:
  CudaPlugin() : GpuPlugin(std::make_unique<CudaBackend>(), FP_DEVICE_CUDA) {}
};

}  // namespace
}  // namespace fastpath_cuda

FASTPATH_PLUGIN(fastpath_cuda::CudaPlugin, "cuda", "fastpath", "0.1.0", "cuda", "in-tree");
