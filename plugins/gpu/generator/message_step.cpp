#include <algorithm>
#include <bit>

#include "conv_paths.hpp"
#include "fastpath/sdk/check.hpp"
#include "op.hpp"
#include "product.hpp"
#include "reduction.hpp"

namespace fastpath_gpu {
namespace {

/// Harmonics, radial basis and the hidden layers of the net are kept for every edge; the weights, which are twenty
/// times as many, are not. The last layer is multiplied for a tile of edges where its weights are needed:
///   walk   a group follows the edges of a few receivers (forward) or senders (gradient of x). An item is a channel: it
///          multiplies the weights of its channel for the tile and adds the tile's messages to its sums.
///   edges  a group has a tile of edges and all channels: weights, their gradients, and the gradient of the last hidden
///          layer take turns in shared memory; gradients of harmonics are summed in registers.
///   last   the gradient of the last layer: a product of the hidden layer and gradients of weights that are computed
///          where its tile is filled.
class MessageStep final : public Op {
 public:
  explicit MessageStep(sdk::MessageStepConfig config)
      : Op(config.signature()),
        config_(std::move(config)),
        paths_(conv_paths(config_.conv)),
        harmonics_(spherical_harmonics_part(config_.harmonics)),
        radial_(radial_basis_part(config_.radial)) {
    sdk::RadialMlpConfig hidden = config_.mlp;
    hidden.widths.pop_back();
    hidden.scales.pop_back();
    if (!hidden.scales.empty()) net_ = radial_mlp_part(hidden);
    for (const ConvPath& path : paths_) {
      all_.push_back(&path);
      widest_ = std::max(widest_, path.mul);
      if (parts_.empty() || parts_.back().mul != path.mul) parts_.push_back({path.mul, {}, {}, {}});
      parts_.back().paths.push_back(&path);
    }
    for (Part& part : parts_) {  // so that neighbours read the same features
      std::stable_sort(part.paths.begin(), part.paths.end(),
                       [](const ConvPath* a, const ConvPath* b) { return a->in < b->in; });
    }
  }

  Program generate(const Target& target, sdk::DType dtype, std::uint32_t passes) override {
    Source source(target, dtype);
    real_bytes_ = source.real_bytes();
    const bool forward = (passes & FP_PASS_FORWARD) != 0, backward = (passes & FP_PASS_BACKWARD) != 0;
    const std::uint32_t with_forward = passes | FP_PASS_FORWARD;  // backward computes again what it needs
    harmonics_->write(source, with_forward);
    radial_->write(source, with_forward);
    if (net_) net_->write(source, with_forward);
    write_zero(source);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      if (forward) write_walk(source, i, true);
      if (backward) write_walk(source, i, false);
    }
    if (backward) {
      write_transposed(source);
      write_edges(source);
      write_compensated_add(source);
      write_last(source);
      write_sum_of_pieces(source, "message_step_sum_of_pieces");
    }
    Program program = source.finish();
    radial_->add_tables(program);
    if (backward) program.owned = {static_cast<std::uint64_t>(inputs() * weights()) * real_bytes_};
    return program;
  }

  void plan_bind(Plan& plan) const override {
    if (edges_.group == 0) return;  // forward only
    plan.launch_items("message_step_transposed", inputs() * weights(), {last_weights(), Buffer{Role::owned, 0}});
  }
  void plan(const Call& call, Plan& plan) const override {
    const Edges at = prepare(call, plan);
    if (call.pass == sdk::Pass::forward) {
      const Buffer out{Role::output, 0};
      plan_zero(plan, out, call.n_receivers * config_.conv.out.dim());
      plan_walk(plan, call, at, true, Buffer{Role::input, 0}, out);
    } else {
      plan_backward(call, at, plan);
    }
  }

 private:
  /// How a walk is tiled.
  struct Walk {
    std::uint32_t group = 1;  ///< Items: channels.
    std::uint32_t tile = 1;   ///< Edges.
    std::size_t batch = 1;    ///< Paths whose weights are in shared memory at a time.
  };
  /// Paths of one multiplicity.
  struct Part {
    std::int64_t mul = 0;
    std::vector<const ConvPath*> paths;
    Walk forward, grad_x;
  };
  /// How the kernel `edges` is tiled. All are powers of two.
  struct EdgeTile {
    std::uint32_t group = 0, tile = 1;                    ///< Items, edges.
    std::uint32_t channels = 1;                           ///< At a time.
    std::uint32_t stride = 1;                             ///< From channel to channel in shared memory.
    std::uint32_t hidden_items = 1;                       ///< Items side by side in a row of the hidden layer.
    std::uint32_t lanes() const { return group / tile; }  ///< Items of an edge.
  };
  /// What is kept of edges.
  struct Edges {
    Buffer y, basis, envelope, z;
  };
  static constexpr int kRun = 16;  ///< Terms of one sum; longer ones are sums of such sums, which keeps digits.
  static constexpr std::uint32_t kMostShared = 48 * 1024;  ///< That a walk takes where there is more.

  std::int64_t inputs() const { return config_.mlp.widths[config_.mlp.n_layers() - 1]; }
  std::int64_t weights() const { return config_.mlp.widths.back(); }
  std::int64_t edge_dim() const { return config_.conv.edge.dim(); }
  double scale() const { return config_.mlp.scales.back(); }
  bool cuts() const { return !config_.radial.apply_cutoff; }
  Buffer last_weights() const {
    return {Role::parameter, static_cast<std::uint32_t>(config_.mlp.n_layers()), 0};  // behind bessel_weights
  }
  static std::string number(std::int64_t n) { return std::to_string(n); }
  static std::uint32_t covering(std::int64_t n, std::uint32_t least, std::uint32_t most) {
    std::uint32_t result = least;
    while (result < most && result < n) result *= 2;
    return result;
  }
  static std::string walk_name(std::size_t part, bool forward) {
    return std::string("message_step_") + (forward ? "forward_" : "grad_x_") + std::to_string(part);
  }
  std::uint32_t edges_in_tile() const { return real_bytes_ == 4 ? 32 : 16; }

  // ---- parts of kernels

  /// The input of the last layer, from its argument z.
  std::string hidden(const std::string& z) const { return net_ ? "fp_silu(" + z + ")" : z; }
  /// The same with the factors of the weights: envelope, and the scale of the layer if wanted.
  std::string scaled_hidden(const Source& s, const std::string& edge, const std::string& k, bool with_scale) const {
    std::string text = hidden("z[" + edge + " * " + number(inputs()) + " + " + k + "]");
    if (with_scale) text = s.real(scale()) + " * " + text;
    if (cuts()) text += " * envelope[" + edge + "]";
    return text;
  }
  std::vector<Source::Parameter> edge_inputs(std::vector<Source::Parameter> before,
                                             std::vector<Source::Parameter> after) const {
    before.insert(before.end(), {Source::in("y"), Source::in("z")});
    if (cuts()) before.push_back(Source::in("envelope"));
    before.insert(before.end(), after.begin(), after.end());
    return before;
  }
  std::vector<Argument> edge_arguments(const Edges& at, std::vector<Argument> before,
                                       std::vector<Argument> after) const {
    before.insert(before.end(), {at.y, at.z});
    if (cuts()) before.push_back(at.envelope);
    before.insert(before.end(), after.begin(), after.end());
    return before;
  }
  /// NAME0, NAME1, .. NAMEn-1 of zero.
  static void zeros(Source& s, const char* name, std::uint32_t n) {
    constexpr std::uint32_t kOnALine = 8;
    for (std::uint32_t begin = 0; begin < n; begin += kOnALine) {
      std::string text;
      for (std::uint32_t i = begin; i < std::min(n, begin + kOnALine); ++i) {
        text += (i == begin ? "real " : ", ") + std::string(name) + number(i) + " = " + s.real(0);
      }
      s.line(text, ";");
    }
  }
  /// c0.. = the weights w[.., at + u] of `rows` edges from `first` on in h_tile, [inputs()][tile]; 0 unless `there`.
  void multiply_last_layer(Source& s, const std::string& at, std::uint32_t tile, std::uint32_t rows,
                           const std::string& first, const std::string& there) const {
    zeros(s, "c", rows);
    s.line("for (i32 k0 = 0; k0 < ", inputs(), "; k0 += ", kRun, ") {");
    zeros(s, "part", rows);
    s.line("FP_UNROLL(4)");
    s.line("for (i32 k = k0; k < k0 + ", kRun, inputs() % kRun == 0 ? "" : " && k < " + number(inputs()), "; ++k) {");
    const std::string weight = "w[k * (i64)" + number(weights()) + " + " + at + " + u]";
    s.line("const real weight = ", there.empty() ? weight : there + " ? " + weight + " : " + s.real(0), ";");
    for (std::uint32_t i = 0; i < rows; ++i) {
      s.line("part", i, " += h_tile[k * ", tile, " + ", first, i, "] * weight;");
    }
    s.line("}");
    for (std::uint32_t i = 0; i < rows; ++i) s.line("c", i, " += part", i, ";");
    s.line("}");
  }

  /// Tiles of so many channels of all paths, one path after the other.
  std::int64_t channel_tiles(std::uint32_t channels) const {
    std::int64_t n = 0;
    for (const ConvPath* path : all_) n += (path->mul + channels - 1) / channels;
    return n;
  }
  /// path, mul, at (its first weight) and first (channel of the path) of the variable `tile`.
  void find_channels(Source& s, std::uint32_t channels) const {
    s.line("i32 path = 0;");
    s.line("i64 first = tile * ", channels, ", mul = ", all_[0]->mul, ", at = ", all_[0]->w, ";");
    std::int64_t begin = 0;
    for (std::size_t p = 0; p < all_.size(); ++p) {
      if (p > 0) {
        s.line("if (tile >= ", begin, ") {");
        s.line("path = ", p, ";");
        s.line("first = (tile - ", begin, ") * ", channels, ";");
        s.line("mul = ", all_[p]->mul, ";");
        s.line("at = ", all_[p]->w, ";");
        s.line("}");
      }
      begin += (all_[p]->mul + channels - 1) / channels;
    }
  }
  /// Whether no tile of so many channels has fewer.
  bool fills(std::uint32_t channels) const {
    return std::all_of(all_.begin(), all_.end(), [&](const ConvPath* path) { return path->mul % channels == 0; });
  }

  void write_zero(Source& s) const {
    constexpr std::uint32_t kGroup = 256;
    s.begin_kernel("message_step_zero", s.group_size(kGroup), {Source::out("out"), Source::integer("n_items")});
    s.item("item", "n_items");
    s.line("out[item] = ", s.real(0), ";");
    s.end_kernel();
  }
  void plan_zero(Plan& plan, const Buffer& out, std::int64_t n) const {
    plan.launch_items("message_step_zero", n, {out, n});
  }

  // ---- walks

  std::uint64_t walk_bytes(const Walk& walk) const {
    const std::uint64_t reals = static_cast<std::uint64_t>(inputs() + edge_dim()) * walk.tile +
                                walk.batch * static_cast<std::uint64_t>(walk.tile) * walk.group;
    return reals * real_bytes_ + walk.tile * 2 * sizeof(std::int32_t);
  }
  Walk walk_tiling(const Target& target, const Part& part) const {
    constexpr std::uint32_t kLeastItems = 32, kMostItems = 128, kLeastTile = 4;
    constexpr std::size_t kMostBatch = 4;
    const std::uint32_t most = std::bit_floor(std::min(target.max_group_size, kMostItems));
    Walk walk;
    walk.group = covering(part.mul, std::min(kLeastItems, most), most);
    walk.tile = edges_in_tile();
    while (walk_bytes(walk) > target.local_bytes) {
      if (walk.tile > kLeastTile || (walk.group == 1 && walk.tile > 1)) {
        walk.tile /= 2;
      } else if (walk.group > 1) {
        walk.group /= 2;
      } else {
        break;  // Source::shared says what is wanted
      }
    }
    while (walk.batch < kMostBatch && walk.batch < part.paths.size()) {
      Walk larger = walk;
      ++larger.batch;
      if (walk_bytes(larger) > std::min(target.local_bytes, kMostShared)) break;
      walk = larger;
    }
    return walk;
  }

  /// `rows` (receivers, or senders) of which a group has rows_each; it adds to `out`, which is 0 before.
  void write_walk(Source& s, std::size_t index, bool forward) {
    Part& part = parts_[index];
    const Walk walk = walk_tiling(s.target(), part);
    (forward ? part.forward : part.grad_x) = walk;
    const std::int64_t column_tiles = (part.mul + walk.group - 1) / walk.group;
    const char* to_array = forward ? "out" : "grad_x";
    std::vector<Source::Parameter> after{Source::in("w"), Source::out(to_array), Source::in("sender", "i32"),
                                         Source::in("receiver", "i32"), Source::in("ptr", "i64")};
    if (!forward) after.push_back(Source::in("sender_edge", "i64"));
    for (const char* name : {"n_rows", "rows_each"}) after.push_back(Source::integer(name));
    if (!forward) after.push_back(Source::integer("n_receivers"));
    s.begin_kernel(walk_name(index, forward), walk.group, edge_inputs({Source::in(forward ? "x" : "grad_out")}, after),
                   Source::Registers::many);
    s.shared("h_tile", static_cast<std::uint32_t>(inputs()) * walk.tile);  // [k][edge]
    s.shared("y_tile", static_cast<std::uint32_t>(edge_dim()) * walk.tile);
    // [path][edge][item]: a column is of one item, which alone reads and writes it.
    s.shared("w_tile", static_cast<std::uint32_t>(walk.batch) * walk.tile * walk.group);
    s.shared("from_tile", walk.tile, "i32");
    s.shared("to_tile", walk.tile, "i32");
    s.line("const i64 u = FP_GROUP % ", column_tiles, " * ", walk.group, " + FP_LANE;");
    s.line("const i64 first_row = FP_GROUP / ", column_tiles, " * rows_each;");
    s.line("const i64 end_row = first_row + rows_each < n_rows ? first_row + rows_each : n_rows;");
    s.line("const i64 begin = ptr[first_row], end = ptr[end_row];");
    s.line("for (i64 start = begin; start < end; start += ", walk.tile, ") {");
    s.line("const i32 count = end - start < ", walk.tile, " ? (i32)(end - start) : ", walk.tile, ";");
    s.line("FP_BARRIER();");
    fill_walk(s, walk, forward);
    s.line("FP_BARRIER();");
    s.line("if (u < ", part.mul, ") {");
    for (std::size_t first = 0; first < part.paths.size(); first += walk.batch) {
      const std::size_t n = std::min(walk.batch, part.paths.size() - first);
      const auto begin = part.paths.begin() + static_cast<std::ptrdiff_t>(first);
      s.line("{");
      write_batch(s, walk, {begin, begin + static_cast<std::ptrdiff_t>(n)}, forward);
      s.line("}");
    }
    s.line("}");
    s.line("}");
    s.end_kernel();
  }
  void fill_walk(Source& s, const Walk& walk, bool forward) const {
    const std::string edge = forward ? "start + r" : "sender_edge[start + r]";
    s.line("for (i32 r = FP_LANE; r < count; r += ", walk.group, ") {");
    s.line("const i64 e = ", edge, ";");
    s.line("from_tile[r] = sender[e];");
    s.line("to_tile[r] = receiver[e];");
    s.line("}");
    const auto fill = [&](const char* tile, std::int64_t width, const std::string& at, const std::string& value) {
      s.line("for (i32 i = FP_LANE; i < ", width * walk.tile, "; i += ", walk.group, ") {");
      s.line("const i32 j = i % ", width, ", r = i / ", width, ";");
      s.line("real value = ", s.real(0), ";");
      s.line("if (r < count) {");
      s.line("const i64 e = ", edge, ";");
      s.line("value = ", value, ";");
      s.line("}");
      s.line(tile, "[", at, "] = value;");
      s.line("}");
    };
    fill("y_tile", edge_dim(), "i", "y[e * " + number(edge_dim()) + " + j]");
    fill("h_tile", inputs(), "j * " + number(walk.tile) + " + r", scaled_hidden(s, "e", "j", true));
  }
  void write_batch(Source& s, const Walk& walk, const std::vector<const ConvPath*>& paths, bool forward) const {
    const auto weight_at = [&](std::size_t q, const std::string& r) {
      return "w_tile[(" + number(static_cast<std::int64_t>(q) * walk.tile) + " + " + r + ") * " + number(walk.group) +
             " + FP_LANE]";
    };
    for (std::size_t q = 0; q < paths.size(); ++q) {
      comment_conv_path(s, config_.conv, *paths[q]);
      s.line("{");
      multiply_last_layer(s, number(paths[q]->w), walk.tile, walk.tile, "", "");
      for (std::uint32_t i = 0; i < walk.tile; ++i) s.line(weight_at(q, number(i)), " = c", i, ";");
      s.line("}");
    }
    const sdk::Irreps& irreps = forward ? config_.conv.out : config_.conv.in;
    const std::vector<std::size_t> blocks = blocks_of(paths, forward ? &ConvPath::out : &ConvPath::in);
    begin_conv_sums(s, blocks, irreps, "sum");
    const char* rows = forward ? "to_tile" : "from_tile";
    const auto flush = [&](const char* r, bool again) {
      s.line("const i64 n = ", rows, "[", r, "];");
      for (const std::size_t b : blocks) {
        for (int c = 0; c <= 2 * irreps[b].ir.l; ++c) {
          const std::string sum = conv_variable("sum", b, c);
          s.line(conv_element(forward ? "out" : "grad_x", irreps, b, "n", c), " += ", sum, ";");
          if (again) s.line(sum, " = ", s.real(0), ";");
        }
      }
    };
    s.line("for (i32 r = 0; r < count; ++r) {");
    s.line("if (r > 0 && ", rows, "[r] != ", rows, "[r - 1]) {");
    flush("r - 1", true);
    s.line("}");
    if (!forward) {
      s.line("const i64 to = to_tile[r];");
      s.line("if (to >= n_receivers) continue;");  // into a ghost: there is no such output
    }
    for (const std::int64_t j : y_components(paths)) {
      s.line("const real y", j, " = y_tile[r * ", edge_dim(), " + ", j, "];");
    }
    if (forward) {
      s.line("const i64 from = from_tile[r];");
      for (const std::size_t b : blocks_of(paths, &ConvPath::in)) {
        load_conv_block(s, "x", "x", config_.conv.in, b, "from");
      }
    }
    for (std::size_t q = 0; q < paths.size(); ++q) {
      s.line("{");
      s.line("const real weight = ", weight_at(q, "r"), ";");
      if (forward) {
        add_conv_forward(s, *paths[q]);
      } else {
        load_conv_block(s, "g", "grad_out", config_.conv.out, paths[q]->out, "to");
        add_conv_grad_x(s, *paths[q]);
      }
      s.line("}");
    }
    s.line("}");
    flush("count - 1", false);
  }
  void plan_walk(Plan& plan, const Call& call, const Edges& at, bool forward, const Buffer& from,
                 const Buffer& to) const {
    if (call.n_edges == 0) return;
    constexpr std::int64_t kTiles = 2, kMostRows = 64;  // that a group has, so that most of its tiles are full
    const std::int64_t rows = forward ? call.n_receivers : call.n_nodes;
    const std::int64_t degree = std::max<std::int64_t>(1, call.n_edges / std::max<std::int64_t>(1, rows));
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Walk& walk = forward ? parts_[i].forward : parts_[i].grad_x;
      const std::int64_t rows_each = std::clamp<std::int64_t>(kTiles * walk.tile / degree, 1, kMostRows);
      std::vector<Argument> after{last_weights(), to, graph_array(GraphArray::sender),
                                  graph_array(GraphArray::receiver),
                                  graph_array(forward ? GraphArray::receiver_ptr : GraphArray::sender_ptr)};
      if (!forward) after.push_back(graph_array(GraphArray::sender_edge));
      after.insert(after.end(), {rows, rows_each});
      if (!forward) after.push_back(call.n_receivers);
      const std::int64_t column_tiles = (parts_[i].mul + walk.group - 1) / walk.group;
      plan.launch(walk_name(i, forward), (rows + rows_each - 1) / rows_each * column_tiles,
                  edge_arguments(at, {from}, after));
    }
  }

  // ---- edges

  void write_transposed(Source& s) const {
    constexpr std::uint32_t kGroup = 256;
    s.line("// The last layer with its scale, [out, in].");
    s.begin_kernel("message_step_transposed", s.group_size(kGroup), {Source::in("w"), Source::out("transposed")});
    s.item("item", number(inputs() * weights()));
    s.line("transposed[item] = ", s.real(scale()), " * w[item % ", inputs(), " * ", weights(), " + item / ", inputs(),
           "];");
    s.end_kernel();
  }

  std::uint64_t edges_bytes(const EdgeTile& tile) const {
    return (static_cast<std::uint64_t>(inputs()) * tile.tile + std::uint64_t{tile.channels} * tile.stride) *
           real_bytes_;
  }
  EdgeTile edges_tiling(const Target& target) const {
    constexpr std::uint32_t kMostItems = 256, kMostChannels = 128, kFewChannels = 16;
    EdgeTile tile;
    tile.group = std::bit_floor(std::min(target.max_group_size, kMostItems));
    const auto set = [&](std::uint32_t edges, std::uint32_t channels) {
      tile.tile = edges;
      tile.channels = std::max(channels, tile.lanes());
      tile.stride = edges + 16 / real_bytes_;  // neighbours in different banks
      tile.hidden_items = covering(inputs(), tile.lanes(), tile.group);
    };
    set(std::min(edges_in_tile(), tile.group), covering(widest_, 1, std::min(kMostChannels, tile.group)));
    while (edges_bytes(tile) > target.local_bytes) {
      if (tile.channels > kFewChannels && tile.channels > tile.lanes()) {
        set(tile.tile, tile.channels / 2);
      } else if (tile.tile > 1) {
        set(tile.tile / 2, tile.channels);
      } else {
        break;  // Source::shared says what is wanted
      }
    }
    return tile;
  }

  /// Few barriers, and none within an `if`: PoCL copies what follows one that is, and does not end where there are
  /// dozens.
  void write_edges(Source& s) {
    const EdgeTile tile = edges_ = edges_tiling(s.target());
    const std::int64_t k = inputs();
    const std::uint32_t lanes = tile.lanes();
    const std::uint32_t rows = tile.tile * tile.channels / tile.group;  // of an item, when it multiplies weights
    const std::uint32_t hidden_rows = tile.tile * tile.hidden_items / tile.group;
    const auto hidden_turns = static_cast<std::uint32_t>((k + tile.hidden_items - 1) / tile.hidden_items);
    std::vector<Source::Parameter> after{Source::in("w"), Source::in("transposed"), Source::in("grad_out"),
                                         Source::out("grad_y"), Source::out("grad_z")};
    if (cuts()) after.push_back(Source::out("grad_envelope"));
    after.insert(after.end(), {Source::in("sender", "i32"), Source::in("receiver", "i32")});
    for (const char* name : {"n_edges", "n_receivers", "wants_y", "wants_z"}) after.push_back(Source::integer(name));
    s.begin_kernel("message_step_edges", tile.group, edge_inputs({Source::in("x")}, after), Source::Registers::many);
    s.shared("h_tile", static_cast<std::uint32_t>(k) * tile.tile);  // [k][edge]
    s.shared("w_tile", tile.channels * tile.stride);                // [channel][edge]: weights, then their gradients
    s.line("// of the item for the tensor product: an edge, every ", lanes, "th channel");
    s.line("const i32 own = FP_LANE / ", lanes, ", lane = FP_LANE % ", lanes, ";");
    s.line("const i64 first_edge = FP_GROUP * ", tile.tile, ", e = first_edge + own;");
    s.line("const i64 to = e < n_edges ? receiver[e] : n_receivers, from = e < n_edges ? sender[e] : 0;");
    const std::vector<std::int64_t> used = y_components(all_);
    for (const std::int64_t j : used) {
      s.line("const real y", j, " = e < n_edges ? y[e * ", edge_dim(), " + ", j, "] : ", s.real(0), ";");
      s.line("real sum", j, " = ", s.real(0), ";");
    }
    s.line("// for weights: a channel and ", rows, " edges; for the hidden layer: ", hidden_rows, " edges");
    s.line("const i32 column = FP_LANE % ", tile.channels, ", first_row = FP_LANE / ", tile.channels, " * ", rows, ";");
    s.line("const i32 input = FP_LANE % ", tile.hidden_items, ", first_hidden = FP_LANE / ", tile.hidden_items, " * ",
           hidden_rows, ";");
    zeros(s, "grad", hidden_turns * hidden_rows);
    s.line("for (i32 i = FP_LANE; i < ", k * tile.tile, "; i += ", tile.group, ") {");
    s.line("const i32 k = i % ", k, ", r = i / ", k, ";");
    s.line("const i64 edge = first_edge + r;");
    s.line("h_tile[k * ", tile.tile, " + r] = edge < n_edges ? ", scaled_hidden(s, "edge", "k", true), " : ", s.real(0),
           ";");
    s.line("}");
    s.line("FP_BARRIER();");
    const std::string there = fills(tile.channels) ? "" : "u < mul";
    s.line("for (i64 tile = 0; tile < ", channel_tiles(tile.channels), "; ++tile) {");
    find_channels(s, tile.channels);
    s.line("if (wants_y) {");
    s.line("const i64 u = first + column;");
    multiply_last_layer(s, "at", tile.tile, rows, "first_row + ", there);
    for (std::uint32_t i = 0; i < rows; ++i) {
      s.line("w_tile[column * ", tile.stride, " + first_row + ", i, "] = c", i, ";");
    }
    s.line("}");
    s.line("FP_BARRIER();");
    s.line("for (i32 c = lane; c < ", tile.channels, "; c += ", lanes, ") {");
    s.line("const i64 u = first + c;");
    s.line("real gradient = ", s.real(0), ";");
    s.line("if (to < n_receivers", there.empty() ? "" : " && " + there, ") {");
    s.line("const real weight = wants_y ? w_tile[c * ", tile.stride, " + own] : ", s.real(0), ";");
    for (std::size_t p = 0; p < all_.size(); ++p) {
      comment_conv_path(s, config_.conv, *all_[p]);
      s.line("if (path == ", p, ") {");
      write_gradient(s, *all_[p], true);
      s.line("}");
    }
    s.line("}");
    s.line("w_tile[c * ", tile.stride, " + own] = gradient;");
    s.line("}");
    s.line("FP_BARRIER();");
    s.line("if (wants_z) {");
    add_to_hidden(s, hidden_rows, hidden_turns);
    s.line("}");
    s.line("FP_BARRIER();");
    s.line("}");
    store_hidden(s, hidden_rows, hidden_turns);
    store_grad_y(s, used);
    s.end_kernel();
  }
  /// gradient = that of the weight of path, edge e and channel u; with_sums: adds to the gradients of y, too.
  void write_gradient(Source& s, const ConvPath& path, bool with_sums) const {
    load_conv_block(s, "x", "x", config_.conv.in, path.in, "from");
    load_conv_block(s, "g", "grad_out", config_.conv.out, path.out, "to");
    const std::vector<int> terms = write_conv_terms(s, path);
    if (with_sums) {
      for (const int j : terms) s.line("sum", path.y + j, " += weight * t", j, ";");
    }
    s.line("gradient = ", conv_weight_gradient(s, path, terms), ";");
  }
  /// grad += gradients of weights in w_tile times the last layer.
  void add_to_hidden(Source& s, std::uint32_t rows, std::uint32_t turns) const {
    const std::uint32_t run = std::min<std::uint32_t>(kRun, edges_.channels);
    const bool whole = fills(edges_.channels);
    s.line("for (i32 c0 = 0; c0 < ", edges_.channels, whole ? "" : " && first + c0 < mul", "; c0 += ", run, ") {");
    zeros(s, "part", turns * rows);
    s.line("FP_UNROLL(4)");
    s.line("for (i32 c = c0; c < c0 + ", run, whole ? "" : " && first + c < mul", "; ++c) {");
    for (std::uint32_t t = 0; t < turns; ++t) {
      const std::string column = t == 0 ? "input" : "input + " + number(t * edges_.hidden_items);
      const std::string value = "transposed[(at + first + c) * " + number(inputs()) + " + " + column + "]";
      const bool there = (t + 1) * edges_.hidden_items <= static_cast<std::uint64_t>(inputs());
      s.line("const real b", t, " = ",
             there ? value : column + " < " + number(inputs()) + " ? " + value + " : " + s.real(0), ";");
    }
    for (std::uint32_t i = 0; i < rows; ++i) {
      s.line("const real a", i, " = w_tile[c * ", edges_.stride, " + first_hidden + ", i, "];");
      for (std::uint32_t t = 0; t < turns; ++t) s.line("part", t * rows + i, " += a", i, " * b", t, ";");
    }
    s.line("}");
    for (std::uint32_t i = 0; i < turns * rows; ++i) s.line("grad", i, " += part", i, ";");
    s.line("}");
  }
  /// The gradient of z, and of the envelope that multiplies weights.
  void store_hidden(Source& s, std::uint32_t rows, std::uint32_t turns) const {
    // One condition, see Product::for_each.
    const auto for_each = [&](const char* condition, const auto& body) {
      for (std::uint32_t t = 0; t < turns; ++t) {
        s.line("{");
        s.line("const i32 k = input + ", t * edges_.hidden_items, ";");
        for (std::uint32_t i = 0; i < rows; ++i) {
          s.line("{");
          s.line("const i32 r = first_hidden + ", i, ";");
          s.line("const i64 edge = first_edge + r;");
          s.line("if ((k < ", inputs(), ")", condition, ") {");
          body("grad" + number(t * rows + i));
          s.line("}");
          s.line("}");
        }
        s.line("}");
      }
    };
    const std::string z = "z[edge * " + number(inputs()) + " + k]";
    if (cuts()) {
      s.line("if (wants_z) {");
      for_each("", [&](const std::string& grad) {
        s.line("h_tile[k * ", edges_.tile, " + r] = edge < n_edges ? ", grad, " * ", hidden(z), " : ", s.real(0), ";");
      });
      s.line("}");
      s.line("FP_BARRIER();");
      s.line("for (i32 r = FP_LANE; wants_z && r < ", edges_.tile, "; r += ", edges_.group, ") {");
      s.line("real total = ", s.real(0), ";");
      s.line("for (i32 k = 0; k < ", inputs(), "; ++k) total += h_tile[k * ", edges_.tile, " + r];");
      s.line("if (first_edge + r < n_edges) grad_envelope[first_edge + r] = total;");
      s.line("}");
    }
    s.line("if (wants_z) {");
    for_each(" & (edge < n_edges)", [&](const std::string& grad) {
      s.line("grad_z[edge * ", inputs(), " + k] = ", grad, cuts() ? " * envelope[edge]" : "",
             net_ ? " * fp_silu_slope(" + z + ")" : "", ";");
    });
    s.line("}");
  }
  /// Sums over the items of an edge, through w_tile, so many components at a time as it has room for.
  void store_grad_y(Source& s, const std::vector<std::int64_t>& used) const {
    const std::int64_t room = std::int64_t{edges_.channels} * edges_.stride / edges_.group;
    for (std::int64_t begin = 0; begin < edge_dim(); begin += room) {
      const std::int64_t n = std::min(room, edge_dim() - begin);
      if (begin > 0) s.line("FP_BARRIER();");
      for (std::int64_t j = begin; j < begin + n; ++j) {
        const bool there = std::binary_search(used.begin(), used.end(), j);
        s.line("w_tile[", (j - begin) * edges_.group, " + FP_LANE] = ", there ? "sum" + number(j) : s.real(0), ";");
      }
      s.line("FP_BARRIER();");
      s.line("for (i32 i = FP_LANE; wants_y && i < ", n * edges_.tile, "; i += ", edges_.group, ") {");
      s.line("const i32 j = i % ", n, ", r = i / ", n, ";");
      s.line("if (first_edge + r >= n_edges) break;");
      s.line("const i32 at = j * ", edges_.group, " + r * ", edges_.lanes(), ";");
      s.line("real total = w_tile[at];");
      s.line("for (i32 l = 1; l < ", edges_.lanes(), "; ++l) total += w_tile[at + l];");
      s.line("grad_y[(first_edge + r) * ", edge_dim(), " + ", begin, " + j] = total;");
      s.line("}");
    }
  }

  // ---- gradient of the last layer

  void write_last(Source& s) {
    const Tile tile = choose_tile(s.target(), real_bytes_, {.rows = inputs(), .columns = widest_, .depth = 16});
    const std::int64_t row_tiles = (inputs() + tile.rows() - 1) / tile.rows();
    const std::int64_t tiles = channel_tiles(tile.columns());
    last_groups_ = row_tiles * tiles;
    std::vector<Source::Parameter> after{Source::in("grad_out"), Source::out("partial"), Source::in("sender", "i32"),
                                         Source::in("receiver", "i32")};
    for (const char* name : {"n_edges", "n_receivers", "n_pieces"}) after.push_back(Source::integer(name));
    s.begin_kernel("message_step_grad_last", tile.group_size(), edge_inputs({Source::in("x")}, after),
                   Source::Registers::many);
    Product product(s, tile, true);
    product.declare_a();
    product.declare_b();
    product.declare_lane();
    s.line("const i64 first_k = FP_GROUP % ", row_tiles, " * ", tile.rows(), ";");
    s.line("const i64 tile = FP_GROUP / ", row_tiles, " % ", tiles, ", piece = FP_GROUP / ", row_tiles * tiles, ";");
    find_channels(s, tile.columns());
    s.line("const i64 length = (n_edges + n_pieces - 1) / n_pieces, begin = piece * length;");
    s.line("const i64 end = begin + length < n_edges ? begin + length : n_edges;");
    product.begin_sums();
    product.add_steps(
        "begin", "end", tile.depth,
        [&] {
          product.begin_fill(tile.depth * tile.rows());
          s.line("const i32 k = i % ", tile.rows(), ", n = i / ", tile.rows(), ";");
          s.line("a_tile[n * ", tile.a_stride(), " + k] = first_k + k < ", inputs(), " && k0 + n < end ? ",
                 scaled_hidden(s, "(k0 + n)", "first_k + k", false), " : ", s.real(0), ";");
          s.line("}");
        },
        [&] {
          product.begin_fill(tile.depth * tile.columns());
          s.line("const i32 column = i % ", tile.columns(), ", n = i / ", tile.columns(), ";");
          s.line("const i64 e = k0 + n, u = first + column, to = e < end ? receiver[e] : n_receivers;");
          s.line("real gradient = ", s.real(0), ";");
          s.line("if (to < n_receivers && u < mul) {");
          s.line("const i64 from = sender[e];");
          for (std::size_t p = 0; p < all_.size(); ++p) {
            s.line("if (path == ", p, ") {");
            for (const std::int64_t j : y_components({all_[p]})) {
              s.line("const real y", j, " = y[e * ", edge_dim(), " + ", j, "];");
            }
            write_gradient(s, *all_[p], false);
            s.line("}");
          }
          s.line("}");
          s.line("b_tile[n * ", tile.b_stride(), " + column] = gradient;");
          s.line("}");
        });
    product.for_each("first_k + {row} < " + number(inputs()), "first + {column} < mul",
                     [&](const std::string& row, const std::string& column, const std::string& sum) {
                       s.line("partial[(piece * ", inputs(), " + first_k + ", row, ") * ", weights(),
                              " + at + first + ", column, "] = ", s.real(scale()), " * ", sum, ";");
                     });
    s.end_kernel();
  }

  // ---- plans

  Buffer array(Plan& plan, std::int64_t n) const {
    return plan.scratch(static_cast<std::uint64_t>(std::max<std::int64_t>(1, n)) * real_bytes_);
  }
  /// A call of a part that wants all there is, but for gradients of what is constant.
  static Call call_of(const PartOp& part, const Call& call) {
    Call result;
    result.pass = call.pass;
    result.n_edges = result.n_rows = call.n_edges;
    result.n_nodes = call.n_nodes;
    result.n_receivers = call.n_receivers;
    const bool backward = call.pass == sdk::Pass::backward;
    result.outputs.assign(part.signature().outputs.size(), !backward);
    result.grad_outputs.assign(part.signature().outputs.size(), backward);
    for (const sdk::Argument& input : part.signature().inputs) {
      result.grad_inputs.push_back(backward && input.differentiable);
    }
    result.grad_parameters.assign(part.signature().parameters.size(), false);
    return result;
  }
  /// Harmonics, basis, envelope and hidden layers of all edges.
  Edges prepare(const Call& whole, Plan& plan) const {
    Call call = whole;
    call.pass = sdk::Pass::forward;
    Edges at;
    at.y = array(plan, call.n_edges * edge_dim());
    at.basis = array(plan, call.n_edges * config_.radial.n_basis);
    at.envelope = cuts() ? array(plan, call.n_edges) : at.basis;
    at.z = net_ ? array(plan, call.n_edges * inputs()) : at.basis;
    plan.append([&](Plan& part) { harmonics_->plan(call_of(*harmonics_, call), part); },
                [&](const Buffer& b) {
                  return b.role == Role::output ? at.y : Buffer{Role::input, 1};
                });
    plan.append(
        [&](Plan& part) {
          Call own = call_of(*radial_, call);
          own.outputs[1] = cuts();
          radial_->plan(own, part);
        },
        [&](const Buffer& b) {
          return place_radial(b, {Role::input, 2}, at.basis, at.envelope);
        });
    if (net_) {
      plan.append([&](Plan& part) { net_->plan(call_of(*net_, call), part); },
                  [&](const Buffer& b) {
                    if (b.role == Role::parameter) return Buffer{Role::parameter, b.index + 1};
                    return b.role == Role::output ? at.z : at.basis;
                  });
    }
    return at;
  }
  static Buffer place_radial(const Buffer& buffer, const Buffer& lengths, const Buffer& basis, const Buffer& envelope) {
    if (buffer.role == Role::input) return buffer.index == 0 ? lengths : Buffer{Role::input, 3};
    if (buffer.role == Role::output || buffer.role == Role::grad_output) return buffer.index == 0 ? basis : envelope;
    return {buffer.role, buffer.index, 0};
  }

  void plan_backward(const Call& call, const Edges& at, Plan& plan) const {
    const std::int64_t n = call.n_edges;
    const Buffer x{Role::input, 0}, g{Role::grad_output, 0};
    const Buffer grad_y = array(plan, n * edge_dim()), grad_z = array(plan, n * inputs());
    const Buffer grad_basis = net_ ? array(plan, n * config_.radial.n_basis) : grad_z;
    const Buffer grad_envelope = cuts() ? array(plan, n) : grad_basis;
    const auto last = static_cast<std::uint32_t>(config_.mlp.n_layers());
    const bool wants_x = call.grad_inputs[0], wants_y = call.grad_inputs[1], wants_lengths = call.grad_inputs[2];
    bool wants_net = false;
    for (std::uint32_t i = 1; i < last; ++i) wants_net = wants_net || call.grad_parameters[i];
    const bool wants_z = wants_lengths || wants_net;

    if (wants_x) {
      const Buffer grad_x{Role::grad_input, 0};
      plan_zero(plan, grad_x, call.n_nodes * config_.conv.in.dim());
      plan_walk(plan, call, at, false, g, grad_x);
    }
    const Buffer sender = graph_array(GraphArray::sender), receiver = graph_array(GraphArray::receiver);
    if (wants_y || wants_z) {
      std::vector<Argument> after{last_weights(), Buffer{Role::owned, 0}, g, grad_y, grad_z};
      if (cuts()) after.push_back(grad_envelope);
      after.insert(after.end(), {sender, receiver, n, call.n_receivers, std::int64_t{wants_y}, std::int64_t{wants_z}});
      plan.launch("message_step_edges", (n + edges_.tile - 1) / edges_.tile, edge_arguments(at, {x}, after));
    }
    if (wants_y) {
      plan.append([&](Plan& part) { harmonics_->plan(call_of(*harmonics_, call), part); },
                  [&](const Buffer& b) {
                    if (b.role == Role::input) return Buffer{Role::input, 1};
                    return b.role == Role::grad_output ? grad_y : Buffer{Role::grad_input, 1};
                  });
    }
    if (net_) {
      plan.append(
          [&](Plan& part) {
            Call own = call_of(*net_, call);
            own.grad_inputs[0] = wants_lengths;
            for (std::uint32_t i = 1; i < last; ++i) own.grad_parameters[i - 1] = call.grad_parameters[i];
            net_->plan(own, part);
          },
          [&](const Buffer& b) {
            if (b.role == Role::parameter || b.role == Role::grad_parameter) return Buffer{b.role, b.index + 1};
            if (b.role == Role::input) return at.basis;
            return b.role == Role::grad_output ? grad_z : grad_basis;
          });
    }
    if (wants_lengths) {
      plan.append(
          [&](Plan& part) {
            Call own = call_of(*radial_, call);
            own.grad_outputs[1] = cuts();
            radial_->plan(own, part);
          },
          [&](const Buffer& b) {
            if (b.role == Role::grad_input) return Buffer{Role::grad_input, 2};
            return place_radial(b, {Role::input, 2}, grad_basis, grad_envelope);
          });
    }
    const std::int64_t size = inputs() * weights();
    const PiecewiseSum sum(plan, pieces_of(n, size, real_bytes_), size, real_bytes_);
    if (call.grad_parameters[last]) {
      const Buffer target{Role::grad_parameter, last};
      plan.launch(
          "message_step_grad_last", last_groups_ * sum.pieces(),
          edge_arguments(at, {x}, {g, sum.partial(target), sender, receiver, n, call.n_receivers, sum.pieces()}));
      sum.join(plan, "message_step_sum_of_pieces", target);
    }
  }

  sdk::MessageStepConfig config_;
  std::vector<ConvPath> paths_;
  std::unique_ptr<PartOp> harmonics_, radial_, net_;  // net_: layers but the last, null if there is no other
  std::vector<const ConvPath*> all_;
  std::int64_t widest_ = 1;
  std::vector<Part> parts_;
  std::uint32_t real_bytes_ = 4;
  EdgeTile edges_;
  std::int64_t last_groups_ = 1;
};

}  // namespace

OpFactory message_step() {
  using Config = sdk::MessageStepConfig;
  return {Config::kOp, Config::kVersion,
          [](const sdk::Attributes& config, sdk::KernelAnswer& answer) {
            const Config typed = sdk::known_config<Config>(config);
            check_degree("degree of irreps", std::max(typed.conv.in.l_max(), typed.conv.out.l_max()), answer);
            check_degree("degree of harmonics", typed.harmonics.l_max, answer);
            constexpr std::int64_t kMostInputs = 1024;  // of which a tile must fit in the memory that a group shares
            const std::int64_t inputs = typed.mlp.widths[typed.mlp.n_layers() - 1];
            if (inputs > kMostInputs) {
              answer.blocked(sdk::Reason::config, "a last layer of the net with " + std::to_string(inputs) +
                                                      " inputs, at most " + std::to_string(kMostInputs));
            }
          },
          create<MessageStep, Config>};
}

}  // namespace fastpath_gpu
