#pragma once

#include <array>
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "fastpath/sdk/irreps.hpp"

namespace fastpath::sdk {

/// The real coupling tensor ("w3j") C(l1,l2,l3)[i,j,k] of three irreps in the component order of docs/conventions.md:
/// sum of squares 1, sign as in operators.md 2.0. Invariant under rotation of its three indices.
struct CouplingTensor {
  int l1 = 0, l2 = 0, l3 = 0;
  std::vector<double> dense;  ///< [2 l1 + 1][2 l2 + 1][2 l3 + 1], row-major.

  struct Entry {
    int i, j, k;
    double value;
  };
  std::vector<Entry> nonzero;  ///< Every element that is not 0, by i, then j, then k.

  double at(int i, int j, int k) const {
    return dense[static_cast<std::size_t>((i * (2 * l2 + 1) + j) * (2 * l3 + 1) + k)];
  }
};

/// Largest l1 + l2 + l3 that coupling() computes: up to it the sums of step 1 are exact in 64 bit integers.
constexpr int kMaxCouplingDegreeSum = 62;

/// The tensor of one triple, accurate to the last bits of a double, zeros exact. Computed at the first call for a
/// triple, then kept until the program (or the plugin that asked) ends.
/// @throws ConfigError if a degree is negative, if |l1 - l2| <= l3 <= l1 + l2 does not hold, or if the sum of the
/// degrees exceeds kMaxCouplingDegreeSum.
/// Safe from several threads.
const CouplingTensor& coupling(int l1, int l2, int l3);

// ---------------------------------------------------------------------------------------------------------------------

namespace detail {

/// Pascal's triangle; 64 bits hold every binomial up to row kMaxCouplingDegreeSum.
class Binomials {
 public:
  Binomials() {
    for (int n = 0; n <= kMaxCouplingDegreeSum; ++n) {
      rows_[n][0] = rows_[n][n] = 1;
      for (int k = 1; k < n; ++k) rows_[n][k] = rows_[n - 1][k - 1] + rows_[n - 1][k];
    }
  }
  std::int64_t operator()(int n, int k) const { return k < 0 || k > n ? 0 : rows_[n][k]; }

 private:
  std::int64_t rows_[kMaxCouplingDegreeSum + 1][kMaxCouplingDegreeSum + 1] = {};
};

/// Coefficients of the complex components that make up real component m, at most two: (mu, q[mu, m]).
struct RealComponent {
  std::array<int, 2> mu{};
  std::array<std::complex<long double>, 2> q{};
  int count = 1;
};

inline RealComponent real_component(int l, int m) {
  using Complex = std::complex<long double>;
  constexpr std::array<std::array<int, 2>, 4> kPowers{{{1, 0}, {0, -1}, {-1, 0}, {0, 1}}};  // of -i
  const auto [re, im] = kPowers[static_cast<std::size_t>(l % 4)];
  const Complex phase(static_cast<long double>(re), static_cast<long double>(im));
  if (m == 0) return {{0, 0}, {phase, Complex()}, 1};
  const long double h = std::sqrt(0.5L);
  const int a = std::abs(m);
  const long double sign = a % 2 == 0 ? h : -h;
  if (m > 0) return {{a, -a}, {phase * Complex(sign, 0), phase * Complex(h, 0)}, 2};
  return {{a, -a}, {phase * Complex(0, sign), phase * Complex(0, -h)}, 2};
}

inline CouplingTensor compute_coupling(int l1, int l2, int l3) {
  static const Binomials binomial;
  // Racah's sum with its factorials paired into binomials is a sum of integers, bounded by 2^(l1+l2+l3). What it leaves
  // out of the Clebsch-Gordan coefficient does not depend on m1, m2, m3, is positive, and goes in the normalisation.
  const auto clebsch_gordan = [&](int m1, int m2, int m3) {
    std::int64_t sum = 0;
    for (int t = 0; t <= l1 + l2 - l3; ++t) {
      const std::int64_t term =
          binomial(l1 + l2 - l3, t) * binomial(l1 - l2 + l3, l1 - m1 - t) * binomial(l2 - l1 + l3, l2 + m2 - t);
      sum += t % 2 == 0 ? term : -term;
    }
    const auto real = [](std::int64_t x) { return static_cast<long double>(x); };
    return real(sum) / std::sqrt(real(binomial(2 * l1, l1 + m1)) * real(binomial(2 * l2, l2 + m2)) *
                                 real(binomial(2 * l3, l3 + m3)));
  };

  std::vector<long double> values;
  long double norm = 0;
  for (int m1 = -l1; m1 <= l1; ++m1) {
    const RealComponent a = real_component(l1, m1);
    for (int m2 = -l2; m2 <= l2; ++m2) {
      const RealComponent b = real_component(l2, m2);
      for (int m3 = -l3; m3 <= l3; ++m3) {
        const RealComponent c = real_component(l3, m3);
        long double value = 0;
        for (int s = 0; s < a.count * b.count * c.count; ++s) {
          const auto u = static_cast<std::size_t>(s % a.count);
          const auto v = static_cast<std::size_t>(s / a.count % b.count);
          const auto w = static_cast<std::size_t>(s / (a.count * b.count));
          if (c.mu[w] != a.mu[u] + b.mu[v]) continue;
          const long double q = (a.q[u] * b.q[v] * std::conj(c.q[w])).real();
          if (q != 0) value += q * clebsch_gordan(a.mu[u], b.mu[v], c.mu[w]);
        }
        values.push_back(value);
        norm += value * value;
      }
    }
  }
  norm = std::sqrt(norm);

  CouplingTensor result{l1, l2, l3, {}, {}};
  constexpr long double kNoise = 1e-14L;  // far below the smallest non-zero element, about 2^-31 for the largest sum
  std::size_t at = 0;
  for (int i = 0; i <= 2 * l1; ++i) {
    for (int j = 0; j <= 2 * l2; ++j) {
      for (int k = 0; k <= 2 * l3; ++k, ++at) {
        const long double value = values[at] / norm;
        result.dense.push_back(std::abs(value) < kNoise ? 0.0 : static_cast<double>(value));
        if (result.dense.back() != 0.0) result.nonzero.push_back({i, j, k, result.dense.back()});
      }
    }
  }
  return result;
}

}  // namespace detail

inline const CouplingTensor& coupling(int l1, int l2, int l3) {
  const auto text = [&] {
    return "coupling of degrees " + std::to_string(l1) + ", " + std::to_string(l2) + ", " + std::to_string(l3) + ": ";
  };
  if (l1 < 0 || l2 < 0 || l3 < 0 || l1 > kMaxCouplingDegreeSum || l2 > kMaxCouplingDegreeSum ||
      l3 > kMaxCouplingDegreeSum || l1 + l2 + l3 > kMaxCouplingDegreeSum) {
    throw ConfigError(text() + "expected degrees >= 0 with a sum of at most " + std::to_string(kMaxCouplingDegreeSum));
  }
  if (l3 < std::abs(l1 - l2) || l3 > l1 + l2) throw ConfigError(text() + "expected |l1 - l2| <= l3 <= l1 + l2");
  static std::mutex mutex;
  static std::map<std::array<int, 3>, CouplingTensor> cache;  // its elements never move
  const std::lock_guard lock(mutex);
  const auto [found, inserted] = cache.try_emplace({l1, l2, l3});
  if (found->second.dense.empty()) found->second = detail::compute_coupling(l1, l2, l3);
  return found->second;
}

}  // namespace fastpath::sdk
