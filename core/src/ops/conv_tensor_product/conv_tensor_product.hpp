#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstdint>
#include <vector>

#include "fastpath/sdk/coupling.hpp"
#include "fastpath/sdk/ops.hpp"
#include "ops/accumulator.hpp"
#include "ops/graph_view.hpp"

namespace fastpath::ops {

namespace conv_detail {

/// One instruction, with what its loops need. Per edge, y is contracted first: t[i, k] = sum_j coefficient * y[j],
/// the same for all channels; only the pairs (i, k) that occur are kept.
template <class A>
struct Path {
  struct Term {
    std::int64_t j;
    A coefficient;  ///< factor * C[i, j, k]
  };
  struct Pair {
    std::int64_t i, k;
    std::vector<Term> terms;
  };
  std::int64_t channels = 0;
  std::int64_t x_offset = 0, y_offset = 0, w_offset = 0, out_offset = 0;  ///< In the rows of the four arrays.
  std::vector<Pair> pairs;

  template <class S>
  A contract(const Pair& pair, const S* y_row) const {
    A t(0);
    for (const Term& term : pair.terms) t += term.coefficient * A(y_row[y_offset + term.j]);
    return t;
  }
};

template <class A>
std::vector<Path<A>> make_paths(const sdk::ConvTensorProductConfig& config) {
  std::vector<Path<A>> paths;
  std::int64_t w_offset = 0;
  for (const auto& instruction : config.instructions) {
    const sdk::IrrepsBlock in = config.in[instruction.in], out = config.out[instruction.out];
    Path<A> path{in.mul,   config.in.offset(instruction.in),   config.edge.offset(instruction.edge),
                 w_offset, config.out.offset(instruction.out), {}};
    w_offset += in.mul;
    auto entries = sdk::coupling(in.ir.l, config.edge[instruction.edge].ir.l, out.ir.l).nonzero;
    std::stable_sort(entries.begin(), entries.end(),
                     [](const auto& a, const auto& b) { return a.i != b.i ? a.i < b.i : a.k < b.k; });
    for (const auto& entry : entries) {
      if (path.pairs.empty() || path.pairs.back().i != entry.i || path.pairs.back().k != entry.k) {
        path.pairs.push_back({entry.i, entry.k, {}});
      }
      path.pairs.back().terms.push_back({entry.j, static_cast<A>(instruction.factor * entry.value)});
    }
    paths.push_back(std::move(path));
  }
  return paths;
}

/// Copies rows from "mul_ir" order [u][m] to "ir_mul" order [m][u] in every block, where channels are contiguous.
template <class S>
std::vector<Accumulator<S>> channels_last(const sdk::Irreps& irreps, std::int64_t n_rows, const S* rows) {
  std::vector<Accumulator<S>> result(static_cast<std::size_t>(n_rows * irreps.dim()));
  for (std::int64_t row = 0; row < n_rows; ++row) {
    for (std::size_t block = 0; block < irreps.size(); ++block) {
      const std::int64_t start = row * irreps.dim() + irreps.offset(block), dim = irreps[block].ir.dim();
      for (std::int64_t u = 0; u < irreps[block].mul; ++u) {
        for (std::int64_t m = 0; m < dim; ++m) {
          result[static_cast<std::size_t>(start + m * irreps[block].mul + u)] =
              Accumulator<S>(rows[start + u * dim + m]);
        }
      }
    }
  }
  return result;
}

/// The way back, for one row.
template <class S, class A>
void store_channels_first(const sdk::Irreps& irreps, const A* source, S* row) {
  for (std::size_t block = 0; block < irreps.size(); ++block) {
    const std::int64_t start = irreps.offset(block), dim = irreps[block].ir.dim(), mul = irreps[block].mul;
    for (std::int64_t u = 0; u < mul; ++u) {
      for (std::int64_t m = 0; m < dim; ++m) row[start + u * dim + m] = static_cast<S>(source[start + m * mul + u]);
    }
  }
}

/// sum_u a[u] b[u], in four interleaved sums.
template <class A>
A dot(const A* a, const A* b, std::int64_t n) {
  std::array<A, 4> sums{A(0), A(0), A(0), A(0)};
  std::int64_t u = 0;
  for (; u + 4 <= n; u += 4) {
    for (std::int64_t s = 0; s < 4; ++s) sums[static_cast<std::size_t>(s)] += a[u + s] * b[u + s];
  }
  for (; u < n; ++u) sums[0] += a[u] * b[u];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

}  // namespace conv_detail

/// Messages from senders, summed per receiver; see ConvTensorProductConfig for shapes and formula.
/// @param out  [n_receivers, config.out.dim()], overwritten; rows of receivers without edges are zero.
/// Each receiver sums its edges in their order: the result depends on nothing else. Nothing aliases out.
template <class S>
void conv_tensor_product_forward(const sdk::ConvTensorProductConfig& config, const GraphView& graph, const S* x,
                                 const S* y, const S* w, S* out) {
  using A = Accumulator<S>;
  const auto paths = conv_detail::make_paths<A>(config);
  const std::vector<A> x_t = conv_detail::channels_last(config.in, graph.n_nodes, x);
  const std::int64_t x_dim = config.in.dim(), y_dim = config.edge.dim(), out_dim = config.out.dim();
  const std::int64_t w_dim = config.weight_numel();
  std::vector<A> sum(static_cast<std::size_t>(out_dim));
  std::vector<A> wx;
  for (std::int64_t r = 0; r < graph.n_receivers; ++r) {
    std::fill(sum.begin(), sum.end(), A(0));
    for (std::int64_t e = graph.receiver_ptr[r]; e < graph.receiver_ptr[r + 1]; ++e) {
      assert(graph.sender[e] >= 0 && graph.sender[e] < graph.n_nodes && graph.receiver[e] == r);
      for (const auto& path : paths) {
        const A* x_block = x_t.data() + graph.sender[e] * x_dim + path.x_offset;
        const S* w_path = w + e * w_dim + path.w_offset;
        wx.resize(static_cast<std::size_t>(path.channels));
        std::int64_t i = -1;
        for (const auto& pair : path.pairs) {
          if (pair.i != i) {
            i = pair.i;
            for (std::int64_t u = 0; u < path.channels; ++u) wx[u] = A(w_path[u]) * x_block[i * path.channels + u];
          }
          const A t = path.contract(pair, y + e * y_dim);
          A* target = sum.data() + path.out_offset + pair.k * path.channels;
          for (std::int64_t u = 0; u < path.channels; ++u) target[u] += t * wx[u];
        }
      }
    }
    conv_detail::store_channels_first(config.out, sum.data(), out + r * out_dim);
  }
}

/// Gradients of sum(out * grad_out). Overwrites those that are not null: grad_x [n_nodes, in], grad_y [E, edge],
/// grad_w [E, weights]. Each sender sums its edges in the order of sender_edge. Nothing aliases a gradient.
template <class S>
void conv_tensor_product_backward(const sdk::ConvTensorProductConfig& config, const GraphView& graph, const S* x,
                                  const S* y, const S* w, const S* grad_out, S* grad_x, S* grad_y, S* grad_w) {
  using A = Accumulator<S>;
  const auto paths = conv_detail::make_paths<A>(config);
  const std::vector<A> g_t = conv_detail::channels_last(config.out, graph.n_receivers, grad_out);
  const std::int64_t x_dim = config.in.dim(), y_dim = config.edge.dim(), out_dim = config.out.dim();
  const std::int64_t w_dim = config.weight_numel();

  if (grad_x != nullptr) {
    std::vector<A> sum(static_cast<std::size_t>(x_dim));
    for (std::int64_t s = 0; s < graph.n_nodes; ++s) {
      std::fill(sum.begin(), sum.end(), A(0));
      for (std::int64_t position = graph.sender_ptr[s]; position < graph.sender_ptr[s + 1]; ++position) {
        const std::int64_t e = graph.sender_edge[position];
        assert(graph.sender[e] == s && graph.receiver[e] >= 0 && graph.receiver[e] < graph.n_receivers);
        for (const auto& path : paths) {
          const A* g_block = g_t.data() + graph.receiver[e] * out_dim + path.out_offset;
          const S* w_path = w + e * w_dim + path.w_offset;
          for (const auto& pair : path.pairs) {
            const A t = path.contract(pair, y + e * y_dim);
            const A* g = g_block + pair.k * path.channels;
            A* target = sum.data() + path.x_offset + pair.i * path.channels;
            for (std::int64_t u = 0; u < path.channels; ++u) target[u] += t * (A(w_path[u]) * g[u]);
          }
        }
      }
      conv_detail::store_channels_first(config.in, sum.data(), grad_x + s * x_dim);
    }
  }

  if (grad_y == nullptr && grad_w == nullptr) return;
  const std::vector<A> x_t = conv_detail::channels_last(config.in, graph.n_nodes, x);
  std::vector<A> wx, y_sum(static_cast<std::size_t>(y_dim)), w_sum(static_cast<std::size_t>(w_dim));
  for (std::int64_t e = 0; e < graph.n_edges; ++e) {
    std::fill(y_sum.begin(), y_sum.end(), A(0));
    std::fill(w_sum.begin(), w_sum.end(), A(0));
    for (const auto& path : paths) {
      const A* x_block = x_t.data() + graph.sender[e] * x_dim + path.x_offset;
      const A* g_block = g_t.data() + graph.receiver[e] * out_dim + path.out_offset;
      const S* w_path = w + e * w_dim + path.w_offset;
      wx.resize(static_cast<std::size_t>(path.channels));
      std::int64_t i = -1;
      for (const auto& pair : path.pairs) {
        const A* x_i = x_block + pair.i * path.channels;
        const A* g = g_block + pair.k * path.channels;
        if (grad_w != nullptr) {
          const A t = path.contract(pair, y + e * y_dim);
          A* target = w_sum.data() + path.w_offset;
          for (std::int64_t u = 0; u < path.channels; ++u) target[u] += t * (x_i[u] * g[u]);
        }
        if (grad_y != nullptr) {
          if (pair.i != i) {
            i = pair.i;
            for (std::int64_t u = 0; u < path.channels; ++u) wx[u] = A(w_path[u]) * x_i[u];
          }
          const A c = conv_detail::dot(wx.data(), g, path.channels);
          A* target = y_sum.data() + path.y_offset;
          for (const auto& term : pair.terms) target[term.j] += term.coefficient * c;
        }
      }
    }
    const auto store = [](const A& value) { return static_cast<S>(value); };
    if (grad_y != nullptr) std::transform(y_sum.begin(), y_sum.end(), grad_y + e * y_dim, store);
    if (grad_w != nullptr) std::transform(w_sum.begin(), w_sum.end(), grad_w + e * w_dim, store);
  }
}

}  // namespace fastpath::ops
