#include "sha256.hpp"

#include <algorithm>
#include <vector>

namespace fastpath::plugin {

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
