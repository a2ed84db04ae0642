#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "fastpath/module.hpp"
#include "fastpath/safetensors.hpp"

/// What unit tests share: reference data, random numbers, the error metric.
namespace fastpath::test {

/// A path below tests/data.
inline std::filesystem::path data_path(const std::string& relative) {
  return std::filesystem::path(FASTPATH_TEST_DATA) / relative;
}

/// The tensors of a safetensors file below tests/data, copied out by name.
class TestData {
 public:
  explicit TestData(const std::string& relative) : tensors_(read_safetensors(data_path(relative)).tensors) {}

  std::vector<double> reals(const std::string& name) const { return copy<double>(name); }
  std::vector<std::int64_t> integers(const std::string& name) const { return copy<std::int64_t>(name); }
  const Shape& shape(const std::string& name) const { return tensors_.at(name).shape(); }
  const StateDict& tensors() const { return tensors_; }

 private:
  template <class T>
  std::vector<T> copy(const std::string& name) const {
    const auto values = tensors_.at(name).span<T>();
    return {values.begin(), values.end()};
  }
  StateDict tensors_;
};

/// max |a - b| / max |b|; max |a| where b is all zero. NaN (so no bound holds) if sizes differ or a value is NaN.
template <class T, class R = double>
double relative_error(const std::vector<T>& a, const std::vector<R>& reference) {
  if (a.size() != reference.size()) return std::numeric_limits<double>::quiet_NaN();
  double worst = 0, scale = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double error = std::abs(static_cast<double>(a[i]) - static_cast<double>(reference[i]));
    if (std::isnan(error)) return error;
    worst = std::max(worst, error);
    scale = std::max(scale, std::abs(static_cast<double>(reference[i])));
  }
  return scale == 0 ? worst : worst / scale;
}

/// Uniform in (-1, 1), the same on every platform.
inline std::vector<double> random_values(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<double> values(static_cast<std::size_t>(count));
  for (double& value : values) value = (static_cast<double>(generator() >> 11) + 0.5) * 0x1p-52 - 1.0;
  return values;
}

template <class T, class R>
std::vector<T> converted(const std::vector<R>& values) {
  std::vector<T> result;
  for (const R& value : values) result.push_back(static_cast<T>(value));
  return result;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// base + step * direction.
inline std::vector<double> moved(std::vector<double> base, double step, const std::vector<double>& direction) {
  for (std::size_t i = 0; i < base.size(); ++i) base[i] += step * direction[i];
  return base;
}

/// f'(0) by the five point rule: exact up to rounding for polynomials of degree 4 and less.
template <class F>
double derivative(const F& f, double step) {
  return (8 * (f(step) - f(-step)) - (f(2 * step) - f(-2 * step))) / (12 * step);
}

}  // namespace fastpath::test
