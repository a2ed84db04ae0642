#pragma once

#include <optional>
#include <string>

#include "elf.hpp"
#include "fastpath/sdk/sha256.hpp"

/// SHA-256 of files, in lists of allowed plugins and as a cache key.
namespace fastpath::plugin {

using sdk::Sha256;
using sdk::sha256_of;
/// Nothing if a read fails, such as in a file that shrinks meanwhile.
std::optional<std::string> sha256_of(const ByteSource& file);

}  // namespace fastpath::plugin
