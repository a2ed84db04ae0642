// Real spherical harmonics of a vector of directions, and their gradients. Compiled per instruction set.
#if defined(FASTPATH_CPU_SIMD_HARMONICS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FASTPATH_CPU_SIMD_HARMONICS_INL
#undef FASTPATH_CPU_SIMD_HARMONICS_INL
#else
#define FASTPATH_CPU_SIMD_HARMONICS_INL
#endif

#include <limits>

#include "harmonics.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// A vector of directions: v / max(|v|, kShortest), and 1 / |v|, which is 0 where v is too short to have a direction.
template <class V>
struct Directions {
  V x, y, z, inverse;
  bool all_unit;  // else some are shorter than 1
};

template <class D, class V, class T = hn::TFromD<D>>
HWY_INLINE Directions<V> directions(D d, V x, V y, V z) {
  constexpr bool kSingle = sizeof(T) == 4;
  constexpr T kLong = kSingle ? T(1e18) : T(1e150);  // its square is finite, also times 3
  V scale = hn::Set(d, T(1));
  const V largest = hn::Max(hn::Max(hn::Abs(x), hn::Abs(y)), hn::Abs(z));
  if (HWY_UNLIKELY(!hn::AllFalse(d, hn::Gt(largest, hn::Set(d, kLong))))) {
    const V down = hn::Set(d, kSingle ? T(0x1p-70) : T(0x1p-530));
    scale = hn::IfThenElse(hn::Gt(largest, hn::Set(d, kLong)), down, scale);
    x = hn::Mul(x, scale);
    y = hn::Mul(y, scale);
    z = hn::Mul(z, scale);
  }
  const V length = hn::Sqrt(hn::MulAdd(x, x, hn::MulAdd(y, y, hn::Mul(z, z))));
  const V shortest = hn::Set(d, T(harmonics::kShortest));
  // Not Max(length, shortest), which would lose a NaN.
  const V divisor = hn::IfThenElse(hn::Lt(length, shortest), shortest, length);
  const V inverse = hn::Div(hn::Set(d, T(1)), divisor);
  return {hn::Mul(x, inverse), hn::Mul(y, inverse), hn::Mul(z, inverse),
          hn::IfThenZeroElse(hn::Le(length, shortest), hn::Mul(inverse, scale)),
          hn::AllFalse(d, hn::Lt(length, shortest))};
}

/// p = component (l, m) for l = kL..kLMax and orders +-kM, from a = F_{kL-1,kM} and b = F_{kL-2,kM}.
template <int kLMax, int kM, int kL, class D, class V, class T = hn::TFromD<D>>
HWY_INLINE void harmonics_of_order(D d, V y, V re, V im, V a, V b, V* HWY_RESTRICT p) {
  if constexpr (kL <= kLMax) {
    constexpr const harmonics::Constants& k = harmonics::kConstants;
    V f = hn::Mul(hn::Mul(hn::Set(d, T(k.up[kL][kM])), y), a);
    if constexpr (kL >= kM + 2) f = hn::NegMulAdd(hn::Set(d, T(k.back[kL][kM])), b, f);
    if constexpr (kM == 0) {
      p[kL * kL + kL] = f;
    } else {
      p[kL * kL + kL + kM] = hn::Mul(f, re);
      p[kL * kL + kL - kM] = hn::Mul(f, im);
    }
    harmonics_of_order<kLMax, kM, kL + 1>(d, y, re, im, f, a, p);
  }
}
template <int kLMax, int kM, class D, class V, class T = hn::TFromD<D>>
HWY_INLINE void harmonics_from_order(D d, V x, V y, V z, V re, V im, V* HWY_RESTRICT p) {
  if constexpr (kM <= kLMax) {
    const V f = hn::Set(d, T(harmonics::kConstants.first[kM]));
    if constexpr (kM == 0) {
      p[0] = f;
    } else {
      p[kM * kM + 2 * kM] = hn::Mul(f, re);
      p[kM * kM] = hn::Mul(f, im);
    }
    harmonics_of_order<kLMax, kM, kM + 1>(d, y, re, im, f, f, p);
    if constexpr (kM == 0) {
      harmonics_from_order<kLMax, 1>(d, x, y, z, z, x, p);
    } else {
      harmonics_from_order<kLMax, kM + 1>(d, x, y, z, hn::NegMulAdd(im, x, hn::Mul(re, z)),
                                          hn::MulAdd(re, x, hn::Mul(im, z)), p);
    }
  }
}

/// All (kLMax + 1)^2 components of unit vectors, in "component" normalisation, to p.
template <int kLMax, class D, class V>
HWY_INLINE void unit_harmonics(D d, V x, V y, V z, V* HWY_RESTRICT p) {
  harmonics_from_order<kLMax, 0>(d, x, y, z, x, x, p);
}

template <class V>
struct Gradient {
  V x, y, z;
};

/// Adds what orders +-kM contribute to the gradient. re and im: (z + ix)^(kM-1) on entry, for kM > 0.
template <int kLMax, int kM, int kL, class D, class V, class T = hn::TFromD<D>>
HWY_INLINE void gradient_of_order(D d, V y, V re, V im, V a, V b, const V* HWY_RESTRICT g, V& plus, V& minus, V& gy) {
  if constexpr (kL <= kLMax) {
    constexpr const harmonics::Constants& k = harmonics::kConstants;
    V f = a;
    if constexpr (kL > kM) f = hn::Mul(hn::Mul(hn::Set(d, T(k.up[kL][kM])), y), a);
    if constexpr (kL >= kM + 2) f = hn::NegMulAdd(hn::Set(d, T(k.back[kL][kM])), b, f);
    const V *up = g + kL * kL + kL + kM, *down = g + kL * kL + kL - kM;
    plus = hn::MulAdd(f, *up, plus);
    minus = hn::MulAdd(f, *down, minus);
    // dF_{l,m-1}/dy is F_lm times a constant.
    V turned = up[-1];
    if constexpr (kM > 1) turned = hn::MulAdd(im, down[1], hn::Mul(re, turned));
    gy = hn::MulAdd(hn::Mul(hn::Set(d, T(k.slope[kL][kM - 1])), f), turned, gy);
    gradient_of_order<kLMax, kM, kL + 1>(d, y, re, im, f, a, g, plus, minus, gy);
  }
}
template <int kLMax, int kM, class D, class V, class T = hn::TFromD<D>>
HWY_INLINE void gradient_from_order(D d, V x, V y, V z, V re, V im, const V* HWY_RESTRICT g, Gradient<V>& sum) {
  if constexpr (kM <= kLMax) {
    V plus = hn::Zero(d), minus = plus;
    const V f = hn::Set(d, T(harmonics::kConstants.first[kM]));
    gradient_of_order<kLMax, kM, kM>(d, y, re, im, f, f, g, plus, minus, sum.y);
    plus = hn::Mul(plus, hn::Set(d, T(kM)));
    minus = hn::Mul(minus, hn::Set(d, T(kM)));
    if constexpr (kM == 1) {
      sum.z = hn::Add(sum.z, plus);
      sum.x = hn::Add(sum.x, minus);
      gradient_from_order<kLMax, 2>(d, x, y, z, z, x, g, sum);
    } else {
      sum.z = hn::MulAdd(plus, re, hn::MulAdd(minus, im, sum.z));
      sum.x = hn::MulAdd(minus, re, hn::NegMulAdd(plus, im, sum.x));
      gradient_from_order<kLMax, kM + 1>(d, x, y, z, hn::NegMulAdd(im, x, hn::Mul(re, z)),
                                         hn::MulAdd(re, x, hn::Mul(im, z)), g, sum);
    }
  }
}

/// A vector whose part across the unit vectors u is the gradient of sum_i g_i Y_i(v / |v|) times |v|, from cotangents g
/// of the components in "component" normalisation.
template <int kLMax, class D, class V>
HWY_INLINE Gradient<V> unit_gradient(D d, V x, V y, V z, const V* HWY_RESTRICT g) {
  const V zero = hn::Zero(d);
  Gradient<V> sum{zero, zero, zero};
  gradient_from_order<kLMax, 1>(d, x, y, z, hn::Set(d, hn::TFromD<D>(1)), zero, g, sum);
  return sum;
}

/// What turns v: the part of a gradient with respect to u across u, over |v|.
template <class D, class V>
HWY_INLINE Gradient<V> across(D, const Directions<V>& u, const Gradient<V>& g) {
  const V along = hn::MulAdd(g.x, u.x, hn::MulAdd(g.y, u.y, hn::Mul(g.z, u.z)));
  return {hn::Mul(hn::NegMulAdd(along, u.x, g.x), u.inverse), hn::Mul(hn::NegMulAdd(along, u.y, g.y), u.inverse),
          hn::Mul(hn::NegMulAdd(along, u.z, g.z), u.inverse)};
}

/// The same for degrees known at run time and any argument u; r2 = u * u. Slower.
template <class D, class V, class T = hn::TFromD<D>>
HWY_INLINE void solid_harmonics(D d, int l_max, V x, V y, V z, V r2, V* HWY_RESTRICT p) {
  constexpr const harmonics::Constants& k = harmonics::kConstants;
  V re = hn::Set(d, T(1)), im = hn::Zero(d);
  for (int m = 0; m <= l_max; ++m) {
    V f = hn::Set(d, T(k.first[m])), before = hn::Zero(d);
    for (int l = m; l <= l_max; ++l) {
      if (l > m) {
        const V next = hn::NegMulAdd(hn::Mul(hn::Set(d, T(k.back[l][m])), r2), before,
                                     hn::Mul(hn::Mul(hn::Set(d, T(k.up[l][m])), y), f));
        before = f;
        f = next;
      }
      p[l * l + l - m] = hn::Mul(f, im);
      p[l * l + l + m] = hn::Mul(f, re);
    }
    const V next = hn::NegMulAdd(im, x, hn::Mul(re, z));
    im = hn::MulAdd(re, x, hn::Mul(im, z));
    re = next;
  }
}
/// The gradient of sum_i g_i P_i(u) for any u.
template <class D, class V, class T = hn::TFromD<D>>
HWY_INLINE Gradient<V> solid_gradient(D d, int l_max, V x, V y, V z, V r2, const V* HWY_RESTRICT g) {
  constexpr const harmonics::Constants& k = harmonics::kConstants;
  Gradient<V> sum{hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  // (z + ix)^m of this order and of those before and two before.
  V re = hn::Set(d, T(1)), im = hn::Zero(d), re1 = hn::Zero(d), im1 = hn::Zero(d);
  V radial = hn::Zero(d);  // what (x e_x + z e_z) is multiplied by
  for (int m = 0; m <= l_max; ++m) {
    V f = hn::Set(d, T(k.first[m])), before = hn::Zero(d), plus = hn::Zero(d), minus = hn::Zero(d);
    for (int l = m; l <= l_max; ++l) {
      if (l > m) {
        const V next = hn::NegMulAdd(hn::Mul(hn::Set(d, T(k.back[l][m])), r2), before,
                                     hn::Mul(hn::Mul(hn::Set(d, T(k.up[l][m])), y), f));
        before = f;
        f = next;
      }
      const V *up = g + l * l + l + m, *down = g + l * l + l - m;
      plus = hn::MulAdd(f, *up, plus);
      minus = hn::MulAdd(f, *down, minus);
      if (l < l_max) {  // F_lm is in the gradient of F_{l+1,m} and of F_{l+1,m-1}
        const V* g_next = g + (l + 1) * (l + 1) + l + 1;
        V turned = hn::Mul(re, g_next[m]);
        if (m > 0) turned = hn::MulAdd(im, g_next[-m], turned);
        sum.y = hn::MulAdd(hn::Mul(hn::Set(d, T(k.along[l + 1][m])), f), turned, sum.y);
        if (m > 0) {
          turned = hn::Mul(re1, g_next[m - 1]);
          if (m > 1) turned = hn::MulAdd(im1, g_next[1 - m], turned);
          radial = hn::NegMulAdd(hn::Mul(hn::Set(d, T(k.across[l + 1][m - 1])), f), turned, radial);
        }
      }
    }
    if (m > 0) {
      plus = hn::Mul(plus, hn::Set(d, T(m)));
      minus = hn::Mul(minus, hn::Set(d, T(m)));
      sum.z = hn::MulAdd(plus, re1, hn::MulAdd(minus, im1, sum.z));
      sum.x = hn::MulAdd(minus, re1, hn::NegMulAdd(plus, im1, sum.x));
    }
    re1 = re;
    im1 = im;
    re = hn::NegMulAdd(im1, x, hn::Mul(re1, z));
    im = hn::MulAdd(re1, x, hn::Mul(im1, z));
  }
  sum.x = hn::MulAdd(radial, x, sum.x);
  sum.z = hn::MulAdd(radial, z, sum.z);
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#endif  // per target
