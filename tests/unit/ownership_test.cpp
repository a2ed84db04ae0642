#include "plugin/ownership.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace fastpath::plugin {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr uid_t kNobody = 65534;

/// A folder of its own, which no link leads to.
class Ownership : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::canonical(fs::temp_directory_path()) / "fastpath-ownership-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    rules_ = owner_rules(true, false, false);
    rules_.private_group = [](uid_t, gid_t) { return false; };
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path file(const std::string& name, mode_t mode = 0644) {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << name;
    ::chmod(path.c_str(), mode);
    return path;
  }
  fs::path directory(const std::string& name, mode_t mode = 0755) {
    fs::create_directories(folder_ / name);
    ::chmod((folder_ / name).c_str(), mode);
    return folder_ / name;
  }
  Located at(const fs::path& path) const { return locate(path, rules_); }
  std::string code(const fs::path& path) const { return std::string(to_string(at(path).reason.code)); }

  fs::path folder_;
  OwnerRules rules_;
};

TEST_F(Ownership, LetsAFileOfThisUserPassAndOpensIt) {
  const fs::path path = file("a/b/x");
  const Located found = at(path);
  EXPECT_EQ(found.kind, Located::Kind::file);
  EXPECT_TRUE(found.safe()) << found.reason.text;
  EXPECT_EQ(found.path, path);
  std::array<char, 5> text{};
  ASSERT_EQ(::read(found.descriptor.get(), text.data(), text.size()), 5);
  EXPECT_EQ(std::string(text.data(), text.size()), "a/b/x");
}

TEST_F(Ownership, ResolvesDotsAndLinksOfBothKinds) {
  const fs::path path = file("a/b/x");
  fs::create_directory_symlink("a", folder_ / "relative");
  fs::create_directory_symlink(folder_ / "a/b", folder_ / "absolute");
  fs::create_symlink("../../relative/./b/x", folder_ / "a/b/link");
  for (const char* name : {"relative/b/x", "absolute/x", "a/../a/./b//x", "absolute/link", "absolute/../b/x"}) {
    const Located found = at(folder_ / name);
    EXPECT_EQ(found.path, path) << name;
    EXPECT_TRUE(found.safe()) << found.reason.text;
  }
  EXPECT_EQ(at("/../..").path, "/");
}

TEST_F(Ownership, SaysWhyAPathLeadsNowhere) {
  file("x");
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_EQ(code(folder_ / "absent"), "no_directory");
  EXPECT_EQ(code(folder_ / "x/y"), "no_directory");
  EXPECT_EQ(code(folder_ / "loop"), "no_directory");
  EXPECT_EQ(code("x"), "relative_path");
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(code(folder_ / "pipe"), "not_a_file");
  EXPECT_EQ(code("/dev/null"), "not_a_file");
}

TEST_F(Ownership, RefusesWhatOthersMayWrite) {
  EXPECT_EQ(code(file("file", 0646)), "unsafe_mode");
  EXPECT_EQ(code(file("group", 0664)), "unsafe_mode");
  file("open/below/x");
  directory("open", 0777);
  const Located found = at(folder_ / "open/below/x");
  EXPECT_EQ(found.kind, Located::Kind::file);
  EXPECT_EQ(to_string(found.reason.code), "unsafe_mode");
  EXPECT_TRUE(found.unsafe_directory);
  EXPECT_EQ(found.reason.text,
            "everybody may write to the directory '" + (folder_ / "open").string() + "' (mode 0777)");
  EXPECT_FALSE(at(folder_ / "file").unsafe_directory);
}

TEST_F(Ownership, RefusesALinkThroughADirectoryThatOthersMayWrite) {
  const fs::path path = file("real/x");
  directory("open", 0777);
  fs::create_symlink("../real/x", folder_ / "open/link");
  fs::create_symlink("open/link", folder_ / "link");
  const Located found = at(folder_ / "link");
  EXPECT_EQ(found.path, path);
  EXPECT_THAT(found.reason.text, HasSubstr("'" + (folder_ / "open").string() + "'"));
}

TEST_F(Ownership, TrustsOnlyRootsStickyDirectories) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make directories of root";
  file("sticky/x");
  directory("sticky", 01777);
  EXPECT_EQ(code(folder_ / "sticky/x"), "usable");
  file("mine/x");
  directory("mine", 01777);
  rules_.owners = {kNobody};
  ASSERT_EQ(::chown((folder_ / "mine").c_str(), kNobody, 0), 0);
  EXPECT_EQ(code(folder_ / "mine/x"), "unsafe_mode");
  // A file is not a directory: the bit means nothing there.
  EXPECT_EQ(code(file("file", 01666)), "unsafe_mode");
}

TEST_F(Ownership, RefusesWhatBelongsToAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
  ASSERT_EQ(::chown(file("x").c_str(), kNobody, 0), 0);
  const Located found = at(folder_ / "x");
  EXPECT_EQ(found.reason.text,
            "the file '" + (folder_ / "x").string() + "' belongs to user 65534; it must belong to root");
  EXPECT_EQ(to_string(found.reason.code), "unsafe_owner");
  file("directory/x");
  ASSERT_EQ(::chown((folder_ / "directory").c_str(), kNobody, 0), 0);
  EXPECT_EQ(code(folder_ / "directory/x"), "unsafe_owner");
  // Its owner could make it lead elsewhere after it was looked at.
  file("y");
  fs::create_symlink("y", folder_ / "link");
  ASSERT_EQ(::lchown((folder_ / "link").c_str(), kNobody, 0), 0);
  EXPECT_EQ(code(folder_ / "link"), "unsafe_owner");
  rules_.owners = {kNobody};
  for (const char* name : {"x", "directory/x", "link"}) EXPECT_EQ(code(folder_ / name), "usable") << name;
  rules_.owners = {kNobody - 1};
  EXPECT_THAT(at(folder_ / "x").reason.text, HasSubstr("root or to user 65533, who runs this program"));
}

TEST_F(Ownership, TrustsAGroupThatIsTheOwnersAloneOrThatWasAllowed) {
  const fs::path path = file("x", 0664);
  EXPECT_THAT(at(path).reason.text, HasSubstr("group " + std::to_string(::getegid()) + " may write to the file"));
  std::vector<std::pair<uid_t, gid_t>> asked;
  rules_.private_group = [&](uid_t user, gid_t group) {
    asked.emplace_back(user, group);
    return true;
  };
  EXPECT_EQ(code(path), "usable");
  EXPECT_THAT(asked, ::testing::ElementsAre(std::pair(::geteuid(), ::getegid())));
  rules_.private_group = [](uid_t, gid_t) { return false; };
  rules_.allow_group_writable = true;
  EXPECT_EQ(code(path), "usable");
  EXPECT_EQ(code(file("others", 0666)), "unsafe_mode");
}

TEST_F(Ownership, LooksBeyondTheGroupWhereThereIsAnAccessList) {
  const fs::path path = file("x", 0644);
  // Version 2 of the kernel's format: the owner, user 65534, the group, the mask and the others.
  struct Entry {
    std::uint16_t tag, permissions;
    std::uint32_t id;
  };
  struct {
    std::uint32_t version = 2;
    std::array<Entry, 5> entries{{{0x01, 6, ~0u}, {0x02, 6, kNobody}, {0x04, 4, ~0u}, {0x10, 6, ~0u}, {0x20, 4, ~0u}}};
  } list;
  static_assert(sizeof list == 44);
  if (::setxattr(path.c_str(), "system.posix_acl_access", &list, sizeof list, 0) != 0) {
    GTEST_SKIP() << "no access lists in the temporary directory: errno " << errno;
  }
  rules_.private_group = [](uid_t, gid_t) { return true; };
  EXPECT_EQ(code(path), "unsafe_mode");
  EXPECT_THAT(at(path).reason.text, HasSubstr("access list"));
  rules_.allow_group_writable = true;
  EXPECT_EQ(code(path), "usable");
}

TEST_F(Ownership, ChecksNothingWhereItIsSwitchedOff) {
  rules_.check = false;
  file("open/x", 0666);
  directory("open", 0777);
  EXPECT_EQ(code(folder_ / "open/x"), "usable");
}

TEST_F(Ownership, CountsWhatIsUnsafeAboutADirectoryForItsFiles) {
  file("open/x");
  directory("open", 0777);
  const Located open = at(folder_ / "open");
  EXPECT_EQ(open.kind, Located::Kind::directory);
  const Located found = locate_in(open, "x", rules_);
  EXPECT_EQ(found.kind, Located::Kind::file);
  EXPECT_EQ(found.path, folder_ / "open/x");
  EXPECT_EQ(found.reason.text, open.reason.text);
  EXPECT_TRUE(found.unsafe_directory);
}

TEST(OwnerRules, TakeRootAndTheEffectiveUserUnlessItIsTheOneWhoStartedAnElevatedProcess) {
  EXPECT_EQ(owner_rules(true, false, false).owners, std::vector{::geteuid()});
  // The effective user is the real one here: what is elevated is something else, such as capabilities.
  EXPECT_TRUE(owner_rules(true, false, true).owners.empty());
}

TEST(PrivateGroup, IsNamedAfterItsUserAndHasNoOtherMember) {
  // Whether the machine has such a user is read from its files, by a way of this test's own.
  const auto fields = [](const char* path) {
    std::vector<std::vector<std::string>> rows;
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
      rows.emplace_back(1);
      for (const char c : line) {
        if (c == ':') {
          rows.back().emplace_back();
        } else {
          rows.back().back() += c;
        }
      }
    }
    return rows;
  };
  int compared = 0;
  for (const auto& user : fields("/etc/passwd")) {
    if (user.size() != 7) continue;
    for (const auto& group : fields("/etc/group")) {
      if (group.size() != 4) continue;
      const bool expected = user[3] == group[2] && user[0] == group[0] && (group[3].empty() || group[3] == user[0]);
      EXPECT_EQ(is_private_group(static_cast<uid_t>(std::stoul(user[2])), static_cast<gid_t>(std::stoul(group[2]))),
                expected)
          << user[0] << " and " << group[0];
      ++compared;
    }
  }
  if (compared == 0) GTEST_SKIP() << "no users and groups in /etc";
  EXPECT_FALSE(is_private_group(4'000'000'000u, 4'000'000'000u));
}

}  // namespace
}  // namespace fastpath::plugin
