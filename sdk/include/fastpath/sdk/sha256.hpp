#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

/// SHA-256 as FIPS 180-4 defines it: the name of a file's content, and the key of what is kept between processes.
namespace fastpath::sdk {

/// The hash of bytes that come piece by piece.
class Sha256 {
 public:
  static constexpr std::size_t kBlock = 64;
  using State = std::array<std::uint32_t, 8>;
  /// Works off whole blocks.
  using Work = void (*)(State& state, const std::byte* blocks, std::size_t count) noexcept;

  Sha256() noexcept;
  /// @param work  Code of a CPU's own that gives the same.
  explicit Sha256(Work work) noexcept;
  void add(std::span<const std::byte> bytes) noexcept;
  /// The hash of everything that was added, as 64 lower-case hexadecimal digits; ends the use of this object.
  std::string finish();

 private:
  Work work_;
  State state_;
  std::array<std::byte, kBlock> pending_{};
  std::uint64_t size_ = 0;  // of everything added, in bytes
};

/// 64 lower-case hexadecimal digits.
std::string sha256_of(std::span<const std::byte> bytes);
// ---------------------------------------------------------------------------------------------------------------------

namespace detail {

// FIPS 180-4, 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64 primes.
alignas(16) inline constexpr std::array<std::uint32_t, 64> kSha256Round{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// 5.3.3: the same of the square roots of the first eight primes.
inline constexpr Sha256::State kSha256Initial{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

static_assert(std::endian::native == std::endian::little, "words are read with their bytes reversed");

inline std::uint32_t big_endian(const std::byte* at) noexcept {
  std::uint32_t word;
  std::memcpy(&word, at, sizeof word);
  return __builtin_bswap32(word);
}

/// 6.2.2, with the names of the standard.
inline void sha256_portable(Sha256::State& state, const std::byte* blocks, std::size_t count) noexcept {
  for (; count > 0; --count, blocks += Sha256::kBlock) {
    std::array<std::uint32_t, 64> w;
    for (std::size_t t = 0; t < 16; ++t) w[t] = big_endian(blocks + 4 * t);
    for (std::size_t t = 16; t < 64; ++t) {
      const std::uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
      const std::uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
      w[t] = s1 + w[t - 7] + s0 + w[t - 16];
    }
    auto [a, b, c, d, e, f, g, h] = state;
    for (std::size_t t = 0; t < 64; ++t) {
      const std::uint32_t sum1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const std::uint32_t sum0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const std::uint32_t t1 = h + sum1 + ((e & f) ^ (~e & g)) + kSha256Round[t] + w[t];
      const std::uint32_t t2 = sum0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g;
      g = f;
      f = e;
      e = d + t1;
      d = c;
      c = b;
      b = a;
      a = t1 + t2;
    }
    const Sha256::State result{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < state.size(); ++i) state[i] += result[i];
  }
}

}  // namespace detail

inline Sha256::Sha256() noexcept : Sha256(detail::sha256_portable) {}
inline Sha256::Sha256(Work work) noexcept : work_(work), state_(detail::kSha256Initial) {}

inline void Sha256::add(std::span<const std::byte> bytes) noexcept {
  if (bytes.empty()) return;
  const auto filled = static_cast<std::size_t>(size_ % kBlock);
  size_ += bytes.size();
  if (filled > 0) {
    const std::size_t piece = std::min(kBlock - filled, bytes.size());
    std::memcpy(pending_.data() + filled, bytes.data(), piece);
    bytes = bytes.subspan(piece);
    if (filled + piece < kBlock) return;
    work_(state_, pending_.data(), 1);
  }
  const std::size_t blocks = bytes.size() / kBlock;
  work_(state_, bytes.data(), blocks);
  bytes = bytes.subspan(blocks * kBlock);
  if (!bytes.empty()) std::memcpy(pending_.data(), bytes.data(), bytes.size());
}

inline std::string Sha256::finish() {
  // 5.1.1: a one, zeros, and the length in bits as the last eight bytes of a block.
  constexpr std::size_t kLength = 8;
  std::array<std::byte, 2 * kBlock> padding{};
  padding[0] = std::byte{0x80};
  const std::uint64_t bits = __builtin_bswap64(size_ * 8);
  const auto filled = static_cast<std::size_t>(size_ % kBlock);
  const std::size_t padded = (filled + 1 + kLength <= kBlock ? kBlock : 2 * kBlock) - filled;
  std::memcpy(padding.data() + padded - kLength, &bits, kLength);
  add(std::span(padding).first(padded));

  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string result;
  for (const std::uint32_t word : state_) {
    for (int shift = 28; shift >= 0; shift -= 4) result += kDigits[(word >> shift) & 15u];
  }
  return result;
}

inline std::string sha256_of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.finish();
}

}  // namespace fastpath::sdk
