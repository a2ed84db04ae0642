#include <algorithm>
#include <cmath>

#include "cpu/radial.hpp"
#include "kernel.hpp"

namespace cpu_ref {
namespace {

using fastpath_cpu::EdgeRadii;
using fastpath_cpu::envelope;
using fastpath_cpu::radial_argument;
using fastpath_cpu::ValueAndSlope;

/// sin(t) / t and its derivative; below 1 by their series, which does not cancel.
ValueAndSlope sinc(double t) {
  if (std::abs(t) >= 1.0) {
    const double s = std::sin(t) / t;
    return {s, (std::cos(t) - s) / t};
  }
  double value = 1.0, slope = 0.0, term = 1.0;  // term: (-1)^k t^(2k) / (2k+1)!
  for (int k = 1; k <= 9; ++k) {
    slope += -term * t * 2 * k / (2.0 * k * (2.0 * k + 1.0));
    term *= -t * t / (2.0 * k * (2.0 * k + 1.0));
    value += term;
  }
  return {value, slope};
}

/// Computed in double for float too: sin(w r) would lose what w r has before the point.
template <class T>
class RadialBasis final : public CpuKernel<T> {
 public:
  explicit RadialBasis(const sdk::RadialBasisConfig& config) : CpuKernel<T>(config.signature()), config_(config) {}

 private:
  static Chunks chunks(std::int64_t n_edges) { return Chunks(n_edges, 256, 16); }

  void take(const sdk::TensorList& parameters) override {
    const auto weights = parameters[0].template view<const T>();
    weights_.assign(weights.data(), weights.data() + weights.size());
    if (!config_.frequencies.empty()) weights_ = config_.frequencies;  // the same before rounding
  }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    if (pass == sdk::Pass::backward) {
      scratch.take<double>(chunks(extents[sdk::Axis::edges]).count * config_.n_basis);
    }
  }

  EdgeRadii radii(const sdk::Run& run) const {
    if (config_.transform == sdk::DistanceTransform::none) return {};
    return {config_, run.graph.value().host(), this->read_indices(run.inputs, 1)};
  }

  void forward(const sdk::Run& run, sdk::Scratch&) override {
    const T* lengths = this->read(run.inputs, 0);
    T* embedding = this->write(run.outputs, 0);
    T* envelopes = this->write(run.outputs, 1);
    const EdgeRadii nodes = radii(run);
    const Chunks chunks = this->chunks(run.inputs[0].size(0));
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      for (std::int64_t e = chunks.begin(chunk); e < chunks.end(chunk); ++e) {
        const double r = lengths[e], f = envelope(r, config_.r_max, config_.p).value;
        const double x = radial_argument(config_, r, nodes, e).value,
                     factor = config_.prefactor * (config_.apply_cutoff ? f : 1.0);
        if (envelopes != nullptr) envelopes[e] = static_cast<T>(f);
        for (std::int64_t n = 0; n < config_.n_basis; ++n) {
          embedding[e * config_.n_basis + n] = static_cast<T>(factor * weights_[n] * sinc(weights_[n] * x).value);
        }
      }
    });
  }

  void backward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const T* lengths = this->read(run.inputs, 0);
    const T* grad_embedding = this->read(run.grad_outputs, 0);
    const T* grad_envelope = this->read(run.grad_outputs, 1);
    T* grad_lengths = this->write(run.grad_inputs, 0);
    T* grad_weights = this->write(run.grad_parameters, 0);
    const EdgeRadii nodes = radii(run);
    const Chunks chunks = this->chunks(run.inputs[0].size(0));
    double* partial = scratch.take<double>(chunks.count * config_.n_basis);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      double* sums = partial + chunk * config_.n_basis;
      std::fill_n(sums, config_.n_basis, 0.0);
      for (std::int64_t e = chunks.begin(chunk); e < chunks.end(chunk); ++e) {
        const double r = lengths[e];
        const ValueAndSlope f = envelope(r, config_.r_max, config_.p), x = radial_argument(config_, r, nodes, e);
        const double cut = config_.apply_cutoff ? f.value : 1.0;
        double grad_x = 0.0, grad_f = grad_envelope != nullptr ? grad_envelope[e] : 0.0;
        for (std::int64_t n = 0; n < config_.n_basis; ++n) {
          const double w = weights_[n], g = config_.prefactor * grad_embedding[e * config_.n_basis + n];
          const ValueAndSlope s = sinc(w * x.value);
          grad_x += g * cut * w * w * s.slope;
          if (config_.apply_cutoff) grad_f += g * w * s.value;
          sums[n] += g * cut * std::cos(w * x.value);
        }
        if (grad_lengths != nullptr) grad_lengths[e] = static_cast<T>(grad_x * x.slope + grad_f * f.slope);
      }
    });
    if (grad_weights == nullptr) return;
    for (std::int64_t n = 0; n < config_.n_basis; ++n) {
      double sum = 0.0;
      for (std::int64_t chunk = 0; chunk < chunks.count; ++chunk) sum += partial[chunk * config_.n_basis + n];
      grad_weights[n] = static_cast<T>(sum);
    }
  }

  sdk::RadialBasisConfig config_;
  std::vector<double> weights_;
};

}  // namespace

Op radial_basis() {
  using Config = sdk::RadialBasisConfig;
  return {
      Config::kOp, Config::kVersion,
      [](const sdk::Attributes& config, sdk::KernelAnswer&) { static_cast<void>(sdk::known_config<Config>(config)); },
      create<RadialBasis, Config>};
}

}  // namespace cpu_ref
