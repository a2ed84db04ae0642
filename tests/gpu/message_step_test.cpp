#include <gtest/gtest.h>

#include "agreement.hpp"
#include "fastpath/conformance/cases.hpp"
#include "generator/op.hpp"

namespace fastpath_gpu::test {
namespace {

using fastpath::conformance::OpCase;
using fastpath::verify::TrialShape;
using namespace fastpath::conformance::cases;

constexpr auto kNone = sdk::DistanceTransform::none;

/// The reference states its frequencies, so they are in the question too.
fastpath::OpSpec step_spec(const OpCase& op) {
  auto config = sdk::MessageStepConfig::from(op.config);
  for (std::int64_t n = 1; n <= config.radial.n_basis; ++n) {
    config.radial.frequencies.push_back(static_cast<double>(n) * M_PI / config.radial.r_max);
  }
  return spec(config);
}
void expect_step(const OpCase& op, const Target& target, const std::vector<TrialShape>& more_shapes = {}) {
  expect_agreement(op.label, step_spec(op), target, more_shapes);
}
TrialShape crowded(std::int64_t n_edges) {
  TrialShape shape;
  shape.name = "crowded";
  shape.n_nodes = 4;
  shape.n_receivers = 3;
  shape.n_edges = n_edges;
  shape.n_rows = 4;
  return shape;
}

std::vector<OpCase> corners() { return fastpath::conformance::corner_cases(std::string(sdk::MessageStepConfig::kOp)); }
class GeneratedMessageStepCorners : public ::testing::TestWithParam<std::size_t> {};
TEST_P(GeneratedMessageStepCorners, AgreeWithTheReference) { expect_step(corners().at(GetParam()), usual_target()); }
INSTANTIATE_TEST_SUITE_P(Cases, GeneratedMessageStepCorners, ::testing::Range(std::size_t{0}, corners().size()));

TEST(GeneratedMessageStep, WalksTilesThatEndWithinAReceiver) {
  expect_step(step(basis(4, 5.0, 5, false, kNone), {5}, conv("3x0e+3x1o", "1x0e+1x1o", 1, true), 1), usual_target(),
              {crowded(301)});
}

TEST(GeneratedMessageStep, CutsChannelsThatDoNotFitInAGroup) {
  expect_step(step(basis(5, 5.0, 5, true, kNone), {17}, conv("131x0e+131x1o", "1x0e+1x1o", 1, false), 1),
              usual_target());
}

TEST(GeneratedMessageStep, AgreesOnASmallDevice) {
  expect_step(step(basis(8, 5.0, 5, true, kNone), {64, 64}, conv("9x0e+9x1o", edge_irreps(3), 3, false), 3),
              small_target(), {crowded(70)});
  // Few edges in a tile, and a hidden layer that takes its items several turns.
  expect_step(step(basis(3, 5.0, 5, false, kNone), {300}, conv("2x0e+3x1o", "1x0e+1x1o", 1, false), 1), small_target());
}

TEST(GeneratedMessageStep, HasHarmonicsOfEveryKind) {
  for (const sdk::Normalization normalization : {sdk::Normalization::norm, sdk::Normalization::integral}) {
    auto config = sdk::MessageStepConfig::from(
        step(basis(2, 5.0, 5, true, kNone), {3}, conv("2x0e", edge_irreps(2), 2, false), 2).config);
    config.harmonics.normalize = normalization == sdk::Normalization::norm;
    config.harmonics.normalization = normalization;
    expect_agreement("normalization", spec(config), usual_target());
  }
}

TEST(GeneratedMessageStep, DeclinesANetTooWideForATileOfEdges) {
  const OpCase wide = step(basis(2, 5.0, 5, true, kNone), {1025}, conv("1x0e", "1x0e", 0, false), 0);
  sdk::KernelAnswer answer;
  message_step().check(wide.config, answer);
  ASSERT_EQ(answer.blockers.size(), 1u);
  EXPECT_EQ(answer.blockers[0].first, sdk::Reason::config);
  EXPECT_NE(answer.blockers[0].second.find("1025 inputs, at most 1024"), std::string::npos);
  const OpCase widest = step(basis(2, 5.0, 5, true, kNone), {1024}, conv("1x0e", "1x0e", 0, false), 0);
  sdk::KernelAnswer accepted;
  message_step().check(widest.config, accepted);
  EXPECT_TRUE(accepted.blockers.empty());
  EXPECT_NO_THROW(message_step()
                      .create(widest.config)
                      ->generate(small_target(), sdk::kFloat64, FP_PASS_FORWARD | FP_PASS_BACKWARD));
}

}  // namespace
}  // namespace fastpath_gpu::test
