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

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

/// SHA-256 as FIPS 180-4 defines it: the name of a file's content, and the key of what is kept between processes.
namespace fastpath::sdk {

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

#if defined(__x86_64__)
/// The same with SHA-NI, which keeps the words as (A, B, E, F) and (C, D, G, H), most significant first, and makes four
/// words of the schedule, or two rounds, at a time.
__attribute__((target("sha,sse4.1"))) inline void sha256_x86(Sha256::State& state, const std::byte* blocks,
                                                             std::size_t count) noexcept {
  const auto word = [&](std::size_t i) { return static_cast<int>(state[i]); };
  __m128i abef = _mm_set_epi32(word(0), word(1), word(4), word(5));
  __m128i cdgh = _mm_set_epi32(word(2), word(3), word(6), word(7));
  const __m128i reversed = _mm_set_epi8(12, 13, 14, 15, 8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3);
  for (; count > 0; --count, blocks += Sha256::kBlock) {
    const __m128i abef_before = abef;
    const __m128i cdgh_before = cdgh;
    __m128i w[4];  // the 16 words of the schedule before the next one
    for (std::size_t i = 0; i < 4; ++i) {
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks + 16 * i)), reversed);
    }
    for (std::size_t i = 0; i < 16; ++i) {
      const __m128i constants = _mm_load_si128(reinterpret_cast<const __m128i*>(kSha256Round.data() + 4 * i));
      const __m128i sum = _mm_add_epi32(w[i % 4], constants);
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
      const __m128i& last = w[(i + 3) % 4];
      const __m128i seven_back = _mm_alignr_epi8(last, w[(i + 2) % 4], 4);
      w[i % 4] = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w[i % 4], w[(i + 1) % 4]), seven_back), last);
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  Sha256::State words;  // least significant first: F, E, B, A and H, G, D, C
  _mm_storeu_si128(reinterpret_cast<__m128i*>(words.data()), abef);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(words.data() + 4), cdgh);
  state = {words[3], words[2], words[7], words[6], words[1], words[0], words[5], words[4]};
}

inline bool has_sha256_x86() noexcept {
  static const bool result = [] {
    constexpr unsigned kSha = 1u << 29;  // leaf 7, EBX
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("sse4.1") != 0 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kSha) != 0;
  }();
  return result;
}
#endif

}  // namespace detail

inline Sha256::Sha256([[maybe_unused]] Code code) noexcept
    : work_(detail::sha256_portable), state_(detail::kSha256Initial) {
#if defined(__x86_64__)
  if (code == Code::fastest && detail::has_sha256_x86()) work_ = detail::sha256_x86;
#endif
}

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
