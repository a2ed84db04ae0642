#include "cpu/radial_basis.hpp"

#include "kernel.hpp"

namespace cpu_ref {
namespace {

void sinc_of_all(std::int64_t n, const double* t, double* value, double* slope, double* curvature) {
  for (std::int64_t i = 0; i < n; ++i) {
    const auto s = fastpath_cpu::sinc(Dual<double>(t[i], 1.0));
    value[i] = s.value.value;
    if (slope != nullptr) slope[i] = s.slope.value;
    if (curvature != nullptr) curvature[i] = s.slope.tangent;
  }
}

template <class T>
class RadialBasis final : public fastpath_cpu::RadialBasis<T> {
 public:
  explicit RadialBasis(const sdk::RadialBasisConfig& config) : fastpath_cpu::RadialBasis<T>(config, sinc_of_all) {}
};

}  // namespace

Op radial_basis() {
  using Config = sdk::RadialBasisConfig;
  return {
      Config::kOp, Config::kVersion,
      [](const sdk::Attributes& config, sdk::KernelAnswer&) { static_cast<void>(sdk::known_config<Config>(config)); },
      create<RadialBasis, Config>};
}

}  // namespace cpu_ref
