// Kernels on inputs that the core makes: good ones agree, and each way of being wrong is found and named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fastpath/error.hpp"
#include "fastpath/plugin.h"
#include "fastpath/sdk/ops.hpp"
#include "ops/make_op_module.hpp"
#include "ops/symmetric_contraction/basis.hpp"
#include "support/lying_plugin.hpp"
#include "verify/op_trial.hpp"

namespace fastpath::verify {
namespace {

using test::Liar;
using test::Lie;

template <class Config>
OpSpec spec(const Config& config) {
  return {std::string(Config::kOp), Config::kVersion, config.attributes().values()};
}

sdk::Irreps irreps(const char* text) { return sdk::Irreps::parse(text); }

sdk::RadialBasisConfig basis(sdk::DistanceTransform transform, bool apply_cutoff) {
  sdk::RadialBasisConfig config;
  config.r_max = 5;
  config.prefactor = 0.4;  // not that of a new model
  config.transform = transform;
  config.apply_cutoff = apply_cutoff;
  if (transform != sdk::DistanceTransform::none) config.species_radii = {0.31, 0.66, 1.2};
  return config;
}

sdk::ConvTensorProductConfig conv() {
  return {irreps("5x0e+5x1o+5x2e"),
          irreps("1x0e+1x1o+1x2e+1x3o"),
          irreps("5x0e+5x1o+5x1o+5x2e+5x3o"),
          {{0, 0, 0, 1}, {0, 1, 1, 1.7}, {1, 0, 2, 1.7}, {1, 1, 3, 0.3}, {2, 1, 4, -1}, {2, 2, 0, 2}}};
}

sdk::SymmetricContractionConfig contraction(int l_max, int correlation, std::int64_t more_paths) {
  sdk::SymmetricContractionConfig config;
  config.channels = 3;
  config.dim = std::int64_t{l_max + 1} * (l_max + 1);
  config.correlation = correlation;
  config.n_species = 4;
  config.targets = {0, 1};
  for (const int target : config.targets) {
    auto& counts = config.n_paths.emplace_back();
    for (int nu = 1; nu <= correlation; ++nu) {
      counts.push_back(static_cast<std::int64_t>(ops::count_paths(l_max, target, nu)) + more_paths);
    }
  }
  return config;
}

std::vector<std::pair<std::string, OpSpec>> configurations() {
  sdk::RadialMlpConfig mlp;
  mlp.widths = {8, 13, 1, 20};
  mlp.scales = {0.35, 0.28, 1};
  return {{"harmonics", spec(sdk::SphericalHarmonicsConfig{3, true, sdk::Normalization::component})},
          {"harmonics of degree 0", spec(sdk::SphericalHarmonicsConfig{0, true, sdk::Normalization::norm})},
          {"solid harmonics", spec(sdk::SphericalHarmonicsConfig{4, false, sdk::Normalization::integral})},
          {"basis", spec(basis(sdk::DistanceTransform::none, true))},
          {"basis, agnesi", spec(basis(sdk::DistanceTransform::agnesi, true))},
          {"basis, soft, no cutoff", spec(basis(sdk::DistanceTransform::soft, false))},
          {"net", spec(mlp)},
          {"linear", spec(sdk::IrrepsLinearConfig{irreps("7x0e+3x1o+1x2e"), irreps("2x0e+5x1o+1x0o"), true, 0.3})},
          {"linear without paths", spec(sdk::IrrepsLinearConfig{irreps("3x0e"), irreps("2x1o"), false, 1})},
          {"species", spec(sdk::SpeciesLinearConfig{irreps("7x0e+3x1o"), irreps("2x0e+5x1o"), 4})},
          {"convolution", spec(conv())},
          {"contraction", spec(contraction(2, 3, 0))},
          {"contraction of another basis", spec(contraction(1, 2, 3))}};
}

plugin::LoadedPlugin& cpu_ref() {
  static const auto plugin = test::real_plugin(FASTPATH_PLUGIN_DIRECTORY, "cpu_ref");
  return *plugin;
}

/// A kernel that lies, its device and its reference.
struct Subject {
  Subject(const OpSpec& op, Liar& liar, DType dtype = DType::float64)
      : module(ops::make_op_module(op)), device(cpu_ref().open(*cpu_ref().find_device(Device::cpu())), liar) {
    kernel = device.create_kernel(module->op(), dtype, kPassesForces);  // as a model asks
  }
  std::unique_ptr<FastPathModule> module;
  test::LyingDevice device;
  std::unique_ptr<plugin::Kernel> kernel;
};

/// What is wrong with a lie about an op, by all shapes of the gate, in both passes.
std::optional<Finding> find(const OpSpec& op, Liar& liar, DType dtype = DType::float64) {
  Subject subject(op, liar, dtype);
  for (const TrialShape& shape : gate_shapes(op)) {
    OpTrial trial(*subject.module, dtype, shape, 7);
    EXPECT_TRUE(trial.bind(*subject.kernel, subject.device).ok());
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      RunResult result = trial.run(*subject.kernel, subject.device, pass);
      if (result.finding) return result.finding;
    }
  }
  return std::nullopt;
}

TEST(OpTrial, KernelsOfCpuRefAgreeInEveryShapeAndRequest) {
  Liar honest;
  for (const auto& [name, op] : configurations()) {
    for (const DType dtype : {DType::float64, DType::float32}) {
      Subject subject(op, honest, dtype);
      for (const TrialShape& shape : standard_shapes(op)) {
        for (const std::uint64_t seed : {1u, 2u, 3u, 4u, 5u, 6u}) {
          OpTrial trial(*subject.module, dtype, shape, seed);
          ASSERT_TRUE(trial.bind(*subject.kernel, subject.device).ok());
          Request few = inputs_only(trial.signature());
          few.optional_outputs = false;
          for (const Request& request : {Request{}, few, Request{.threads = 3, .with_graph = false}}) {
            for (const Pass pass : {Pass::forward, Pass::backward}) {
              const RunResult result = trial.run(*subject.kernel, subject.device, pass, request);
              EXPECT_FALSE(result.finding) << name << ": " << result.finding->text;
            }
          }
        }
      }
    }
  }
}

TEST(OpTrial, TheReferenceInFloat32IsMeasuredAgainstFloat64) {
  Liar honest;
  const OpSpec op = spec(conv());
  Subject subject(op, honest, DType::float32);
  OpTrial trial(*subject.module, DType::float32, {}, 1);
  ASSERT_TRUE(trial.bind(*subject.kernel, subject.device).ok());
  const RunResult result = trial.run(*subject.kernel, subject.device, Pass::backward);
  ASSERT_EQ(result.tensors.size(), 3u);
  for (const TensorResult& tensor : result.tensors) {
    EXPECT_GT(tensor.reference_error, 0) << tensor.tensor;
    EXPECT_LT(tensor.reference_error, 1e-6) << tensor.tensor;
    EXPECT_GE(tensor.tolerance, 1e-6) << tensor.tensor;
  }
  EXPECT_EQ(result.tensors[0].tensor, "gradient of input 'x'");
}

TEST(OpTrial, EveryLieIsFoundAndNamed) {
  struct Case {
    Lie lie;
    Fault fault;
    Pass pass;
    const char* text;
  };
  const OpSpec op = spec(sdk::IrrepsLinearConfig{irreps("7x0e+3x1o"), irreps("2x0e+5x1o"), true, 0.3});
  for (const Case& c :
       {Case{Lie::wrong_in_forward, Fault::wrong_value, Pass::forward, "output 'y' differs"},
        Case{Lie::wrong_in_backward, Fault::wrong_value, Pass::backward, "gradient of input 'x' differs"},
        Case{Lie::wrong_parameter_gradient, Fault::wrong_value, Pass::backward,
             "gradient of parameter 'weight' differs"},
        Case{Lie::slightly_wrong, Fault::wrong_value, Pass::forward, "at most 1e-14 in float64"},
        Case{Lie::not_a_number, Fault::not_finite, Pass::forward, "output 'y' holds values that are not finite"},
        Case{Lie::last_not_written, Fault::not_written, Pass::forward, "has 1 of 1139 elements that were not written"},
        Case{Lie::modifies_an_input, Fault::input_modified, Pass::forward, "input 'x' was written to"},
        Case{Lie::modifies_a_parameter, Fault::input_modified, Pass::forward, "parameter 'weight' was written to"},
        Case{Lie::writes_behind, Fault::wrote_outside, Pass::forward, "after its last element"}}) {
    Liar liar{.lie = c.lie};
    const std::optional<Finding> finding = find(op, liar);
    ASSERT_TRUE(finding) << c.text;
    EXPECT_EQ(to_string(finding->fault), to_string(c.fault)) << finding->text;
    EXPECT_EQ(finding->pass, c.pass) << finding->text;
    EXPECT_THAT(finding->text, testing::HasSubstr(c.text));
  }
}

TEST(OpTrial, WhatIsWrongOnlyForDegree3OrInFloat32IsFoundThereAndNowhereElse) {
  Liar degree{.lie = Lie::wrong_for_degree_3}, single{.lie = Lie::wrong_in_float32};
  EXPECT_FALSE(find(spec(sdk::SphericalHarmonicsConfig{2, true, sdk::Normalization::component}), degree));
  EXPECT_TRUE(find(spec(sdk::SphericalHarmonicsConfig{3, true, sdk::Normalization::component}), degree));
  EXPECT_TRUE(find(spec(conv()), degree));
  EXPECT_FALSE(find(spec(conv()), single, DType::float64));
  EXPECT_TRUE(find(spec(conv()), single, DType::float32));
}

TEST(OpTrial, AFailureOfTheKernelCarriesItsStatus) {
  Liar liar{.lie = Lie::fails, .status = FP_E_BUSY, .failing_pass = Pass::backward};
  const std::optional<Finding> finding = find(spec(conv()), liar);
  ASSERT_TRUE(finding);
  EXPECT_EQ(finding->fault, Fault::failed);
  EXPECT_EQ(finding->status.status, FP_E_BUSY);
  EXPECT_THAT(finding->text, testing::HasSubstr("backward: failed: as told"));
}

TEST(OpTrial, APromiseLoosensTheToleranceUpToALimit) {
  EXPECT_EQ(tolerance(DType::float64, 0, 0, 100), 1e-14);
  EXPECT_EQ(tolerance(DType::float64, 0, 0, 1e5), 5e-14);
  EXPECT_EQ(tolerance(DType::float64, 3e-13, 0, 1e5), 3e-13);
  EXPECT_EQ(tolerance(DType::float64, 1e-3, 0, 1), kMaxPromise64);
  EXPECT_EQ(tolerance(DType::float32, 0, 1e-7, 1), 1e-6);
  EXPECT_EQ(tolerance(DType::float32, 0.5, 1e-7, 1), kMaxPromise32);
  EXPECT_EQ(tolerance(DType::float32, 0, 2e-6, 1), 2e-6 * kReferenceErrors);
  Liar liar{.lie = Lie::slightly_wrong, .tolerance = 0.1};
  EXPECT_TRUE(find(spec(conv()), liar));
}

TEST(OpTrial, OpsWithoutASchemaAndShapesThatAreNoneAreRefused) {
  EXPECT_THROW((void)ops::make_op_module({"org.example.op", 1, {}}), Error);
  EXPECT_THROW((void)ops::make_op_module({"radial_mlp", 2, {}}), Error);
  EXPECT_THROW((void)ops::make_op_module({"radial_mlp", 1, {}}), Error);
  OpSpec more = spec(sdk::SphericalHarmonicsConfig{2, true, sdk::Normalization::component});
  more.config["surprise"] = std::string("attribute");
  EXPECT_THROW((void)ops::make_op_module(more), Error);
  const auto module = ops::make_op_module(spec(conv()));
  TrialShape shape;
  shape.n_receivers = shape.n_nodes + 1;
  EXPECT_THROW(OpTrial(*module, DType::float64, shape, 1), Error);
}

TEST(OpTrial, TheSameSeedGivesTheSameProblem) {
  const auto module = ops::make_op_module(spec(conv()));
  OpTrial a(*module, DType::float64, {}, 5), b(*module, DType::float64, {}, 5), c(*module, DType::float64, {}, 6);
  const auto first = [](OpTrial& trial) { return trial.reference(Pass::forward)[0].data<double>()[0]; };
  EXPECT_EQ(first(a), first(b));
  EXPECT_NE(first(a), first(c));
}

}  // namespace
}  // namespace fastpath::verify
