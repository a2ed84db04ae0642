#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "fastpath/sdk/coupling.hpp"
#include "fastpath/sdk/kernel.hpp"
#include "fastpath/sdk/ops.hpp"
#include "ops.hpp"

/// What the tensor product of node features and edges needs to know, for every instruction set.
namespace cpu_simd {

/// Edges that are worked on together: a multiple of every number of lanes and of the rows of a product of matrices.
inline constexpr std::int64_t kTile = 48;
/// Receivers that one tile may have.
inline constexpr std::int64_t kTileReceivers = 16;
/// Channels are filled up to whole cache lines, which are whole vectors of every instruction set.
template <class T>
constexpr std::int64_t padded(std::int64_t n) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  return (n + kLine - 1) / kLine * kLine;
}

/// Memory on whole cache lines.
template <class T>
class AlignedArray {
 public:
  void resize(std::int64_t n) {
    const std::size_t bytes = (static_cast<std::size_t>(n) * sizeof(T) + 63) / 64 * 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, std::max<std::size_t>(bytes, 64))));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  T* data() const { return data_.get(); }

 private:
  struct Free {
    void operator()(T* pointer) const { std::free(pointer); }
  };
  std::unique_ptr<T, Free> data_;
};

/// Rows of features in the order of the kernels: per block [component][channel], channels filled up with zeros. Rows of
/// the host are [channel][component] without filling.
template <class T>
struct FeatureRows {
  struct Block {
    std::int64_t mul, padded, dim;
    std::int64_t from;  ///< Where it starts in a row of the host,
    std::int64_t at;    ///< and in a row here.
  };
  std::vector<Block> blocks;
  std::int64_t dim = 0, size = 0;  ///< Elements of a row of the host, and of one here.

  explicit FeatureRows(const fastpath::sdk::Irreps& irreps) {
    for (std::size_t i = 0; i < irreps.size(); ++i) {
      const Block block{irreps[i].mul, padded<T>(irreps[i].mul), irreps[i].ir.dim(), dim, size};
      dim += block.mul * block.dim;
      size += block.padded * block.dim;
      blocks.push_back(block);
    }
  }
  void pack(const T* row, T* to) const {
    for (const Block& block : blocks) {
      for (std::int64_t c = 0; c < block.dim; ++c) {
        T* const out = to + block.at + c * block.padded;
        const T* const in = row + block.from + c;
        for (std::int64_t u = 0; u < block.mul; ++u) out[u] = in[u * block.dim];
        std::fill(out + block.mul, out + block.padded, T(0));
      }
    }
  }
  void unpack(const T* from, T* row) const {
    for (const Block& block : blocks) {
      for (std::int64_t c = 0; c < block.dim; ++c) {
        const T* const in = from + block.at + c * block.padded;
        T* const out = row + block.from + c;
        for (std::int64_t u = 0; u < block.mul; ++u) out[u * block.dim] = in[u];
      }
    }
  }
};

/// One instruction of a tensor product.
template <class T>
struct ProductPath {
  struct Term {
    std::int64_t pair, j;  ///< pair = component of x * components of the output + component of the output.
    T value;               ///< factor * C[i, j, k]
  };
  int l_in, l_out;
  std::int64_t x, out, y;   ///< Where its blocks start: in packed rows, and in a row of edge attributes.
  std::int64_t w, mul;      ///< Its weights in a row of weights.
  std::int64_t padded;      ///< Channels, filled up.
  std::vector<Term> terms;  ///< By pair.
  bool first = false;       ///< Of those that read its block of features.
  std::int64_t n_in() const { return 2 * l_in + 1; }
  std::int64_t n_out() const { return 2 * l_out + 1; }
};

template <class T>
struct Product {
  FeatureRows<T> in, out;
  std::int64_t edge_dim, weight_dim;
  std::vector<ProductPath<T>> paths;
  std::vector<std::size_t> unread;  ///< Blocks of features that no path reads.
  std::int64_t widest = 0, most_pairs = 0;

  explicit Product(const fastpath::sdk::ConvTensorProductConfig& config)
      : in(config.in), out(config.out), edge_dim(config.edge.dim()), weight_dim(config.weight_numel()) {
    std::int64_t w = 0;
    for (const auto& instruction : config.instructions) {
      const fastpath::sdk::Irrep a = config.in[instruction.in].ir, b = config.edge[instruction.edge].ir,
                                 c = config.out[instruction.out].ir;
      const auto& block = in.blocks[instruction.in];
      ProductPath<T> path{a.l,
                          c.l,
                          block.at,
                          out.blocks[instruction.out].at,
                          config.edge.offset(instruction.edge),
                          w,
                          block.mul,
                          block.padded,
                          {},
                          false};
      for (const auto& [i, j, k, value] : fastpath::sdk::coupling(a.l, b.l, c.l).nonzero) {
        path.terms.push_back({i * path.n_out() + k, path.y + j, static_cast<T>(instruction.factor * value)});
      }
      std::stable_sort(path.terms.begin(), path.terms.end(),
                       [](const auto& one, const auto& other) { return one.pair < other.pair; });
      w += path.mul;
      path.first = std::none_of(paths.begin(), paths.end(), [&](const auto& other) { return other.x == path.x; });
      widest = std::max(widest, path.padded);
      most_pairs = std::max(most_pairs, path.n_in() * path.n_out());
      paths.push_back(std::move(path));
    }
    for (std::size_t i = 0; i < in.blocks.size(); ++i) {
      const auto reads = [&](const auto& path) { return path.x == in.blocks[i].at && in.blocks[i].mul > 0; };
      if (std::none_of(paths.begin(), paths.end(), reads)) unread.push_back(i);
    }
  }
};

/// Edges that are worked on together, and whose they are.
struct Tile {
  struct Segment {
    std::int64_t receiver;
    std::int64_t begin, end;  ///< Of the tile's edges.
  };
  std::int64_t first = 0, n = 0, n_segments = 0;
  std::array<Segment, kTileReceivers> segments;

  /// The tile that begins with edge `from` and has edges below `to` only.
  Tile(const std::int32_t* receiver, std::int64_t from, std::int64_t to) : first(from) {
    while (n < kTile && first + n < to) {
      const std::int64_t r = receiver[first + n];
      if (n_segments == 0 || segments[n_segments - 1].receiver != r) {
        if (n_segments == kTileReceivers) return;
        segments[n_segments++] = {r, n, n};
      }
      segments[n_segments - 1].end = ++n;
    }
  }
  /// Edges, filled up to whole blocks of rows.
  std::int64_t rows(std::int64_t block) const { return (n + block - 1) / block * block; }
};

/// The features, one call's.
template <class T>
struct ProductCall {
  fastpath::sdk::HostGraph graph;
  const T* x = nullptr;         ///< Packed, of all nodes.
  const T* grad_out = nullptr;  ///< As the host has them.
  T* out = nullptr;
};

/// What a tile's work needs beside the features, in memory of the caller.
template <class T>
struct ProductBuffers {
  T *y, *grad_y;              ///< [edge_dim][kTile]
  T *pairs, *grad_pairs;      ///< [most_pairs][kTile]
  T *weights, *grad_weights;  ///< [kTile][widest]
  T* rows;                    ///< [kTileReceivers][out.size]: sums, or gradients, of the tile's receivers.

  ProductBuffers(const Product<T>& product, fastpath::sdk::Scratch& scratch, bool backward)
      : y(scratch.take<T>(product.edge_dim * kTile)),
        grad_y(scratch.take<T>(backward ? product.edge_dim * kTile : 0)),
        pairs(scratch.take<T>(product.most_pairs * kTile)),
        grad_pairs(scratch.take<T>(backward ? product.most_pairs * kTile : 0)),
        weights(scratch.take<T>(product.widest * kTile)),
        grad_weights(scratch.take<T>(backward ? product.widest * kTile : 0)),
        rows(scratch.take<T>(kTileReceivers * product.out.size)) {}
};

/// See product-inl.hpp.
template <class T>
using AddToSenders = void(std::int64_t n, const std::int32_t* sender, const T* from, std::int64_t size,
                          std::int64_t first, std::int64_t last, T* rows);

}  // namespace cpu_simd
