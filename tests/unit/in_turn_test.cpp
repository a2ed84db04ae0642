#include "cpu/in_turn.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace {

using fastpath_cpu::InTurn;

/// What is added by each slice when `n_threads` make `items` items: per slice the items, as they were read.
std::vector<std::vector<std::int64_t>> added(std::int64_t items, std::int64_t places, int slices, int n_threads) {
  InTurn turns(items, places, slices);
  std::vector<std::int64_t> made(static_cast<std::size_t>(places), -1);  // not atomic: the class has to order accesses
  std::vector<std::vector<std::int64_t>> result(static_cast<std::size_t>(turns.slices()));
  const auto make = [&](std::int64_t item, std::int64_t place) { made[static_cast<std::size_t>(place)] = item; };
  const auto add = [&](std::int64_t, std::int64_t place, int slice) {
    result[static_cast<std::size_t>(slice)].push_back(made[static_cast<std::size_t>(place)]);
  };
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < n_threads; ++t) threads.emplace_back([&] { turns.work(make, add); });
  }
  turns.finish(add);
  return result;
}
std::vector<std::int64_t> in_order(std::int64_t items) {
  std::vector<std::int64_t> result;
  for (std::int64_t i = 0; i < items; ++i) result.push_back(i);
  return result;
}

TEST(InTurn, AddsEveryItemOfEverySliceInOrder) {
  for (const std::int64_t places : {1, 3, 32}) {
    for (const int slices : {1, 2, 5}) {
      for (const int threads : {1, 2, 6}) {
        const auto of_slices = added(2000, places, slices, threads);
        ASSERT_EQ(of_slices.size(), static_cast<std::size_t>(slices));
        for (const auto& items : of_slices) {
          ASSERT_EQ(items, in_order(2000)) << places << " places, " << slices << " slices, " << threads << " threads";
        }
      }
    }
  }
}
TEST(InTurn, IsDoneAtOnceWithoutItems) { EXPECT_TRUE(added(0, 4, 2, 3)[1].empty()); }
TEST(InTurn, GivesAPlaceOnlyAfterItsLastItemWasAddedByAllSlices) {
  constexpr std::int64_t kPlaces = 2;
  InTurn turns(500, kPlaces, 3);
  std::atomic<std::int64_t> adds{0}, too_early{0};
  const auto make = [&](std::int64_t item, std::int64_t) {
    if (item >= kPlaces && adds.load() < 3 * (item - kPlaces + 1)) ++too_early;
  };
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] { turns.work(make, [&](std::int64_t, std::int64_t, int) { ++adds; }); });
    }
  }
  turns.finish([&](std::int64_t, std::int64_t, int) { ++adds; });
  EXPECT_EQ(too_early.load(), 0);
  EXPECT_EQ(adds.load(), 1500);
}
TEST(InTurn, HasAtLeastOneSliceAndAtMostSoMany) {
  EXPECT_EQ(InTurn(1, 1, 0).slices(), 1);
  EXPECT_EQ(InTurn(1, 1, 1000).slices(), InTurn::kMostSlices);
}

}  // namespace
