#include <gtest/gtest.h>

#include "agreement.hpp"
#include "fastpath/plugin.h"
#include "generator/op.hpp"
#include "ops/symmetric_contraction/basis.hpp"

namespace fastpath_gpu::test {
namespace {

using fastpath::verify::TrialShape;

sdk::SymmetricContractionConfig contraction(int l_max, int correlation, std::vector<int> targets, std::int64_t channels,
                                            std::int64_t n_species, std::int64_t more_paths = 0) {
  sdk::SymmetricContractionConfig config;
  config.channels = channels;
  config.dim = std::int64_t{l_max + 1} * (l_max + 1);
  config.correlation = correlation;
  config.n_species = n_species;
  config.targets = std::move(targets);
  for (const int target : config.targets) {
    auto& counts = config.n_paths.emplace_back();
    for (int nu = 1; nu <= correlation; ++nu) {
      counts.push_back(static_cast<std::int64_t>(fastpath::ops::count_paths(l_max, target, nu)) + more_paths);
    }
  }
  return config;
}

TEST(GeneratedSymmetricContraction, AgreesWithTheReference) {
  expect_agreement("one channel", spec(contraction(1, 2, {0}, 1, 1)), usual_target());
  expect_agreement("another basis", spec(contraction(1, 2, {0, 1}, 5, 12, 3)), usual_target());
  expect_agreement("a target that nothing couples to", spec(contraction(1, 1, {0, 3}, 4, 2)), small_target());
}

TEST(GeneratedSymmetricContraction, AgreesForTheBasisOfMace) {
  expect_agreement("degree 2", spec(contraction(2, 3, {0, 1}, 3, 4)), usual_target());
}

TEST(GeneratedSymmetricContraction, AgreesForMoreChannelsThanAGroupHasItems) {
  expect_agreement("70 channels", spec(contraction(1, 2, {1, 0, 2}, 70, 2)), small_target());
}

TEST(GeneratedSymmetricContraction, SumsOverManyRowsInPieces) {
  TrialShape many;
  many.name = "many rows";
  many.n_rows = 700;
  expect_agreement("many rows", spec(contraction(1, 2, {0, 1}, 2, 9)), usual_target(), {many});
}

TEST(GeneratedSymmetricContraction, WritesALongPolynomialAsSeveralKernels) {
  const sdk::SymmetricContractionConfig config = contraction(1, 4, {0, 1}, 2, 2);
  const auto op = symmetric_contraction().create(config.attributes());
  std::vector<std::vector<double>> constants;
  for (const int target : config.targets) {
    for (int nu = 1; nu <= config.correlation; ++nu) {
      std::int64_t paths = 0;
      constants.push_back(fastpath::ops::u_matrix(1, target, nu, &paths));
    }
  }
  op->set_constants(constants);
  Target target = usual_target();
  EXPECT_THROW(op->generate(target, sdk::kFloat64, FP_PASS_FORWARD).kernel("symmetric_contraction_forward_part1"),
               std::logic_error);
  target.max_terms = 20;
  EXPECT_NO_THROW(op->generate(target, sdk::kFloat64, FP_PASS_FORWARD).kernel("symmetric_contraction_forward_part1"));
  expect_agreement("correlation 4", spec(config), target);
}

}  // namespace
}  // namespace fastpath_gpu::test
