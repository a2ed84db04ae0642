#include "block_linear.hpp"

#include <algorithm>

#include "outer_sum.hpp"

namespace fastpath_gpu {

BlockLinear::BlockLinear(std::string prefix, sdk::Irreps in, sdk::Irreps out, std::vector<Path> paths,
                         std::int64_t n_species)
    : prefix_(std::move(prefix)),
      in_(std::move(in)),
      out_(std::move(out)),
      paths_(std::move(paths)),
      n_species_(n_species),
      sort_(prefix_ + "_species", n_species) {}

std::int64_t BlockLinear::weight_numel() const {
  std::int64_t total = 0;
  for (const Path& path : paths_) total += in_[path.in].mul * matrices() * out_[path.out].mul;
  return total;
}

std::int64_t BlockLinear::bias_begin(std::size_t block) const {
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < block; ++i) {
    if (out_[i].ir == sdk::Irrep{0, 1}) begin += out_[i].mul;
  }
  return begin;
}

void BlockLinear::write(Source& s, std::uint32_t passes, bool has_bias) {
  has_bias_ = has_bias;
  real_bytes_ = s.real_bytes();
  forward_.clear(), grad_x_.clear(), weights_.clear();
  if (by_species()) sort_.write_kernels(s);
  if ((passes & FP_PASS_FORWARD) != 0) {
    for (std::size_t o = 0; o < out_.size(); ++o) {
      if (out_[o].mul > 0) write_rows(s, true, o);
    }
  }
  if ((passes & FP_PASS_BACKWARD) != 0) {
    write_compensated_add(s);
    for (std::size_t i = 0; i < in_.size(); ++i) {
      if (in_[i].mul > 0) write_rows(s, false, i);
    }
    for (std::size_t p = 0; p < paths_.size(); ++p) write_weights(s, p);
    if (has_bias_ && bias_numel() > 0) write_bias(s);
    write_sum_of_pieces(s, prefix_ + "_sum_of_pieces");
  }
}

void BlockLinear::write_rows(Source& s, bool forward, std::size_t block) {
  const sdk::Irreps &source = forward ? in_ : out_, &target = forward ? out_ : in_;
  const std::int64_t dim = target[block].ir.dim(), mul = target[block].mul;
  std::int64_t depth = 0;
  std::vector<const Path*> paths;
  for (const Path& path : paths_) {
    if ((forward ? path.out : path.in) != block) continue;
    paths.push_back(&path);
    depth = std::max(depth, source[forward ? path.in : path.out].mul);
  }
  const Tile tile = choose_tile(s.target(), s.real_bytes(),
                                {.columns = mul, .depth = depth, .least_rows = static_cast<std::uint32_t>(dim)});
  const std::int64_t nodes = tile.rows() / dim, column_tiles = (mul + tile.columns() - 1) / tile.columns();
  const bool bias = forward && has_bias_ && target[block].ir == sdk::Irrep{0, 1};
  std::vector<Rows>& kernels = forward ? forward_ : grad_x_;
  Rows rows{prefix_ + (forward ? "_forward_block" : "_grad_x_block") + std::to_string(block), block, nodes,
            column_tiles};
  const bool only = paths.size() == 1 && !bias;
  if (only) {
    const Path& path = *paths.front();
    const std::size_t from = forward ? path.in : path.out;
    rows.offsets = {source.offset(from), path.weight_offset, target.offset(block)};
    rows.shape = std::to_string(dim) + " " + std::to_string(mul) + " " + std::to_string(source[from].mul) + " " +
                 s.real(path.factor);
    for (const Rows& other : kernels) {
      if (other.shape != rows.shape) continue;
      rows.kernel = other.kernel;
      kernels.push_back(std::move(rows));
      return;
    }
  }
  const std::string name = rows.kernel;
  kernels.push_back(std::move(rows));

  std::vector<Source::Parameter> parameters{Source::in("from")};
  if (by_species()) {
    parameters.push_back(Source::in("order", "i64"));
    parameters.push_back(Source::in("starts", "i64"));
    parameters.push_back(Source::in("tiles", "i64"));
    parameters.push_back(Source::integer("stride"));
  }
  parameters.push_back(Source::in("weight"));
  if (bias) parameters.push_back(Source::in("bias"));
  parameters.push_back(Source::out("to"));
  parameters.push_back(Source::integer("n_rows"));
  if (only) {
    for (const char* offset : {"from_offset", "weight_offset", "to_offset"})
      parameters.push_back(Source::integer(offset));
  }
  const std::string to_at = only ? "to_offset" : std::to_string(target.offset(block));

  s.line("// Block ", target[block].mul, "x", target[block].ir.text(), " of the ",
         forward ? "output." : "gradient of x: the transposed product.");
  s.begin_kernel(name, tile.group_size(), parameters, Source::Registers::many);
  Product product(s, tile);
  if (!paths.empty()) {
    product.declare_a();
    product.declare_b();
  }
  product.declare_lane();
  s.line("const i64 tile = FP_GROUP / ", column_tiles, ", first_column = FP_GROUP % ", column_tiles, " * ",
         tile.columns(), ";");
  if (by_species()) {
    // There may be more groups than tiles. Those left over have no rows; they do not return here, since some compilers
    // for CPUs lose track of a group that leaves before a barrier.
    s.line("const i64 n_tiles = tiles[", n_species_ + 1, "];");
    s.line("i64 z = 0, above = ", n_species_ + 1, ";  // of the tile: tiles[z] <= tile < tiles[z + 1]");
    s.line("while (above - z > 1) {");
    s.line("const i64 middle = (z + above) / 2;");
    s.line("if (tiles[middle] <= tile) z = middle; else above = middle;");
    s.line("}");
    s.line("const i64 matrix = z < ", n_species_, " ? z : 0;");
    s.line("const i64 first = tile < n_tiles ? starts[z * stride] + (tile - tiles[z]) * ", nodes, " : 0;");
    s.line("const i64 end = tile < n_tiles ? starts[(z + 1) * stride] : 0;");
  } else {
    s.line("const i64 first = tile * ", nodes, ", end = n_rows;");
  }
  const std::string row = by_species() ? "order[position]" : "position";
  product.begin_sums();
  for (const Path* path : paths) {
    const std::size_t from = forward ? path->in : path->out;
    const std::int64_t terms = source[from].mul, mul_out = out_[path->out].mul;
    const std::string from_at = only ? "from_offset" : std::to_string(source.offset(from));
    const std::string weight_at = only ? "weight_offset" : std::to_string(path->weight_offset);
    s.line("// from block ", source[from].mul, "x", source[from].ir.text());
    product.add_steps(
        "0", std::to_string(terms), tile.depth,
        [&] {
          product.begin_fill(static_cast<std::uint32_t>(nodes * tile.depth * dim));
          s.line("const i32 m = i % ", dim, ", k = i / ", dim, " % ", tile.depth, ", node = i / ", dim * tile.depth,
                 ";");
          s.line("const i64 position = first + node;");
          s.line("a_tile[k * ", tile.a_stride(), " + node * ", dim, " + m] = position < end && k0 + k < ", terms,
                 " ? from[", row, " * ", source.dim(), " + ", from_at, " + (k0 + k) * ", dim, " + m] : ", s.real(0),
                 ";");
          s.line("}");
        },
        [&] {
          // The fast index is the one that is contiguous in memory.
          product.begin_fill(tile.depth * tile.columns());
          if (forward) {
            s.line("const i32 k = i / ", tile.columns(), ", column = i % ", tile.columns(), ";");
          } else {
            s.line("const i32 k = i % ", tile.depth, ", column = i / ", tile.depth, ";");
          }
          const std::string k = "(k0 + k)", column = "(first_column + column)";
          const std::string u = forward ? k : column, w = forward ? column : k;
          s.line("b_tile[k * ", tile.b_stride(), " + column] = k0 + k < ", terms, " && first_column + column < ", mul,
                 " ? ", s.real(path->factor), " * weight[", weight_at, " + ",
                 by_species() ? "(" + u + " * " + std::to_string(n_species_) + " + matrix)" : u, " * ", mul_out, " + ",
                 w, "] : ", s.real(0), ";");
          s.line("}");
        });
  }
  if (by_species()) {
    s.line("const real wrong = z < ", n_species_, " ? ", s.real(0), " : fp_sqrt(", s.real(-1),
           ");  // NaN where the species is none");
  }
  const std::string unit = std::to_string(dim);
  product.for_each("{row} < " + std::to_string(nodes * dim) + " && first + ({row}) / " + unit + " < end",
                   "first_column + {column} < " + std::to_string(mul),
                   [&](const std::string& r, const std::string& c, const std::string& sum) {
                     s.line("const i64 position = first + (", r, ") / ", unit, ";");
                     s.line("to[", row, " * ", target.dim(), " + ", to_at, " + (first_column + ", c, ") * ", unit,
                            " + (", r, ") % ", unit, "] = ", sum, by_species() ? " + wrong" : "",
                            bias ? " + bias[" + std::to_string(bias_begin(block)) + " + first_column + " + c + "]" : "",
                            ";");
                   });
  s.end_kernel();
}

void BlockLinear::write_weights(Source& s, std::size_t p) {
  const Path& path = paths_[p];
  OuterSum sum;
  sum.name = prefix_ + "_grad_weight_path" + std::to_string(p);
  sum.dim = in_[path.in].ir.dim();
  sum.mul_u = in_[path.in].mul, sum.mul_w = out_[path.out].mul;
  sum.x_row = in_.dim(), sum.g_row = out_.dim();
  sum.size = weight_numel();
  sum.factor = path.factor;
  sum.n_species = n_species_;
  const std::string shape = std::to_string(sum.dim) + " " + std::to_string(sum.mul_u) + " " +
                            std::to_string(sum.mul_w) + " " + s.real(sum.factor);
  for (const Weights& other : weights_) {
    if (other.shape != shape) continue;
    weights_.push_back({other.kernel, other.tiles, p, shape});
    return;
  }
  s.line("// Matrix of ", in_[path.in].mul, "x", in_[path.in].ir.text(), " to block ", path.out, ".");
  const std::int64_t tiles = sum.write(s);
  weights_.push_back({sum.name, tiles, p, shape});
}

void BlockLinear::write_bias(Source& s) const {
  s.begin_kernel(
      prefix_ + "_grad_bias", std::min(64u, s.target().max_group_size),
      {Source::in("grad_y"), Source::out("partial"), Source::integer("n_rows"), Source::integer("n_pieces")});
  s.item("item", std::to_string(bias_numel()) + " * n_pieces");
  s.line("const i64 i = item % ", bias_numel(), ", piece = item / ", bias_numel(), ";");
  s.line("i64 at = i;  // in a row of y");
  for (std::size_t block = 0; block < out_.size(); ++block) {
    if (out_[block].ir == sdk::Irrep{0, 1} && out_[block].mul > 0) {
      s.line("if (i >= ", bias_begin(block), ") at = i + ", out_.offset(block) - bias_begin(block), ";");
    }
  }
  s.line("const i64 length = (n_rows + n_pieces - 1) / n_pieces, first = piece * length;");
  s.line("const i64 last = first + length < n_rows ? first + length : n_rows;");
  s.line("real sum = ", s.real(0), ", carry = ", s.real(0), ";");
  s.line("for (i64 row = first; row < last; ++row) fp_add(&sum, &carry, grad_y[row * ", out_.dim(), " + at]);");
  s.line("partial[piece * ", bias_numel(), " + i] = sum;");
  s.end_kernel();
}

void BlockLinear::plan_rows(const std::vector<Rows>& rows, const Buffer& from, const Buffer& to, const Call& call,
                            const std::optional<SpeciesSort::Sorted>& sorted, Plan& plan) const {
  std::vector<std::pair<std::int64_t, Buffer>> tiles;  // by their number of rows
  for (const Rows& kernel : rows) {
    std::vector<Argument> arguments;
    std::int64_t n_tiles = (call.n_rows + kernel.nodes - 1) / kernel.nodes;
    if (sorted) {
      auto found = std::find_if(tiles.begin(), tiles.end(), [&](const auto& t) { return t.first == kernel.nodes; });
      if (found == tiles.end()) {
        tiles.emplace_back(kernel.nodes, sort_.plan_tiles(plan, *sorted, kernel.nodes));
        found = tiles.end() - 1;
      }
      n_tiles = sort_.most_tiles(call.n_rows, kernel.nodes);
      arguments = {from, sorted->order, sorted->starts, found->second, sorted->stride, Buffer{Role::parameter, 0}};
    } else {
      arguments = {from, Buffer{Role::parameter, 0}};
    }
    if (to.role == Role::output && has_bias_ && out_[kernel.block].ir == sdk::Irrep{0, 1}) {
      arguments.push_back(Buffer{Role::parameter, 1});
    }
    arguments.push_back(to);
    arguments.push_back(call.n_rows);
    arguments.insert(arguments.end(), kernel.offsets.begin(), kernel.offsets.end());
    plan.launch(kernel.kernel, n_tiles * kernel.column_tiles, std::move(arguments));
  }
}

void BlockLinear::plan(const Call& call, Plan& plan) const {
  const Buffer x{Role::input, 0}, y{Role::output, 0}, grad_y{Role::grad_output, 0}, grad_x{Role::grad_input, 0};
  const bool forward = call.pass == sdk::Pass::forward;
  if (forward && call.n_rows == 0) return;
  std::optional<SpeciesSort::Sorted> sorted;
  if (by_species()) sorted = sort_.plan(plan, Buffer{Role::input, 1}, call.n_rows);
  if (forward) return plan_rows(forward_, x, y, call, sorted, plan);

  if (call.n_rows > 0) {
    Plan skipped = plan;  // takes the same scratch memory without launches
    Plan& taken = call.grad_inputs[0] ? plan : skipped;
    plan_rows(grad_x_, grad_y, grad_x, call, sorted, taken);
    if (&taken == &skipped) plan.scratch(skipped.scratch_bytes() - plan.scratch_bytes());
  }
  const Buffer grad_weight{Role::grad_parameter, 0}, grad_bias{Role::grad_parameter, 1};
  const PiecewiseSum weight_sum(plan, pieces_of(call.n_rows, weight_numel(), real_bytes_), weight_numel(), real_bytes_);
  if (call.grad_parameters[0] && weight_numel() > 0) {
    for (const Weights& kernel : weights_) {
      const Buffer partial = weight_sum.partial(grad_weight);
      std::vector<Argument> arguments;
      if (sorted) {
        arguments = {x,       grad_y,      sorted->order,      sorted->starts, sorted->stride,
                     partial, call.n_rows, weight_sum.pieces()};
      } else {
        arguments = {x, grad_y, partial, call.n_rows, weight_sum.pieces()};
      }
      const Path& path = paths_[kernel.path];
      arguments.insert(arguments.end(), {in_.offset(path.in), out_.offset(path.out), path.weight_offset});
      plan.launch(kernel.kernel, matrices() * weight_sum.pieces() * kernel.tiles, std::move(arguments));
    }
    weight_sum.join(plan, prefix_ + "_sum_of_pieces", grad_weight);
  }
  if (!has_bias_ || bias_numel() == 0) return;
  const PiecewiseSum bias_sum(plan, pieces_of(call.n_rows, bias_numel(), real_bytes_), bias_numel(), real_bytes_);
  if (call.grad_parameters[1]) {
    plan.launch_items(prefix_ + "_grad_bias", bias_numel() * bias_sum.pieces(),
                      {grad_y, bias_sum.partial(grad_bias), call.n_rows, bias_sum.pieces()});
    bias_sum.join(plan, prefix_ + "_sum_of_pieces", grad_bias);
  }
}

}  // namespace fastpath_gpu
