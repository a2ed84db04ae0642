// SiLU and its derivative. Compiled per instruction set.
#if defined(FASTPATH_CPU_SIMD_SILU_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FASTPATH_CPU_SIMD_SILU_INL
#undef FASTPATH_CPU_SIMD_SILU_INL
#else
#define FASTPATH_CPU_SIMD_SILU_INL
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// 1 / (1 + e^-z) and 1 / (1 + e^z).
template <class V>
struct Sigmoid {
  V value, rest;
};
template <class D, class V, class T = hn::TFromD<D>>
HWY_INLINE Sigmoid<V> sigmoid(D d, V z) {
  const V most = hn::Set(d, sizeof(T) == 4 ? T(87) : T(700));  // e^most is finite
  const V e = hn::Exp(d, hn::Min(hn::Neg(z), most));
  const V value = hn::Div(hn::Set(d, T(1)), hn::Add(hn::Set(d, T(1)), e));
  return {value, hn::Mul(e, value)};
}

/// h = constant * z / (1 + e^-z). h may be z.
template <class T>
void silu(std::int64_t n, T constant, const T* z, T* h) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(d));
  const auto c = hn::Set(d, constant);
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const auto v = hn::LoadU(d, z + i);
    hn::StoreU(hn::Mul(hn::Mul(c, v), sigmoid(d, v).value), d, h + i);
  }
  if (i == n) return;
  T few[kLanes] = {};
  std::copy_n(z + i, n - i, few);
  const auto v = hn::LoadU(d, few);
  hn::StoreU(hn::Mul(hn::Mul(c, v), sigmoid(d, v).value), d, few);
  std::copy_n(few, n - i, h + i);
}

/// to = g * constant * d/dz z / (1 + e^-z). `to` may be g.
template <class T>
void silu_gradient(std::int64_t n, T constant, const T* z, const T* g, T* to) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(d));
  const auto c = hn::Set(d, constant), one = hn::Set(d, T(1));
  const auto of = [&](auto v, auto gradient) HWY_ATTR {
    const auto s = sigmoid(d, v);
    return hn::Mul(hn::Mul(hn::Mul(c, gradient), s.value), hn::MulAdd(v, s.rest, one));
  };
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) hn::StoreU(of(hn::LoadU(d, z + i), hn::LoadU(d, g + i)), d, to + i);
  if (i == n) return;
  T few[kLanes] = {}, few_g[kLanes] = {};
  std::copy_n(z + i, n - i, few);
  std::copy_n(g + i, n - i, few_g);
  hn::StoreU(of(hn::LoadU(d, few), hn::LoadU(d, few_g)), d, few);
  std::copy_n(few, n - i, to + i);
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#endif  // per target
