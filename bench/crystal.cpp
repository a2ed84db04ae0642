#include "crystal.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

namespace bench {
namespace {

constexpr double kSpacing = 2.2;
constexpr std::array<std::int32_t, 4> kElements{1, 6, 8, 14};

/// The three factors of a number that lie nearest to each other.
std::array<std::int64_t, 3> box_of(std::int64_t atoms) {
  std::array<std::int64_t, 3> best{atoms, 1, 1};
  for (std::int64_t a = 1; a * a * a <= atoms; ++a) {
    if (atoms % a != 0) continue;
    for (std::int64_t b = a; a * b * b <= atoms; ++b) {
      if (atoms / a % b == 0 && atoms / a / b - a < best[0] - best[2]) best = {atoms / a / b, b, a};
    }
  }
  return best;
}

/// Shakes and colours points of the grid.
fastpath::Structure made(const std::vector<std::array<std::int64_t, 3>>& points) {
  fastpath::Structure structure;
  std::mt19937_64 random(1);
  const auto shake = [&] { return 0.1 * (static_cast<double>(random() % 2001) / 1000 - 1); };
  for (const auto& point : points) {
    fastpath::Vec3 position{};
    for (std::size_t k = 0; k < 3; ++k) position[k] = kSpacing * static_cast<double>(point[k]) + shake();
    structure.positions.push_back(position);
    structure.atomic_numbers.push_back(kElements[random() % kElements.size()]);
  }
  return structure;
}

}  // namespace

fastpath::Structure crystal(std::int64_t atoms) {
  const std::array<std::int64_t, 3> box = box_of(atoms);
  std::vector<std::array<std::int64_t, 3>> points;
  for (std::int64_t i = 0; i < atoms; ++i) {
    points.push_back({i % box[0], i / box[0] % box[1], i / box[0] / box[1]});
  }
  fastpath::Structure structure = made(points);
  for (std::size_t k = 0; k < 3; ++k) structure.cell[k][k] = kSpacing * static_cast<double>(box[k]);
  structure.pbc = {true, true, true};
  return structure;
}

fastpath::Structure cluster(std::int64_t atoms) {
  const auto side = static_cast<std::int64_t>(std::ceil(2 * std::cbrt(static_cast<double>(atoms)))) + 1;
  std::vector<std::array<std::int64_t, 3>> points;
  for (std::int64_t i = 0; i < side * side * side; ++i) points.push_back({i % side, i / side % side, i / side / side});
  std::stable_sort(points.begin(), points.end(), [](const auto& a, const auto& b) {
    return a[0] * a[0] + a[1] * a[1] + a[2] * a[2] < b[0] * b[0] + b[1] * b[1] + b[2] * b[2];
  });
  points.resize(static_cast<std::size_t>(atoms));
  return made(points);
}

}  // namespace bench
