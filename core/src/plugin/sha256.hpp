#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "elf.hpp"

/// SHA-256 as FIPS 180-4 defines it: the name of a file's content, in lists of allowed plugins and as a cache key.
namespace fastpath::plugin {

/// The hash of bytes that come piece by piece.
class Sha256 {
 public:
  /// How blocks are worked off. The hash is the same.
  enum class Code {
    fastest,   ///< With the CPU's instructions for it where it has them.
    portable,  ///< In C++ alone; for tests.
  };
  explicit Sha256(Code code = Code::fastest) noexcept;
  void add(std::span<const std::byte> bytes) noexcept;
  /// The hash of everything that was added, as 64 lower-case hexadecimal digits; ends the use of this object.
  std::string finish();

  static constexpr std::size_t kBlock = 64;
  using State = std::array<std::uint32_t, 8>;

 private:
  void (*work_)(State& state, const std::byte* blocks, std::size_t count) noexcept;
  State state_;
  std::array<std::byte, kBlock> pending_{};
  std::uint64_t size_ = 0;  // of everything added, in bytes
};

/// 64 lower-case hexadecimal digits.
std::string sha256_of(std::span<const std::byte> bytes);
/// Nothing if a read fails, such as in a file that shrinks meanwhile.
std::optional<std::string> sha256_of(const ByteSource& file);

}  // namespace fastpath::plugin
