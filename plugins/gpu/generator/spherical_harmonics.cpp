#include <cmath>
#include <numbers>

#include "fastpath/sdk/check.hpp"
#include "fastpath/sdk/coupling.hpp"
#include "op.hpp"

namespace fastpath_gpu {
namespace {

/// One work-item an edge. Degree l from degree l - 1 (operators.md 2.2, S1 and S2), written out term by term.
class SphericalHarmonics final : public PartOp {
 public:
  explicit SphericalHarmonics(const sdk::SphericalHarmonicsConfig& config)
      : PartOp(config.signature()), config_(config) {}

  void write(Source& s, std::uint32_t passes) override {
    if ((passes & FP_PASS_FORWARD) != 0) forward(s);
    if ((passes & FP_PASS_BACKWARD) != 0) backward(s);
  }
  void plan(const Call& call, Plan& plan) const override {
    if (call.pass == sdk::Pass::forward) {
      plan.launch_items("spherical_harmonics_forward", call.n_edges,
                        {Buffer{Role::input, 0}, Buffer{Role::output, 0}, call.n_edges});
    } else if (call.grad_inputs[0]) {
      plan.launch_items(
          "spherical_harmonics_backward", call.n_edges,
          {Buffer{Role::input, 0}, Buffer{Role::grad_output, 0}, Buffer{Role::grad_input, 0}, call.n_edges});
    }
  }

 private:
  double scale(int l) const {
    switch (config_.normalization) {
      case sdk::Normalization::norm:
        return 1.0 / std::sqrt(2.0 * l + 1.0);
      case sdk::Normalization::integral:
        return 0.5 * std::numbers::inv_sqrtpi;
      case sdk::Normalization::component:
        break;
    }
    return 1.0;
  }
  /// u0, u1, u2: the argument of the polynomials; `length` if it was normalised.
  void direction(Source& s) const {
    if (!config_.normalize) {
      s.line("const real u0 = vectors[3 * e], u1 = vectors[3 * e + 1], u2 = vectors[3 * e + 2];");
      return;
    }
    // Scaled by its largest component, so that the squares neither overflow nor vanish.
    s.line("const real v0 = vectors[3 * e], v1 = vectors[3 * e + 1], v2 = vectors[3 * e + 2];");
    s.line("const real largest = fp_max(fp_max(fp_abs(v0), fp_abs(v1)), fp_abs(v2));");
    s.line("const real unit = largest > ", s.real(0.0), " ? largest : ", s.real(1.0), ";");
    s.line("const real t0 = v0 / unit, t1 = v1 / unit, t2 = v2 / unit;");
    s.line("const real length = unit * fp_sqrt(t0 * t0 + t1 * t1 + t2 * t2);");
    s.line("const real divisor = length < ", s.real(1e-12), " ? ", s.real(1e-12), " : length;");
    s.line("const real u0 = v0 / divisor, u1 = v1 / divisor, u2 = v2 / divisor;");
  }
  /// p0, p1, ..: the polynomials of degree up to l_max.
  void polynomials(Source& s, int l_max) const {
    s.line("const real p0 = ", s.real(1.0), ";");
    for (int l = 1; l <= l_max; ++l) {
      std::vector<std::string> sums(static_cast<std::size_t>(2 * l + 1));
      for (const auto& [i, j, k, value] : sdk::coupling(l, l - 1, 1).nonzero) {
        std::string& sum = sums[static_cast<std::size_t>(i)];
        sum += (sum.empty() ? "" : " + ") + s.real(value * (2 * l + 1) / std::sqrt(static_cast<double>(l))) + " * p" +
               std::to_string((l - 1) * (l - 1) + j) + " * u" + std::to_string(k);
      }
      for (int i = 0; i <= 2 * l; ++i) {
        s.line("const real p", l * l + i, " = ", sums[static_cast<std::size_t>(i)], ";");
      }
    }
  }

  void forward(Source& s) const {
    s.begin_kernel("spherical_harmonics_forward", kGroup,
                   {Source::in("vectors"), Source::out("sh"), Source::integer("n_edges")});
    s.item("e", "n_edges");
    direction(s);
    polynomials(s, config_.l_max);
    for (int l = 0; l <= config_.l_max; ++l) {
      for (int c = l * l; c < (l + 1) * (l + 1); ++c) {
        s.line("sh[e * ", config_.dim(), " + ", c, "] = ", s.real(scale(l)), " * p", c, ";");
      }
    }
    s.end_kernel();
  }
  void backward(Source& s) const {
    s.begin_kernel(
        "spherical_harmonics_backward", kGroup,
        {Source::in("vectors"), Source::in("grad_sh"), Source::out("grad_vectors"), Source::integer("n_edges")});
    s.item("e", "n_edges");
    direction(s);
    polynomials(s, config_.l_max - 1);
    s.line("real g0 = ", s.real(0.0), ", g1 = ", s.real(0.0), ", g2 = ", s.real(0.0), ";");
    for (int l = 1; l <= config_.l_max; ++l) {
      const double factor = scale(l) * (2 * l + 1) * std::sqrt(static_cast<double>(l));
      for (int i = 0; i <= 2 * l; ++i) {
        s.line("const real c", l * l + i, " = grad_sh[e * ", config_.dim(), " + ", l * l + i, "];");
      }
      for (const auto& [i, j, k, value] : sdk::coupling(l, l - 1, 1).nonzero) {
        s.line("g", k, " += ", s.real(factor * value), " * c", l * l + i, " * p", (l - 1) * (l - 1) + j, ";");
      }
    }
    if (config_.normalize) {  // only what is across the vector turns its direction
      s.line("const real along = g0 * u0 + g1 * u1 + g2 * u2;");
      for (int k = 0; k < 3; ++k) {
        s.line("grad_vectors[3 * e + ", k, "] = length <= ", s.real(1e-12), " ? ", s.real(0.0), " : (g", k,
               " - along * u", k, ") / length;");
      }
    } else {
      for (int k = 0; k < 3; ++k) s.line("grad_vectors[3 * e + ", k, "] = g", k, ";");
    }
    s.end_kernel();
  }

  static constexpr std::uint32_t kGroup = 64;
  sdk::SphericalHarmonicsConfig config_;
};

}  // namespace

std::unique_ptr<PartOp> spherical_harmonics_part(const sdk::SphericalHarmonicsConfig& config) {
  return std::make_unique<SphericalHarmonics>(config);
}

OpFactory spherical_harmonics() {
  using Config = sdk::SphericalHarmonicsConfig;
  return {Config::kOp, Config::kVersion,
          [](const sdk::Attributes& config, sdk::KernelAnswer& answer) {
            check_degree("l_max", sdk::known_config<Config>(config).l_max, answer);
          },
          create<SphericalHarmonics, Config>};
}

}  // namespace fastpath_gpu
