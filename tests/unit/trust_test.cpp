#include "plugin/trust.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fastpath/error.hpp"
#include "plugin/scan.hpp"

namespace fastpath::plugin {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kHash(64, 'a');
const std::string kOther = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789ABCDEF";

/// Runs `body` and returns the Error that it throws.
template <class Body>
Error error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::internal, "nothing was thrown");
}

TEST(AllowListText, IsThatOfSha256sum) {
  const AllowList list =
      AllowList::parse("# by hand\n\n" + kHash + "  /usr/lib/a name.so\n" + kOther + " *b.so\n\\" +
                           std::string(64, 'b') + "  with\\na line end\r\n" + std::string(64, 'c') + "  no line end",
                       "list");
  EXPECT_EQ(list.size(), 4u);
  EXPECT_TRUE(list.contains(kHash));
  EXPECT_TRUE(list.contains("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"));
  EXPECT_TRUE(list.contains(std::string(64, 'b')));
  EXPECT_TRUE(list.contains(std::string(64, 'c')));
  EXPECT_FALSE(list.contains(std::string(64, 'd')));
  EXPECT_EQ(AllowList::parse("", "list").size(), 0u);
}

TEST(AllowListText, ThatIsMalformedIsAnErrorNamingItsLine) {
  for (const std::string& line : std::vector<std::string>{
           "x", kHash, kHash + "  ", kHash + " a.so", kHash + "\t a.so", kHash.substr(1) + "   a.so",
           "g" + kHash.substr(1) + "  a.so", " # comment", "SHA256 (a.so) = " + kHash, std::string(1, '\0')}) {
    const Error error =
        error_of([&] { AllowList::parse("# first\n" + kHash + "  a.so\n" + line + "\n", "/etc/list"); });
    EXPECT_EQ(error.code(), ErrorCode::bad_file) << line;
    EXPECT_THAT(error.what(), AllOf(HasSubstr("/etc/list:3: "), HasSubstr("64 hexadecimal digits"))) << line;
  }
}

/// A folder and an environment of its own.
class Trust : public ::testing::Test {
 protected:
  static constexpr const char* kVariables[] = {
      "FASTPATH_CHECK_OWNER", "FASTPATH_ALLOW_GROUP_WRITABLE", "FASTPATH_TRUST", "FASTPATH_ALLOW_LIST",
      "FASTPATH_PLUGIN_PATH", "FASTPATH_PLUGIN_ONLY_PATH",     "HOME",           "XDG_DATA_HOME"};
  void SetUp() override {
    for (const char* name : kVariables) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      ::unsetenv(name);
    }
    std::string pattern = (fs::temp_directory_path() / "fastpath-trust-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  void TearDown() override {
    fs::remove_all(folder_);
    for (const char* name : kVariables) ::unsetenv(name);
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }
  fs::path write(const std::string& text) {
    const fs::path path = folder_ / "list";
    std::ofstream(path) << text;
    return path;
  }
  static OwnerRules rules() { return owner_rules(true, false, false); }

  fs::path folder_;
  std::map<std::string, std::string> before_;
};

TEST_F(Trust, ListIsReadFromAFile) {
  EXPECT_TRUE(AllowList::read(write(kHash + "  a.so\n"), rules()).contains(kHash));
  EXPECT_EQ(AllowList::read(write(""), rules()).size(), 0u);
}

TEST_F(Trust, ListThatCannotBeUsedIsAnErrorNamingIt) {
  const fs::path path = folder_ / "list";
  const auto error = [&] { return error_of([&] { AllowList::read(path, rules()); }); };
  EXPECT_EQ(error().code(), ErrorCode::not_found);
  EXPECT_THAT(error().what(), HasSubstr(path.string()));
  fs::create_directory(path);
  EXPECT_EQ(error().code(), ErrorCode::io);
  fs::remove(path);
  write(kHash + "  a.so\nhello\n");
  EXPECT_THAT(error().what(), HasSubstr(path.string() + ":2: "));
  write(std::string(kMaxAllowList + 1, '\n'));
  EXPECT_EQ(error().code(), ErrorCode::bad_file);
  EXPECT_THAT(error().what(), HasSubstr("at most"));
}

TEST_F(Trust, ListThatOthersMayWriteIsNone) {
  const fs::path path = write(kHash + "  a.so\n");
  ASSERT_EQ(::chmod(path.c_str(), 0666), 0);
  const Error error = error_of([&] { AllowList::read(path, rules()); });
  EXPECT_EQ(error.code(), ErrorCode::bad_file);
  EXPECT_THAT(error.what(), HasSubstr("everybody may write to the file"));
  EXPECT_EQ(AllowList::read(path, owner_rules(false, false, false)).size(), 1u);
}

TEST_F(Trust, IsWhatTheEnvironmentSaysWhereTheHostSaysNothing) {
  const RegistryOptions plain = with_environment({}, false);
  EXPECT_TRUE(plain.check_owner);
  EXPECT_FALSE(plain.allow_group_writable);
  EXPECT_EQ(plain.trust, TrustMode::off);
  EXPECT_EQ(plain.allow_list, fs::path());

  ::setenv("FASTPATH_CHECK_OWNER", "0", 1);
  ::setenv("FASTPATH_ALLOW_GROUP_WRITABLE", "1", 1);
  ::setenv("FASTPATH_TRUST", "warn", 1);
  ::setenv("FASTPATH_ALLOW_LIST", "/etc/list", 1);
  const RegistryOptions set = with_environment({}, false);
  EXPECT_FALSE(set.check_owner);
  EXPECT_TRUE(set.allow_group_writable);
  EXPECT_EQ(set.trust, TrustMode::warn);
  EXPECT_EQ(set.allow_list, "/etc/list");

  RegistryOptions host;
  host.trust = TrustMode::require;
  host.allow_list = "/opt/list";
  const RegistryOptions kept = with_environment(host, false);
  EXPECT_EQ(kept.trust, TrustMode::require);
  EXPECT_EQ(kept.allow_list, "/opt/list");
  ::setenv("FASTPATH_TRUST", "", 1);
  EXPECT_EQ(with_environment({}, false).trust, TrustMode::off);
}

TEST_F(Trust, DoesNotListenToTheEnvironmentOfAnElevatedProcess) {
  ::setenv("FASTPATH_CHECK_OWNER", "0", 1);
  ::setenv("FASTPATH_ALLOW_GROUP_WRITABLE", "1", 1);
  ::setenv("FASTPATH_TRUST", "nonsense", 1);
  ::setenv("FASTPATH_ALLOW_LIST", "/etc/list", 1);
  const RegistryOptions options = with_environment({}, true);
  EXPECT_TRUE(options.check_owner);
  EXPECT_FALSE(options.allow_group_writable);
  EXPECT_EQ(options.trust, TrustMode::off);
  EXPECT_EQ(options.allow_list, fs::path());
}

TEST_F(Trust, ThatMeansNothingIsAnErrorNamingTheVariable) {
  const auto error_with = [](const char* name, const char* value) {
    ::setenv(name, value, 1);
    const Error error = error_of([] { PluginRegistry registry; });
    ::unsetenv(name);
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << name;
    return std::string(error.what());
  };
  EXPECT_EQ(error_with("FASTPATH_CHECK_OWNER", "no"), "FASTPATH_CHECK_OWNER is 'no', expected 0 or 1");
  EXPECT_EQ(error_with("FASTPATH_ALLOW_GROUP_WRITABLE", "2"), "FASTPATH_ALLOW_GROUP_WRITABLE is '2', expected 0 or 1");
  EXPECT_THAT(error_with("FASTPATH_TRUST", "on"), AllOf(HasSubstr("FASTPATH_TRUST: "), HasSubstr("require")));
  EXPECT_THAT(error_with("FASTPATH_TRUST", "require"), HasSubstr("there is no list of allowed plugins"));
  ::setenv("FASTPATH_TRUST", "warn", 1);
  EXPECT_THAT(error_with("FASTPATH_ALLOW_LIST", "list"), HasSubstr("'list', which is relative"));
}

TEST_F(Trust, ElevatedProcessesSearchNothingThatTheCallerNames) {
  ::setenv("FASTPATH_PLUGIN_PATH", "/a:/b", 1);
  ::setenv("FASTPATH_PLUGIN_ONLY_PATH", "/c", 1);
  ::setenv("HOME", "/home/caller", 1);
  RegistryOptions options;
  options.search_paths = {folder_};
  std::vector<std::string> listed;
  for (const SearchDirectory& directory : search_path(options, true)) {
    const bool ignored = directory.reason.code == ReasonCode::ignored_elevated;
    EXPECT_FALSE(ignored && directory.exists);
    listed.push_back(directory.source + (ignored ? " ignored" : ""));
  }
  EXPECT_THAT(listed, ::testing::ElementsAre("FASTPATH_PLUGIN_ONLY_PATH ignored", "api", "FASTPATH_PLUGIN_PATH ignored",
                                             "FASTPATH_PLUGIN_PATH ignored", "user ignored", "library", "system"));
  EXPECT_EQ(search_path(options, false).size(), 1u);
}

}  // namespace
}  // namespace fastpath::plugin
