#include <mutex>
#include <utility>

#include "cpu/plugin.hpp"
#include "ops.hpp"

namespace cpu_simd {
namespace {

using fastpath_cpu::faster_from;

class CpuSimd final : public fastpath_cpu::CpuPlugin {
 public:
  CpuSimd()
      : CpuPlugin({measured(56, spherical_harmonics()), measured(20, radial_basis()),
                   measured(0, conv_tensor_product()), measured(0, message_step()), measured(0, radial_mlp()),
                   measured(0, irreps_linear()), measured(0, species_linear()), measured(0, symmetric_contraction()),
                   regroup_channels(), sum(), scaled_silu()},
                  100) {}

  /// Each instruction set rounds in its own way.
  std::uint32_t numerics_version() const override {
    return 16 * kNumerics + (refusal() ? 15 : static_cast<std::uint32_t>(chosen_target()));
  }

 private:
  /// README.md, "When it is faster than the reference".
  static fastpath_cpu::Op measured(std::int64_t edges, fastpath_cpu::Op op) {
    return fastpath_cpu::with_tangents_from(500, faster_from(edges, std::move(op)));
  }

  static constexpr std::uint32_t kNumerics = 1;

  /// Why no instruction set can be used. The first call, when the plugin starts, chooses one.
  const std::optional<std::string>& refusal() const {
    std::call_once(once_, [this] { refusal_ = choose_target(host().lookup("cpu_simd.target")); });
    return refusal_;
  }
  void check_machine(sdk::KernelAnswer& answer) override {
    if (refusal()) answer.blocked(sdk::Reason::arch, *refusal());
  }

  mutable std::once_flag once_;
  mutable std::optional<std::string> refusal_;
};

}  // namespace
}  // namespace cpu_simd

FASTPATH_PLUGIN(cpu_simd::CpuSimd, "cpu_simd", "fastpath", "0.1.0", "cpu", "in-tree");
