#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "elf.hpp"
#include "fastpath/registry.hpp"

namespace fastpath::plugin {

/// Which bytes a path named when it was looked at.
struct FileIdentity {
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t modified_ns = 0;
  /// The same file, whatever its content.
  bool same_file(const FileIdentity& other) const noexcept { return device == other.device && inode == other.inode; }
  friend bool operator==(const FileIdentity&, const FileIdentity&) = default;
};

/// One file `fastpath_*.so` of a search directory, examined but not loaded.
struct Candidate {
  std::filesystem::path path;      ///< Absolute, as found.
  std::filesystem::path resolved;  ///< Without symbolic links: what is loaded.
  FileIdentity identity;
  std::string id;  ///< From the metadata; the file name without prefix and suffix where there is none.
  std::optional<Metadata> metadata;
  /// `usable` with an empty text if the file may be loaded.
  PluginState state = PluginState::rejected;
  Reason reason;
};

/// Where plugins are looked for, in order. Reads the environment; creates nothing.
std::vector<SearchDirectory> search_path(const RegistryOptions& options);

/// Every file of the directories in search order, each with what is known without loading it: rejected by its content,
/// disabled, shadowed (a copy, or an id that came earlier), or `usable` so far.
/// Notes in a directory's reason that it cannot be read.
std::vector<Candidate> scan(std::vector<SearchDirectory>& directories, const RegistryOptions& options);

/// Identity of what `path` names now, or nothing.
std::optional<FileIdentity> identify(const std::filesystem::path& path);

}  // namespace fastpath::plugin
