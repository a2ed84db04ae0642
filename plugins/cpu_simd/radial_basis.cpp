#include "cpu/radial_basis.hpp"

#include <algorithm>

#include "ops.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_simd/radial_basis.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets what they are compiled for.
#include "hwy/highway.h"
#include "sinc-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

inline void sinc_of_all(std::int64_t n, const double* t, double* value, double* slope, double* curvature) {
  const hn::ScalableTag<double> d;
  constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(d));
  using V = hn::Vec<decltype(d)>;
  double few[4][kLanes];
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const std::int64_t count = std::min(kLanes, n - i);
    const bool whole = count == kLanes;
    if (!whole) std::fill(std::copy_n(t + i, count, few[0]), few[0] + kLanes, 1.0);
    const V at = hn::LoadU(d, whole ? t + i : few[0]);
    V v = hn::Zero(d), s = hn::Zero(d);
    sinc(d, at, slope != nullptr, v, s);
    const auto store = [&](V from, double* to, double* spare) HWY_ATTR {
      if (to == nullptr) return;
      hn::StoreU(from, d, whole ? to + i : spare);
      if (!whole) std::copy_n(spare, count, to + i);
    };
    store(v, value, few[1]);
    store(s, slope, few[2]);
    if (curvature != nullptr) store(sinc_curvature(d, at, v, s), curvature, few[3]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cpu_simd {
namespace {

template <class T>
class RadialBasis final : public fastpath_cpu::RadialBasis<T> {
 public:
  explicit RadialBasis(const sdk::RadialBasisConfig& config)
      : fastpath_cpu::RadialBasis<T>(config, FASTPATH_FOR_TARGET(fastpath_cpu::SincFunction, sinc_of_all)) {}
};

}  // namespace

Op radial_basis() { return op_of<RadialBasis, sdk::RadialBasisConfig>(); }

}  // namespace cpu_simd
#endif  // HWY_ONCE
