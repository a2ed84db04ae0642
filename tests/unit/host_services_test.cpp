// What the host offers to plugins, as a context sets it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "fastpath/context.hpp"
#include "fastpath/plugin.h"
#include "plugin/host.hpp"

namespace fastpath {
namespace {

TEST(Host, TakesThreadsLogAndConfigurationFromAContext) {
  std::vector<std::string> lines;
  const Context context(
      {.registry = {.default_paths = false},
       .threads = 3,
       .log = [&](std::int32_t level,
                  std::string_view text) { lines.push_back(std::to_string(level) + " " + std::string(text)); },
       .plugin_configuration = {{"gate_test.key", "value"}}});
  const fp_host& host = plugin::host_table();
  EXPECT_EQ(host.thread_budget(host.context), 3);
  host.log(host.context, FP_LOG_WARNING, "careful", 7);
  EXPECT_THAT(lines, testing::ElementsAre("2 careful"));
  const char* value = nullptr;
  std::uint64_t size = 0;
  EXPECT_EQ(host.lookup(host.context, "gate_test.key", 13, &value, &size), 1);
  EXPECT_EQ(std::string(value, size), "value");
  plugin::set_log_sink({});
  plugin::set_thread_budget(0);
  plugin::set_configuration("gate_test.key", std::nullopt);
}

TEST(Context, OffersPluginsTheDirectoryOfItsCache) {
  const fp_host& host = plugin::host_table();
  const auto offered = [&]() -> std::string {
    const char* value = nullptr;
    std::uint64_t size = 0;
    return host.lookup(host.context, "cache_dir", 9, &value, &size) == 1 ? std::string(value, size) : "nothing";
  };
  plugin::set_configuration("cache_dir", std::nullopt);
  { const Context none({.registry = {.default_paths = false, .use_cache = false}}); }
  EXPECT_EQ(offered(), "nothing");
  { const Context one({.registry = {.default_paths = false, .cache_directory = "/somewhere"}}); }
  EXPECT_EQ(offered(), "/somewhere");
  {
    const Context own({.registry = {.default_paths = false, .cache_directory = "/somewhere"},
                       .plugin_configuration = {{"cache_dir", "/elsewhere"}}});
  }
  EXPECT_EQ(offered(), "/elsewhere");
  plugin::set_configuration("cache_dir", std::nullopt);
}

TEST(Host, ServesPluginsInSeveralThreadsWhileItIsChanged) {
  const fp_host& host = plugin::host_table();
  std::atomic<int> lines{0};
  const auto sink = [&](std::int32_t, std::string_view text) { lines += text == "from a thread"; };
  constexpr int kRounds = 50;
  plugin::set_log_sink(sink);
  plugin::set_configuration("gate_test.key", "short");
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&host] {
        for (int round = 0; round < kRounds; ++round) {
          host.log(host.context, FP_LOG_INFO, "from a thread", 13);
          EXPECT_GE(host.thread_budget(host.context), 1);
          const char* value = nullptr;
          std::uint64_t size = 0;
          ASSERT_EQ(host.lookup(host.context, "gate_test.key", 13, &value, &size), 1);
          const std::string found(value, size);  // what was handed out stays, whatever is set meanwhile
          EXPECT_TRUE(found == "short" || found == std::string(100, 'x')) << found;
        }
      });
    }
    for (int round = 0; round < kRounds; ++round) {
      plugin::set_log_sink(sink);
      plugin::set_thread_budget(round % 3);
      plugin::set_configuration("gate_test.key", round % 2 == 0 ? std::string(100, 'x') : "short");
    }
  }
  EXPECT_EQ(lines, 3 * kRounds);
  plugin::set_log_sink({});
  plugin::set_thread_budget(0);
  plugin::set_configuration("gate_test.key", std::nullopt);
}

}  // namespace
}  // namespace fastpath
