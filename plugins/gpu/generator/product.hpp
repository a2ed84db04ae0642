#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "source.hpp"
#include "target.hpp"

namespace fastpath_gpu {

/// How a group shares a matrix product c[m, n] = sum over k of a[m, k] b[k, n]: each item has every row_items-th row
/// and every column_items-th column of the group's tile of c in registers, and `depth` of the k are in shared memory
/// at a time.
struct Tile {
  std::uint32_t row_items = 1, column_items = 1;
  std::uint32_t rows_each = 1, columns_each = 1;
  std::uint32_t depth = 1;

  std::uint32_t rows() const { return row_items * rows_each; }
  std::uint32_t columns() const { return column_items * columns_each; }
  std::uint32_t group_size() const { return row_items * column_items; }
  // A row more than there are keeps items that write one column of a in different banks.
  std::uint32_t a_stride() const { return rows() + 1; }
  std::uint32_t b_stride() const { return columns() + 1; }
};

/// What a tile is for. Rows may be counted only at run time: `rows` 0 means many.
struct ProductShape {
  std::int64_t rows = 0, columns = 1, depth = 1;
  std::uint32_t least_rows = 1;   ///< That a tile must have.
  std::uint32_t depth_unit = 1;   ///< The depth of a tile is a multiple of this, if more than `depth_unit` fits.
  std::uint32_t other_bytes = 0;  ///< Of shared memory that the kernel needs beside the tile.
};
/// The largest tile that the target has room for.
Tile choose_tile(const Target& target, std::uint32_t real_bytes, const ProductShape& shape);
/// Whether a tile and so many other bytes fit in the target's shared memory.
bool fits(const Target& target, std::uint32_t real_bytes, const Tile& tile, std::uint32_t other_bytes);

/// Writes `fp_add(&sum, &carry, value)`: adds with compensation (Kahan), so that the error does not grow with the
/// number of terms. Not again if the program has it.
void write_compensated_add(Source& s);

/// Writes the parts of a kernel that computes a tile of a product. Sums are kept in two levels, within a step and over
/// steps, because one chain of hundreds of float32 additions loses more than the contract allows; with `compensated`
/// the second level carries its error along, for sums over any number of rows.
class Product {
 public:
  Product(Source& source, const Tile& tile, bool compensated = false)
      : s_(source), tile_(tile), compensated_(compensated) {}
  const Tile& tile() const { return tile_; }

  /// Shared memory a_tile[k * a_stride + row] and b_tile[k * b_stride + column]; at the top of the kernel.
  void declare_a() { s_.shared("a_tile", tile_.depth * tile_.a_stride()); }
  void declare_b() { s_.shared("b_tile", tile_.depth * tile_.b_stride()); }
  /// lane_row and lane_column: the item's first row and column in the tile.
  void declare_lane();
  /// Sums of zero.
  void begin_sums();

  using Fill = std::function<void()>;
  /// a for row `row` of the item, at step k: an expression.
  using Operand = std::function<std::string(std::uint32_t row)>;
  /// Adds the terms for `k0` = begin, begin + stride, .. below end. The fills write a_tile and b_tile for one step,
  /// with zeros where there is nothing; without fill_a, `a` is read instead of a_tile.
  void add_steps(const std::string& begin, const std::string& end, std::uint32_t stride, const Fill& fill_a,
                 const Fill& fill_b, const Operand& a = {});
  /// `for (i32 i = FP_LANE; i < count; i += group size) {`: the head of a fill's loop.
  void begin_fill(std::uint32_t count);

  /// Calls body(row expression, column expression, sum) for every element of the item, where both conditions hold.
  /// `{row}` and `{column}` in the conditions stand for the position in the tile.
  void for_each(
      const std::string& row_condition, const std::string& column_condition,
      const std::function<void(const std::string& row, const std::string& column, const std::string& sum)>& body);

 private:
  std::string row(std::uint32_t i) const;
  std::string column(std::uint32_t j) const;

  Source& s_;
  Tile tile_;
  bool compensated_;
};

}  // namespace fastpath_gpu
