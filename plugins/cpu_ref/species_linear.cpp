#include "block_linear.hpp"

namespace cpu_ref {
namespace {

/// Groups the rows by species, then multiplies each group with the matrices of its species.
template <class T>
class SpeciesLinear final : public MultilinearKernel<T> {
 public:
  explicit SpeciesLinear(const sdk::SpeciesLinearConfig& config)
      : MultilinearKernel<T>(config.signature()),
        config_(config),
        linear_(config.in, config.out, config.paths(), config.n_species) {}

 private:
  std::unique_ptr<MultilinearKernel<T>> another() const override { return std::make_unique<SpeciesLinear>(config_); }
  void take(const sdk::TensorList& parameters) override { linear_.take(this->read(parameters, 0)); }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    scratch.take<std::int64_t>(extents[sdk::Axis::rows] + 2 * config_.n_species + 1);
    linear_.plan(scratch, extents[sdk::Axis::rows], pass);
  }

  typename BlockLinear<T>::Rows rows(const sdk::Run& run, sdk::Scratch& scratch) const {
    const std::int64_t n = run.inputs[0].size(0);
    std::int64_t* order = scratch.take<std::int64_t>(n + 2 * config_.n_species + 1);
    std::int64_t* begin = order + n;
    group_by_species(n, config_.n_species, this->read_indices(run.inputs, 1), order, begin,
                     begin + config_.n_species + 1);
    return {n, order, begin};
  }

  void forward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const auto rows = this->rows(run, scratch);
    linear_.forward(this->workers_, run.threads, scratch, rows, this->read(run.inputs, 0), this->write(run.outputs, 0));
  }

  void backward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const auto rows = this->rows(run, scratch);
    const T* grad_y = this->read(run.grad_outputs, 0);
    if (T* grad_x = this->write(run.grad_inputs, 0)) {
      sdk::Scratch own = scratch;
      linear_.grad_x(this->workers_, run.threads, own, rows, grad_y, grad_x);
    }
    if (T* grad_weight = this->write(run.grad_parameters, 0)) {
      sdk::Scratch own = scratch;
      linear_.grad_weight(this->workers_, run.threads, own, rows, this->read(run.inputs, 0), grad_y, grad_weight);
    }
  }

  sdk::SpeciesLinearConfig config_;
  BlockLinear<T> linear_;
};

}  // namespace

Op species_linear() {
  using Config = sdk::SpeciesLinearConfig;
  return {Config::kOp, Config::kVersion,
          [](const sdk::Attributes& config, sdk::KernelAnswer& answer) {
            const Config typed = sdk::known_config<Config>(config);
            check_degrees(typed.in, typed.out, answer);
          },
          create<SpeciesLinear, Config>};
}

}  // namespace cpu_ref
