// Models whose message steps run fused: the same numbers, no array over edges and channels, decisions that say so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "fastpath/error.hpp"
#include "support/mace_models.hpp"
#include "support/mace_variants.hpp"

namespace fastpath::test {
namespace {

double relative(const std::vector<double>& found, const std::vector<double>& want) {
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    difference = std::max(difference, std::abs(found[i] - want[i]));
    largest = std::max(largest, std::abs(want[i]));
  }
  return largest > 0 ? difference / largest : difference;
}

Context& simd() {
  static Context context(
      {.registry = {
           .search_paths = {FASTPATH_PLUGIN_DIRECTORY}, .default_paths = false, .enable = {"cpu_simd", "cpu_ref"}}});
  return context;
}

EvaluateOptions fast(DType dtype = DType::float64, int threads = 1) {
  EvaluateOptions options;
  options.use_fast = UseFast::always;
  options.context = &simd();
  options.dtype = dtype;
  options.threads = threads;
  options.require_fast = true;
  return options;
}

class MaceFused : public testing::TestWithParam<Variant> {
 protected:
  std::shared_ptr<Model> model_ = variant_model(GetParam());
  Structure structure_ = variant_structure();
};

TEST_P(MaceFused, AgreesWithTheReferenceAndSaysWhoDidWhat) {
  EvaluateOptions plain = reference(), fused = fast();
  plain.parameter_gradients = fused.parameter_gradients = true;
  const EvaluationResult want = model_->evaluate(structure_, plain), found = model_->evaluate(structure_, fused);
  const double scale = 1 + std::abs(want.energy);
  EXPECT_NEAR(found.energy, want.energy, 1e-13 * scale);
  EXPECT_LE(relative(reals(found.forces), reals(want.forces)), 1e-12);
  ASSERT_EQ(found.parameter_gradients.size(), want.parameter_gradients.size());
  for (const auto& [name, gradient] : want.parameter_gradients) {
    EXPECT_LE(relative(reals(found.parameter_gradients.at(name)), reals(gradient)), 1e-11) << name;
  }
  const bool density =
      std::string(GetParam().name).find("Density") != std::string::npos || std::string(GetParam().name) == "Foundation";
  for (const Decision& decision : found.selection.decisions) {
    if (decision.op == "message_step") {
      EXPECT_EQ(decision.choice, "cpu_simd") << decision.module;
    }
    const bool covered = decision.op == "spherical_harmonics" || decision.op == "radial_mlp" ||
                         decision.op == "conv_tensor_product" || (decision.op == "radial_basis" && !density);
    EXPECT_EQ(decision.reason.code == ReasonCode::covered_by_parent, covered) << decision.module;
  }
  const EvaluationResult single = model_->evaluate(structure_, fast(DType::float32));
  EXPECT_LE(relative(reals(single.forces), reals(want.forces)), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Configurations, MaceFused, testing::ValuesIn(variants()),
                         [](const auto& variant) { return std::string(variant.param.name); });

TEST(MaceFusedModel, ThreadsDoNotChangeABit) {
  const auto model = mace_a();
  const Structure water = repeated(mace_a_structure("water8"), 3, 3, 2);
  for (const DType dtype : {DType::float64, DType::float32}) {
    EvaluateOptions one = fast(dtype, 1), three = fast(dtype, 3);
    for (const bool parameters : {false, true}) {
      one.parameter_gradients = three.parameter_gradients = parameters;
      const EvaluationResult a = model->evaluate(water, one), b = model->evaluate(water, three);
      EXPECT_EQ(a.energy, b.energy);
      EXPECT_EQ(reals(a.forces), reals(b.forces));
      for (const auto& [name, gradient] : a.parameter_gradients) {
        EXPECT_EQ(reals(gradient), reals(b.parameter_gradients.at(name))) << name;
      }
    }
  }
}

// The fused step has no tangents, so its parts run, each on a kernel: nothing is left to the reference.
TEST(MaceFusedModel, DerivativesAlongADirectionComeFromThePartsOfTheStep) {
  const auto model = mace_a();
  const Structure molecule = mace_a_structure("molecule");
  for (const DType dtype : {DType::float64, DType::float32}) {
    EvaluateOptions plain = reference(), along = fast(dtype, 2);
    Context alone(
        {.registry = {.search_paths = {FASTPATH_PLUGIN_DIRECTORY}, .default_paths = false, .enable = {"cpu_simd"}}});
    along.context = &alone;
    for (EvaluateOptions* options : {&plain, &along}) {
      options->parameter_gradients = true;
      options->direction = Tensor::zeros({molecule.size(), 3}, DType::float64);
      double value = 0.3;
      for (double& component : options->direction.span<double>()) component = value = std::sin(7 * value + 1);
    }
    const EvaluationResult want = model->evaluate(molecule, plain), found = model->evaluate(molecule, along);
    for (const Decision& decision : found.selection.decisions) {
      if (decision.op != "message_step") {
        EXPECT_EQ(decision.choice, "cpu_simd") << decision.module;
        continue;
      }
      EXPECT_EQ(decision.choice, "reference") << decision.module;
      ASSERT_EQ(decision.candidates.size(), 1u);
      ASSERT_FALSE(decision.candidates[0].reasons.empty());
      EXPECT_EQ(decision.candidates[0].reasons[0].code, ReasonCode::pass) << decision.module;
    }
    const double tolerance = dtype == DType::float64 ? 1e-12 : 2e-5;
    EXPECT_LE(relative(reals(found.forces), reals(want.forces)), tolerance);
    EXPECT_LE(relative(reals(found.forces_tangent), reals(want.forces_tangent)), tolerance);
    ASSERT_EQ(found.parameter_gradients_tangent.size(), want.parameter_gradients_tangent.size());
    for (const auto& [name, gradient] : want.parameter_gradients_tangent) {
      EXPECT_LE(relative(reals(found.parameter_gradients_tangent.at(name)), reals(gradient)), tolerance) << name;
    }
  }
}

TEST(MaceFusedModel, RunsWholeOnCpuSimdAlone) {
  const auto model = mace_a();
  const Structure water = mace_a_structure("water8");
  Context alone(
      {.registry = {.search_paths = {FASTPATH_PLUGIN_DIRECTORY}, .default_paths = false, .enable = {"cpu_simd"}}});
  EvaluateOptions options = fast();
  options.context = &alone;
  const EvaluationResult want = model->evaluate(water, reference()), found = model->evaluate(water, options);
  EXPECT_LE(relative(reals(found.forces), reals(want.forces)), 1e-12);
  for (const Decision& decision : found.selection.decisions) {
    const bool covered = decision.reason.code == ReasonCode::covered_by_parent;
    EXPECT_TRUE(covered || decision.choice == "cpu_simd") << decision.module << " runs on " << decision.choice;
  }
}

TEST(MaceFusedModel, NeedsNoMemoryForWeightsOfEdges) {
  const auto model = mace_a();
  const Structure water = repeated(mace_a_structure("water8"), 2, 2, 2);
  const std::uint64_t plain = model->memory_estimate(water, reference()).workspace_bytes,
                      fused = model->memory_estimate(water, fast()).workspace_bytes;
  EXPECT_LT(fused, plain / 2);
  // A limit between the two is met by the one and refused to the other, whichever came first.
  EvaluateOptions reference_limited = reference(), fused_limited = fast();
  reference_limited.memory_limit = fused_limited.memory_limit = (plain + fused) / 2;
  for (int time = 0; time < 2; ++time) {
    EXPECT_NO_THROW((void)model->evaluate(water, fused_limited));
    EXPECT_THROW((void)model->evaluate(water, reference_limited), Error);
  }
}

}  // namespace
}  // namespace fastpath::test
