// A fused kernel against kernels for the parts of its module.
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

using test::Rules;
using test::TwoFused;

/// Two fused modules that share a part: one plugin has the fused kernel, another one kernels of the parts.
class InParts : public Rules {
 protected:
  InParts() {
    add("fused").only = "org.example.fused";
    add("parts").only = "org.example.scale";
  }
  /// What a kernel and the reference cost: so much per call, and so much per edge.
  void measure(std::size_t i, const std::string& plugin, double per_call, double per_edge, double reference_per_edge) {
    Measurement m;
    m.key = measurement_key(two.modules[i].module->op(), plugin, cpu_info(), DType::float64, kPassesForces, 1);
    m.plugin_build = plugin_build(context(), DeviceKind::cpu, plugin);
    m.driver = cpu_info().driver;
    for (std::int64_t n = 16; n <= 1 << 16; n *= 2) {
      const double edges = static_cast<double>(n);
      m.points.push_back({n, n, true, reference_per_edge * edges, per_call + per_edge * edges, 0.01, 0.01, 7});
    }
    if (per_call + per_edge < reference_per_edge) m.windows = {{0, 0, 0, 0}};
    store->add(m);
  }
  void measure_fused(double per_call, double per_edge) { measure(1, "fused", per_call, per_edge, 1e-2); }
  /// 1 us an edge, the reference twice that.
  void measure_parts() { measure(0, "parts", 0, 1e-6, 2e-6); }
  void forget() {
    store->forget([](const Measurement&) { return true; });
  }
  Selection pick_two(std::int64_t edges = 1000, UseFast use_fast = UseFast::automatic) {
    return select(two.modules, use_fast, &policy, Device::cpu(), DType::float64, edges, kPassesForces, &context());
  }
  static bool in_one_piece(const Selection& selection) {
    return selection.decisions[1].choice == "fused" && selection.decisions[3].choice == "fused";
  }
  static bool in_parts(const Selection& selection) {
    return selection.decisions[1].reason.code == ReasonCode::in_parts &&
           selection.decisions[3].reason.code == ReasonCode::in_parts && selection.decisions[0].choice == "parts" &&
           selection.decisions[2].choice == "parts" && selection.decisions[4].choice == "parts";
  }

  TwoFused two;  // common, first, first.own, second, second.own
  AutoPolicy policy;
};

TEST_F(InParts, TheFasterOneRunsUnderTrueAndAuto) {
  for (const UseFast use_fast : {UseFast::always, UseFast::automatic}) {
    measure_parts();
    measure_fused(0, 3e-6);  // 6 us an edge for both, and 3 us the three parts
    const Selection slow = pick_two(1000, use_fast);
    EXPECT_TRUE(in_parts(slow));
    EXPECT_EQ(
        slow.decisions[1].reason.text,
        "its parts are decided one by one; in one piece: fused was measured to be slower than the parts one by one");
    EXPECT_EQ(slow.decisions[1].candidates[0].verdict, Candidate::Verdict::not_chosen);
    EXPECT_EQ(slow.decisions[1].candidates[0].reasons[0].code, ReasonCode::measured);
    forget();
    measure_parts();
    measure_fused(0, 0.5e-6);
    const Selection fast = pick_two(1000, use_fast);
    EXPECT_TRUE(in_one_piece(fast));
    EXPECT_NE(fast.decisions[1].reason.text.find("; its parts one by one were not measured to be faster"),
              std::string::npos)
        << fast.decisions[1].reason.text;
    forget();
  }
}

TEST_F(InParts, WhatTheyShareCountsOnceForAllOfThem) {
  measure_parts();
  measure_fused(0, 1.4e-6);  // in parts each saves 0.4 us, and the common part costs 1 us
  EXPECT_TRUE(in_one_piece(pick_two()));
  forget();
  measure_parts();
  measure_fused(0, 1.53e-6);  // 3.06 us in one piece, 3 us in parts: too near
  EXPECT_TRUE(in_one_piece(pick_two()));
  forget();
  measure_parts();
  measure_fused(0, 1.6e-6);
  EXPECT_TRUE(in_parts(pick_two()));
}

TEST(ComparisonWithParts, WorkThatIsDoneAnywayCostsNothing) {
  const auto cost = [](double per_edge) {
    auto m = std::make_shared<Measurement>();
    for (std::int64_t n = 10; n <= 1000; n *= 10) {
      const double seconds = per_edge * static_cast<double>(n);
      m->points.push_back({n, n, true, 2 * seconds, seconds, 0.01, 0.01, 7});
    }
    return rules::Cost{m, Arm::kernel};
  };
  const std::vector<rules::FusedCost> fused = {{3, cost(1.4e-6), {cost(1e-6)}, {0}}};
  const auto answer = [&](const rules::SharedPart& shared, std::int64_t n_edges) {
    rules::Sizes sizes;
    return rules::compare(fused, {shared}, n_edges, sizes).at(0);
  };
  EXPECT_EQ(answer({cost(1e-6), false}, 100), rules::Faster::in_one_piece);
  EXPECT_EQ(answer({cost(1e-6), true}, 100), rules::Faster::in_parts);
  EXPECT_EQ(answer({std::nullopt, true}, 100), rules::Faster::in_parts);
  EXPECT_EQ(answer({std::nullopt, false}, 100), rules::Faster::unknown);
  EXPECT_EQ(answer({cost(1e-6), true}, 0), rules::Faster::unknown);
  EXPECT_EQ(answer({cost(1e-6), true}, std::numeric_limits<std::int64_t>::max()), rules::Faster::unknown);
  rules::Sizes sizes;
  EXPECT_TRUE(rules::compare({}, {}, 100, sizes).empty());
  EXPECT_EQ(sizes.min, 0);
  EXPECT_EQ(sizes.max, std::numeric_limits<std::int64_t>::max());
}

TEST(ComparisonWithParts, ASizeThatWasMeasuredInABadMomentDecidesNothing) {
  const auto cost = [](double per_edge, std::int64_t disturbed) {
    auto m = std::make_shared<Measurement>();
    for (std::int64_t n = 16; n <= 4096; n *= 2) {
      const double seconds = per_edge * static_cast<double>(n) * (n == disturbed ? 2 : 1);
      m->points.push_back({n, n, true, 3 * seconds, seconds, 0.01, 0.01, 7});
    }
    return rules::Cost{m, Arm::kernel};
  };
  const auto answer = [&](const rules::Cost& fused, std::int64_t n_edges) {
    rules::Sizes sizes;
    return rules::compare({{1, fused, {cost(1e-6, 0)}, {}}}, {}, n_edges, sizes).at(0);
  };
  for (std::int64_t n = 16; n <= 4096; n *= 2) {
    for (const std::int64_t at : {n - 1, n, n + n / 4}) {
      EXPECT_EQ(answer(cost(0.8e-6, n), at), rules::Faster::in_one_piece) << at;
      // Beyond the last size the line through the last two goes on.
      if (n < 2048) {
        EXPECT_EQ(answer(cost(1.2e-6, n), at), rules::Faster::in_parts) << at;
      }
    }
  }
}

TEST_F(InParts, ASelectionHoldsForTheSizesWithTheSameAnswer) {
  measure_parts();
  // In parts below about 2000 edges, 2 ms + 2 us n against 3 us n, where that holds at twice the size, too.
  measure_fused(1e-3, 1e-6);
  const Selection small = pick_two(700), large = pick_two(20'000);
  EXPECT_TRUE(in_parts(small));
  EXPECT_TRUE(in_one_piece(large));
  EXPECT_EQ(small.max_edges + 1, large.min_edges);
  EXPECT_GT(small.max_edges, 850);
  EXPECT_LT(small.max_edges, 1000);
  for (const std::int64_t edges : {small.min_edges, small.max_edges}) EXPECT_TRUE(in_parts(pick_two(edges)));
  for (const std::int64_t edges : {large.min_edges, std::int64_t{100'000}}) EXPECT_TRUE(in_one_piece(pick_two(edges)));
}

TEST_F(InParts, WhatWasNotMeasuredLeavesItInOnePiece) {
  measure_fused(0, 3e-6);
  EXPECT_TRUE(in_one_piece(pick_two()));
  forget();
  measure_parts();
  EXPECT_TRUE(in_one_piece(pick_two(1000, UseFast::always)));
  measure_fused(0, 3e-6);
  EXPECT_TRUE(in_parts(pick_two(100'000)));
  EXPECT_TRUE(in_one_piece(pick_two(1'000'000))) << "too far from what was measured";
  deterministic = true;
  renew();
  EXPECT_TRUE(in_one_piece(pick_two(1000, UseFast::always)));
}

TEST_F(InParts, PartsWhoseReferenceIsFasterCountAsThat) {
  measure(0, "parts", 0, 1e-6, 0.5e-6);
  measure_fused(0, 1e-6);  // 2 us an edge for both, and 1.5 us the references of the three parts
  const Selection selection = pick_two();
  for (const Decision& decision : selection.decisions) EXPECT_EQ(decision.choice, "reference") << decision.module;
  EXPECT_EQ(selection.decisions[1].reason.code, ReasonCode::measured);
  EXPECT_EQ(selection.decisions[1].reason.text, "fused was measured to be slower than the parts one by one");
}

TEST_F(InParts, WhatThePolicyPrefersComesBeforeWhatIsFaster) {
  measure_parts();
  measure_fused(0, 3e-6);
  policy.preference = {"fused"};
  EXPECT_TRUE(in_one_piece(pick_two()));
  policy.preference = {"*"};
  EXPECT_TRUE(in_parts(pick_two()));
  forget();
  measure_parts();
  measure_fused(0, 0.5e-6);
  EXPECT_TRUE(in_one_piece(pick_two()));
  policy.preference = {"parts"};
  EXPECT_TRUE(in_parts(pick_two()));
}

TEST_F(InParts, ALockAndTheEnvironmentSayWhatRuns) {
  measure_parts();
  auto lock = std::make_shared<SelectionLock>();
  lock->add(pick_two(1000, UseFast::always));
  measure_fused(0, 3e-6);
  set("FASTPATH_OP_ORG_EXAMPLE_FUSED", "fused");
  EXPECT_TRUE(in_one_piece(pick_two()));
  ::unsetenv("FASTPATH_OP_ORG_EXAMPLE_FUSED");
  renew();
  EXPECT_TRUE(in_parts(pick_two()));
  replay = lock;
  renew();
  EXPECT_TRUE(in_one_piece(pick_two()));
}

}  // namespace
}  // namespace fastpath
