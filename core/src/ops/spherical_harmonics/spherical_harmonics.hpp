#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <numbers>
#include <vector>

#include "fastpath/sdk/coupling.hpp"
#include "fastpath/sdk/ops.hpp"
#include "ops/accumulator.hpp"
#include "ops/dual.hpp"
#include "ops/edge_geometry/edge_geometry.hpp"

/// Real spherical harmonics, operators.md 2.2. For S = float (computed in double), double or Dual<double>.
namespace fastpath::ops {

/// P_{l,i}(u) = sum over terms of value * P_{l-1,j}(u) * u_k, and dP_{l,i}/du_k = l * sum of value * P_{l-1,j}(u).
struct SphericalHarmonicsTable {
  struct Term {
    int i, j, k;
    double value;
  };
  std::vector<std::vector<Term>> degrees;  ///< Per l = 0..l_max; degree 0 has no term.
};

/// The table up to l_max, built at its first use. @throws ConfigError if l_max is beyond what sdk::coupling computes.
inline const SphericalHarmonicsTable& spherical_harmonics_table(int l_max) {
  static std::mutex mutex;
  static std::map<int, SphericalHarmonicsTable> cache;  // its elements never move
  const std::lock_guard lock(mutex);
  if (const auto found = cache.find(l_max); found != cache.end()) return found->second;
  SphericalHarmonicsTable table;
  for (int l = 0; l <= l_max; ++l) {
    auto& terms = table.degrees.emplace_back();
    if (l == 0) continue;
    const double factor = (2 * l + 1) / std::sqrt(static_cast<double>(l));
    for (const auto& [i, j, k, value] : sdk::coupling(l, l - 1, 1).nonzero) terms.push_back({i, j, k, factor * value});
  }
  return cache.emplace(l_max, std::move(table)).first->second;
}

namespace detail {

/// A few rows at a time, transposed so that the inner loop runs over rows.
template <class A>
struct SphericalHarmonicsBlock {
  static constexpr std::int64_t kRows = 32;
  using Column = std::array<A, kRows>;
  static constexpr double kShortest = 1e-12;  // shorter vectors are divided by this instead of their length

  std::array<Column, 3> u;
  Column length;
  std::vector<Column> p;  // [(l_max + 1)^2]

  template <class S>
  void load(const sdk::SphericalHarmonicsConfig& config, std::int64_t rows, const S* vectors) {
    for (std::int64_t b = 0; b < kRows; ++b) {
      const S* v = vectors + 3 * std::min(b, rows - 1);  // repeats the last row, so that no lane computes on rubbish
      const A x(v[0]), y(v[1]), z(v[2]);
      A divisor(1);
      length[b] = A(0);
      if (config.normalize) {
        length[b] = length_of(x, y, z);
        divisor = primal(length[b]) > kShortest ? length[b] : A(kShortest);
      }
      u[0][b] = x / divisor;
      u[1][b] = y / divisor;
      u[2][b] = z / divisor;
    }
  }

  void evaluate(const SphericalHarmonicsTable& table, int l_max) {
    p.resize(static_cast<std::size_t>((l_max + 1) * (l_max + 1)));
    p[0].fill(A(1));
    for (int l = 1; l <= l_max; ++l) {
      for (int i = 0; i <= 2 * l; ++i) p[static_cast<std::size_t>(l * l + i)].fill(A(0));
      for (const auto& [i, j, k, value] : table.degrees[static_cast<std::size_t>(l)]) {
        Column& out = p[static_cast<std::size_t>(l * l + i)];
        const Column& in = p[static_cast<std::size_t>((l - 1) * (l - 1) + j)];
        const Column& factor = u[static_cast<std::size_t>(k)];
        const A c(value);
        for (std::size_t b = 0; b < kRows; ++b) out[b] += c * in[b] * factor[b];
      }
    }
  }
};

inline double spherical_harmonics_factor(sdk::Normalization normalization, int l) {
  switch (normalization) {
    case sdk::Normalization::component:
      return 1.0;
    case sdk::Normalization::norm:
      return 1.0 / std::sqrt(2.0 * l + 1.0);
    case sdk::Normalization::integral:
      return 0.5 * std::numbers::inv_sqrtpi;
  }
  return 1.0;
}

}  // namespace detail

/// @param vectors  [n, 3], angstrom.
/// @param sh       Out: [n, (l_max + 1)^2], blocks l = 0..l_max. A zero vector gives 0 for l > 0.
/// @throws sdk::ConfigError if l_max is too large.
template <class S>
void spherical_harmonics_forward(const sdk::SphericalHarmonicsConfig& config, std::int64_t n, const S* vectors, S* sh) {
  using A = Accumulator<S>;
  using Block = detail::SphericalHarmonicsBlock<A>;
  const SphericalHarmonicsTable& table = spherical_harmonics_table(config.l_max);
  const std::int64_t dim = config.dim();
  Block block;
  for (std::int64_t first = 0; first < n; first += Block::kRows) {
    const std::int64_t rows = std::min(Block::kRows, n - first);
    block.load(config, rows, vectors + 3 * first);
    block.evaluate(table, config.l_max);
    for (int l = 0; l <= config.l_max; ++l) {
      const A factor(detail::spherical_harmonics_factor(config.normalization, l));
      for (std::int64_t c = l * l; c < (l + 1) * (l + 1); ++c) {
        for (std::int64_t b = 0; b < rows; ++b) sh[(first + b) * dim + c] = static_cast<S>(factor * block.p[c][b]);
      }
    }
  }
}

/// @param grad_sh       [n, (l_max + 1)^2].
/// @param grad_vectors  Out: [n, 3]. With `normalize`, vectors no longer than 1e-12 get 0: there is no direction to
///                      differentiate.
template <class S>
void spherical_harmonics_backward(const sdk::SphericalHarmonicsConfig& config, std::int64_t n, const S* vectors,
                                  const S* grad_sh, S* grad_vectors) {
  using A = Accumulator<S>;
  using Block = detail::SphericalHarmonicsBlock<A>;
  const SphericalHarmonicsTable& table = spherical_harmonics_table(config.l_max);
  const std::int64_t dim = config.dim();
  Block block;
  for (std::int64_t first = 0; first < n; first += Block::kRows) {
    const std::int64_t rows = std::min(Block::kRows, n - first);
    block.load(config, rows, vectors + 3 * first);
    block.evaluate(table, std::max(config.l_max - 1, 0));
    std::array<typename Block::Column, 3> g;
    for (auto& column : g) column.fill(A(0));
    typename Block::Column cotangent;
    cotangent.fill(A(0));
    for (int l = 1; l <= config.l_max; ++l) {
      const A factor(l * detail::spherical_harmonics_factor(config.normalization, l));
      int loaded = -1;
      for (const auto& [i, j, k, value] : table.degrees[static_cast<std::size_t>(l)]) {  // sorted by i
        if (i != loaded) {
          for (std::int64_t b = 0; b < rows; ++b) cotangent[b] = factor * A(grad_sh[(first + b) * dim + l * l + i]);
          loaded = i;
        }
        auto& out = g[static_cast<std::size_t>(k)];
        const auto& in = block.p[static_cast<std::size_t>((l - 1) * (l - 1) + j)];
        const A c(value);
        for (std::size_t b = 0; b < Block::kRows; ++b) out[b] += c * cotangent[b] * in[b];
      }
    }
    for (std::int64_t b = 0; b < rows; ++b) {
      S* out = grad_vectors + 3 * (first + b);
      if (!config.normalize) {
        for (std::size_t k = 0; k < 3; ++k) out[k] = static_cast<S>(g[k][b]);
      } else if (primal(block.length[b]) > Block::kShortest) {
        const A radial = g[0][b] * block.u[0][b] + g[1][b] * block.u[1][b] + g[2][b] * block.u[2][b];
        for (std::size_t k = 0; k < 3; ++k) {
          out[k] = static_cast<S>((g[k][b] - radial * block.u[k][b]) / block.length[b]);
        }
      } else {
        for (std::size_t k = 0; k < 3; ++k) out[k] = S(0);
      }
    }
  }
}

}  // namespace fastpath::ops
