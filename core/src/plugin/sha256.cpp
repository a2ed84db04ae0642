#include "sha256.hpp"

#include <algorithm>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace fastpath::plugin {
namespace {

#if defined(__x86_64__)
/// The same with SHA-NI, which keeps the words as (A, B, E, F) and (C, D, G, H), most significant first, and makes four
/// words of the schedule, or two rounds, at a time.
__attribute__((target("sha,sse4.1"))) void work_x86(Sha256::State& state, const std::byte* blocks,
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
      const __m128i constants =
          _mm_load_si128(reinterpret_cast<const __m128i*>(sdk::detail::kSha256Round.data() + 4 * i));
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

bool has_x86_code() noexcept {
  static const bool result = [] {
    constexpr unsigned kSha = 1u << 29;  // leaf 7, EBX
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __builtin_cpu_supports("sse4.1") != 0 && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (b & kSha) != 0;
  }();
  return result;
}
#endif

sdk::Sha256::Work work_of([[maybe_unused]] Sha256::Code code) noexcept {
#if defined(__x86_64__)
  if (code == Sha256::Code::fastest && has_x86_code()) return work_x86;
#endif
  return sdk::detail::sha256_portable;
}

}  // namespace

Sha256::Sha256(Code code) noexcept : sdk::Sha256(work_of(code)) {}

std::string sha256_of(std::span<const std::byte> bytes) {
  Sha256 hash;
  hash.add(bytes);
  return hash.finish();
}

std::optional<std::string> sha256_of(const ByteSource& file) {
  constexpr std::size_t kPiece = 1u << 18;
  Sha256 hash;
  std::vector<std::byte> buffer(static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, file.size())));
  for (std::uint64_t at = 0; at < file.size(); at += buffer.size()) {
    const auto piece =
        std::span(buffer).first(static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), file.size() - at)));
    if (!file.read(at, piece)) return std::nullopt;
    hash.add(piece);
  }
  return hash.finish();
}

}  // namespace fastpath::plugin
