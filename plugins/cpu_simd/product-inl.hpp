// The tensor product on a tile of edges: channels are lanes. Compiled per instruction set.
#if defined(FASTPATH_CPU_SIMD_PRODUCT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FASTPATH_CPU_SIMD_PRODUCT_INL
#undef FASTPATH_CPU_SIMD_PRODUCT_INL
#else
#define FASTPATH_CPU_SIMD_PRODUCT_INL
#endif

#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "product.hpp"

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Highest degree whose loops are unrolled.
inline constexpr int kUnrolledDegree = 4;

/// What one path reads of a tile.
template <class T>
struct PathInputs {
  const T* x;  ///< Packed features of all nodes.
  std::int64_t x_stride;
  const std::int32_t* sender;  ///< Of the tile's edges.
  const T* w;                  ///< Weights of the path: rows of edges,
  std::int64_t w_stride;       ///< so far apart.
  /// From a weight to the one that is read for the same edge by the next path: rows lie too far apart for the machine
  /// to foresee.
  std::int64_t w_next = 0;
};

/// Asks for what is about to be read. Nothing is done to it, there need not be anything.
template <class T>
HWY_INLINE void fetch(const T* from, std::int64_t offset) {
  hwy::Prefetch(reinterpret_cast<const T*>(reinterpret_cast<std::uintptr_t>(from) +
                                           static_cast<std::uintptr_t>(offset) * sizeof(T)));
}

/// pairs[i, k] = sum_j factor C[i, j, k] y[j], edge by edge.
template <class D, class T>
HWY_INLINE void make_pairs(D d, const ProductPath<T>& path, const T* HWY_RESTRICT y, T* HWY_RESTRICT pairs) {
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  std::fill_n(pairs, path.n_in() * path.n_out() * kTile, T(0));
  for (const auto& term : path.terms) {
    const auto value = hn::Set(d, term.value);
    T* const to = pairs + term.pair * kTile;
    const T* const from = y + term.j * kTile;
    for (std::int64_t e = 0; e < kTile; e += kLanes) {
      hn::StoreU(hn::MulAdd(value, hn::LoadU(d, from + e), hn::LoadU(d, to + e)), d, to + e);
    }
  }
}
/// grad_y[j] += sum_ik factor C[i, j, k] grad_pairs[i, k]
template <class D, class T>
HWY_INLINE void add_grad_y(D d, const ProductPath<T>& path, const T* HWY_RESTRICT grad_pairs, T* HWY_RESTRICT grad_y) {
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  for (const auto& term : path.terms) {
    const auto value = hn::Set(d, term.value);
    T* const to = grad_y + term.j * kTile;
    const T* const from = grad_pairs + term.pair * kTile;
    for (std::int64_t e = 0; e < kTile; e += kLanes) {
      hn::StoreU(hn::MulAdd(value, hn::LoadU(d, from + e), hn::LoadU(d, to + e)), d, to + e);
    }
  }
}

/// out[k][u] += sum over the edges of a segment of w[u] x[i][u] pairs[i, k], for kVectors vectors of channels. The sums
/// stay in registers from edge to edge.
template <int kIn, int kOut, int kVectors, class D, class T>
HWY_INLINE void forward_channels(D d, const ProductPath<T>& path, const PathInputs<T>& in, const T* HWY_RESTRICT pairs,
                                 const Tile::Segment& segment, std::int64_t u, T* HWY_RESTRICT out) {
  using V = hn::Vec<D>;
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  V sum[kOut][kVectors];
  for (int k = 0; k < kOut; ++k) {
    for (int v = 0; v < kVectors; ++v) sum[k][v] = hn::Zero(d);
  }
  for (std::int64_t e = segment.begin; e < segment.end; ++e) {
    const T* const x = in.x + in.sender[e] * in.x_stride + path.x + u;
    const T* const w = in.w + e * in.w_stride + u;
    V weight[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      weight[v] = hn::LoadU(d, w + v * kLanes);
      fetch(w + v * kLanes, in.w_next);
    }
    for (int i = 0; i < kIn; ++i) {
      V product[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        product[v] = hn::Mul(weight[v], hn::LoadU(d, x + i * path.padded + v * kLanes));
      }
      for (int k = 0; k < kOut; ++k) {
        const V factor = hn::Set(d, pairs[(i * kOut + k) * kTile + e]);
        for (int v = 0; v < kVectors; ++v) sum[k][v] = hn::MulAdd(product[v], factor, sum[k][v]);
      }
    }
  }
  for (int k = 0; k < kOut; ++k) {
    for (int v = 0; v < kVectors; ++v) {
      T* const to = out + k * path.padded + v * kLanes;
      hn::StoreU(hn::Add(hn::LoadU(d, to), sum[k][v]), d, to);
    }
  }
}

template <int kIn, int kOut, class D, class T>
HWY_NOINLINE void forward_path(D d, const ProductPath<T>& path, const PathInputs<T>& in, const Tile& tile,
                               const T* pairs, T* rows, std::int64_t row_stride) {
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  // Enough sums that no one waits for the last one, and no more than there are registers.
  constexpr int kVectors = kOut == 1 ? 4 : kOut <= 5 ? 2 : 1;
  for (std::int64_t s = 0; s < tile.n_segments; ++s) {
    T* const out = rows + s * row_stride + path.out;
    std::int64_t u = 0;
    for (; u + kVectors * kLanes <= path.padded; u += kVectors * kLanes) {
      forward_channels<kIn, kOut, kVectors>(d, path, in, pairs, tile.segments[s], u, out + u);
    }
    for (; u < path.padded; u += kLanes) {
      forward_channels<kIn, kOut, 1>(d, path, in, pairs, tile.segments[s], u, out + u);
    }
  }
}
/// The same for any degree. Slower.
template <class D, class T>
HWY_NOINLINE void forward_path_any(D d, const ProductPath<T>& path, const PathInputs<T>& in, const Tile& tile,
                                   const T* pairs, T* rows, std::int64_t row_stride) {
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  const std::int64_t n_in = path.n_in(), n_out = path.n_out();
  for (std::int64_t s = 0; s < tile.n_segments; ++s) {
    for (std::int64_t u = 0; u < path.padded; u += kLanes) {
      for (std::int64_t k = 0; k < n_out; ++k) {
        auto sum = hn::Zero(d);
        for (std::int64_t e = tile.segments[s].begin; e < tile.segments[s].end; ++e) {
          const T* const x = in.x + in.sender[e] * in.x_stride + path.x + u;
          auto of_edge = hn::Zero(d);
          for (std::int64_t i = 0; i < n_in; ++i) {
            of_edge =
                hn::MulAdd(hn::LoadU(d, x + i * path.padded), hn::Set(d, pairs[(i * n_out + k) * kTile + e]), of_edge);
          }
          sum = hn::MulAdd(hn::LoadU(d, in.w + e * in.w_stride + u), of_edge, sum);
        }
        T* const to = rows + s * row_stride + path.out + k * path.padded + u;
        hn::StoreU(hn::Add(hn::LoadU(d, to), sum), d, to);
      }
    }
  }
}

/// Where the gradients of one path go.
template <class T>
struct PathGradients {
  T* w;  ///< Rows of edges, overwritten,
  std::int64_t w_stride;
  bool past_caches;  ///< They are on whole vectors and not read soon.
  T* x;              ///< [kTile] packed rows: what each edge adds to the gradient of its sender,
  std::int64_t x_stride;
  bool add;  ///< to what is there already, or overwritten.
  T* pairs;  ///< [i, k][kTile], overwritten.
};

template <int kIn, int kOut, class D, class T>
HWY_NOINLINE void backward_path(D d, const ProductPath<T>& path, const PathInputs<T>& in, const Tile& tile,
                                const T* HWY_RESTRICT pairs, const T* HWY_RESTRICT rows, std::int64_t row_stride,
                                const PathGradients<T>& to) {
  using V = hn::Vec<D>;
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  for (std::int64_t s = 0; s < tile.n_segments; ++s) {
    const T* const g = rows + s * row_stride + path.out;
    for (std::int64_t e = tile.segments[s].begin; e < tile.segments[s].end; ++e) {
      const T* HWY_RESTRICT x = in.x + in.sender[e] * in.x_stride + path.x;
      const T* HWY_RESTRICT w = in.w + e * in.w_stride;
      T* HWY_RESTRICT grad_w = to.w + e * to.w_stride;
      T* HWY_RESTRICT grad_x = to.x + e * to.x_stride + path.x;
      V grad_pair[kIn * kOut];
      for (V& sum : grad_pair) sum = hn::Zero(d);
      for (std::int64_t u = 0; u < path.padded; u += kLanes) {
        V gradient[kOut];
        for (int k = 0; k < kOut; ++k) gradient[k] = hn::LoadU(d, g + k * path.padded + u);
        const V weight = hn::LoadU(d, w + u);
        fetch(w + u, in.w_next);
        V of_weight = hn::Zero(d);
        for (int i = 0; i < kIn; ++i) {
          const V feature = hn::LoadU(d, x + i * path.padded + u);
          const V product = hn::Mul(weight, feature);
          V sum = hn::Zero(d);
          for (int k = 0; k < kOut; ++k) {
            sum = hn::MulAdd(hn::Set(d, pairs[(i * kOut + k) * kTile + e]), gradient[k], sum);
            grad_pair[i * kOut + k] = hn::MulAdd(product, gradient[k], grad_pair[i * kOut + k]);
          }
          of_weight = hn::MulAdd(feature, sum, of_weight);
          T* const at = grad_x + i * path.padded + u;
          const V of_feature = hn::Mul(weight, sum);
          hn::StoreU(to.add ? hn::Add(hn::LoadU(d, at), of_feature) : of_feature, d, at);
        }
        if (to.past_caches) {
          hn::Stream(of_weight, d, grad_w + u);
        } else {
          hn::StoreU(of_weight, d, grad_w + u);
        }
      }
      for (int pair = 0; pair < kIn * kOut; ++pair) {
        to.pairs[pair * kTile + e] = hn::GetLane(hn::SumOfLanes(d, grad_pair[pair]));
      }
    }
  }
}
/// The same for any degree. Slower.
template <class D, class T>
HWY_NOINLINE void backward_path_any(D d, const ProductPath<T>& path, const PathInputs<T>& in, const Tile& tile,
                                    const T* pairs, const T* rows, std::int64_t row_stride,
                                    const PathGradients<T>& to) {
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  const std::int64_t n_in = path.n_in(), n_out = path.n_out();
  for (std::int64_t s = 0; s < tile.n_segments; ++s) {
    const T* const g = rows + s * row_stride + path.out;
    for (std::int64_t e = tile.segments[s].begin; e < tile.segments[s].end; ++e) {
      const T* const x = in.x + in.sender[e] * in.x_stride + path.x;
      const T* const w = in.w + e * in.w_stride;
      T* const grad_w = to.w + e * to.w_stride;
      T* const grad_x = to.x + e * to.x_stride + path.x;
      std::fill_n(grad_w, path.padded, T(0));
      for (std::int64_t i = 0; i < n_in; ++i) {
        for (std::int64_t u = 0; u < path.padded; u += kLanes) {
          auto sum = hn::Zero(d);
          for (std::int64_t k = 0; k < n_out; ++k) {
            sum =
                hn::MulAdd(hn::Set(d, pairs[(i * n_out + k) * kTile + e]), hn::LoadU(d, g + k * path.padded + u), sum);
          }
          const auto feature = hn::LoadU(d, x + i * path.padded + u);
          hn::StoreU(hn::MulAdd(feature, sum, hn::LoadU(d, grad_w + u)), d, grad_w + u);
          T* const at = grad_x + i * path.padded + u;
          const auto of_feature = hn::Mul(hn::LoadU(d, w + u), sum);
          hn::StoreU(to.add ? hn::Add(hn::LoadU(d, at), of_feature) : of_feature, d, at);
        }
        for (std::int64_t k = 0; k < n_out; ++k) {
          auto sum = hn::Zero(d);
          for (std::int64_t u = 0; u < path.padded; u += kLanes) {
            const auto product = hn::Mul(hn::LoadU(d, w + u), hn::LoadU(d, x + i * path.padded + u));
            sum = hn::MulAdd(product, hn::LoadU(d, g + k * path.padded + u), sum);
          }
          to.pairs[(i * n_out + k) * kTile + e] = hn::GetLane(hn::SumOfLanes(d, sum));
        }
      }
    }
  }
}

template <int kIn, class D, class T>
HWY_INLINE void forward_from(D d, const ProductPath<T>& path, const PathInputs<T>& in, const Tile& tile, const T* pairs,
                             T* rows, std::int64_t row_stride) {
  switch (path.l_out) {
    case 0:
      return forward_path<kIn, 1>(d, path, in, tile, pairs, rows, row_stride);
    case 1:
      return forward_path<kIn, 3>(d, path, in, tile, pairs, rows, row_stride);
    case 2:
      return forward_path<kIn, 5>(d, path, in, tile, pairs, rows, row_stride);
    case 3:
      return forward_path<kIn, 7>(d, path, in, tile, pairs, rows, row_stride);
    default:
      return forward_path<kIn, 9>(d, path, in, tile, pairs, rows, row_stride);
  }
}
/// rows[segment] += messages of a path.
template <class D, class T>
HWY_INLINE void forward_tile(D d, const ProductPath<T>& path, const PathInputs<T>& in, const Tile& tile, const T* pairs,
                             T* rows, std::int64_t row_stride) {
  switch (path.l_out > kUnrolledDegree ? -1 : path.l_in) {
    case 0:
      return forward_from<1>(d, path, in, tile, pairs, rows, row_stride);
    case 1:
      return forward_from<3>(d, path, in, tile, pairs, rows, row_stride);
    case 2:
      return forward_from<5>(d, path, in, tile, pairs, rows, row_stride);
    case 3:
      return forward_from<7>(d, path, in, tile, pairs, rows, row_stride);
    case 4:
      return forward_from<9>(d, path, in, tile, pairs, rows, row_stride);
    default:
      return forward_path_any(d, path, in, tile, pairs, rows, row_stride);
  }
}

template <int kIn, class D, class T>
HWY_INLINE void backward_from(D d, const ProductPath<T>& path, const PathInputs<T>& in, const Tile& tile,
                              const T* pairs, const T* rows, std::int64_t row_stride, const PathGradients<T>& to) {
  switch (path.l_out) {
    case 0:
      return backward_path<kIn, 1>(d, path, in, tile, pairs, rows, row_stride, to);
    case 1:
      return backward_path<kIn, 3>(d, path, in, tile, pairs, rows, row_stride, to);
    case 2:
      return backward_path<kIn, 5>(d, path, in, tile, pairs, rows, row_stride, to);
    case 3:
      return backward_path<kIn, 7>(d, path, in, tile, pairs, rows, row_stride, to);
    default:
      return backward_path<kIn, 9>(d, path, in, tile, pairs, rows, row_stride, to);
  }
}
/// Gradients of a path from those of its receivers.
template <class D, class T>
HWY_INLINE void backward_tile(D d, const ProductPath<T>& path, const PathInputs<T>& in, const Tile& tile,
                              const T* pairs, const T* rows, std::int64_t row_stride, const PathGradients<T>& to) {
  switch (path.l_out > kUnrolledDegree ? -1 : path.l_in) {
    case 0:
      return backward_from<1>(d, path, in, tile, pairs, rows, row_stride, to);
    case 1:
      return backward_from<3>(d, path, in, tile, pairs, rows, row_stride, to);
    case 2:
      return backward_from<5>(d, path, in, tile, pairs, rows, row_stride, to);
    case 3:
      return backward_from<7>(d, path, in, tile, pairs, rows, row_stride, to);
    case 4:
      return backward_from<9>(d, path, in, tile, pairs, rows, row_stride, to);
    default:
      return backward_path_any(d, path, in, tile, pairs, rows, row_stride, to);
  }
}

/// Sums of receivers first..last-1. A source makes what belongs to a tile's edges: prepare(d, tile, buffers) fills
/// buffers.y, weights(d, path, tile, buffers) says where the path's weights are.
template <class D, class T, class Source, class Buffers>
HWY_INLINE void forward_receivers(D d, const Product<T>& product, const Source& source, const ProductCall<T>& call,
                                  Buffers& b, std::int64_t first, std::int64_t last) {
  const auto& graph = call.graph;
  const std::int64_t size = product.out.size, dim = product.out.dim, end = graph.receiver_ptr[last];
  std::int64_t next = first;  // receivers before it are done
  bool open = false;          // rows[0] has the edges so far of receiver `next`
  for (std::int64_t e = graph.receiver_ptr[first]; e < end;) {
    const Tile tile(graph.receiver, e, end);
    std::fill(b.rows + (open ? size : 0), b.rows + tile.n_segments * size, T(0));
    source.prepare(d, tile, b);
    for (const ProductPath<T>& path : product.paths) {
      if (path.mul == 0) continue;
      make_pairs(d, path, b.y, b.pairs);
      const PathInputs<T> in = source.weights(d, path, tile, b, call);
      forward_tile(d, path, in, tile, b.pairs, b.rows, size);
    }
    for (std::int64_t s = 0; s < tile.n_segments; ++s) {
      const Tile::Segment& segment = tile.segments[static_cast<std::size_t>(s)];
      const std::int64_t r = segment.receiver;
      std::fill(call.out + next * dim, call.out + r * dim, T(0));
      next = r;
      open = e + segment.end < graph.receiver_ptr[r + 1];
      if (open) {
        std::copy_n(b.rows + s * size, s == 0 ? 0 : size, b.rows);
      } else {
        product.out.unpack(b.rows + s * size, call.out + r * dim);
        next = r + 1;
      }
    }
    e += tile.n;
  }
  std::fill(call.out + next * dim, call.out + last * dim, T(0));
}

/// Rows of edges that a path's gradients of weights go to.
template <class T>
struct GradientRows {
  T* data;
  std::int64_t stride;
  bool past_caches = false;
};

/// Gradients of the edges of a tile. @param to_senders  Out: [kTile] packed rows, what each edge adds to the gradient
/// of its sender. A source takes gradients of weights, take(d, path, gradients, tile, buffers), between prepare() and
/// finish(d, tile, buffers).
template <class D, class T, class Source, class Buffers>
HWY_INLINE void backward_edges(D d, const Product<T>& product, const Source& source, const ProductCall<T>& call,
                               Buffers& b, const Tile& tile, T* to_senders) {
  for (std::int64_t s = 0; s < tile.n_segments; ++s) {
    product.out.pack(call.grad_out + tile.segments[static_cast<std::size_t>(s)].receiver * product.out.dim,
                     b.rows + s * product.out.size);
  }
  source.prepare(d, tile, b);
  std::fill_n(b.grad_y, product.edge_dim * kTile, T(0));
  for (const std::size_t i : product.unread) {
    const auto& block = product.in.blocks[i];
    for (std::int64_t e = 0; e < tile.n; ++e) {
      std::fill_n(to_senders + e * product.in.size + block.at, block.padded * block.dim, T(0));
    }
  }
  for (const ProductPath<T>& path : product.paths) {
    if (path.mul == 0) continue;
    make_pairs(d, path, b.y, b.pairs);
    const PathInputs<T> in = source.weights(d, path, tile, b, call);
    const GradientRows<T> of_weights = source.grad_weights(path, tile, b);
    const PathGradients<T> to{of_weights.data, of_weights.stride, of_weights.past_caches, to_senders, product.in.size,
                              !path.first,     b.grad_pairs};
    backward_tile(d, path, in, tile, b.pairs, b.rows, product.out.size, to);
    add_grad_y(d, path, b.grad_pairs, b.grad_y);
    if (of_weights.past_caches) hwy::FlushStream();
    source.take(d, path, tile, b);
  }
  source.finish(d, tile, b);
}

/// rows[sender of e] += what edge e adds, for columns first..last-1 (whole cache lines).
template <class T>
void add_to_senders(std::int64_t n, const std::int32_t* sender, const T* from, std::int64_t size, std::int64_t first,
                    std::int64_t last, T* rows) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  for (std::int64_t e = 0; e < n; ++e) {
    T* const to = rows + sender[e] * size;
    const T* const add = from + e * size;
    for (std::int64_t c = first; c < last; c += kLanes) {
      hn::StoreU(hn::Add(hn::LoadU(d, to + c), hn::LoadU(d, add + c)), d, to + c);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#endif  // per target
