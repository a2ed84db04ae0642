#include "harness.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace bench {
namespace {

TEST(Harness, MedianAndSpreadAreNotMovedByOneOutlier) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_TRUE(std::isnan(median({})));
  const Timing timing{"arm", {1.0, 1.1, 0.9, 1.0, 1000.0}};
  EXPECT_EQ(timing.median(), 1.0);
  EXPECT_NEAR(timing.mad(), 0.1, 1e-12);
  EXPECT_EQ(timing.minimum(), 0.9);
}

/// Arms whose runs move a clock of the test's own.
struct Track {
  double time = 0;
  std::string order;
  Arm arm(char name, double seconds) {
    return {std::string(1, name), [this, name, seconds] {
              order += name;
              time += seconds;
              return seconds;
            }};
  }
  std::vector<Timing> measure(const Budget& budget) {
    return bench::measure({arm('a', 1), arm('b', 2)}, budget, [this] { return time; });
  }
};

TEST(Harness, ArmsTakeTurnsInAlternatingOrderAfterWarmUp) {
  Track track;
  const auto timings = track.measure({.seconds = 0, .warm_up = 2, .min_rounds = 3, .max_rounds = 10});
  EXPECT_EQ(track.order, "abababbaab");
  EXPECT_EQ(timings.at(0).seconds, (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(timings.at(1).seconds, (std::vector<double>{2, 2, 2}));
}

TEST(Harness, StopsWhenTheBudgetIsUsedUpOrTheRoundsAreDone) {
  Track by_time, by_rounds;
  EXPECT_EQ(by_time.measure({.seconds = 14, .warm_up = 1, .min_rounds = 1, .max_rounds = 100}).at(0).seconds.size(),
            5u);
  EXPECT_EQ(by_rounds.measure({.seconds = 1e9, .warm_up = 0, .min_rounds = 1, .max_rounds = 4}).at(0).seconds.size(),
            4u);
}

TEST(Harness, CountsTheOnlyRunOfAnArmThatIsTooSlowAndGivesItNoSpread) {
  Track track;
  std::vector<Arm> arms{track.arm('a', 1), track.arm('b', 2)};
  arms[1].only = 2;
  const auto timings =
      bench::measure(arms, {.seconds = 0, .warm_up = 1, .min_rounds = 3, .max_rounds = 10}, [&] { return track.time; });
  EXPECT_EQ(track.order, "aaaa");
  EXPECT_EQ(timings.at(1).seconds, (std::vector<double>{2}));
  EXPECT_TRUE(std::isnan(timings.at(1).mad()));
  EXPECT_EQ(timings.at(0).mad(), 0);
}

TEST(Harness, TellsArmsThatAreSlowerByMoreThanTheirSpread) {
  const std::vector<Timing> timings{{"reference", {10, 10, 10}, 1},
                                    {"plain", {12, 12, 12}, 1},
                                    {"plain", {9, 9, 9}, 2},
                                    {"fast", {10.5, 11, 11.5}, 1},  // within its spread of plain, not of the reference
                                    {"fast", {9.5, 10.0, 10.5}, 2}};  // slower than plain with 2 threads
  std::vector<std::string> found;
  for (const Slower& each : slower(timings)) {
    found.push_back(each.slow->name + std::to_string(each.slow->threads) + ">" + each.fast->name +
                    std::to_string(each.fast->threads));
  }
  EXPECT_EQ(found, (std::vector<std::string>{"plain1>reference1", "fast1>reference1", "fast2>plain2"}));
  const std::vector<Timing> threads{{"a", {1.0, 1.0}, 1}, {"a", {2.0, 2.0}, 2}};
  EXPECT_EQ(slower(threads).front().text(),
            "a with 2 threads takes 2.00 times as long as with 1: 2.00 s +- 0.00 us against 1.00 s +- 0.00 us");
  // One run tells no spread: a tenth is allowed for.
  const std::vector<Timing> near{{"a", {1.0}, 1}, {"b", {1.15}, 1}}, far{{"a", {1.0}, 1}, {"b", {1.3}, 1}};
  EXPECT_TRUE(slower(near).empty());
  EXPECT_EQ(slower(far).size(), 1u);
}

TEST(Harness, WritesJsonThatQuotesTextAndKeepsNumbers) {
  JsonWriter json;
  json.begin_object().put("text", "a\"b\\c\n").put("number", 0.1).put("not_finite", std::nan("")).put("yes", true);
  json.begin_array("list").put("", 1).begin_object().end().end();
  json.begin_array("none").end().end();
  EXPECT_EQ(json.text(),
            "{\n  \"text\": \"a\\\"b\\\\c\\u000a\",\n  \"number\": 0.1,\n  \"not_finite\": null,\n  \"yes\": true,\n"
            "  \"list\": [\n    1,\n    {}\n  ],\n  \"none\": []\n}\n");
}

TEST(Harness, TableAlignsItsColumns) {
  Table table({"name", "ms"});
  table.add({"x", "12.5"});
  EXPECT_EQ(table.text(), "name    ms\nx     12.5\n");
}

}  // namespace
}  // namespace bench
