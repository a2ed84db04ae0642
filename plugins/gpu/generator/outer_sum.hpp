#pragma once

#include <cstdint>
#include <string>

#include "source.hpp"

namespace fastpath_gpu {

/// A weight gradient: for channels u of a block of x and w of a block of g, both with `dim` components,
/// partial[piece * size + offset + u * mul_w + w] = factor * sum over the rows n of the piece and m of
/// x[n, u, m] g[n, w, m]. With species, the sum is over the rows of each, in the order of a SpeciesSort, and matrix z
/// of an element is at offset + (u * n_species + z) * mul_w + w.
struct OuterSum {
  std::string name;
  std::int64_t dim = 1;
  std::int64_t mul_u = 1, mul_w = 1;
  std::int64_t x_row = 1, g_row = 1;  ///< Elements of a row.
  std::int64_t size = 1;              ///< Of all gradients that share `partial`.
  double factor = 1;
  std::int64_t n_species = 0;  ///< 0: no species.

  /// Writes the kernel NAME(x, g, [order, starts, stride,] partial, n_rows, n_pieces, x_offset, g_offset, offset),
  /// where the offsets say where the blocks start in their rows and the matrix among the gradients: one kernel serves
  /// all blocks of one shape. Needs write_compensated_add().
  /// @returns how many groups each piece (of each species) takes.
  std::int64_t write(Source& s) const;
};

}  // namespace fastpath_gpu
