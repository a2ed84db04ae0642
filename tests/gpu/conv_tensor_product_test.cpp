#include <gtest/gtest.h>

#include "agreement.hpp"
#include "fastpath/sdk/irreps.hpp"

namespace fastpath_gpu::test {
namespace {

using fastpath::verify::TrialShape;

/// Every path from `in` with `edge` to irreps up to l_max, each into a block of its own.
fastpath::OpSpec conv(const char* in, const char* edge, int l_max) {
  sdk::ConvTensorProductConfig config{irreps(in), irreps(edge), {}, {}};
  std::string out;
  for (std::size_t a = 0; a < config.in.size(); ++a) {
    for (std::size_t b = 0; b < config.edge.size(); ++b) {
      const sdk::Irrep x = config.in[a].ir, y = config.edge[b].ir;
      for (int l = std::abs(x.l - y.l); l <= std::min(x.l + y.l, l_max); ++l) {
        const double factor = std::sqrt(2.0 * l + 1.0);
        config.instructions.push_back({a, b, config.instructions.size(), factor});
        out += (out.empty() ? "" : "+") + std::to_string(config.in[a].mul) + "x" + std::to_string(l) +
               (x.parity * y.parity > 0 ? "e" : "o");
      }
    }
  }
  config.out = irreps(out.c_str());
  return spec(config);
}

TEST(GeneratedConvTensorProduct, AgreesForMultiplicitiesFromOneUp) {
  expect_agreement("one channel", conv("1x0e", "1x0e", 0), usual_target());
  expect_agreement("first layer of MACE", conv("5x0e", "1x0e+1x1o+1x2e+1x3o", 3), usual_target());
  expect_agreement("second layer of MACE", conv("7x0e+7x1o", "1x0e+1x1o+1x2e+1x3o", 3), usual_target());
  expect_agreement("more channels than items", conv("131x0e+131x1o", "1x0e+1x1o", 1), usual_target());
  expect_agreement("unequal multiplicities", conv("2x0e+5x1o+1x2e", "1x0e+1x1o+1x2e", 2), usual_target());
}

TEST(GeneratedConvTensorProduct, SplitsWhatHasMoreSumsThanRegisters) {
  expect_agreement("many outputs", conv("3x0e+3x1o+3x2e+3x3o", "1x0e+1x1o+1x2e+1x3o", 3), usual_target());
}

TEST(GeneratedConvTensorProduct, AgreesOnASmallDevice) {
  expect_agreement("small", conv("9x0e+9x1o", "1x0e+1x1o+1x2e+1x3o+1x4e", 4), small_target());
}

TEST(GeneratedConvTensorProduct, SumsOverSharedOutputsAndFillsBlocksWithoutAPath) {
  sdk::ConvTensorProductConfig config{irreps("3x0e+3x1o+2x2e"), irreps("1x0e+1x1o"), irreps("3x1o+4x0e"), {}};
  config.instructions = {{0, 1, 0, 1.25}, {1, 0, 0, -0.5}};
  expect_agreement("shared", spec(config), usual_target());
  config.instructions.clear();
  expect_agreement("no path at all", spec(config), usual_target());
}

TEST(GeneratedConvTensorProduct, SumsLongListsOfEdges) {
  TrialShape crowded;
  crowded.n_nodes = 3;
  crowded.n_receivers = 2;
  crowded.n_edges = 700;
  crowded.n_rows = 3;
  expect_agreement("crowded", conv("4x0e+4x1o", "1x0e+1x1o", 1), usual_target(), {crowded});
}

}  // namespace
}  // namespace fastpath_gpu::test
