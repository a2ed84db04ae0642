#include <array>
#include <cmath>

#include "pairs.hpp"
#include "step.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_simd/message_step_pairs.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets what they are compiled for.
#include "gemm-inl.hpp"
#include "hwy/highway.h"
#include "product-inl.hpp"
#include "silu-inl.hpp"
#include "sinc-inl.hpp"
#include "step-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

/// What one path reads for the edges of a tile, and where their gradients go.
template <class T>
struct PairPath {
  const PairTile& tile;
  const T* x;  ///< Packed features of all nodes.
  std::int64_t x_stride;
  const T* g;  ///< Packed gradients of all receivers.
  std::int64_t g_stride;
  const T *w, *slope;   ///< [distances][path.padded]: weights, and their derivatives by the distance.
  const T* pairs;       ///< [i, k][kTile]
  T* grad_x;            ///< [kTile] packed rows, x_stride apart: what each edge adds to the gradient of its sender,
  bool add;             ///< to what is there already, or overwritten.
  T* grad_pairs;        ///< [i, k][kTile], overwritten.
  double* grad_length;  ///< [kTile]: the path's part is added.
};

template <int kIn, int kOut>
struct PairBackward {
  template <class D, class T>
  static HWY_NOINLINE void run(D d, const ProductPath<T>& path, const PairPath<T>& in) {
    using V = hn::Vec<D>;
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    for (std::int64_t e = 0; e < in.tile.n; ++e) {
      const auto at = static_cast<std::size_t>(e);
      const T* HWY_RESTRICT x = in.x + in.tile.sender[at] * in.x_stride + path.x;
      const T* HWY_RESTRICT g = in.g + in.tile.receiver[at] * in.g_stride + path.out;
      const T* HWY_RESTRICT w = in.w + in.tile.distance[at] * path.padded;
      const T* HWY_RESTRICT slope = in.slope + in.tile.distance[at] * path.padded;
      T* HWY_RESTRICT grad_x = in.grad_x + e * in.x_stride + path.x;
      V grad_pair[kIn * kOut];
      for (V& sum : grad_pair) sum = hn::Zero(d);
      V grad_length = hn::Zero(d);
      for (std::int64_t u = 0; u < path.padded; u += kLanes) {
        V gradient[kOut];
        for (int k = 0; k < kOut; ++k) gradient[k] = hn::LoadU(d, g + k * path.padded + u);
        const V weight = hn::LoadU(d, w + u);
        V of_weight = hn::Zero(d);
        for (int i = 0; i < kIn; ++i) {
          const V feature = hn::LoadU(d, x + i * path.padded + u);
          const V product = hn::Mul(weight, feature);
          V sum = hn::Zero(d);
          for (int k = 0; k < kOut; ++k) {
            sum = hn::MulAdd(hn::Set(d, in.pairs[(i * kOut + k) * kTile + e]), gradient[k], sum);
            grad_pair[i * kOut + k] = hn::MulAdd(product, gradient[k], grad_pair[i * kOut + k]);
          }
          of_weight = hn::MulAdd(feature, sum, of_weight);
          T* const to = grad_x + i * path.padded + u;
          const V of_feature = hn::Mul(weight, sum);
          hn::StoreU(in.add ? hn::Add(hn::LoadU(d, to), of_feature) : of_feature, d, to);
        }
        grad_length = hn::MulAdd(of_weight, hn::LoadU(d, slope + u), grad_length);
      }
      for (int pair = 0; pair < kIn * kOut; ++pair) {
        in.grad_pairs[pair * kTile + e] = hn::GetLane(hn::SumOfLanes(d, grad_pair[pair]));
      }
      in.grad_length[e] += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, grad_length)));
    }
  }
};
/// The same for any degree. Slower.
template <class D, class T>
HWY_NOINLINE void pair_backward_any(D d, const ProductPath<T>& path, const PairPath<T>& in) {
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  const std::int64_t n_in = path.n_in(), n_out = path.n_out();
  for (std::int64_t e = 0; e < in.tile.n; ++e) {
    const auto at = static_cast<std::size_t>(e);
    const T* const x = in.x + in.tile.sender[at] * in.x_stride + path.x;
    const T* const g = in.g + in.tile.receiver[at] * in.g_stride + path.out;
    const T* const w = in.w + in.tile.distance[at] * path.padded;
    const T* const slope = in.slope + in.tile.distance[at] * path.padded;
    T* const grad_x = in.grad_x + e * in.x_stride + path.x;
    auto grad_length = hn::Zero(d);
    for (std::int64_t i = 0; i < n_in; ++i) {
      for (std::int64_t u = 0; u < path.padded; u += kLanes) {
        auto sum = hn::Zero(d);
        for (std::int64_t k = 0; k < n_out; ++k) {
          sum =
              hn::MulAdd(hn::Set(d, in.pairs[(i * n_out + k) * kTile + e]), hn::LoadU(d, g + k * path.padded + u), sum);
        }
        const auto feature = hn::LoadU(d, x + i * path.padded + u);
        grad_length = hn::MulAdd(hn::Mul(feature, sum), hn::LoadU(d, slope + u), grad_length);
        T* const to = grad_x + i * path.padded + u;
        const auto of_feature = hn::Mul(hn::LoadU(d, w + u), sum);
        hn::StoreU(in.add ? hn::Add(hn::LoadU(d, to), of_feature) : of_feature, d, to);
      }
      for (std::int64_t k = 0; k < n_out; ++k) {
        auto sum = hn::Zero(d);
        for (std::int64_t u = 0; u < path.padded; u += kLanes) {
          const auto product = hn::Mul(hn::LoadU(d, w + u), hn::LoadU(d, x + i * path.padded + u));
          sum = hn::MulAdd(product, hn::LoadU(d, g + k * path.padded + u), sum);
        }
        in.grad_pairs[(i * n_out + k) * kTile + e] = hn::GetLane(hn::SumOfLanes(d, sum));
      }
    }
    in.grad_length[e] += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, grad_length)));
  }
}

template <int kIn, class D, class T>
HWY_INLINE void pair_backward_from(D d, const ProductPath<T>& path, const PairPath<T>& in) {
  switch (path.l_out) {
    case 0:
      return PairBackward<kIn, 1>::run(d, path, in);
    case 1:
      return PairBackward<kIn, 3>::run(d, path, in);
    case 2:
      return PairBackward<kIn, 5>::run(d, path, in);
    case 3:
      return PairBackward<kIn, 7>::run(d, path, in);
    default:
      return PairBackward<kIn, 9>::run(d, path, in);
  }
}
template <class D, class T>
HWY_INLINE void pair_backward(D d, const ProductPath<T>& path, const PairPath<T>& in) {
  switch (path.l_out > kUnrolledDegree ? -1 : path.l_in) {
    case 0:
      return pair_backward_from<1>(d, path, in);
    case 1:
      return pair_backward_from<3>(d, path, in);
    case 2:
      return pair_backward_from<5>(d, path, in);
    case 3:
      return pair_backward_from<7>(d, path, in);
    case 4:
      return pair_backward_from<9>(d, path, in);
    default:
      return pair_backward_any(d, path, in);
  }
}

/// Inputs of the last layer at the distances of a tile in rows 0.. of buffers.last, and their derivatives by the
/// distance in rows `rows`..: the net has one input, so that its derivative takes a pass of its own, which all weights
/// share, in place of one back through the net for every edge.
template <class D, class T>
HWY_INLINE void net_and_slope(D d, const StepPlan<T>& plan, const StepCall<T>& call, const PairTile& tile,
                              StepBuffers<T>& b, std::int64_t rows) {
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  tile_basis(plan, call, b, tile.n_distances, kTileDistances, true,
             [&](std::int64_t i) { return tile.edge[static_cast<std::size_t>(i)]; });
  const bool cuts_basis = plan.radial.apply_cutoff;
  const std::int64_t n_basis = plan.widths[0], stride = plan.stride(0);
  for (std::int64_t i = 0; i < rows; ++i) {
    T *const value = b.h[0] + i * stride, *const slope = value + rows * stride;
    for (std::int64_t n = 0; n < n_basis; ++n) {
      const double basis = b.basis[n * kTile + i], of_r = b.basis_slope[n * kTile + i] * b.argument_slope[i];
      value[n] = static_cast<T>(cuts_basis ? basis * b.cut[i] : basis);
      slope[n] = static_cast<T>(cuts_basis ? std::fma(basis, b.cut_slope[i], of_r * b.cut[i]) : of_r);
    }
    std::fill(value + n_basis, value + stride, T(0));
    std::fill(slope + n_basis, slope + stride, T(0));
  }
  const auto constant = hn::Set(d, plan.constant), one = hn::Set(d, T(1));
  for (std::size_t i = 0; i + 1 < plan.layers(); ++i) {
    const std::int64_t width = plan.stride(i + 1);
    T *const value = b.h[i + 1], *const slope = value + rows * width;
    multiply(d, 2 * rows, width, plan.widths[i], b.h[i], plan.stride(i), plan.forward[i].data(), value, width, false);
    for (std::int64_t at = 0; at < rows * width; at += kLanes) {
      const auto z = hn::LoadU(d, value + at);
      const auto s = sigmoid(d, z);
      const auto scaled = hn::Mul(constant, s.value);
      hn::StoreU(hn::Mul(scaled, z), d, value + at);
      // d/dz z s(z) = s (1 + z (1 - s))
      const auto of_z = hn::Mul(scaled, hn::MulAdd(z, s.rest, one));
      hn::StoreU(hn::Mul(of_z, hn::LoadU(d, slope + at)), d, slope + at);
    }
  }
  if (cuts_basis) return;
  const std::int64_t width = plan.stride(plan.layers() - 1);
  for (std::int64_t i = 0; i < rows; ++i) {
    const auto cut = hn::Set(d, static_cast<T>(b.cut[i])), cut_slope = hn::Set(d, static_cast<T>(b.cut_slope[i]));
    for (std::int64_t at = i * width; at < (i + 1) * width; at += kLanes) {
      const auto value = hn::LoadU(d, b.h.back() + at), slope = hn::LoadU(d, b.h.back() + rows * width + at);
      hn::StoreU(hn::Mul(cut, value), d, b.last + at);
      hn::StoreU(hn::MulAdd(cut_slope, value, hn::Mul(cut, slope)), d, b.last + rows * width + at);
    }
  }
}

template <class T>
void step_backward_pairs(const StepPlan<T>& plan, const StepCall<T>& call, StepBuffers<T>& b, const PairTile& tile,
                         const T* grad_rows, T* to_senders) {
  const hn::ScalableTag<T> d;
  const Product<T>& product = plan.product;
  const TileHarmonics<T> harmonics{plan.l_max, product.edge_dim};
  for (std::int64_t e = 0; e < tile.n; ++e) {
    std::copy_n(call.vectors + 3 * tile.edge[static_cast<std::size_t>(e)], 3, b.vectors + 3 * e);
  }
  std::fill(b.vectors + 3 * tile.n, b.vectors + 3 * kTile, T(1));
  harmonics.values(d, b.vectors, b.y);
  const std::int64_t rows = tile.rows(kBlockRows);
  net_and_slope(d, plan, call, tile, b, rows);

  std::fill_n(b.grad_y, product.edge_dim * kTile, T(0));
  for (const std::size_t i : product.unread) {
    const auto& block = product.in.blocks[i];
    for (std::int64_t e = 0; e < tile.n; ++e) {
      std::fill_n(to_senders + e * product.in.size + block.at, block.padded * block.dim, T(0));
    }
  }
  const std::size_t last = plan.layers() - 1;
  std::array<double, kTile> grad_length{};
  for (std::size_t p = 0; p < product.paths.size(); ++p) {
    const ProductPath<T>& path = product.paths[p];
    if (path.mul == 0) continue;
    make_pairs(d, path, b.y, b.pairs);
    multiply(d, 2 * rows, path.padded, plan.inputs(), b.last, plan.stride(last),
             plan.forward[last].data() + plan.last_forward[p], b.weights, path.padded, false);
    pair_backward(d, path,
                  PairPath<T>{tile, call.x, product.in.size, grad_rows, product.out.size, b.weights,
                              b.weights + rows * path.padded, b.pairs, to_senders, !path.first, b.grad_pairs,
                              grad_length.data()});
    add_grad_y(d, path, b.grad_pairs, b.grad_y);
  }
  for (std::int64_t e = 0; e < tile.n && call.grad_lengths != nullptr; ++e) {
    const auto at = static_cast<std::size_t>(e);
    call.grad_lengths[tile.edge[at]] = static_cast<T>(grad_length[at]);
  }
  if (call.grad_vectors == nullptr) return;
  harmonics.gradients(d, tile.n, b.vectors, b.grad_y);
  for (std::int64_t e = 0; e < tile.n; ++e) {
    std::copy_n(b.vectors + 3 * e, 3, call.grad_vectors + 3 * tile.edge[static_cast<std::size_t>(e)]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cpu_simd {

template <class T>
StepBackwardPairs<T>* step_backward_pairs_for_target() {
  return FASTPATH_FOR_TARGET(StepBackwardPairs<T>, step_backward_pairs<T>);
}
template StepBackwardPairs<float>* step_backward_pairs_for_target<float>();
template StepBackwardPairs<double>* step_backward_pairs_for_target<double>();

}  // namespace cpu_simd
#endif  // HWY_ONCE
