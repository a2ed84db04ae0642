#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fastpath/sdk/ops.hpp"
#include "ops/accumulator.hpp"
#include "ops/activation.hpp"
#include "ops/dual.hpp"

/// Fully connected net without bias, operators.md 2.4. For S = float (computed and summed in double), double or
/// Dual<double>. Rows are worked on in blocks, so temporaries do not grow with their number.
namespace fastpath::ops {

namespace detail {

/// c[m, n] += a[m, k] b[k, n]; b and c row-major, a(i, p) = a[i * step_i + p * step_p].
template <class A>
void add_product(std::int64_t m, std::int64_t n, std::int64_t k, const A* a, std::int64_t step_i, std::int64_t step_p,
                 const A* b, A* c) {
  for (std::int64_t i = 0; i < m; ++i) {
    A* const out = c + i * n;
    std::int64_t p = 0;
    for (; p + 4 <= k; p += 4) {  // four terms a pass over the output row
      const A* const from = a + i * step_i + p * step_p;
      const A a0 = from[0], a1 = from[step_p], a2 = from[2 * step_p], a3 = from[3 * step_p];
      const A *const b0 = b + p * n, *const b1 = b0 + n, *const b2 = b1 + n, *const b3 = b2 + n;
      for (std::int64_t j = 0; j < n; ++j) out[j] += (a0 * b0[j] + a1 * b1[j]) + (a2 * b2[j] + a3 * b3[j]);
    }
    for (; p < k; ++p) {
      const A a0 = a[i * step_i + p * step_p];
      for (std::int64_t j = 0; j < n; ++j) out[j] += a0 * b[p * n + j];
    }
  }
}

/// One block of rows of the net, with what the backward pass needs.
template <class S>
class RadialMlpBlock {
 public:
  using A = Accumulator<S>;
  static constexpr std::int64_t kRows = 64;

  RadialMlpBlock(const sdk::RadialMlpConfig& config, const S* const* weights)
      : config_(config), h_(config.n_layers() + 1), z_(config.n_layers() + 1) {
    for (std::size_t i = 0; i < config.n_layers(); ++i) {
      const std::int64_t size = config.widths[i] * config.widths[i + 1];
      auto& scaled = weights_.emplace_back();
      for (std::int64_t j = 0; j < size; ++j) scaled.push_back(A(config.scales[i]) * A(weights[i][j]));
    }
  }

  std::int64_t width(std::size_t layer) const { return config_.widths[layer]; }
  /// Scaled weights of a layer, [in, out].
  const std::vector<A>& weights(std::size_t layer) const { return weights_[layer]; }
  /// Input of a layer, [rows, in]; h(n_layers) is the output.
  const std::vector<A>& h(std::size_t layer) const { return h_[layer]; }
  /// What the activation in front of a layer > 0 saw.
  const std::vector<A>& z(std::size_t layer) const { return z_[layer]; }

  void forward(std::int64_t rows, const S* x, bool with_output) {
    h_[0].assign(x, x + rows * width(0));
    const std::size_t n_layers = config_.n_layers();
    for (std::size_t i = 0; i < (with_output ? n_layers : n_layers - 1); ++i) {
      z_[i + 1].assign(static_cast<std::size_t>(rows * width(i + 1)), A(0));
      add_product<A>(rows, width(i + 1), width(i), h_[i].data(), width(i), 1, weights_[i].data(), z_[i + 1].data());
      h_[i + 1] = z_[i + 1];
      if (i + 1 == n_layers) break;
      for (A& value : h_[i + 1]) value = A(config_.activation_constant) * silu(value);
    }
  }

 private:
  const sdk::RadialMlpConfig& config_;
  std::vector<std::vector<A>> weights_, h_, z_;
};

}  // namespace detail

/// @param x        [n, widths.front()].
/// @param weights  One pointer a layer, each [widths[i], widths[i + 1]].
/// @param y        Out: [n, widths.back()].
template <class S>
void radial_mlp_forward(const sdk::RadialMlpConfig& config, std::int64_t n, const S* x, const S* const* weights, S* y) {
  detail::RadialMlpBlock<S> block(config, weights);
  const std::size_t n_layers = config.n_layers();
  for (std::int64_t first = 0; first < n; first += block.kRows) {
    const std::int64_t rows = std::min(block.kRows, n - first);
    block.forward(rows, x + first * block.width(0), true);
    std::transform(block.h(n_layers).begin(), block.h(n_layers).end(), y + first * block.width(n_layers),
                   [](const auto& value) { return static_cast<S>(value); });
  }
}

/// @param grad_y        [n, widths.back()].
/// @param grad_x        Out: [n, widths.front()]. May be null.
/// @param grad_weights  Out: one pointer a layer, summed over rows. It, and any of its entries, may be null.
template <class S>
void radial_mlp_backward(const sdk::RadialMlpConfig& config, std::int64_t n, const S* x, const S* const* weights,
                         const S* grad_y, S* grad_x, S* const* grad_weights) {
  using A = Accumulator<S>;
  detail::RadialMlpBlock<S> block(config, weights);
  const std::size_t n_layers = config.n_layers();
  const auto wanted = [&](std::size_t i) { return grad_weights != nullptr && grad_weights[i] != nullptr; };

  std::vector<std::vector<A>> transposed(n_layers), sums(n_layers);
  std::size_t lowest = grad_x != nullptr ? 0 : n_layers;  // no gradient is needed below this layer
  for (std::size_t i = n_layers; i-- > 0;) {
    if (wanted(i)) lowest = std::min(lowest, i);
    if (wanted(i)) sums[i].assign(block.weights(i).size(), A(0));
    for (std::int64_t j = 0; j < block.width(i + 1); ++j) {
      for (std::int64_t k = 0; k < block.width(i); ++k) {
        transposed[i].push_back(block.weights(i)[static_cast<std::size_t>(k * block.width(i + 1) + j)]);
      }
    }
  }
  if (lowest == n_layers) return;

  std::vector<A> grad, next, block_sum;
  for (std::int64_t first = 0; first < n; first += block.kRows) {
    const std::int64_t rows = std::min(block.kRows, n - first);
    block.forward(rows, x + first * block.width(0), false);
    const S* const rows_of_grad = grad_y + first * block.width(n_layers);
    grad.assign(rows_of_grad, rows_of_grad + rows * block.width(n_layers));
    for (std::size_t i = n_layers; i-- > lowest;) {
      const std::int64_t in = block.width(i), out = block.width(i + 1);
      if (wanted(i)) {
        block_sum.assign(sums[i].size(), A(0));  // sums of sums: rounding grows with the blocks, not with the rows
        detail::add_product<A>(in, out, rows, block.h(i).data(), 1, in, grad.data(), block_sum.data());
        for (std::size_t j = 0; j < block_sum.size(); ++j) sums[i][j] += block_sum[j];
      }
      if (i == 0 && grad_x == nullptr) break;
      next.assign(static_cast<std::size_t>(rows * in), A(0));
      detail::add_product<A>(rows, in, out, grad.data(), out, 1, transposed[i].data(), next.data());
      if (i > 0) {
        for (std::size_t j = 0; j < next.size(); ++j) {
          next[j] *= A(config.activation_constant) * silu_derivative(block.z(i)[j]);
        }
      } else {
        std::transform(next.begin(), next.end(), grad_x + first * in, [](const A& v) { return static_cast<S>(v); });
      }
      grad.swap(next);
    }
  }
  for (std::size_t i = 0; i < n_layers; ++i) {
    for (std::size_t j = 0; j < sums[i].size(); ++j) {
      grad_weights[i][j] = static_cast<S>(A(config.scales[i]) * sums[i][j]);
    }
  }
}

}  // namespace fastpath::ops
