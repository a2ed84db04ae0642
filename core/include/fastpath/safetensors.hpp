#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "fastpath/export.hpp"
#include "fastpath/module.hpp"

namespace fastpath {

/// The content of a safetensors file.
struct SafetensorsFile {
  StateDict tensors;                            ///< In file order (by data offset). They share the mapping of the file.
  std::map<std::string, std::string> metadata;  ///< `__metadata__`.
};

/// Maps a file and checks it completely before any tensor is handed out: header size, JSON, duplicate names, dtypes,
/// shapes against byte counts, offsets inside the file, no overlap and no hole.
/// The tensors are read-only views: writing to them is undefined; clone() first. They keep the mapping alive.
/// @throws Error(not_found), Error(io) or Error(bad_file), naming the file, the tensor, what was found and expected.
FASTPATH_EXPORT SafetensorsFile read_safetensors(const std::filesystem::path& path);

/// Writes tensors in the given order, header padded to 8 bytes. Non-contiguous tensors are packed.
/// Writes to a temporary file beside `path`, flushes and renames: an existing file is replaced whole or not at all.
/// @throws Error(io) naming the path; nothing is left behind.
FASTPATH_EXPORT void write_safetensors(const std::filesystem::path& path, const StateDict& tensors,
                                       const std::map<std::string, std::string>& metadata = {});

}  // namespace fastpath
