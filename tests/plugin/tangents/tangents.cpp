#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fastpath/sdk/check.hpp"
#include "fastpath/sdk/ops.hpp"
#include "fastpath/sdk/plugin.hpp"

/// A plugin with all four passes, for one op: irreps_linear without bias. What a pass of forward saves is of use to its
/// own pass of backward alone, and the other one refuses it.
namespace tangents {
namespace {

namespace sdk = fastpath::sdk;
using Config = sdk::IrrepsLinearConfig;

constexpr std::uint32_t kDTypes = FP_DTYPE_BIT_F32 | FP_DTYPE_BIT_F64;
constexpr std::uint32_t kPasses =
    FP_PASS_FORWARD | FP_PASS_BACKWARD | FP_PASS_FORWARD_TANGENT | FP_PASS_BACKWARD_TANGENT;

bool has_tangents(sdk::Pass pass) { return pass == sdk::Pass::forward_tangent || pass == sdk::Pass::backward_tangent; }
bool is_backward(sdk::Pass pass) { return pass == sdk::Pass::backward || pass == sdk::Pass::backward_tangent; }

/// y = x w, a map that is linear in both: tangents follow by the product rule from calls of the same three loops.
template <class T>
class Linear final : public sdk::Kernel {
 public:
  explicit Linear(const Config& config) : config_(config), paths_(config.paths()) {}

  void bind(const sdk::Bind& bind) override {
    sdk::check_bind(config_.signature(), bind, sdk::dtype_of<T>());
    weight_ = bind.parameters[0].view<const T>().data();
  }

  /// One word by the plain passes, two by those with tangents.
  sdk::Workspace workspace(const sdk::Sizes& sizes) override {
    return {.saved_bytes = (has_tangents(sizes.pass) ? 2u : 1u) * sizeof(std::uint64_t)};
  }

  void run(const sdk::Run& run) override {
    sdk::check_run(config_.signature(), run, sdk::dtype_of<T>());
    rows_ = run.inputs[0].size(0);
    const T *x = read(run.inputs), *x_t = read(run.inputs_t), *w_t = read(run.parameters_t);
    if (!is_backward(run.pass)) {
      save(run);
      write(run.outputs, rows_ * config_.out.dim(), [&](double* y) { add_y(x, weight_, y); });
      if (!has_tangents(run.pass)) return;
      write(run.outputs_t, rows_ * config_.out.dim(), [&](double* y) { add_y(x_t, weight_, y), add_y(x, w_t, y); });
      return;
    }
    check_saved(run);
    const T *g = read(run.grad_outputs), *g_t = read(run.grad_outputs_t);
    const std::int64_t n_x = rows_ * config_.in.dim(), n_w = config_.weight_numel();
    write(run.grad_inputs, n_x, [&](double* to) { add_grad_x(g, weight_, to); });
    write(run.grad_parameters, n_w, [&](double* to) { add_grad_w(x, g, to); });
    if (!has_tangents(run.pass)) return;
    write(run.grad_inputs_t, n_x, [&](double* to) { add_grad_x(g_t, weight_, to), add_grad_x(g, w_t, to); });
    write(run.grad_parameters_t, n_w, [&](double* to) { add_grad_w(x_t, g, to), add_grad_w(x, g_t, to); });
  }

 private:
  static const T* read(const sdk::TensorList& list) { return list[0].template view<const T>().data(); }

  template <class Add>
  static void write(const sdk::TensorList& list, std::int64_t n, const Add& add) {
    T* to = list[0].template view<T>().data();
    if (to == nullptr) return;
    std::vector<double> sums(static_cast<std::size_t>(n), 0.0);
    add(sums.data());
    for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(sums[static_cast<std::size_t>(i)]);
  }

  /// Calls f(factor, place in x, place in the weight, place in y) for every product.
  template <class F>
  void for_each_product(const F& f) const {
    for (const Config::Path& path : paths_) {
      const std::int64_t mul_in = config_.in[path.in].mul, mul_out = config_.out[path.out].mul,
                         dim = config_.in[path.in].ir.dim();
      for (std::int64_t row = 0; row < rows_; ++row) {
        const std::int64_t x = row * config_.in.dim() + config_.in.offset(path.in),
                           y = row * config_.out.dim() + config_.out.offset(path.out);
        for (std::int64_t u = 0; u < mul_in; ++u) {
          for (std::int64_t w = 0; w < mul_out; ++w) {
            for (std::int64_t m = 0; m < dim; ++m) {
              f(path.factor, x + u * dim + m, path.weight_offset + u * mul_out + w, y + w * dim + m);
            }
          }
        }
      }
    }
  }
  static double times(double factor, T a, T b) { return factor * static_cast<double>(a) * static_cast<double>(b); }

  // An operand that is absent is zero.
  void add_y(const T* x, const T* w, double* y) const {
    if (x == nullptr || w == nullptr) return;
    for_each_product([&](double factor, auto ix, auto iw, auto iy) { y[iy] += times(factor, x[ix], w[iw]); });
  }
  void add_grad_x(const T* g, const T* w, double* grad_x) const {
    if (g == nullptr || w == nullptr) return;
    for_each_product([&](double factor, auto ix, auto iw, auto iy) { grad_x[ix] += times(factor, g[iy], w[iw]); });
  }
  void add_grad_w(const T* x, const T* g, double* grad_w) const {
    if (x == nullptr || g == nullptr) return;
    for_each_product([&](double factor, auto ix, auto iw, auto iy) { grad_w[iw] += times(factor, x[ix], g[iy]); });
  }

  static std::uint64_t word_of(sdk::Pass pass) { return has_tangents(pass) ? 0x7a69e47ULL : 0x914aULL; }
  void save(const sdk::Run& run) {
    const std::uint64_t words[] = {word_of(run.pass), word_of(run.pass)};
    need_room(run);
    std::memcpy(run.saved, words, (has_tangents(run.pass) ? 2 : 1) * sizeof words[0]);
  }
  void check_saved(const sdk::Run& run) const {
    need_room(run);
    std::uint64_t word = 0;
    std::memcpy(&word, run.saved, sizeof word);
    if (word == word_of(run.pass)) return;
    throw sdk::InvalidArgument(std::string("tangents: the saved memory is not that of ") +
                               (has_tangents(run.pass) ? "forward_tangent" : "forward"));
  }
  static void need_room(const sdk::Run& run) {
    const std::uint64_t need = (has_tangents(run.pass) ? 2u : 1u) * sizeof(std::uint64_t);
    if (run.saved != nullptr && run.saved_bytes >= need) return;
    throw sdk::InvalidArgument("tangents: " + std::to_string(run.saved_bytes) + " bytes of saved memory, expected " +
                               std::to_string(need));
  }

  Config config_;
  std::vector<Config::Path> paths_;
  const T* weight_ = nullptr;
  std::int64_t rows_ = 0;
};

class Plugin final : public sdk::Plugin {
 public:
  std::vector<sdk::DeviceDescription> devices() override {
    sdk::DeviceDescription cpu;
    cpu.type = FP_DEVICE_CPU;
    cpu.dtypes = kDTypes;
    return {cpu};
  }
  std::vector<sdk::OpDescription> ops() override {
    return {{std::string(Config::kOp), Config::kVersion, FP_DEVICE_CPU, kDTypes, kPasses}};
  }
  void query(const sdk::KernelQuery& query, sdk::KernelAnswer& answer) override {
    if (query.device.type != FP_DEVICE_CPU) answer.blocked(sdk::Reason::device, "only the CPU");
    if (!(query.dtype == sdk::kFloat32) && !(query.dtype == sdk::kFloat64)) {
      answer.blocked(sdk::Reason::dtype, query.dtype.name() + ", only float32 and float64");
    }
    if ((query.passes & ~kPasses) != 0) answer.blocked(sdk::Reason::pass, "only four passes are known");
    answer.flags = FP_KERNEL_DETERMINISTIC;
    if (query.op != Config::kOp) return answer.blocked(sdk::Reason::op, "only " + std::string(Config::kOp));
    if (query.op_version != Config::kVersion) return answer.blocked(sdk::Reason::op_version, "only version 1");
    if (sdk::known_config<Config>(query.config).bias) answer.blocked(sdk::Reason::config, "no bias");
  }
  std::unique_ptr<sdk::Kernel> create(const sdk::KernelQuery& query, sdk::Device&) override {
    const Config config = Config::from(query.config);
    if (query.dtype == sdk::kFloat32) return std::make_unique<Linear<float>>(config);
    return std::make_unique<Linear<double>>(config);
  }
};

}  // namespace
}  // namespace tangents

FASTPATH_PLUGIN(tangents::Plugin, "tangents", "fastpath tests", "1.0", "cpu", "tangents");
