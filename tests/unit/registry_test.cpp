// One registry, asked from several threads at once. Also run under ThreadSanitizer.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "fastpath/registry.hpp"
#include "plugin/plugin.hpp"

namespace fastpath {
namespace {

namespace fs = std::filesystem;

class SharedRegistry : public ::testing::TestWithParam<ProbeMode> {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "fastpath-registry-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    for (const char* name : {"good", "gpu_only", "query_throws"}) add(name);
    // These would do to this process what they do.
    if (GetParam() == ProbeMode::helper) {
      for (const char* name : {"crashes", "locale"}) add(name);
    }
  }
  void TearDown() override { fs::remove_all(folder_); }
  void add(const std::string& name) const {
    const std::string file = "fastpath_zoo_" + name + ".so";
    fs::copy_file(fs::path(FASTPATH_ZOO) / file, folder_ / file);
  }
  RegistryOptions options() const {
    RegistryOptions result;
    result.search_paths = {folder_};
    result.default_paths = false;
    result.probe = GetParam();
    result.probe_timeout = std::chrono::minutes(2);
    result.cache_directory = folder_ / "cache";
    return result;
  }
  fs::path folder_;
};

std::vector<std::string> words(const std::vector<PluginInfo>& plugins) {
  std::vector<std::string> result;
  for (const PluginInfo& plugin : plugins) {
    result.push_back(plugin.id + " " + std::string(to_string(plugin.state)) + " " +
                     std::string(to_string(plugin.reason.code)));
  }
  return result;
}

TEST_P(SharedRegistry, GivesEveryThreadTheSameAnswer) {
  PluginRegistry registry(options());
  std::vector<std::vector<std::string>> answers(3);
  std::vector<std::size_t> loaded(2);
  std::vector<std::thread> threads;
  for (auto& answer : answers) threads.emplace_back([&] { answer = words(registry.plugins()); });
  for (auto& count : loaded) threads.emplace_back([&] { count = registry.impl().usable(DeviceKind::cpu).size(); });
  threads.emplace_back([&] {
    for (const FileReport& file : registry.scan_report().files) EXPECT_FALSE(file.stages.empty());
  });
  threads.emplace_back([&] { registry.impl().known(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& answer : answers) EXPECT_EQ(answer, answers.front());
  EXPECT_EQ(answers.front().size(), GetParam() == ProbeMode::helper ? 5u : 3u);
  EXPECT_EQ(loaded, (std::vector<std::size_t>{1, 1}));
}

TEST_P(SharedRegistry, SharesItsCacheWithOthers) {
  std::vector<std::vector<std::string>> answers(4);
  std::vector<std::thread> threads;
  for (auto& answer : answers) {
    threads.emplace_back([&] {
      for (int round = 0; round < 2; ++round) answer = words(PluginRegistry(options()).plugins());
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& answer : answers) EXPECT_EQ(answer, answers.front());
}

TEST_P(SharedRegistry, LoadsOnlyWhatADeviceNeeds) {
  PluginRegistry registry(options());
  const auto plugins = registry.impl().usable(DeviceKind::cpu);
  ASSERT_EQ(plugins.size(), 1u);
  EXPECT_EQ(plugins[0]->info().id, "zoo_good");
  for (const PluginInfo& plugin : registry.impl().known()) {
    if (plugin.id != "zoo_gpu_only") continue;
    EXPECT_EQ(plugin.reason.code, ReasonCode::not_needed);
  }
}

std::string name_of(const ::testing::TestParamInfo<ProbeMode>& info) { return std::string(to_string(info.param)); }
INSTANTIATE_TEST_SUITE_P(Tried, SharedRegistry, ::testing::Values(ProbeMode::helper, ProbeMode::in_process), name_of);

}  // namespace
}  // namespace fastpath
