// Which path runs by what was measured, by priors, locks and the environment.
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
using test::Rules;
using test::TwoFused;

TEST_F(Rules, AMeasuredWindowDecidesOnTheCpuAndTheSelectionHoldsForAllOfIt) {
  add("fake");
  store->add(crossing("fake", 500));
  const AutoPolicy policy;
  const Selection below = pick(UseFast::automatic, &policy, 100), above = pick(UseFast::automatic, &policy, 5000);
  EXPECT_EQ(below.decisions[0].choice, "reference");
  EXPECT_EQ(below.decisions[0].reason.code, ReasonCode::measured) << below.decisions[0].reason.text;
  EXPECT_EQ(below.decisions[0].reason.text, "the reference was measured to be faster than fake up to 499 edges");
  EXPECT_EQ(below.min_edges, 0);
  EXPECT_EQ(below.max_edges, 499);
  EXPECT_EQ(above.decisions[0].choice, "fake");
  EXPECT_EQ(above.decisions[0].reason.code, ReasonCode::measured);
  EXPECT_GE(above.min_edges, 500);
  EXPECT_LT(above.min_edges, 1000);
  EXPECT_GT(above.max_edges, 1'000'000);
  const int asked_before = asked;
  (void)pick(UseFast::automatic, &policy, 6000);
  EXPECT_EQ(asked, asked_before) << "the selection was kept";
}

TEST_F(Rules, AWindowThatEndsGoesBackToTheReference) {
  add("fake");
  Measurement m = crossing("fake", 500);
  for (MeasuredPoint& point : m.points) point.kernel_seconds = 0.5 * point.reference_seconds;
  m.points.back().kernel_seconds = 3 * m.points.back().reference_seconds;
  m.windows = {{50, 20'000, 0, 0}};
  store->add(m);
  EXPECT_EQ(decided(49).choice, "reference");
  EXPECT_EQ(decided(5000).choice, "fake");
  EXPECT_EQ(decided(20'001).choice, "reference");
  EXPECT_EQ(decided(20'001).reason.code, ReasonCode::measured);
}

TEST_F(Rules, BeyondWhatWasMeasuredAClosedEndSaysNothingAndAnOpenWindowGoesOn) {
  Behaviour& fake = add("fake");
  Measurement m = crossing("fake", 500);
  store->add(m);
  EXPECT_EQ(decided(10'000'000).choice, "fake");
  store->forget([](const Measurement&) { return true; });
  m.windows.clear();
  store->add(m);
  EXPECT_EQ(decided(200'000).reason.code, ReasonCode::measured);
  EXPECT_EQ(decided(200'001).reason.code, ReasonCode::unmeasured);
  EXPECT_EQ(decided(200'001).reason.text, "fake was measured up to 100000 edges only");
  fake.traits.prior_edges = 200;
  module.touch();
  EXPECT_EQ(decided(200'001).choice, "fake");
  EXPECT_EQ(decided(200'000).choice, "reference");
}

TEST_F(Rules, ANearTieGoesToTheReference) {
  add("fake");
  Measurement m = crossing("fake", 10);
  for (MeasuredPoint& point : m.points)
    point.kernel_seconds = (point.n_edges < 1000 ? 0.98 : 0.9) * point.reference_seconds;
  m.windows = {{10, 0, 0, 0}};
  store->add(m);
  EXPECT_EQ(decided(50).choice, "reference");
  EXPECT_EQ(decided(50).reason.code, ReasonCode::tie);
  EXPECT_EQ(decided(2000).choice, "fake");
}

TEST_F(Rules, WhatIsInconclusiveLeavesThePriorAndWithoutOneTheReference) {
  Behaviour& fake = add("fake");
  Measurement m = crossing("fake", 500);
  m.inconclusive = true;
  m.windows.clear();
  store->add(m);
  EXPECT_EQ(decided(5000).reason.code, ReasonCode::inconclusive);
  EXPECT_EQ(decided(5000).choice, "reference");
  fake.traits.prior_edges = 200;
  module.touch();
  EXPECT_EQ(decided(5000).reason.code, ReasonCode::prior);
  EXPECT_EQ(decided(5000).choice, "fake");
}

TEST_F(Rules, APriorOfThePluginSpeaksOnTheCpuUnlessPriorsAreOff) {
  add("fake").traits.prior_edges = 200;
  EXPECT_EQ(decided(199).choice, "reference");
  EXPECT_EQ(decided(199).reason.code, ReasonCode::prior);
  EXPECT_EQ(decided(200).choice, "fake");
  AutoPolicy policy;
  policy.use_priors = false;
  EXPECT_EQ(decided(200, UseFast::automatic, policy).reason.code, ReasonCode::unmeasured);
}

TEST_F(Rules, AMeasurementOfTheWholeModelCountsMoreThanThoseOfItsOps) {
  add("fake");
  store->add(crossing("fake", 500));
  store->add(of_model(crossing("fake", 2000), {{"scale", &module}}, cpu_info()));
  EXPECT_EQ(decided(1000).choice, "reference");
  EXPECT_NE(decided(1000).reason.text.find("use_fast true"), std::string::npos);
  EXPECT_EQ(decided(3000).choice, "fake");
  Measurement nothing = of_model(crossing("fake", 2000), {{"scale", &module}}, cpu_info());
  store->forget([&](const Measurement& m) { return m.key == nothing.key; });
  nothing.inconclusive = true;
  nothing.windows.clear();
  store->add(nothing);
  EXPECT_EQ(decided(1000).choice, "fake");
}

TEST_F(Rules, OffTheCpuThePolicysOwnEntryComesFirstThenMeasurementsOfTheModelThenPriorsThenDefaults) {
  Behaviour& fake = add("fake");
  fake.device.device = {DeviceKind::cuda, 0};
  fake.device.name = "NVIDIA H200";
  AutoPolicy policy;
  policy.default_min_edges_float64 = 100;
  const auto at = [&](std::int64_t edges) {
    return pick(UseFast::automatic, &policy, edges, DType::float64, {DeviceKind::cuda, 0}).decisions[0];
  };
  EXPECT_EQ(at(99).reason.code, ReasonCode::policy_default);
  EXPECT_EQ(at(99).choice, "reference");
  EXPECT_EQ(at(100).choice, "fake");
  policy.min_edges_float64 = {{"H200", 1000}};
  policy.thresholds_are_priors = true;
  EXPECT_EQ(at(999).choice, "reference");
  EXPECT_EQ(at(999).reason.code, ReasonCode::prior);
  EXPECT_EQ(at(1000).choice, "fake");
  Measurement op = crossing("fake", 500);
  op.key = measurement_key(module.op(), "fake", fake.device, DType::float64, kPassesForces, 1);
  store->add(op);
  EXPECT_EQ(at(999).reason.code, ReasonCode::prior) << "an op alone says nothing there";
  store->add(of_model(crossing("fake", 50), {{"scale", &module}}, fake.device));
  EXPECT_EQ(at(999).choice, "fake");
  EXPECT_EQ(at(999).reason.code, ReasonCode::measured);
  policy.thresholds_are_priors = false;
  EXPECT_EQ(at(999).choice, "reference");
  EXPECT_EQ(at(999).reason.code, ReasonCode::policy_reference);
}

TEST_F(Rules, BetweenKernelsTheFastestMeasuredOneRunsUnderTrueToo) {
  add("ranked").traits.rank = 5;
  add("steep");
  add("flat");
  const AutoPolicy policy;
  EXPECT_EQ(decided(100, UseFast::always).choice, "ranked");
  // Per call and per edge: 45 us + 10 ns, 8 us + 20 ns.
  store->add(crossing("flat", 500, 1e-8));
  store->add(crossing("steep", 100, 2e-8));
  for (const UseFast use_fast : {UseFast::always, UseFast::automatic}) {
    EXPECT_EQ(decided(2000, use_fast).choice, "steep");
    EXPECT_EQ(decided(20'000, use_fast).choice, "flat");
  }
  const Decision decision = decided(20'000, UseFast::always);
  EXPECT_EQ(decision.candidates[1].reasons[0].text, "flat comes first: it was measured to be the faster of the two");
  AutoPolicy preferring;
  preferring.preference = {"steep"};
  EXPECT_EQ(decided(20'000, UseFast::always, preferring).choice, "steep");
  deterministic = true;
  renew();
  EXPECT_EQ(decided(20'000, UseFast::always).choice, "ranked");
  EXPECT_EQ(decided(20'000).reason.code, ReasonCode::unmeasured);
}

TEST_F(Rules, OfTwoKernelsOneIsNotSlowerForAMomentInWhichTheMachineWas) {
  add("slow");
  add("quick");
  store->add(crossing("slow", 100, 2e-8));
  Measurement quick = crossing("quick", 100, 1.5e-8);
  for (MeasuredPoint& point : quick.points) {
    point.kernel_seconds *= 2;
    point.reference_seconds *= 2;
  }
  store->add(quick);
  for (const std::int64_t edges : {500, 2000, 20'000}) {
    for (const UseFast use_fast : {UseFast::always, UseFast::automatic}) {
      EXPECT_EQ(decided(edges, use_fast).choice, "quick") << edges;
    }
  }
}

TEST_F(Rules, OfTwoKernelsTheFasterOneRunsBeyondTheSizesThatItWasMeasuredFor) {
  add("slow");
  add("quick");
  Measurement quick = crossing("quick", 100, 1e-8);
  std::erase_if(quick.points, [](const MeasuredPoint& point) { return point.n_edges > 1000; });
  store->add(quick);
  store->add(crossing("slow", 100, 5e-8));
  for (const std::int64_t edges : {500, 2000, 2001, 20'000, 90'000, 1'000'000}) {
    for (const UseFast use_fast : {UseFast::always, UseFast::automatic}) {
      EXPECT_EQ(decided(edges, use_fast).choice, "quick") << edges;
    }
  }
  EXPECT_EQ(decided(20'000).candidates[0].reasons[0].text,
            "quick comes first: it was measured to be the faster of the two at 2000 edges, the nearest that both were "
            "measured for");
  EXPECT_LE(pick(UseFast::always, nullptr, 1500).max_edges, 2000);
}

TEST_F(Rules, ARecordOfAnotherBuildOrNumberOfThreadsDoesNotCountAndAStaleOneDoes) {
  add("fake");
  Measurement build = crossing("fake", 500), threads = crossing("fake", 500), stale = crossing("fake", 500);
  build.plugin_build = "another";
  threads.key.threads = 2;
  store->add(build);
  store->add(threads);
  EXPECT_EQ(decided(5000).reason.code, ReasonCode::unmeasured);
  stale.library_version = "0.0.1";
  store->add(stale);
  EXPECT_EQ(decided(5000).choice, "fake");
  EXPECT_NE(decided(5000).reason.text.find("stale: made with fastpath 0.0.1"), std::string::npos)
      << decided(5000).reason.text;
  const AutoPolicy policy;
  const auto with = [&](int n_threads) {
    return select({{"scale", &module}}, UseFast::automatic, &policy, Device::cpu(), DType::float64, 5000, kPassesForces,
                  &context(), n_threads)
        .decisions[0];
  };
  EXPECT_EQ(with(2).choice, "fake");
  EXPECT_EQ(with(3).reason.code, ReasonCode::unmeasured);
}

TEST_F(Rules, TheEnvironmentChoosesByOpUnderTrueAndAuto) {
  add("first");
  add("second");
  set("FASTPATH_OP_ORG_EXAMPLE_SCALE", "reference");
  EXPECT_EQ(decided(100, UseFast::always).choice, "reference");
  EXPECT_EQ(decided(100, UseFast::always).reason.code, ReasonCode::environment);
  set("FASTPATH_OP_ORG_EXAMPLE_SCALE", "second");
  for (const UseFast use_fast : {UseFast::always, UseFast::automatic}) {
    EXPECT_EQ(decided(100, use_fast).choice, "second");
    EXPECT_EQ(decided(100, use_fast).reason.code, ReasonCode::environment);
  }
  EXPECT_EQ(decided(100, UseFast::never).reason.code, ReasonCode::forced_reference);
  behaviours[1]->support.blocked(ReasonCode::degree, "no");
  renew();
  EXPECT_EQ(decided(100, UseFast::always).choice, "reference");
  EXPECT_NE(decided(100, UseFast::always).reason.text.find("is second"), std::string::npos);
}

TEST_F(Rules, AnOverrideThatNamesNothingThatIsThereIsAnErrorNamingWhatIs) {
  add("first");
  const auto error = [&] {
    try {
      (void)decided(100, UseFast::always);
    } catch (const Error& caught) {
      EXPECT_EQ(caught.code(), ErrorCode::invalid_argument);
      return std::string(caught.what());
    }
    return std::string("no error");
  };
  set("FASTPATH_OP_ORG_EXAMPLE_SCALE", "frist");
  EXPECT_NE(error().find("'frist'"), std::string::npos) << error();
  EXPECT_NE(error().find("first, reference"), std::string::npos) << error();
  set("FASTPATH_OP_ORG_EXAMPLE_SCALE", "");
  set("FASTPATH_OP_CONV", "reference");
  EXPECT_NE(error().find("FASTPATH_OP_CONV:"), std::string::npos) << error();
  EXPECT_NE(error().find("CONV_TENSOR_PRODUCT"), std::string::npos) << error();
}

TEST_F(Rules, AFusedKernelGivesWayWhereTheEnvironmentAsksForAnotherPathOfAPart) {
  add("fake");
  set("FASTPATH_OP_ORG_EXAMPLE_SCALE", "reference");
  TwoFused two;
  const auto pick_two = [&] {
    return select(two.modules, UseFast::always, nullptr, Device::cpu(), DType::float64, 1, kPassesForces, &context());
  };
  for (const Decision& decision : pick_two().decisions) {
    EXPECT_EQ(decision.choice, "reference") << decision.module;
    EXPECT_EQ(decision.reason.code, ReasonCode::environment) << decision.module;
  }
  set("FASTPATH_OP_ORG_EXAMPLE_FUSED", "fake");
  EXPECT_EQ(pick_two().decisions[1].choice, "fake");
}

TEST_F(Rules, ALockIsHonouredOrFailsNamingWhatDiffers) {
  add("fake");
  add("other");
  const AutoPolicy policy;
  auto lock = std::make_shared<SelectionLock>();
  AutoPolicy preferring;
  preferring.preference = {"other"};
  lock->add(pick(UseFast::always, &preferring, 100));
  replay = lock;
  renew();
  for (const UseFast use_fast : {UseFast::always, UseFast::automatic}) {
    EXPECT_EQ(decided(7, use_fast).choice, "other");
    EXPECT_EQ(decided(7, use_fast).reason.code, ReasonCode::lock);
  }
  const auto error = [&](DType dtype) {
    try {
      (void)pick(UseFast::always, &policy, 100, dtype);
    } catch (const Error& caught) {
      EXPECT_EQ(caught.code(), ErrorCode::unavailable);
      return std::string(caught.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(error(DType::float32).find("scale ran in float64 in the lock, here float32"), std::string::npos)
      << error(DType::float32);
  behaviours[1]->support.blocked(ReasonCode::degree, "too high for it");
  renew();
  EXPECT_NE(error(DType::float64).find("too high for it"), std::string::npos) << error(DType::float64);
  behaviours.pop_back();
  renew();
  EXPECT_NE(error(DType::float64).find("no such plugin is usable here"), std::string::npos) << error(DType::float64);
  auto reference = std::make_shared<SelectionLock>();
  reference->add(pick(UseFast::never));
  replay = reference;
  renew();
  EXPECT_EQ(decided(5000, UseFast::always).choice, "reference");
  EXPECT_EQ(decided(5000, UseFast::always).reason.code, ReasonCode::lock);
}

}  // namespace
}  // namespace fastpath
