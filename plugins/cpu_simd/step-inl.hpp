// Harmonics of a tile of edges, and the products of both passes of a message step. Compiled per instruction set.
#if defined(FASTPATH_CPU_SIMD_STEP_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FASTPATH_CPU_SIMD_STEP_INL
#undef FASTPATH_CPU_SIMD_STEP_INL
#else
#define FASTPATH_CPU_SIMD_STEP_INL
#endif

#include <algorithm>
#include <cstdint>

#include "harmonics-inl.hpp"
#include "hwy/highway.h"
#include "sinc-inl.hpp"
#include "step.hpp"

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Harmonics of kTile vectors, the lanes being edges.
template <class T>
struct TileHarmonics {
  int l_max;
  std::int64_t dim;  ///< (l_max + 1)^2

  /// @param vectors  [kTile, 3]  @param y  Out: [dim][kTile].
  template <class D>
  HWY_INLINE void values(D d, const T* vectors, T* y) const {
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    for (std::int64_t e = 0; e < kTile; e += kLanes) {
      hn::Vec<D> x, y_, z;
      hn::LoadInterleaved3(d, vectors + 3 * e, x, y_, z);
      switch (l_max) {
        case 0:
          hn::StoreU(hn::Set(d, T(1)), d, y + e);
          break;
        case 1:
          values_of<1>(d, x, y_, z, y + e);
          break;
        case 2:
          values_of<2>(d, x, y_, z, y + e);
          break;
        case 3:
          values_of<3>(d, x, y_, z, y + e);
          break;
        case 4:
          values_of<4>(d, x, y_, z, y + e);
          break;
        default:
          values_of<-1>(d, x, y_, z, y + e);
      }
    }
  }

  /// Of the first n vectors. @param vectors  Overwritten by the gradients.  @param grad_y  [dim][kTile]
  template <class D>
  HWY_INLINE void gradients(D d, std::int64_t n, T* vectors, const T* grad_y) const {
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    for (std::int64_t e = 0; e < n; e += kLanes) {
      hn::Vec<D> x, y, z;
      hn::LoadInterleaved3(d, vectors + 3 * e, x, y, z);
      const auto u = directions(d, x, y, z);
      Gradient<hn::Vec<D>> result{hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      switch (l_max) {
        case 0:
          break;
        case 1:
          result = gradient_of<1>(d, u, grad_y + e);
          break;
        case 2:
          result = gradient_of<2>(d, u, grad_y + e);
          break;
        case 3:
          result = gradient_of<3>(d, u, grad_y + e);
          break;
        case 4:
          result = gradient_of<4>(d, u, grad_y + e);
          break;
        default:
          result = gradient_of<-1>(d, u, grad_y + e);
      }
      hn::StoreInterleaved3(result.x, result.y, result.z, d, vectors + 3 * e);
    }
  }

 private:
  static constexpr int components(int degree) {
    return degree < 0 ? (harmonics::kMaxDegree + 1) * (harmonics::kMaxDegree + 1) : (degree + 1) * (degree + 1);
  }
  template <int kLMax, class D, class V>
  HWY_INLINE void values_of(D d, V x, V y, V z, T* to) const {
    V p[components(kLMax)];
    const auto u = directions(d, x, y, z);
    if (kLMax >= 0 && HWY_LIKELY(u.all_unit)) {
      unit_harmonics<HWY_MAX(kLMax, 0)>(d, u.x, u.y, u.z, p);
    } else {
      solid_harmonics(d, l_max, u.x, u.y, u.z, hn::MulAdd(u.x, u.x, hn::MulAdd(u.y, u.y, hn::Mul(u.z, u.z))), p);
    }
    for (std::int64_t j = 0; j < dim; ++j) hn::StoreU(p[j], d, to + j * kTile);
  }
  template <int kLMax, class D, class V>
  HWY_INLINE Gradient<V> gradient_of(D d, const Directions<V>& u, const T* grad_y) const {
    V g[components(kLMax)];
    for (std::int64_t j = 0; j < dim; ++j) g[j] = hn::LoadU(d, grad_y + j * kTile);
    if constexpr (kLMax < 0) {
      const V r2 = hn::MulAdd(u.x, u.x, hn::MulAdd(u.y, u.y, hn::Mul(u.z, u.z)));
      return across(d, u, solid_gradient(d, l_max, u.x, u.y, u.z, r2, g));
    } else {
      return across(d, u, unit_gradient<kLMax>(d, u.x, u.y, u.z, g));
    }
  }
};

/// Basis functions, their argument and the envelope at `n` distances of a tile, and as if there were more beyond r_max
/// up to `filled`, a multiple of every number of lanes.
/// @param slopes   Of the basis functions, too.
/// @param edge_of  The edge that a distance is of.
template <class T, class EdgeOf>
HWY_INLINE void tile_basis(const StepPlan<T>& plan, const StepCall<T>& call, StepBuffers<T>& b, std::int64_t n,
                           std::int64_t filled, bool slopes, const EdgeOf& edge_of) {
  const sdk::RadialBasisConfig& config = plan.radial;
  for (std::int64_t i = 0; i < filled; ++i) {
    const bool there = i < n;
    const double r = there ? static_cast<double>(call.lengths[edge_of(i)]) : config.r_max;
    const auto cut = fastpath_cpu::envelope(r, config.r_max, config.p);
    const auto x = there ? fastpath_cpu::radial_argument(config, r, call.radii, edge_of(i))
                         : fastpath_cpu::ValueAndSlope{1.0, 0.0};
    b.cut[i] = cut.value;
    b.cut_slope[i] = cut.slope;
    b.argument[i] = x.value;
    b.argument_slope[i] = x.slope;
  }
  const hn::ScalableTag<double> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<double>());
  for (std::int64_t k = 0; k < plan.widths[0]; ++k) {
    const double w = plan.frequencies[static_cast<std::size_t>(k)];
    const auto factor = hn::Set(d, config.prefactor * w), factor_slope = hn::Set(d, config.prefactor * w * w);
    for (std::int64_t i = 0; i < filled; i += kLanes) {
      auto value = hn::Zero(d), slope = hn::Zero(d);
      sinc(d, hn::Mul(hn::Set(d, w), hn::LoadU(d, b.argument + i)), slopes, value, slope);
      hn::StoreU(hn::Mul(factor, value), d, b.basis + k * kTile + i);
      if (slopes) hn::StoreU(hn::Mul(factor_slope, slope), d, b.basis_slope + k * kTile + i);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#endif  // per target
