// Replicas of a model in several threads share what is known of kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "support/gates.hpp"

namespace fastpath {
namespace {

using test::fake_device;
using test::Gate;
using test::Liar;
using test::Lie;

class Replicas : public Gate {
 protected:
  Replicas() {
    EvaluateOptions o;
    o.use_fast = UseFast::never;
    energy_ = model->replica()->evaluate(structure, o).energy;
  }
  EvaluateOptions options(Context& context, Device device = Device::cpu()) const {
    EvaluateOptions result;
    result.use_fast = UseFast::always;
    result.context = &context;
    result.device = device;
    return result;
  }
  /// What replicas give that are evaluated at the same time, each in a thread of its own; undefined forces where one
  /// threw.
  std::vector<EvaluationResult> at_once(EvaluateOptions options) {
    std::vector<EvaluationResult> results(3);
    std::vector<std::jthread> threads;
    for (EvaluationResult& result : results) {
      threads.emplace_back([this, &options, &result] {
        try {
          result = model->replica()->evaluate(structure, options);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::device_lost) << error.what();
          ++errors;
        }
      });
    }
    threads.clear();
    return results;
  }
  void expect_energy(const EvaluationResult& result, double relative = 1e-12) const {
    EXPECT_NEAR(result.energy, energy_, relative * std::abs(energy_));
  }
  std::shared_ptr<Model> model = Model::load(test::kMaceA + "model");
  Structure structure = read_extxyz(test::kMaceA + "molecule.xyz").front();
  std::atomic<int> errors{0};

 private:
  double energy_ = 0;  // of the reference
};

TEST_F(Replicas, ShareOneGateAndTheParametersOfEachDtype) {
  Context ctx({.registry = {.search_paths = {FASTPATH_PLUGIN_DIRECTORY}, .default_paths = false}, .threads = 3});
  for (const DType dtype : {DType::float64, DType::float32}) {
    EvaluateOptions o = options(ctx);
    o.dtype = dtype;
    o.parameter_gradients = true;
    for (const EvaluationResult& result : at_once(o)) {
      EXPECT_TRUE(result.selection);
      expect_energy(result, dtype == DType::float64 ? 1e-12 : 1e-5);
    }
  }
  EXPECT_EQ(errors, 0);
}

TEST_F(Replicas, AKernelThatFailsInAllOfThemIsReportedOnce) {
  Liar liar{.lie = Lie::fails, .status = FP_E_OUT_OF_MEMORY, .only_op = "spherical_harmonics", .from_run = 1 << 30};
  const auto ctx = context(liar);
  ASSERT_TRUE(model->evaluate(structure, options(*ctx)).selection);
  liar.from_run = 0;
  for (int round = 0; round < 2; ++round) {
    for (const EvaluationResult& result : at_once(options(*ctx))) expect_energy(result);
  }
  EXPECT_EQ(errors, 0);
  EXPECT_EQ(warnings.size(), 1u);
}

TEST_F(Replicas, AreComparedInTurnAndAWrongKernelIsTakenOutOfAll) {
  Liar liar{.lie = Lie::wrong_in_forward, .only_op = "spherical_harmonics", .from_run = 1 << 30};
  const auto ctx = context(liar, false, {.shadow = 1});
  for (const EvaluationResult& result : at_once(options(*ctx))) EXPECT_TRUE(result.selection);
  EXPECT_TRUE(warnings.empty());
  liar.from_run = 0;
  for (int round = 0; round < 2; ++round) {
    for (const EvaluationResult& result : at_once(options(*ctx))) expect_energy(result);
  }
  EXPECT_EQ(errors, 0);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].code, ReasonCode::wrong_result);
}

TEST_F(Replicas, ADeviceThatIsLostIsLostForAll) {
  Liar liar{.lie = Lie::fails, .status = FP_E_DEVICE_LOST, .only_op = "spherical_harmonics", .from_run = 1 << 30};
  const auto ctx = context(liar, false, {}, fake_device());
  const EvaluateOptions o = options(*ctx, {DeviceKind::extension, 0});
  for (const EvaluationResult& result : at_once(o)) EXPECT_TRUE(result.selection);
  liar.from_run = 0;
  (void)at_once(o);
  EXPECT_GE(errors, 1);
  errors = 0;
  for (const EvaluationResult& result : at_once(o)) {
    expect_energy(result);
    EXPECT_FALSE(result.selection);
  }
  EXPECT_EQ(errors, 0);
}

}  // namespace
}  // namespace fastpath
