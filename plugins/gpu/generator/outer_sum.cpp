#include "outer_sum.hpp"

#include <vector>

#include "product.hpp"

namespace fastpath_gpu {

std::int64_t OuterSum::write(Source& s) const {
  const Tile tile =
      choose_tile(s.target(), s.real_bytes(),
                  {.rows = mul_u, .columns = mul_w, .depth = 16, .depth_unit = static_cast<std::uint32_t>(dim)});
  const std::int64_t step = tile.depth / dim;  // rows of x
  const std::int64_t row_tiles = (mul_u + tile.rows() - 1) / tile.rows();
  const std::int64_t column_tiles = (mul_w + tile.columns() - 1) / tile.columns(), tiles = row_tiles * column_tiles;

  std::vector<Source::Parameter> parameters{Source::in("x"), Source::in("g")};
  if (n_species > 0) {
    parameters.push_back(Source::in("order", "i64"));
    parameters.push_back(Source::in("starts", "i64"));
    parameters.push_back(Source::integer("stride"));
  }
  parameters.push_back(Source::out("partial"));
  parameters.push_back(Source::integer("n_rows"));
  parameters.push_back(Source::integer("n_pieces"));
  for (const char* offset : {"x_offset", "g_offset", "offset"}) parameters.push_back(Source::integer(offset));
  s.begin_kernel(name, tile.group_size(), parameters, Source::Registers::many);
  Product product(s, tile, true);
  product.declare_a();
  product.declare_b();
  product.declare_lane();
  s.line("const i64 first_u = FP_GROUP % ", row_tiles, " * ", tile.rows(), ";");
  s.line("const i64 first_w = FP_GROUP / ", row_tiles, " % ", column_tiles, " * ", tile.columns(), ";");
  s.line("const i64 piece = FP_GROUP / ", tiles, " % n_pieces;");
  if (n_species > 0) {
    s.line("const i64 z = FP_GROUP / (", tiles, " * n_pieces);");
    s.line("const i64 begin = starts[z * stride], all = starts[(z + 1) * stride] - begin;");
  } else {
    s.line("const i64 all = n_rows;");
  }
  s.line("const i64 length = (all + n_pieces - 1) / n_pieces;");
  s.line("const i64 first = piece * length, last = first + length < all ? first + length : all;");
  product.begin_sums();
  const std::string row = n_species > 0 ? "order[begin + k0 + node]" : "(k0 + node)";
  const auto fill = [&](const char* to, std::uint32_t stride, std::uint32_t lines, const char* first_channel,
                        std::int64_t mul, const char* from, std::int64_t from_row, const char* from_offset) {
    product.begin_fill(static_cast<std::uint32_t>(step * dim) * lines);
    s.line("const i32 m = i % ", dim, ", channel = i / ", dim, " % ", lines, ", node = i / ", dim * lines, ";");
    s.line(to, "[(node * ", dim, " + m) * ", stride, " + channel] = k0 + node < last && ", first_channel,
           " + channel < ", mul, " ? ", from, "[", row, " * ", from_row, " + ", from_offset, " + (", first_channel,
           " + channel) * ", dim, " + m] : ", s.real(0), ";");
    s.line("}");
  };
  product.add_steps(
      "first", "last", static_cast<std::uint32_t>(step),
      [&] { fill("a_tile", tile.a_stride(), tile.rows(), "first_u", mul_u, "x", x_row, "x_offset"); },
      [&] { fill("b_tile", tile.b_stride(), tile.columns(), "first_w", mul_w, "g", g_row, "g_offset"); });
  product.for_each("first_u + {row} < " + std::to_string(mul_u), "first_w + {column} < " + std::to_string(mul_w),
                   [&](const std::string& r, const std::string& c, const std::string& sum) {
                     const std::string u = "(first_u + " + r + ")";
                     s.line("partial[piece * ", size, " + offset + ",
                            n_species > 0 ? "(" + u + " * " + std::to_string(n_species) + " + z)" : u, " * ", mul_w,
                            " + first_w + ", c, "] = ", s.real(factor), " * ", sum, ";");
                   });
  s.end_kernel();
  return tiles;
}

}  // namespace fastpath_gpu
