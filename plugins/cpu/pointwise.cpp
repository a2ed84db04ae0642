#include "cpu/pointwise.hpp"

#include <algorithm>

namespace fastpath_cpu {
namespace {

template <class T>
void fill_zero(const sdk::Tensor& tensor) {
  if (T* to = tensor.template view<T>().data()) std::fill_n(to, tensor.numel(), T(0));
}

template <class T>
class RegroupChannels final : public CpuKernel<T> {
 public:
  explicit RegroupChannels(const sdk::RegroupChannelsConfig& config)
      : CpuKernel<T>(config.signature()), config_(config) {}

 private:
  void forward(const sdk::Run& run, sdk::Scratch&) override { move(run, run.inputs[0], run.outputs[0], false); }
  void backward(const sdk::Run& run, sdk::Scratch&) override {
    move(run, run.grad_outputs[0], run.grad_inputs[0], true);
  }
  void forward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override {
    forward(run, scratch);
    move(run, run.inputs_t[0], run.outputs_t[0], false);
  }
  void backward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override {
    backward(run, scratch);
    move(run, run.grad_outputs_t[0], run.grad_inputs_t[0], true);
  }
  void move(const sdk::Run& run, const sdk::Tensor& source, const sdk::Tensor& target, bool backward) {
    if (!source.present()) return fill_zero<T>(target);
    const T* from = source.template view<const T>().data();
    T* to = target.template view<T>().data();
    if (to == nullptr) return;
    const Chunks chunks(run.inputs[0].size(0), 16);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      const std::int64_t channels = config_.channels, dim = config_.dim();
      for (std::int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row) {
        for (std::int64_t l = 0; l <= config_.l_max; ++l) {
          for (std::int64_t c = 0; c < channels; ++c) {
            const std::int64_t block = (row * dim + l * l) * channels + c * (2 * l + 1);
            const std::int64_t grouped = (row * channels + c) * dim + l * l;
            std::copy_n(from + (backward ? grouped : block), 2 * l + 1, to + (backward ? block : grouped));
          }
        }
      }
    });
  }
  sdk::RegroupChannelsConfig config_;
};

template <class T>
class Sum final : public CpuKernel<T> {
 public:
  explicit Sum(const sdk::SumConfig& config) : CpuKernel<T>(config.signature()), config_(config) {}

 private:
  void forward(const sdk::Run& run, sdk::Scratch&) override { add(run, run.inputs, run.outputs[0]); }
  void backward(const sdk::Run& run, sdk::Scratch&) override { spread(run, run.grad_outputs[0], run.grad_inputs); }
  void forward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override {
    forward(run, scratch);
    add(run, run.inputs_t, run.outputs_t[0]);
  }
  void backward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override {
    backward(run, scratch);
    spread(run, run.grad_outputs_t[0], run.grad_inputs_t);
  }
  void add(const sdk::Run& run, const sdk::TensorList& list, const sdk::Tensor& target) {
    T* y = target.template view<T>().data();
    if (y == nullptr) return;
    std::vector<const T*> terms;
    for (std::int64_t i = 0; i < config_.n_inputs; ++i) {
      if (const T* x = this->read(list, static_cast<std::uint64_t>(i))) terms.push_back(x);
    }
    if (terms.empty()) return fill_zero<T>(target);
    for_each(run, [&](std::int64_t begin, std::int64_t end) {
      for (const T* x : terms) {
        for (std::int64_t k = begin; k < end; ++k) y[k] = x == terms[0] ? x[k] : y[k] + x[k];
      }
    });
  }
  void spread(const sdk::Run& run, const sdk::Tensor& source, const sdk::TensorList& targets) {
    const T* grad = source.template view<const T>().data();
    for_each(run, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = 0; i < config_.n_inputs; ++i) {
        T* target = this->write(targets, static_cast<std::uint64_t>(i));
        if (target == nullptr) continue;
        if (grad == nullptr)
          std::fill(target + begin, target + end, T(0));
        else
          std::copy(grad + begin, grad + end, target + begin);
      }
    });
  }
  template <class Body>
  void for_each(const sdk::Run& run, const Body& body) {
    const Chunks chunks(run.inputs[0].numel(), 4096);
    this->workers_.run(run.threads, chunks.count,
                       [&](std::int64_t chunk) { body(chunks.begin(chunk), chunks.end(chunk)); });
  }
  sdk::SumConfig config_;
};

template <class T>
class ScaledSilu final : public CpuKernel<T> {
 public:
  explicit ScaledSilu(const sdk::ScaledSiluConfig& config) : CpuKernel<T>(config.signature()), config_(config) {}

 private:
  void forward(const sdk::Run& run, sdk::Scratch&) override { evaluate<double>(run); }
  void forward_tangent(const sdk::Run& run, sdk::Scratch&) override { evaluate<Dual<double>>(run); }
  void backward(const sdk::Run& run, sdk::Scratch&) override { gradient<double>(run); }
  void backward_tangent(const sdk::Run& run, sdk::Scratch&) override { gradient<Dual<double>>(run); }

  template <class N>
  void evaluate(const sdk::Run& run) {
    const auto x = this->read(run.inputs, run.inputs_t, 0);
    const auto y = this->write(run.outputs, run.outputs_t, 0);
    for_each(run, [&](std::int64_t k) {
      const N z = get<N>(x, k);
      set(y, k, config_.constant * z * logistic(z));
    });
  }
  template <class N>
  void gradient(const sdk::Run& run) {
    const auto x = this->read(run.inputs, run.inputs_t, 0), grad = this->read(run.grad_outputs, run.grad_outputs_t, 0);
    const auto target = this->write(run.grad_inputs, run.grad_inputs_t, 0);
    if (!target) return;
    for_each(run, [&](std::int64_t k) {
      const N z = get<N>(x, k);
      set(target, k, config_.constant * get<N>(grad, k) * logistic(z) * (N(1.0) + z * logistic(-z)));
    });
  }
  template <class Body>
  void for_each(const sdk::Run& run, const Body& body) {
    const Chunks chunks(run.inputs[0].numel(), 1024);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      for (std::int64_t k = chunks.begin(chunk); k < chunks.end(chunk); ++k) body(k);
    });
  }
  sdk::ScaledSiluConfig config_;
};

}  // namespace

Op regroup_channels() { return op_of<RegroupChannels, sdk::RegroupChannelsConfig>(); }
Op sum() { return op_of<Sum, sdk::SumConfig>(); }
Op scaled_silu() { return op_of<ScaledSilu, sdk::ScaledSiluConfig>(); }

}  // namespace fastpath_cpu
