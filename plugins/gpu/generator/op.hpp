#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fastpath/sdk/attributes.hpp"
#include "fastpath/sdk/kernel.hpp"
#include "fastpath/sdk/ops.hpp"
#include "program.hpp"
#include "source.hpp"
#include "target.hpp"

namespace fastpath_gpu {

/// The kernels of one op configuration. generate() comes first; plans belong to the program that it returned last.
class Op {
 public:
  explicit Op(sdk::Signature signature) : signature_(std::move(signature)) {}
  virtual ~Op() = default;
  const sdk::Signature& signature() const { return signature_; }

  /// Parameters whose values go into the source: the runtime copies them to the host at each bind and generates anew
  /// when one has changed.
  virtual std::vector<std::size_t> constants() const { return {}; }
  /// Values of constants(), each an array of the dtype, before generate().
  virtual void set_constants(const std::vector<std::vector<double>>& values) { static_cast<void>(values); }

  /// Source for the passes, FP_PASS_* bits (forward and backward).
  virtual Program generate(const Target& target, sdk::DType dtype, std::uint32_t passes) = 0;
  /// Launches that turn newly bound parameters into Program::owned.
  virtual void plan_bind(Plan& plan) const { static_cast<void>(plan); }
  /// Launches of a call. Scratch memory may depend on sizes and pass alone, so that it can be asked for beforehand.
  virtual void plan(const Call& call, Plan& plan) const = 0;

 private:
  sdk::Signature signature_;
};

/// An op that a fused op may contain: its kernels go into a source of which they are one part.
class PartOp : public Op {
 public:
  using Op::Op;
  Program generate(const Target& target, sdk::DType dtype, std::uint32_t passes) final {
    Source source(target, dtype);
    write(source, passes);
    Program program = source.finish();
    add_tables(program);
    return program;
  }
  /// Writes the kernels of the passes. @throws Refused if the target cannot run them.
  virtual void write(Source& s, std::uint32_t passes) = 0;
  /// Of Role::table; a program has them from one part at most.
  virtual void add_tables(Program& program) const { static_cast<void>(program); }
};
std::unique_ptr<PartOp> spherical_harmonics_part(const sdk::SphericalHarmonicsConfig& config);
/// Its bessel_weights are constants.
std::unique_ptr<PartOp> radial_basis_part(const sdk::RadialBasisConfig& config);
/// Its source has fp_silu(z), with the constant of the activation, and fp_silu_slope(z).
std::unique_ptr<PartOp> radial_mlp_part(const sdk::RadialMlpConfig& config);

/// One op of the generator: its name, how a configuration is judged, and how its kernels are made.
struct OpFactory {
  std::string_view id;
  std::int32_t version;
  /// Adds a blocker for everything that cannot be generated. @throws ConfigError for a malformed configuration.
  void (*check)(const sdk::Attributes& config, sdk::KernelAnswer& answer);
  std::unique_ptr<Op> (*create)(const sdk::Attributes& config);
};
OpFactory spherical_harmonics();
OpFactory radial_basis();
OpFactory radial_mlp();
OpFactory irreps_linear();
OpFactory species_linear();
OpFactory conv_tensor_product();
OpFactory message_step();
OpFactory symmetric_contraction();
OpFactory regroup_channels();
OpFactory sum();
OpFactory scaled_silu();

/// All of them.
const std::vector<OpFactory>& all_ops();

/// Highest degree l of irreps that kernels are generated for.
inline constexpr int kMaxDegree = 6;
inline void check_degree(const char* what, int l, sdk::KernelAnswer& answer) {
  if (l > kMaxDegree) {
    answer.blocked(sdk::Reason::degree,
                   std::string(what) + " " + std::to_string(l) + ", at most " + std::to_string(kMaxDegree));
  }
}
/// The Op class K of a configuration of class Config.
template <class K, class Config>
std::unique_ptr<Op> create(const sdk::Attributes& config) {
  return std::make_unique<K>(Config::from(config));
}

}  // namespace fastpath_gpu
