#include <algorithm>
#include <optional>

#include "fastpath/sdk/check.hpp"
#include "op.hpp"
#include "outer_sum.hpp"
#include "product.hpp"
#include "reduction.hpp"

namespace fastpath_gpu {
namespace {

/// All layers of a tile of rows in one kernel, hidden layers in shared memory; backward computes them again. Where a
/// tile does not fit, one kernel a layer, through scratch memory. Backward works on so many rows at a time that what it
/// keeps for the gradients of weights stays small.
class RadialMlp final : public PartOp {
 public:
  explicit RadialMlp(const sdk::RadialMlpConfig& config) : PartOp(config.signature()), config_(config) {}

  void write(Source& source, std::uint32_t passes) override {
    const Target& target = source.target();
    real_bytes_ = source.real_bytes();
    forward_tile_ = fused_tile(target, floats_kept(layers() - 1));
    backward_tile_ = fused_tile(target, total_hidden() + floats_kept(layers() - 2));
    const bool forward = (passes & FP_PASS_FORWARD) != 0, backward = (passes & FP_PASS_BACKWARD) != 0;
    write_activation(source);
    if ((forward && !forward_tile_) || (backward && !backward_tile_)) {
      for (std::int64_t i = 0; i + 1 < layers(); ++i) write_layer(source, i);
    }
    if (forward) {
      if (forward_tile_) {
        write_forward(source);
      } else {
        write_layer(source, layers() - 1);
      }
    }
    if (backward) {
      write_compensated_add(source);
      if (backward_tile_) {
        write_backward(source);
      } else {
        for (std::int64_t i = layers() - 1; i >= 0; --i) write_layer_backward(source, i);
      }
      outer_groups_.clear();
      for (std::int64_t i = 0; i < layers(); ++i) {
        OuterSum sum;
        sum.name = "radial_mlp_grad_w" + std::to_string(i);
        sum.mul_u = sum.x_row = width(i);
        sum.mul_w = sum.g_row = width(i + 1);
        sum.size = width(i) * width(i + 1);
        sum.factor = scale(i);
        outer_groups_.push_back(sum.write(source));
      }
      write_sum_of_pieces(source, "radial_mlp_sum_of_pieces");
    }
  }

  void plan(const Call& call, Plan& plan) const override {
    if (call.pass == sdk::Pass::forward) {
      plan_forward(call, plan);
    } else {
      plan_backward(call, plan);
    }
  }

 private:
  std::int64_t layers() const { return static_cast<std::int64_t>(config_.n_layers()); }
  std::int64_t width(std::int64_t i) const { return config_.widths[static_cast<std::size_t>(i)]; }
  double scale(std::int64_t i) const { return config_.scales[static_cast<std::size_t>(i)]; }
  /// Widths of the hidden layers before hidden layer i (the output of layer i), and of all.
  std::int64_t hidden_begin(std::int64_t i) const {
    std::int64_t total = 0;
    for (std::int64_t j = 0; j < i; ++j) total += width(j + 1);
    return total;
  }
  std::int64_t total_hidden() const { return hidden_begin(layers() - 1); }
  /// The widest of hidden layers 0..n-1 whose number is even, or odd: they take turns in two arrays.
  std::int64_t widest(std::int64_t n, int parity) const {
    std::int64_t result = 0;
    for (std::int64_t i = parity; i < n; i += 2) result = std::max(result, width(i + 1));
    return result;
  }
  std::int64_t floats_kept(std::int64_t n) const { return widest(n, 0) + widest(n, 1); }
  static Source::Parameter weight(std::int64_t i) { return Source::in("w" + std::to_string(i)); }

  /// A tile for all layers, beside so many numbers a row; none if too few rows would fit.
  std::optional<Tile> fused_tile(const Target& target, std::int64_t numbers) const {
    constexpr std::uint32_t kLeastRows = 8;
    const std::int64_t columns = *std::max_element(config_.widths.begin() + 1, config_.widths.end());
    Tile tile = choose_tile(target, real_bytes_, {.columns = columns, .depth = 16});
    while (tile.rows() >= kLeastRows) {
      const std::int64_t other = numbers * tile.rows() * real_bytes_;
      if (other < target.local_bytes && fits(target, real_bytes_, tile, static_cast<std::uint32_t>(other))) return tile;
      if (tile.row_items > 1) {
        tile.row_items /= 2;
      } else if (tile.rows_each > 1) {
        tile.rows_each /= 2;
      } else {
        break;
      }
    }
    return std::nullopt;
  }

  void write_activation(Source& s) const {
    const std::string c = s.real(config_.activation_constant), one = s.real(1);
    s.line("FP_DEVICE real fp_silu(real z) { return ", c, " * z / (", one, " + fp_exp(-z)); }");
    s.line("FP_DEVICE real fp_silu_slope(real z) {");
    // 1 - sigmoid(z) by its own formula: the difference would lose all digits of a large z.
    s.line("const real sigmoid = ", one, " / (", one, " + fp_exp(-z)), rest = ", one, " / (", one, " + fp_exp(z));");
    s.line("return ", c, " * sigmoid * (", one, " + z * rest);");
    s.line("}");
    s.gap();
  }

  // ---- parts of kernels: the group works on rows first_row.. and columns first_column.. of a product

  void open_columns(Source& s, Product& product, std::int64_t columns) const {
    s.line("for (i32 first_column = 0; first_column < ", columns, "; first_column += ", product.tile().columns(),
           ") {");
    product.begin_sums();
  }
  /// a_tile from rows of an array in global memory.
  Product::Fill fill_rows(Source& s, Product& product, const std::string& from, std::int64_t row_size) const {
    return [&s, &product, from, row_size] {
      const Tile& tile = product.tile();
      product.begin_fill(tile.depth * tile.rows());
      s.line("const i32 k = i % ", tile.depth, ", row = i / ", tile.depth, ";");
      s.line("a_tile[k * ", tile.a_stride(), " + row] = first_row + row < n_rows && k0 + k < ", row_size, " ? ", from,
             "[(first_row + row) * ", row_size, " + k0 + k] : ", s.real(0), ";");
      s.line("}");
    };
  }
  /// b_tile from the weights of a layer, [in, out] or transposed.
  Product::Fill fill_weights(Source& s, Product& product, std::int64_t layer, bool transposed) const {
    return [this, &s, &product, layer, transposed] {
      const Tile& tile = product.tile();
      const std::int64_t in = width(layer), out = width(layer + 1);
      product.begin_fill(tile.depth * tile.columns());
      if (transposed) {
        s.line("const i32 k = i % ", tile.depth, ", column = i / ", tile.depth, ";");
      } else {
        s.line("const i32 k = i / ", tile.columns(), ", column = i % ", tile.columns(), ";");
      }
      s.line("b_tile[k * ", tile.b_stride(), " + column] = k0 + k < ", transposed ? out : in,
             " && first_column + column < ", transposed ? in : out, " ? ", s.real(scale(layer)), " * w", layer, "[",
             transposed ? "(first_column + column)" : "(k0 + k)", " * ", out, " + ",
             transposed ? "k0 + k" : "first_column + column", "] : ", s.real(0), ";");
      s.line("}");
    };
  }
  /// a from an array of shared memory, [columns][rows of the tile].
  Product::Operand from_shared(const Product& product, const std::string& array, std::int64_t begin) const {
    const std::uint32_t rows = product.tile().rows(), items = product.tile().row_items;
    return [=](std::uint32_t i) {
      return array + "[(" + std::to_string(begin) + " + k0 + k) * " + std::to_string(rows) + " + lane_row + " +
             std::to_string(i * items) + "]";
    };
  }
  void add_layer(Source& s, Product& product, std::int64_t i) const {
    const std::string depth = std::to_string(width(i));
    const Product::Fill weights = fill_weights(s, product, i, false);
    if (i == 0) {
      product.add_steps("0", depth, product.tile().depth, fill_rows(s, product, "x", width(0)), weights);
    } else {
      product.add_steps("0", depth, product.tile().depth, {}, weights,
                        from_shared(product, "h_" + std::to_string((i - 1) % 2), 0));
    }
  }
  static std::string below(std::int64_t columns) { return "first_column + {column} < " + std::to_string(columns); }
  static constexpr const char* kEveryRow = "first_row + {row} < n_rows";

  void declare(Source& s, Product& product, std::int64_t hidden_layers) const {
    const std::uint32_t rows = product.tile().rows();
    product.declare_a();
    product.declare_b();
    for (const int parity : {0, 1}) {
      const std::int64_t wide = widest(hidden_layers, parity);
      if (wide > 0) s.shared("h_" + std::to_string(parity), static_cast<std::uint32_t>(wide) * rows);
    }
  }

  void write_forward(Source& s) const {
    std::vector<Source::Parameter> parameters{Source::in("x")};
    for (std::int64_t i = 0; i < layers(); ++i) parameters.push_back(weight(i));
    parameters.push_back(Source::out("y"));
    parameters.push_back(Source::integer("n_rows"));
    s.begin_kernel("radial_mlp_forward", forward_tile_->group_size(), parameters, Source::Registers::many);
    Product product(s, *forward_tile_);
    const std::string rows = std::to_string(forward_tile_->rows());
    declare(s, product, layers() - 1);
    product.declare_lane();
    s.line("const i64 first_row = FP_GROUP * ", rows, ";");
    for (std::int64_t i = 0; i < layers(); ++i) {
      s.line("// layer ", i, ": ", width(i), " -> ", width(i + 1));
      open_columns(s, product, width(i + 1));
      add_layer(s, product, i);
      if (i + 1 < layers()) {
        const std::string h = "h_" + std::to_string(i % 2);
        product.for_each("true", below(width(i + 1)), [&](const auto& row, const auto& column, const auto& sum) {
          s.line(h, "[(first_column + ", column, ") * ", rows, " + ", row, "] = fp_silu(", sum, ");");
        });
      } else {
        product.for_each(kEveryRow, below(width(i + 1)), [&](const auto& row, const auto& column, const auto& sum) {
          s.line("y[(first_row + ", row, ") * ", width(i + 1), " + first_column + ", column, "] = ", sum, ";");
        });
      }
      s.line("}");
      if (i + 1 < layers()) s.line("FP_BARRIER();");
    }
    s.end_kernel();
  }

  void write_backward(Source& s) const {
    std::vector<Source::Parameter> parameters{Source::in("x")};
    for (std::int64_t i = 0; i < layers(); ++i) parameters.push_back(weight(i));
    parameters.push_back(Source::in("grad_y"));
    parameters.push_back(Source::out("grad_x"));
    parameters.push_back(Source::out("hidden"));  // of layer i: [n_rows, width] behind those of the layers before
    parameters.push_back(Source::out("delta"));   // its gradient before the activation
    for (const char* name : {"n_rows", "wants_x", "keeps"}) parameters.push_back(Source::integer(name));
    s.begin_kernel("radial_mlp_backward", backward_tile_->group_size(), parameters, Source::Registers::many);
    Product product(s, *backward_tile_);
    const std::string rows = std::to_string(backward_tile_->rows());
    declare(s, product, layers() - 2);
    // Arguments of the activations; later the gradients with respect to them.
    if (layers() > 1) s.shared("z", static_cast<std::uint32_t>(total_hidden()) * backward_tile_->rows());
    product.declare_lane();
    s.line("const i64 first_row = FP_GROUP * ", rows, ";");
    const auto z = [&](std::int64_t i, const std::string& row, const std::string& column) {
      return "z[(" + std::to_string(hidden_begin(i)) + " + first_column + " + column + ") * " + rows + " + " + row +
             "]";
    };
    // What an item left in shared memory, for the gradients of weights. On its own, see Product::for_each.
    const auto keep = [&](const char* array, std::int64_t i, const char* function) {
      s.line("if (keeps) {");
      product.for_each(kEveryRow, below(width(i + 1)), [&](const auto& row, const auto& column, const auto&) {
        s.line(array, "[", hidden_begin(i), " * n_rows + (first_row + ", row, ") * ", width(i + 1),
               " + first_column + ", column, "] = ", function, "(", z(i, row, column), ");");
      });
      s.line("}");
    };
    for (std::int64_t i = 0; i + 1 < layers(); ++i) {
      s.line("// layer ", i, ": ", width(i), " -> ", width(i + 1));
      open_columns(s, product, width(i + 1));
      add_layer(s, product, i);
      product.for_each("true", below(width(i + 1)), [&](const auto& row, const auto& column, const auto& sum) {
        s.line(z(i, row, column), " = ", sum, ";");
        if (i + 2 < layers()) {
          s.line("h_", i % 2, "[(first_column + ", column, ") * ", rows, " + ", row, "] = fp_silu(", sum, ");");
        }
      });
      keep("hidden", i, "fp_silu");
      s.line("}");
      s.line("FP_BARRIER();");
    }
    for (std::int64_t i = layers() - 1; i >= 0; --i) {
      s.line("// gradient of the input of layer ", i);
      if (i == 0) s.line("if (wants_x) {");
      open_columns(s, product, width(i));
      const Product::Fill weights = fill_weights(s, product, i, true);
      const std::string depth = std::to_string(width(i + 1));
      if (i + 1 == layers()) {
        product.add_steps("0", depth, product.tile().depth, fill_rows(s, product, "grad_y", width(i + 1)), weights);
      } else {
        product.add_steps("0", depth, product.tile().depth, {}, weights, from_shared(product, "z", hidden_begin(i)));
      }
      if (i > 0) {
        product.for_each("true", below(width(i)), [&](const auto& row, const auto& column, const auto& sum) {
          s.line(z(i - 1, row, column), " = ", sum, " * fp_silu_slope(", z(i - 1, row, column), ");");
        });
        keep("delta", i - 1, "");
      } else {
        product.for_each(kEveryRow, below(width(0)), [&](const auto& row, const auto& column, const auto& sum) {
          s.line("grad_x[(first_row + ", row, ") * ", width(0), " + first_column + ", column, "] = ", sum, ";");
        });
      }
      s.line("}");
      if (i > 0) s.line("FP_BARRIER();");
      if (i == 0) s.line("}");
    }
    s.end_kernel();
  }

  // ---- one kernel a layer

  void open_layer(Source& s, const std::string& name, const Tile& tile,
                  const std::vector<Source::Parameter>& parameters, Product& product, std::int64_t columns) const {
    const std::int64_t tiles = (columns + tile.columns() - 1) / tile.columns();
    s.begin_kernel(name, tile.group_size(), parameters, Source::Registers::many);
    product.declare_a();
    product.declare_b();
    product.declare_lane();
    s.line("const i64 first_row = FP_GROUP / ", tiles, " * ", tile.rows(), ", first_column = FP_GROUP % ", tiles, " * ",
           tile.columns(), ";");
    product.begin_sums();
  }
  struct Layer {
    std::uint32_t rows = 1;
    std::int64_t column_tiles = 1;
  };
  Tile layer_tile(const Target& target, std::int64_t depth, std::int64_t columns) const {
    return choose_tile(target, real_bytes_, {.columns = columns, .depth = depth});
  }
  static std::string layer_name(std::int64_t i) { return "radial_mlp_layer" + std::to_string(i); }
  static std::string backward_name(std::int64_t i) { return "radial_mlp_grad_layer" + std::to_string(i); }

  void write_layer(Source& s, std::int64_t i) {
    const Tile tile = layer_tile(s.target(), width(i), width(i + 1));
    Product product(s, tile);
    const bool last = i + 1 == layers();
    std::vector<Source::Parameter> parameters{Source::in("x"), weight(i)};
    if (!last) parameters.push_back(Source::out("z"));
    parameters.push_back(Source::out("y"));
    parameters.push_back(Source::integer("n_rows"));
    open_layer(s, layer_name(i), tile, parameters, product, width(i + 1));
    product.add_steps("0", std::to_string(width(i)), tile.depth, fill_rows(s, product, "x", width(i)),
                      fill_weights(s, product, i, false));
    product.for_each(kEveryRow, below(width(i + 1)), [&](const auto& row, const auto& column, const auto& sum) {
      s.line("const i64 at = (first_row + ", row, ") * ", width(i + 1), " + first_column + ", column, ";");
      if (!last) s.line("z[at] = ", sum, ";");
      s.line("y[at] = ", last ? sum : "fp_silu(" + sum + ")", ";");
    });
    s.end_kernel();
    layer_tiles_.resize(config_.n_layers());
    layer_tiles_[static_cast<std::size_t>(i)] = {tile.rows(), (width(i + 1) + tile.columns() - 1) / tile.columns()};
  }
  void write_layer_backward(Source& s, std::int64_t i) {
    const Tile tile = layer_tile(s.target(), width(i + 1), width(i));
    Product product(s, tile);
    std::vector<Source::Parameter> parameters{Source::in("g"), weight(i)};
    if (i > 0) parameters.push_back(Source::in("z"));
    parameters.push_back(Source::out("delta"));
    parameters.push_back(Source::integer("n_rows"));
    open_layer(s, backward_name(i), tile, parameters, product, width(i));
    product.add_steps("0", std::to_string(width(i + 1)), tile.depth, fill_rows(s, product, "g", width(i + 1)),
                      fill_weights(s, product, i, true));
    product.for_each(kEveryRow, below(width(i)), [&](const auto& row, const auto& column, const auto& sum) {
      s.line("const i64 at = (first_row + ", row, ") * ", width(i), " + first_column + ", column, ";");
      s.line("delta[at] = ", sum, i > 0 ? " * fp_silu_slope(z[at])" : "", ";");
    });
    s.end_kernel();
    backward_tiles_.resize(config_.n_layers());
    backward_tiles_[static_cast<std::size_t>(i)] = {tile.rows(), (width(i) + tile.columns() - 1) / tile.columns()};
  }

  // ---- plans

  /// Rows that are worked on at a time where scratch memory holds something of each.
  static std::int64_t round_rows(std::int64_t n) { return std::max<std::int64_t>(4096, (n + 31) / 32); }
  Buffer moved(Buffer buffer, std::int64_t numbers) const {
    buffer.offset += static_cast<std::uint64_t>(numbers) * real_bytes_;
    return buffer;
  }
  std::vector<Argument> with_weights(std::vector<Argument> arguments) const {
    for (std::uint32_t i = 0; i < config_.n_layers(); ++i) arguments.push_back(Buffer{Role::parameter, i});
    return arguments;
  }
  static void launch_layer(Plan& plan, const std::string& kernel, const Layer& layer, std::int64_t n,
                           std::vector<Argument> arguments) {
    arguments.push_back(n);
    plan.launch(kernel, (n + layer.rows - 1) / layer.rows * layer.column_tiles, std::move(arguments));
  }
  void plan_hidden_layers(Plan& plan, const Buffer& x, const Buffer& z, const Buffer& h, std::int64_t n) const {
    for (std::int64_t i = 0; i + 1 < layers(); ++i) {
      const Buffer from = i == 0 ? x : moved(h, hidden_begin(i - 1) * n);
      launch_layer(plan, layer_name(i), layer_tiles_[static_cast<std::size_t>(i)], n,
                   {from, Buffer{Role::parameter, static_cast<std::uint32_t>(i)}, moved(z, hidden_begin(i) * n),
                    moved(h, hidden_begin(i) * n)});
    }
  }
  Buffer hidden_scratch(Plan& plan, std::int64_t n) const {
    return plan.scratch(static_cast<std::uint64_t>(std::min(n, round_rows(n)) * total_hidden()) * real_bytes_);
  }

  void plan_forward(const Call& call, Plan& plan) const {
    const Buffer x{Role::input, 0}, y{Role::output, 0};
    const std::int64_t all = call.n_rows;
    if (forward_tile_) {
      std::vector<Argument> arguments = with_weights({x});
      arguments.push_back(y);
      arguments.push_back(all);
      const std::int64_t rows = forward_tile_->rows();
      plan.launch("radial_mlp_forward", (all + rows - 1) / rows, std::move(arguments));
      return;
    }
    const Buffer z = hidden_scratch(plan, all), h = hidden_scratch(plan, all);
    for (std::int64_t first = 0; first < all; first += round_rows(all)) {
      const std::int64_t n = std::min(round_rows(all), all - first), last = layers() - 1;
      const Buffer from = moved(x, first * width(0));
      plan_hidden_layers(plan, from, z, h, n);
      launch_layer(plan, layer_name(last), layer_tiles_.back(), n,
                   {last == 0 ? from : moved(h, hidden_begin(last - 1) * n),
                    Buffer{Role::parameter, static_cast<std::uint32_t>(last)}, moved(y, first * width(layers()))});
    }
  }

  void plan_backward(const Call& call, Plan& plan) const {
    const std::int64_t all = call.n_rows, length = round_rows(all);
    const std::int64_t rounds = std::max<std::int64_t>(1, (all + length - 1) / length);
    const Buffer hidden = hidden_scratch(plan, all), delta = hidden_scratch(plan, all);
    const Buffer z = backward_tile_ ? hidden : hidden_scratch(plan, all);
    std::vector<PiecewiseSum> sums;
    std::vector<std::int64_t> pieces;  // a round
    for (std::int64_t i = 0; i < layers(); ++i) {
      const std::int64_t size = width(i) * width(i + 1);
      pieces.push_back(std::max<std::int64_t>(1, pieces_of(all, size, real_bytes_) / rounds));
      sums.emplace_back(plan, rounds * pieces.back(), size, real_bytes_);
    }
    const bool wants_weights =
        std::find(call.grad_parameters.begin(), call.grad_parameters.end(), true) != call.grad_parameters.end();
    if (!wants_weights && !call.grad_inputs[0]) return;
    for (std::int64_t round = 0; round < rounds; ++round) {
      const std::int64_t first = round * length, n = std::min(length, all - first);
      const Buffer x = moved({Role::input, 0}, first * width(0));
      const Buffer grad_y = moved({Role::grad_output, 0}, first * width(layers()));
      const Buffer grad_x = call.grad_inputs[0] ? moved({Role::grad_input, 0}, first * width(0)) : delta;
      if (backward_tile_) {
        std::vector<Argument> arguments = with_weights({x});
        for (const Buffer& buffer : {grad_y, grad_x, hidden, delta}) arguments.push_back(buffer);
        arguments.push_back(n);
        arguments.push_back(call.grad_inputs[0] ? 1 : 0);
        arguments.push_back(wants_weights ? 1 : 0);
        const std::int64_t rows = backward_tile_->rows();
        plan.launch("radial_mlp_backward", (n + rows - 1) / rows, std::move(arguments));
      } else {
        plan_hidden_layers(plan, x, z, hidden, n);
        for (std::int64_t i = layers() - 1; i >= 0; --i) {
          if (i == 0 && !call.grad_inputs[0]) continue;
          const Buffer g = i + 1 == layers() ? grad_y : moved(delta, hidden_begin(i) * n);
          const Buffer w{Role::parameter, static_cast<std::uint32_t>(i)};
          std::vector<Argument> arguments{g, w};
          if (i > 0) arguments.push_back(moved(z, hidden_begin(i - 1) * n));
          arguments.push_back(i > 0 ? moved(delta, hidden_begin(i - 1) * n) : grad_x);
          launch_layer(plan, backward_name(i), backward_tiles_[static_cast<std::size_t>(i)], n, std::move(arguments));
        }
      }
      for (std::int64_t i = 0; i < layers(); ++i) {
        const auto at = static_cast<std::size_t>(i);
        if (!call.grad_parameters[at]) continue;
        const Buffer target{Role::grad_parameter, static_cast<std::uint32_t>(i)};
        const std::int64_t size = width(i) * width(i + 1);
        plan.launch("radial_mlp_grad_w" + std::to_string(i), outer_groups_[at] * pieces[at],
                    {i == 0 ? x : moved(hidden, hidden_begin(i - 1) * n),
                     i + 1 == layers() ? grad_y : moved(delta, hidden_begin(i) * n),
                     moved(sums[at].partial(target), round * pieces[at] * size), n, pieces[at], std::int64_t{0},
                     std::int64_t{0}, std::int64_t{0}});
      }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (!call.grad_parameters[i]) continue;
      sums[i].join(plan, "radial_mlp_sum_of_pieces", {Role::grad_parameter, static_cast<std::uint32_t>(i)});
    }
  }

  sdk::RadialMlpConfig config_;
  std::uint32_t real_bytes_ = 4;
  std::optional<Tile> forward_tile_, backward_tile_;
  std::vector<Layer> layer_tiles_, backward_tiles_;
  std::vector<std::int64_t> outer_groups_;
};

}  // namespace

std::unique_ptr<PartOp> radial_mlp_part(const sdk::RadialMlpConfig& config) {
  return std::make_unique<RadialMlp>(config);
}

OpFactory radial_mlp() {
  using Config = sdk::RadialMlpConfig;
  return {
      Config::kOp, Config::kVersion,
      [](const sdk::Attributes& config, sdk::KernelAnswer&) { static_cast<void>(sdk::known_config<Config>(config)); },
      create<RadialMlp, Config>};
}

}  // namespace fastpath_gpu
