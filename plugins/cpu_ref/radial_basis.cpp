#include <algorithm>
#include <cmath>
#include <type_traits>

#include "cpu/radial.hpp"
#include "kernel.hpp"

namespace cpu_ref {
namespace {

using fastpath_cpu::EdgeRadii;
using fastpath_cpu::envelope;
using fastpath_cpu::radial_argument;
using fastpath_cpu::sinc;

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
  void plan_tangent(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    if (pass == sdk::Pass::backward_tangent) {
      scratch.take<Dual<double>>(chunks(extents[sdk::Axis::edges]).count * config_.n_basis);
    }
  }

  EdgeRadii radii(const sdk::Run& run) const {
    if (config_.transform == sdk::DistanceTransform::none) return {};
    return {config_, run.graph.value().host(), this->read_indices(run.inputs, 1)};
  }

  void forward(const sdk::Run& run, sdk::Scratch&) override { evaluate<double>(run); }
  void forward_tangent(const sdk::Run& run, sdk::Scratch&) override { evaluate<Dual<double>>(run); }
  void backward(const sdk::Run& run, sdk::Scratch& scratch) override { gradients<double>(run, scratch); }
  void backward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override { gradients<Dual<double>>(run, scratch); }

  template <class N>
  std::vector<N> weights(const sdk::Run& run) const {
    std::vector<N> result(weights_.begin(), weights_.end());
    if constexpr (!std::is_same_v<N, double>) {
      const T* tangent = this->read(run.parameters_t, 0);
      for (std::size_t n = 0; tangent != nullptr && n < result.size(); ++n) result[n].tangent = tangent[n];
    }
    return result;
  }

  template <class N>
  void evaluate(const sdk::Run& run) {
    const auto lengths = this->read(run.inputs, run.inputs_t, 0);
    const auto embedding = this->write(run.outputs, run.outputs_t, 0);
    const auto envelopes = this->write(run.outputs, run.outputs_t, 1);
    const EdgeRadii nodes = radii(run);
    const std::vector<N> w = weights<N>(run);
    const Chunks chunks = this->chunks(run.inputs[0].size(0));
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      for (std::int64_t e = chunks.begin(chunk); e < chunks.end(chunk); ++e) {
        const N r = get<N>(lengths, e), f = envelope(r, config_.r_max, config_.p).value;
        const N x = radial_argument(config_, r, nodes, e).value,
                factor = config_.prefactor * (config_.apply_cutoff ? f : N(1.0));
        set(envelopes, e, f);
        for (std::int64_t n = 0; n < config_.n_basis; ++n) {
          set(embedding, e * config_.n_basis + n, factor * w[n] * sinc(w[n] * x).value);
        }
      }
    });
  }

  template <class N>
  void gradients(const sdk::Run& run, sdk::Scratch& scratch) {
    using std::cos;
    const auto lengths = this->read(run.inputs, run.inputs_t, 0);
    const auto grad_embedding = this->read(run.grad_outputs, run.grad_outputs_t, 0);
    const auto grad_envelope = this->read(run.grad_outputs, run.grad_outputs_t, 1);
    const auto grad_lengths = this->write(run.grad_inputs, run.grad_inputs_t, 0);
    const auto grad_weights = this->write(run.grad_parameters, run.grad_parameters_t, 0);
    const EdgeRadii nodes = radii(run);
    const std::vector<N> w = weights<N>(run);
    const Chunks chunks = this->chunks(run.inputs[0].size(0));
    N* partial = scratch.take<N>(chunks.count * config_.n_basis);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      N* sums = partial + chunk * config_.n_basis;
      std::fill_n(sums, config_.n_basis, N(0.0));
      for (std::int64_t e = chunks.begin(chunk); e < chunks.end(chunk); ++e) {
        const N r = get<N>(lengths, e);
        const auto f = envelope(r, config_.r_max, config_.p), x = radial_argument(config_, r, nodes, e);
        const N cut = config_.apply_cutoff ? f.value : N(1.0);
        N grad_x(0.0), grad_f = get<N>(grad_envelope, e);
        for (std::int64_t n = 0; n < config_.n_basis; ++n) {
          const N g = config_.prefactor * get<N>(grad_embedding, e * config_.n_basis + n);
          const auto s = sinc(w[n] * x.value);
          grad_x += g * cut * w[n] * w[n] * s.slope;
          if (config_.apply_cutoff) grad_f += g * w[n] * s.value;
          sums[n] += g * cut * cos(w[n] * x.value);
        }
        set(grad_lengths, e, grad_x * x.slope + grad_f * f.slope);
      }
    });
    for (std::int64_t n = 0; n < config_.n_basis; ++n) {
      N sum(0.0);
      for (std::int64_t chunk = 0; chunk < chunks.count; ++chunk) sum += partial[chunk * config_.n_basis + n];
      set(grad_weights, n, sum);
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
