#pragma once

#include <array>
#include <cstdint>

#include "fastpath/sdk/kernel.hpp"
#include "product.hpp"

/// Edges that run both ways between the same two atoms have the same length, and so the same radial weights.
namespace cpu_simd {

/// Distances that a tile has: the net's values at them and its slopes fill the rows of a tile.
inline constexpr std::int64_t kTileDistances = kTile / 2;

/// Which edge runs the other way: it has sender and receiver exchanged, exactly the opposite vector, and the same
/// length. Whatever lists a host brings, two edges are a pair only if each is the first that fits the other.
template <class T>
struct Reverses {
  const fastpath::sdk::HostGraph& graph;
  const T *vectors, *lengths;
  std::int64_t* first;  ///< [edges]: by find(), or negative where there is none.

  void find(std::int64_t begin, std::int64_t end) const {
    for (std::int64_t e = begin; e < end; ++e) {
      const std::int64_t s = graph.sender[e];
      const std::int32_t r = graph.receiver[e];
      first[e] = -1;
      if (s >= graph.n_receivers) continue;  // a ghost
      for (std::int64_t k = graph.receiver_ptr[s]; k < graph.receiver_ptr[s + 1]; ++k) {
        if (graph.sender[k] != r || !opposite(e, k)) continue;
        first[e] = k;
        break;
      }
    }
  }
  /// Of an edge, once all of them were looked for; negative where it has none.
  std::int64_t of(std::int64_t e) const {
    const std::int64_t other = first[e];
    return other >= 0 && other != e && first[other] == e ? other : -1;
  }

 private:
  bool opposite(std::int64_t a, std::int64_t b) const {
    const T *const u = vectors + 3 * a, *const v = vectors + 3 * b;
    return lengths[a] == lengths[b] && u[0] == -v[0] && u[1] == -v[1] && u[2] == -v[2];
  }
};

/// Distances that are worked on together, and their edges: one or two each.
struct PairTile {
  std::int64_t n_distances = 0;
  std::int64_t n = 0;  ///< Edges. The first n_distances of them are one of each distance.
  std::array<std::int64_t, kTile> edge;
  std::array<std::int32_t, kTile> sender, receiver;
  std::array<std::int32_t, kTile> distance;  ///< Of an edge.

  /// The tile that begins with edge `from`, or the first one after it that does not belong to an earlier one, and has
  /// such edges below `to`, with those that run the other way. @param next  Out: where the following tile begins.
  template <class T>
  PairTile(const Reverses<T>& reverses, std::int64_t from, std::int64_t to, std::int64_t& next) {
    const auto put = [&](std::int64_t e, std::int64_t of_distance) {
      const auto at = static_cast<std::size_t>(n++);
      edge[at] = e;
      sender[at] = reverses.graph.sender[e];
      receiver[at] = reverses.graph.receiver[e];
      distance[at] = static_cast<std::int32_t>(of_distance);
    };
    std::int64_t e = from;
    for (; e < to && n < kTileDistances; ++e) {
      const std::int64_t other = reverses.of(e);
      if (other < 0 || other > e) put(e, n);
    }
    next = e;
    n_distances = n;
    for (std::int64_t i = 0; i < n_distances; ++i) {
      const std::int64_t other = reverses.of(edge[static_cast<std::size_t>(i)]);
      if (other >= 0) put(other, i);
    }
  }
  /// Distances, filled up to whole blocks of rows.
  std::int64_t rows(std::int64_t block) const { return (n_distances + block - 1) / block * block; }
};

}  // namespace cpu_simd
