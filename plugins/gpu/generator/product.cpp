#include "product.hpp"

#include <algorithm>
#include <bit>
#include <string>

namespace fastpath_gpu {
namespace {

constexpr std::uint32_t kMostItems = 256, kMostLines = 16, kMostRows = 128, kDepth = 16, kEach = 4;

std::uint32_t each(std::int64_t size) { return size >= kEach ? kEach : size >= 2 ? 2 : 1; }
/// The smallest power of two that covers size, or `most`, a power of two.
std::uint32_t lines(std::int64_t size, std::uint32_t most) {
  std::uint32_t result = 1;
  while (result < most && result < size) result *= 2;
  return result;
}
std::string name(const char* what, std::uint32_t i, std::uint32_t j) {
  return std::string(what) + "_" + std::to_string(i) + "_" + std::to_string(j);
}
std::string plus(const std::string& text, std::uint32_t value) {
  return value == 0 ? text : text + " + " + std::to_string(value);
}
std::string with(std::string text, const std::string& key, const std::string& value) {
  for (std::size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + value.size())) {
    text.replace(at, key.size(), value);
  }
  return text;
}

}  // namespace

bool fits(const Target& target, std::uint32_t real_bytes, const Tile& tile, std::uint32_t other_bytes) {
  return tile.depth * (tile.a_stride() + tile.b_stride()) * real_bytes + other_bytes <= target.local_bytes;
}

Tile choose_tile(const Target& target, std::uint32_t real_bytes, const ProductShape& shape) {
  const std::uint32_t items = std::bit_floor(std::min(target.max_group_size, kMostItems));
  Tile tile;
  tile.columns_each = each(shape.columns);
  const std::int64_t columns = (shape.columns + tile.columns_each - 1) / tile.columns_each;
  tile.column_items = lines(columns, std::min(kMostLines, std::bit_floor(std::max(1u, items / 8))));
  const std::int64_t many = std::int64_t{1} << 40;
  tile.rows_each = each(shape.rows == 0 ? many : shape.rows);
  const std::int64_t rows = ((shape.rows == 0 ? many : shape.rows) + tile.rows_each - 1) / tile.rows_each;
  tile.row_items = lines(rows, std::min(items / tile.column_items, kMostRows / tile.rows_each));
  while (tile.rows() < shape.least_rows) tile.rows_each *= 2;
  const auto set_depth = [&](std::uint32_t most) {
    const auto wanted = static_cast<std::uint32_t>(std::min<std::int64_t>(most, shape.depth));
    tile.depth = std::max(1u, wanted / shape.depth_unit) * shape.depth_unit;
  };
  std::uint32_t depth = kDepth;
  set_depth(depth);
  while (!fits(target, real_bytes, tile, shape.other_bytes)) {
    if (depth > 4) {
      set_depth(depth /= 2);
    } else if (tile.row_items > 1 && tile.rows() / 2 >= shape.least_rows) {
      tile.row_items /= 2;
    } else if (tile.rows_each > 1 && tile.rows() / 2 >= shape.least_rows) {
      tile.rows_each /= 2;
    } else if (tile.column_items > 1) {
      tile.column_items /= 2;
    } else if (depth > 1) {
      set_depth(depth /= 2);
    } else {
      break;  // Source::shared says what is wanted
    }
  }
  return tile;
}

void write_compensated_add(Source& s) {
  if (!s.once("fp_add")) return;
  s.line("FP_DEVICE void fp_add(real* sum, real* carry, real value) {");
  s.line("const real corrected = value - *carry;");
  s.line("const real next = *sum + corrected;");
  s.line("*carry = (next - *sum) - corrected;");
  s.line("*sum = next;");
  s.line("}");
  s.gap();
}

std::string Product::row(std::uint32_t i) const { return plus("lane_row", i * tile_.row_items); }
std::string Product::column(std::uint32_t j) const { return plus("lane_column", j * tile_.column_items); }

void Product::declare_lane() {
  s_.line("const i32 lane_row = FP_LANE / ", tile_.column_items, ", lane_column = FP_LANE % ", tile_.column_items, ";");
}

void Product::begin_sums() {
  for (std::uint32_t i = 0; i < tile_.rows_each; ++i) {
    std::string text;
    for (std::uint32_t j = 0; j < tile_.columns_each; ++j) {
      text += (j == 0 ? "real " : ", ") + name("sum", i, j) + " = " + s_.real(0);
      if (compensated_) text += ", " + name("carry", i, j) + " = " + s_.real(0);
    }
    s_.line(text, ";");
  }
}

void Product::begin_fill(std::uint32_t count) {
  s_.line("FP_UNROLL(2)");
  s_.line("for (i32 i = FP_LANE; i < ", count, "; i += ", tile_.group_size(), ") {");
}

void Product::add_steps(const std::string& begin, const std::string& end, std::uint32_t stride, const Fill& fill_a,
                        const Fill& fill_b, const Operand& a) {
  s_.line("for (i64 k0 = ", begin, "; k0 < ", end, "; k0 += ", stride, ") {");
  if (fill_a) fill_a();
  fill_b();
  s_.line("FP_BARRIER();");
  for (std::uint32_t i = 0; i < tile_.rows_each; ++i) {
    std::string text;
    for (std::uint32_t j = 0; j < tile_.columns_each; ++j) {
      text += (j == 0 ? "real " : ", ") + name("part", i, j) + " = " + s_.real(0);
    }
    s_.line(text, ";");
  }
  s_.line("FP_UNROLL(4)");
  if (a && std::stoul(end) % tile_.depth != 0) {
    s_.line("for (i32 k = 0; k < ", tile_.depth, " && k0 + k < ", end, "; ++k) {");
  } else {
    s_.line("for (i32 k = 0; k < ", tile_.depth, "; ++k) {");
  }
  for (std::uint32_t i = 0; i < tile_.rows_each; ++i) {
    const std::string at = a ? a(i) : "a_tile[k * " + std::to_string(tile_.a_stride()) + " + " + row(i) + "]";
    s_.line("const real a", i, " = ", at, ";");
  }
  for (std::uint32_t j = 0; j < tile_.columns_each; ++j) {
    s_.line("const real b", j, " = b_tile[k * ", tile_.b_stride(), " + ", column(j), "];");
  }
  for (std::uint32_t i = 0; i < tile_.rows_each; ++i) {
    for (std::uint32_t j = 0; j < tile_.columns_each; ++j) s_.line(name("part", i, j), " += a", i, " * b", j, ";");
  }
  s_.line("}");
  for (std::uint32_t i = 0; i < tile_.rows_each; ++i) {
    for (std::uint32_t j = 0; j < tile_.columns_each; ++j) {
      if (compensated_) {
        s_.line("fp_add(&", name("sum", i, j), ", &", name("carry", i, j), ", ", name("part", i, j), ");");
      } else {
        s_.line(name("sum", i, j), " += ", name("part", i, j), ";");
      }
    }
  }
  s_.line("FP_BARRIER();");
  s_.line("}");
}

void Product::for_each(
    const std::string& row_condition, const std::string& column_condition,
    const std::function<void(const std::string& row, const std::string& column, const std::string& sum)>& body) {
  // One condition, without a branch: PoCL 3.1 with LLVM 15 loses the outer one of two around a store where it makes
  // vectors of items, and writes rows that are not there.
  for (std::uint32_t i = 0; i < tile_.rows_each; ++i) {
    for (std::uint32_t j = 0; j < tile_.columns_each; ++j) {
      s_.line("if ((", with(row_condition, "{row}", row(i)), ") & (", with(column_condition, "{column}", column(j)),
              ")) {");
      body(row(i), column(j), name("sum", i, j));
      s_.line("}");
    }
  }
}

}  // namespace fastpath_gpu
