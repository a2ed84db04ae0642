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

/// A vector and its derivative along one direction: what the harmonics below take in place of a vector too.
template <class V>
struct DualVector {
  V value, tangent;
  HWY_INLINE DualVector() {}                                                    // not initialised, as a vector
  HWY_INLINE DualVector(V v) : value(v), tangent(hn::Zero(hn::DFromV<V>())) {}  // NOLINT: constants convert implicitly
  HWY_INLINE DualVector(V v, V t) : value(v), tangent(t) {}
};

template <class V>
HWY_INLINE V add(V a, V b) {
  return hn::Add(a, b);
}
template <class V>
HWY_INLINE V mul(V a, V b) {
  return hn::Mul(a, b);
}
/// a * b + c
template <class V>
HWY_INLINE V mul_add(V a, V b, V c) {
  return hn::MulAdd(a, b, c);
}
/// c - a * b
template <class V>
HWY_INLINE V neg_mul_add(V a, V b, V c) {
  return hn::NegMulAdd(a, b, c);
}
template <class V>
HWY_INLINE DualVector<V> add(const DualVector<V>& a, const DualVector<V>& b) {
  return {hn::Add(a.value, b.value), hn::Add(a.tangent, b.tangent)};
}
template <class V>
HWY_INLINE DualVector<V> mul(const DualVector<V>& a, const DualVector<V>& b) {
  return {hn::Mul(a.value, b.value), hn::MulAdd(a.tangent, b.value, hn::Mul(a.value, b.tangent))};
}
template <class V>
HWY_INLINE DualVector<V> mul(V a, const DualVector<V>& b) {
  return {hn::Mul(a, b.value), hn::Mul(a, b.tangent)};
}
template <class V>
HWY_INLINE DualVector<V> mul(const DualVector<V>& a, V b) {
  return mul(b, a);
}
template <class V>
HWY_INLINE DualVector<V> mul_add(const DualVector<V>& a, const DualVector<V>& b, const DualVector<V>& c) {
  return {hn::MulAdd(a.value, b.value, c.value),
          hn::MulAdd(a.tangent, b.value, hn::MulAdd(a.value, b.tangent, c.tangent))};
}
template <class V>
HWY_INLINE DualVector<V> neg_mul_add(const DualVector<V>& a, const DualVector<V>& b, const DualVector<V>& c) {
  return {hn::NegMulAdd(a.value, b.value, c.value),
          hn::NegMulAdd(a.tangent, b.value, hn::NegMulAdd(a.value, b.tangent, c.tangent))};
}
template <class V>
HWY_INLINE DualVector<V> neg_mul_add(V a, const DualVector<V>& b, const DualVector<V>& c) {
  return {hn::NegMulAdd(a, b.value, c.value), hn::NegMulAdd(a, b.tangent, c.tangent)};
}

/// A vector of directions: v / max(|v|, kShortest), and 1 / |v|, which is 0 where v is too short to have a direction.
template <class V>
struct Directions {
  V x, y, z, inverse;
  bool all_unit;  // else some are shorter than 1
};

template <class D, class V = hn::Vec<D>, class T = hn::TFromD<D>>
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

/// The same with tangents.
template <class D, class V, class T = hn::TFromD<D>>
HWY_INLINE Directions<DualVector<V>> directions(D d, const DualVector<V>& x, const DualVector<V>& y,
                                                const DualVector<V>& z) {
  const Directions<V> u = directions(d, x.value, y.value, z.value);
  const V along = hn::MulAdd(u.x, x.tangent, hn::MulAdd(u.y, y.tangent, hn::Mul(u.z, z.tangent)));
  // What is too short is scaled only.
  const auto is_short = hn::Eq(u.inverse, hn::Zero(d));
  const V inverse = hn::IfThenElse(is_short, hn::Set(d, T(1) / T(harmonics::kShortest)), u.inverse);
  const V turning = hn::IfThenZeroElse(is_short, along);
  const auto of = [&](V component, V tangent) HWY_ATTR {
    return DualVector<V>(component, hn::Mul(hn::NegMulAdd(turning, component, tangent), inverse));
  };
  return {of(u.x, x.tangent), of(u.y, y.tangent), of(u.z, z.tangent),
          DualVector<V>(u.inverse, hn::Neg(hn::Mul(hn::Mul(turning, u.inverse), u.inverse))), u.all_unit};
}

/// p = component (l, m) for l = kL..kLMax and orders +-kM, from a = F_{kL-1,kM} and b = F_{kL-2,kM}.
template <int kLMax, int kM, int kL, class D, class V, class T = hn::TFromD<D>>
HWY_INLINE void harmonics_of_order(D d, V y, V re, V im, V a, V b, V* HWY_RESTRICT p) {
  if constexpr (kL <= kLMax) {
    constexpr const harmonics::Constants& k = harmonics::kConstants;
    V f = mul(mul(hn::Set(d, T(k.up[kL][kM])), y), a);
    if constexpr (kL >= kM + 2) f = neg_mul_add(hn::Set(d, T(k.back[kL][kM])), b, f);
    if constexpr (kM == 0) {
      p[kL * kL + kL] = f;
    } else {
      p[kL * kL + kL + kM] = mul(f, re);
      p[kL * kL + kL - kM] = mul(f, im);
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
      p[kM * kM + 2 * kM] = mul(f, re);
      p[kM * kM] = mul(f, im);
    }
    harmonics_of_order<kLMax, kM, kM + 1>(d, y, re, im, f, f, p);
    if constexpr (kM == 0) {
      harmonics_from_order<kLMax, 1>(d, x, y, z, z, x, p);
    } else {
      harmonics_from_order<kLMax, kM + 1>(d, x, y, z, neg_mul_add(im, x, mul(re, z)), mul_add(re, x, mul(im, z)), p);
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
    if constexpr (kL > kM) f = mul(mul(hn::Set(d, T(k.up[kL][kM])), y), a);
    if constexpr (kL >= kM + 2) f = neg_mul_add(hn::Set(d, T(k.back[kL][kM])), b, f);
    const V *up = g + kL * kL + kL + kM, *down = g + kL * kL + kL - kM;
    plus = mul_add(f, *up, plus);
    minus = mul_add(f, *down, minus);
    // dF_{l,m-1}/dy is F_lm times a constant.
    V turned = up[-1];
    if constexpr (kM > 1) turned = mul_add(im, down[1], mul(re, turned));
    gy = mul_add(mul(hn::Set(d, T(k.slope[kL][kM - 1])), f), turned, gy);
    gradient_of_order<kLMax, kM, kL + 1>(d, y, re, im, f, a, g, plus, minus, gy);
  }
}
template <int kLMax, int kM, class D, class V, class T = hn::TFromD<D>>
HWY_INLINE void gradient_from_order(D d, V x, V y, V z, V re, V im, const V* HWY_RESTRICT g, Gradient<V>& sum) {
  if constexpr (kM <= kLMax) {
    V plus = hn::Zero(d), minus = plus;
    const V f = hn::Set(d, T(harmonics::kConstants.first[kM]));
    gradient_of_order<kLMax, kM, kM>(d, y, re, im, f, f, g, plus, minus, sum.y);
    plus = mul(plus, hn::Set(d, T(kM)));
    minus = mul(minus, hn::Set(d, T(kM)));
    if constexpr (kM == 1) {
      sum.z = add(sum.z, plus);
      sum.x = add(sum.x, minus);
      gradient_from_order<kLMax, 2>(d, x, y, z, z, x, g, sum);
    } else {
      sum.z = mul_add(plus, re, mul_add(minus, im, sum.z));
      sum.x = mul_add(minus, re, neg_mul_add(plus, im, sum.x));
      gradient_from_order<kLMax, kM + 1>(d, x, y, z, neg_mul_add(im, x, mul(re, z)), mul_add(re, x, mul(im, z)), g,
                                         sum);
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
  const V along = mul_add(g.x, u.x, mul_add(g.y, u.y, mul(g.z, u.z)));
  return {mul(neg_mul_add(along, u.x, g.x), u.inverse), mul(neg_mul_add(along, u.y, g.y), u.inverse),
          mul(neg_mul_add(along, u.z, g.z), u.inverse)};
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
        const V next =
            neg_mul_add(mul(hn::Set(d, T(k.back[l][m])), r2), before, mul(mul(hn::Set(d, T(k.up[l][m])), y), f));
        before = f;
        f = next;
      }
      p[l * l + l - m] = mul(f, im);
      p[l * l + l + m] = mul(f, re);
    }
    const V next = neg_mul_add(im, x, mul(re, z));
    im = mul_add(re, x, mul(im, z));
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
        const V next =
            neg_mul_add(mul(hn::Set(d, T(k.back[l][m])), r2), before, mul(mul(hn::Set(d, T(k.up[l][m])), y), f));
        before = f;
        f = next;
      }
      const V *up = g + l * l + l + m, *down = g + l * l + l - m;
      plus = mul_add(f, *up, plus);
      minus = mul_add(f, *down, minus);
      if (l < l_max) {  // F_lm is in the gradient of F_{l+1,m} and of F_{l+1,m-1}
        const V* g_next = g + (l + 1) * (l + 1) + l + 1;
        V turned = mul(re, g_next[m]);
        if (m > 0) turned = mul_add(im, g_next[-m], turned);
        sum.y = mul_add(mul(hn::Set(d, T(k.along[l + 1][m])), f), turned, sum.y);
        if (m > 0) {
          turned = mul(re1, g_next[m - 1]);
          if (m > 1) turned = mul_add(im1, g_next[1 - m], turned);
          radial = neg_mul_add(mul(hn::Set(d, T(k.across[l + 1][m - 1])), f), turned, radial);
        }
      }
    }
    if (m > 0) {
      plus = mul(plus, hn::Set(d, T(m)));
      minus = mul(minus, hn::Set(d, T(m)));
      sum.z = mul_add(plus, re1, mul_add(minus, im1, sum.z));
      sum.x = mul_add(minus, re1, neg_mul_add(plus, im1, sum.x));
    }
    re1 = re;
    im1 = im;
    re = neg_mul_add(im1, x, mul(re1, z));
    im = mul_add(re1, x, mul(im1, z));
  }
  sum.x = mul_add(radial, x, sum.x);
  sum.z = mul_add(radial, z, sum.z);
  return sum;
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#endif  // per target
