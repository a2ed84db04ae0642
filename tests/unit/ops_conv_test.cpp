#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <utility>

#include "ops/conv_tensor_product/conv_tensor_product.hpp"
#include "support/graph_data.hpp"
#include "support/ops_data.hpp"
#include "support/rotation.hpp"

namespace fastpath::ops {
namespace {

using sdk::ConvTensorProductConfig;
using sdk::Irreps;
using test::CsrGraph;
using test::random_values;
using test::relative_error;

constexpr double kDouble = 1e-13;  // the bound of the reference data; sums of at most 10^3 terms
constexpr double kSecondOrder = 1e-10;

/// Values in sorted edge order.
template <class S>
struct Values {
  std::vector<S> x, y, w, ct;
};

template <class S>
std::vector<S> forward(const ConvTensorProductConfig& config, const CsrGraph& graph, const Values<S>& v) {
  std::vector<S> out(static_cast<std::size_t>(graph.view().n_receivers * config.out.dim()), S(99));
  conv_tensor_product_forward<S>(config, graph.view(), v.x.data(), v.y.data(), v.w.data(), out.data());
  return out;
}

template <class S>
Values<S> backward(const ConvTensorProductConfig& config, const CsrGraph& graph, const Values<S>& v) {
  Values<S> g{
      std::vector<S>(v.x.size(), S(99)), std::vector<S>(v.y.size(), S(99)), std::vector<S>(v.w.size(), S(99)), {}};
  conv_tensor_product_backward<S>(config, graph.view(), v.x.data(), v.y.data(), v.w.data(), v.ct.data(), g.x.data(),
                                  g.y.data(), g.w.data());
  return g;
}

Values<double> random_case(const ConvTensorProductConfig& config, const CsrGraph& graph, std::uint64_t seed) {
  const GraphView view = graph.view();
  return {random_values(view.n_nodes * config.in.dim(), seed),
          random_values(view.n_edges * config.edge.dim(), seed + 1),
          random_values(view.n_edges * config.weight_numel(), seed + 2),
          random_values(view.n_receivers * config.out.dim(), seed + 3)};
}

/// All paths into `target`, each with an output block of its own, sorted by irrep; instructions in that order too.
ConvTensorProductConfig all_paths(const Irreps& in, const Irreps& edge, const Irreps& target) {
  struct Candidate {
    std::size_t in, edge;
    sdk::IrrepsBlock out;
  };
  std::vector<Candidate> found;
  for (std::size_t i = 0; i < in.size(); ++i) {
    for (std::size_t j = 0; j < edge.size(); ++j) {
      const int parity = in[i].ir.parity * edge[j].ir.parity;
      for (int l = std::abs(in[i].ir.l - edge[j].ir.l); l <= in[i].ir.l + edge[j].ir.l; ++l) {
        if (target.count({l, parity}) > 0) found.push_back({i, j, {in[i].mul, {l, parity}}});
      }
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.out.ir < b.out.ir; });
  std::vector<sdk::IrrepsBlock> out;
  ConvTensorProductConfig config{in, edge, {}, {}};
  for (const Candidate& path : found) {
    config.instructions.push_back({path.in, path.edge, out.size(), std::sqrt(2.0 * path.out.ir.l + 1)});
    out.push_back(path.out);
  }
  config.out = Irreps(out);
  config.check();
  return config;
}

/// Hub, duplicates, self edges; the last node receives nothing.
CsrGraph small_graph(std::int64_t n_nodes, std::int64_t n_receivers, std::int64_t n_edges, std::uint64_t seed) {
  const auto choice = random_values(2 * n_edges, seed);
  std::vector<std::int32_t> senders, receivers;
  for (std::int64_t e = 0; e < n_edges; ++e) {
    const auto pick = [&](std::int64_t i, std::int64_t n) {
      return static_cast<std::int32_t>((choice[static_cast<std::size_t>(i)] + 1) / 2 * static_cast<double>(n));
    };
    senders.push_back(pick(2 * e, n_nodes));
    receivers.push_back(e % 3 == 0 ? 0 : pick(2 * e + 1, n_receivers - 1));
  }
  senders[1] = senders[0];
  receivers[1] = receivers[0];
  senders[2] = receivers[2];
  return CsrGraph(senders, receivers, n_nodes, n_receivers);
}

/// Test vector of operators.md 2.7.
struct Published {
  ConvTensorProductConfig config{Irreps::parse("1x0e+1x1o"),
                                 Irreps::parse("0e+1o+2e"),
                                 Irreps::parse("0e+0e+1o+1o+1o+2e+2e"),
                                 {{0, 0, 0, 1},
                                  {1, 1, 1, 1},
                                  {0, 1, 2, std::sqrt(3.0)},
                                  {1, 0, 3, std::sqrt(3.0)},
                                  {1, 2, 4, std::sqrt(3.0)},
                                  {0, 2, 5, std::sqrt(5.0)},
                                  {1, 1, 6, std::sqrt(5.0)}}};
  CsrGraph graph{std::vector{0, 1, 0}, std::vector{1, 0, 0}, 2, 2};
  Values<double> v;  // edges in the published order

  Published() {
    v.x = {1, 2, 3, 4, -1, 0.5, 0, 2};
    for (const std::array<double, 3>& r : {std::array{1., 2., 2.}, {-1., -2., -2.}, {0., 3., 4.}}) {
      const double length = std::hypot(r[0], r[1], r[2]);
      const double x = r[0] / length, y = r[1] / length, z = r[2] / length, s = std::sqrt(15.0);
      v.y.insert(v.y.end(), {1, std::sqrt(3.0) * x, std::sqrt(3.0) * y, std::sqrt(3.0) * z, s * x * z, s * x * y,
                             std::sqrt(5.0) / 2 * (3 * y * y - 1), s * y * z, s / 2 * (z * z - x * x)});
    }
    for (int i = 1; i <= 21; ++i) v.w.push_back(0.1 * i);
    for (int i = 0; i <= 20; ++i) v.ct.push_back(((7 * i) % 5 - 2) / 2.0);
    for (int i = 0; i <= 20; ++i) v.ct.push_back(((3 * i) % 7 - 3) / 4.0);
    v.y = graph.sorted(v.y);
    v.w = graph.sorted(v.w);
  }
};

std::vector<double> first(const std::vector<double>& values, std::size_t count) {
  return {values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count)};
}

TEST(ConvTensorProduct, MatchesThePublishedVectors) {
  const Published p;
  ASSERT_EQ(p.config.out.dim(), 21);
  const std::vector<double> out{
      0.7, 6.65, 0.5773502691896257, 2.921392362099506, 3.5102896366729244, 4.15, 5.4, 9.4, -1.8384776310850237,
      10.606601717798211, 11.59655121145938, -1.1188618555710315, -1.1188618555710315, -0.30559595692497155,
      1.4803403012170575, 1.6395629498944735, 2.400499947927515, 2.5148094692573966, 2.0788939366884494,
      10.059237877029586, 6.229868912478551,
      //
      0.1, 1.0666666666666669, 0.1732050807568877, 0.3464101615137754, 0.3464101615137754, 0.8, 1.2, 1.6,
      1.1785113019775793, 2.7105759945484325, 2.3570226039551585, 0.5163977794943222, 0.5163977794943222,
      0.22360679774997894, 1.0327955589886444, 0.38729833462074165, 2.2861904265976323, 2.000416623272929,
      0.32998316455372206, 4.000833246545858, 1.7146428199482244};
  EXPECT_LE(relative_error(forward(p.config, p.graph, p.v), out), kDouble);

  const Values<double> g = backward(p.config, p.graph, p.v);
  EXPECT_LE(relative_error(
                g.x, std::vector{-2.4918600360643484, 0.46461567163347794, -1.699769762433929, 0.7698294809827926,
                                 -0.22101364728831352, -2.979634402225085, -1.7559210903271572, 1.3415644420956863}),
            kDouble);
  EXPECT_LE(relative_error(
                first(p.graph.unsorted(g.y), 9),
                std::vector{-1.375, 0.8054320036288163, -0.4551154571023458, 0.07342714018117483, 0.1630693606237085,
                            0.11079191812887462, 1.0196263565463046, 0.16618787719331196, -0.273861278752583}),
            kDouble);
  EXPECT_LE(relative_error(first(p.graph.unsorted(g.w), 7),
                           std::vector{-0.75, 0., 0.7216878364870322, -3.25, 2.8873526898450694, -1.1978249496733144,
                                       -0.27460810268431357}),
            kDouble);
}

/// Gradients of M = sum(gx cx) + sum(gy cy) + sum(gw cw), which is the derivative of L = sum(out ct) along (cx, cy,
/// cw): the gradient of that derivative is the derivative of the gradient along the same direction, and dM/dct that of
/// out.
Values<double> second_order(const ConvTensorProductConfig& config, const CsrGraph& graph, const Values<double>& v,
                            const Values<double>& c) {
  using test::duals;
  using test::tangents_of;
  const Values<Dual<double>> moving{duals(v.x, c.x), duals(v.y, c.y), duals(v.w, c.w), duals(v.ct)};
  const Values<Dual<double>> g = backward(config, graph, moving);
  return {tangents_of(g.x), tangents_of(g.y), tangents_of(g.w), tangents_of(forward(config, graph, moving))};
}

TEST(ConvTensorProduct, MatchesThePublishedSecondDerivatives) {
  const Published p;
  const Values<double> c{std::vector<double>(p.v.x.size(), 0.5),
                         std::vector<double>(p.v.y.size(), -0.25),
                         std::vector<double>(p.v.w.size(), 0.125),
                         {}};
  const Values<double> g = second_order(p.config, p.graph, p.v, c);
  EXPECT_LE(relative_error(first(g.ct, 5), std::vector{0.975, -1.5957204955018176, -0.39150635094610964,
                                                       0.40523702053557364, 0.742986928011505}),
            kDouble);
  EXPECT_LE(relative_error(g.x, std::vector{-0.33218650745949796, -0.4526235393427989, -0.2448025439835246,
                                            -0.22015577209246937, -0.13598257000434627, -0.6316768627629532,
                                            -0.2524563663778765, -0.006683072918488492}),
            kDouble);
  EXPECT_LE(relative_error(
                first(p.graph.unsorted(g.y), 9),
                std::vector{-0.7375, 0.3003269645992212, -0.17935638859596414, 0.17612651090882242, 0.14403468031185424,
                            -0.007104040935562689, 0.46200623676894276, -0.09623771101352621, -0.10269797953221864}),
            kDouble);
  EXPECT_LE(relative_error(first(p.graph.unsorted(g.w), 7),
                           std::vector{-0.1875, 0., 0.11084391824351608, 0.3125, -0.3304281611776555,
                                       -0.4739124748366572, -0.03629964503326306}),
            kDouble);
}

class ConvTensorProductReference : public testing::TestWithParam<std::string> {
 protected:
  static std::string file(const std::string& extension) {
    std::string name("refdata/tpconv_");
    return name.append(GetParam()).append(extension);
  }
  ConvTensorProductReference() : data(file(".safetensors")) {
    std::ifstream stream(test::data_path(file(".json")));
    const auto json = nlohmann::json::parse(stream);
    config.in = Irreps::parse(json.at("irreps_in1").get<std::string>());
    config.edge = Irreps::parse(json.at("irreps_in2").get<std::string>());
    config.out = Irreps::parse(json.at("irreps_out").get<std::string>());
    const auto instructions = data.integers("instr");
    const auto factors = data.reals("path_weight");
    for (std::size_t p = 0; p < factors.size(); ++p) {
      const auto block = [&](std::size_t i) { return static_cast<std::size_t>(instructions[3 * p + i]); };
      config.instructions.push_back({block(0), block(1), block(2), factors[p]});
    }
    config.check();
    const auto edges = data.integers("edge_index");
    const auto middle = edges.begin() + static_cast<std::ptrdiff_t>(edges.size() / 2);
    graph = std::make_unique<CsrGraph>(std::vector<std::int64_t>(edges.begin(), middle),
                                       std::vector<std::int64_t>(middle, edges.end()), data.shape("x")[0],
                                       data.shape("x")[0]);
    v = {data.reals("x"), graph->sorted(data.reals("y")), graph->sorted(data.reals("w")), data.reals("ct")};
  }
  test::TestData data;
  ConvTensorProductConfig config;
  std::unique_ptr<CsrGraph> graph;
  Values<double> v;
};

TEST_P(ConvTensorProductReference, MatchesForwardAndBackward) {
  EXPECT_EQ(config.weight_numel(), data.shape("w")[1]);
  EXPECT_LE(relative_error(forward(config, *graph, v), data.reals("out")), kDouble);
  const Values<double> g = backward(config, *graph, v);
  EXPECT_LE(relative_error(g.x, data.reals("gx")), kDouble);
  EXPECT_LE(relative_error(graph->unsorted(g.y), data.reals("gy")), kDouble);
  EXPECT_LE(relative_error(graph->unsorted(g.w), data.reals("gw")), kDouble);
}

TEST_P(ConvTensorProductReference, MatchesSecondDerivatives) {
  const Values<double> c{data.reals("cx"), graph->sorted(data.reals("cy")), graph->sorted(data.reals("cw")), {}};
  const Values<double> g = second_order(config, *graph, v, c);
  EXPECT_LE(relative_error(g.x, data.reals("g2x")), kSecondOrder);
  EXPECT_LE(relative_error(graph->unsorted(g.y), data.reals("g2y")), kSecondOrder);
  EXPECT_LE(relative_error(graph->unsorted(g.w), data.reals("g2w")), kSecondOrder);
  EXPECT_LE(relative_error(g.ct, data.reals("g2ct")), kSecondOrder);
}

INSTANTIATE_TEST_SUITE_P(Packages, ConvTensorProductReference,
                         testing::Values("mace_first", "mace_L1", "nequip_parity", "uneven_mul"),
                         [](const auto& instance) { return instance.param; });

/// Configurations that fast paths tend to forget.
std::vector<std::pair<std::string, ConvTensorProductConfig>> odd_configurations() {
  const Irreps y = Irreps::natural(1, 4);
  std::vector<std::pair<std::string, ConvTensorProductConfig>> cases;
  cases.emplace_back("one channel", all_paths(Irreps::parse("1x0e+1x1o"), y, Irreps::natural(1, 3)));
  cases.emplace_back("unequal multiplicities",
                     all_paths(Irreps::parse("7x0e+3x1o+2x2e+1x3o"), Irreps::natural(1, 3), Irreps::natural(1, 3)));
  cases.emplace_back("degree 4", all_paths(Irreps::parse("2x1o+2x4e"), y, Irreps::natural(1, 4)));
  cases.emplace_back("degrees above 6", all_paths(Irreps::parse("1x6e"), Irreps::parse("1x7o"), Irreps::parse("1x8o")));
  cases.emplace_back("both parities", all_paths(Irreps::parse("2x0o+3x0e+1x1e+2x1o"), Irreps::natural(1, 2),
                                                Irreps::parse("0e+0o+1e+1o+2e+2o")));
  // Two paths into one block, twice the same path, blocks of y and of the output that no path uses.
  cases.emplace_back("shared blocks",
                     ConvTensorProductConfig{Irreps::parse("3x0e+3x1o"),
                                             Irreps::parse("1x0e+1x1o+1x2e+1x3o"),
                                             Irreps::parse("3x1o+2x2e+3x1o"),
                                             {{0, 1, 2, 1.5}, {1, 0, 0, -0.5}, {1, 2, 0, 2.0}, {1, 2, 0, 0.25}}});
  return cases;
}

TEST(ConvTensorProduct, GradientsMatchFiniteDifferencesForOddConfigurations) {
  const CsrGraph graph = small_graph(6, 5, 17, 1);
  for (const auto& item : odd_configurations()) {
    SCOPED_TRACE(item.first);
    const ConvTensorProductConfig& config = item.second;
    config.check();
    const Values<double> v = random_case(config, graph, 10), d = random_case(config, graph, 20);
    const Values<double> g = backward(config, graph, v);
    const auto loss = [&](double h) {
      const Values<double> at{test::moved(v.x, h, d.x), test::moved(v.y, h, d.y), test::moved(v.w, h, d.w), {}};
      return test::dot(v.ct, forward(config, graph, at));
    };
    const double expected = test::derivative(loss, 0.5);  // cubic in the step, so the rule is exact up to rounding
    EXPECT_NEAR(test::dot(g.x, d.x) + test::dot(g.y, d.y) + test::dot(g.w, d.w), expected,
                1e-12 * test::dot(v.ct, v.ct));
    EXPECT_GT(std::abs(expected), 1e-3);
  }
}

TEST(ConvTensorProduct, SumsTheFormulaForOddConfigurations) {
  const CsrGraph graph = small_graph(6, 5, 17, 1);
  const GraphView view = graph.view();
  for (const auto& [name, config] : odd_configurations()) {
    SCOPED_TRACE(name);
    const Values<double> v = random_case(config, graph, 30);
    std::vector<double> expected(static_cast<std::size_t>(view.n_receivers * config.out.dim()), 0.0);
    for (std::int64_t e = 0; e < view.n_edges; ++e) {
      std::int64_t weight = e * config.weight_numel();
      for (const auto& path : config.instructions) {
        const auto& c = sdk::coupling(config.in[path.in].ir.l, config.edge[path.edge].ir.l, config.out[path.out].ir.l);
        for (std::int64_t u = 0; u < config.in[path.in].mul; ++u, ++weight) {
          for (const auto& entry : c.nonzero) {
            const std::int64_t i =
                view.sender[e] * config.in.dim() + config.in.offset(path.in) + u * (2 * c.l1 + 1) + entry.i;
            const std::int64_t j = e * config.edge.dim() + config.edge.offset(path.edge) + entry.j;
            const std::int64_t k =
                view.receiver[e] * config.out.dim() + config.out.offset(path.out) + u * (2 * c.l3 + 1) + entry.k;
            expected[static_cast<std::size_t>(k)] += path.factor * v.w[static_cast<std::size_t>(weight)] * entry.value *
                                                     v.x[static_cast<std::size_t>(i)] *
                                                     v.y[static_cast<std::size_t>(j)];
          }
        }
      }
    }
    EXPECT_LE(relative_error(forward(config, graph, v), expected), kDouble);
  }
}

TEST(ConvTensorProduct, RotatesWithItsInputs) {
  const CsrGraph graph = small_graph(6, 5, 17, 2);
  for (const auto& [name, config] : odd_configurations()) {
    SCOPED_TRACE(name);
    const auto rotation = test::Rotation::example(8);
    const Values<double> v = random_case(config, graph, 40);
    const Values<double> rotated{rotation.apply(config.in, v.x), rotation.apply(config.edge, v.y), v.w,
                                 rotation.apply(config.out, v.ct)};
    EXPECT_LE(relative_error(forward(config, graph, rotated), rotation.apply(config.out, forward(config, graph, v))),
              kDouble);
    const Values<double> g = backward(config, graph, v), g_rotated = backward(config, graph, rotated);
    EXPECT_LE(relative_error(g_rotated.x, rotation.apply(config.in, g.x)), kDouble);
    EXPECT_LE(relative_error(g_rotated.y, rotation.apply(config.edge, g.y)), kDouble);
    EXPECT_LE(relative_error(g_rotated.w, g.w), kDouble);
  }
}

TEST(ConvTensorProduct, FloatRoundsNothingButItsResultsAlsoAtAHub) {
  const auto config = all_paths(Irreps::parse("16x0e+16x1o"), Irreps::natural(1, 3), Irreps::natural(1, 3));
  const CsrGraph graph = small_graph(200, 200, 9000, 3);  // a third of the edges ends at node 0
  const Values<double> v = random_case(config, graph, 50);
  const Values<float> f{test::converted<float>(v.x), test::converted<float>(v.y), test::converted<float>(v.w),
                        test::converted<float>(v.ct)};
  const Values<double> d{test::converted<double>(f.x), test::converted<double>(f.y), test::converted<double>(f.w),
                         test::converted<double>(f.ct)};
  EXPECT_EQ(forward(config, graph, f), test::converted<float>(forward(config, graph, d)));
  const Values<float> gf = backward(config, graph, f);
  const Values<double> gd = backward(config, graph, d);
  EXPECT_EQ(gf.x, test::converted<float>(gd.x));
  EXPECT_EQ(gf.y, test::converted<float>(gd.y));
  EXPECT_EQ(gf.w, test::converted<float>(gd.w));
}

TEST(ConvTensorProduct, ReceiversWithoutEdgesAndSilentSendersAreExactZeros) {
  const auto config = all_paths(Irreps::parse("2x0e+2x1o"), Irreps::natural(1, 2), Irreps::natural(1, 2));
  const CsrGraph graph(std::vector{0, 0, 2}, std::vector{0, 2, 2}, 5,
                       4);  // nodes 1, 3 receive nothing, 1, 3, 4 are mute
  const Values<double> v = random_case(config, graph, 60);
  const std::vector<double> out = forward(config, graph, v), gx = backward(config, graph, v).x;
  ASSERT_EQ(out.size(), static_cast<std::size_t>(4 * config.out.dim()));
  const auto row_is_zero = [](const std::vector<double>& rows, std::int64_t row, std::int64_t width) {
    return std::all_of(rows.begin() + row * width, rows.begin() + (row + 1) * width, [](double z) { return z == 0.0; });
  };
  for (const int n : {0, 1, 2, 3}) EXPECT_EQ(row_is_zero(out, n, config.out.dim()), n == 1 || n == 3) << n;
  for (const int n : {0, 1, 2, 3, 4}) EXPECT_EQ(row_is_zero(gx, n, config.in.dim()), n != 0 && n != 2) << n;
}

TEST(ConvTensorProduct, NoEdgesAndNoNodesGiveZeros) {
  const auto config = all_paths(Irreps::parse("2x0e+2x1o"), Irreps::natural(1, 2), Irreps::natural(1, 2));
  for (const std::int64_t n : {0, 3}) {
    const CsrGraph graph(std::vector<std::int32_t>{}, std::vector<std::int32_t>{}, n, n);
    const Values<double> v = random_case(config, graph, 70);
    EXPECT_EQ(forward(config, graph, v), std::vector<double>(v.ct.size(), 0.0));
    const Values<double> g = backward(config, graph, v);
    EXPECT_EQ(g.x, std::vector<double>(v.x.size(), 0.0));
    EXPECT_TRUE(g.y.empty() && g.w.empty());
  }
}

TEST(ConvTensorProduct, DoesNotDependOnTheOrderInWhichEdgesAreGiven) {
  const auto config = all_paths(Irreps::parse("3x0e+2x1o"), Irreps::natural(1, 2), Irreps::natural(1, 2));
  const std::vector<std::int32_t> senders{0, 3, 2, 1, 3, 3, 0, 2, 1}, receivers{1, 0, 0, 1, 0, 2, 0, 2, 1};
  const CsrGraph graph(senders, receivers, 4, 3);
  const Values<double> v = random_case(config, graph, 80);
  std::vector<std::size_t> shuffle{8, 2, 5, 0, 7, 3, 6, 1, 4};
  const auto shuffled = [&](const auto& rows) {
    auto result = rows;
    const std::size_t width = rows.size() / shuffle.size();
    for (std::size_t e = 0; e < shuffle.size(); ++e) {
      for (std::size_t i = 0; i < width; ++i) result[e * width + i] = rows[shuffle[e] * width + i];
    }
    return result;
  };
  const CsrGraph other(shuffled(senders), shuffled(receivers), 4, 3);
  const Values<double> w{v.x, other.sorted(shuffled(graph.unsorted(v.y))), other.sorted(shuffled(graph.unsorted(v.w))),
                         v.ct};
  EXPECT_LE(relative_error(forward(config, other, w), forward(config, graph, v)), 1e-15);
  const Values<double> g = backward(config, graph, v), h = backward(config, other, w);
  EXPECT_LE(relative_error(h.x, g.x), 1e-15);
  EXPECT_EQ(other.unsorted(h.y), shuffled(graph.unsorted(g.y)));
  EXPECT_EQ(other.unsorted(h.w), shuffled(graph.unsorted(g.w)));
}

TEST(ConvTensorProduct, WritesOnlyTheWantedGradients) {
  const auto config = all_paths(Irreps::parse("3x0e+2x1o"), Irreps::natural(1, 2), Irreps::natural(1, 2));
  const CsrGraph graph = small_graph(4, 4, 9, 5);
  const Values<double> v = random_case(config, graph, 90), all = backward(config, graph, v);
  const auto run = [&](double* gx, double* gy, double* gw) {
    conv_tensor_product_backward<double>(config, graph.view(), v.x.data(), v.y.data(), v.w.data(), v.ct.data(), gx, gy,
                                         gw);
  };
  Values<double> one{std::vector<double>(v.x.size(), 99),
                     std::vector<double>(v.y.size(), 99),
                     std::vector<double>(v.w.size(), 99),
                     {}};
  run(one.x.data(), nullptr, nullptr);
  run(nullptr, one.y.data(), nullptr);
  run(nullptr, nullptr, one.w.data());
  EXPECT_EQ(one.x, all.x);
  EXPECT_EQ(one.y, all.y);
  EXPECT_EQ(one.w, all.w);
}

}  // namespace
}  // namespace fastpath::ops
