#pragma once

#include <cstdint>

#include "ops/accumulator.hpp"

/// A factor for every row: the envelope of an edge on its weights.
namespace fastpath::ops {

/// y[row, :] = x[row, :] * factor[row].
template <class S>
void multiply_rows_forward(std::int64_t rows, std::int64_t width, const S* x, const S* factor, S* y) {
  for (std::int64_t i = 0; i < rows * width; ++i) y[i] = x[i] * factor[i / width];
}

/// @param grad_x,grad_factor  Out: may be null.
template <class S>
void multiply_rows_backward(std::int64_t rows, std::int64_t width, const S* x, const S* factor, const S* grad_y,
                            S* grad_x, S* grad_factor) {
  if (grad_x != nullptr) {
    for (std::int64_t i = 0; i < rows * width; ++i) grad_x[i] = grad_y[i] * factor[i / width];
  }
  if (grad_factor == nullptr) return;
  for (std::int64_t row = 0; row < rows; ++row) {
    Accumulator<S> total(0);
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
      total += Accumulator<S>(grad_y[i]) * Accumulator<S>(x[i]);
    }
    grad_factor[row] = static_cast<S>(total);
  }
}

}  // namespace fastpath::ops
