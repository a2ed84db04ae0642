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
  using Values = std::array<double, (kMaxDegree + 1) * (kMaxDegree + 1)>;
  static constexpr double kShortest = 1e-12;  // a shorter vector has no direction

  /// The argument of the polynomials and, if it was normalised, its length.
  std::array<double, 4> direction(const T* v) const {
    const double x = v[0], y = v[1], z = v[2];
    if (!config_.normalize) return {x, y, z, 1.0};
    const double length = std::sqrt(x * x + y * y + z * z), divisor = std::max(length, kShortest);
    return {x / divisor, y / divisor, z / divisor, length};
  }
  void polynomials(const std::array<double, 4>& u, int l_max, Values& p) const {
    p[0] = 1.0;
    for (int l = 1; l <= l_max; ++l) {
      for (int c = l * l; c < (l + 1) * (l + 1); ++c) p[c] = 0.0;
      for (const Term& t : degrees_[l]) p[t.out] += t.value * p[t.in] * u[t.axis];
    }
  }

  void forward(const sdk::Run& run, sdk::Scratch&) override {
    const T* vectors = this->read(run.inputs, 0);
    T* out = this->write(run.outputs, 0);
    const Chunks chunks(run.inputs[0].size(0), 64);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      Values p;
      for (std::int64_t e = chunks.begin(chunk); e < chunks.end(chunk); ++e) {
        polynomials(direction(vectors + 3 * e), config_.l_max, p);
        T* row = out + e * config_.dim();
        for (int l = 0; l <= config_.l_max; ++l) {
          for (int c = l * l; c < (l + 1) * (l + 1); ++c) row[c] = static_cast<T>(scale_[l] * p[c]);
        }
      }
    });
  }

  void backward(const sdk::Run& run, sdk::Scratch&) override {
    const T* vectors = this->read(run.inputs, 0);
    const T* cotangents = this->read(run.grad_outputs, 0);
    T* out = this->write(run.grad_inputs, 0);
    if (out == nullptr) return;
    const Chunks chunks(run.inputs[0].size(0), 64);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      Values p;
      for (std::int64_t e = chunks.begin(chunk); e < chunks.end(chunk); ++e) {
        const std::array<double, 4> u = direction(vectors + 3 * e);
        polynomials(u, config_.l_max - 1, p);
        const T* cotangent = cotangents + e * config_.dim();
        std::array<double, 3> g{};
        for (int l = 1; l <= config_.l_max; ++l) {
          for (const Term& t : degrees_[l]) g[t.axis] += l * scale_[l] * cotangent[t.out] * t.value * p[t.in];
        }
        if (config_.normalize) {  // only what is across the vector turns its direction
          const double along = g[0] * u[0] + g[1] * u[1] + g[2] * u[2], length = u[3];
          for (int k = 0; k < 3; ++k) g[k] = length > kShortest ? (g[k] - along * u[k]) / length : 0.0;
        }
        for (int k = 0; k < 3; ++k) out[3 * e + k] = static_cast<T>(g[k]);
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
