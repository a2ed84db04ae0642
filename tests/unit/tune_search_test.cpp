#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "fastpath/error.hpp"
#include "tune/search.hpp"

using namespace fastpath;
using tuning::Bench;
using tuning::Searched;
using tuning::SearchOptions;

namespace {

/// A device whose costs are known and whose time is made up.
class SimulatedDevice : public Bench {
 public:
  using Cost = std::function<double(double edges)>;
  SimulatedDevice(Cost reference, Cost kernel, double noise = 0, unsigned seed = 1)
      : costs_{std::move(reference), std::move(kernel)}, noise_(noise), random_(seed) {}

  ProblemSize prepare(std::int64_t n_edges) override {
    if (n_edges > most_edges) throw Error(ErrorCode::out_of_memory, "more than there is");
    edges_ = n_edges;
    prepared.push_back(n_edges);
    return {n_edges, n_edges / 20 + 1};
  }
  Block run(Arm arm, int repeats) override {
    ++blocks;
    double seconds = costs_[arm == Arm::kernel](static_cast<double>(edges_)) * repeats;
    seconds *= std::exp(noise_ * std::normal_distribution<double>()(random_));
    seconds *= 1 + drift * time_;
    const bool disturbed = std::uniform_real_distribution<double>()(random_) < disturbance;
    if (disturbed) seconds *= 1 + std::uniform_real_distribution<double>(0, 3)(random_);
    time_ += seconds;
    return {seconds, disturbed};
  }
  double now() override { return time_; }

  std::int64_t most_edges = INT64_MAX;
  double drift = 0;
  double disturbance = 0;  ///< How often another process gets in the way.
  int blocks = 0;
  std::vector<std::int64_t> prepared;

 private:
  Cost costs_[2];
  double noise_;
  std::mt19937 random_;
  double time_ = 0;
  std::int64_t edges_ = 0;
};

// Seconds; the crossings stand beside them.
double reference(double n) { return 1e-6 + 1e-7 * n; }
double wins_above_1000(double n) { return 51e-6 + 5e-8 * n; }
double wins_between_3000_and_20000(double n) {
  return reference(n) * (1 + 0.25 * std::log(n / 3000) * std::log(n / 20000));
}
double wins_everywhere(double n) { return 0.6 * reference(n); }
double wins_nowhere(double n) { return 1.7 * reference(n); }

SearchOptions plenty() {
  SearchOptions options;
  options.budget = 1e4;
  return options;
}

testing::AssertionResult within(std::int64_t bound, double truth, double part = 0.05) {
  const double off = std::abs(static_cast<double>(bound) / truth - 1);
  if (off <= part) return testing::AssertionSuccess();
  return testing::AssertionFailure() << bound << " is off " << truth << " by " << 100 * off << " %";
}

}  // namespace

TEST(TuneSearch, FindsWhereAKernelBecomesFaster) {
  SimulatedDevice device(reference, wins_above_1000, 0.01);
  const Searched found = tuning::search(device, plenty());
  EXPECT_FALSE(found.inconclusive);
  ASSERT_EQ(found.windows.size(), 1u);
  EXPECT_TRUE(within(found.windows[0].min_edges, 1000));
  EXPECT_EQ(found.windows[0].max_edges, 0);
  EXPECT_LE(found.windows[0].min_spread, 0.1);
}

TEST(TuneSearch, FindsBothEndsOfAWindow) {
  SimulatedDevice device(reference, wins_between_3000_and_20000, 0.01);
  const Searched found = tuning::search(device, plenty());
  ASSERT_EQ(found.windows.size(), 1u);
  EXPECT_TRUE(within(found.windows[0].min_edges, 3000));
  EXPECT_TRUE(within(found.windows[0].max_edges, 20000));
}

TEST(TuneSearch, FindsAWindowThatLiesBetweenTwoOfTheFirstSizes) {
  // The first sizes are 8, 32, ..., 2048, 8192: none is inside.
  const auto kernel = [](double n) { return reference(n) * (1 + 0.5 * std::log(n / 2700) * std::log(n / 6200)); };
  SimulatedDevice device(reference, kernel, 0.005);
  const Searched found = tuning::search(device, plenty());
  ASSERT_EQ(found.windows.size(), 1u);
  EXPECT_TRUE(within(found.windows[0].min_edges, 2700));
  EXPECT_TRUE(within(found.windows[0].max_edges, 6200));
}

TEST(TuneSearch, FindsWhereAKernelStopsBeingFaster) {
  SimulatedDevice device([](double n) { return 1e-6 + 1e-7 * n; },
                         [](double n) { return 1e-6 + 1e-7 * n * std::pow(n / 5000, 0.4); }, 0.01);
  const Searched found = tuning::search(device, plenty());
  ASSERT_EQ(found.windows.size(), 1u);
  EXPECT_EQ(found.windows[0].min_edges, 0);
  EXPECT_TRUE(within(found.windows[0].max_edges, 5000));
}

TEST(TuneSearch, SaysWhereOneArmIsFasterEverywhere) {
  SimulatedDevice better(reference, wins_everywhere, 0.02), worse(reference, wins_nowhere, 0.02);
  const Searched all = tuning::search(better, plenty()), none = tuning::search(worse, plenty());
  ASSERT_EQ(all.windows.size(), 1u);
  EXPECT_EQ(all.windows[0], (SizeWindow{0, 0, 0, 0}));
  EXPECT_TRUE(none.windows.empty());
  EXPECT_FALSE(none.inconclusive);
}

TEST(TuneSearch, ArmsThatAreEquallyFastHaveNoWindow) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    SimulatedDevice device(reference, reference, 0.01, seed);
    const Searched found = tuning::search(device, plenty());
    EXPECT_TRUE(found.windows.empty()) << "seed " << seed;
  }
}

TEST(TuneSearch, NoiseMakesItInconclusiveOrRightAndNeverWrong) {
  int conclusive = 0;
  for (const double noise : {0.02, 0.1, 0.3, 1.0}) {
    for (unsigned seed = 0; seed < 25; ++seed) {
      SimulatedDevice device(reference, wins_above_1000, noise, seed);
      const Searched found = tuning::search(device, plenty());
      if (found.inconclusive) {
        EXPECT_TRUE(found.windows.empty());
        continue;
      }
      ++conclusive;
      // At 100 edges the kernel takes 5 times as long, at 100000 half as long.
      for (const SizeWindow& window : found.windows) {
        EXPECT_GT(window.min_edges, 300) << "noise " << noise << ", seed " << seed;
        EXPECT_LT(window.min_edges, 3000) << "noise " << noise << ", seed " << seed;
        if (noise < 0.05) {
          EXPECT_TRUE(within(window.min_edges, 1000, window.min_spread + 0.05)) << "seed " << seed;
        }
      }
    }
  }
  EXPECT_GE(conclusive, 25);
}

TEST(TuneSearch, LeavesOutBlocksThatOthersDisturbed) {
  SimulatedDevice device(reference, wins_above_1000, 0.01);
  device.disturbance = 0.3;
  const Searched found = tuning::search(device, plenty());
  ASSERT_EQ(found.windows.size(), 1u);
  EXPECT_TRUE(within(found.windows[0].min_edges, 1000));
}

TEST(TuneSearch, SaysNothingWhileAnotherProcessIsInTheWay) {
  SimulatedDevice device(reference, wins_above_1000, 0.01);
  device.disturbance = 1;
  const Searched found = tuning::search(device, plenty());
  EXPECT_TRUE(found.inconclusive);
  EXPECT_TRUE(found.windows.empty());
  ASSERT_FALSE(found.points.empty());
  for (const MeasuredPoint& point : found.points) {
    EXPECT_FALSE(point.conclusive);
    EXPECT_EQ(point.reference_seconds, 0);  // never stored as a number
    EXPECT_EQ(point.kernel_seconds, 0);
  }
}

TEST(TuneSearch, DriftMeetsBothArmsAlike) {
  SimulatedDevice device(reference, wins_above_1000, 0.01);
  device.drift = 0.3;  // a third slower every second
  SearchOptions options = plenty();
  options.budget = 5;
  const Searched found = tuning::search(device, options);
  ASSERT_EQ(found.windows.size(), 1u);
  EXPECT_TRUE(within(found.windows[0].min_edges, 1000, 0.06));
}

TEST(TuneSearch, AgreesWithItselfWithinItsSpread) {
  for (unsigned seed = 0; seed < 10; ++seed) {
    SimulatedDevice first(reference, wins_above_1000, 0.03, 2 * seed),
        second(reference, wins_above_1000, 0.03, 2 * seed + 1);
    const Searched a = tuning::search(first, plenty()), b = tuning::search(second, plenty());
    ASSERT_EQ(a.windows.size(), 1u);
    ASSERT_EQ(b.windows.size(), 1u);
    const auto x = static_cast<double>(a.windows[0].min_edges), y = static_cast<double>(b.windows[0].min_edges);
    EXPECT_LE(std::max(x / y, y / x), (1 + a.windows[0].min_spread) * (1 + b.windows[0].min_spread) + 0.02) << seed;
  }
}

TEST(TuneSearch, KeepsItsBudgetBySkippingSizesThatTakeTooLong) {
  SimulatedDevice device([](double n) { return 1e-4 * n; }, [](double n) { return 0.5e-4 * n; }, 0.01);
  SearchOptions options;
  options.budget = 10;
  const Searched found = tuning::search(device, options);
  EXPECT_LT(device.now(), 20);
  EXPECT_LT(found.points.back().n_edges, 50000);
  ASSERT_EQ(found.windows.size(), 1u);
}

// A block takes as long for 8 edges as for 2000.
TEST(TuneSearch, AShortBudgetDoesNotEndAtSmallSizes) {
  SimulatedDevice device(reference, wins_above_1000, 0.001);
  SearchOptions options;
  options.budget = 0.25;
  const Searched found = tuning::search(device, options);
  EXPECT_TRUE(found.out_of_time);
  EXPECT_GE(found.points.back().n_edges, 2000);
}

TEST(TuneSearch, StopsWhenAskedAndKeepsWhatIsThere) {
  SimulatedDevice device(reference, wins_above_1000, 0.01);
  SearchOptions options = plenty();
  int points = 0;
  options.on_point = [&](const MeasuredPoint&, const std::vector<SizeWindow>&) { ++points; };
  options.stop = [&] { return points >= 4; };
  const Searched found = tuning::search(device, options);
  EXPECT_TRUE(found.stopped);
  EXPECT_EQ(found.points.size(), 4u);
}

TEST(TuneSearch, StopsGrowingWhereThereIsNoMoreMemory) {
  SimulatedDevice device(reference, wins_above_1000, 0.01);
  device.most_edges = 10000;
  const Searched found = tuning::search(device, plenty());
  EXPECT_LE(found.points.back().n_edges, 10000);
  ASSERT_EQ(found.windows.size(), 1u);
  EXPECT_TRUE(within(found.windows[0].min_edges, 1000));
}

TEST(TuneSearch, PointsAreInTheOrderOfSizesEachOnce) {
  SimulatedDevice device(reference, wins_above_1000, 0.01);
  const Searched found = tuning::search(device, plenty());
  for (std::size_t i = 1; i < found.points.size(); ++i) {
    EXPECT_LT(found.points[i - 1].n_edges, found.points[i].n_edges);
  }
}
