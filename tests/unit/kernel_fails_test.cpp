// Results are those of the reference where a kernel fails in a model, or is found wrong while it runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "fastpath/plugin.h"
#include "support/gates.hpp"

namespace fastpath {
namespace {

using test::cpu_ref;
using test::Failing;
using test::fake_device;
using test::Liar;
using test::Lie;
using testing::HasSubstr;

struct FailingCase {
  const char* name;
  Lie lie;
  Pass pass;
  const char* op;
  bool on_device;
  std::int32_t status = FP_E_OUT_OF_MEMORY;
};

class FailingPoint : public Failing, public testing::WithParamInterface<FailingCase> {};

TEST_P(FailingPoint, ResultsAreThoseOfTheReferenceAndTheKernelIsOutAfterItsSecondFailure) {
  const FailingCase& c = GetParam();
  Liar liar{.lie = c.lie, .status = c.status, .failing_pass = c.pass, .only_op = c.op};
  const Device device = c.on_device ? Device{DeviceKind::extension, 0} : Device::cpu();
  // The kernel is honest while it is looked at.
  liar.from_run = 1 << 30;
  const auto ctx = context(liar, false, {}, c.on_device ? fake_device() : cpu_ref());
  ASSERT_TRUE(model->evaluate(structure(), options(*ctx, device)).selection);
  liar.from_run = 0;
  for (int time = 0; time < 2; ++time) {
    const EvaluationResult result = model->evaluate(structure(), options(*ctx, device));
    expect_reference(result);
    int failed = 0;
    for (const Decision& decision : result.selection.decisions) {
      if (c.on_device && decision.op == "species_linear") continue;
      EXPECT_EQ(decision.choice, "reference");
      EXPECT_EQ(decision.reason.code, ReasonCode::fallback) << decision.module;
      failed += decision.reason.text.find("failed") != std::string::npos &&
                decision.reason.text.find("repeated") == std::string::npos;
    }
    EXPECT_EQ(failed, 1);
    EXPECT_EQ(warnings.size(), 1u);
  }
  liar.from_run = 1 << 30;
  const EvaluationResult after = model->evaluate(structure(), options(*ctx, device));
  int out = 0;
  for (const Decision& decision : after.selection.decisions) {
    for (const Candidate& candidate : decision.candidates) {
      for (const Reason& reason : candidate.reasons) out += reason.code == ReasonCode::run_failed;
    }
  }
  EXPECT_GE(out, 1);
  EXPECT_TRUE(after.selection);  // the others still run
  EXPECT_NEAR(after.energy, reference().energy, 1e-12 * std::abs(reference().energy));
}

INSTANTIATE_TEST_SUITE_P(
    Points, FailingPoint,
    testing::Values(
        FailingCase{"FirstOpForward", Lie::fails, Pass::forward, "spherical_harmonics", false},
        FailingCase{"MiddleForward", Lie::fails, Pass::forward, "conv_tensor_product", false},
        FailingCase{"MiddleBackward", Lie::fails, Pass::backward, "conv_tensor_product", false, FP_E_BUSY},
        FailingCase{"LastOpOfBackward", Lie::fails, Pass::backward, "spherical_harmonics", false, FP_E_UNSUPPORTED},
        FailingCase{"HalfWritten", Lie::zeros_when_busy, Pass::forward, "symmetric_contraction", false, FP_E_BUSY},
        FailingCase{"HalfWrittenGradients", Lie::zeros_when_busy, Pass::backward, "radial_mlp", false, FP_E_BUSY},
        FailingCase{"ForwardOnADevice", Lie::fails, Pass::forward, "conv_tensor_product", true},
        FailingCase{"BackwardOnADevice", Lie::fails, Pass::backward, "conv_tensor_product", true},
        FailingCase{"LastOnADevice", Lie::fails, Pass::backward, "spherical_harmonics", true, FP_E_BUSY}),
    [](const auto& point) { return std::string(point.param.name); });

TEST_F(Failing, AKernelThatFailsInItsSecondCallOnlyIsCaughtThere) {
  Liar liar{.lie = Lie::fails, .status = FP_E_BUSY, .only_op = "conv_tensor_product", .from_run = 1 << 30};
  const auto ctx = context(liar);
  ASSERT_TRUE(model->evaluate(structure(), options(*ctx)).selection);
  liar.from_run =
      liar.runs + 1;  // the first convolution of the next evaluation is fine, that of the second layer fails
  expect_reference(model->evaluate(structure(), options(*ctx)));
}

TEST_F(Failing, StrictModeMakesItAnError) {
  Liar liar{.lie = Lie::fails, .status = FP_E_BUSY, .only_op = "radial_mlp", .from_run = 1 << 30};
  const auto ctx = context(liar);
  EvaluateOptions strict = options(*ctx);
  strict.require_fast = true;
  ASSERT_TRUE(model->evaluate(structure(), strict).selection);
  liar.from_run = 0;
  try {
    (void)model->evaluate(structure(), strict);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::strict_violation);
    EXPECT_THAT(error.what(), HasSubstr("conv_tp_weights"));
  }
}

TEST_F(Failing, ErrorsWithoutAFallbackAreErrorsAndCountAsFailures) {
  for (const auto& [status, code] :
       {std::pair{FP_E_NUMERICS, ErrorCode::numerics}, std::pair{FP_E_INTERNAL, ErrorCode::kernel_failed},
        std::pair{FP_E_INVALID_ARGUMENT, ErrorCode::kernel_failed}}) {
    Liar liar{.lie = Lie::fails, .status = status, .only_op = "radial_mlp", .from_run = 1 << 30};
    const auto ctx = context(liar);
    ASSERT_TRUE(model->evaluate(structure(), options(*ctx)).selection);
    liar.from_run = 0;
    for (int time = 0; time < 2; ++time) {
      try {
        (void)model->evaluate(structure(), options(*ctx));
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), code);
      }
    }
    liar.from_run = 1 << 30;
    const EvaluationResult after = model->evaluate(structure(), options(*ctx));
    EXPECT_NEAR(after.energy, reference().energy, 1e-12 * std::abs(reference().energy));
  }
}

TEST_F(Failing, ALostDeviceIsAnErrorAndStaysLost) {
  Liar liar{.lie = Lie::fails, .status = FP_E_DEVICE_LOST, .only_op = "radial_mlp", .from_run = 1 << 30};
  const auto ctx = context(liar, false, {}, fake_device());
  const Device device{DeviceKind::extension, 0};
  ASSERT_TRUE(model->evaluate(structure(), options(*ctx, device)).selection);
  liar.from_run = 0;
  try {
    (void)model->evaluate(structure(), options(*ctx, device));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device_lost);
  }
  const int runs = liar.runs;
  const EvaluationResult after = model->evaluate(structure(), options(*ctx, device));
  expect_reference(after);
  EXPECT_EQ(after.selection.decisions[0].candidates[0].reasons[0].code, ReasonCode::device_lost);
  EXPECT_EQ(liar.runs, runs);
}

TEST_F(Failing, AChildOfAForkRunsTheReferenceAndSaysWhy) {
  for (const bool on_device : {false, true}) {
    Context ctx({.registry = {.search_paths = {on_device ? FASTPATH_TEST_PLUGINS : FASTPATH_PLUGIN_DIRECTORY},
                              .default_paths = false,
                              .enable = {on_device ? "fake_device" : "cpu_ref"}}});
    EvaluateOptions o = options(ctx, on_device ? Device{DeviceKind::extension, 0} : Device::cpu());
    ASSERT_TRUE(model->evaluate(structure(), o).selection);
    (void)reference();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int wrong = 1;
      try {
        const EvaluationResult result = model->evaluate(structure(), o);
        bool all = true;
        for (const Decision& decision : result.selection.decisions) {
          if ((on_device && decision.op == "species_linear") || decision.op == "message_step") continue;
          all = all && !decision.fast() && decision.candidates.at(0).reasons.at(0).code == ReasonCode::forked;
        }
        wrong = all && result.energy == reference().energy ? 0 : 2;
        model.reset();  // releases kernels that are the parent's
      } catch (...) {
        wrong = 3;
      }
      _exit(wrong);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_TRUE(model->evaluate(structure(), o).selection);
  }
}

TEST_F(Failing, EveryNthEvaluationIsComparedAndAWrongKernelIsTakenOut) {
  for (const Lie lie : {Lie::wrong_in_backward, Lie::not_a_number, Lie::wrong_in_forward}) {
    warnings.clear();
    Liar liar{.lie = lie, .only_op = "conv_tensor_product", .from_run = 1 << 30};
    const auto ctx = context(liar, false, {.shadow = 3});
    for (int time = 0; time < 3; ++time) ASSERT_TRUE(model->evaluate(structure(), options(*ctx)).selection);
    EXPECT_TRUE(warnings.empty());
    liar.from_run = 0;
    if (lie != Lie::not_a_number) {  // which a result that is not finite shows anyway
      EXPECT_TRUE(model->evaluate(structure(), options(*ctx)).selection);
      EXPECT_TRUE(model->evaluate(structure(), options(*ctx)).selection);
    } else {
      liar.from_run = 1 << 30;
      for (int time = 0; time < 2; ++time) ASSERT_TRUE(model->evaluate(structure(), options(*ctx)).selection);
      liar.from_run = 0;
    }
    const EvaluationResult result = model->evaluate(structure(), options(*ctx));
    expect_reference(result);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_EQ(warnings[0].code, ReasonCode::wrong_result);
    int found = 0;
    for (const Decision& decision : result.selection.decisions)
      found += decision.reason.code == ReasonCode::wrong_result;
    EXPECT_EQ(found, 1);
    liar.from_run = 1 << 30;
    const EvaluationResult after = model->evaluate(structure(), options(*ctx));
    for (const Decision& decision : after.selection.decisions) {
      if (decision.op != "conv_tensor_product" || decision.candidates[0].reasons.empty()) continue;
      if (decision.fast()) continue;
      EXPECT_EQ(decision.candidates[0].reasons[0].code, ReasonCode::wrong_result);
    }
    EXPECT_NEAR(after.energy, reference().energy, 1e-12 * std::abs(reference().energy));
  }
}

TEST_F(Failing, ComparisonWorksOnADeviceAndInFloat32AndFindsNothingInGoodKernels) {
  Liar honest;
  const auto on_device = context(honest, false, {.shadow = 1}, fake_device());
  const auto on_cpu = context(honest, false, {.shadow = 1});
  for (const DType dtype : {DType::float64, DType::float32}) {
    for (auto* ctx : {&on_device, &on_cpu}) {
      EvaluateOptions o = options(**ctx, ctx == &on_device ? Device{DeviceKind::extension, 0} : Device::cpu());
      o.dtype = dtype;
      EXPECT_TRUE(model->evaluate(structure(), o).selection);
    }
  }
  EXPECT_TRUE(warnings.empty()) << warnings[0].text;
}

TEST(Shadow, TheVariableIsANumberOrAnError) {
  const auto with = [](const char* value) {
    setenv("FASTPATH_SHADOW", value, 1);
    try {
      const Context context({.registry = {.default_paths = false}});
      unsetenv("FASTPATH_SHADOW");
      return std::string();
    } catch (const Error& error) {
      unsetenv("FASTPATH_SHADOW");
      return std::string(error.what());
    }
  };
  EXPECT_EQ(with(""), "");
  EXPECT_EQ(with("0"), "");
  EXPECT_EQ(with("100"), "");
  for (const char* bad : {"-1", "often", "1.5", "3 ", "99999999999999999999"}) {
    EXPECT_THAT(with(bad), HasSubstr(std::string("FASTPATH_SHADOW is '") + bad + "'"));
  }
  EXPECT_THROW(Context({.registry = {.default_paths = false}, .shadow = -1}), Error);
}

}  // namespace
}  // namespace fastpath
