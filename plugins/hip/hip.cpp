#include "hip_backend.hpp"
#include "runtime/plugin.hpp"

namespace fastpath_hip {
namespace {

class HipPlugin final : public gpu::GpuPlugin {
 public:
  HipPlugin() : GpuPlugin(std::make_unique<HipBackend>(), FP_DEVICE_ROCM) {}
};

}  // namespace
}  // namespace fastpath_hip

FASTPATH_PLUGIN(fastpath_hip::HipPlugin, "hip", "fastpath", "0.1.0", "hip", "in-tree");
