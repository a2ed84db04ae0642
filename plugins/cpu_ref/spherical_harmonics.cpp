#include <array>
#include <cmath>
#include <numbers>

#include "fastpath/sdk/coupling.hpp"
#include "kernel.hpp"

namespace cpu_ref {
namespace {

/// Computed in double for float too: the work is small, and the direction of short vectors needs it.
template <class T>
class SphericalHarmonics final : public CpuKernel<T> {
 public:
  explicit SphericalHarmonics(const sdk::SphericalHarmonicsConfig& config)
      : CpuKernel<T>(config.signature()), config_(config) {
    for (int l = 0; l <= config.l_max; ++l) {
      auto& terms = degrees_.emplace_back();
      scale_.push_back(config.normalization == sdk::Normalization::norm       ? 1.0 / std::sqrt(2.0 * l + 1.0)
                       : config.normalization == sdk::Normalization::integral ? 0.5 * std::numbers::inv_sqrtpi
                                                                              : 1.0);
      if (l == 0) continue;
      for (const auto& [i, j, k, value] : sdk::coupling(l, l - 1, 1).nonzero) {
        terms.push_back({l * l + i, (l - 1) * (l - 1) + j, k, value * (2 * l + 1) / std::sqrt(static_cast<double>(l))});
      }
    }
  }

 private:
  /// p[out] += value * p[in] * u[axis]: degree l from degree l - 1. The same terms times l are the gradient of p[out].
  struct Term {
    int out, in, axis;
    double value;
  };
  template <class N>
  using Values = std::array<N, (kMaxDegree + 1) * (kMaxDegree + 1)>;
  static constexpr double kShortest = 1e-12;  // a shorter vector has no direction

  /// The argument of the polynomials and, if it was normalised, its length; 0 of what has no direction.
  template <class N>
  std::array<N, 4> direction(const ReadPair<T>& vectors, std::int64_t e) const {
    using std::sqrt;
    const N x = get<N>(vectors, 3 * e), y = get<N>(vectors, 3 * e + 1), z = get<N>(vectors, 3 * e + 2);
    if (!config_.normalize) return {x, y, z, N(1.0)};
    const N square = x * x + y * y + z * z;
    if (square <= N(kShortest * kShortest)) {
      return {x / N(kShortest), y / N(kShortest), z / N(kShortest), N(0.0)};
    }
    const N length = sqrt(square);
    return {x / length, y / length, z / length, length};
  }
  template <class N>
  void polynomials(const std::array<N, 4>& u, int l_max, Values<N>& p) const {
    p[0] = N(1.0);
    for (int l = 1; l <= l_max; ++l) {
      for (int c = l * l; c < (l + 1) * (l + 1); ++c) p[c] = N(0.0);
      for (const Term& t : degrees_[l]) p[t.out] += t.value * p[t.in] * u[t.axis];
    }
  }

  void forward(const sdk::Run& run, sdk::Scratch&) override { evaluate<double>(run); }
  void forward_tangent(const sdk::Run& run, sdk::Scratch&) override { evaluate<Dual<double>>(run); }
  void backward(const sdk::Run& run, sdk::Scratch&) override { gradient<double>(run); }
  void backward_tangent(const sdk::Run& run, sdk::Scratch&) override { gradient<Dual<double>>(run); }

  template <class N>
  void evaluate(const sdk::Run& run) {
    const auto vectors = this->read(run.inputs, run.inputs_t, 0);
    const auto out = this->write(run.outputs, run.outputs_t, 0);
    const Chunks chunks(run.inputs[0].size(0), 64);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      Values<N> p;
      for (std::int64_t e = chunks.begin(chunk); e < chunks.end(chunk); ++e) {
        polynomials(direction<N>(vectors, e), config_.l_max, p);
        for (int l = 0; l <= config_.l_max; ++l) {
          for (int c = l * l; c < (l + 1) * (l + 1); ++c) set(out, e * config_.dim() + c, scale_[l] * p[c]);
        }
      }
    });
  }

  template <class N>
  void gradient(const sdk::Run& run) {
    const auto vectors = this->read(run.inputs, run.inputs_t, 0);
    const auto cotangents = this->read(run.grad_outputs, run.grad_outputs_t, 0);
    const auto out = this->write(run.grad_inputs, run.grad_inputs_t, 0);
    if (!out) return;
    const Chunks chunks(run.inputs[0].size(0), 64);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      Values<N> p;
      for (std::int64_t e = chunks.begin(chunk); e < chunks.end(chunk); ++e) {
        const std::array<N, 4> u = direction<N>(vectors, e);
        polynomials(u, config_.l_max - 1, p);
        std::array<N, 3> g{};
        for (int l = 1; l <= config_.l_max; ++l) {
          for (const Term& t : degrees_[l]) {
            g[t.axis] += l * scale_[l] * t.value * get<N>(cotangents, e * config_.dim() + t.out) * p[t.in];
          }
        }
        if (config_.normalize) {  // only what is across the vector turns its direction
          const N along = g[0] * u[0] + g[1] * u[1] + g[2] * u[2], length = u[3];
          for (int k = 0; k < 3; ++k) g[k] = length == N(0.0) ? N(0.0) : (g[k] - along * u[k]) / length;
        }
        for (int k = 0; k < 3; ++k) set(out, 3 * e + k, g[k]);
      }
    });
  }

  sdk::SphericalHarmonicsConfig config_;
  std::vector<std::vector<Term>> degrees_;
  std::vector<double> scale_;
};

}  // namespace

Op spherical_harmonics() {
  using Config = sdk::SphericalHarmonicsConfig;
  return {Config::kOp, Config::kVersion,
          [](const sdk::Attributes& config, sdk::KernelAnswer& answer) {
            check_degree("l_max", sdk::known_config<Config>(config).l_max, answer);
          },
          create<SphericalHarmonics, Config>};
}

}  // namespace cpu_ref
