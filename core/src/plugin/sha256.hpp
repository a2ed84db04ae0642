#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "elf.hpp"
#include "fastpath/sdk/sha256.hpp"

/// SHA-256 of files, in lists of allowed plugins and as a cache key.
namespace fastpath::plugin {

class Sha256 : public sdk::Sha256 {
 public:
  /// How blocks are worked off. The hash is the same.
  enum class Code {
    fastest,   ///< With the CPU's instructions for it where it has them.
    portable,  ///< In C++ alone; for tests.
  };
  explicit Sha256(Code code = Code::fastest) noexcept;
};

/// 64 lower-case hexadecimal digits.
std::string sha256_of(std::span<const std::byte> bytes);
/// Nothing if a read fails, such as in a file that shrinks meanwhile.
std::optional<std::string> sha256_of(const ByteSource& file);

}  // namespace fastpath::plugin
