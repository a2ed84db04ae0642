#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "fastpath/reason.hpp"
#include "io/descriptor.hpp"

/// Who could have written a file. Code is loaded only from files that nobody but root and the user of this process can
/// change, and for that every directory on the way counts: who may write to one may put another file in place.
namespace fastpath::plugin {

/// True if this process has rights that the one who started it lacks (set-user-ID, capabilities): what the environment
/// says is then somebody else's word.
bool is_elevated() noexcept;

/// True if `group` is the group of that user alone: named after the user, the user's first group, without other
/// members. Asks the system's user database.
bool is_private_group(uid_t user, gid_t group);

struct OwnerRules {
  bool check = true;
  bool allow_group_writable = false;
  /// Who may own files and directories besides root.
  std::vector<uid_t> owners = {};
  std::function<bool(uid_t user, gid_t group)> private_group = is_private_group;
};

/// The rules of this process: root and its effective user may own things. In a process with elevated rights the user
/// who started it may not.
OwnerRules owner_rules(bool check, bool allow_group_writable, bool elevated);

using io::Descriptor;

/// Where a path led, and whether the way there is safe.
struct Located {
  enum class Kind { nothing, file, directory };
  Kind kind = Kind::nothing;
  /// A file is open for reading; a directory is open for looking up names in it (O_PATH).
  Descriptor descriptor;
  std::filesystem::path path;  ///< Absolute, without symbolic links, `.` and `..`.
  /// Kind nothing: why (no_directory if the path leads nowhere, unreadable, not_a_file). Otherwise usable,
  /// unsafe_owner or unsafe_mode, naming the first thing on the way that is not safe. It is found all the same.
  Reason reason{ReasonCode::usable, ""};
  bool unsafe_directory = false;  ///< What is not safe is a directory or a link on the way, not the file itself.
  bool safe() const noexcept { return reason.code == ReasonCode::usable; }
};

/// Follows an absolute path name by name, each from the descriptor of the directory before, so that what was checked is
/// what is opened. Devices, pipes and sockets are not opened.
Located locate(const std::filesystem::path& path, const OwnerRules& rules);
/// The same for one name in a directory that was located. What is unsafe about the directory counts for the file.
Located locate_in(const Located& directory, const std::string& name, const OwnerRules& rules);

}  // namespace fastpath::plugin
