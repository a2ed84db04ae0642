#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "fastpath/safetensors.hpp"
#include "ops/dual.hpp"

/// What the tests of the reference operators share.
namespace fastpath::ops {

using Reals = std::vector<double>;
using Duals = std::vector<Dual<double>>;
using Indices = std::vector<std::int32_t>;

/// A file of tests/data/refdata.
class RefData {
 public:
  explicit RefData(const std::string& name)
      : file_(read_safetensors(std::string(FASTPATH_TEST_DATA) + "/refdata/" + name + ".safetensors")) {}
  Reals reals(const std::string& name) const {
    const auto span = file_.tensors.at(name).span<double>();
    return {span.begin(), span.end()};
  }
  Indices indices(const std::string& name) const {
    Indices result;
    for (const std::int64_t i : file_.tensors.at(name).span<std::int64_t>()) {
      result.push_back(static_cast<std::int32_t>(i));
    }
    return result;
  }

 private:
  SafetensorsFile file_;
};

/// max|a - b| / max|b|, per row of `width` elements the worst; infinite for a NaN or different sizes.
template <class T>
double row_error(const std::vector<T>& a, const Reals& b, std::size_t width) {
  double worst = 0;
  if (a.size() != b.size() || width == 0) return std::numeric_limits<double>::infinity();
  for (std::size_t row = 0; row < b.size(); row += width) {
    double difference = 0, scale = 0;
    for (std::size_t i = row; i < row + width; ++i) {
      const double d = std::abs(static_cast<double>(a[i]) - b[i]);
      difference = d >= 0 ? std::max(difference, d) : std::numeric_limits<double>::infinity();
      scale = std::max(scale, std::abs(b[i]));
    }
    if (difference > 0) worst = std::max(worst, difference / scale);
  }
  return worst;
}

/// max|a - b| / max|b| of whole arrays.
template <class T>
double error(const std::vector<T>& a, const Reals& b) {
  return b.empty() && a.empty() ? 0.0 : row_error(a, b, b.size());
}

inline Reals random_reals(std::size_t n, unsigned seed) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  Reals result(n);
  for (double& value : result) value = normal(generator);
  return result;
}

inline Reals uniform_reals(std::size_t n, double low, double high, unsigned seed) {
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> uniform(low, high);
  Reals result(n);
  for (double& value : result) value = uniform(generator);
  return result;
}

template <class T>
std::vector<T> converted(const Reals& values) {
  std::vector<T> result;
  for (const double value : values) result.push_back(static_cast<T>(value));
  return result;
}

/// Values rounded to float, so that float and double start from the same input.
inline Reals rounded(Reals values) {
  for (double& value : values) value = static_cast<float>(value);
  return values;
}

inline Duals duals(const Reals& values, const Reals& tangents) {
  Duals result;
  for (std::size_t i = 0; i < values.size(); ++i) result.emplace_back(values[i], tangents[i]);
  return result;
}

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

inline double dot(const Reals& a, const Reals& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// a + step * direction.
inline Reals moved(const Reals& a, const Reals& direction, double step) {
  Reals result;
  for (std::size_t i = 0; i < a.size(); ++i) result.push_back(a[i] + step * direction[i]);
  return result;
}

/// Derivative of an array-valued function along a direction, by a central difference with one Richardson step: error
/// of fourth order in the step plus rounding / step, about 1e-11 for smooth functions of size 1.
template <class Function>
Reals difference(const Function& function, const Reals& x, const Reals& direction, double step = 1e-3) {
  const Reals far_up = function(moved(x, direction, step)), far_down = function(moved(x, direction, -step));
  const Reals up = function(moved(x, direction, step / 2)), down = function(moved(x, direction, -step / 2));
  Reals result;
  for (std::size_t i = 0; i < up.size(); ++i) {
    result.push_back((8 * (up[i] - down[i]) - (far_up[i] - far_down[i])) / (6 * step));
  }
  return result;
}

}  // namespace fastpath::ops
