#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "fastpath/tensor.hpp"

namespace fastpath::verify {

/// max|a - b| / max|b|, in double; max|a - b| where all of b is zero; NaN if an element of a is not finite where that
/// of b is. Where b is not finite nothing can be said of a, and nothing is.
template <class A, class B>
double relative_error(const A* a, const B* b, std::int64_t n) {
  double difference = 0, largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    if (!std::isfinite(y)) continue;
    if (!std::isfinite(x)) return std::numeric_limits<double>::quiet_NaN();
    difference = std::max(difference, std::abs(x - y));
    largest = std::max(largest, std::abs(y));
  }
  return largest > 0 ? difference / largest : difference;
}

/// The same for real host tensors of equal size, contiguous.
inline double relative_error(const Tensor& a, const Tensor& b) {
  const auto with = [&](const auto* x) {
    return b.dtype() == DType::float32 ? relative_error(x, b.data<float>(), b.numel())
                                       : relative_error(x, b.data<double>(), b.numel());
  };
  return a.dtype() == DType::float32 ? with(a.data<float>()) : with(a.data<double>());
}

/// What a tensor of a real call may be off by. Wider than on inputs of the core's own: sums are as long as the input is
/// large, and nobody has chosen the input so that it is well-conditioned. What it must find are wrong kernels.
inline double call_tolerance(DType dtype, double promised, double reference_error) noexcept {
  constexpr double kFloat64 = 1e-12, kFloat32 = 1e-5, kOwnErrors = 4;
  if (dtype == DType::float32) return std::max({kFloat32, std::min(promised, kFloat32), kOwnErrors * reference_error});
  return std::max(kFloat64, std::min(promised, kFloat64));
}

}  // namespace fastpath::verify
