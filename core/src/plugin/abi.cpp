#include "abi.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fastpath::plugin {
namespace {

/// Length of the UTF-8 sequence at the start of `text`, or 0 if it is not one.
std::size_t sequence_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t length = lead < 0x80                   ? 1
                             : lead >= 0xc2 && lead < 0xe0 ? 2
                             : lead >= 0xe0 && lead < 0xf0 ? 3
                             : lead >= 0xf0 && lead < 0xf5 ? 4
                                                           : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Overlong forms, surrogates, and what lies past U+10FFFF.
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;
  if (lead == 0xed && byte(1) > 0x9f) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;
  return length;
}

}  // namespace

std::string abi_text(std::uint32_t version) { return fmt::format("{}.{}", version >> 16, version & 0xffffu); }

std::string abi_conflict(std::uint32_t abi_version, std::uint32_t abi_min, std::uint32_t abi_max) {
  if (abi_version == 0) return "built without an ABI version (0)";
  if (abi_min > abi_max || abi_version < abi_min || abi_version > abi_max) {
    return fmt::format("contradicts itself: built for ABI {}, serves {} to {}", abi_text(abi_version),
                       abi_text(abi_min), abi_text(abi_max));
  }
  if (abi_min <= kHostAbiMax && abi_max >= kHostAbiMin) return {};
  return fmt::format("serves ABI {} to {}, host speaks {} to {}", abi_text(abi_min), abi_text(abi_max),
                     abi_text(kHostAbiMin), abi_text(kHostAbiMax));
}

std::string clean_text(std::string_view text, std::size_t limit) {
  static constexpr std::string_view kReplacement = "\xef\xbf\xbd";
  std::string result;
  result.reserve(std::min(text.size(), limit));
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = sequence_length(text.substr(i));
    const auto lead = static_cast<unsigned char>(text[i]);
    std::string_view piece = length == 0 ? kReplacement : text.substr(i, length);
    if (length == 1 && (lead < 0x20 || lead == 0x7f)) piece = " ";
    if (result.size() + piece.size() > limit) break;
    result += piece;
    i += std::max<std::size_t>(length, 1);
  }
  while (!result.empty() && result.back() == ' ') result.pop_back();
  return result;
}

}  // namespace fastpath::plugin
