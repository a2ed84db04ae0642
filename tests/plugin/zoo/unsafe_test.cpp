#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "fastpath/error.hpp"
#include "fastpath/registry.hpp"

/// Good plugins in places that others may write to, or that belong to somebody else, and lists of allowed plugins.
namespace {

namespace fs = std::filesystem;
using fastpath::FileReport;
using fastpath::PluginRegistry;
using fastpath::PluginState;
using fastpath::ReasonCode;
using fastpath::RegistryOptions;
using fastpath::TrustMode;
using ::testing::HasSubstr;

constexpr uid_t kNobody = 65534;
constexpr const char* kVariables[] = {"FASTPATH_CHECK_OWNER", "FASTPATH_ALLOW_GROUP_WRITABLE", "FASTPATH_TRUST",
                                      "FASTPATH_ALLOW_LIST"};

fs::path built(const std::string& name) { return fs::path(FASTPATH_ZOO) / ("fastpath_zoo_" + name + ".so"); }

/// A folder with the good plugin in it, and none of the user's settings.
class UnsafePlugin : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : kVariables) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      ::unsetenv(name);
    }
    std::string pattern = (fs::canonical(fs::temp_directory_path()) / "fastpath-unsafe-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    options_.search_paths = {folder_ / "plugins"};
    options_.default_paths = false;
    fs::create_directory(folder_ / "plugins");
    add("good");
  }
  void TearDown() override {
    fs::remove_all(folder_);
    for (const char* name : kVariables) ::unsetenv(name);
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  fs::path add(const std::string& name) {
    const fs::path path = folder_ / "plugins" / built(name).filename();
    fs::copy_file(built(name), path);
    ::chmod(path.c_str(), 0644);
    return path;
  }
  fs::path good() const { return folder_ / "plugins/fastpath_zoo_good.so"; }
  static void mode(const fs::path& path, mode_t bits) { ASSERT_EQ(::chmod(path.c_str(), bits), 0) << path; }
  /// The report on the file of this name.
  FileReport report(const std::string& file = "fastpath_zoo_good.so") {
    for (FileReport& report : PluginRegistry(options_).scan_report().files) {
      if (report.plugin.path.filename() == file) return report;
    }
    ADD_FAILURE() << "no report on " << file;
    return {};
  }
  void expect_rejected(ReasonCode code, const std::string& text) {
    const FileReport found = report();
    EXPECT_EQ(to_string(found.plugin.state), "rejected");
    EXPECT_EQ(to_string(found.plugin.reason.code), to_string(code));
    EXPECT_THAT(found.plugin.reason.text, HasSubstr(text));
  }
  void expect_usable() {
    const FileReport found = report();
    EXPECT_EQ(to_string(found.plugin.state), "usable") << found.plugin.reason.text;
  }

  fs::path folder_;
  RegistryOptions options_;
  std::map<std::string, std::string> before_;
};

TEST_F(UnsafePlugin, IsNoneWhereOnlyThisUserAndRootMayWrite) {
  expect_usable();
  EXPECT_EQ(report().sha256.size(), 64u);
  EXPECT_EQ(report().trust, "unchecked");
}

TEST_F(UnsafePlugin, IsAFileThatEverybodyMayWrite) {
  mode(good(), 0666);
  expect_rejected(ReasonCode::unsafe_mode, "everybody may write to the file '" + good().string() + "' (mode 0666)");
  // What it says of itself is told all the same.
  EXPECT_EQ(report().plugin.version, "1.2.3");
  options_.check_owner = false;
  expect_usable();
}

TEST_F(UnsafePlugin, IsEveryFileOfADirectoryThatEverybodyMayWrite) {
  mode(folder_ / "plugins", 0777);
  add("gpu_only");
  PluginRegistry registry(options_);
  EXPECT_EQ(registry.search_path().at(0).reason.code, ReasonCode::unsafe_mode);
  EXPECT_TRUE(registry.search_path().at(0).exists);
  const auto plugins = registry.plugins();
  ASSERT_EQ(plugins.size(), 2u);
  for (const auto& plugin : plugins) {
    EXPECT_EQ(plugin.state, PluginState::rejected);
    EXPECT_EQ(plugin.reason.code, ReasonCode::unsafe_mode);
    EXPECT_THAT(plugin.reason.text, HasSubstr("directory '" + (folder_ / "plugins").string() + "'"));
  }
}

TEST_F(UnsafePlugin, IsAFileBelowADirectoryThatEverybodyMayWrite) {
  mode(folder_, 0777);
  expect_rejected(ReasonCode::unsafe_mode, "directory '" + folder_.string() + "' (mode 0777)");
}

TEST_F(UnsafePlugin, IsALinkIntoADirectoryThatEverybodyMayWrite) {
  fs::create_directory(folder_ / "open");
  fs::rename(good(), folder_ / "open/x.so");
  fs::create_symlink(folder_ / "open/x.so", good());
  expect_usable();
  mode(folder_ / "open", 0777);
  expect_rejected(ReasonCode::unsafe_mode, "directory '" + (folder_ / "open").string() + "'");
}

TEST_F(UnsafePlugin, IsWhatASharedGroupMayWriteUnlessThatWasAllowed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files to any group";
  ASSERT_EQ(::chown(good().c_str(), 0, kNobody), 0);
  ASSERT_EQ(::chown((folder_ / "plugins").c_str(), 0, kNobody), 0);
  mode(folder_ / "plugins", 02775);
  mode(good(), 0664);
  expect_rejected(ReasonCode::unsafe_mode, "group 65534 may write to the directory");
  mode(folder_ / "plugins", 0755);
  expect_rejected(ReasonCode::unsafe_mode, "group 65534 may write to the file");
  mode(folder_ / "plugins", 02775);
  options_.allow_group_writable = true;
  expect_usable();
  options_.allow_group_writable = false;
  ::setenv("FASTPATH_ALLOW_GROUP_WRITABLE", "1", 1);
  expect_usable();
}

TEST_F(UnsafePlugin, IsAFileOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(::chown(good().c_str(), kNobody, 0), 0);
  expect_rejected(ReasonCode::unsafe_owner, "file '" + good().string() + "' belongs to user 65534");
  ::setenv("FASTPATH_CHECK_OWNER", "0", 1);
  expect_usable();
}

TEST_F(UnsafePlugin, IsAFileBelowADirectoryOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(::chown(folder_.c_str(), kNobody, 0), 0);
  expect_rejected(ReasonCode::unsafe_owner, "directory '" + folder_.string() + "' belongs to user 65534");
}

TEST_F(UnsafePlugin, DoesNotKeepASafeCopyFromBeingUsed) {
  fs::create_directory(folder_ / "second");
  fs::copy_file(good(), folder_ / "second/fastpath_other.so");
  mode(good(), 0666);
  options_.search_paths.push_back(folder_ / "second");
  expect_rejected(ReasonCode::unsafe_mode, "everybody");
  EXPECT_EQ(report("fastpath_other.so").plugin.state, PluginState::usable);
}

TEST_F(UnsafePlugin, CopiesAndHardLinksAreRecognisedWhateverTheirNames) {
  fs::create_hard_link(good(), folder_ / "plugins/fastpath_zz_link.so");
  fs::copy_file(good(), folder_ / "plugins/fastpath_zz_copy.so");
  EXPECT_EQ(report("fastpath_zz_link.so").plugin.reason.text, "the same file as " + good().string());
  EXPECT_EQ(report("fastpath_zz_copy.so").plugin.reason.text, "the same content as " + good().string());
  EXPECT_EQ(report("fastpath_zz_copy.so").plugin.reason.code, ReasonCode::duplicate);
}

TEST_F(UnsafePlugin, FilesByPathComeFirstWhateverTheirNames) {
  fs::copy_file(good(), folder_ / "vendor.so.1");
  options_.files = {folder_ / "vendor.so.1"};
  const auto plugins = PluginRegistry(options_).plugins();
  ASSERT_EQ(plugins.size(), 2u);
  EXPECT_EQ(plugins[0].path, folder_ / "vendor.so.1");
  EXPECT_EQ(plugins[0].state, PluginState::usable);
  EXPECT_EQ(plugins[1].reason.code, ReasonCode::duplicate);
  options_.files = {"vendor.so.1"};
  EXPECT_EQ(PluginRegistry(options_).plugins().at(0).reason.code, ReasonCode::relative_path);
}

/// A list of allowed plugins that names some.
class TrustedPlugin : public UnsafePlugin {
 protected:
  void list(const std::string& text) {
    options_.allow_list = folder_ / "allowed";
    std::ofstream(options_.allow_list) << text;
  }
};

TEST_F(TrustedPlugin, IsOneThatTheListNamesAndOthersAreRejectedBeforeTheyRun) {
  // Its query function would be a reason of its own.
  add("query_throws");
  list(report().sha256 + "  good.so\n");
  options_.trust = TrustMode::require;
  EXPECT_EQ(report().trust, "trusted");
  expect_usable();
  const FileReport other = report("fastpath_zoo_query_throws.so");
  EXPECT_EQ(other.trust, "not_listed");
  EXPECT_EQ(to_string(other.plugin.reason.code), "untrusted");
  EXPECT_EQ(other.plugin.reason.text, "its SHA-256 " + other.sha256 + " is not in " + options_.allow_list.string());
}

TEST_F(TrustedPlugin, IsSaidToBeNoneWhereTheListIsForWarnings) {
  list("# nothing yet\n");
  options_.trust = TrustMode::warn;
  EXPECT_EQ(report().trust, "not_listed");
  expect_usable();
}

TEST_F(TrustedPlugin, IsNoLongerOneAfterAByteOfItChanged) {
  list(report().sha256 + "  good.so\n");
  options_.trust = TrustMode::require;
  std::ofstream(good(), std::ios::app) << ' ';
  expect_rejected(ReasonCode::untrusted, "is not in");
}

TEST_F(TrustedPlugin, MustBeNamedByALineOfSha256sum) {
  list("good.so\n");
  options_.trust = TrustMode::require;
  PluginRegistry registry(options_);
  // Each time, not the first time alone.
  for (int i = 0; i < 2; ++i) {
    try {
      registry.plugins();
      ADD_FAILURE() << "accepted";
    } catch (const fastpath::Error& error) {
      EXPECT_EQ(error.code(), fastpath::ErrorCode::bad_file);
      EXPECT_THAT(error.what(), HasSubstr((folder_ / "allowed").string() + ":1: "));
    }
  }
  options_.allow_list.clear();
  EXPECT_THROW(PluginRegistry{options_}, fastpath::Error);
}

}  // namespace
