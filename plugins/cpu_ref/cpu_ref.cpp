#include "cpu/plugin.hpp"
#include "kernel.hpp"

namespace cpu_ref {
namespace {

using fastpath_cpu::faster_from;
constexpr std::int64_t kNever = -1;

class CpuRef final : public fastpath_cpu::CpuPlugin {
 public:
  CpuRef()
      : CpuPlugin({spherical_harmonics(), radial_basis(), faster_from(0, radial_mlp()), faster_from(0, irreps_linear()),
                   faster_from(0, species_linear()), faster_from(0, kNever, conv_tensor_product()),
                   faster_from(0, symmetric_contraction()), regroup_channels(), sum(), scaled_silu()},
                  0) {}

  std::uint32_t numerics_version() const override { return 2; }
};

}  // namespace
}  // namespace cpu_ref

FASTPATH_PLUGIN(cpu_ref::CpuRef, "cpu_ref", "fastpath", "0.1.0", "cpu", "in-tree");
