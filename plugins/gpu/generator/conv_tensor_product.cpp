#include <algorithm>

#include "conv_paths.hpp"
#include "fastpath/sdk/check.hpp"
#include "op.hpp"

namespace fastpath_gpu {
namespace {

/// The four kernels of operators.md 2.7. Consecutive work-items are consecutive channels, so weights, which are most of
/// the traffic, are read side by side. Forward walks the edges of a receiver and the gradient of x those of a sender,
/// with the sums of a channel in registers; the gradients of y and w come edge by edge from one kernel.
class ConvTensorProduct final : public Op {
 public:
  explicit ConvTensorProduct(sdk::ConvTensorProductConfig config)
      : Op(config.signature()), config_(std::move(config)), paths_(conv_paths(config_)) {}

  Program generate(const Target& target, sdk::DType dtype, std::uint32_t passes) override {
    Source source(target, dtype);
    forward_parts_ = parts(dtype, &Path::out, &Path::l3);
    grad_x_parts_ = parts(dtype, &Path::in, &Path::l1);
    if ((passes & FP_PASS_FORWARD) != 0) {
      for (std::size_t i = 0; i < forward_parts_.size(); ++i) forward(source, i);
      zero(source, config_.out, &Path::out, "conv_tensor_product_forward_rest");
    }
    if ((passes & FP_PASS_BACKWARD) != 0) {
      for (std::size_t i = 0; i < grad_x_parts_.size(); ++i) grad_x(source, i);
      zero(source, config_.in, &Path::in, "conv_tensor_product_grad_x_rest");
      for (const bool y : {false, true}) {
        for (const bool w : {false, true}) {
          if (y || w) grad_edges(source, y, w);
        }
      }
    }
    return source.finish();
  }

  void plan(const Call& call, Plan& plan) const override {
    const Buffer x{Role::input, 0}, y{Role::input, 1}, w{Role::input, 2}, g{Role::grad_output, 0};
    const Buffer sender = graph_array(GraphArray::sender), receiver = graph_array(GraphArray::receiver);
    if (call.pass == sdk::Pass::forward) {
      const Buffer out{Role::output, 0};
      for (std::size_t i = 0; i < forward_parts_.size(); ++i) {
        const std::int64_t n = call.n_receivers * forward_parts_[i].mul;
        plan.launch_items(part_name("forward", i), n, {x, y, w, out, sender, graph_array(GraphArray::receiver_ptr), n});
      }
      plan_zero(plan, config_.out, &Path::out, "conv_tensor_product_forward_rest", out, call.n_receivers);
      return;
    }
    if (call.grad_inputs[0]) {
      const Buffer gx{Role::grad_input, 0};
      for (std::size_t i = 0; i < grad_x_parts_.size(); ++i) {
        const std::int64_t n = call.n_nodes * grad_x_parts_[i].mul;
        plan.launch_items(part_name("grad_x", i), n,
                          {y, w, g, gx, receiver, graph_array(GraphArray::sender_ptr),
                           graph_array(GraphArray::sender_edge), n, call.n_receivers});
      }
      plan_zero(plan, config_.in, &Path::in, "conv_tensor_product_grad_x_rest", gx, call.n_nodes);
    }
    if (call.grad_inputs[1] || call.grad_inputs[2]) {
      const std::int64_t edges = edges_per_group_;
      std::vector<Argument> arguments{x, y, w, g};
      if (call.grad_inputs[1]) arguments.push_back(Buffer{Role::grad_input, 1});
      if (call.grad_inputs[2]) arguments.push_back(Buffer{Role::grad_input, 2});
      arguments.insert(arguments.end(), {sender, receiver, call.n_edges, call.n_receivers});
      plan.launch(edges_name(call.grad_inputs[1], call.grad_inputs[2]), (call.n_edges + edges - 1) / edges,
                  std::move(arguments));
    }
  }

 private:
  using Path = ConvPath;
  /// Paths of one multiplicity that a kernel computes together: their sums fit in registers.
  struct Part {
    std::int64_t mul = 0;
    std::vector<const Path*> paths;
  };
  static constexpr std::uint32_t kGroup = 128;
  /// So many edges are summed in registers before the sum is added to memory: long plain sums would lose digits.
  static constexpr int kRun = 32;

  static std::string number(std::int64_t n) { return std::to_string(n); }
  static std::string part_name(const char* kind, std::size_t i) {
    return std::string("conv_tensor_product_") + kind + "_" + std::to_string(i);
  }
  static std::string edges_name(bool y, bool w) {
    return std::string("conv_tensor_product_grad") + (y ? "_y" : "") + (w ? "_w" : "");
  }

  /// @param block  The member that says which block a path adds to. @param l  Degree of that block.
  std::vector<Part> parts(sdk::DType dtype, std::size_t Path::*block, int Path::*l) const {
    const int most = dtype == sdk::kFloat32 ? 80 : 40;
    std::vector<const Path*> sorted;
    for (const Path& path : paths_) sorted.push_back(&path);
    std::stable_sort(sorted.begin(), sorted.end(), [&](const Path* a, const Path* b) {
      return a->mul != b->mul ? a->mul > b->mul : a->*block < b->*block;
    });
    std::vector<Part> result;
    int sums = 0;
    for (const Path* path : sorted) {
      const bool same = !result.empty() && result.back().paths.back()->*block == path->*block;
      const int more = same ? 0 : 2 * (path->*l) + 1;
      if (result.empty() || result.back().mul != path->mul || sums + more > most) {
        result.push_back({path->mul, {}});
        sums = 0;
      }
      sums += more;
      result.back().paths.push_back(path);
    }
    return result;
  }
  static std::vector<std::size_t> blocks(const Part& part, std::size_t Path::*block) {
    return blocks_of(part.paths, block);
  }
  void load_y(Source& s, const std::vector<const Path*>& paths) const {
    for (const std::int64_t j : y_components(paths)) {
      s.line("const real y", j, " = y[e * ", config_.edge.dim(), " + ", j, "];");
    }
  }
  void comment(Source& s, const Path& path) const { comment_conv_path(s, config_, path); }

  void store_sums(Source& s, const Part& part, std::size_t Path::*block, const sdk::Irreps& irreps, const char* name,
                  const char* array) {
    for (const char* assign : {" = ", " += "}) {
      s.line(assign[1] == '=' ? "if (first == begin) {" : "} else {");
      for (const std::size_t b : blocks(part, block)) {
        for (int c = 0; c <= 2 * irreps[b].ir.l; ++c) {
          s.line(conv_element(array, irreps, b, "n", c), assign, conv_variable(name, b, c), ";");
        }
      }
    }
    s.line("}");
  }
  void begin_runs(Source& s, std::int64_t mul, const char* ptr) {
    s.item("item", "n_items");
    s.line("const i64 n = item / ", mul, ", u = item % ", mul, ";");
    s.line("const i64 begin = ", ptr, "[n], end = ", ptr, "[n + 1];");
    s.line("i64 first = begin;");
    s.line("do {");
    s.line("const i64 last = first + ", kRun, " < end ? first + ", kRun, " : end;");
  }
  void end_runs(Source& s) {
    s.line("first = last;");
    s.line("} while (first < end);");
  }

  void forward(Source& s, std::size_t index) {
    const Part& part = forward_parts_[index];
    s.begin_kernel(part_name("forward", index), s.group_size(kGroup),
                   {Source::in("x"), Source::in("y"), Source::in("w"), Source::out("out"), Source::in("sender", "i32"),
                    Source::in("receiver_ptr", "i64"), Source::integer("n_items")});
    begin_runs(s, part.mul, "receiver_ptr");
    begin_conv_sums(s, blocks(part, &Path::out), config_.out, "sum");
    s.line("for (i64 e = first; e < last; ++e) {");
    s.line("const i64 from = sender[e];");
    load_y(s, part.paths);
    for (const std::size_t b : blocks(part, &Path::in)) load_conv_block(s, "x", "x", config_.in, b, "from");
    for (const Path* path : part.paths) {
      comment(s, *path);
      s.line("{");
      s.line("const real weight = w[e * ", config_.weight_numel(), " + ", path->w, " + u];");
      add_conv_forward(s, *path);
      s.line("}");
    }
    s.line("}");
    store_sums(s, part, &Path::out, config_.out, "sum", "out");
    end_runs(s);
    s.end_kernel();
  }

  void grad_x(Source& s, std::size_t index) {
    const Part& part = grad_x_parts_[index];
    s.begin_kernel(part_name("grad_x", index), s.group_size(kGroup),
                   {Source::in("y"), Source::in("w"), Source::in("grad_out"), Source::out("grad_x"),
                    Source::in("receiver", "i32"), Source::in("sender_ptr", "i64"), Source::in("sender_edge", "i64"),
                    Source::integer("n_items"), Source::integer("n_receivers")});
    begin_runs(s, part.mul, "sender_ptr");
    begin_conv_sums(s, blocks(part, &Path::in), config_.in, "sum");
    s.line("for (i64 position = first; position < last; ++position) {");
    s.line("const i64 e = sender_edge[position], to = receiver[e];");
    s.line("if (to >= n_receivers) continue;");  // into a ghost: there is no such output
    load_y(s, part.paths);
    for (const Path* path : part.paths) {
      comment(s, *path);
      s.line("{");
      s.line("const real weight = w[e * ", config_.weight_numel(), " + ", path->w, " + u];");
      load_conv_block(s, "g", "grad_out", config_.out, path->out, "to");
      add_conv_grad_x(s, *path);
      s.line("}");
    }
    s.line("}");
    store_sums(s, part, &Path::in, config_.in, "sum", "grad_x");
    end_runs(s);
    s.end_kernel();
  }

  /// Several work-items share an edge, each with every so-manieth channel. With t_j = sum_ik C[i,j,k] x_i g_k of a
  /// channel, the gradient of its weight is sum_j t_j y_j and it adds w t_j to the gradient of y_j.
  void grad_edges(Source& s, bool want_y, bool want_w) {
    std::vector<const Path*> all;
    std::int64_t widest = 1;
    for (const Path& path : paths_) {
      all.push_back(&path);
      widest = std::max(widest, path.mul);
    }
    const std::int64_t edge_dim = config_.edge.dim();
    std::uint32_t size = s.group_size(kGroup);
    while (size > 1 && size * static_cast<std::uint64_t>(edge_dim) * s.real_bytes() > s.target().local_bytes) size /= 2;
    std::uint32_t lanes = 1;
    while (lanes < 32 && lanes < size && lanes < widest) lanes *= 2;
    const std::uint32_t edges = size / lanes;
    edges_per_group_ = edges;

    std::vector<Source::Parameter> parameters{Source::in("x"), Source::in("y"), Source::in("w"),
                                              Source::in("grad_out")};
    if (want_y) parameters.push_back(Source::out("grad_y"));
    if (want_w) parameters.push_back(Source::out("grad_w"));
    parameters.insert(parameters.end(), {Source::in("sender", "i32"), Source::in("receiver", "i32"),
                                         Source::integer("n_edges"), Source::integer("n_receivers")});
    s.begin_kernel(edges_name(want_y, want_w), size, parameters);
    if (want_y) s.shared("partial", static_cast<std::uint32_t>(edge_dim) * size);
    s.line("const i32 lane = FP_LANE % ", lanes, ";");
    s.line("const i64 e = FP_GROUP * ", edges, " + FP_LANE / ", lanes, ";");
    if (want_y) {
      for (const std::int64_t j : y_components(all)) s.line("real sum", j, " = ", s.real(0.0), ";");
    }
    s.line("const i64 to = e < n_edges ? receiver[e] : n_receivers;");
    s.line("if (to < n_receivers) {");
    s.line("const i64 from = sender[e];");
    if (want_w) load_y(s, all);
    for (auto first = all.begin(); first != all.end();) {
      const std::int64_t mul = (*first)->mul;
      const auto last = std::find_if(first, all.end(), [&](const Path* path) { return path->mul != mul; });
      const Part part{mul, {first, last}};
      s.line("for (i64 u = lane; u < ", mul, "; u += ", lanes, ") {");
      for (const std::size_t b : blocks(part, &Path::in)) load_conv_block(s, "x", "x", config_.in, b, "from");
      for (const Path* path : part.paths) grad_edges_of(s, *path, want_y, want_w);
      s.line("}");
      first = last;
    }
    if (want_w && config_.weight_numel() > 0) {  // an edge into a ghost has no output that depends on its weights
      s.line("} else if (e < n_edges) {");
      s.line("for (i64 u = lane; u < ", config_.weight_numel(), "; u += ", lanes, ") grad_w[e * ",
             config_.weight_numel(), " + u] = ", s.real(0.0), ";");
    }
    s.line("}");
    if (want_y) {
      const std::vector<std::int64_t> used = y_components(all);
      for (std::int64_t j = 0; j < edge_dim; ++j) {
        const bool there = std::binary_search(used.begin(), used.end(), j);
        s.line("partial[", j * size, " + FP_LANE] = ", there ? "sum" + number(j) : s.real(0.0), ";");
      }
      s.line("FP_BARRIER();");
      s.line("for (i32 i = FP_LANE; i < ", edges * edge_dim, "; i += ", size, ") {");
      s.line("const i64 edge = FP_GROUP * ", edges, " + i / ", edge_dim, ";");
      s.line("if (edge >= n_edges) break;");
      s.line("const i32 at = i % ", edge_dim, " * ", size, " + i / ", edge_dim, " * ", lanes, ";");
      s.line("real total = partial[at];");
      s.line("for (i32 k = 1; k < ", lanes, "; ++k) total += partial[at + k];");
      s.line("grad_y[FP_GROUP * ", edges * edge_dim, " + i] = total;");
      s.line("}");
    }
    s.end_kernel();
  }
  void grad_edges_of(Source& s, const Path& path, bool want_y, bool want_w) const {
    comment(s, path);
    s.line("{");
    const std::string at = "[e * " + number(config_.weight_numel()) + " + " + number(path.w) + " + u]";
    if (want_y) s.line("const real weight = w", at, ";");
    load_conv_block(s, "g", "grad_out", config_.out, path.out, "to");
    const std::vector<int> terms = write_conv_terms(s, path);
    if (want_y) {
      for (const int j : terms) s.line("sum", path.y + j, " += weight * t", j, ";");
    }
    if (want_w) s.line("grad_w", at, " = ", conv_weight_gradient(s, path, terms), ";");
    s.line("}");
  }

  /// Blocks that no path adds to are zero.
  std::vector<std::size_t> untouched(const sdk::Irreps& irreps, std::size_t Path::*block) const {
    std::vector<std::size_t> result;
    for (std::size_t b = 0; b < irreps.size(); ++b) {
      const bool touched = std::any_of(paths_.begin(), paths_.end(), [&](const Path& p) { return p.*block == b; });
      if (!touched && irreps[b].dim() > 0) result.push_back(b);
    }
    return result;
  }
  void zero(Source& s, const sdk::Irreps& irreps, std::size_t Path::*block, const std::string& name) const {
    const std::vector<std::size_t> rest = untouched(irreps, block);
    if (rest.empty()) return;
    s.begin_kernel(name, s.group_size(kGroup), {Source::out("out"), Source::integer("n_rows")});
    s.item("n", "n_rows");
    for (const std::size_t b : rest) {
      s.line("for (i32 i = 0; i < ", irreps[b].dim(), "; ++i) out[n * ", irreps.dim(), " + ", irreps.offset(b),
             " + i] = ", s.real(0.0), ";");
    }
    s.end_kernel();
  }
  void plan_zero(Plan& plan, const sdk::Irreps& irreps, std::size_t Path::*block, const std::string& name, Buffer out,
                 std::int64_t rows) const {
    if (!untouched(irreps, block).empty()) plan.launch_items(name, rows, {out, rows});
  }

  sdk::ConvTensorProductConfig config_;
  std::vector<Path> paths_;  // by multiplicity, descending
  std::vector<Part> forward_parts_, grad_x_parts_;
  std::int64_t edges_per_group_ = 1;
};

}  // namespace

OpFactory conv_tensor_product() {
  using Config = sdk::ConvTensorProductConfig;
  return {Config::kOp, Config::kVersion,
          [](const sdk::Attributes& config, sdk::KernelAnswer& answer) {
            const Config typed = sdk::known_config<Config>(config);
            check_degree("degree of irreps", std::max(typed.in.l_max(), typed.out.l_max()), answer);
            check_degree("degree of edge attributes", typed.edge.l_max(), answer);
          },
          create<ConvTensorProduct, Config>};
}

}  // namespace fastpath_gpu
