#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fastpath::sdk {

/// What SDK code throws for a configuration that makes no sense; the text names what was found and expected.
class ConfigError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// An irreducible representation of O(3): degree l >= 0 and parity, +1 (even, "e") or -1 (odd, "o").
struct Irrep {
  int l = 0;
  int parity = 1;

  constexpr int dim() const noexcept { return 2 * l + 1; }
  friend constexpr bool operator==(const Irrep&, const Irrep&) = default;
  /// Order of docs/conventions.md: by l, odd before even.
  friend constexpr bool operator<(const Irrep& a, const Irrep& b) noexcept {
    return a.l != b.l ? a.l < b.l : a.parity < b.parity;
  }
  std::string text() const { return std::to_string(l) + (parity > 0 ? 'e' : 'o'); }
};

/// `mul` copies of one irrep. Stored `[mul][2l+1]`, component fastest ("mul_ir").
struct IrrepsBlock {
  std::int64_t mul = 1;
  Irrep ir;

  constexpr std::int64_t dim() const noexcept { return mul * ir.dim(); }
  friend constexpr bool operator==(const IrrepsBlock&, const IrrepsBlock&) = default;
};

/// An ordered list of blocks: the layout of one feature row. Text form "128x0e+64x1o"; "" is the empty list.
class Irreps {
 public:
  Irreps() = default;
  explicit Irreps(std::vector<IrrepsBlock> blocks) : blocks_(std::move(blocks)) { update_offsets(); }
  /// Reads "8x0e + 8x1o"; a missing multiplicity means 1, spaces are ignored.
  /// @throws ConfigError naming the text and the bad part.
  static Irreps parse(std::string_view text);

  const std::vector<IrrepsBlock>& blocks() const noexcept { return blocks_; }
  const IrrepsBlock& operator[](std::size_t i) const { return blocks_[i]; }
  std::size_t size() const noexcept { return blocks_.size(); }
  bool empty() const noexcept { return blocks_.empty(); }
  auto begin() const noexcept { return blocks_.begin(); }
  auto end() const noexcept { return blocks_.end(); }
  /// Width of a row.
  std::int64_t dim() const noexcept { return offsets_.empty() ? 0 : offsets_.back(); }
  /// Where block i starts in a row.
  std::int64_t offset(std::size_t i) const { return offsets_[i]; }
  /// Largest degree, -1 if empty.
  int l_max() const noexcept {
    int result = -1;
    for (const IrrepsBlock& block : blocks_) result = std::max(result, block.ir.l);
    return result;
  }
  /// Total multiplicity of one irrep.
  std::int64_t count(Irrep ir) const noexcept {
    std::int64_t result = 0;
    for (const IrrepsBlock& block : blocks_) result += block.ir == ir ? block.mul : 0;
    return result;
  }
  /// Adjacent blocks of equal irrep merged, empty blocks removed.
  Irreps simplified() const;
  /// Stably sorted by irrep; `order[i]` is the old index of new block i, if asked for.
  Irreps sorted(std::vector<std::size_t>* order = nullptr) const;
  /// l = 0..l_max with natural parity (-1)^l, `mul` each.
  static Irreps natural(std::int64_t mul, int l_max);
  std::string text() const;
  friend bool operator==(const Irreps& a, const Irreps& b) { return a.blocks_ == b.blocks_; }

 private:
  void update_offsets();
  std::vector<IrrepsBlock> blocks_;
  std::vector<std::int64_t> offsets_;  // blocks_.size() + 1
};

inline void Irreps::update_offsets() {
  offsets_.assign(1, 0);
  for (const IrrepsBlock& block : blocks_) offsets_.push_back(offsets_.back() + block.dim());
}

inline Irreps Irreps::parse(std::string_view text) {
  std::string packed;
  for (const char c : text) {
    if (c != ' ') packed += c;
  }
  const auto fail = [&](std::string_view part) {
    const auto shown = [](std::string_view whole) {
      constexpr std::size_t kLongest = 60;
      return std::string(whole.substr(0, kLongest)) + (whole.size() > kLongest ? "..." : "");
    };
    throw ConfigError("irreps '" + shown(text) + "': cannot read '" + shown(part) +
                      "', expected multiplicity x degree and parity, as in 8x0e+8x1o");
  };
  std::vector<IrrepsBlock> blocks;
  std::size_t start = 0;
  while (!packed.empty() && start <= packed.size()) {
    const std::size_t stop = std::min(packed.find('+', start), packed.size());
    const std::string_view part = std::string_view(packed).substr(start, stop - start);
    const char* cursor = part.data();
    const char* end = cursor + part.size();
    IrrepsBlock block;
    if (const std::size_t x = part.find('x'); x != std::string_view::npos) {
      const auto [next, status] = std::from_chars(cursor, cursor + x, block.mul);
      if (status != std::errc{} || next != cursor + x || block.mul < 0 || block.mul > (1 << 24)) fail(part);
      cursor += x + 1;
    }
    const auto [next, status] = std::from_chars(cursor, end, block.ir.l);
    if (status != std::errc{} || block.ir.l < 0 || block.ir.l > 64 || end - next != 1 || (*next != 'e' && *next != 'o'))
      fail(part);
    block.ir.parity = *next == 'e' ? 1 : -1;
    blocks.push_back(block);
    start = stop + 1;
  }
  return Irreps(std::move(blocks));
}

inline Irreps Irreps::simplified() const {
  std::vector<IrrepsBlock> merged;
  for (const IrrepsBlock& block : blocks_) {
    if (block.mul == 0) continue;
    if (!merged.empty() && merged.back().ir == block.ir) {
      merged.back().mul += block.mul;
    } else {
      merged.push_back(block);
    }
  }
  return Irreps(std::move(merged));
}

inline Irreps Irreps::sorted(std::vector<std::size_t>* order) const {
  std::vector<std::size_t> index(blocks_.size());
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = i;
  std::stable_sort(index.begin(), index.end(),
                   [&](std::size_t a, std::size_t b) { return blocks_[a].ir < blocks_[b].ir; });
  std::vector<IrrepsBlock> blocks;
  for (const std::size_t i : index) blocks.push_back(blocks_[i]);
  if (order != nullptr) *order = std::move(index);
  return Irreps(std::move(blocks));
}

inline Irreps Irreps::natural(std::int64_t mul, int l_max) {
  std::vector<IrrepsBlock> blocks;
  for (int l = 0; l <= l_max; ++l) blocks.push_back({mul, {l, l % 2 == 0 ? 1 : -1}});
  return Irreps(std::move(blocks));
}

inline std::string Irreps::text() const {
  std::string result;
  for (const IrrepsBlock& block : blocks_) {
    if (!result.empty()) result += '+';
    result += std::to_string(block.mul) + 'x' + block.ir.text();
  }
  return result;
}

}  // namespace fastpath::sdk
