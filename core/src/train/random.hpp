#pragma once

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace fastpath::training {

/// A generator whose whole state is one number, equal on every platform (SplitMix64: Steele, Lea, Flood, 2014).
class Random {
 public:
  explicit Random(std::uint64_t state = 0) : state_(state) {}
  /// One of several independent streams of a seed.
  Random(std::uint64_t seed, std::uint64_t stream) : state_(seed) {
    state_ = next() ^ (stream * 0xD1342543DE82EF95ull);
  }

  std::uint64_t state() const { return state_; }
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  /// Uniform in 0..bound-1.
  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t excess = (UINT64_MAX % bound + 1) % bound;  // values that would favour small results
    std::uint64_t value = next();
    while (value > UINT64_MAX - excess) value = next();
    return value % bound;
  }
  /// 0..n-1 in random order.
  std::vector<std::int64_t> permutation(std::int64_t n) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(n));
    std::iota(order.begin(), order.end(), std::int64_t{0});
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[below(i)]);
    return order;
  }

 private:
  std::uint64_t state_;
};

}  // namespace fastpath::training
