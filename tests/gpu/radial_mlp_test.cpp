#include <gtest/gtest.h>

#include <cmath>

#include "agreement.hpp"

namespace fastpath_gpu::test {
namespace {

using fastpath::verify::TrialShape;

fastpath::OpSpec net(std::vector<std::int64_t> widths) {
  sdk::RadialMlpConfig config;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    config.scales.push_back(1 / std::sqrt(static_cast<double>(widths[i])));
  }
  config.widths = std::move(widths);
  return spec(config);
}
Target with_local_bytes(Target target, std::uint32_t bytes) {
  target.local_bytes = bytes;
  return target;
}

TEST(GeneratedRadialMlp, AgreesWithTheReference) {
  expect_agreement("uneven", net({8, 13, 1, 20}), usual_target());
  expect_agreement("one layer", net({5, 7}), usual_target());
  expect_agreement("all ones", net({1, 1, 1}), small_target());
}

TEST(GeneratedRadialMlp, AgreesForTheWidthsOfMace) {
  expect_agreement("narrower behind", net({8, 64, 64, 64, 70}), small_target());
}

TEST(GeneratedRadialMlp, AgreesLayerByLayerWhereATileDoesNotFit) {
  expect_agreement("uneven", net({3, 40, 17, 33, 5}), with_local_bytes(small_target(), 2048));
}

TEST(GeneratedRadialMlp, WorksOnManyRowsInRounds) {
  TrialShape many;
  many.name = "many rows";
  many.n_rows = 4500;
  expect_agreement("fused", net({2, 3, 2}), usual_target(), {many});
  expect_agreement("layer by layer", net({2, 5, 2}), with_local_bytes(small_target(), 512), {many});
}

}  // namespace
}  // namespace fastpath_gpu::test
