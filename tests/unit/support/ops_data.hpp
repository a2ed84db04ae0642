#pragma once

#include "ops/dual.hpp"
#include "test_data.hpp"

/// What tests of the reference operators share on top of test_data.hpp.
namespace fastpath::test {

using Reals = std::vector<double>;
using Indices = std::vector<std::int32_t>;
using Duals = std::vector<ops::Dual<double>>;

/// relative_error of the worst row of `width` elements.
template <class T>
double worst_row_error(const std::vector<T>& a, const Reals& reference, std::size_t width) {
  if (a.size() != reference.size()) return std::numeric_limits<double>::quiet_NaN();
  double worst = 0;
  for (auto row = std::ptrdiff_t{0}; row < std::ssize(a); row += static_cast<std::ptrdiff_t>(width)) {
    const auto stop = row + static_cast<std::ptrdiff_t>(width);
    const double error = relative_error(std::vector<T>(a.begin() + row, a.begin() + stop),
                                        Reals(reference.begin() + row, reference.begin() + stop));
    if (std::isnan(error)) return error;
    worst = std::max(worst, error);
  }
  return worst;
}

/// `count` values between low and high.
inline Reals random_values_between(double low, double high, std::int64_t count, std::uint64_t seed) {
  Reals values = random_values(count, seed);
  for (double& value : values) value = low + 0.5 * (value + 1.0) * (high - low);
  return values;
}

/// Rounded to float, so that float and double start from the same input.
inline Reals rounded(Reals values) {
  for (double& value : values) value = static_cast<float>(value);
  return values;
}

inline Duals duals(const Reals& values, const Reals& tangents) {
  Duals result;
  for (std::size_t i = 0; i < values.size(); ++i) result.emplace_back(values[i], tangents[i]);
  return result;
}

/// Constants: tangents zero.
inline Duals duals(const Reals& values) { return duals(values, Reals(values.size(), 0.0)); }

inline Reals values_of(const Duals& x) {
  Reals result;
  for (const auto& element : x) result.push_back(element.value);
  return result;
}

inline Reals tangents_of(const Duals& x) {
  Reals result;
  for (const auto& element : x) result.push_back(element.tangent);
  return result;
}

/// Derivative of an array-valued function at x along a direction, by central differences of two steps: the error is of
/// fourth order in the step, plus rounding / step.
template <class Function>
Reals difference(const Function& function, const Reals& x, const Reals& direction, double step = 1e-3) {
  const Reals far_up = function(moved(x, step, direction)), far_down = function(moved(x, -step, direction));
  const Reals up = function(moved(x, step / 2, direction)), down = function(moved(x, -step / 2, direction));
  Reals result;
  for (std::size_t i = 0; i < up.size(); ++i) {
    result.push_back((8 * (up[i] - down[i]) - (far_up[i] - far_down[i])) / (6 * step));
  }
  return result;
}

}  // namespace fastpath::test
