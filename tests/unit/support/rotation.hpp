#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "fastpath/sdk/coupling.hpp"
#include "fastpath/sdk/irreps.hpp"

namespace fastpath::test {

/// How each degree transforms under one rotation: vectors as (x, y, z), degree l as the top part of the product of
/// degrees l - 1 and 1.
class Rotation {
 public:
  /// The matrix [3][3] must be a rotation.
  explicit Rotation(const std::vector<double>& matrix, int l_max) : blocks_{{1.0}, matrix} {
    for (int l = 2; l <= l_max; ++l) {
      const auto n = static_cast<std::size_t>(2 * l + 1);
      std::vector<double> next(n * n, 0.0);
      for (const auto& a : sdk::coupling(l, l - 1, 1).nonzero) {
        for (const auto& b : sdk::coupling(l, l - 1, 1).nonzero) {
          next[static_cast<std::size_t>(a.i) * n + static_cast<std::size_t>(b.i)] +=
              static_cast<double>(n) * a.value * b.value *
              blocks_.back()[static_cast<std::size_t>(a.j * (2 * l - 1) + b.j)] *
              matrix[static_cast<std::size_t>(a.k * 3 + b.k)];
        }
      }
      blocks_.push_back(next);
    }
  }

  /// About a skew axis, by no special angle.
  static Rotation example(int l_max) {
    const double a = 0.7, b = -1.9;
    const double ca = std::cos(a), sa = std::sin(a), cb = std::cos(b), sb = std::sin(b);
    return Rotation({ca, sa * sb, sa * cb, 0, cb, -sb, -sa, ca * sb, ca * cb}, l_max);
  }

  /// Every row of `rows`, laid out as `irreps`, rotated.
  std::vector<double> apply(const sdk::Irreps& irreps, const std::vector<double>& rows) const {
    std::vector<double> result(rows.size(), 0.0);
    std::size_t at = 0;
    while (at < rows.size()) {
      for (const sdk::IrrepsBlock& block : irreps) {
        const auto n = static_cast<std::size_t>(block.ir.dim());
        const std::vector<double>& d = blocks_[static_cast<std::size_t>(block.ir.l)];
        for (std::int64_t u = 0; u < block.mul; ++u, at += n) {
          for (std::size_t i = 0; i < n; ++i) {
            for (std::size_t j = 0; j < n; ++j) result[at + i] += d[i * n + j] * rows[at + j];
          }
        }
      }
    }
    return result;
  }

 private:
  std::vector<std::vector<double>> blocks_;  // per degree, [2l+1][2l+1]
};

}  // namespace fastpath::test
