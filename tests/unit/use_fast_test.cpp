// What users say: warnings they take, use_fast, policies.
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

TEST(Warning, OnlyOneOfManyThreadsWarnsAndAThrowingHandlerIsNotCalledAgain) {
  reset_float32_warning();
  std::atomic<int> warnings{0};
  set_warning_handler([&](const FastPathPrecisionWarning&) {
    ++warnings;
    throw std::runtime_error("raised");
  });
  std::atomic<int> raised{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      try {
        (void)warn_float32_once();
      } catch (const std::runtime_error&) {
        ++raised;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(raised, 1);
  EXPECT_FALSE(warn_float32_once());
  set_warning_handler({});
  reset_float32_warning();
}

TEST(Warning, NoneIsLostWhenHandlersAreReplacedWhileThreadsWarn) {
  constexpr int kRounds = 100;
  std::atomic<int> told{0};
  const auto set = [&] {
    set_warning_handler([&](const FastPathPrecisionWarning&) {});
    set_kernel_warning_handler([&](const FastPathKernelWarning& warning) { told += warning.text == "text"; });
  };
  set();
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([] {
        for (int round = 0; round < kRounds; ++round) {
          warn_about_kernel({ReasonCode::fallback, "text"});
          reset_float32_warning();
          (void)warn_float32_once();
        }
      });
    }
    for (int round = 0; round < kRounds; ++round) set();
  }
  EXPECT_EQ(told, 3 * kRounds);
  set_warning_handler({});
  set_kernel_warning_handler({});
  reset_float32_warning();
}

TEST(UseFast, TextInAnyCaseAndExactlyBoolAreUnderstood) {
  EXPECT_EQ(resolve_use_fast("true"), UseFast::always);
  EXPECT_EQ(resolve_use_fast("ON"), UseFast::always);
  EXPECT_EQ(resolve_use_fast("False"), UseFast::never);
  EXPECT_EQ(resolve_use_fast(std::string("off")), UseFast::never);
  EXPECT_EQ(resolve_use_fast("Auto"), UseFast::automatic);
  EXPECT_EQ(resolve_use_fast(true), UseFast::always);
  EXPECT_EQ(resolve_use_fast(false), UseFast::never);
  EXPECT_EQ(resolve_use_fast(UseFast::automatic), UseFast::automatic);
}

TEST(UseFast, OtherTextIsRefusedNamingItAndWhatIsAccepted) {
  for (const char* text : {"", "yes", "1", "automatic", " true"}) {
    try {
      (void)resolve_use_fast(text);
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("'" + std::string(text) + "'"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("true, false, on, off, auto"), std::string::npos);
    }
  }
}

template <class T>
concept Resolvable = requires(T value) {
  resolve_use_fast(value);
};
static_assert(Resolvable<bool> && Resolvable<const char*> && Resolvable<UseFast>);
static_assert(!Resolvable<int> && !Resolvable<char> && !Resolvable<long> && !Resolvable<std::nullptr_t>);

TEST(AutoPolicy, FirstMatchingSubstringWinsInAnyCaseAndDefaultsFollow) {
  AutoPolicy policy;
  policy.min_edges = {{"a100", 10}, {"nvidia", 20}};
  policy.default_min_edges = 7;
  policy.default_min_edges_float64 = 9;
  DeviceInfo device;
  device.device = {DeviceKind::cuda, 0};
  device.name = "NVIDIA A100-SXM4";
  EXPECT_EQ(policy.threshold(device, DType::float32), 10);
  EXPECT_EQ(policy.threshold(device, DType::float64), 9);
  EXPECT_EQ(policy.threshold(device, DType::int32), 10);
  device.name = "NVIDIA L4";
  EXPECT_EQ(policy.threshold(device, DType::float32), 20);
  device.name = "Arc A770";
  EXPECT_EQ(policy.threshold(device, DType::float32), 7);
  EXPECT_TRUE(policy.decide(device, DType::float32, 7));
  EXPECT_FALSE(policy.decide(device, DType::float32, 6));
  device.device = Device::cpu();
  EXPECT_FALSE(policy.decide(device, DType::float32, 1'000'000));
  EXPECT_TRUE(AutoPolicy{}.min_edges.empty());
  EXPECT_EQ(AutoPolicy{}.default_min_edges, 0);
}

TEST(AutoPolicy, TheBuiltinOneHoldsThePublishedThresholds) {
  ASSERT_NE(AutoPolicy::builtin(), nullptr);
  DeviceInfo device;
  device.device = {DeviceKind::cuda, 0};
  const auto both = [&](const char* name) {
    device.name = name;
    return std::pair{AutoPolicy::builtin()->threshold(device, DType::float32),
                     AutoPolicy::builtin()->threshold(device, DType::float64)};
  };
  EXPECT_EQ(both("NVIDIA A100-SXM4-80GB"), std::pair(std::int64_t{50'000}, std::int64_t{25'000}));
  EXPECT_EQ(both("NVIDIA H100 PCIe"), std::pair(std::int64_t{60'000}, std::int64_t{30'000}));
  EXPECT_EQ(both("NVIDIA H200"), std::pair(std::int64_t{60'000}, std::int64_t{30'000}));
  EXPECT_EQ(both("NVIDIA L40S"), std::pair(std::int64_t{30'000}, std::int64_t{0}));
  EXPECT_EQ(both("Radeon"), std::pair(std::int64_t{50'000}, std::int64_t{25'000}));
}

}  // namespace
}  // namespace fastpath
