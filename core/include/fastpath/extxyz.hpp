#pragma once

#include <filesystem>
#include <iosfwd>
#include <string>
#include <vector>

#include "fastpath/export.hpp"
#include "fastpath/structure.hpp"

namespace fastpath {

/// Reads every frame of an extended-XYZ file.
/// Understands quoted and bracketed values, `Lattice`, `pbc`, `Properties` with extra columns, `species` or `Z`, CRLF
/// line ends, Fortran exponents, plain XYZ without properties, several frames, and blank lines at the end of the file.
/// Without `pbc` a frame with a lattice is periodic in all directions and one without in none.
/// @throws Error(not_found) or Error(io) if the file cannot be read, Error(bad_file) with file, line and column
/// otherwise.
FASTPATH_EXPORT std::vector<Structure> read_extxyz(const std::filesystem::path& path);
/// The same from text; `name` stands for the file in messages.
FASTPATH_EXPORT std::vector<Structure> parse_extxyz(std::string_view text, const std::string& name);

/// Writes frames such that read_extxyz gives back the same numbers. `info` and `columns` are written as they are.
FASTPATH_EXPORT void write_extxyz(std::ostream& out, const std::vector<Structure>& frames);
/// Writes to a temporary file beside `path` and renames it: an existing file is replaced whole or not at all.
/// @throws Error(io) naming the path; nothing is left behind.
FASTPATH_EXPORT void write_extxyz(const std::filesystem::path& path, const std::vector<Structure>& frames);

}  // namespace fastpath
