#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

#include "fastpath/sdk/check.hpp"
#include "fastpath/sdk/symmetric.hpp"
#include "op.hpp"
#include "product.hpp"
#include "reduction.hpp"
#include "species_sort.hpp"

namespace fastpath_gpu {
namespace {

/// One work-item a (node, channel), channels next to each other, evaluates the polynomial of operators.md 5.3 written
/// out in full. Coefficients, merged from the weights when these are bound, are read in the order of the text.
class SymmetricContraction final : public Op {
 public:
  explicit SymmetricContraction(const sdk::SymmetricContractionConfig& config)
      : Op(config.signature()), config_(config), sort_("symmetric_contraction_species", config.n_species) {}

  std::vector<std::size_t> constants() const override {
    std::vector<std::size_t> result;
    for (std::size_t t = 0; t < config_.targets.size(); ++t) {
      for (int nu = 1; nu <= config_.correlation; ++nu) result.push_back(config_.u_index(t, nu));
    }
    return result;
  }
  void set_constants(const std::vector<std::vector<double>>& values) override {
    std::vector<const double*> u;
    for (const std::vector<double>& value : values) u.push_back(value.data());
    polynomial_ = sdk::SymmetricPolynomial::build(config_, u.data());
    sort_rows();
  }

  Program generate(const Target& target, sdk::DType dtype, std::uint32_t passes) override {
    Source source(target, dtype);
    real_bytes_ = source.real_bytes();
    const bool backward = (passes & FP_PASS_BACKWARD) != 0;
    write_compensated_add(source);
    write_merge(source);
    parts_ = split(target.max_terms);
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      if ((passes & FP_PASS_FORWARD) != 0) write_forward(source, p);
      if (backward) write_grad_x(source, p);
      if (backward) write_grad_coefficients(source, p);
    }
    if (backward) {
      sort_.write_kernels(source);
      write_sum_of_pieces(source, "symmetric_contraction_sum_of_pieces");
      write_unmerge(source);
    }
    Program program = source.finish();
    program.owned = {static_cast<std::uint64_t>(std::max<std::int64_t>(1, coefficients())) * real_bytes_};
    write_tables(program);
    return program;
  }

  void plan_bind(Plan& plan) const override {
    for (std::uint32_t t = 0; t < n_tensors(); ++t) {
      const std::int64_t rows = rows_of_[t], paths = polynomial_.n_paths[t];
      plan.launch_items("symmetric_contraction_merge", config_.n_species * rows * config_.channels,
                        {weight(t), table(t, kRows), table(t, kRowTerms), table(t, kRowPaths), table(t, kRowValues),
                         Buffer{Role::owned, 0}, rows, paths});
    }
  }
  void plan(const Call& call, Plan& plan) const override {
    const Buffer x{Role::input, 0}, species{Role::input, 1}, a{Role::owned, 0};
    const Buffer out{Role::output, 0}, g{Role::grad_output, 0}, grad_x{Role::grad_input, 0};
    const std::int64_t n = call.n_rows, items = n * config_.channels;
    if (call.pass == sdk::Pass::forward) {
      for (std::size_t p = 0; p < parts_.size(); ++p)
        plan.launch_items(name("forward", p), items, {x, species, a, out, n});
      return;
    }
    if (call.grad_inputs[0]) {
      for (std::size_t p = 0; p < parts_.size(); ++p) {
        plan.launch_items(name("grad_x", p), items, {x, species, a, g, grad_x, n});
      }
    }
    bool wanted = false;
    for (std::uint32_t t = 0; t < n_tensors(); ++t) wanted = wanted || call.grad_parameters[2 * t + 1];
    Plan unwanted = plan;
    plan_weights(call, wanted ? plan : unwanted);
    if (!wanted) plan.scratch(unwanted.scratch_bytes() - plan.scratch_bytes());
  }

 private:
  /// A monomial and all that start with its factors.
  struct Node {
    std::int32_t factor = 0;
    std::vector<std::size_t> rows;  // of the monomial
    std::vector<Node> children;
  };
  struct Part {
    Node root;
    std::vector<std::size_t> rows;
    std::set<std::int32_t> factors, components;
    std::uint32_t groups = 0;  // of the gradient of coefficients, for one channel tile, piece and species
  };
  static constexpr std::size_t kBlockRows = 16;  // sums, with their carry, that an item has in registers
  static constexpr std::uint32_t kGroup = 128;

  std::uint32_t n_tensors() const { return static_cast<std::uint32_t>(polynomial_.n_paths.size()); }
  std::int64_t n_rows() const { return polynomial_.n_rows(); }
  std::int64_t coefficients() const { return config_.n_species * n_rows() * config_.channels; }
  static Buffer weight(std::uint32_t tensor) { return {Role::parameter, 2 * tensor + 1}; }
  static std::string name(const char* what, std::size_t part) {
    return std::string("symmetric_contraction_") + what + "_part" + std::to_string(part);
  }

  /// Monomials in the order of their factors, so that each product is one multiplication away from the one before and
  /// no product lives long; rows are numbered in that order.
  void sort_rows() {
    order_.resize(polynomial_.monomials.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    const auto factors = [&](std::size_t i) {
      const auto& monomial = polynomial_.monomials[i];
      return std::vector<std::int32_t>(monomial.factors.begin(), monomial.factors.begin() + monomial.degree);
    };
    std::sort(order_.begin(), order_.end(), [&](std::size_t i, std::size_t j) { return factors(i) < factors(j); });
    row_.clear();
    for (const std::size_t i : order_) {
      for (std::int64_t r = polynomial_.row_begin[i]; r < polynomial_.row_begin[i + 1]; ++r) {
        row_.push_back(static_cast<std::size_t>(r));
      }
    }
  }
  const sdk::SymmetricPolynomial::Row& row(std::size_t r) const { return polynomial_.rows[row_[r]]; }

  std::vector<Part> split(std::size_t most_rows) const {
    std::vector<Part> parts(1);
    std::size_t next = 0;
    for (const std::size_t i : order_) {
      const auto& monomial = polynomial_.monomials[i];
      const auto count = static_cast<std::size_t>(polynomial_.row_begin[i + 1] - polynomial_.row_begin[i]);
      if (!parts.back().rows.empty() && parts.back().rows.size() + count > most_rows) parts.emplace_back();
      Part& part = parts.back();
      Node* node = &part.root;
      for (int d = 0; d < monomial.degree; ++d) {
        const std::int32_t factor = monomial.factors[static_cast<std::size_t>(d)];
        part.factors.insert(factor);
        if (node->children.empty() || node->children.back().factor != factor)
          node->children.push_back({factor, {}, {}});
        node = &node->children.back();
      }
      for (std::size_t r = 0; r < count; ++r, ++next) {
        node->rows.push_back(next);
        part.rows.push_back(next);
        part.components.insert(row(next).component);
      }
    }
    return parts;
  }

  // ---- names in the source

  static std::string factor_name(std::int32_t factor) { return "x" + std::to_string(factor); }
  static std::string component_name(std::int32_t component) { return "g" + std::to_string(component); }
  /// The product of a node, from that of its parent (empty for the root).
  static std::string product_name(const std::string& parent, const Node& node) {
    return parent.empty() ? factor_name(node.factor) : parent + "_" + std::to_string(node.factor);
  }
  std::string coefficient(std::size_t r) const {
    return "a[" + std::to_string(static_cast<std::int64_t>(r) * config_.channels) + "]";
  }
  /// Of a component of output or gradient, in row `n`, channel `c`.
  std::string place(std::int32_t component, const char* n) const {
    const auto [offset, stride] = polynomial_.components[static_cast<std::size_t>(component)];
    return std::string(n) + " * " + std::to_string(config_.out_dim()) + " + " + std::to_string(offset) + " + c * " +
           std::to_string(stride);
  }
  void write_factors(Source& s, const std::set<std::int32_t>& factors, const char* n) const {
    for (const std::int32_t i : factors) {
      s.line("const real ", factor_name(i), " = x[(", n, " * ", config_.channels, " + c) * ", config_.dim, " + ", i,
             "];");
    }
  }
  void write_components(Source& s, const std::set<std::int32_t>& components, const char* n) const {
    for (const std::int32_t m : components) {
      s.line("const real ", component_name(m), " = grad_out[", place(m, n), "];");
    }
  }
  /// n, c, and a: coefficients of the species and channel; `wrong` is NaN for a species that is none.
  void open_item(Source& s) const {
    s.item("item", "n_rows * " + std::to_string(config_.channels));
    s.line("const i64 n = item / ", config_.channels, ", c = item % ", config_.channels, ";");
    s.line("const bool known = species[n] >= 0 && species[n] < ", config_.n_species, ";");
    s.line("const real wrong = known ? ", s.real(0), " : fp_sqrt(", s.real(-1), ");");
    s.line("FP_GLOBAL const real* const a = coefficients + (known ? species[n] : 0) * (i64)",
           n_rows() * config_.channels, " + c;");
  }
  std::uint32_t group_size(const Source& s) const { return std::min(kGroup, s.target().max_group_size); }

  void write_forward(Source& s, std::size_t p) const {
    const Part& part = parts_[p];
    s.begin_kernel(name("forward", p), group_size(s),
                   {Source::in("x"), Source::in("species", "i32"), Source::in("coefficients"), Source::out("out"),
                    Source::integer("n_rows")});
    open_item(s);
    write_factors(s, part.factors, "n");
    for (const std::int32_t m : part.components) s.line("real sum", m, " = ", s.real(0), ";");
    const std::function<void(const Node&, const std::string&)> visit = [&](const Node& node,
                                                                           const std::string& parent) {
      const std::string own = product_name(parent, node);
      if (!parent.empty()) s.line("const real ", own, " = ", parent, " * ", factor_name(node.factor), ";");
      for (const std::size_t r : node.rows) s.line("sum", row(r).component, " += ", coefficient(r), " * ", own, ";");
      for (const Node& child : node.children) visit(child, own);
    };
    for (const Node& node : part.root.children) visit(node, "");
    for (std::int32_t m = 0; m < static_cast<std::int32_t>(polynomial_.components.size()); ++m) {
      const bool has_rows = part.components.count(m) > 0, first = first_part(m) == p;
      if (!has_rows && !first) continue;
      s.line("out[", place(m, "n"), "] = ", first ? "wrong" : "out[" + place(m, "n") + "]",
             has_rows ? " + sum" + std::to_string(m) : "", ";");
    }
    s.end_kernel();
  }
  /// The part that writes a component first; later ones add to it.
  std::size_t first_part(std::int32_t component) const {
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      if (parts_[p].components.count(component) > 0) return p;
    }
    return 0;
  }

  void write_grad_x(Source& s, std::size_t p) const {
    const Part& part = parts_[p];
    s.begin_kernel(name("grad_x", p), group_size(s),
                   {Source::in("x"), Source::in("species", "i32"), Source::in("coefficients"), Source::in("grad_out"),
                    Source::out("grad_x"), Source::integer("n_rows")});
    open_item(s);
    write_factors(s, part.factors, "n");
    write_components(s, part.components, "n");
    for (const std::int32_t i : part.factors) s.line("real grad", i, " = ", s.real(0), ";");
    // d_P is the gradient with respect to the product P; when all products that contain P are done, it goes to the last
    // factor of P and to the product of the others.
    const std::function<void(const Node&, const std::string&)> visit = [&](const Node& node,
                                                                           const std::string& parent) {
      const std::string own = product_name(parent, node);
      std::string text;
      for (const std::size_t r : node.rows) {
        text += (text.empty() ? "" : " + ") + coefficient(r) + " * " + component_name(row(r).component);
      }
      if (text.empty()) text = s.real(0);
      s.line(node.children.empty() ? "const real d_" : "real d_", own, " = ", text, ";");
      if (!parent.empty() && !node.children.empty()) {
        s.line("const real ", own, " = ", parent, " * ", factor_name(node.factor), ";");
      }
      for (const Node& child : node.children) visit(child, own);
      if (parent.empty()) {
        s.line("grad", node.factor, " += d_", own, ";");
      } else {
        s.line("grad", node.factor, " += d_", own, " * ", parent, ";");
        s.line("d_", parent, " += d_", own, " * ", factor_name(node.factor), ";");
      }
    };
    for (const Node& node : part.root.children) visit(node, "");
    for (std::int32_t i = 0; i < config_.dim; ++i) {
      const bool used = part.factors.count(i) > 0;
      if (!used && p > 0) continue;
      const std::string target = "grad_x[item * " + std::to_string(config_.dim) + " + " + std::to_string(i) + "]";
      s.line(target, " = ", p == 0 ? "wrong" : target, used ? " + grad" + std::to_string(i) : "", ";");
    }
    s.end_kernel();
  }

  /// Rows of a part, a block at a time: the nodes of the tree that their monomials need.
  static Node only(const Node& node, std::size_t begin, std::size_t end) {
    Node result{node.factor, {}, {}};
    for (const std::size_t r : node.rows) {
      if (r >= begin && r < end) result.rows.push_back(r);
    }
    for (const Node& child : node.children) {
      Node kept = only(child, begin, end);
      if (!kept.rows.empty() || !kept.children.empty()) result.children.push_back(std::move(kept));
    }
    return result;
  }
  static void collect_factors(const Node& node, std::set<std::int32_t>& factors) {
    for (const Node& child : node.children) {
      factors.insert(child.factor);
      collect_factors(child, factors);
    }
  }

  void write_grad_coefficients(Source& s, std::size_t p) {
    Part& part = parts_[p];
    std::uint32_t size = 1;
    while (size < config_.channels && 2 * size <= std::min(64u, s.target().max_group_size)) size *= 2;
    const std::int64_t tiles = (config_.channels + size - 1) / size;
    const std::size_t blocks = (part.rows.size() + kBlockRows - 1) / kBlockRows;
    part.groups = static_cast<std::uint32_t>(static_cast<std::int64_t>(blocks) * tiles);
    if (blocks == 0) return;
    s.line("// Gradients of coefficients: each group sums a few of them over a piece of the rows of a species.");
    s.begin_kernel(name("grad_coefficients", p), size,
                   {Source::in("x"), Source::in("grad_out"), Source::in("order", "i64"), Source::in("starts", "i64"),
                    Source::integer("stride"), Source::out("partial"), Source::integer("n_pieces")},
                   Source::Registers::many);
    s.line("const i64 block = FP_GROUP % ", blocks, ", c = FP_GROUP / ", blocks, " % ", tiles, " * ", size,
           " + FP_LANE;");
    s.line("const i64 piece = FP_GROUP / ", part.groups, " % n_pieces, z = FP_GROUP / (", part.groups, " * n_pieces);");
    s.line("if (c >= ", config_.channels, ") return;");
    s.line("const i64 begin = starts[z * stride], all = starts[(z + 1) * stride] - begin;");
    s.line("const i64 length = (all + n_pieces - 1) / n_pieces;");
    s.line("const i64 first = piece * length, last = first + length < all ? first + length : all;");
    s.line("FP_GLOBAL real* const target = partial + (piece * ", config_.n_species, " + z) * ",
           n_rows() * config_.channels, " + c;");
    for (std::size_t block = 0; block < blocks; ++block) {
      const std::size_t from = part.rows.front() + block * kBlockRows;
      const std::size_t to = std::min(from + kBlockRows, part.rows.back() + 1);
      const Node root = only(part.root, from, to);
      std::set<std::int32_t> factors, components;
      collect_factors(root, factors);
      for (std::size_t r = from; r < to; ++r) components.insert(row(r).component);
      s.line("if (block == ", block, ") {");
      for (std::size_t r = from; r < to; ++r)
        s.line("real sum", r, " = ", s.real(0), ", carry", r, " = ", s.real(0), ";");
      s.line("for (i64 k = first; k < last; ++k) {");
      s.line("const i64 n = order[begin + k];");
      write_factors(s, factors, "n");
      write_components(s, components, "n");
      const std::function<void(const Node&, const std::string&)> visit = [&](const Node& node,
                                                                             const std::string& parent) {
        const std::string own = product_name(parent, node);
        if (!parent.empty()) s.line("const real ", own, " = ", parent, " * ", factor_name(node.factor), ";");
        for (const std::size_t r : node.rows) {
          s.line("fp_add(&sum", r, ", &carry", r, ", ", own, " * ", component_name(row(r).component), ");");
        }
        for (const Node& child : node.children) visit(child, own);
      };
      for (const Node& node : root.children) visit(node, "");
      s.line("}");
      for (std::size_t r = from; r < to; ++r) {
        s.line("target[", static_cast<std::int64_t>(r) * config_.channels, "] = sum", r, ";");
      }
      s.line("}");
    }
    s.end_kernel();
  }

  // ---- weights to coefficients and back

  // Tables and not text: which paths make a row is thousands of numbers that a bind reads once, not the inner loop of a
  // call, and compilers would spend minutes on them.
  enum Table : std::uint32_t {
    kRows,      // rows of a weight tensor
    kRowTerms,  // where the terms of each begin
    kRowPaths,  // path and value of a term
    kRowValues,
    kPathTerms,  // the same by path
    kPathRows,
    kPathValues,
    kTables
  };
  static Buffer table(std::uint32_t tensor, Table which) { return {Role::table, tensor * kTables + which}; }

  void write_merge(Source& s) const {
    s.line("// coefficients[z, row, c] = sum over the terms of a row of value * w[z, path, c], for one weight tensor.");
    s.begin_kernel(
        "symmetric_contraction_merge", group_size(s),
        {Source::in("w"), Source::in("rows", "i32"), Source::in("terms", "i32"), Source::in("paths", "i32"),
         Source::in("values"), Source::out("coefficients"), Source::integer("n_rows"), Source::integer("n_paths")});
    s.item("item", std::to_string(config_.n_species * config_.channels) + " * n_rows");
    s.line("const i64 c = item % ", config_.channels, ", i = item / ", config_.channels, " % n_rows;");
    s.line("const i64 z = item / (", config_.channels, " * n_rows);");
    s.line("real sum = ", s.real(0), ", carry = ", s.real(0), ";");
    s.line("for (i32 t = terms[i]; t < terms[i + 1]; ++t) {");
    s.line("fp_add(&sum, &carry, values[t] * w[(z * n_paths + paths[t]) * ", config_.channels, " + c]);");
    s.line("}");
    s.line("coefficients[(z * ", n_rows(), " + rows[i]) * ", config_.channels, " + c] = sum;");
    s.end_kernel();
  }
  void write_unmerge(Source& s) const {
    s.line("// The transpose: grad_w[z, path, c] = sum over the terms of a path of value * gradient of a coefficient.");
    s.begin_kernel("symmetric_contraction_unmerge", group_size(s),
                   {Source::in("gradients"), Source::in("terms", "i32"), Source::in("rows", "i32"),
                    Source::in("values"), Source::out("grad_w"), Source::integer("n_paths")});
    s.item("item", std::to_string(config_.n_species * config_.channels) + " * n_paths");
    s.line("const i64 c = item % ", config_.channels, ", path = item / ", config_.channels, " % n_paths;");
    s.line("const i64 z = item / (", config_.channels, " * n_paths);");
    s.line("real sum = ", s.real(0), ", carry = ", s.real(0), ";");
    s.line("for (i32 t = terms[path]; t < terms[path + 1]; ++t) {");
    s.line("fp_add(&sum, &carry, values[t] * gradients[(z * ", n_rows(), " + rows[t]) * ", config_.channels, " + c]);");
    s.line("}");
    s.line("grad_w[item] = sum;");
    s.end_kernel();
  }

  template <class T>
  static std::vector<std::uint8_t> bytes_of(const std::vector<T>& values) {
    std::vector<std::uint8_t> bytes(std::max<std::size_t>(1, values.size() * sizeof(T)));
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), values.size() * sizeof(T));
    return bytes;
  }
  std::vector<std::uint8_t> reals(const std::vector<double>& values) const {
    if (real_bytes_ == sizeof(double)) return bytes_of(values);
    return bytes_of(std::vector<float>(values.begin(), values.end()));
  }
  void write_tables(Program& program) {
    rows_of_.assign(n_tensors(), 0);
    for (std::uint32_t tensor = 0; tensor < n_tensors(); ++tensor) {
      std::vector<std::int32_t> rows, row_terms{0}, row_paths, path_terms{0}, path_rows;
      std::vector<double> row_values, path_values;
      const auto paths = static_cast<std::size_t>(polynomial_.n_paths[tensor]);
      std::vector<std::vector<std::pair<std::int32_t, double>>> by_path(paths);
      for (std::size_t r = 0; r < row_.size(); ++r) {
        if (row(r).tensor != static_cast<std::int32_t>(tensor)) continue;
        rows.push_back(static_cast<std::int32_t>(r));
        for (std::int64_t i = polynomial_.term_begin[row_[r]]; i < polynomial_.term_begin[row_[r] + 1]; ++i) {
          const auto& term = polynomial_.terms[static_cast<std::size_t>(i)];
          row_paths.push_back(term.path);
          row_values.push_back(term.coefficient);
          by_path[static_cast<std::size_t>(term.path)].emplace_back(static_cast<std::int32_t>(r), term.coefficient);
        }
        row_terms.push_back(static_cast<std::int32_t>(row_paths.size()));
      }
      for (const auto& terms : by_path) {
        for (const auto& [r, value] : terms) {
          path_rows.push_back(r);
          path_values.push_back(value);
        }
        path_terms.push_back(static_cast<std::int32_t>(path_rows.size()));
      }
      rows_of_[tensor] = static_cast<std::int64_t>(rows.size());
      for (auto& bytes : {bytes_of(rows), bytes_of(row_terms), bytes_of(row_paths), reals(row_values),
                          bytes_of(path_terms), bytes_of(path_rows), reals(path_values)}) {
        program.tables.push_back(bytes);
      }
    }
  }

  void plan_weights(const Call& call, Plan& plan) const {
    const Buffer x{Role::input, 0}, species{Role::input, 1}, g{Role::grad_output, 0};
    const SpeciesSort::Sorted sorted = sort_.plan(plan, species, call.n_rows);
    const std::int64_t size = coefficients();
    const Buffer gradients = plan.scratch(static_cast<std::uint64_t>(size) * real_bytes_);
    const PiecewiseSum sum(plan, pieces_of(call.n_rows, size, real_bytes_), size, real_bytes_);
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      if (parts_[p].groups == 0) continue;
      plan.launch(name("grad_coefficients", p), parts_[p].groups * sum.pieces() * config_.n_species,
                  {x, g, sorted.order, sorted.starts, sorted.stride, sum.partial(gradients), sum.pieces()});
    }
    sum.join(plan, "symmetric_contraction_sum_of_pieces", gradients);
    for (std::uint32_t t = 0; t < n_tensors(); ++t) {
      if (!call.grad_parameters[2 * t + 1]) continue;
      const std::int64_t paths = polynomial_.n_paths[t];
      plan.launch_items("symmetric_contraction_unmerge", config_.n_species * paths * config_.channels,
                        {gradients, table(t, kPathTerms), table(t, kPathRows), table(t, kPathValues),
                         Buffer{Role::grad_parameter, 2 * t + 1}, paths});
    }
  }

  sdk::SymmetricContractionConfig config_;
  SpeciesSort sort_;
  sdk::SymmetricPolynomial polynomial_;
  std::vector<std::size_t> order_, row_;  // monomials as sorted; row r of the source is row row_[r] of the polynomial
  std::vector<Part> parts_;
  std::vector<std::int64_t> rows_of_;  // per weight tensor
  std::uint32_t real_bytes_ = 4;
};

}  // namespace

OpFactory symmetric_contraction() {
  using Config = sdk::SymmetricContractionConfig;
  return {Config::kOp, Config::kVersion,
          [](const sdk::Attributes& config, sdk::KernelAnswer& answer) {
            const Config typed = sdk::known_config<Config>(config);
            for (const int l : typed.targets) check_degree("target degree", l, answer);
            if (typed.correlation > sdk::SymmetricPolynomial::kMaxDegree) {
              answer.blocked(sdk::Reason::config, "correlation " + std::to_string(typed.correlation) + ", at most " +
                                                      std::to_string(sdk::SymmetricPolynomial::kMaxDegree));
            }
            if (typed.n_species > SpeciesSort::kMostSpecies) {
              answer.blocked(sdk::Reason::config, std::to_string(typed.n_species) + " species, at most " +
                                                      std::to_string(SpeciesSort::kMostSpecies));
            }
          },
          create<SymmetricContraction, Config>};
}

}  // namespace fastpath_gpu
