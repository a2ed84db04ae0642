#include "backend.hpp"
#include "runtime/plugin.hpp"

namespace opencl {
namespace {

class OpenClPlugin final : public gpu::GpuPlugin {
 public:
  OpenClPlugin() : GpuPlugin(std::make_unique<OpenClBackend>(), FP_DEVICE_OPENCL) {}
};

}  // namespace
}  // namespace opencl

FASTPATH_PLUGIN(opencl::OpenClPlugin, "opencl", "fastpath", "0.1.0", "opencl", "in-tree");
