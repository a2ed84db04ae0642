#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "fastpath/structure.hpp"

namespace fastpath::io {

/// One `key=value` of a comment line, with the offsets of both in the line.
struct CommentEntry {
  std::string key;
  Values value;
  std::size_t key_at = 0;
  std::size_t value_at = 0;
};

/// What is wrong with a line, and where in it.
struct Malformed {
  std::size_t at;
  std::string what;
};

/// Takes the comment line of a frame apart. A key without a value is true; a line that is no list of `key=value`
/// becomes one entry `comment`, unless it begins with one or sets Lattice, Properties or pbc.
/// @throws Malformed
std::vector<CommentEntry> parse_comment(std::string_view line);

/// The text of a quoted word whose quote stands at `line[at]`; moves `at` behind the closing one.
/// @throws Malformed if it is not closed.
std::string parse_quoted(std::string_view line, std::size_t& at);

}  // namespace fastpath::io
