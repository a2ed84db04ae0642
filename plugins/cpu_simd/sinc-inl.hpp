// sin(t) / t and its derivatives. Compiled per instruction set.
#if defined(FASTPATH_CPU_SIMD_SINC_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FASTPATH_CPU_SIMD_SINC_INL
#undef FASTPATH_CPU_SIMD_SINC_INL
#else
#define FASTPATH_CPU_SIMD_SINC_INL
#endif

#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"
#include "sinc.hpp"

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// sin(t) / t, of doubles, and its derivative if wanted.
template <class D, class V>
HWY_INLINE void sinc(D d, V t, bool with_slope, V& value, V& slope) {
  const V sine = hn::Sin(d, t), one = hn::Set(d, 1.0);
  const V inverse = hn::Div(one, hn::IfThenElse(hn::Eq(t, hn::Zero(d)), one, t));
  value = hn::Mul(sine, inverse);
  if (with_slope) slope = hn::Mul(hn::Sub(hn::Cos(d, t), value), inverse);
  const auto small = hn::Lt(hn::Abs(t), one);
  if (hn::AllFalse(d, small)) return;
  const V u = hn::Mul(t, t);
  V c = hn::Zero(d), s = hn::Zero(d);
  for (int k = SincSeries::kTerms; k-- > 0;) {
    c = hn::MulAdd(c, u, hn::Set(d, kSinc.c[static_cast<std::size_t>(k)]));
    s = hn::MulAdd(s, u, hn::Set(d, kSinc.d[static_cast<std::size_t>(k)]));
  }
  value = hn::IfThenElse(small, c, value);
  if (with_slope) slope = hn::IfThenElse(small, hn::Mul(s, t), slope);
}

/// The second derivative, from the value and the first.
template <class D, class V>
HWY_INLINE V sinc_curvature(D d, V t, V value, V slope) {
  const V one = hn::Set(d, 1.0);
  const auto small = hn::Lt(hn::Abs(t), one);
  const V large = hn::Neg(hn::Add(value, hn::Div(hn::Add(slope, slope), hn::IfThenElse(small, one, t))));
  if (hn::AllFalse(d, small)) return large;
  const V u = hn::Mul(t, t);
  V e = hn::Zero(d);
  for (int k = SincSeries::kTerms; k-- > 0;) e = hn::MulAdd(e, u, hn::Set(d, kSinc.e[static_cast<std::size_t>(k)]));
  return hn::IfThenElse(small, e, large);
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#endif  // per target
