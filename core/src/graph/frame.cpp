#include "graph/frame.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "fastpath/error.hpp"
#include "fastpath/graph.hpp"

namespace fastpath::graph {
namespace {

constexpr std::array<char, 3> kAxisName{'a', 'b', 'c'};

/// Coplanar vectors leave a relative volume of a few 1e-16; what a skewed but usable cell leaves is far above this.
constexpr double kMinRelativeMeasure = 1e-14;

double measure_of(const std::vector<Vec3>& rows) {
  switch (rows.size()) {
    case 1:
      return length(rows[0]);
    case 2:
      return length(cross(rows[0], rows[1]));
    case 3:
      return std::abs(dot(rows[0], cross(rows[1], rows[2])));
    default:
      return 1.0;
  }
}

/// A lattice basis together with its integer coordinates in the cell, from which the vectors are always recomputed.
class Basis {
 public:
  Basis(const std::array<Vec3, 3>& cell, const std::array<bool, 3>& pbc) : cell_(cell), pbc_(pbc) {
    for (std::size_t k = 0; k < 3; ++k) {
      if (!pbc[k]) continue;
      images_.push_back({});
      images_.back()[k] = 1;
      rows_.push_back(cell[k]);
    }
  }

  /// Minkowski reduction: adds small multiples of the other vectors as long as that makes a vector shorter.
  /// For at most three vectors the result is a shortest basis, with angles between 60 and 120 degrees.
  void reduce() {
    // Every change takes at least 1e-9 off a squared length, and multiples come as in Euclid's algorithm, so a few
    // dozen rounds are the rule; the bound only stops a lattice that rounding has made meaningless.
    for (int round = 0; round < 1000; ++round) {
      bool changed = false;
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        for (std::size_t j = 0; j < rows_.size(); ++j) {
          if (i == j) continue;
          const double norm = dot(rows_[j], rows_[j]);
          const double multiple = norm > 0 ? std::nearbyint(dot(rows_[i], rows_[j]) / norm) : 0.0;
          if (multiple == 0 || !(std::abs(multiple) < 0x1p40)) continue;
          changed |= subtract(i, {{j, static_cast<std::int64_t>(multiple)}});
        }
      }
      if (!changed && rows_.size() == 3) {
        for (std::size_t i = 0; i < 3; ++i) {
          for (const std::int64_t p : {-1, 1}) {
            for (const std::int64_t q : {-1, 1}) changed |= subtract(i, {{(i + 1) % 3, p}, {(i + 2) % 3, q}});
          }
        }
      }
      if (!changed) return;
    }
  }

  const std::vector<Vec3>& rows() const { return rows_; }
  const std::array<std::int64_t, 3>& image(std::size_t i) const { return images_[i]; }

 private:
  bool subtract(std::size_t i, const std::vector<std::pair<std::size_t, std::int64_t>>& terms) {
    std::array<std::int64_t, 3> candidate = images_[i];
    for (const auto& [j, multiple] : terms) {
      for (std::size_t k = 0; k < 3; ++k) {
        const double value =
            static_cast<double>(candidate[k]) - static_cast<double>(multiple) * static_cast<double>(images_[j][k]);
        if (!(std::abs(value) < 0x1p45)) return false;
        candidate[k] -= multiple * images_[j][k];
      }
    }
    const Vec3 row = lattice_shift(candidate, cell_, pbc_);
    if (!(dot(row, row) < dot(rows_[i], rows_[i]) * (1 - 1e-9))) return false;
    images_[i] = candidate;
    rows_[i] = row;
    return true;
  }

  const std::array<Vec3, 3>& cell_;
  const std::array<bool, 3>& pbc_;
  std::vector<std::array<std::int64_t, 3>> images_;
  std::vector<Vec3> rows_;
};

std::string periodic_axes(const std::array<bool, 3>& pbc) {
  std::string names;
  for (std::size_t k = 0; k < 3; ++k) {
    if (!pbc[k]) continue;
    if (!names.empty()) names += ", ";
    names += kAxisName[k];
  }
  return names;
}

Vec3 unit(const Vec3& a) {
  const double scale = 1 / length(a);
  return {a[0] * scale, a[1] * scale, a[2] * scale};
}

/// A unit vector perpendicular to `a`.
Vec3 perpendicular(const Vec3& a) {
  std::size_t smallest = 0;
  for (std::size_t c = 1; c < 3; ++c) {
    if (std::abs(a[c]) < std::abs(a[smallest])) smallest = c;
  }
  Vec3 axis{};
  axis[smallest] = 1;
  return unit(cross(unit(a), axis));
}

}  // namespace

Frame make_frame(const std::array<Vec3, 3>& cell, const std::array<bool, 3>& pbc) {
  double product = 1;
  for (std::size_t k = 0; k < 3; ++k) {
    if (!pbc[k]) continue;
    const double norm = length(cell[k]);
    constexpr double kLongest = 1e100;  // the volume of such a cell is still a number
    if (!(norm > 0) || !(norm < kLongest)) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("cell vector {} is ({}, {}, {}), but the structure is periodic along {}: expected a length "
                      "above 0 and below {}",
                      kAxisName[k], cell[k][0], cell[k][1], cell[k][2], kAxisName[k], kLongest));
    }
    product *= norm;
  }
  Basis basis(cell, pbc);
  if (!(measure_of(basis.rows()) > kMinRelativeMeasure * product)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("cell vectors of the periodic axes {} are linearly dependent: they span {} of the product {} of "
                    "their lengths",
                    periodic_axes(pbc), measure_of(basis.rows()), product));
  }
  basis.reduce();

  Frame frame;
  frame.n_periodic = basis.rows().size();
  frame.measure = measure_of(basis.rows());
  for (std::size_t d = 0; d < frame.n_periodic; ++d) {
    frame.row[d] = basis.rows()[d];
    frame.image[d] = basis.image(d);
    const double norm = length(frame.row[d]);
    if (!(norm >= Graph::kMinDistance)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the lattice of the periodic axes {} repeats after {} angstrom, at least {} is expected",
                              periodic_axes(pbc), norm, Graph::kMinDistance));
    }
  }
  switch (frame.n_periodic) {
    case 0:
      frame.row = {Vec3{1, 0, 0}, Vec3{0, 1, 0}, Vec3{0, 0, 1}};
      break;
    case 1:
      frame.row[1] = perpendicular(frame.row[0]);
      frame.row[2] = cross(unit(frame.row[0]), frame.row[1]);
      break;
    case 2:
      frame.row[2] = unit(cross(unit(frame.row[0]), unit(frame.row[1])));
      break;
    default:
      break;
  }
  const double determinant = dot(frame.row[0], cross(frame.row[1], frame.row[2]));
  for (std::size_t d = 0; d < 3; ++d) {
    frame.dual[d] = cross(frame.row[(d + 1) % 3], frame.row[(d + 2) % 3]);
    for (double& component : frame.dual[d]) component /= determinant;
  }
  return frame;
}

}  // namespace fastpath::graph
