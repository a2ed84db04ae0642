#pragma once

#include <array>
#include <cstddef>

namespace cpu_simd {

/// Coefficients of sin(t) / t = sum c[k] t^2k, of its derivative over t, sum d[k] t^2k, and of the derivative of that
/// one, sum e[k] t^2k.
struct SincSeries {
  static constexpr int kTerms = 10;
  std::array<double, kTerms> c{}, d{}, e{};
};
constexpr SincSeries make_sinc_series() {
  SincSeries series;
  double factorial = 1;  // (2k+1)!
  for (int k = 0; k <= SincSeries::kTerms; ++k) {
    if (k > 0) factorial *= 2.0 * k * (2.0 * k + 1.0);
    const double c = (k % 2 == 0 ? 1.0 : -1.0) / factorial;
    if (k < SincSeries::kTerms) series.c[static_cast<std::size_t>(k)] = c;
    if (k == 0) continue;
    series.d[static_cast<std::size_t>(k - 1)] = 2 * k * c;
    series.e[static_cast<std::size_t>(k - 1)] = 2 * k * (2 * k - 1) * c;
  }
  return series;
}
inline constexpr SincSeries kSinc = make_sinc_series();

}  // namespace cpu_simd
