#include "block_linear.hpp"

namespace cpu_ref {
namespace {

template <class T>
class IrrepsLinear final : public MultilinearKernel<T> {
 public:
  explicit IrrepsLinear(const sdk::IrrepsLinearConfig& config)
      : MultilinearKernel<T>(config.signature()), config_(config), linear_(config.in, config.out, config.paths(), 1) {}

 private:
  std::unique_ptr<MultilinearKernel<T>> another() const override { return std::make_unique<IrrepsLinear>(config_); }
  void take(const sdk::TensorList& parameters) override {
    linear_.take(this->read(parameters, 0));
    if (!config_.bias) return;
    const T* bias = this->read(parameters, 1);
    bias_.assign(bias, bias + config_.bias_numel());
  }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    linear_.plan(scratch, extents[sdk::Axis::rows], pass);
  }
  /// Calls f(place in a row of y, place in the bias).
  template <class F>
  void for_each_bias(const F& f) const {
    std::int64_t position = 0;
    for (std::size_t block = 0; block < config_.out.size(); ++block) {
      if (!(config_.out[block].ir == sdk::Irrep{0, 1})) continue;
      for (std::int64_t w = 0; w < config_.out[block].mul; ++w) f(config_.out.offset(block) + w, position++);
    }
  }

  void forward_products(const sdk::Run& run, sdk::Scratch& scratch) override {
    linear_.forward(this->workers_, run.threads, scratch, {run.inputs[0].size(0)}, this->read(run.inputs, 0),
                    this->write(run.outputs, 0));
  }
  void forward(const sdk::Run& run, sdk::Scratch& scratch) override {
    forward_products(run, scratch);
    if (!config_.bias) return;
    T* y = this->write(run.outputs, 0);
    for (std::int64_t row = 0; row < run.inputs[0].size(0); ++row) {
      for_each_bias([&](std::int64_t place, std::int64_t i) { y[row * config_.out.dim() + place] += bias_[i]; });
    }
  }

  void backward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const std::int64_t n = run.inputs[0].size(0);
    const T* grad_y = this->read(run.grad_outputs, 0);
    if (T* grad_x = this->write(run.grad_inputs, 0)) {
      sdk::Scratch own = scratch;
      linear_.grad_x(this->workers_, run.threads, own, {n}, grad_y, grad_x);
    }
    if (T* grad_weight = this->write(run.grad_parameters, 0)) {
      sdk::Scratch own = scratch;
      linear_.grad_weight(this->workers_, run.threads, own, {n}, this->read(run.inputs, 0), grad_y, grad_weight);
    }
    if (T* grad_bias = this->write(run.grad_parameters, 1)) {
      for_each_bias([&](std::int64_t place, std::int64_t i) {
        double sum = 0.0;
        for (std::int64_t row = 0; row < n; ++row) sum += grad_y[row * config_.out.dim() + place];
        grad_bias[i] = static_cast<T>(sum);
      });
    }
  }

  sdk::IrrepsLinearConfig config_;
  BlockLinear<T> linear_;
  std::vector<T> bias_;
};

}  // namespace

Op irreps_linear() {
  using Config = sdk::IrrepsLinearConfig;
  return {Config::kOp, Config::kVersion,
          [](const sdk::Attributes& config, sdk::KernelAnswer& answer) {
            const Config typed = sdk::known_config<Config>(config);
            check_degrees(typed.in, typed.out, answer);
          },
          create<IrrepsLinear, Config>};
}

}  // namespace cpu_ref
