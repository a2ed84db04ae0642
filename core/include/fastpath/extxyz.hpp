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
/// A comment line that is no list of `key=value` is kept whole under the key `comment`; an array of arrays is read as
/// one array, row by row. `species` may hold symbols or atomic numbers. A frame of 0 atoms is legal, a file of 0 frames
/// is not. Memory is bounded by the size of the file, whatever numbers of atoms and columns it claims. Without `pbc` a
/// frame with a lattice is periodic in all directions and one without in none.
/// @throws Error(not_found) or Error(io) if the file cannot be read, Error(bad_file) with file, line and column
/// otherwise.
FASTPATH_EXPORT std::vector<Structure> read_extxyz(const std::filesystem::path& path);
/// The same from text; `name` stands for the file in messages.
FASTPATH_EXPORT std::vector<Structure> parse_extxyz(std::string_view text, const std::string& name);

/// Writes frames such that read_extxyz gives back the same frames, every number to the last bit. `info` and `columns`
/// are written as they are.
/// @throws Error(invalid_argument) naming the frame and what cannot be written: sizes that do not match, a position or
/// cell
///         that is not finite, a periodic axis without a lattice vector, an unknown element, an empty, repeated or
///         reserved name (Lattice, Properties, pbc; species, pos, Z). Error(io) if the stream fails.
///         Frames before that one are then written.
FASTPATH_EXPORT void write_extxyz(std::ostream& out, const std::vector<Structure>& frames);
/// Writes to a temporary file beside `path` and renames it: an existing file is replaced whole or not at all.
/// @throws as above, Error(io) naming the path; nothing is left behind.
FASTPATH_EXPORT void write_extxyz(const std::filesystem::path& path, const std::vector<Structure>& frames);

}  // namespace fastpath
