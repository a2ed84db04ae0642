#include "io/printable.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fastpath::io {

std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string result = "'";
  std::size_t length = std::min(text.size(), kLongest);
  // Not in the middle of a character.
  while (length > 0 && length < text.size() && (static_cast<unsigned char>(text[length]) & 0xc0u) == 0x80u) --length;
  const std::string_view shown = text.substr(0, length);
  for (const char c : shown) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\x{:02x}", byte);
    } else {
      result += c;
    }
  }
  if (shown.size() < text.size()) result += "...";
  return result + "'";
}

}  // namespace fastpath::io
