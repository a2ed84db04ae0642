#include "fastpath/graph.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "fastpath/error.hpp"
#include "fastpath/safetensors.hpp"
#include "graph/cell_list.hpp"
#include "support/graphs.hpp"

namespace fastpath {
namespace {

using test::Cell;
using test::combine;
using test::Edge;
using test::edges_of;
using test::expect_consistent;
using test::expect_error;
using test::expect_symmetric;
using test::kInfinity;
using test::kNaN;
using test::lengths_of;
using test::norm;
using test::Random;
using test::random_cell;
using test::random_structure;
using test::structure_of;
using test::system_b;
using test::volume_of;

double dot(const Vec3& a, const Vec3& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

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

}  // namespace
}  // namespace fastpath
