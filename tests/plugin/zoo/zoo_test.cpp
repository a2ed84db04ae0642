#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "fastpath/registry.hpp"
#include "zoo.hpp"

namespace {

namespace fs = std::filesystem;
using fastpath::PluginInfo;
using fastpath::PluginRegistry;
using fastpath::PluginState;
using fastpath::ReasonCode;
using ::testing::HasSubstr;
using zoo::built;
using zoo::only;
using zoo::TemporaryFolder;

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write(const fs::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

/// The good plugin with one byte of its header changed.
std::string patched(std::size_t at, char value) {
  std::string bytes = bytes_of(built("good"));
  bytes.at(at) = value;
  return bytes;
}

struct Expectation {
  std::string name;  ///< Of the file, without `fastpath_zoo_` and `.so`.
  PluginState state;
  ReasonCode code;
  std::string text;  ///< Part of the reason.
};
void PrintTo(const Expectation& expectation, std::ostream* out) { *out << expectation.name; }

constexpr auto kUsable = PluginState::usable;
constexpr auto kIdle = PluginState::idle;
constexpr auto kShadowed = PluginState::shadowed;
constexpr auto kRejected = PluginState::rejected;

/// Libraries that were built for this test.
const std::vector<Expectation>& built_files() {
  static const std::vector<Expectation> files{
      {"good", kUsable, ReasonCode::usable, ""},
      {"good_again", kShadowed, ReasonCode::shadowed, "fastpath_zoo_good.so"},
      {"gpu_only", kUsable, ReasonCode::usable, ""},
      {"future_kind", kUsable, ReasonCode::usable, ""},
      {"size_larger", kUsable, ReasonCode::usable, ""},
      {"size_smaller", kUsable, ReasonCode::usable, ""},
      {"no_symbol", kRejected, ReasonCode::no_query_symbol, "exports no function fastpath_plugin_query_v1"},
      {"symbol_is_data", kRejected, ReasonCode::no_query_symbol, "is not a function"},
      {"other_major", kRejected, ReasonCode::abi_incompatible, "exports fastpath_plugin_query_v2"},
      {"no_metadata", kRejected, ReasonCode::no_metadata, "FASTPATH_PLUGIN_METADATA"},
      {"metadata_magic", kRejected, ReasonCode::bad_metadata, "magic 0x12345678"},
      {"metadata_short", kRejected, ReasonCode::bad_metadata, "size 24"},
      {"metadata_unterminated", kRejected, ReasonCode::bad_metadata, "vendor is not terminated"},
      {"metadata_id", kRejected, ReasonCode::bad_metadata, "id 'an id'"},
      {"metadata_kinds", kRejected, ReasonCode::bad_metadata, "'toaster'"},
      {"metadata_later_abi", kRejected, ReasonCode::abi_incompatible, "serves ABI 1.7 to 1.9, host speaks 1.0"},
      {"metadata_abi_zero", kRejected, ReasonCode::abi_incompatible, "without an ABI version"},
      {"metadata_sdk_zero", kRejected, ReasonCode::bad_metadata, "SDK version 0"},
      {"metadata_twice", kRejected, ReasonCode::bad_metadata, "more than one record"},
      {"later_abi", kRejected, ReasonCode::abi_incompatible, "serves ABI 2.0 to 2.0, host speaks 1.0"},
      {"abi_zero", kRejected, ReasonCode::abi_incompatible, "without an ABI version"},
      {"abi_range", kRejected, ReasonCode::abi_incompatible, "contradicts itself"},
      {"sdk_zero", kRejected, ReasonCode::bad_plugin, "SDK version 0"},
      {"size_zero", kRejected, ReasonCode::bad_plugin, "fp_plugin of 0 bytes"},
      {"size_short", kRejected, ReasonCode::bad_plugin, "fp_plugin of "},
      {"size_garbage", kRejected, ReasonCode::bad_plugin, "fp_plugin of 4294967280 bytes"},
      {"null_enumerate", kRejected, ReasonCode::bad_plugin, "enumerate is null"},
      {"null_kernels", kRejected, ReasonCode::bad_plugin, "kernels is null"},
      {"null_run", kRejected, ReasonCode::bad_plugin, "kernels->run is null"},
      {"null_memory_entry", kRejected, ReasonCode::bad_plugin, "memory->allocate is null"},
      {"kernels_small", kRejected, ReasonCode::bad_plugin, "fp_kernel_api is too small"},
      {"query_fails", kRejected, ReasonCode::query_failed, "internal: the zoo is closed"},
      {"query_unknown_status", kRejected, ReasonCode::query_failed, "unknown status -1234"},
      {"query_unavailable", kIdle, ReasonCode::no_device, "no zoo in this town"},
      {"query_incompatible", kRejected, ReasonCode::abi_incompatible, "incompatible"},
      {"query_null", kRejected, ReasonCode::query_failed, "gave no plugin"},
      {"query_throws", kRejected, ReasonCode::query_failed, "threw an exception: the lion is loose"},
      {"query_throws_an_int", kRejected, ReasonCode::query_failed, "threw an exception"},
      {"other_id", kRejected, ReasonCode::metadata_mismatch, "id is 'somebody'"},
      {"other_version", kRejected, ReasonCode::metadata_mismatch, "version is '1.2.4'"},
      {"id_size", kRejected, ReasonCode::bad_plugin, "id has 1125899906842624 bytes"},
      {"enumerate_unavailable", kIdle, ReasonCode::no_device, "libzoo.so.1, the zoo's driver, is not installed"},
      {"enumerate_none", kIdle, ReasonCode::no_device, "no device"},
      {"enumerate_fails", kRejected, ReasonCode::enumerate_failed, "first cause; last cause"},
      {"enumerate_unknown_status", kRejected, ReasonCode::enumerate_failed, "unknown status 77"},
      {"enumerate_throws", kRejected, ReasonCode::enumerate_failed, "threw an exception: the lion is loose"},
      {"enumerate_count", kRejected, ReasonCode::enumerate_failed, "9223372036854775807 devices"},
      {"enumerate_null_items", kRejected, ReasonCode::enumerate_failed, "null address"},
      {"enumerate_stride", kRejected, ReasonCode::enumerate_failed, "stride of 4"},
      {"enumerate_item_size", kRejected, ReasonCode::enumerate_failed, "item 0 of its devices is smaller"},
      {"enumerate_text_size", kRejected, ReasonCode::enumerate_failed, "name has 1152921504606846976 bytes"},
      {"enumerate_twice", kRejected, ReasonCode::enumerate_failed, "device cpu twice"},
      {"enumerate_index", kRejected, ReasonCode::enumerate_failed, "index -1"},
      {"enumerate_undeclared", kRejected, ReasonCode::metadata_mismatch, "kind cuda"},
      {"ops_fail", kRejected, ReasonCode::bad_plugin, "listing ops failed"},
      {"ops_count", kRejected, ReasonCode::bad_plugin, "18446744073709551615 ops"},
      {"ops_throw", kRejected, ReasonCode::bad_plugin, "the lion is loose"},
      {"undefined_symbol", kRejected, ReasonCode::load_failed, "zoo_nobody_defines_this"},
      {"missing_dependency", kRejected, ReasonCode::missing_dependency, "needs libzoo_absent.so"},
  };
  return files;
}

/// Files that this test makes.
const std::vector<Expectation>& made_files() {
  static const std::vector<Expectation> files{
      {"good_copy", kShadowed, ReasonCode::duplicate, "the same content as"},
      {"good_link", kShadowed, ReasonCode::duplicate, "the same file as"},
      {"text", kRejected, ReasonCode::not_elf, "not an ELF file"},
      {"empty", kRejected, ReasonCode::not_elf, "empty"},
      {"few_bytes", kRejected, ReasonCode::truncated, "10 bytes"},
      {"truncated", kRejected, ReasonCode::truncated, "truncated"},
      {"truncated_by_a_byte", kRejected, ReasonCode::truncated, "truncated"},
      {"class_32", kRejected, ReasonCode::wrong_class, "32-bit"},
      {"big_endian", kRejected, ReasonCode::wrong_class, "big-endian"},
      {"other_machine", kRejected, ReasonCode::wrong_machine, "built for s390"},
      {"executable", kRejected, ReasonCode::wrong_class, "not a shared object"},
      {"folder", kRejected, ReasonCode::not_a_file, "not a regular file"},
      {"pipe", kRejected, ReasonCode::not_a_file, "not a regular file"},
      {"broken_link", kRejected, ReasonCode::not_a_file, "nowhere/at/all"},
      {"link_to_itself", kRejected, ReasonCode::not_a_file, "link_to_itself"},
  };
  return files;
}

void make_files(const fs::path& folder) {
  const auto path = [&](const std::string& name) { return folder / ("fastpath_zoo_" + name + ".so"); };
  for (const Expectation& expectation : built_files()) fs::copy_file(built(expectation.name), path(expectation.name));
  const std::string good = bytes_of(built("good"));
  write(path("good_copy"), good);
  fs::create_symlink("fastpath_zoo_good.so", path("good_link"));
  write(path("text"), "#!/bin/sh\necho plugin\n");
  write(path("empty"), "");
  write(path("few_bytes"), good.substr(0, 10));
  write(path("truncated"), good.substr(0, good.size() / 2));
  write(path("truncated_by_a_byte"), good.substr(0, good.size() - 1));
  write(path("class_32"), patched(4, 1));
  write(path("big_endian"), patched(5, 2));
  write(path("other_machine"), patched(18, 22));
  write(path("executable"), patched(16, 2));
  fs::create_directory(path("folder"));
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  fs::create_symlink("nowhere/at/all", path("broken_link"));
  fs::create_symlink("fastpath_zoo_link_to_itself.so", path("link_to_itself"));
  // Not plugins by their names: nobody looks at them.
  write(folder / "libfastpath_zoo_good.so", good);
  write(folder / "fastpath_zoo_good.so.1", good);
  fs::create_directory(folder / "below");
  write(folder / "below/fastpath_zoo_good.so", good);
}

std::string file_name(const Expectation& expectation) { return "fastpath_zoo_" + expectation.name + ".so"; }

const PluginInfo* find(const std::vector<PluginInfo>& plugins, const std::string& file) {
  const auto found = std::find_if(plugins.begin(), plugins.end(),
                                  [&](const PluginInfo& plugin) { return plugin.path.filename() == file; });
  return found == plugins.end() ? nullptr : &*found;
}

/// Everything in one folder at once, loaded into this process: none of these brings it down.
class Loader : public ::testing::TestWithParam<Expectation> {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    make_files(folder_->path());
    fastpath::RegistryOptions options = only(folder_->path());
    options.probe = fastpath::ProbeMode::in_process;
    registry_ = new PluginRegistry(options);
  }
  static void TearDownTestSuite() {
    delete registry_;
    delete folder_;
  }
  static TemporaryFolder* folder_;
  static PluginRegistry* registry_;
};
TemporaryFolder* Loader::folder_ = nullptr;
PluginRegistry* Loader::registry_ = nullptr;

void check(const PluginInfo* plugin, const Expectation& expected) {
  ASSERT_NE(plugin, nullptr);
  EXPECT_EQ(to_string(plugin->state), to_string(expected.state)) << plugin->reason.text;
  EXPECT_EQ(to_string(plugin->reason.code), to_string(expected.code)) << plugin->reason.text;
  EXPECT_THAT(plugin->reason.text, HasSubstr(expected.text));
  EXPECT_EQ(plugin->devices.empty(), plugin->state != PluginState::usable);
  EXPECT_TRUE(plugin->path.is_absolute());
}

TEST_P(Loader, ListsTheFileWithItsStateAndReason) {
  const std::vector<PluginInfo> plugins = registry_->plugins();
  check(find(plugins, file_name(GetParam())), GetParam());
}

void check_steps(const fastpath::ScanReport& report, const Expectation& expected) {
  using Verdict = fastpath::StageReport::Verdict;
  const auto found = std::find_if(report.files.begin(), report.files.end(), [&](const fastpath::FileReport& file) {
    return file.plugin.path.filename() == file_name(expected);
  });
  ASSERT_NE(found, report.files.end());
  ASSERT_EQ(found->stages.size(), static_cast<std::size_t>(fastpath::Stage::kernels) + 1);
  bool failed = false;
  for (std::size_t i = 0; i < found->stages.size(); ++i) {
    const fastpath::StageReport& step = found->stages[i];
    EXPECT_EQ(step.stage, static_cast<fastpath::Stage>(i));
    EXPECT_EQ(step.verdict == Verdict::passed, step.reason.code == ReasonCode::usable) << to_string(step.stage);
    if (step.verdict != Verdict::failed) continue;
    EXPECT_FALSE(failed) << "a second step that failed: " << to_string(step.stage);
    failed = true;
    EXPECT_EQ(step.stage, found->stage);
    EXPECT_EQ(to_string(step.reason.code), to_string(expected.code));
  }
  EXPECT_EQ(failed, expected.state == kRejected || expected.state == kIdle);
}

TEST_P(Loader, ReportsEveryStepInItsOrderUpToTheOneThatEndedIt) { check_steps(registry_->scan_report(), GetParam()); }

/// Each alone in a folder, and tried in a helper process.
class ProbedLoader : public ::testing::TestWithParam<Expectation> {};

TEST_P(ProbedLoader, FindsWhatLoadingItWouldFind) {
  const TemporaryFolder folder;
  zoo::fill(folder.path(), {GetParam().name});
  fastpath::RegistryOptions options = only(folder.path());
  options.probe = fastpath::ProbeMode::helper;
  PluginRegistry registry(options);
  const std::vector<PluginInfo> plugins = registry.plugins();
  check(find(plugins, file_name(GetParam())), GetParam());
  check_steps(registry.scan_report(), GetParam());
}

std::string name_of(const ::testing::TestParamInfo<Expectation>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Built, Loader, ::testing::ValuesIn(built_files()), name_of);
INSTANTIATE_TEST_SUITE_P(Made, Loader, ::testing::ValuesIn(made_files()), name_of);
std::vector<Expectation> built_files_alone() {
  std::vector<Expectation> files = built_files();
  std::erase_if(files, [](const Expectation& file) { return file.state == kShadowed; });
  return files;
}
INSTANTIATE_TEST_SUITE_P(Built, ProbedLoader, ::testing::ValuesIn(built_files_alone()), name_of);

class LoaderOfAll : public Loader {};

TEST_F(LoaderOfAll, ListsEveryFileOnceInTheOrderOfTheirNames) {
  std::vector<std::string> expected;
  for (const auto* files : {&built_files(), &made_files()}) {
    for (const Expectation& expectation : *files) expected.push_back(file_name(expectation));
  }
  std::sort(expected.begin(), expected.end());
  std::vector<std::string> listed;
  for (const PluginInfo& plugin : registry_->plugins()) listed.push_back(plugin.path.filename());
  EXPECT_EQ(listed, expected);
}

TEST_F(LoaderOfAll, TellsWhatAGoodPluginSaysOfItself) {
  const std::vector<PluginInfo> plugins = registry_->plugins();
  const PluginInfo* good = find(plugins, "fastpath_zoo_good.so");
  ASSERT_NE(good, nullptr);
  EXPECT_EQ(good->id, "zoo_good");
  EXPECT_EQ(good->version, "1.2.3");
  EXPECT_EQ(good->vendor, "Zoo");
  EXPECT_EQ(good->build_tag, "zoo");
  EXPECT_EQ(good->device_kinds, std::vector{fastpath::DeviceKind::cpu});
  ASSERT_EQ(good->devices.size(), 1u);
  EXPECT_EQ(good->devices[0].name, "Zoo's \xef\xbf\xbd name");
  ASSERT_EQ(good->kernels.size(), 1u);
  EXPECT_EQ(good->kernels[0].op, "org.example.nothing");
  EXPECT_EQ(good->kernels[0].passes, fastpath::kPassesForces);
  EXPECT_EQ(good->kernels[0].dtypes, std::vector{fastpath::DType::float64});
}

TEST_F(LoaderOfAll, NamesAPluginWithoutMetadataAfterItsFile) {
  const std::vector<PluginInfo> plugins = registry_->plugins();
  const PluginInfo* plugin = find(plugins, "fastpath_zoo_text.so");
  ASSERT_NE(plugin, nullptr);
  EXPECT_EQ(plugin->id, "zoo_text");
}

TEST_F(LoaderOfAll, ListsDevicesOfUsablePluginsAndTheCpuOnce) {
  const std::vector<fastpath::DeviceInfo> devices = registry_->devices();
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(to_string(devices[0].device), "cpu");
  EXPECT_EQ(devices[0].name, fastpath::cpu_info().name);
  EXPECT_EQ(to_string(devices[1].device), "cuda:0");
}

TEST_F(LoaderOfAll, GivesTheSameAnswerToThreadsThatAskAtOnce) {
  PluginRegistry registry(only(folder_->path()));
  std::vector<std::vector<PluginInfo>> answers(4);
  std::vector<std::thread> threads;
  for (auto& answer : answers) threads.emplace_back([&] { answer = registry.plugins(); });
  for (std::thread& thread : threads) thread.join();
  const std::vector<PluginInfo> expected = registry_->plugins();
  for (const auto& answer : answers) {
    ASSERT_EQ(answer.size(), expected.size());
    for (std::size_t i = 0; i < answer.size(); ++i) {
      EXPECT_EQ(answer[i].path, expected[i].path);
      EXPECT_EQ(answer[i].state, expected[i].state);
      EXPECT_EQ(answer[i].reason.text, expected[i].reason.text);
    }
  }
}

TEST(LoaderOptions, DoNotLoadWhatAGlobDisables) {
  const TemporaryFolder folder;
  for (const char* name : {"good", "gpu_only", "query_throws"}) {
    fs::copy_file(built(name), folder.path() / ("fastpath_zoo_" + std::string(name) + ".so"));
  }
  fastpath::RegistryOptions options = only(folder.path());
  options.disable = {"zoo_query_*", "zoo_goo"};
  options.enable = {"zoo_[!g]*", "*_good"};
  PluginRegistry registry(options);
  std::map<std::string, std::pair<PluginState, ReasonCode>> found;
  for (const PluginInfo& plugin : registry.plugins()) found[plugin.id] = {plugin.state, plugin.reason.code};
  EXPECT_EQ(found["zoo_good"], std::pair(PluginState::usable, ReasonCode::usable));
  EXPECT_EQ(found["zoo_gpu_only"], std::pair(PluginState::disabled, ReasonCode::disabled));
  // It would be rejected had its query function been called.
  EXPECT_EQ(found["zoo_query_throws"], std::pair(PluginState::disabled, ReasonCode::disabled));
}

TEST(LoaderOptions, RefuseToLoadAFileThatReplacedALoadedOne) {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "fastpath_zoo_good.so";
  fs::copy_file(built("good"), path);
  fastpath::RegistryOptions options = only(folder.path());
  options.probe = fastpath::ProbeMode::in_process;
  EXPECT_EQ(PluginRegistry(options).plugins().at(0).state, PluginState::usable);
  fs::remove(path);
  fs::copy_file(built("good_again"), path);
  const PluginInfo replaced = PluginRegistry(options).plugins().at(0);
  EXPECT_EQ(replaced.state, PluginState::rejected);
  EXPECT_EQ(replaced.reason.code, ReasonCode::load_failed);
  EXPECT_THAT(replaced.reason.text, HasSubstr("restart"));
}

TEST(LoaderOptions, WorkWithoutAnyPlugin) {
  const TemporaryFolder folder;
  PluginRegistry registry(only(folder.path()));
  EXPECT_TRUE(registry.plugins().empty());
  ASSERT_EQ(registry.devices().size(), 1u);
  EXPECT_TRUE(registry.devices()[0].device.is_cpu());
}

/// Sets variables for one test.
class SearchPath : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"FASTPATH_PLUGIN_PATH", "FASTPATH_PLUGIN_ONLY_PATH", "XDG_DATA_HOME", "HOME"}) {
      const char* value = std::getenv(name);
      before_.emplace_back(name, value == nullptr ? "" : value);
      ::unsetenv(name);
    }
  }
  void TearDown() override {
    for (const auto& [name, value] : before_) {
      if (value.empty())
        ::unsetenv(name.c_str());
      else
        ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  static std::vector<std::pair<std::string, std::string>> entries(const PluginRegistry& registry) {
    std::vector<std::pair<std::string, std::string>> result;
    for (const auto& directory : registry.search_path()) result.emplace_back(directory.source, directory.path.string());
    return result;
  }
  TemporaryFolder folder_;
  std::vector<std::pair<std::string, std::string>> before_;
};

TEST_F(SearchPath, GoesFromTheApiOverTheEnvironmentAndTheUserToLibraryAndSystem) {
  const std::string base = folder_.path().string();
  ::setenv("FASTPATH_PLUGIN_PATH", (base + "/x::" + base + "/y").c_str(), 1);
  ::setenv("HOME", base.c_str(), 1);
  fastpath::RegistryOptions options;
  options.search_paths = {folder_.path()};
  const auto found = entries(PluginRegistry(options));
  ASSERT_EQ(found.size(), 6u);
  EXPECT_EQ(found[0], std::pair(std::string("api"), base));
  EXPECT_EQ(found[1], std::pair(std::string("FASTPATH_PLUGIN_PATH"), base + "/x"));
  EXPECT_EQ(found[2], std::pair(std::string("FASTPATH_PLUGIN_PATH"), base + "/y"));
  EXPECT_EQ(found[3], std::pair(std::string("user"), base + "/.local/share/fastpath/plugins"));
  EXPECT_EQ(found[4].first, "library");
  EXPECT_THAT(found[4].second, HasSubstr("/fastpath/plugins"));
  EXPECT_EQ(found[5].first, "system");
}

TEST_F(SearchPath, PrefersTheDataHomeOfTheUserUnlessItIsRelative) {
  ::setenv("HOME", "/nobody/at/home", 1);
  ::setenv("XDG_DATA_HOME", "/data/home", 1);
  EXPECT_EQ(entries(PluginRegistry())[0].second, "/data/home/fastpath/plugins");
  ::setenv("XDG_DATA_HOME", "data/home", 1);
  EXPECT_EQ(entries(PluginRegistry())[0].second, "/nobody/at/home/.local/share/fastpath/plugins");
}

TEST_F(SearchPath, IsReplacedByTheOnlyPath) {
  const std::string base = folder_.path().string();
  ::setenv("FASTPATH_PLUGIN_PATH", "/elsewhere", 1);
  ::setenv("FASTPATH_PLUGIN_ONLY_PATH", base.c_str(), 1);
  fastpath::RegistryOptions options;
  options.search_paths = {"/also/elsewhere"};
  const auto found = entries(PluginRegistry(options));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], std::pair(std::string("FASTPATH_PLUGIN_ONLY_PATH"), base));
}

TEST_F(SearchPath, IgnoresTheEnvironmentWithoutDefaultPaths) {
  ::setenv("FASTPATH_PLUGIN_PATH", "/elsewhere", 1);
  ::setenv("FASTPATH_PLUGIN_ONLY_PATH", "/elsewhere", 1);
  const auto found = entries(PluginRegistry(only(folder_.path())));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].first, "api");
}

TEST_F(SearchPath, NeverLeadsToTheCurrentDirectory) {
  fs::copy_file(built("good"), folder_.path() / "fastpath_zoo_good.so");
  const fs::path before = fs::current_path();
  fs::current_path(folder_.path());
  ::setenv("FASTPATH_PLUGIN_ONLY_PATH", ".:", 1);
  fastpath::RegistryOptions options;
  PluginRegistry registry(options);
  EXPECT_TRUE(registry.plugins().empty());
  const auto directories = registry.search_path();
  fs::current_path(before);
  ASSERT_EQ(directories.size(), 1u);
  EXPECT_FALSE(directories[0].exists);
  EXPECT_EQ(directories[0].reason.code, ReasonCode::relative_path);
}

TEST_F(SearchPath, SaysWhichDirectoriesDoNotExist) {
  fastpath::RegistryOptions options = only(folder_.path() / "absent");
  options.search_paths.push_back(folder_.path());
  const auto directories = PluginRegistry(options).search_path();
  ASSERT_EQ(directories.size(), 2u);
  EXPECT_FALSE(directories[0].exists);
  EXPECT_EQ(directories[0].reason.code, ReasonCode::no_directory);
  EXPECT_TRUE(directories[1].exists);
  EXPECT_EQ(directories[1].reason.code, ReasonCode::usable);
}

TEST_F(SearchPath, ReadsADirectoryThatIsGivenTwiceOnce) {
  fs::copy_file(built("good"), folder_.path() / "fastpath_zoo_good.so");
  fastpath::RegistryOptions options = only(folder_.path());
  options.search_paths.push_back(folder_.path() / ".");
  EXPECT_EQ(PluginRegistry(options).plugins().size(), 1u);
}

TEST_F(SearchPath, LetsTheFirstOfTwoPluginsWithOneIdWin) {
  for (const char* name : {"first", "second"}) fs::create_directory(folder_.path() / name);
  fs::copy_file(built("good"), folder_.path() / "first/fastpath_zoo_good.so");
  fs::copy_file(built("good_again"), folder_.path() / "second/fastpath_zoo_good.so");
  fastpath::RegistryOptions options = only(folder_.path() / "second");
  options.search_paths.push_back(folder_.path() / "first");
  const auto plugins = PluginRegistry(options).plugins();
  ASSERT_EQ(plugins.size(), 2u);
  EXPECT_EQ(plugins[0].state, PluginState::usable);
  EXPECT_EQ(plugins[0].build_tag, "another build");
  EXPECT_EQ(plugins[1].state, PluginState::shadowed);
}

TEST(CpuInfo, NamesTheProcessor) {
  const fastpath::DeviceInfo& cpu = fastpath::cpu_info();
  EXPECT_TRUE(cpu.device.is_cpu());
  EXPECT_FALSE(cpu.name.empty());
  EXPECT_FALSE(cpu.arch.empty());
  EXPECT_GE(cpu.units, 1u);
  EXPECT_GT(cpu.memory_bytes, 0u);
  EXPECT_EQ(cpu.dtypes, (std::vector{fastpath::DType::float32, fastpath::DType::float64}));
}

}  // namespace
