#pragma once

#include <cstdint>
#include <vector>

#include "ops/irreps_linear/block_linear.hpp"

namespace fastpath::ops {

namespace detail {
/// Calls f(component of a y row, position in the bias) for every output that has a bias.
template <class F>
void for_each_bias(const sdk::Irreps& out, F f) {
  std::int64_t position = 0;
  for (std::size_t block = 0; block < out.size(); ++block) {
    if (!(out[block].ir == sdk::Irrep{0, 1})) continue;
    for (std::int64_t w = 0; w < out[block].mul; ++w) f(out.offset(block) + w, position++);
  }
}
}  // namespace detail

/// Mixes channels of equal irreps; see IrrepsLinearConfig for shapes. Output blocks without a path are zero.
/// @param bias  [config.bias_numel()], or null for none.
/// Nothing aliases y.
template <class S>
void irreps_linear_forward(const sdk::IrrepsLinearConfig& config, std::int64_t n_rows, const S* x, const S* weight,
                           const S* bias, S* y) {
  block_linear<S>({config.in, config.out, config.paths(), 1}, n_rows, x, nullptr, weight, y);
  if (bias == nullptr) return;
  for (std::int64_t row = 0; row < n_rows; ++row) {
    detail::for_each_bias(config.out, [&](std::int64_t component, std::int64_t position) {
      y[row * config.out.dim() + component] += bias[position];
    });
  }
}

/// Gradients of sum(y * grad_y). Overwrites those that are not null: grad_x [n_rows, in], grad_weight, grad_bias.
template <class S>
void irreps_linear_backward(const sdk::IrrepsLinearConfig& config, std::int64_t n_rows, const S* x, const S* weight,
                            const S* grad_y, S* grad_x, S* grad_weight, S* grad_bias) {
  const BlockLinear map{config.in, config.out, config.paths(), 1};
  if (grad_x != nullptr) block_linear_grad_x<S>(map, n_rows, nullptr, weight, grad_y, grad_x);
  if (grad_weight != nullptr) block_linear_grad_weight<S>(map, n_rows, x, nullptr, grad_y, grad_weight);
  if (grad_bias == nullptr) return;
  detail::for_each_bias(config.out, [&](std::int64_t component, std::int64_t position) {
    Accumulator<S> sum(0);
    for (std::int64_t row = 0; row < n_rows; ++row) {
      sum += static_cast<Accumulator<S>>(grad_y[row * config.out.dim() + component]);
    }
    grad_bias[position] = static_cast<S>(sum);
  });
}

}  // namespace fastpath::ops
