#include "cpu/plugin.hpp"
#include "kernel.hpp"

namespace cpu_ref {
namespace {

class CpuRef final : public fastpath_cpu::CpuPlugin {
 public:
  CpuRef()
      : CpuPlugin({spherical_harmonics(), radial_basis(), radial_mlp(), irreps_linear(), species_linear(),
                   conv_tensor_product(), symmetric_contraction(), regroup_channels(), sum(), scaled_silu()},
                  0) {}

  std::uint32_t numerics_version() const override { return 2; }
};

}  // namespace
}  // namespace cpu_ref

FASTPATH_PLUGIN(cpu_ref::CpuRef, "cpu_ref", "fastpath", "0.1.0", "cpu", "in-tree");
