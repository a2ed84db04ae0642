#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fastpath/error.hpp"
#include "fastpath/graph.hpp"

/// Structures to make graphs of, and what every graph must satisfy.
namespace fastpath::test {

using Cell = std::array<Vec3, 3>;
using Edge = std::tuple<std::int32_t, std::int32_t, Vec3>;  // receiver, sender, shift

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline std::vector<Edge> edges_of(const Graph& graph) {
  std::vector<Edge> edges;
  const auto shift = graph.shift().span<double>();
  for (std::size_t e = 0; e < static_cast<std::size_t>(graph.n_edges()); ++e) {
    edges.emplace_back(graph.receiver().span<std::int32_t>()[e], graph.sender().span<std::int32_t>()[e],
                       Vec3{shift[3 * e], shift[3 * e + 1], shift[3 * e + 2]});
  }
  return edges;
}

/// What every graph must satisfy, whatever it was made from.
inline void expect_consistent(const Graph& graph) {
  const auto n_nodes = static_cast<std::size_t>(graph.n_nodes());
  const auto n_edges = static_cast<std::size_t>(graph.n_edges());
  ASSERT_EQ(graph.receiver_ptr().shape(), (Shape{graph.n_nodes() + 1}));
  ASSERT_EQ(graph.sender_ptr().shape(), (Shape{graph.n_nodes() + 1}));
  ASSERT_EQ(graph.sender_edge().shape(), (Shape{graph.n_edges()}));
  ASSERT_EQ(graph.shift().shape(), (Shape{graph.n_edges(), 3}));
  ASSERT_EQ(graph.positions().shape(), (Shape{graph.n_nodes(), 3}));
  ASSERT_EQ(graph.input_position().shape(), (Shape{graph.n_edges()}));
  const auto receiver_ptr = graph.receiver_ptr().span<std::int64_t>();
  const auto sender_ptr = graph.sender_ptr().span<std::int64_t>();
  const auto sender_edge = graph.sender_edge().span<std::int64_t>();
  EXPECT_EQ(receiver_ptr[0], 0);
  EXPECT_EQ(sender_ptr[0], 0);
  ASSERT_EQ(receiver_ptr[n_nodes], graph.n_edges());
  ASSERT_EQ(sender_ptr[n_nodes], graph.n_edges());
  std::vector<int> seen(n_edges, 0);
  for (std::size_t n = 0; n < n_nodes; ++n) {
    ASSERT_LE(receiver_ptr[n], receiver_ptr[n + 1]);
    ASSERT_LE(sender_ptr[n], sender_ptr[n + 1]);
    for (std::int64_t e = receiver_ptr[n]; e < receiver_ptr[n + 1]; ++e) {
      ASSERT_EQ(graph.receiver().span<std::int32_t>()[static_cast<std::size_t>(e)], static_cast<std::int32_t>(n));
    }
    for (std::int64_t k = sender_ptr[n]; k < sender_ptr[n + 1]; ++k) {
      const auto e = static_cast<std::size_t>(sender_edge[static_cast<std::size_t>(k)]);
      ASSERT_LT(e, n_edges);
      ASSERT_EQ(graph.sender().span<std::int32_t>()[e], static_cast<std::int32_t>(n));
      if (k > sender_ptr[n]) {
        ASSERT_LT(sender_edge[static_cast<std::size_t>(k - 1)], sender_edge[static_cast<std::size_t>(k)]);
      }
      ++seen[e];
    }
  }
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  const std::vector<Edge> edges = edges_of(graph);
  for (std::size_t e = 1; e < n_edges; ++e) {
    const auto position = graph.input_position().span<std::int64_t>();
    ASSERT_TRUE(edges[e - 1] < edges[e] || (edges[e - 1] == edges[e] && position[e - 1] < position[e])) << "edge " << e;
  }
}

/// The reverse of every edge is there too, with exactly the opposite shift.
inline void expect_symmetric(const Graph& graph) {
  const std::vector<Edge> edges = edges_of(graph);
  for (const auto& [receiver, sender, shift] : edges) {
    const Edge reverse{sender, receiver, {-shift[0], -shift[1], -shift[2]}};
    ASSERT_TRUE(std::binary_search(edges.begin(), edges.end(), reverse)) << receiver << " " << sender;
  }
}

inline Structure structure_of(std::vector<Vec3> positions, const Cell& cell = {}, const std::array<bool, 3>& pbc = {}) {
  Structure structure;
  structure.atomic_numbers.assign(positions.size(), 1);
  structure.positions = std::move(positions);
  structure.cell = cell;
  structure.pbc = pbc;
  return structure;
}

inline Structure system_b() {
  Structure structure = structure_of({{0.1, 0.2, 0.3}, {1.4, 1.5, 1.6}},
                                     {Vec3{3, 0, 0}, Vec3{0.3, 3.2, 0}, Vec3{0.1, -0.2, 3.4}}, {true, true, true});
  structure.atomic_numbers = {8, 1};
  return structure;
}

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  double uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(engine_() >> 11) * 0x1p-53);
  }
  int integer(int low, int high) {
    return low + static_cast<int>(engine_() % static_cast<std::uint64_t>(high - low + 1));
  }
  std::mt19937_64& engine() { return engine_; }

 private:
  std::mt19937_64 engine_;
};

inline double norm(const Vec3& v) { return std::sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]); }

inline std::vector<double> lengths_of(const Graph& graph) {
  const Tensor vectors = graph.edge_vectors();
  std::vector<double> lengths;
  for (std::size_t e = 0; e < static_cast<std::size_t>(graph.n_edges()); ++e) {
    const auto v = vectors.span<double>().subspan(3 * e, 3);
    lengths.push_back(norm({v[0], v[1], v[2]}));
  }
  return lengths;
}

inline double volume_of(const Cell& c) {
  return std::abs(c[0][0] * (c[1][1] * c[2][2] - c[1][2] * c[2][1]) +
                  c[0][1] * (c[1][2] * c[2][0] - c[1][0] * c[2][2]) +
                  c[0][2] * (c[1][0] * c[2][1] - c[1][1] * c[2][0]));
}

/// A cell with edges of 0.3 to 5 cutoffs, of either handedness, that is skewed, rotated, or made of whole numbers.
inline Cell random_cell(Random& random, double r_max) {
  for (;;) {
    Cell cell{};
    double product = 1;
    const double skew = random.integer(0, 2) == 0 ? 0.05 : 1.0;
    for (std::size_t d = 0; d < 3; ++d) {
      const double edge = r_max * 0.3 * std::pow(5 / 0.3, random.uniform(0, 1));
      for (std::size_t c = 0; c < 3; ++c) cell[d][c] = random.uniform(-1, 1) * (c == d ? 1.0 : skew);
      const double scale = edge / norm(cell[d]);
      for (std::size_t c = 0; c < 3; ++c) cell[d][c] *= scale;
      product *= edge;
    }
    if (volume_of(cell) > 0.05 * product) return cell;
  }
}

inline Vec3 combine(const Cell& cell, const Vec3& fractions) {
  Vec3 result{};
  for (std::size_t d = 0; d < 3; ++d) {
    for (std::size_t c = 0; c < 3; ++c) result[c] += fractions[d] * cell[d][c];
  }
  return result;
}

inline Structure random_structure(Random& random, const std::array<bool, 3>& pbc) {
  const Cell cell = random_cell(random, 4);
  std::vector<Vec3> positions(7);
  for (Vec3& position : positions) {
    position = combine(cell, {random.uniform(0, 1), random.uniform(0, 1), random.uniform(0, 1)});
  }
  return structure_of(positions, cell, pbc);
}

template <class Function>
void expect_error(Function function, ErrorCode code, const std::vector<std::string>& words) {
  try {
    function();
    ADD_FAILURE() << "no error, expected one with: " << words.front();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& word : words) EXPECT_THAT(error.what(), testing::HasSubstr(word));
  }
}

}  // namespace fastpath::test
