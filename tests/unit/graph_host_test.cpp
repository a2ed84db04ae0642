// Graphs of edge lists that a host brings, and graphs joined from others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "fastpath/error.hpp"
#include "fastpath/graph.hpp"
#include "support/graphs.hpp"

namespace fastpath {
namespace {

using test::Cell;
using test::Edge;
using test::edges_of;
using test::expect_consistent;
using test::expect_error;
using test::kNaN;
using test::lengths_of;
using test::Random;
using test::random_structure;
using test::structure_of;
using test::system_b;

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
