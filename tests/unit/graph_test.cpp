#include "fastpath/graph.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "fastpath/error.hpp"
#include "fastpath/safetensors.hpp"
#include "graph/cell_list.hpp"

namespace fastpath {
namespace {

using testing::HasSubstr;

using Cell = std::array<Vec3, 3>;
using Edge = std::tuple<std::int32_t, std::int32_t, Vec3>;  // receiver, sender, shift

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

double norm(const Vec3& v) { return std::sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]); }
double dot(const Vec3& a, const Vec3& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

std::vector<Edge> edges_of(const Graph& graph) {
  std::vector<Edge> edges;
  const auto shift = graph.shift().span<double>();
  for (std::size_t e = 0; e < static_cast<std::size_t>(graph.n_edges()); ++e) {
    edges.emplace_back(graph.receiver().span<std::int32_t>()[e], graph.sender().span<std::int32_t>()[e],
                       Vec3{shift[3 * e], shift[3 * e + 1], shift[3 * e + 2]});
  }
  return edges;
}

std::vector<double> lengths_of(const Graph& graph) {
  const Tensor vectors = graph.edge_vectors();
  std::vector<double> lengths;
  for (std::size_t e = 0; e < static_cast<std::size_t>(graph.n_edges()); ++e) {
    const auto v = vectors.span<double>().subspan(3 * e, 3);
    lengths.push_back(norm({v[0], v[1], v[2]}));
  }
  return lengths;
}

using Matrix = std::array<std::array<double, 3>, 3>;

Matrix inverse(const Matrix& m) {
  Matrix result{};
  double determinant = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      result[j][i] = m[(i + 1) % 3][(j + 1) % 3] * m[(i + 2) % 3][(j + 2) % 3] -
                     m[(i + 1) % 3][(j + 2) % 3] * m[(i + 2) % 3][(j + 1) % 3];
    }
    determinant += m[0][i] * result[i][0];
  }
  for (auto& row : result) {
    for (double& value : row) value /= determinant;
  }
  return result;
}

/// Every pair and every image within a box of images that must contain all, straight from the definition.
std::vector<Edge> brute_force(const Structure& structure, double r_max) {
  Matrix gram{};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      gram[i][j] = i == j ? 1 : 0;
      if (structure.pbc[i] && structure.pbc[j]) gram[i][j] = dot(structure.cell[i], structure.cell[j]);
    }
  }
  const Matrix inverse_gram = inverse(gram);
  std::array<Vec3, 3> dual{};
  for (std::size_t d = 0; d < 3; ++d) {
    for (std::size_t k = 0; k < 3; ++k) {
      if (!structure.pbc[d] || !structure.pbc[k]) continue;
      for (std::size_t c = 0; c < 3; ++c) dual[d][c] += inverse_gram[d][k] * structure.cell[k][c];
    }
  }
  std::vector<Edge> edges;
  for (std::int32_t r = 0; r < structure.size(); ++r) {
    for (std::int32_t s = 0; s < structure.size(); ++s) {
      const Vec3& to = structure.positions[static_cast<std::size_t>(r)];
      const Vec3& from = structure.positions[static_cast<std::size_t>(s)];
      const Vec3 difference{to[0] - from[0], to[1] - from[1], to[2] - from[2]};
      std::array<std::int64_t, 3> low{};
      std::array<std::int64_t, 3> high{};
      for (std::size_t d = 0; d < 3; ++d) {
        if (!structure.pbc[d]) continue;
        const double centre = -dot(difference, dual[d]);
        low[d] = static_cast<std::int64_t>(std::floor(centre - r_max * norm(dual[d]))) - 1;
        high[d] = static_cast<std::int64_t>(std::ceil(centre + r_max * norm(dual[d]))) + 1;
      }
      for (std::int64_t a = low[0]; a <= high[0]; ++a) {
        for (std::int64_t b = low[1]; b <= high[1]; ++b) {
          for (std::int64_t c = low[2]; c <= high[2]; ++c) {
            if (r == s && a == 0 && b == 0 && c == 0) continue;
            const std::array<std::int64_t, 3> image{a, b, c};
            Vec3 shift{};
            for (std::size_t d = 0; d < 3; ++d) {
              if (!structure.pbc[d]) continue;
              for (std::size_t x = 0; x < 3; ++x) shift[x] += static_cast<double>(image[d]) * structure.cell[d][x];
            }
            const Vec3 vector{difference[0] + shift[0], difference[1] + shift[1], difference[2] + shift[2]};
            if (norm(vector) < r_max) edges.emplace_back(r, s, shift);
          }
        }
      }
    }
  }
  std::sort(edges.begin(), edges.end());
  return edges;
}

/// What every graph must satisfy, whatever it was made from.
void expect_consistent(const Graph& graph) {
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
void expect_symmetric(const Graph& graph) {
  const std::vector<Edge> edges = edges_of(graph);
  for (const auto& [receiver, sender, shift] : edges) {
    const Edge reverse{sender, receiver, {-shift[0], -shift[1], -shift[2]}};
    ASSERT_TRUE(std::binary_search(edges.begin(), edges.end(), reverse)) << receiver << " " << sender;
  }
}

Structure structure_of(std::vector<Vec3> positions, const Cell& cell = {}, const std::array<bool, 3>& pbc = {}) {
  Structure structure;
  structure.atomic_numbers.assign(positions.size(), 1);
  structure.positions = std::move(positions);
  structure.cell = cell;
  structure.pbc = pbc;
  return structure;
}

Structure system_b() {
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

double volume_of(const Cell& c) {
  return std::abs(c[0][0] * (c[1][1] * c[2][2] - c[1][2] * c[2][1]) +
                  c[0][1] * (c[1][2] * c[2][0] - c[1][0] * c[2][2]) +
                  c[0][2] * (c[1][0] * c[2][1] - c[1][1] * c[2][0]));
}

/// A cell with edges of 0.3 to 5 cutoffs, of either handedness, that is skewed, rotated, or made of whole numbers.
Cell random_cell(Random& random, double r_max) {
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

Vec3 combine(const Cell& cell, const Vec3& fractions) {
  Vec3 result{};
  for (std::size_t d = 0; d < 3; ++d) {
    for (std::size_t c = 0; c < 3; ++c) result[c] += fractions[d] * cell[d][c];
  }
  return result;
}

TEST(Graph, AgreesWithAllPairsAndImagesInRandomCells) {
  Random random(20240517);
  std::int64_t total = 0;
  int with_self_images = 0;
  for (int trial = 0; trial < 480; ++trial) {
    SCOPED_TRACE(trial);
    const double r_max = random.uniform(1, 6);
    const Cell cell = random_cell(random, r_max);
    const std::array<bool, 3> pbc{(trial & 1) != 0, (trial & 2) != 0, (trial & 4) != 0};
    std::vector<Vec3> positions(static_cast<std::size_t>(random.integer(0, 12)));
    const double outside = random.integer(0, 1) == 0 ? 0.0 : random.uniform(0, 20);
    for (Vec3& position : positions) {
      position = combine(cell, {random.uniform(-outside, 1 + outside), random.uniform(-outside, 1 + outside),
                                random.uniform(-outside, 1 + outside)});
    }
    Structure structure = structure_of(positions, cell, pbc);
    // The vector of a non-periodic axis must not matter at all.
    for (std::size_t d = 0; d < 3; ++d) {
      if (pbc[d] || trial % 3 == 0) continue;
      structure.cell[d] = std::array<Vec3, 3>{Vec3{}, Vec3{kNaN, kInfinity, 0},
                                              structure.cell[(d + 1) % 3]}[static_cast<std::size_t>(trial) / 8 % 3];
    }
    const std::vector<Edge> expected = brute_force(structure, r_max);
    const Graph graph = Graph::from_structure(structure, r_max);
    ASSERT_EQ(edges_of(graph), expected);
    expect_consistent(graph);
    expect_symmetric(graph);
    EXPECT_EQ(graph.volume().has_value(), pbc[0] && pbc[1] && pbc[2]);
    total += graph.n_edges();
    for (const auto& [receiver, sender, shift] : expected) {
      if (receiver == sender) {
        ++with_self_images;
        break;
      }
    }
  }
  EXPECT_GT(total, 50000);
  EXPECT_GT(with_self_images, 100);
}

TEST(Graph, AgreesWithAllPairsWhenBinsHoldManyAtoms) {
  Random random(7);
  for (int trial = 0; trial < 16; ++trial) {
    SCOPED_TRACE(trial);
    const double r_max = 3;
    Cell cell = random_cell(random, 1);
    for (std::size_t d = 0; d < 3; ++d) {
      const double scale = r_max * random.uniform(0.9, 2.2) / norm(cell[d]);
      for (double& component : cell[d]) component *= scale;
    }
    const std::array<bool, 3> pbc{(trial & 1) != 0, (trial & 2) != 0, (trial & 4) != 0};
    std::vector<Vec3> positions(trial < 8 ? 90 : 260);
    for (Vec3& position : positions) {
      position = combine(cell, {random.uniform(0, 1), random.uniform(0, 1), random.uniform(0, 1)});
    }
    const Structure structure = structure_of(positions, cell, pbc);
    ASSERT_EQ(edges_of(Graph::from_structure(structure, r_max)), brute_force(structure, r_max));
  }
}

TEST(Graph, KeepsSelfImagesOfACellSmallerThanTheCutoff) {
  const Graph graph = Graph::from_structure(system_b(), 4);
  EXPECT_EQ(graph.n_edges(), 28);
  std::int64_t self_images = 0;
  for (const auto& [receiver, sender, shift] : edges_of(graph)) self_images += receiver == sender ? 1 : 0;
  EXPECT_EQ(self_images, 12);
  EXPECT_EQ(graph.receiver_ptr().span<std::int64_t>()[1], 14);
  ASSERT_TRUE(graph.volume().has_value());
  EXPECT_NEAR(*graph.volume(), 32.64, 1e-13);  // rounding of a sum of products of about 30
  EXPECT_EQ(graph.atomic_numbers().span<std::int32_t>()[0], 8);
  expect_consistent(graph);
}

/// The published edges of the five reference structures, computed by another program from the same coordinates.
TEST(Graph, HasTheEdgesOfTheReferenceStructures) {
  const std::string folder = std::string(FASTPATH_TEST_DATA) + "/refdata/mace_a/";
  const nlohmann::json expected = nlohmann::json::parse(std::ifstream(folder + "expected.json"));
  const double r_max = nlohmann::json::parse(std::ifstream(folder + "model/config.json")).at("r_max").get<double>();
  std::map<std::string, Tensor> data;
  for (const auto& [name, tensor] : read_safetensors(folder + "data.safetensors").tensors) data[name] = tensor;
  for (const std::string name : {"molecule", "triclinic", "water8", "slab", "sparse"}) {
    SCOPED_TRACE(name);
    const auto doubles = [&](const std::string& key) { return data.at(name + ":" + key).span<double>(); };
    const auto integers = [&](const std::string& key) { return data.at(name + ":" + key).span<std::int64_t>(); };
    Structure structure;
    for (const std::int64_t number : integers("numbers")) {
      structure.atomic_numbers.push_back(static_cast<std::int32_t>(number));
    }
    for (std::size_t i = 0; i < structure.atomic_numbers.size(); ++i) {
      structure.positions.push_back(
          {doubles("positions")[3 * i], doubles("positions")[3 * i + 1], doubles("positions")[3 * i + 2]});
    }
    for (std::size_t d = 0; d < 3; ++d) {
      structure.pbc[d] = data.at(name + ":pbc").span<bool>()[d];
      for (std::size_t c = 0; c < 3; ++c) structure.cell[d][c] = doubles("cell")[3 * d + c];
    }
    const Graph graph = Graph::from_structure(structure, r_max);
    EXPECT_EQ(graph.n_edges(), expected.at(name).at("n_edges").get<std::int64_t>());
    EXPECT_EQ(graph.volume().has_value(), expected.at(name).contains("stress"));

    // Edges as (receiver, sender, unit shift): the unit shift of ours is what its shift is closest to.
    using UnitEdge = std::tuple<std::int64_t, std::int64_t, std::array<std::int64_t, 3>>;
    const auto n_edges = static_cast<std::size_t>(data.at(name + ":edge_index").size(1));
    ASSERT_EQ(static_cast<std::size_t>(graph.n_edges()), n_edges);
    std::map<UnitEdge, Vec3> theirs;
    for (std::size_t e = 0; e < n_edges; ++e) {
      std::array<std::int64_t, 3> unit{};
      Vec3 shift{};
      for (std::size_t c = 0; c < 3; ++c) {
        unit[c] = std::llround(doubles("unit_shifts")[3 * e + c]);
        shift[c] = doubles("shifts")[3 * e + c];
      }
      theirs[{integers("edge_index")[n_edges + e], integers("edge_index")[e], unit}] = shift;
    }
    ASSERT_EQ(theirs.size(), n_edges);
    const Matrix inverse_cell = volume_of(structure.cell) > 0 ? inverse(structure.cell) : Matrix{};
    for (const auto& [receiver, sender, shift] : edges_of(graph)) {
      std::array<std::int64_t, 3> unit{};
      for (std::size_t d = 0; d < 3; ++d) {
        unit[d] =
            std::llround(shift[0] * inverse_cell[0][d] + shift[1] * inverse_cell[1][d] + shift[2] * inverse_cell[2][d]);
      }
      const auto edge = theirs.find({receiver, sender, unit});
      ASSERT_NE(edge, theirs.end()) << receiver << " " << sender;
      // Both sum three products of at most a few cells of up to 30 angstrom.
      EXPECT_THAT(shift, testing::Pointwise(testing::DoubleNear(1e-13), edge->second));
      theirs.erase(edge);
    }
    expect_consistent(graph);
    expect_symmetric(graph);
  }
}

TEST(Graph, OfOneAtomHoldsOnlyItsImages) {
  EXPECT_EQ(Graph::from_structure(structure_of({{1, 2, 3}}), 5).n_edges(), 0);
  const Cell cubic{Vec3{2, 0, 0}, Vec3{0, 2, 0}, Vec3{0, 0, 2}};
  EXPECT_EQ(Graph::from_structure(structure_of({{1, 2, 3}}, cubic, {true, true, true}), 2.1).n_edges(), 6);
  EXPECT_EQ(Graph::from_structure(structure_of({{1, 2, 3}}, cubic, {false, true, false}), 2.1).n_edges(), 2);
  EXPECT_EQ(Graph::from_structure(structure_of({{1, 2, 3}}, cubic, {true, true, true}), 2).n_edges(), 0);
}

TEST(Graph, OfNoAtomsIsEmptyAndValid) {
  for (const bool periodic : {false, true}) {
    const Cell cell{Vec3{3, 0, 0}, Vec3{0, 3, 0}, Vec3{0, 0, 3}};
    const Graph graph = Graph::from_structure(structure_of({}, cell, {periodic, periodic, periodic}), 5);
    EXPECT_EQ(graph.n_nodes(), 0);
    EXPECT_EQ(graph.n_edges(), 0);
    EXPECT_EQ(graph.edge_vectors().shape(), (Shape{0, 3}));
    expect_consistent(graph);
  }
  HostEdges host;
  host.sender = Tensor::zeros({0}, DType::int64);
  host.receiver = Tensor::zeros({0}, DType::int64);
  const Graph graph = Graph::from_edges(host);
  EXPECT_EQ(graph.n_nodes(), 0);
  EXPECT_EQ(graph.n_edges(), 0);
  expect_consistent(graph);
}

TEST(Graph, DecidesPairsAtExactlyTheCutoffTogetherAndAgainstThem) {
  // 6-8-10 triangles and lattice steps: distances of exactly 10 in either direction.
  const Structure exact =
      structure_of({{0, 0, 0}, {6, 8, 0}, {-8, 0, 6}}, {Vec3{10, 0, 0}, Vec3{}, Vec3{}}, {true, false, false});
  for (const double length : lengths_of(Graph::from_structure(exact, 10))) EXPECT_LT(length, 10);
  const Graph beyond = Graph::from_structure(exact, std::nextafter(10.0, 11.0));
  const auto lengths = lengths_of(beyond);
  EXPECT_EQ(std::count(lengths.begin(), lengths.end(), 10.0), 3 * 2 + 2 * 2);
  expect_symmetric(beyond);

  Random random(99);
  for (int trial = 0; trial < 60; ++trial) {
    SCOPED_TRACE(trial);
    const Cell cell = random_cell(random, 4);
    std::vector<Vec3> positions(6);
    for (Vec3& position : positions) {
      position = combine(cell, {random.uniform(-3, 4), random.uniform(-3, 4), random.uniform(-3, 4)});
    }
    const Structure structure = structure_of(positions, cell, {true, true, trial % 2 == 0});
    const auto candidates = lengths_of(Graph::from_structure(structure, 4.5));
    if (candidates.empty()) continue;
    const double r_max = candidates[static_cast<std::size_t>(random.integer(0, 1 << 20)) % candidates.size()];
    const auto found = lengths_of(Graph::from_structure(structure, r_max));
    EXPECT_EQ(std::count(found.begin(), found.end(), r_max), 0);
    const Graph with_pair = Graph::from_structure(structure, std::nextafter(r_max, 10.0));
    const auto all = lengths_of(with_pair);
    EXPECT_GE(std::count(all.begin(), all.end(), r_max), 2);
    expect_symmetric(with_pair);
  }
}

TEST(Graph, IsSymmetricInALatticeWhoseDistancesAllRoundNearTheCutoff) {
  // With a spacing of 0.7 the same nominal distance comes out an ulp apart in different places.
  const double a = 0.7;
  std::vector<Vec3> positions;
  for (int x = 0; x < 5; ++x) {
    for (int y = 0; y < 5; ++y) {
      for (int z = 0; z < 5; ++z) positions.push_back({x * a, y * a, z * a});
    }
  }
  const Cell cell{Vec3{5 * a, 0, 0}, Vec3{0, 5 * a, 0}, Vec3{0, 0, 5 * a}};
  const Structure structure = structure_of(positions, cell, {true, true, true});
  for (const double r_max : {a, 2 * a, 3 * a, std::sqrt(2.0) * a, std::sqrt(5.0) * a}) {
    SCOPED_TRACE(r_max);
    const Graph graph = Graph::from_structure(structure, r_max);
    EXPECT_EQ(edges_of(graph), brute_force(structure, r_max));
    expect_symmetric(graph);
  }
}

Matrix random_rotation(Random& random) {
  std::array<double, 4> q{};
  double square = 0;
  do {
    square = 0;
    for (double& value : q) value = random.uniform(-1, 1);
    for (const double value : q) square += value * value;
  } while (square > 1 || square < 0.01);
  for (double& value : q) value /= std::sqrt(square);
  const auto [w, x, y, z] = q;
  return {{{1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)},
           {2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)},
           {2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)}}};
}

Vec3 rotate(const Matrix& m, const Vec3& v) {
  Vec3 result{};
  for (std::size_t i = 0; i < 3; ++i) result[i] = m[i][0] * v[0] + m[i][1] * v[1] + m[i][2] * v[2];
  return result;
}

/// Sorted lengths of the edges between every two nodes.
std::map<std::pair<std::int32_t, std::int32_t>, std::vector<double>> lengths_by_pair(const Graph& graph) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<double>> result;
  const auto lengths = lengths_of(graph);
  const auto edges = edges_of(graph);
  for (std::size_t e = 0; e < edges.size(); ++e) {
    result[{std::get<0>(edges[e]), std::get<1>(edges[e])}].push_back(lengths[e]);
  }
  for (auto& [pair, list] : result) std::sort(list.begin(), list.end());
  return result;
}

/// Equal up to rounding of the positions; `tolerance` in angstrom.
void expect_same_distances(const Graph& a, const Graph& b, double tolerance) {
  ASSERT_EQ(a.n_edges(), b.n_edges());
  const auto of_a = lengths_by_pair(a);
  const auto of_b = lengths_by_pair(b);
  ASSERT_EQ(of_a.size(), of_b.size());
  for (const auto& [pair, lengths] : of_a) {
    const auto other = of_b.find(pair);
    ASSERT_NE(other, of_b.end());
    EXPECT_THAT(lengths, testing::Pointwise(testing::DoubleNear(tolerance), other->second));
  }
}

Structure random_structure(Random& random, const std::array<bool, 3>& pbc) {
  const Cell cell = random_cell(random, 4);
  std::vector<Vec3> positions(7);
  for (Vec3& position : positions) {
    position = combine(cell, {random.uniform(0, 1), random.uniform(0, 1), random.uniform(0, 1)});
  }
  return structure_of(positions, cell, pbc);
}

TEST(Graph, DoesNotDependOnTheOrientationOfTheBox) {
  Random random(3);
  for (int trial = 0; trial < 40; ++trial) {
    SCOPED_TRACE(trial);
    const Structure structure = random_structure(random, {(trial & 1) != 0, (trial & 2) != 0, (trial & 4) != 0});
    const Matrix rotation = random_rotation(random);
    Structure rotated = structure;
    for (Vec3& position : rotated.positions) position = rotate(rotation, position);
    for (Vec3& row : rotated.cell) row = rotate(rotation, row);
    // Coordinates of up to 20 times a few roundings of 2e-16.
    expect_same_distances(Graph::from_structure(structure, 4), Graph::from_structure(rotated, 4), 1e-12);
  }
}

TEST(Graph, DoesNotDependOnTheHandednessOrTheOrderOfTheAxes) {
  Random random(4);
  for (int trial = 0; trial < 20; ++trial) {
    SCOPED_TRACE(trial);
    const Structure structure = random_structure(random, {true, trial % 2 == 0, true});
    Structure other = structure;
    std::swap(other.cell[0], other.cell[1]);
    std::swap(other.pbc[0], other.pbc[1]);
    for (double& component : other.cell[2]) component = -component;
    expect_same_distances(Graph::from_structure(structure, 4), Graph::from_structure(other, 4), 1e-12);
  }
}

TEST(Graph, FindsTheSameEdgesInAStronglySkewedCellOfTheSameLattice) {
  // Coordinates are multiples of 2^-16, so that images come out exact however long the cell vectors are.
  const auto round_coordinates = [](Vec3& row) {
    for (double& component : row) component = std::nearbyint(component * 0x1p16) * 0x1p-16;
  };
  Random random(5);
  for (int trial = 0; trial < 40; ++trial) {
    SCOPED_TRACE(trial);
    Structure structure = random_structure(random, {true, true, trial % 4 != 0});
    std::for_each(structure.positions.begin(), structure.positions.end(), round_coordinates);
    std::for_each(structure.cell.begin(), structure.cell.end(), round_coordinates);
    Structure skewed = structure;
    const double multiple = random.integer(5000, 20000);
    for (std::size_t c = 0; c < 3; ++c) {
      skewed.cell[1][c] += multiple * skewed.cell[0][c];
      if (structure.pbc[2]) skewed.cell[2][c] += -multiple * skewed.cell[0][c] + 3 * skewed.cell[1][c];
    }
    const Graph graph = Graph::from_structure(skewed, 4);
    EXPECT_EQ(edges_of(graph), edges_of(Graph::from_structure(structure, 4)));
    expect_symmetric(graph);
  }
}

TEST(Graph, FindsTheSameEdgesForAtomsManyCellsAway) {
  Random random(6);
  for (int trial = 0; trial < 30; ++trial) {
    SCOPED_TRACE(trial);
    const Structure structure = random_structure(random, {true, true, true});
    Structure moved = structure;
    for (Vec3& position : moved.positions) {
      const Vec3 far = combine(structure.cell, {static_cast<double>(random.integer(-100000, 100000)),
                                                static_cast<double>(random.integer(-100000, 100000)), 0});
      for (std::size_t c = 0; c < 3; ++c) position[c] += far[c];
    }
    // Coordinates of up to 4e6 round to 5e-10.
    expect_same_distances(Graph::from_structure(structure, 4), Graph::from_structure(moved, 4), 1e-8);
    expect_symmetric(Graph::from_structure(moved, 4));
  }
}

TEST(Graph, TakesNoMoreThanTheOccupiedSpaceOfAVastBox) {
  // Two droplets a million angstrom apart: as one cluster, in a huge periodic box, and in a slab.
  Random random(8);
  std::vector<Vec3> droplet(400);
  for (Vec3& position : droplet) position = {random.uniform(0, 16), random.uniform(0, 16), random.uniform(0, 16)};
  const std::int64_t n_single = Graph::from_structure(structure_of(droplet), 4).n_edges();
  std::vector<Vec3> both = droplet;
  for (const Vec3& position : droplet) both.push_back({position[0] + 1048576, position[1] - 1048576, position[2]});
  const double length = 1e7;
  const Cell box{Vec3{length, 0, 0}, Vec3{0, length, 0}, Vec3{0, 0, length}};
  for (const std::array<bool, 3> pbc :
       {std::array<bool, 3>{}, std::array<bool, 3>{true, true, true}, std::array<bool, 3>{true, true, false}}) {
    const Graph graph = Graph::from_structure(structure_of(both, box, pbc), 4);
    EXPECT_EQ(graph.n_edges(), 2 * n_single);
    expect_consistent(graph);
  }
}

TEST(Graph, HasEdgeVectorsFromSenderToReceiver) {
  const Graph graph = Graph::from_structure(structure_of({{0, 0, 0}, {1, 2, 2}}), 4);
  ASSERT_EQ(graph.n_edges(), 2);
  // Edge 0 has receiver 0 and sender 1.
  EXPECT_THAT(graph.edge_vectors().span<double>(), testing::ElementsAre(-1, -2, -2, 1, 2, 2));
}

template <class Function>
void expect_error(Function function, ErrorCode code, const std::vector<std::string>& words) {
  try {
    function();
    ADD_FAILURE() << "no error, expected one with: " << words.front();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& word : words) EXPECT_THAT(error.what(), HasSubstr(word));
  }
}

void expect_refused(const Structure& structure, double r_max, const std::vector<std::string>& words) {
  expect_error([&] { (void)Graph::from_structure(structure, r_max); }, ErrorCode::invalid_argument, words);
}

TEST(Graph, RefusesACutoffThatIsNotPositiveAndFinite) {
  for (const double r_max : {0.0, -1.0, kNaN, kInfinity}) expect_refused(system_b(), r_max, {"r_max"});
}

TEST(Graph, RefusesPositionsItCannotUseNamingTheAtom) {
  Structure structure = system_b();
  structure.positions[1][2] = kNaN;
  expect_refused(structure, 4, {"atom 1", "nan"});
  structure.positions[1][2] = -kInfinity;
  expect_refused(structure, 4, {"atom 1", "inf"});
  structure.positions[1][2] = 1e13;
  expect_refused(structure, 4, {"atom 1", "z = 1e"});
}

TEST(Graph, RefusesSizesThatDiffer) {
  Structure structure = system_b();
  structure.atomic_numbers.push_back(1);
  expect_refused(structure, 4, {"3 atomic numbers", "2 positions"});
}

TEST(Graph, RefusesAtomsOnTopOfEachOtherNamingThePair) {
  expect_refused(structure_of({{5, 5, 5}, {0, 0, 0}, {0, 0, 5e-7}}), 4, {"atoms 1 and 2", "5e-07"});
  // Across a boundary, and with a cutoff below the shortest distance.
  Structure structure = system_b();
  structure.positions[1] = {3.1, 0.2, 0.3};
  expect_refused(structure, 4, {"atoms 0 and 1", "image"});
  expect_refused(structure, 1e-7, {"atoms 0 and 1"});
  EXPECT_EQ(Graph::from_structure(structure_of({{0, 0, 0}, {0, 0, 2e-6}}), 4).n_edges(), 2);
}

TEST(Graph, RefusesDegenerateVectorsOfPeriodicAxesOnly) {
  Structure structure = system_b();
  structure.cell[1] = {0, 0, 0};
  expect_refused(structure, 4, {"cell vector b", "periodic along b"});
  structure.pbc[1] = false;
  EXPECT_NO_THROW((void)Graph::from_structure(structure, 4));

  structure = system_b();
  structure.cell[2] = {kNaN, 0, 1};
  expect_refused(structure, 4, {"cell vector c"});

  structure = system_b();
  structure.cell[2] = {3.3, 3.2, 0};  // a + b
  expect_refused(structure, 4, {"a, b, c", "linearly dependent"});
  structure.pbc[0] = false;
  EXPECT_NO_THROW((void)Graph::from_structure(structure, 4));
  structure.cell[2] = {-0.6, -6.4, 0};
  expect_refused(structure, 4, {"b, c", "linearly dependent"});

  structure = system_b();
  structure.cell[0] = {1e-8, 0, 0};
  expect_refused(structure, 4, {"repeats after", "1e-08"});
}

TEST(Graph, RefusesALatticeSoFineThatItsEdgesCannotFit) {
  Structure structure = system_b();
  for (Vec3& row : structure.cell) {
    for (double& component : row) component *= 1e-4;
  }
  expect_error([&] { (void)Graph::from_structure(structure, 4); }, ErrorCode::out_of_memory, {"pairs", "r_max 4"});
}

TEST(Graph, RefusesMorePairsThanFitWhileItSearches) {
  Structure structure;  // in nanometres, say: all atoms within the cutoff
  for (int i = 0; i < 30; ++i) {
    structure.atomic_numbers.push_back(6);
    structure.positions.push_back({0.1 * i, 0, 0});
  }
  expect_error([&] { (void)graph::find_pairs(structure, 4, 800); }, ErrorCode::out_of_memory,
               {"pairs", "r_max 4", "800"});
  EXPECT_EQ(graph::find_pairs(structure, 4, 870).sender.size(), 870u);
}

/// A host's arrays, which HostEdges only views.
struct Host {
  std::vector<std::int32_t> atomic_numbers;
  std::vector<double> positions;
  HostEdges edges;

  Host(std::size_t n_atoms, const std::vector<Vec3>& rows) : atomic_numbers(n_atoms, 6) {
    for (const Vec3& row : rows) positions.insert(positions.end(), row.begin(), row.end());
    edges.atomic_numbers = atomic_numbers;
    edges.positions = positions;
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
};

template <class Integer>
Tensor indices(const std::vector<std::int64_t>& values) {
  return Tensor::from<Integer>({static_cast<std::int64_t>(values.size())},
                               std::vector<Integer>(values.begin(), values.end()));
}

template <class Integer>
void expect_host_list_equals_own(const Structure& structure, double r_max, std::uint64_t seed) {
  const Graph own = Graph::from_structure(structure, r_max);
  std::vector<Edge> edges = edges_of(own);
  Random random(seed);
  std::shuffle(edges.begin(), edges.end(), random.engine());
  std::vector<std::int64_t> sender, receiver;
  std::vector<double> shift;
  for (const auto& [r, s, vector] : edges) {
    receiver.push_back(r);
    sender.push_back(s);
    shift.insert(shift.end(), vector.begin(), vector.end());
  }
  Host host(structure.positions.size(), structure.positions);
  host.edges.sender = indices<Integer>(sender);
  host.edges.receiver = indices<Integer>(receiver);
  host.edges.shift = Tensor::from<double>({static_cast<std::int64_t>(edges.size()), 3}, shift);
  host.edges.cell = structure.cell;
  const Graph graph = Graph::from_edges(host.edges);
  EXPECT_EQ(edges_of(graph), edges_of(own));
  expect_consistent(graph);
  EXPECT_EQ(graph.volume(), own.volume());
  for (std::size_t e = 0; e < edges.size(); ++e) {
    const auto position = static_cast<std::size_t>(graph.input_position().span<std::int64_t>()[e]);
    ASSERT_EQ(edges_of(graph)[e], edges[position]);
  }
}

TEST(Graph, OfAShuffledHostListEqualsItsOwn) {
  expect_host_list_equals_own<std::int32_t>(system_b(), 4, 1);
  expect_host_list_equals_own<std::int64_t>(system_b(), 4, 2);
  Random random(11);
  expect_host_list_equals_own<std::int32_t>(random_structure(random, {true, true, true}), 4, 3);
}

TEST(Graph, NumbersItsOwnEdgesByThemselves) {
  const Graph graph = Graph::from_structure(system_b(), 4);
  for (std::int64_t e = 0; e < graph.n_edges(); ++e) {
    EXPECT_EQ(graph.input_position().span<std::int64_t>()[static_cast<std::size_t>(e)], e);
  }
}

TEST(Graph, TakesColumnsOfAHostArrayAsTheyLie) {
  Host host(3, {{0, 0, 0}, {1, 0, 0}, {0, 2, 0}});
  const Tensor table = Tensor::from<std::int64_t>({4, 2}, {2, 0, 0, 2, 1, 0, 0, 1});  // rows of sender, receiver
  host.edges.sender = table.narrow(1, 0, 1).transpose(0, 1).narrow(0, 0, 1);
  EXPECT_THROW((void)Graph::from_edges(host.edges), Error);  // still two axes
  host.edges.sender = Tensor::wrap(table.raw(), {4}, {2}, DType::int64, Device::cpu(), table.owner());
  host.edges.receiver = Tensor::wrap(table.raw(), {4}, {2}, DType::int64, Device::cpu(), table.owner(), 8);
  const Graph graph = Graph::from_edges(host.edges);
  EXPECT_THAT(graph.sender().span<std::int32_t>(), testing::ElementsAre(1, 2, 0, 0));
  EXPECT_THAT(graph.receiver().span<std::int32_t>(), testing::ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(graph.input_position().span<std::int64_t>(), testing::ElementsAre(2, 0, 3, 1));
  EXPECT_THAT(graph.shift().span<double>(), testing::Each(0.0));
  EXPECT_FALSE(graph.volume().has_value());
  expect_consistent(graph);
}

TEST(Graph, DropsMaskedEdgesUnseenAndKeepsDuplicatesInInputOrder) {
  Host host(2, {{0, 0, 0}, {1, 0, 0}});
  host.edges.sender = indices<std::int32_t>({1, 0, -7, 1, 1});
  host.edges.receiver = indices<std::int32_t>({0, 1, 99, 0, 1});
  host.edges.mask = Tensor::from<std::uint8_t>({5}, {1, 2, 0, 1, 0});
  const Graph graph = Graph::from_edges(host.edges);
  EXPECT_THAT(graph.sender().span<std::int32_t>(), testing::ElementsAre(1, 1, 0));
  EXPECT_THAT(graph.receiver().span<std::int32_t>(), testing::ElementsAre(0, 0, 1));
  EXPECT_THAT(graph.input_position().span<std::int64_t>(), testing::ElementsAre(0, 3, 1));
  expect_consistent(graph);
  host.edges.mask = host.edges.mask.to(DType::boolean);
  EXPECT_EQ(edges_of(Graph::from_edges(host.edges)), edges_of(graph));
}

TEST(Graph, KeepsGhostsAsNodesOnEitherEndOfAnEdge) {
  Host host(4, {{0, 0, 0}, {1, 0, 0}, {2, 0, 0}, {9, 0, 0}});
  host.edges.n_local = 2;
  host.edges.sender = indices<std::int64_t>({1, 0, 2, 1});
  host.edges.receiver = indices<std::int64_t>({0, 1, 1, 2});
  const Graph graph = Graph::from_edges(host.edges);
  EXPECT_EQ(graph.n_nodes(), 4);
  EXPECT_EQ(graph.n_local(), 2);
  EXPECT_THAT(graph.receiver_ptr().span<std::int64_t>(), testing::ElementsAre(0, 1, 3, 4, 4));
  expect_consistent(graph);
  host.edges.n_local = 0;  // a domain without atoms of its own
  EXPECT_EQ(Graph::from_edges(host.edges).n_local(), 0);
  host.edges.n_local = -1;
  EXPECT_EQ(Graph::from_edges(host.edges).n_local(), 4);
}

TEST(Graph, KeepsHostEdgesBeyondAnyCutoff) {
  Host host(2, {{0, 0, 0}, {1e5, 0, 0}});
  host.edges.sender = indices<std::int64_t>({0, 1});
  host.edges.receiver = indices<std::int64_t>({1, 0});
  EXPECT_EQ(Graph::from_edges(host.edges).n_edges(), 2);
}

TEST(JoinedGraph, HoldsEveryGraphBehindTheOneBefore) {
  const Structure crystal = system_b();
  Structure molecule = system_b();
  molecule.pbc = {};
  molecule.cell = {};
  const std::vector<Structure> structures{crystal, Structure(), molecule, crystal};
  std::vector<Graph> graphs;
  for (const Structure& structure : structures) graphs.push_back(Graph::from_structure(structure, 4));
  const Graph joined = Graph::join(graphs);
  expect_consistent(joined);
  ASSERT_EQ(joined.n_graphs(), 4);
  EXPECT_THAT(joined.graph_ptr().span<std::int64_t>(), testing::ElementsAre(0, 2, 2, 4, 6));
  EXPECT_EQ(joined.n_local(), joined.n_nodes());
  EXPECT_FALSE(joined.volume().has_value());
  std::vector<Edge> edges;
  std::int32_t node = 0;
  std::size_t at = 0;
  for (std::size_t g = 0; g < graphs.size(); ++g) {
    EXPECT_EQ(joined.volume(static_cast<std::int64_t>(g)), graphs[g].volume());
    for (auto [r, s, vector] : edges_of(graphs[g])) edges.emplace_back(r + node, s + node, vector);
    for (const std::int64_t position : graphs[g].input_position().span<std::int64_t>()) {
      EXPECT_EQ(joined.input_position().span<std::int64_t>()[at++], position);
    }
    node += static_cast<std::int32_t>(graphs[g].n_nodes());
  }
  EXPECT_EQ(edges_of(joined), edges);
  EXPECT_EQ(joined.n_edges(), static_cast<std::int64_t>(edges.size()));
}

TEST(JoinedGraph, OfJoinedGraphsIsThatOfTheirParts) {
  const Graph a = Graph::from_structure(system_b(), 4), b = Graph::from_structure(system_b(), 3);
  const std::vector<Graph> flat{a, b, a};
  const std::vector<Graph> inner{a, b};
  const std::vector<Graph> nested{Graph::join(inner), a};
  const Graph want = Graph::join(flat), got = Graph::join(nested);
  EXPECT_EQ(edges_of(got), edges_of(want));
  EXPECT_EQ(got.n_graphs(), 3);
  EXPECT_THAT(got.graph_ptr().span<std::int64_t>(), testing::ElementsAreArray(want.graph_ptr().span<std::int64_t>()));
  EXPECT_EQ(got.volume(1), b.volume());
  const std::vector<Graph> one{a};
  EXPECT_EQ(Graph::join(one).volume(), a.volume());
  const Graph none = Graph::join({});
  EXPECT_EQ(none.n_graphs(), 0);
  EXPECT_EQ(none.n_nodes(), 0);
  expect_consistent(none);
}

TEST(JoinedGraph, RefusesGhostsNamingTheGraph) {
  Host host(2, {{0, 0, 0}, {1, 0, 0}});
  host.edges.sender = indices<std::int64_t>({1});
  host.edges.receiver = indices<std::int64_t>({0});
  host.edges.n_local = 1;
  const std::vector<Graph> graphs{Graph::from_structure(system_b(), 4), Graph::from_edges(host.edges)};
  expect_error([&] { (void)Graph::join(graphs); }, ErrorCode::invalid_argument, {"graph 1 of 2", "1 ghosts"});
}

TEST(Graph, DoesNotKeepTheHostsMemory) {
  Host host(2, {{0, 0, 0}, {1, 0, 0}});
  host.edges.sender = indices<std::int32_t>({0, 1});
  host.edges.receiver = indices<std::int32_t>({1, 0});
  const Graph graph = Graph::from_edges(host.edges);
  host.positions[3] = 50;
  host.edges.sender.fill_zero();
  EXPECT_EQ(lengths_of(graph)[0], 1.0);
}

TEST(Graph, RefusesAHostListThatIsWrongNamingWhere) {
  const auto refuses = [](auto change, const std::vector<std::string>& words) {
    Host host(2, {{0, 0, 0}, {1, 0, 0}});
    host.edges.sender = indices<std::int64_t>({0, 1});
    host.edges.receiver = indices<std::int64_t>({1, 0});
    EXPECT_EQ(Graph::from_edges(host.edges).n_edges(), 2);
    change(host);
    expect_error([&] { (void)Graph::from_edges(host.edges); }, ErrorCode::invalid_argument, words);
  };
  refuses([](Host& h) { h.edges.sender = indices<std::int64_t>({0, 2}); }, {"sender of edge 1 is 2", "0 to 1"});
  refuses([](Host& h) { h.edges.receiver = indices<std::int32_t>({-1, 0}); }, {"receiver of edge 0 is -1"});
  refuses(
      [](Host& h) {
        h.edges.receiver = indices<std::int64_t>({std::int64_t{1} << 32, 0});
      },
      {"receiver of edge 0 is 4294967296"});
  refuses(
      [](Host& h) {
        h.edges.receiver = indices<std::int64_t>({0, 0});
      },
      {"edge 0", "atom 0 to atom 0", "length 0"});
  refuses([](Host& h) { h.edges.receiver = indices<std::int64_t>({1, 0, 1}); }, {"receiver", "[3]", "[2]"});
  refuses([](Host& h) { h.edges.sender = Tensor::zeros({2}, DType::float64); }, {"sender", "float64", "int64"});
  refuses([](Host& h) { h.edges.sender = Tensor(); }, {"sender", "missing"});
  refuses([](Host& h) { h.edges.receiver = Tensor(); }, {"receiver", "missing"});
  refuses([](Host& h) { h.edges.shift = Tensor::zeros({2}, DType::float64); }, {"shift", "[2]", "[2, 3]"});
  refuses([](Host& h) { h.edges.shift = Tensor::zeros({2, 3}, DType::float32); }, {"shift", "float32", "float64"});
  refuses([](Host& h) { h.edges.shift = Tensor::from<double>({2, 3}, {0, 0, 0, kNaN, 0, 0}); }, {"edge 1", "nan"});
  refuses([](Host& h) { h.edges.shift = Tensor::from<double>({2, 3}, {-1, 0, 0, 0, 0, 0}); }, {"edge 0", "length 0"});
  refuses([](Host& h) { h.edges.mask = Tensor::zeros({2}, DType::int32); }, {"mask", "int32", "bool"});
  refuses([](Host& h) { h.edges.mask = Tensor::zeros({3}, DType::boolean); }, {"mask", "[3]"});
  refuses([](Host& h) { h.edges.n_local = 3; }, {"n_local is 3", "2"});
  refuses([](Host& h) { h.positions[4] = kNaN; }, {"atom 1", "nan"});
  refuses([](Host& h) { h.edges.positions = h.edges.positions.first(5); }, {"2 atomic numbers", "5 coordinates"});
  refuses([](Host& h) { h.edges.cell = Cell{}; }, {"volume", "cell"});
  refuses(
      [](Host& h) {
        h.edges.sender = Tensor::wrap(nullptr, {2}, {}, DType::int64, Device{DeviceKind::cuda, 0}, nullptr);
      },
      {"sender", "cuda:0", "cpu"});
}

}  // namespace
}  // namespace fastpath
