// The derivative of the derivative of SiLU. Compiled per instruction set.
#if defined(FASTPATH_CPU_SIMD_SILU_TANGENT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FASTPATH_CPU_SIMD_SILU_TANGENT_INL
#undef FASTPATH_CPU_SIMD_SILU_TANGENT_INL
#else
#define FASTPATH_CPU_SIMD_SILU_TANGENT_INL
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "silu-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// The tangent of what silu_gradient() gives: to = constant * (f'(z) g_t + f''(z) z_t g) with f(z) = z / (1 + e^-z).
/// `to` may be g_t.
template <class T>
void silu_gradient_tangent(std::int64_t n, T constant, const T* z, const T* z_t, const T* g, const T* g_t, T* to) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(d));
  const auto c = hn::Set(d, constant), one = hn::Set(d, T(1)), two = hn::Set(d, T(2));
  const auto of = [&](auto at, auto at_t, auto gradient, auto gradient_t) HWY_ATTR {
    const auto s = sigmoid(d, at);
    const auto slope = hn::Mul(s.value, hn::MulAdd(at, s.rest, one));
    const auto curvature = hn::Mul(hn::Mul(s.value, s.rest), hn::MulAdd(at, hn::Sub(s.rest, s.value), two));
    return hn::Mul(c, hn::MulAdd(slope, gradient_t, hn::Mul(hn::Mul(curvature, at_t), gradient)));
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    hn::StoreU(of(hn::LoadU(d, z + i), hn::LoadU(d, z_t + i), hn::LoadU(d, g + i), hn::LoadU(d, g_t + i)), d, to + i);
  }
  if (i == n) return;
  T few[4][kLanes] = {};
  const T* const arrays[] = {z, z_t, g, g_t};
  for (int k = 0; k < 4; ++k) std::copy_n(arrays[k] + i, n - i, few[k]);
  hn::StoreU(of(hn::LoadU(d, few[0]), hn::LoadU(d, few[1]), hn::LoadU(d, few[2]), hn::LoadU(d, few[3])), d, few[0]);
  std::copy_n(few[0], n - i, to + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#endif  // per target
