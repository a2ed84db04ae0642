#include "ownership.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <string_view>
#include <system_error>
#include <utility>

namespace fastpath::plugin {
namespace {

namespace fs = std::filesystem;

// As many as the kernel follows.
constexpr int kMaxLinks = 40;
constexpr mode_t kPermissions = 07777;

std::string error_text(int code) { return std::error_code(code, std::generic_category()).message(); }

/// True unless the mode bits are all there is to say about who may write: with an access list the bits of the group are
/// the most that anybody in the list has.
bool has_access_list(int descriptor) {
  const std::string name = fmt::format("/proc/self/fd/{}", descriptor);
  const ssize_t size = ::getxattr(name.c_str(), "system.posix_acl_access", nullptr, 0);
  return size > 0 || (size < 0 && errno != ENODATA && errno != ENOTSUP);
}

/// Whether nobody but those whom the rules name could have written this.
Reason check(int descriptor, const struct stat& status, const fs::path& path, const OwnerRules& rules) {
  const Reason fine{ReasonCode::usable, ""};
  if (!rules.check) return fine;
  const std::string what = fmt::format("{} '{}'",
                                       S_ISDIR(status.st_mode)   ? "directory"
                                       : S_ISLNK(status.st_mode) ? "link"
                                                                 : "file",
                                       path.string());
  if (status.st_uid != 0 && std::find(rules.owners.begin(), rules.owners.end(), status.st_uid) == rules.owners.end()) {
    std::string accepted = "root";
    for (const uid_t user : rules.owners) {
      if (user != 0) accepted += fmt::format(" or to user {}, who runs this program", user);
    }
    return {ReasonCode::unsafe_owner,
            fmt::format("the {} belongs to user {}; it must belong to {}", what, status.st_uid, accepted)};
  }
  if (S_ISLNK(status.st_mode)) return fine;  // its mode means nothing
  const bool by_group = (status.st_mode & S_IWGRP) != 0;
  const bool by_others = (status.st_mode & S_IWOTH) != 0;
  // In a sticky directory nobody can replace what belongs to somebody else.
  const bool sticky = S_ISDIR(status.st_mode) && status.st_uid == 0 && (status.st_mode & S_ISVTX) != 0;
  if ((!by_group && !by_others) || sticky) return fine;
  const auto unsafe = [&](const std::string& who) {
    return Reason{ReasonCode::unsafe_mode,
                  fmt::format("{} may write to the {} (mode {:04o})", who, what, status.st_mode & kPermissions)};
  };
  if (by_others) return unsafe("everybody");
  if (rules.allow_group_writable) return fine;
  if (has_access_list(descriptor)) return unsafe(fmt::format("group {}, or who is in its access list,", status.st_gid));
  if (rules.private_group(status.st_uid, status.st_gid)) return fine;
  return unsafe(fmt::format("group {}", status.st_gid));
}

/// Goes along a path; `result_` is where it is.
class Walk {
 public:
  explicit Walk(const OwnerRules& rules) : rules_(rules) {}

  /// Begins at the root of the file system.
  bool start() {
    result_.path = "/";
    result_.kind = Located::Kind::directory;
    result_.descriptor = Descriptor(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
    return result_.descriptor ? enter(result_.path) : fail(errno);
  }
  /// Begins at a directory that was walked to before.
  bool start(const Located& directory) {
    result_.path = directory.path;
    result_.kind = Located::Kind::directory;
    result_.reason = directory.reason;
    result_.unsafe_directory = !directory.safe();
    result_.descriptor = Descriptor(::fcntl(directory.descriptor.get(), F_DUPFD_CLOEXEC, 0));
    return result_.descriptor ? true : fail(errno);
  }

  /// Takes the names of a path; false when it cannot go on.
  bool follow(const fs::path& path) {
    std::vector<std::string> names;  // the next one last
    push(names, path);
    while (!names.empty()) {
      const std::string name = std::move(names.back());
      names.pop_back();
      if (name.empty() || name == ".") continue;
      if (!step(name, names)) return false;
    }
    return true;
  }

  Located take() { return std::move(result_); }

 private:
  static void push(std::vector<std::string>& names, const fs::path& path) {
    std::vector<std::string> parts;
    for (const fs::path& part : path.relative_path()) parts.push_back(part.string());
    names.insert(names.end(), std::make_move_iterator(parts.rbegin()), std::make_move_iterator(parts.rend()));
  }

  bool fail(int code) {
    const bool nowhere = code == ENOENT || code == ENOTDIR || code == ELOOP;
    return fail({nowhere ? ReasonCode::no_directory : ReasonCode::unreadable,
                 code == ENOENT ? "it does not exist" : error_text(code)});
  }
  bool fail(Reason reason) {
    result_ = Located{};
    result_.reason = std::move(reason);
    return false;
  }

  /// Notes what is unsafe about the thing that is open; the first such thing is what is told.
  void note(int descriptor, const struct stat& status, const fs::path& path) {
    if (!result_.safe()) return;
    result_.reason = check(descriptor, status, path, rules_);
    result_.unsafe_directory = !result_.safe() && !S_ISREG(status.st_mode);
  }
  /// Looks at the directory that was just opened.
  bool enter(const fs::path& path) {
    struct stat status {};
    if (::fstat(result_.descriptor.get(), &status) != 0) return fail(errno);
    note(result_.descriptor.get(), status, path);
    return true;
  }

  bool step(const std::string& name, std::vector<std::string>& names) {
    if (result_.kind != Located::Kind::directory) return fail(ENOTDIR);
    const int directory = result_.descriptor.get();
    Descriptor next(::openat(directory, name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
    struct stat status {};
    if (!next || ::fstat(next.get(), &status) != 0) return fail(errno);
    const fs::path path = name == ".." ? result_.path.parent_path() : result_.path / name;

    if (S_ISLNK(status.st_mode)) {
      note(next.get(), status, path);
      if (++links_ > kMaxLinks) return fail(ELOOP);
      std::array<char, PATH_MAX> target;
      const ssize_t size = ::readlinkat(next.get(), "", target.data(), target.size());
      if (size < 0) return fail(errno);
      const fs::path leads(std::string(target.data(), static_cast<std::size_t>(size)));
      push(names, leads);
      if (!leads.is_absolute()) return true;
      result_.path = "/";
      result_.descriptor = Descriptor(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
      return result_.descriptor ? enter(result_.path) : fail(errno);
    }
    if (S_ISDIR(status.st_mode)) {
      note(next.get(), status, path);
      result_.descriptor = std::move(next);
      result_.path = path;
      return true;
    }
    if (!S_ISREG(status.st_mode)) return fail({ReasonCode::not_a_file, "not a regular file"});

    // Another file may have taken its place meanwhile: what counts is the one that is open now.
    next = Descriptor(::openat(directory, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
    if (!next || ::fstat(next.get(), &status) != 0) return fail(errno);
    if (!S_ISREG(status.st_mode)) return fail({ReasonCode::not_a_file, "not a regular file"});
    note(next.get(), status, path);
    result_.kind = Located::Kind::file;
    result_.descriptor = std::move(next);
    result_.path = path;
    return true;
  }

  const OwnerRules& rules_;
  Located result_;
  int links_ = 0;
};

}  // namespace

bool is_elevated() noexcept { return ::getauxval(AT_SECURE) != 0; }

bool is_private_group(uid_t user, gid_t group) {
  constexpr std::size_t kMost = 1u << 20;
  std::vector<char> buffer(1u << 12);
  passwd user_entry{};
  passwd* user_found = nullptr;
  while (::getpwuid_r(user, &user_entry, buffer.data(), buffer.size(), &user_found) == ERANGE) {
    if (buffer.size() >= kMost) return false;
    buffer.resize(buffer.size() * 2);
  }
  if (user_found == nullptr || user_found->pw_gid != group) return false;
  const std::string name = user_found->pw_name;

  ::group group_entry{};
  ::group* group_found = nullptr;
  while (::getgrgid_r(group, &group_entry, buffer.data(), buffer.size(), &group_found) == ERANGE) {
    if (buffer.size() >= kMost) return false;
    buffer.resize(buffer.size() * 2);
  }
  if (group_found == nullptr || name != group_found->gr_name) return false;
  for (char** member = group_found->gr_mem; *member != nullptr; ++member) {
    if (name != *member) return false;
  }
  return true;
}

OwnerRules owner_rules(bool check, bool allow_group_writable, bool elevated) {
  OwnerRules rules;
  rules.check = check;
  rules.allow_group_writable = allow_group_writable;
  if (!elevated || ::geteuid() != ::getuid()) rules.owners = {::geteuid()};
  return rules;
}

Located locate(const fs::path& path, const OwnerRules& rules) {
  Walk walk(rules);
  // A relative path would begin in the current directory.
  if (!path.is_absolute()) {
    Located result;
    result.reason = {ReasonCode::relative_path, fmt::format("'{}' is relative; it must be absolute", path.string())};
    return result;
  }
  if (walk.start()) walk.follow(path);
  return walk.take();
}

Located locate_in(const Located& directory, const std::string& name, const OwnerRules& rules) {
  Walk walk(rules);
  if (walk.start(directory)) walk.follow(fs::path(name));
  return walk.take();
}

}  // namespace fastpath::plugin
