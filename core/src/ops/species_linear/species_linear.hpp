#pragma once

#include <cstdint>

#include "ops/irreps_linear/block_linear.hpp"

namespace fastpath::ops {

/// Irreps linear with the matrix of each row's species; see SpeciesLinearConfig for shapes.
/// @param species  [n_rows], each in 0..n_species-1.
/// Nothing aliases y.
template <class S>
void species_linear_forward(const sdk::SpeciesLinearConfig& config, std::int64_t n_rows, const S* x,
                            const std::int32_t* species, const S* weight, S* y) {
  block_linear<S>({config.in, config.out, config.paths(), config.n_species}, n_rows, x, species, weight, y);
}

/// Gradients of sum(y * grad_y). Overwrites those that are not null; matrices of absent species get zeros.
template <class S>
void species_linear_backward(const sdk::SpeciesLinearConfig& config, std::int64_t n_rows, const S* x,
                             const std::int32_t* species, const S* weight, const S* grad_y, S* grad_x, S* grad_weight) {
  const BlockLinear map{config.in, config.out, config.paths(), config.n_species};
  if (grad_x != nullptr) block_linear_grad_x<S>(map, n_rows, species, weight, grad_y, grad_x);
  if (grad_weight != nullptr) block_linear_grad_weight<S>(map, n_rows, x, species, grad_y, grad_weight);
}

}  // namespace fastpath::ops
