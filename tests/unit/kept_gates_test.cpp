// Verdicts on kernels outlive a process, and a file of them that is not sound is not believed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>
#include <filesystem>
#include <fstream>
#include <latch>
#include <thread>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "support/gates.hpp"

namespace fastpath {
namespace {

using test::cpu_ref;
using test::Liar;
using test::Lie;
using testing::HasSubstr;

class KeptGates : public testing::Test {
 protected:
  KeptGates() : directory_(std::filesystem::path(testing::TempDir()) / ("gates" + std::to_string(getpid()))) {
    std::filesystem::remove_all(directory_);
  }
  ~KeptGates() override { std::filesystem::remove_all(directory_); }
  /// How often a kernel is tried by another process that asks once.
  int tries(const std::string& key, bool passes = true, bool keep = true) {
    int count = 0;
    verify::GateStore(directory_).result(key, keep, [&] {
      ++count;
      return verify::GateResult{passes, true, ""};
    });
    return count;
  }
  std::filesystem::path file() { return verify::GateArchive(directory_).file(); }
  std::filesystem::path directory_;
};

TEST_F(KeptGates, WhatPassedIsNotTriedInTheNextProcess) {
  EXPECT_EQ(tries("a"), 1);
  EXPECT_EQ(tries("a"), 0);
  EXPECT_EQ(tries("b"), 1);
  EXPECT_EQ(tries("b"), 0);
  EXPECT_EQ(tries("a"), 0);
}

TEST_F(KeptGates, WhatFailedOrIsNotNamedByItsContentIsTriedAgain) {
  EXPECT_EQ(tries("a", false), 1);
  EXPECT_EQ(tries("a", false), 1);
  EXPECT_EQ(tries("b", true, false), 1);
  EXPECT_EQ(tries("b", true, false), 1);
}

TEST_F(KeptGates, AFileThatIsTornForeignOrTooLongIsNotBelieved) {
  EXPECT_EQ(tries("a"), 1);
  std::filesystem::permissions(file(), std::filesystem::perms::others_write, std::filesystem::perm_options::add);
  EXPECT_EQ(tries("a"), 1);
  std::filesystem::permissions(file(), std::filesystem::perms::others_write, std::filesystem::perm_options::remove);
  EXPECT_EQ(tries("a"), 0);
  std::filesystem::resize_file(file(), 40);
  EXPECT_EQ(tries("a"), 1);
  std::filesystem::resize_file(file(), 2 << 20);
  EXPECT_EQ(tries("a"), 1);
  EXPECT_EQ(tries("a"), 0);
  std::filesystem::remove(file());
  std::filesystem::create_directory(file());
  EXPECT_EQ(tries("a"), 1);
  EXPECT_EQ(tries("a"), 1);
}

TEST_F(KeptGates, StoresInSeveralThreadsLoseNothingThatPassed) {
  constexpr int kKeys = 20;
  verify::GateStore one(directory_), other(directory_);
  std::atomic<int> made{0};
  {
    std::latch start(4);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t, &store = t % 2 == 0 ? one : other] {
        start.arrive_and_wait();
        for (int i = 0; i < kKeys; ++i) {
          const std::string key = std::to_string((i + t * kKeys / 4) % kKeys);
          store.result(key, true, [&] { return verify::GateResult{++made > 0, true, ""}; });
        }
      });
    }
  }
  EXPECT_GE(made, kKeys);
  EXPECT_LE(made, 2 * kKeys);
  for (int k = 0; k < kKeys; ++k) EXPECT_EQ(tries(std::to_string(k)), 0) << k;
}

TEST_F(KeptGates, AContextKeepsThemInItsCacheDirectory) {
  const auto evaluate = [&] {
    Context c(
        {.registry = {
             .search_paths = {FASTPATH_PLUGIN_DIRECTORY}, .default_paths = false, .cache_directory = directory_}});
    const sdk::SphericalHarmonicsConfig config{2, true, sdk::Normalization::component};
    const auto module = ops::make_op_module({"spherical_harmonics", 1, config.attributes().values()});
    return select({{"sh", module.get()}}, UseFast::always, nullptr, Device::cpu(), DType::float64, 10, kPassesForces,
                  &c)
        .any_fast();
  };
  EXPECT_TRUE(evaluate());
  ASSERT_TRUE(std::filesystem::exists(file()));
  const auto size = std::filesystem::file_size(file());
  EXPECT_EQ(size, 65u);
  EXPECT_TRUE(evaluate());
  EXPECT_EQ(std::filesystem::file_size(file()), size);
}

}  // namespace
}  // namespace fastpath
