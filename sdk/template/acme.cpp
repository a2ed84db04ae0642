// The smallest complete plugin: one op, irreps_linear, forward and backward, float32 and float64, on the CPU.
// Copy it, rename acme, and replace the loops. The numbers P-.. are those of the contract, plugin-contract.md.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fastpath/sdk/check.hpp"
#include "fastpath/sdk/ops.hpp"
#include "fastpath/sdk/plugin.hpp"

namespace {

namespace sdk = fastpath::sdk;

constexpr std::uint32_t kDTypes = FP_DTYPE_BIT_F32 | FP_DTYPE_BIT_F64;
constexpr std::uint32_t kPasses = FP_PASS_FORWARD | FP_PASS_BACKWARD;

/// y[row, out, w, m] = sum over paths and u of factor * weight[path, u, w] * x[row, in, u, m]. A row of x or y is its
/// blocks one after the other, a block is [channel][component]. Sums are in double, whatever T is.
template <class T>
class IrrepsLinear final : public sdk::Kernel {
 public:
  explicit IrrepsLinear(const sdk::IrrepsLinearConfig& config)
      : in_(config.in),
        out_(config.out),
        paths_(config.paths()),
        n_weights_(config.weight_numel()),
        signature_(config.signature()) {}

  // The factors go into a copy of the weights, once for all calls with these parameters (P-54).
  void bind(const sdk::Bind& bind) override {
    sdk::check_bind(signature_, bind, sdk::dtype_of<T>());
    const auto weight = bind.parameters[0].view<const T>();
    weight_.assign(weight.data(), weight.data() + weight.size());
    for (const Path& path : paths_) {
      for (std::int64_t i = 0; i < numel(path); ++i) weight_[at(path) + i] *= path.factor;
    }
  }

  // The same function that cuts the memory counts it (P-55).
  sdk::Workspace workspace(const sdk::Sizes& sizes) override {
    sdk::Scratch counter;
    sums(counter, sizes.pass);
    return {.scratch_bytes = counter.bytes(), .saved_bytes = 0};
  }

  void run(const sdk::Run& run) override {
    sdk::check_run(signature_, run, sdk::dtype_of<T>());  // P-23: past this line every array has its size
    if (static_cast<std::int64_t>(weight_.size()) != n_weights_) throw sdk::InvalidArgument("acme: run before bind");
    sdk::Scratch scratch(run.scratch, run.scratch_bytes);
    double* sum = sums(scratch, run.pass);
    const auto x = run.inputs[0].view<const T>();
    if (run.pass == sdk::Pass::forward) {
      forward(x, run.outputs[0].view<T>(), sum);
    } else if (run.pass == sdk::Pass::backward) {
      const auto grad_y = run.grad_outputs[0].view<const T>();
      // What is absent is not wanted (P-57).
      if (const auto grad_x = run.grad_inputs[0].view<T>()) input_gradient(grad_y, grad_x, sum);
      if (const auto grad = run.grad_parameters[0].view<T>()) weight_gradient(x, grad_y, grad, sum);
    } else {
      throw sdk::Refused("acme: irreps_linear has no tangent passes");
    }
  }

 private:
  using Path = sdk::IrrepsLinearConfig::Path;

  std::int64_t mul_in(const Path& path) const { return in_[path.in].mul; }
  std::int64_t mul_out(const Path& path) const { return out_[path.out].mul; }
  std::int64_t numel(const Path& path) const { return mul_in(path) * mul_out(path); }
  static std::size_t at(const Path& path) { return static_cast<std::size_t>(path.weight_offset); }

  double* sums(sdk::Scratch& scratch, sdk::Pass pass) const {
    return scratch.take<double>(pass == sdk::Pass::forward ? out_.dim() : std::max(in_.dim(), n_weights_));
  }

  /// Calls f(place in a row of x, place in a row of y, place of the weight) for every product of a row.
  template <class F>
  void for_each_product(const F& f) const {
    for (const Path& path : paths_) {
      const std::int64_t dim = in_[path.in].ir.dim();
      std::size_t weight = at(path);
      for (std::int64_t u = 0; u < mul_in(path); ++u) {
        for (std::int64_t w = 0; w < mul_out(path); ++w, ++weight) {
          for (std::int64_t m = 0; m < dim; ++m) {
            f(in_.offset(path.in) + u * dim + m, out_.offset(path.out) + w * dim + m, weight);
          }
        }
      }
    }
  }

  // Outputs are overwritten, also where no path leads to them (P-56).
  void forward(const sdk::TensorView<const T>& x, const sdk::TensorView<T>& y, double* sum) const {
    for (std::int64_t row = 0; row < x.rows(); ++row) {
      const T* from = x.row(row);
      std::fill_n(sum, out_.dim(), 0.0);
      for_each_product([&](std::int64_t i, std::int64_t o, std::size_t w) { sum[o] += weight_[w] * from[i]; });
      std::copy_n(sum, out_.dim(), y.row(row));
    }
  }

  void input_gradient(const sdk::TensorView<const T>& grad_y, const sdk::TensorView<T>& grad_x, double* sum) const {
    for (std::int64_t row = 0; row < grad_y.rows(); ++row) {
      const T* from = grad_y.row(row);
      std::fill_n(sum, in_.dim(), 0.0);
      for_each_product([&](std::int64_t i, std::int64_t o, std::size_t w) { sum[i] += weight_[w] * from[o]; });
      std::copy_n(sum, in_.dim(), grad_x.row(row));
    }
  }

  void weight_gradient(const sdk::TensorView<const T>& x, const sdk::TensorView<const T>& grad_y,
                       const sdk::TensorView<T>& grad, double* sum) const {
    std::fill_n(sum, n_weights_, 0.0);
    for (std::int64_t row = 0; row < x.rows(); ++row) {
      const T *left = x.row(row), *right = grad_y.row(row);
      for_each_product([&](std::int64_t i, std::int64_t o, std::size_t w) {
        sum[w] += static_cast<double>(left[i]) * static_cast<double>(right[o]);
      });
    }
    for (const Path& path : paths_) {
      for (std::int64_t i = 0; i < numel(path); ++i) {
        grad[path.weight_offset + i] = static_cast<T>(path.factor * sum[at(path) + i]);
      }
    }
  }

  sdk::Irreps in_, out_;
  std::vector<Path> paths_;
  std::int64_t n_weights_;
  sdk::Signature signature_;
  std::vector<double> weight_;  // with the factors of the paths
};

class Acme final : public sdk::Plugin {
 public:
  std::vector<sdk::DeviceDescription> devices() override {
    sdk::DeviceDescription cpu;  // the host knows the rest of it
    cpu.dtypes = kDTypes;
    return {cpu};
  }

  std::vector<sdk::OpDescription> ops() override {
    return {{std::string(Config::kOp), Config::kVersion, FP_DEVICE_CPU, kDTypes, kPasses}};
  }

  // Every reason why not, each with what would be accepted (P-45), and yes only to what is known entirely (P-47).
  void query(const sdk::KernelQuery& query, sdk::KernelAnswer& answer) override {
    if (query.op != Config::kOp) return answer.blocked(sdk::Reason::op, "op '" + query.op + "', only irreps_linear");
    if (query.op_version != Config::kVersion) {
      return answer.blocked(sdk::Reason::op_version, "version " + std::to_string(query.op_version) + ", only 1");
    }
    if (query.device.type != FP_DEVICE_CPU) answer.blocked(sdk::Reason::device, "only the CPU");
    if (!(query.dtype == sdk::kFloat32) && !(query.dtype == sdk::kFloat64)) {
      answer.blocked(sdk::Reason::dtype, query.dtype.name() + ", only float32 and float64");
    }
    if ((query.passes & ~kPasses) != 0) answer.blocked(sdk::Reason::pass, "tangents, only forward and backward");
    const auto config = sdk::known_config<Config>(query.config);  // what it throws becomes a reason too
    if (config.bias) answer.blocked(sdk::Reason::config, "a bias, only without");
    answer.flags = FP_KERNEL_DETERMINISTIC | FP_KERNEL_THREAD_SAFE;  // P-51
  }

  std::unique_ptr<sdk::Kernel> create(const sdk::KernelQuery& query, sdk::Device&) override {
    const auto config = Config::from(query.config);
    if (query.dtype == sdk::kFloat32) return std::make_unique<IrrepsLinear<float>>(config);
    return std::make_unique<IrrepsLinear<double>>(config);
  }

 private:
  using Config = sdk::IrrepsLinearConfig;
};

}  // namespace

// id, vendor, version, kinds of device, build tag. The id is also in the name of the file.
FASTPATH_PLUGIN(Acme, "acme", "Acme", "1.0.0", "cpu", "");
