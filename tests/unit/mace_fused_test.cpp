// Models whose message steps run fused: the same numbers, no array over edges and channels, decisions that say so.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "fastpath/conformance/cases.hpp"
#include "fastpath/create_op.hpp"
#include "fastpath/error.hpp"
#include "fastpath/measurement.hpp"
#include "fastpath/sdk/ops.hpp"
#include "support/mace_models.hpp"
#include "support/mace_variants.hpp"
#include "verify/op_problem.hpp"

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

EvaluateOptions along(EvaluateOptions options, const Structure& structure) {
  options.parameter_gradients = true;
  options.direction = Tensor::zeros({structure.size(), 3}, DType::float64);
  double value = 0.3;
  for (double& component : options.direction.span<double>()) component = value = std::sin(7 * value + 1);
  return options;
}

TEST(MaceFusedModel, DerivativesAlongADirectionComeFromTheFusedStep) {
  const auto model = mace_a();
  const Structure molecule = mace_a_structure("molecule");
  for (const DType dtype : {DType::float64, DType::float32}) {
    Context alone(
        {.registry = {.search_paths = {FASTPATH_PLUGIN_DIRECTORY}, .default_paths = false, .enable = {"cpu_simd"}}});
    EvaluateOptions options = along(fast(dtype, 2), molecule);
    options.context = &alone;
    const EvaluationResult want = model->evaluate(molecule, along(reference(), molecule)),
                           found = model->evaluate(molecule, options);
    for (const Decision& decision : found.selection.decisions) {
      const bool covered = decision.reason.code == ReasonCode::covered_by_parent;
      EXPECT_TRUE(covered || decision.choice == "cpu_simd") << decision.module << " runs on " << decision.choice;
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

// More edges than the step takes at a time, against the plain kernels of its parts.
TEST(MaceFusedModel, DerivativesOfManyEdgesAreThoseOfThePartsForAnyNumberOfThreads) {
  const auto model = mace_a();
  const Structure water = repeated(mace_a_structure("water8"), 3, 3, 2);
  Context parts(
      {.registry = {.search_paths = {FASTPATH_PLUGIN_DIRECTORY}, .default_paths = false, .enable = {"cpu_ref"}}});
  EvaluateOptions plain = along(fast(DType::float64, 2), water);
  plain.context = &parts;
  const EvaluationResult want = model->evaluate(water, plain);
  ASSERT_GT(want.n_edges, 8192);
  const EvaluationResult one = model->evaluate(water, along(fast(DType::float64, 1), water)),
                         three = model->evaluate(water, along(fast(DType::float64, 3), water));
  EXPECT_LE(relative(reals(one.forces_tangent), reals(want.forces_tangent)), 1e-12);
  EXPECT_EQ(reals(one.forces_tangent), reals(three.forces_tangent));
  for (const auto& [name, gradient] : want.parameter_gradients_tangent) {
    const Tensor& found = one.parameter_gradients_tangent.at(name);
    EXPECT_LE(relative(reals(found), reals(gradient)), 1e-11) << name;
    EXPECT_EQ(reals(found), reals(three.parameter_gradients_tangent.at(name))) << name;
  }
}

// What forward keeps is of use to backward; where the host has no room for it, backward makes it again: the same bits.
TEST(MessageStepOfCpuSimd, NeedsNothingThatForwardKeptForItsTangents) {
  for (const conformance::OpCase& op : conformance::corner_cases("message_step")) {
    SCOPED_TRACE(op.label);
    const auto module = create_op({op.op, op.version, op.config.values()}, 1);
    verify::TrialShape shape;
    shape.n_nodes = 60, shape.n_receivers = 55, shape.n_edges = 2500;
    const verify::Problem problem = verify::draw_problem(*module, DType::float64, shape, 3);
    const Selection selection = select({{"step", module.get()}}, UseFast::always, nullptr, Device::cpu(),
                                       DType::float64, ProblemSize(2500, 60), kPassesTraining, &simd());
    if (selection.decisions.list().front().choice != "cpu_simd") continue;
    const auto like = [&](const std::vector<sdk::Argument>& arguments, const std::vector<Tensor>& given) {
      std::vector<Tensor> made;
      for (std::size_t i = 0; i < arguments.size(); ++i) {
        const bool wanted = arguments[i].real && arguments[i].differentiable && given[i].defined();
        made.push_back(wanted ? Tensor::zeros(problem.shape_of(arguments[i]), DType::float64) : Tensor());
      }
      return made;
    };
    std::vector<std::vector<Tensor>> results;
    for (const int threads : {1, 2}) {
      OpCall call;
      call.graph = &problem.graph;
      call.inputs = problem.given.inputs;
      call.inputs_t = problem.given.inputs_t;
      call.threads = threads;
      const std::vector<Tensor> out = like(problem.signature.outputs, problem.given.grad_outputs),
                                out_t = like(problem.signature.outputs, problem.given.grad_outputs);
      call.pass = Pass::forward_tangent;
      call.outputs = out, call.outputs_t = out_t;
      const Tensor saved = Tensor::zeros({static_cast<std::int64_t>(module->saved_bytes(call))}, DType::uint8);
      EXPECT_GT(saved.numel(), 0);
      for (const bool keeps : {true, false}) {
        call.pass = Pass::forward_tangent;
        call.outputs = out, call.outputs_t = out_t;
        call.saved = keeps ? saved : Tensor();
        module->run(call);
        OpCall back = call;
        const auto& given = problem.given;
        const std::vector<Tensor> in = like(problem.signature.inputs, given.inputs),
                                  in_t = like(problem.signature.inputs, given.inputs),
                                  of_parameters = like(problem.signature.parameters, given.parameters),
                                  of_parameters_t = like(problem.signature.parameters, given.parameters);
        back.pass = Pass::backward_tangent;
        back.outputs = back.outputs_t = {};
        back.grad_outputs = given.grad_outputs, back.grad_outputs_t = given.grad_outputs_t;
        back.grad_inputs = in, back.grad_inputs_t = in_t;
        back.grad_parameters = of_parameters, back.grad_parameters_t = of_parameters_t;
        module->run(back);
        ASSERT_TRUE(module->fast_active());
        std::vector<Tensor> all{out[0].clone(), out_t[0].clone()};
        for (const auto* list : {&in, &in_t, &of_parameters, &of_parameters_t}) {
          all.insert(all.end(), list->begin(), list->end());
        }
        results.push_back(std::move(all));
      }
    }
    for (const std::vector<Tensor>& other : results) {
      for (std::size_t i = 0; i < other.size(); ++i) {
        if (other[i].defined()) {
          EXPECT_EQ(reals(other[i]), reals(results[0][i])) << i;
        }
      }
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

TEST(MaceFusedModel, TrainsByKernelsUnderAutoFromTheSizeOnThatWasMeasured) {
  ContextOptions nothing_measured;
  nothing_measured.registry = {
      .search_paths = {FASTPATH_PLUGIN_DIRECTORY}, .default_paths = false, .enable = {"cpu_simd"}};
  nothing_measured.measurements = std::make_shared<MeasurementStore>();
  Context context(std::move(nothing_measured));
  const auto model = mace_a();
  EvaluateOptions options;
  options.use_fast = UseFast::automatic;
  options.context = &context;
  options.weights.energies = Tensor::zeros({1}, DType::float64);
  for (const std::int64_t edges : {499, 500}) {
    const Selection selection = model->explain({edges, 50}, options);
    for (const Decision& decision : selection.decisions) {
      if (decision.op != "message_step" && decision.op != "irreps_linear") continue;
      EXPECT_EQ(decision.choice, edges < 500 ? "reference" : "cpu_simd") << decision.module << ", " << edges;
      EXPECT_EQ(decision.reason.code, ReasonCode::prior);
    }
  }
}

TEST(MaceFusedModel, TheEstimateHasWhatKernelsKeepForBackward) {
  const auto model = mace_a();
  const ProblemSize size(6000, 200);
  EvaluateOptions forces = fast(), training = fast();
  training.weights.forces = Tensor::zeros({size.n_nodes, 3}, DType::float64);
  const auto saved = [&](const EvaluateOptions& options) {
    const std::uint64_t estimate = model->memory_estimate(size, options).workspace_bytes;
    const bool trains = passes_of(options) == kPassesTraining;
    std::uint64_t kept = 0;
    for (const NamedFastModule& named : fast_modules(*model)) {
      const std::uint64_t bytes = named.module->saved_bytes(size, size.n_nodes, DType::float64, passes_of(options));
      EXPECT_EQ(bytes > 0, trains && named.module->op().id == "message_step") << named.name;
      kept += bytes;
    }
    EXPECT_GT(estimate, kept);
    return kept;
  };
  EXPECT_EQ(saved(forces), 0u);
  const std::uint64_t per_edge = saved(training) / static_cast<std::uint64_t>(size.n_edges);
  EXPECT_GT(per_edge, 64u * sizeof(double));  // weights of each edge in two layers, and more
  const std::uint64_t small = model->memory_estimate(size, training).workspace_bytes,
                      large = model->memory_estimate({2 * size.n_edges, 2 * size.n_nodes}, training).workspace_bytes;
  EXPECT_NEAR(static_cast<double>(large), 2 * static_cast<double>(small), 0.01 * static_cast<double>(large));
  (void)model->explain(size, reference());
  for (const NamedFastModule& named : fast_modules(*model)) {
    EXPECT_EQ(named.module->saved_bytes(size, size.n_nodes, DType::float64, kPassesTraining), 0u) << named.name;
  }
}

}  // namespace
}  // namespace fastpath::test
