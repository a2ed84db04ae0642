#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fastpath/sdk/ops.hpp"
#include "fastpath/types.hpp"

namespace fastpath::models {

/// The block classes of operators.md 3.2 that are supported.
struct InteractionKind {
  bool residual = false;  ///< Skip connection from the features; otherwise a species linear on the message.
  bool density = false;   ///< Message divided by the local density + 1; otherwise by avg_num_neighbors.
};
/// @throws Error(bad_file) naming the class and the supported ones.
InteractionKind interaction_kind(const std::string& class_name);

/// config.json of a MACE model (docs/model-format.md).
struct MaceConfig {
  DType dtype = DType::float64;
  std::vector<std::int32_t> atomic_numbers;
  double r_max = 0;
  std::int64_t num_bessel = 8;
  int polynomial_cutoff_p = 5;
  sdk::DistanceTransform distance_transform = sdk::DistanceTransform::none;
  bool apply_cutoff = true;
  bool pair_repulsion = false;
  std::vector<std::int64_t> radial_mlp = {64, 64, 64};
  int l_max = 3;
  sdk::Irreps hidden;
  std::int64_t num_interactions = 2;
  std::vector<int> correlation;  ///< Per layer.
  std::string interaction_first, interaction;
  sdk::Irreps mlp;
  std::string gate = "silu";
  double activation_constant = 1.6791767923989418;
  std::vector<double> avg_num_neighbors;  ///< Per layer.
  std::vector<std::string> heads = {"default"};
  bool reduced_cg = false;
  bool keep_last_layer_irreps = false;
  std::vector<sdk::ConvTensorProductConfig> convolutions;  ///< Per layer; derived where the file has none.

  std::int64_t channels() const { return hidden.count({0, 1}); }
  std::int64_t n_species() const { return static_cast<std::int64_t>(atomic_numbers.size()); }
  /// Irreps of the features that layer t reads, and writes.
  sdk::Irreps irreps_in(std::int64_t t) const;
  sdk::Irreps irreps_out(std::int64_t t) const;
  /// Irreps of messages: channels x (0..l_max).
  sdk::Irreps message() const { return sdk::Irreps::natural(channels(), l_max); }
  const std::string& block(std::int64_t t) const { return t == 0 ? interaction_first : interaction; }
  /// A lower bound of the number of parameters, as a double because it may be beyond any integer.
  double fewest_parameters() const;

  /// Reads and checks everything. @param name  Stands for the file in messages.
  /// @throws Error(bad_file) listing every unknown key, missing key, wrong type and inconsistent value.
  static MaceConfig parse(const std::string& text, const std::string& name);
  /// A config.json that parse() reads back to the same.
  std::string text() const;
};

/// The instruction list of MACE for features `in`, harmonics up to l_max, output irreps in `target` (operators.md 2.7).
sdk::ConvTensorProductConfig mace_convolution(const sdk::Irreps& in, int l_max, const sdk::Irreps& target);

}  // namespace fastpath::models
