#include "opencl_backend.hpp"
#include "runtime/plugin.hpp"

namespace fastpath_opencl {
namespace {

class OpenClPlugin final : public gpu::GpuPlugin {
 public:
  OpenClPlugin() : GpuPlugin(std::make_unique<OpenClBackend>(), FP_DEVICE_OPENCL) {}
};

}  // namespace
}  // namespace fastpath_opencl

FASTPATH_PLUGIN(fastpath_opencl::OpenClPlugin, "opencl", "fastpath", "0.1.0", "opencl", "in-tree");
