#include "io/printable.hpp"

#include <fmt/format.h>

namespace fastpath::io {

std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 60;
  std::string result = "'";
  const std::string_view shown = text.substr(0, kLongest);
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
