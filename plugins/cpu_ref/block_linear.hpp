#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/species.hpp"
#include "kernel.hpp"
#include "matrix.hpp"

namespace cpu_ref {

/// Copies an irreps block of one row, [mul][dim], to [dim][mul] and back: there channels are contiguous.
template <class T>
void channels_last(const sdk::IrrepsBlock& block, const T* from, T* to) {
  transpose(block.mul, block.ir.dim(), from, to);
}
template <class A, class T>
void channels_first(const sdk::IrrepsBlock& block, const A* from, T* to) {
  transpose(block.ir.dim(), block.mul, from, to);
}

/// y[n, out, w, m] = factor * sum over paths and u of weight[u, species(n), w] x[n, in, u, m], and its gradients: what
/// irreps_linear (one species) and species_linear have in common.
template <class T>
class BlockLinear {
 public:
  using Path = sdk::IrrepsLinearConfig::Path;

  BlockLinear(sdk::Irreps in, sdk::Irreps out, std::vector<Path> paths, std::int64_t n_species)
      : in_(std::move(in)), out_(std::move(out)), paths_(std::move(paths)), n_species_(n_species) {}

  /// @param weight  Per path [mul_in, n_species, mul_out].
  void take(const T* weight) {
    weights_.assign(paths_.size(), {});
    transposed_.assign(paths_.size(), {});
    for (std::size_t p = 0; p < paths_.size(); ++p) {
      const std::int64_t mul_in = in_[paths_[p].in].mul, mul_out = out_[paths_[p].out].mul, size = mul_in * mul_out;
      weights_[p].resize(size * n_species_);
      transposed_[p].resize(size * n_species_);
      const T* source = weight + paths_[p].weight_offset;
      for (std::int64_t u = 0; u < mul_in; ++u) {
        for (std::int64_t z = 0; z < n_species_; ++z) {
          for (std::int64_t w = 0; w < mul_out; ++w) {
            weights_[p][z * size + u * mul_out + w] = static_cast<T>(paths_[p].factor * *source++);
          }
        }
      }
      for (std::int64_t z = 0; z < n_species_; ++z) {
        transpose(mul_in, mul_out, weights_[p].data() + z * size, transposed_[p].data() + z * size);
      }
    }
  }

  /// Rows in the order they are worked on: position i is row order[i]; species z has positions begin[z]..begin[z+1]-1.
  struct Rows {
    std::int64_t n = 0;
    const std::int64_t* order = nullptr;  // null: in their own order, one species
    const std::int64_t* begin = nullptr;
  };

  void plan(sdk::Scratch& scratch, std::int64_t n_rows, sdk::Pass pass) const {
    tiles(scratch, row_chunks(n_rows).count);
    if (pass == sdk::Pass::backward) slices(scratch);
  }

  void forward(Workers& workers, int threads, sdk::Scratch& scratch, const Rows& rows, const T* x, T* y) const {
    const std::vector<Tile> all = tiles(scratch, row_chunks(rows.n).count);
    for_each_tile(workers, threads, rows, [&](std::int64_t chunk, std::int64_t first, std::int64_t n, std::int64_t z) {
      const Tile& tile = all[static_cast<std::size_t>(chunk)];
      for (std::size_t o = 0; o < out_.size(); ++o) {
        const std::int64_t dim = out_[o].ir.dim(), mul_out = out_[o].mul;
        std::fill_n(tile.out, n * out_[o].dim(), T(0));
        for (std::size_t p = 0; p < paths_.size(); ++p) {
          if (paths_[p].out != o) continue;
          const std::int64_t mul_in = in_[paths_[p].in].mul;
          gather(rows, first, n, in_, paths_[p].in, x, tile.in);
          add_product<T, T>(n * dim, mul_out, mul_in, {tile.in, mul_in},
                            {weights_[p].data() + z * mul_in * mul_out, mul_out}, {tile.out, mul_out});
        }
        scatter(rows, first, n, out_, o, tile.out, y);
      }
    });
  }

  void grad_x(Workers& workers, int threads, sdk::Scratch& scratch, const Rows& rows, const T* grad_y,
              T* grad_x) const {
    const std::vector<Tile> all = tiles(scratch, row_chunks(rows.n).count);
    for_each_tile(workers, threads, rows, [&](std::int64_t chunk, std::int64_t first, std::int64_t n, std::int64_t z) {
      const Tile& tile = all[static_cast<std::size_t>(chunk)];
      for (std::size_t i = 0; i < in_.size(); ++i) {
        const std::int64_t dim = in_[i].ir.dim(), mul_in = in_[i].mul;
        std::fill_n(tile.in, n * in_[i].dim(), T(0));
        for (std::size_t p = 0; p < paths_.size(); ++p) {
          if (paths_[p].in != i) continue;
          const std::int64_t mul_out = out_[paths_[p].out].mul;
          gather(rows, first, n, out_, paths_[p].out, grad_y, tile.out);
          add_product<T, T>(n * dim, mul_in, mul_out, {tile.out, mul_out},
                            {transposed_[p].data() + z * mul_in * mul_out, mul_in}, {tile.in, mul_in});
        }
        scatter(rows, first, n, in_, i, tile.in, grad_x);
      }
    });
  }

  /// One task sums a few matrix rows of one path and species over all rows of that species, so nothing has to be
  /// joined.
  void grad_weight(Workers& workers, int threads, sdk::Scratch& scratch, const Rows& rows, const T* x, const T* grad_y,
                   T* grad_weight) const {
    const std::vector<Slice> all = slices(scratch);
    struct Task {
      std::size_t path;
      std::int64_t species, first_u;
    };
    std::vector<Task> tasks;
    for (std::size_t p = 0; p < paths_.size(); ++p) {
      for (std::int64_t z = 0; z < n_species_; ++z) {
        for (std::int64_t u = 0; u < in_[paths_[p].in].mul; u += kSlice) tasks.push_back({p, z, u});
      }
    }
    const auto n_tasks = static_cast<std::int64_t>(tasks.size());
    workers.run(threads, std::min(n_tasks, kMostSlices), [&](std::int64_t lane) {
      const Slice& slice = all[static_cast<std::size_t>(lane)];
      for (std::int64_t t = lane; t < n_tasks; t += kMostSlices) {
        const auto& [p, z, first_u] = tasks[static_cast<std::size_t>(t)];
        const sdk::IrrepsBlock in = in_[paths_[p].in], out = out_[paths_[p].out];
        const std::int64_t dim = in.ir.dim(), n_u = std::min(kSlice, in.mul - first_u);
        std::fill_n(slice.sums, n_u * out.mul, 0.0);
        const std::int64_t begin = rows.begin == nullptr ? 0 : rows.begin[z];
        const std::int64_t end = rows.begin == nullptr ? rows.n : rows.begin[z + 1];
        for (std::int64_t first = begin; first < end; first += kTile) {
          const std::int64_t n = std::min(kTile, end - first);
          gather(rows, first, n, out_, paths_[p].out, grad_y, slice.grad);
          for (std::int64_t i = 0; i < n; ++i) {
            const T* row = x + this->row(rows, first + i) * in_.dim() + in_.offset(paths_[p].in) + first_u * dim;
            transpose(n_u, dim, row, slice.x + i * dim * n_u);
          }
          add_product<T, double>(n_u, out.mul, n * dim, {slice.x, 1, n_u}, {slice.grad, out.mul},
                                 {slice.sums, out.mul});
        }
        for (std::int64_t u = 0; u < n_u; ++u) {
          T* target = grad_weight + paths_[p].weight_offset + ((first_u + u) * n_species_ + z) * out.mul;
          for (std::int64_t w = 0; w < out.mul; ++w) {
            target[w] = static_cast<T>(paths_[p].factor * slice.sums[u * out.mul + w]);
          }
        }
      }
    });
  }

 private:
  static constexpr std::int64_t kTile = 16;   // rows
  static constexpr std::int64_t kSlice = 16;  // rows of a weight matrix
  static constexpr std::int64_t kMostSlices = 64;

  struct Tile {
    T *in, *out;
  };
  struct Slice {
    T *x, *grad;
    double* sums;
  };
  static Chunks row_chunks(std::int64_t n) { return Chunks(n, kTile); }
  static std::int64_t row(const Rows& rows, std::int64_t position) {
    return rows.order == nullptr ? position : rows.order[position];
  }
  static std::int64_t widest(const sdk::Irreps& irreps) {
    std::int64_t result = 0;
    for (const sdk::IrrepsBlock& block : irreps) result = std::max(result, block.dim());
    return result;
  }
  std::vector<Tile> tiles(sdk::Scratch& scratch, std::int64_t n) const {
    std::vector<Tile> result;
    for (std::int64_t i = 0; i < n; ++i) {
      T* in = scratch.take<T>(kTile * widest(in_));
      result.push_back({in, scratch.take<T>(kTile * widest(out_))});
    }
    return result;
  }
  std::vector<Slice> slices(sdk::Scratch& scratch) const {
    std::int64_t dim = 0, mul = 0;
    for (const Path& path : paths_) {
      dim = std::max<std::int64_t>(dim, in_[path.in].ir.dim());
      mul = std::max(mul, out_[path.out].mul);
    }
    std::vector<Slice> result;
    for (std::int64_t i = 0; i < kMostSlices; ++i) {
      T* x = scratch.take<T>(kTile * dim * kSlice);
      T* grad = scratch.take<T>(kTile * widest(out_));
      result.push_back({x, grad, scratch.take<double>(kSlice * mul)});
    }
    return result;
  }

  /// Calls body(chunk, first position, number of positions, species) for tiles of rows of one species.
  template <class Body>
  void for_each_tile(Workers& workers, int threads, const Rows& rows, const Body& body) const {
    const Chunks chunks = row_chunks(rows.n);
    workers.run(threads, chunks.count, [&](std::int64_t chunk) {
      std::int64_t z = 0;
      for (std::int64_t first = chunks.begin(chunk); first < chunks.end(chunk);) {
        std::int64_t end = std::min(first + kTile, chunks.end(chunk));
        if (rows.begin != nullptr) {
          while (rows.begin[z + 1] <= first) ++z;
          end = std::min(end, rows.begin[z + 1]);
        }
        body(chunk, first, end - first, z);
        first = end;
      }
    });
  }
  void gather(const Rows& rows, std::int64_t first, std::int64_t n, const sdk::Irreps& irreps, std::size_t block,
              const T* from, T* to) const {
    for (std::int64_t i = 0; i < n; ++i) {
      channels_last(irreps[block], from + row(rows, first + i) * irreps.dim() + irreps.offset(block),
                    to + i * irreps[block].dim());
    }
  }
  void scatter(const Rows& rows, std::int64_t first, std::int64_t n, const sdk::Irreps& irreps, std::size_t block,
               const T* from, T* to) const {
    for (std::int64_t i = 0; i < n; ++i) {
      channels_first(irreps[block], from + i * irreps[block].dim(),
                     to + row(rows, first + i) * irreps.dim() + irreps.offset(block));
    }
  }

  sdk::Irreps in_, out_;
  std::vector<Path> paths_;
  std::int64_t n_species_;
  std::vector<std::vector<T>> weights_, transposed_;  // per path [n_species], with its factor
};

using fastpath_cpu::group_by_species;

}  // namespace cpu_ref
