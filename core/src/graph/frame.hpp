#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <optional>

#include "fastpath/structure.hpp"

namespace fastpath::graph {

inline double dot(const Vec3& a, const Vec3& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }
inline double length(const Vec3& a) { return std::sqrt(dot(a, a)); }
inline Vec3 cross(const Vec3& a, const Vec3& b) {
  return {a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]};
}

/// A well-conditioned basis of space for a structure: first the shortest basis of the lattice that its periodic axes
/// span, then orthonormal directions perpendicular to all of them. Cell vectors of non-periodic axes are never read.
struct Frame {
  std::size_t n_periodic = 0;
  std::array<Vec3, 3> row{};   ///< Basis vectors; the first n_periodic are lattice vectors, angstrom.
  std::array<Vec3, 3> dual{};  ///< dot(dual[i], row[j]) = delta_ij
  /// row[d] = sum_k image[d][k] * cell[k] for d < n_periodic; zero for non-periodic k.
  std::array<std::array<std::int64_t, 3>, 3> image{};
  /// Length, area or volume that the periodic rows span; 1 if there are none.
  double measure = 1.0;
};

/// @throws Error(invalid_argument) naming the axes if a periodic cell vector is zero or not finite, if those of the
///   periodic axes are linearly dependent, or if the lattice has a vector shorter than Graph::kMinDistance.
Frame make_frame(const std::array<Vec3, 3>& cell, const std::array<bool, 3>& pbc);

/// sum_k image[k] * cell[k] over the periodic axes k, the one rounding of it that everything uses: negating `image`
/// negates the result exactly.
inline Vec3 lattice_shift(const std::array<std::int64_t, 3>& image, const std::array<Vec3, 3>& cell,
                          const std::array<bool, 3>& pbc) {
  Vec3 shift{};
  for (std::size_t k = 0; k < 3; ++k) {
    if (!pbc[k] || image[k] == 0) continue;  // the vector of a non-periodic axis may be anything, even NaN
    const auto count = static_cast<double>(image[k]);
    for (std::size_t c = 0; c < 3; ++c) shift[c] += count * cell[k][c];
  }
  return shift;
}

}  // namespace fastpath::graph
