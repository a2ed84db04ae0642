#include <algorithm>
#include <cmath>

#include "kernel.hpp"

/// The small ops between the large ones. A host runs its own on the CPU; a plugin for a device wants them.
namespace cpu_ref {
namespace {

template <class T>
class RegroupChannels final : public CpuKernel<T> {
 public:
  explicit RegroupChannels(const sdk::RegroupChannelsConfig& config)
      : CpuKernel<T>(config.signature()), config_(config) {}

 private:
  void forward(const sdk::Run& run, sdk::Scratch&) override {
    move(run, this->read(run.inputs, 0), this->write(run.outputs, 0), false);
  }
  void backward(const sdk::Run& run, sdk::Scratch&) override {
    move(run, this->read(run.grad_outputs, 0), this->write(run.grad_inputs, 0), true);
  }
  void move(const sdk::Run& run, const T* from, T* to, bool backward) {
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
  void forward(const sdk::Run& run, sdk::Scratch&) override {
    T* y = this->write(run.outputs, 0);
    for_each(run, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = 0; i < config_.n_inputs; ++i) {
        const T* x = this->read(run.inputs, static_cast<std::uint64_t>(i));
        for (std::int64_t k = begin; k < end; ++k) y[k] = i == 0 ? x[k] : y[k] + x[k];
      }
    });
  }
  void backward(const sdk::Run& run, sdk::Scratch&) override {
    const T* grad = this->read(run.grad_outputs, 0);
    for_each(run, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = 0; i < config_.n_inputs; ++i) {
        T* target = this->write(run.grad_inputs, static_cast<std::uint64_t>(i));
        if (target != nullptr) std::copy(grad + begin, grad + end, target + begin);
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
  void forward(const sdk::Run& run, sdk::Scratch&) override {
    const T* x = this->read(run.inputs, 0);
    T* y = this->write(run.outputs, 0);
    for_each(run, [&](std::int64_t k) {
      const double z = x[k];
      y[k] = static_cast<T>(config_.constant * z / (1.0 + std::exp(-z)));
    });
  }
  void backward(const sdk::Run& run, sdk::Scratch&) override {
    const T *x = this->read(run.inputs, 0), *grad = this->read(run.grad_outputs, 0);
    T* target = this->write(run.grad_inputs, 0);
    if (target == nullptr) return;
    for_each(run, [&](std::int64_t k) {
      const double z = x[k], sigmoid = 1.0 / (1.0 + std::exp(-z)), rest = 1.0 / (1.0 + std::exp(z));
      target[k] = static_cast<T>(config_.constant * grad[k] * sigmoid * (1.0 + z * rest));
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

template <template <class> class K, class Config>
Op op() {
  return {
      Config::kOp, Config::kVersion,
      [](const sdk::Attributes& config, sdk::KernelAnswer&) { static_cast<void>(sdk::known_config<Config>(config)); },
      create<K, Config>};
}

}  // namespace

Op regroup_channels() { return op<RegroupChannels, sdk::RegroupChannelsConfig>(); }
Op sum() { return op<Sum, sdk::SumConfig>(); }
Op scaled_silu() { return op<ScaledSilu, sdk::ScaledSiluConfig>(); }

}  // namespace cpu_ref
