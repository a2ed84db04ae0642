#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_set>

#include "fastpath/registry.hpp"
#include "ownership.hpp"

/// What makes a plugin trusted besides who owns its file: a list of the contents that may be loaded.
namespace fastpath::plugin {

/// The SHA-256 of files that are allowed.
class AllowList {
 public:
  /// Reads lines as `sha256sum` writes them: 64 hexadecimal digits, a space, a space or `*`, a name. Lines that are
  /// empty or begin with `#` say nothing. The names are for people.
  /// @param name  Of the list, for messages.
  /// @throws Error(bad_file) naming the list and the line.
  static AllowList parse(std::string_view text, const std::string& name);
  /// Reads a file. One that others could have written is no list.
  /// @throws Error(not_found), Error(io), Error(bad_file) naming the file, and the line where there is one.
  static AllowList read(const std::filesystem::path& path, const OwnerRules& rules);

  /// @param sha256  64 lower-case hexadecimal digits.
  bool contains(const std::string& sha256) const { return hashes_.count(sha256) > 0; }
  std::size_t size() const noexcept { return hashes_.size(); }

 private:
  std::unordered_set<std::string> hashes_;
};

/// A larger list is refused.
inline constexpr std::size_t kMaxAllowList = std::size_t{4} << 20;

/// Options with what FASTPATH_CHECK_OWNER, FASTPATH_ALLOW_GROUP_WRITABLE, FASTPATH_TRUST and FASTPATH_ALLOW_LIST say
/// about those that have their default; nothing of it in a process with elevated rights.
/// @throws Error(invalid_argument) naming a variable whose value is none, a list that is not given as an absolute path,
/// or that a list is required and not given.
RegistryOptions with_environment(RegistryOptions options, bool elevated = is_elevated());

}  // namespace fastpath::plugin
