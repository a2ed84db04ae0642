#include "cpu/radial_basis.hpp"

#include <cmath>

#include "kernel.hpp"

namespace cpu_ref {
namespace {

void sinc_of_all(std::int64_t n, const double* t, double* value, double* slope, double* curvature) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (curvature != nullptr) {
      const auto s = fastpath_cpu::sinc(Dual<double>(t[i], 1.0));
      value[i] = s.value.value;
      slope[i] = s.slope.value;
      curvature[i] = s.slope.tangent;
    } else if (slope != nullptr) {
      const auto s = fastpath_cpu::sinc(t[i]);
      value[i] = s.value;
      slope[i] = s.slope;
    } else {
      value[i] = std::abs(t[i]) >= 1.0 ? std::sin(t[i]) / t[i] : fastpath_cpu::sinc(t[i]).value;  // without a cosine
    }
  }
}

template <class T>
class RadialBasis final : public fastpath_cpu::RadialBasis<T> {
 public:
  explicit RadialBasis(const sdk::RadialBasisConfig& config) : fastpath_cpu::RadialBasis<T>(config, sinc_of_all) {}
};

}  // namespace

Op radial_basis() { return op_of<RadialBasis, sdk::RadialBasisConfig>(); }

}  // namespace cpu_ref
