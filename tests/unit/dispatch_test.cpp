// Which path runs: the rules of the host API on plugins made in the test.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <thread>

#include "dispatch/module_state.hpp"
#include "dispatch/parts.hpp"
#include "fastpath/error.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/lock.hpp"
#include "fastpath/measurement.hpp"
#include "fastpath/model.hpp"
#include "support/fake_kernels.hpp"

namespace fastpath {
namespace {

using test::Behaviour;
using test::Dispatch;
using test::Scale;
using test::TwoFused;

TEST_F(Dispatch, NeverUsesTheReferenceAndAsksNobody) {
  add("fake");
  const Selection selection = pick(UseFast::never);
  EXPECT_FALSE(selection);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(selection.decisions[0].choice, "reference");
  EXPECT_EQ(selection.decisions[0].reason.code, ReasonCode::forced_reference);
  EXPECT_TRUE(selection.decisions[0].candidates.empty());
  EXPECT_EQ(run(), 3.0);
}

TEST_F(Dispatch, AlwaysUsesAUsableKernel) {
  add("fake");
  const Selection selection = pick(UseFast::always);
  EXPECT_TRUE(selection);
  EXPECT_TRUE(module.fast_active());
  EXPECT_EQ(selection.decisions[0].choice, "fake");
  EXPECT_EQ(selection.decisions[0].reason.code, ReasonCode::forced_fast);
  EXPECT_EQ(selection.decisions[0].candidates[0].verdict, Candidate::Verdict::chosen);
  EXPECT_EQ(run(), 6.0);
  EXPECT_EQ(module.references, 0);
}

TEST_F(Dispatch, AlwaysWithoutAnyPluginGivesTheReferenceAndSaysSo) {
  const Selection selection = pick(UseFast::always);
  EXPECT_FALSE(selection);
  EXPECT_EQ(selection.decisions[0].reason.code, ReasonCode::no_kernel);
  EXPECT_EQ(run(), 3.0);
}

TEST_F(Dispatch, EveryBlockerOfEveryPluginIsKept) {
  Behaviour& a = add("a");
  a.support.blocked(ReasonCode::degree, "l_max 9, at most 8").blocked(ReasonCode::dtype, "float64, only float32");
  add("b").support.blocked(ReasonCode::pass, "no backward");
  const Selection selection = pick(UseFast::always);
  ASSERT_EQ(selection.decisions[0].candidates.size(), 2u);
  EXPECT_EQ(selection.decisions[0].candidates[0].reasons.size(), 2u);
  EXPECT_EQ(selection.decisions[0].candidates[1].reasons[0].code, ReasonCode::pass);
  EXPECT_EQ(selection.decisions[0].reason.code, ReasonCode::no_kernel);
  const Support support = module.fast_supported(Device::cpu(), DType::float64, kPassesForces, &context());
  EXPECT_FALSE(support);
  EXPECT_EQ(support.reasons().size(), 3u);
}

TEST_F(Dispatch, AutomaticWithoutAPolicyBehavesAsAlways) {
  add("fake");
  EXPECT_TRUE(pick(UseFast::automatic, nullptr));
  EXPECT_EQ(run(), 6.0);
}

TEST_F(Dispatch, AutomaticOnTheCpuIsUnmeasuredAndKeepsTheReference) {
  add("fake");
  const AutoPolicy policy;
  const Selection selection = pick(UseFast::automatic, &policy);
  EXPECT_FALSE(selection);
  EXPECT_EQ(selection.decisions[0].reason.code, ReasonCode::unmeasured);
  EXPECT_EQ(selection.decisions[0].candidates[0].verdict, Candidate::Verdict::not_chosen);
  EXPECT_EQ(run(), 3.0);
}

TEST_F(Dispatch, AutomaticOnADeviceFollowsTheThreshold) {
  Behaviour& fake = add("fake");
  fake.device.device = {DeviceKind::cuda, 0};
  fake.device.name = "NVIDIA H200";
  AutoPolicy policy;
  policy.min_edges = {{"h200", 50}};
  policy.min_edges_float64 = {{"H100", 1}, {"nvidia", 200}, {"H200", 1}};
  const Selection below = pick(UseFast::automatic, &policy, 199, DType::float64, {DeviceKind::cuda, 0});
  EXPECT_FALSE(below);
  EXPECT_EQ(below.decisions[0].reason.code, ReasonCode::policy_reference);
  const Selection at = pick(UseFast::automatic, &policy, 200, DType::float64, {DeviceKind::cuda, 0});
  EXPECT_TRUE(at);
  EXPECT_EQ(at.decisions[0].reason.code, ReasonCode::policy_fast);
  EXPECT_TRUE(pick(UseFast::automatic, &policy, 50, DType::float32, {DeviceKind::cuda, 0}));
  EXPECT_FALSE(pick(UseFast::automatic, &policy, 49, DType::float32, {DeviceKind::cuda, 0}));
}

TEST_F(Dispatch, SelectWritesEveryModuleAndDeactivateClears) {
  add("fake");
  Scale other;
  const std::vector<NamedFastModule> both = {{"scale", &module}, {"other", &other}};
  EXPECT_TRUE(select(both, UseFast::always, nullptr, Device::cpu(), DType::float64, 1, kPassesForces, &context()));
  EXPECT_TRUE(other.fast_active());
  EXPECT_FALSE(select(both, UseFast::never, nullptr, Device::cpu(), DType::float64, 1, kPassesForces, &context()));
  EXPECT_FALSE(module.fast_active());
  EXPECT_FALSE(other.fast_active());
  (void)select(both, UseFast::always, nullptr, Device::cpu(), DType::float64, 1, kPassesForces, &context());
  Module root;
  root.register_child("a", std::shared_ptr<Module>(&module, [](Module*) {}));
  deactivate(root);
  EXPECT_FALSE(module.fast_active());
  EXPECT_TRUE(other.fast_active());
}

TEST_F(Dispatch, PreferenceThenRankThenSearchOrderDecideBetweenKernels) {
  add("first");
  add("second").traits.rank = 5;
  add("third").traits.rank = 5;
  EXPECT_EQ(pick(UseFast::always).decisions[0].choice, "second");
  AutoPolicy policy;
  policy.preference = {"th*", "first"};
  EXPECT_EQ(pick(UseFast::always, &policy).decisions[0].choice, "third");
}

TEST_F(Dispatch, SizeWindowsAreRespected) {
  Behaviour& fake = add("fake");
  fake.traits.min_edges = 10;
  fake.traits.max_edges = 20;
  EXPECT_FALSE(pick(UseFast::always, nullptr, 9));
  const Selection above = pick(UseFast::always, nullptr, 21);
  EXPECT_FALSE(above);
  EXPECT_EQ(above.decisions[0].candidates[0].reasons[0].code, ReasonCode::size);
  EXPECT_TRUE(pick(UseFast::always, nullptr, 20));
}

TEST_F(Dispatch, AKernelThatCannotBeCreatedIsPassedOver) {
  add("broken").fail_create = true;
  add("good");
  const Selection selection = pick(UseFast::always);
  EXPECT_EQ(selection.decisions[0].choice, "good");
  EXPECT_EQ(selection.decisions[0].candidates[0].verdict, Candidate::Verdict::refused);
  EXPECT_EQ(selection.decisions[0].candidates[0].reasons[0].code, ReasonCode::create_failed);
}

TEST_F(Dispatch, OffTheCpuOnePluginOwnsTheMemoryOfAnEvaluation) {
  Behaviour& a = add("a");
  Behaviour& b = add("b");
  a.device.device = b.device.device = {DeviceKind::cuda, 0};
  Scale other;
  // `a` takes only the first module; `b` would take the second, but its memory is another.
  b.traits.rank = -1;
  const std::vector<NamedFastModule> first = {{"scale", &module}};
  EXPECT_TRUE(
      select(first, UseFast::always, nullptr, {DeviceKind::cuda, 0}, DType::float64, 1, kPassesForces, &context()));
  a.support.blocked(ReasonCode::op, "not this one");
  const Selection both = select({{"scale", &module}, {"other", &other}}, UseFast::always, nullptr,
                                {DeviceKind::cuda, 0}, DType::float64, 1, kPassesForces, &context());
  EXPECT_EQ(both.decisions[0].choice, "a");
  EXPECT_EQ(both.decisions[1].choice, "reference");
  EXPECT_EQ(both.decisions[1].candidates[1].verdict, Candidate::Verdict::refused);
  EXPECT_EQ(both.decisions[1].candidates[1].reasons[0].code, ReasonCode::device);
}

TEST_F(Dispatch, ARecoverableFailureFallsBackAndTheSecondOneTakesTheKernelOut) {
  Behaviour& fake = add("fake");
  fake.run_status = FP_E_OUT_OF_MEMORY;
  for (int time = 0; time < 2; ++time) {
    EXPECT_TRUE(pick(UseFast::always));
    EXPECT_EQ(run(), 3.0);
    ASSERT_TRUE(module.last_failure().has_value());
    EXPECT_EQ(module.last_failure()->code, ReasonCode::fallback);
    EXPECT_FALSE(module.fast_active());
  }
  const Selection third = pick(UseFast::always);
  EXPECT_FALSE(third);
  EXPECT_EQ(third.decisions[0].candidates[0].reasons[0].code, ReasonCode::run_failed);
  EXPECT_FALSE(module.fast_supported(Device::cpu(), DType::float64, kPassesForces, &context()));
}

TEST_F(Dispatch, OtherFailuresAreErrorsWithTheirCode) {
  Behaviour& fake = add("fake");
  const auto code_of = [&](std::int32_t status) {
    renew();  // a lost device stays lost, and a kernel that failed twice is out
    fake.run_status = status;
    (void)pick(UseFast::always);
    try {
      (void)run();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code_of(FP_E_DEVICE_LOST), ErrorCode::device_lost);
  EXPECT_EQ(code_of(FP_E_NUMERICS), ErrorCode::numerics);
  EXPECT_EQ(code_of(FP_E_INVALID_ARGUMENT), ErrorCode::kernel_failed);
}

TEST_F(Dispatch, ParametersAreBoundOncePerVersion) {
  Behaviour& fake = add("fake");
  (void)pick(UseFast::always);
  EXPECT_EQ(run(), 6.0);
  EXPECT_EQ(run(), 6.0);
  EXPECT_EQ(fake.binds, 1);
  module.parameter("scale").data<double>()[0] = 5.0;
  module.touch();
  (void)pick(UseFast::always);
  EXPECT_EQ(run(), 10.0);
}

TEST_F(Dispatch, PluginsAreAskedOncePerQuestion) {
  Behaviour& fake = add("fake");
  (void)pick(UseFast::always);
  (void)pick(UseFast::always);
  EXPECT_EQ(fake.queries, 1);
  EXPECT_EQ(fake.creates, 1);
  (void)pick(UseFast::always, nullptr, 100, DType::float32);
  EXPECT_EQ(fake.queries, 2);
}

TEST_F(Dispatch, ChildrenOfAFusedParentAreCoveredByIt) {
  add("fake");
  struct Parent : Scale {
    Parent() { register_child("child", std::make_shared<Scale>()); }
  };
  Module root;
  root.register_child("parent", std::make_shared<Parent>());
  const auto modules = fast_modules(root);
  ASSERT_EQ(modules.size(), 2u);
  EXPECT_EQ(modules[1].name, "parent.child");
  const Selection selection =
      select(modules, UseFast::always, nullptr, Device::cpu(), DType::float64, 1, kPassesForces, &context());
  EXPECT_EQ(selection.decisions[0].choice, "fake");
  EXPECT_EQ(selection.decisions[1].choice, "reference");
  EXPECT_EQ(selection.decisions[1].reason.code, ReasonCode::covered_by_parent);
  EXPECT_FALSE(modules[1].module->fast_active());
}

TEST_F(Dispatch, WorkThatFusedModulesShareIsCoveredWhenAllOfThemRunFast) {
  Behaviour& fused = add("fused");
  fused.only = "org.example.fused";
  TwoFused two;
  Selection selection =
      select(two.modules, UseFast::always, nullptr, Device::cpu(), DType::float64, 1, kPassesForces, &context());
  ASSERT_EQ(selection.decisions.size(), 5u);
  for (const std::size_t i : {0u, 2u, 4u}) {
    EXPECT_EQ(selection.decisions[i].reason.code, ReasonCode::covered_by_parent) << selection.decisions[i].module;
  }
  EXPECT_EQ(selection.decisions[0].reason.text, "its work is done by first, second");
}

TEST_F(Dispatch, AFusedModuleWithoutAKernelIsDecidedInParts) {
  Behaviour& parts = add("parts");
  parts.only = "org.example.scale";
  TwoFused two;
  const Selection selection =
      select(two.modules, UseFast::always, nullptr, Device::cpu(), DType::float64, 1, kPassesForces, &context());
  for (const std::size_t i : {1u, 3u}) {
    EXPECT_EQ(selection.decisions[i].choice, "reference");
    EXPECT_EQ(selection.decisions[i].reason.code, ReasonCode::in_parts);
  }
  for (const std::size_t i : {0u, 2u, 4u}) EXPECT_EQ(selection.decisions[i].choice, "parts");
}

TEST_F(Dispatch, AFusedKernelGivesWayToAPreferredPluginWithKernelsForTheParts) {
  Behaviour& fused = add("fused");
  fused.only = "org.example.fused";
  Behaviour& parts = add("parts");
  parts.only = "org.example.scale";
  TwoFused two;
  AutoPolicy policy;
  policy.preference = {"parts"};
  const Selection preferred =
      select(two.modules, UseFast::always, &policy, Device::cpu(), DType::float64, 1, kPassesForces, &context());
  EXPECT_EQ(preferred.decisions[0].choice, "parts");
  EXPECT_EQ(preferred.decisions[1].reason.code, ReasonCode::in_parts);
  EXPECT_EQ(preferred.decisions[1].candidates[0].reasons[0].code, ReasonCode::not_chosen);
  policy.preference = {"fused"};
  const Selection other =
      select(two.modules, UseFast::always, &policy, Device::cpu(), DType::float64, 1, kPassesForces, &context());
  EXPECT_EQ(other.decisions[1].choice, "fused");
}

TEST_F(Dispatch, AFusedModuleSeesChangesOfItsParts) {
  TwoFused two;
  FastPathModule& fused = *two.modules[1].module;
  fused.state().parts = {two.modules[2].module};
  const std::uint64_t before = fused.state().version();
  two.modules[2].module->touch();
  EXPECT_GT(fused.state().version(), before);
}

TEST_F(Dispatch, SharedModulesAreListedOnceAndCapableOnesLazily) {
  Behaviour& fake = add("fake");
  Module root;
  const auto shared = std::make_shared<Scale>();
  root.register_child("a", shared);
  root.register_child("b", shared);
  root.register_child("c", std::make_shared<Scale>());
  EXPECT_EQ(fast_modules(root).size(), 2u);
  const FastCapableRange capable = iter_fast_capable(root, Device::cpu(), DType::float64, kPassesForces, &context());
  auto it = capable.begin();
  EXPECT_EQ(it->name, "a");
  EXPECT_EQ(fake.queries, 1);
  ++it;
  EXPECT_EQ(it->name, "c");
  EXPECT_EQ(fake.queries, 2);
  ++it;
  EXPECT_TRUE(it == capable.end());
}

TEST_F(Dispatch, TensorsOnTwoDevicesAreAnErrorNamingBoth) {
  const Tensor x = Tensor::from<double>({1}, {1.0});
  const Tensor y = Tensor::wrap(nullptr, {1}, {}, DType::float64, {DeviceKind::cuda, 1}, nullptr);
  const Tensor inputs[] = {x}, outputs[] = {y};
  OpCall call;
  call.inputs = inputs;
  call.outputs = outputs;
  try {
    module.run(call);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("cuda:1"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("cpu"), std::string::npos);
  }
}

TEST_F(Dispatch, Float32WithAKernelWarnsOncePerProcess) {
  add("fake");
  reset_float32_warning();
  int warnings = 0;
  set_warning_handler([&](const FastPathPrecisionWarning&) { ++warnings; });
  (void)pick(UseFast::never, nullptr, 1, DType::float32);
  (void)pick(UseFast::always, nullptr, 1, DType::float64);
  EXPECT_EQ(warnings, 0);
  (void)pick(UseFast::always, nullptr, 1, DType::float32);
  (void)pick(UseFast::always, nullptr, 1, DType::float32);
  EXPECT_EQ(warnings, 1);
}

}  // namespace
}  // namespace fastpath
