#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "elf.hpp"
#include "fastpath/registry.hpp"
#include "ownership.hpp"

namespace fastpath::plugin {

/// Which bytes a path named when it was looked at.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t modified_ns = 0, changed_ns = 0;
  /// The same file, whatever its content.
  bool same_file(const FileIdentity& other) const noexcept { return device == other.device && inode == other.inode; }
  /// The same file with the same content. Its time of change counts for nothing: a new link or mode changes that too.
  bool unchanged(const FileIdentity& other) const noexcept {
    return same_file(other) && size == other.size && modified_ns == other.modified_ns;
  }
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// One file `fastpath_*.so` of a search directory, examined but not loaded.
struct Candidate {
  std::filesystem::path path;      ///< Absolute, as found.
  std::filesystem::path resolved;  ///< Without symbolic links: what is loaded.
  FileIdentity identity;
  std::string id;  ///< From the metadata; the file name without prefix and suffix where there is none.
  std::optional<Metadata> metadata;
  std::string sha256;             ///< 64 hexadecimal digits; empty where the content was not read.
  std::string trust;              ///< As in FileReport.
  bool unsafe_directory = false;  ///< What is wrong is the owner or mode of a directory above it.
  /// `usable` with an empty text if the file may be loaded.
  PluginState state = PluginState::rejected;
  Reason reason;
};

/// The step that a candidate which is rejected did not pass.
Stage stage_of(const Candidate& candidate);

/// What reading a file brought to light. Depends on its bytes and on this build of the library alone.
struct Examination {
  std::string sha256;
  std::optional<Metadata> metadata;
  Reason reason;  ///< `usable`, or what is wrong with it.
};

/// What is known from earlier about files: an identical file need not be read again.
class ExaminationMemo {
 public:
  virtual ~ExaminationMemo() = default;
  /// Null if nothing is known about the file of this path and identity. Valid until the next call.
  virtual const Examination* find(const std::filesystem::path& resolved, const FileIdentity& identity) = 0;
  virtual void keep(const std::filesystem::path& resolved, const FileIdentity& identity, const Examination& found) = 0;
};

/// Where plugins are looked for, in order. Reads the environment; creates nothing. In a process with elevated rights
/// what the environment and the user's home name is listed as ignored_elevated.
std::vector<SearchDirectory> search_path(const RegistryOptions& options, bool elevated = is_elevated());

/// The files that the options name and every file of the directories in search order, each with what is known without
/// loading it: rejected by its owner, its content or the list of allowed plugins, disabled, shadowed (a copy, or an id
/// that came earlier), or `usable` so far. What is unsafe about a directory is the reason of each of its files.
/// @param memo  Null: every file is read.
/// Notes in a directory's reason that it cannot be read. @throws Error as AllowList::read() does.
std::vector<Candidate> scan(std::vector<SearchDirectory>& directories, const RegistryOptions& options,
                            ExaminationMemo* memo = nullptr, bool elevated = is_elevated());

/// Identity of what `path` names now, or nothing.
std::optional<FileIdentity> identify(const std::filesystem::path& path);
/// Identity of an open file.
std::optional<FileIdentity> identify(int descriptor);

}  // namespace fastpath::plugin
