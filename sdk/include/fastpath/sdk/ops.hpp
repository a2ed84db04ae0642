#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fastpath/sdk/attributes.hpp"
#include "fastpath/sdk/irreps.hpp"

/// The schema of every op that fastpath itself defines: id, version, typed configuration, arguments. It stands once,
/// here; the host, plugins and tests read it from this header.
namespace fastpath::sdk {

/// What the leading axis of an argument counts.
enum class Axis {
  edges,      ///< n_edges rows
  nodes,      ///< n_nodes rows: senders, ghosts included
  receivers,  ///< n_receivers rows: the first n_receivers nodes
  rows,       ///< any number of rows, equal in all arguments with this axis
  none,       ///< no leading axis: the shape is `trailing`
};

/// One named argument of an op.
struct Argument {
  std::string name;
  Axis axis = Axis::none;
  std::vector<std::int64_t> trailing = {};  ///< Sizes after the leading axis.
  bool real = true;                         ///< In the dtype of the evaluation; otherwise int32.
  bool differentiable = true;               ///< Has a gradient. False for indices and constant buffers.
  bool optional = false;                    ///< May be absent.
};

/// Inputs vary per call, parameters (and constant buffers) are bound to a kernel with a version.
struct Signature {
  std::vector<Argument> inputs;
  std::vector<Argument> parameters;
  std::vector<Argument> outputs;
  bool needs_graph = false;
};

enum class Normalization { component, norm, integral };
enum class DistanceTransform { none, agnesi, soft };
/// What the fan-in of a path counts: all channels into its output block, or its own times the paths into the block.
enum class PathNormalization { element, path };

/// Y(v), operators.md 2.2. inputs: vectors [E,3]. outputs: sh [E,(l_max+1)^2], blocks l = 0..l_max.
struct SphericalHarmonicsConfig {
  static constexpr std::string_view kOp = "spherical_harmonics";
  static constexpr std::int32_t kVersion = 1;
  int l_max = 0;
  bool normalize = true;  ///< Argument scaled to unit length first.
  Normalization normalization = Normalization::component;

  std::int64_t dim() const { return std::int64_t{l_max + 1} * (l_max + 1); }
  Attributes attributes() const;
  static SphericalHarmonicsConfig from(const Attributes& attributes);
  Signature signature() const;
};

/// Bessel functions of the (transformed) distance times the polynomial envelope of the distance, operators.md 2.3.
/// inputs: lengths [E], species [nodes] (int32, read only if there is a transform). parameters: bessel_weights
/// [n_basis]. outputs: embedding [E, n_basis], envelope [E] (optional). With apply_cutoff the embedding already
/// contains the envelope. In float32 the sine of w_n r loses what w_n has lost, the same for all edges, so a sum over
/// many of them keeps the error: a kernel uses `frequencies` where they are given, and bessel_weights only without
/// them.
struct RadialBasisConfig {
  static constexpr std::string_view kOp = "radial_basis";
  static constexpr std::int32_t kVersion = 1;
  std::int64_t n_basis = 8;
  double r_max = 0;
  double prefactor = 0;  ///< sqrt(2 / r_max) in MACE, 2 / r_max in NequIP.
  int p = 5;             ///< Degree of the envelope.
  bool apply_cutoff = true;
  DistanceTransform transform = DistanceTransform::none;
  double a = 1.0805, q_exponent = 0.9183, p_exponent = 4.5791;  ///< Agnesi: a, q, p.
  double alpha = 4.0;                                           ///< Soft: steepness, times the width of the step.
  std::vector<double> species_radii;  ///< Covalent radius per species index, angstrom; for a transform.
  std::vector<double> frequencies;    ///< bessel_weights before they were rounded to the dtype, 1/angstrom; or empty.

  Attributes attributes() const;
  static RadialBasisConfig from(const Attributes& attributes);
  Signature signature() const;
};

/// Fully connected net without bias, operators.md 2.4: h <- act(scale_i * h W_i), last layer linear.
/// inputs: x [rows, widths.front()]. parameters: w0.. [widths[i], widths[i+1]]. outputs: y [rows, widths.back()].
/// The activation is constant * SiLU.
struct RadialMlpConfig {
  static constexpr std::string_view kOp = "radial_mlp";
  static constexpr std::int32_t kVersion = 1;
  std::vector<std::int64_t> widths;  ///< Input, hidden.., output.
  std::vector<double> scales;        ///< One per layer; 1/sqrt(input width) in MACE.
  double activation_constant = 1.6791767923989418;

  std::size_t n_layers() const { return scales.size(); }
  Attributes attributes() const;
  static RadialMlpConfig from(const Attributes& attributes);
  Signature signature() const;
};

/// Mixes channels of equal irreps, operators.md 2.5. inputs: x [rows, in.dim()]. parameters: weight [numel], bias
/// [n_scalars] (optional: absent unless `bias`). outputs: y [rows, out.dim()], each path scaled by 1/sqrt(fan-in) and
/// by `scale`.
struct IrrepsLinearConfig {
  static constexpr std::string_view kOp = "irreps_linear";
  static constexpr std::int32_t kVersion = 1;
  Irreps in, out;
  bool bias = false;   ///< Adds a bias to 0e outputs, concatenated in block order.
  double scale = 1.0;  ///< Extra factor on the weighted sum, e.g. 1/avg_num_neighbors; not on the bias.
  PathNormalization normalization = PathNormalization::element;

  struct Path {
    std::size_t in, out;         ///< Blocks.
    std::int64_t weight_offset;  ///< Of the (mul_in, mul_out) row-major matrix.
    double factor;               ///< scale / sqrt(fan-in).
  };
  std::vector<Path> paths() const;
  std::int64_t weight_numel() const;
  std::int64_t bias_numel() const;
  Attributes attributes() const;
  static IrrepsLinearConfig from(const Attributes& attributes);
  Signature signature() const;
};

/// Irreps linear with a matrix per species, operators.md 2.6. inputs: x [rows, in.dim()], species [rows] int32.
/// parameters: weight [numel], per path (mul_in, n_species, mul_out) row-major. outputs: y [rows, out.dim()].
/// The factor of a path is 1/sqrt(sum of mul_in * n_species into the block).
struct SpeciesLinearConfig {
  static constexpr std::string_view kOp = "species_linear";
  static constexpr std::int32_t kVersion = 1;
  Irreps in, out;
  std::int64_t n_species = 1;

  std::vector<IrrepsLinearConfig::Path> paths() const;  ///< weight_offset counts n_species matrices per path.
  std::int64_t weight_numel() const;
  Attributes attributes() const;
  static SpeciesLinearConfig from(const Attributes& attributes);
  Signature signature() const;
};

/// Gather by sender, "uvu" tensor product with edge attributes, scatter by receiver, operators.md 2.7.
/// inputs: x [nodes, in.dim()], y [E, edge.dim()], w [E, weight_numel]. outputs: out [receivers, out.dim()].
/// Edge blocks have multiplicity 1. Weights of an edge: instruction order, then channel.
/// out[n, block out, u, k] += factor * w[e, offset + u] * sum_ij C(l1,l2,l3)[i,j,k] x[s(e), u, i] y[e, j].
struct ConvTensorProductConfig {
  static constexpr std::string_view kOp = "conv_tensor_product";
  static constexpr std::int32_t kVersion = 1;
  struct Instruction {
    std::size_t in, edge, out;  ///< Blocks. Several instructions may share an output block.
    double factor;              ///< sqrt(2 l3 + 1) for MACE; contains every normalisation.
  };
  Irreps in, edge, out;
  std::vector<Instruction> instructions;

  std::int64_t weight_numel() const;
  Attributes attributes() const;
  /// @throws ConfigError if a block index is out of range, multiplicities differ, or irreps cannot couple.
  static ConvTensorProductConfig from(const Attributes& attributes);
  void check() const;
  Signature signature() const;
};

/// A whole message step without weights or messages of edges, operators.md 2.2 to 2.4 and 2.7: spherical harmonics of
/// the edge vectors, radial basis and radial net of the lengths (weights times the envelope unless the basis contains
/// it), tensor product with the sender's features, sum by receiver. inputs: x [nodes, conv.in.dim()], vectors [E, 3]
/// (not normalised; for the harmonics alone), lengths [E] (for the radial part alone: a host that knows them better
/// than the rounded vectors do says so, and adds the two gradients), species [nodes] (int32, read only if there is a
/// transform). parameters: bessel_weights [n_basis] (constant; see RadialBasisConfig), w0.. [widths[i], widths[i+1]].
/// outputs: out [receivers, conv.out.dim()]. The reference is the four ops one after the other.
struct MessageStepConfig {
  static constexpr std::string_view kOp = "message_step";
  static constexpr std::int32_t kVersion = 1;
  SphericalHarmonicsConfig harmonics;
  RadialBasisConfig radial;
  RadialMlpConfig mlp;  ///< From radial.n_basis to conv.weight_numel().
  ConvTensorProductConfig conv;

  /// Attributes of the parts, each name with "harmonics.", "radial.", "mlp." or "conv." in front.
  Attributes attributes() const;
  /// @throws ConfigError if a part is malformed or the parts do not fit together.
  static MessageStepConfig from(const Attributes& attributes);
  void check() const;
  Signature signature() const;
};

/// Symmetric contraction, operators.md 2.8. inputs: x [rows, channels, dim], species [rows] int32.
/// parameters, per target then per nu = 1..correlation: u_T_nu (constant, [2L+1 unless L = 0, dim^nu.., K]) and
/// w_T_nu [n_species, K, channels]. outputs: out [rows, channels * sum(2L+1)], mul_ir blocks per target.
struct SymmetricContractionConfig {
  static constexpr std::string_view kOp = "symmetric_contraction";
  static constexpr std::int32_t kVersion = 1;
  std::int64_t channels = 1;
  std::int64_t dim = 1;  ///< Components of x per channel: (l_max+1)^2.
  int correlation = 1;
  std::int64_t n_species = 1;
  std::vector<int> targets;                        ///< Degree L of each target.
  std::vector<std::vector<std::int64_t>> n_paths;  ///< K per target, per nu-1.

  std::int64_t out_dim() const;
  /// Position of u / w of (target, nu) in the parameter list.
  std::size_t u_index(std::size_t target, int nu) const;
  std::size_t w_index(std::size_t target, int nu) const { return u_index(target, nu) + 1; }
  Attributes attributes() const;
  static SymmetricContractionConfig from(const Attributes& attributes);
  Signature signature() const;
};

/// Regroups the channels of blocks, operators.md 2.8: inputs: x [rows, channels * (l_max+1)^2], mul_ir blocks
/// channels x (l = 0..l_max). outputs: y [rows, channels, (l_max+1)^2].
struct RegroupChannelsConfig {
  static constexpr std::string_view kOp = "regroup_channels";
  static constexpr std::int32_t kVersion = 1;
  std::int64_t channels = 1;
  int l_max = 0;

  std::int64_t dim() const { return std::int64_t{l_max + 1} * (l_max + 1); }
  Attributes attributes() const;
  static RegroupChannelsConfig from(const Attributes& attributes);
  Signature signature() const;
};

/// inputs: x0.. [rows, width], n_inputs of them. outputs: y [rows, width], their sum in this order.
struct SumConfig {
  static constexpr std::string_view kOp = "sum";
  static constexpr std::int32_t kVersion = 1;
  std::int64_t n_inputs = 2, width = 1;

  Attributes attributes() const;
  static SumConfig from(const Attributes& attributes);
  Signature signature() const;
};

/// inputs: x [rows, width]. outputs: y [rows, width] = constant * SiLU(x).
struct ScaledSiluConfig {
  static constexpr std::string_view kOp = "scaled_silu";
  static constexpr std::int32_t kVersion = 1;
  std::int64_t width = 1;
  double constant = 1.6791767923989418;

  Attributes attributes() const;
  static ScaledSiluConfig from(const Attributes& attributes);
  Signature signature() const;
};

/// The signature of an op that fastpath defines, or nothing for an op it does not know (a host's own).
/// @throws ConfigError if the configuration is malformed.
std::optional<Signature> signature_of(std::string_view op, std::int32_t version, const Attributes& attributes);

// ---------------------------------------------------------------------------------------------------------------------

namespace detail {
inline void require(bool condition, const std::string& text) {
  if (!condition) throw ConfigError(text);
}
inline int small(const Attributes& a, std::string_view name, std::int64_t low, std::int64_t high) {
  const std::int64_t value = a.integer(name);
  require(value >= low && value <= high, "attribute '" + std::string(name) + "' is " + std::to_string(value) +
                                             ", expected " + std::to_string(low) + ".." + std::to_string(high));
  return static_cast<int>(value);
}
inline std::vector<IrrepsLinearConfig::Path> linear_paths(
    const Irreps& in, const Irreps& out, std::int64_t n_species, double scale,
    PathNormalization normalization = PathNormalization::element) {
  std::vector<std::int64_t> fan(out.size(), 0), count(out.size(), 0);
  std::vector<IrrepsLinearConfig::Path> paths;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < in.size(); ++i) {
    for (std::size_t o = 0; o < out.size(); ++o) {
      if (!(in[i].ir == out[o].ir) || in[i].mul == 0 || out[o].mul == 0) continue;
      paths.push_back({i, o, offset, 0.0});
      offset += in[i].mul * n_species * out[o].mul;
      fan[o] += in[i].mul * n_species;
      ++count[o];
    }
  }
  for (IrrepsLinearConfig::Path& path : paths) {
    const bool per_path = normalization == PathNormalization::path;
    const std::int64_t elements = per_path ? in[path.in].mul * n_species * count[path.out] : fan[path.out];
    path.factor = scale / std::sqrt(static_cast<double>(elements));
  }
  return paths;
}
}  // namespace detail

inline Attributes SphericalHarmonicsConfig::attributes() const {
  Attributes a;
  a.set("l_max", Attributes::Integers{l_max}).set("normalize", Attributes::Integers{normalize ? 1 : 0});
  constexpr std::array<const char*, 3> kNames{"component", "norm", "integral"};
  a.set("normalization", std::string(kNames[static_cast<std::size_t>(normalization)]));
  return a;
}
inline SphericalHarmonicsConfig SphericalHarmonicsConfig::from(const Attributes& a) {
  SphericalHarmonicsConfig config;
  config.l_max = detail::small(a, "l_max", 0, 64);
  config.normalize = detail::small(a, "normalize", 0, 1) == 1;
  const std::string& name = a.text("normalization");
  detail::require(name == "component" || name == "norm" || name == "integral",
                  "normalization '" + name + "', expected component, norm or integral");
  config.normalization = name == "component" ? Normalization::component
                         : name == "norm"    ? Normalization::norm
                                             : Normalization::integral;
  return config;
}
inline Signature SphericalHarmonicsConfig::signature() const {
  return {{{.name = "vectors", .axis = Axis::edges, .trailing = {3}}},
          {},
          {{.name = "sh", .axis = Axis::edges, .trailing = {dim()}}},
          false};
}

inline Attributes RadialBasisConfig::attributes() const {
  constexpr std::array<const char*, 3> kNames{"none", "agnesi", "soft"};
  Attributes result;
  result.set("n_basis", Attributes::Integers{n_basis}).set("r_max", Attributes::Reals{r_max});
  result.set("prefactor", Attributes::Reals{prefactor}).set("p", Attributes::Integers{p});
  result.set("apply_cutoff", Attributes::Integers{apply_cutoff ? 1 : 0});
  result.set("transform", std::string(kNames[static_cast<std::size_t>(transform)]));
  if (transform == DistanceTransform::agnesi) {
    result.set("transform_constants", Attributes::Reals{a, q_exponent, p_exponent});
  } else if (transform == DistanceTransform::soft) {
    result.set("transform_constants", Attributes::Reals{alpha});
  }
  if (transform != DistanceTransform::none) result.set("species_radii", species_radii);
  if (!frequencies.empty()) result.set("frequencies", frequencies);
  return result;
}
inline RadialBasisConfig RadialBasisConfig::from(const Attributes& attributes) {
  RadialBasisConfig config;
  config.n_basis = detail::small(attributes, "n_basis", 1, 4096);
  config.r_max = attributes.real("r_max");
  config.prefactor = attributes.real("prefactor");
  config.p = detail::small(attributes, "p", 2, 64);
  config.apply_cutoff = detail::small(attributes, "apply_cutoff", 0, 1) == 1;
  const std::string& name = attributes.text("transform");
  detail::require(name == "none" || name == "agnesi" || name == "soft",
                  "transform '" + name + "', expected none, agnesi or soft");
  detail::require(config.r_max > 0, "attribute 'r_max' is not positive");
  if (name != "none") {
    config.transform = name == "agnesi" ? DistanceTransform::agnesi : DistanceTransform::soft;
    config.species_radii = attributes.reals("species_radii");
    detail::require(!config.species_radii.empty(), "attribute 'species_radii' is empty");
  }
  if (name == "agnesi") {
    const Attributes::Reals& constants = attributes.reals("transform_constants");
    detail::require(constants.size() == 3, "attribute 'transform_constants' does not hold a, q, p");
    config.a = constants[0];
    config.q_exponent = constants[1];
    config.p_exponent = constants[2];
  } else if (name == "soft") {
    const Attributes::Reals& constants = attributes.reals("transform_constants");
    detail::require(constants.size() == 1, "attribute 'transform_constants' does not hold alpha");
    config.alpha = constants[0];
  }
  if (attributes.has("frequencies")) {
    config.frequencies = attributes.reals("frequencies");
    detail::require(config.frequencies.size() == static_cast<std::size_t>(config.n_basis),
                    "attribute 'frequencies' holds " + std::to_string(config.frequencies.size()) +
                        " values, expected " + std::to_string(config.n_basis));
  }
  return config;
}
inline Signature RadialBasisConfig::signature() const {
  return {{{.name = "lengths", .axis = Axis::edges},
           {.name = "species",
            .axis = Axis::nodes,
            .real = false,
            .differentiable = false,
            .optional = transform == DistanceTransform::none}},
          {{.name = "bessel_weights", .trailing = {n_basis}}},
          {{.name = "embedding", .axis = Axis::edges, .trailing = {n_basis}},
           {.name = "envelope", .axis = Axis::edges, .optional = true}},
          transform != DistanceTransform::none};
}

inline Attributes RadialMlpConfig::attributes() const {
  Attributes a;
  a.set("widths", widths).set("scales", scales).set("activation", std::string("silu"));
  a.set("activation_constant", Attributes::Reals{activation_constant});
  return a;
}
inline RadialMlpConfig RadialMlpConfig::from(const Attributes& a) {
  RadialMlpConfig config;
  config.widths = a.integers("widths");
  config.scales = a.reals("scales");
  detail::require(config.widths.size() >= 2 && config.scales.size() + 1 == config.widths.size(),
                  "radial_mlp: " + std::to_string(config.widths.size()) + " widths and " +
                      std::to_string(config.scales.size()) + " scales, expected one scale per layer");
  for (const std::int64_t width : config.widths) detail::require(width > 0, "radial_mlp: a width is not positive");
  detail::require(a.text("activation") == "silu", "activation '" + a.text("activation") + "', expected silu");
  config.activation_constant = a.real("activation_constant");
  return config;
}
inline Signature RadialMlpConfig::signature() const {
  Signature signature{{{.name = "x", .axis = Axis::rows, .trailing = {widths.front()}}},
                      {},
                      {{.name = "y", .axis = Axis::rows, .trailing = {widths.back()}}},
                      false};
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    signature.parameters.push_back({.name = "w" + std::to_string(i), .trailing = {widths[i], widths[i + 1]}});
  }
  return signature;
}

inline std::vector<IrrepsLinearConfig::Path> IrrepsLinearConfig::paths() const {
  return detail::linear_paths(in, out, 1, scale, normalization);
}
inline std::int64_t IrrepsLinearConfig::weight_numel() const {
  std::int64_t total = 0;
  for (const Path& path : paths()) total += in[path.in].mul * out[path.out].mul;
  return total;
}
inline std::int64_t IrrepsLinearConfig::bias_numel() const { return bias ? out.count({0, 1}) : 0; }
inline Attributes IrrepsLinearConfig::attributes() const {
  Attributes a;
  a.set("irreps_in", in.text()).set("irreps_out", out.text());
  a.set("bias", Attributes::Integers{bias ? 1 : 0}).set("scale", Attributes::Reals{scale});
  a.set("path_normalization", std::string(normalization == PathNormalization::path ? "path" : "element"));
  return a;
}
inline IrrepsLinearConfig IrrepsLinearConfig::from(const Attributes& a) {
  const std::string& name = a.text("path_normalization");
  detail::require(name == "element" || name == "path", "path_normalization '" + name + "', expected element or path");
  return {Irreps::parse(a.text("irreps_in")), Irreps::parse(a.text("irreps_out")), detail::small(a, "bias", 0, 1) == 1,
          a.real("scale"), name == "path" ? PathNormalization::path : PathNormalization::element};
}
inline Signature IrrepsLinearConfig::signature() const {
  return {{{.name = "x", .axis = Axis::rows, .trailing = {in.dim()}}},
          {{.name = "weight", .trailing = {weight_numel()}},
           {.name = "bias", .trailing = {bias_numel()}, .optional = !bias}},
          {{.name = "y", .axis = Axis::rows, .trailing = {out.dim()}}},
          false};
}

inline std::vector<IrrepsLinearConfig::Path> SpeciesLinearConfig::paths() const {
  return detail::linear_paths(in, out, n_species, 1.0);
}
inline std::int64_t SpeciesLinearConfig::weight_numel() const {
  std::int64_t total = 0;
  for (const IrrepsLinearConfig::Path& path : paths()) total += in[path.in].mul * n_species * out[path.out].mul;
  return total;
}
inline Attributes SpeciesLinearConfig::attributes() const {
  Attributes a;
  a.set("irreps_in", in.text()).set("irreps_out", out.text()).set("n_species", Attributes::Integers{n_species});
  return a;
}
inline SpeciesLinearConfig SpeciesLinearConfig::from(const Attributes& a) {
  return {Irreps::parse(a.text("irreps_in")), Irreps::parse(a.text("irreps_out")),
          detail::small(a, "n_species", 1, 1 << 20)};
}
inline Signature SpeciesLinearConfig::signature() const {
  return {{{.name = "x", .axis = Axis::rows, .trailing = {in.dim()}},
           {.name = "species", .axis = Axis::rows, .real = false, .differentiable = false}},
          {{.name = "weight", .trailing = {weight_numel()}}},
          {{.name = "y", .axis = Axis::rows, .trailing = {out.dim()}}},
          false};
}

inline std::int64_t ConvTensorProductConfig::weight_numel() const {
  std::int64_t total = 0;
  for (const Instruction& instruction : instructions) total += in[instruction.in].mul;
  return total;
}
inline void ConvTensorProductConfig::check() const {
  for (std::size_t p = 0; p < instructions.size(); ++p) {
    const Instruction& path = instructions[p];
    const std::string where = "instruction " + std::to_string(p) + " of conv_tensor_product: ";
    detail::require(path.in < in.size() && path.edge < edge.size() && path.out < out.size(),
                    where + "a block index is out of range");
    const auto [a, b, c] = std::array{in[path.in], edge[path.edge], out[path.out]};
    detail::require(b.mul == 1, where + "edge block has multiplicity " + std::to_string(b.mul) + ", expected 1");
    detail::require(a.mul == c.mul, where + "multiplicity " + std::to_string(a.mul) + " into a block of multiplicity " +
                                        std::to_string(c.mul));
    detail::require(
        c.ir.l >= std::abs(a.ir.l - b.ir.l) && c.ir.l <= a.ir.l + b.ir.l && c.ir.parity == a.ir.parity * b.ir.parity,
        where + a.ir.text() + " and " + b.ir.text() + " do not couple to " + c.ir.text());
  }
}
inline Attributes ConvTensorProductConfig::attributes() const {
  Attributes::Integers blocks;
  Attributes::Reals factors;
  for (const Instruction& path : instructions) {
    for (const std::size_t block : {path.in, path.edge, path.out}) blocks.push_back(static_cast<std::int64_t>(block));
    factors.push_back(path.factor);
  }
  Attributes a;
  a.set("irreps_in", in.text()).set("irreps_edge", edge.text()).set("irreps_out", out.text());
  a.set("instructions", std::move(blocks)).set("path_factors", std::move(factors));
  return a;
}
inline ConvTensorProductConfig ConvTensorProductConfig::from(const Attributes& a) {
  ConvTensorProductConfig config{Irreps::parse(a.text("irreps_in")),
                                 Irreps::parse(a.text("irreps_edge")),
                                 Irreps::parse(a.text("irreps_out")),
                                 {}};
  const Attributes::Integers& blocks = a.integers("instructions");
  const Attributes::Reals& factors = a.reals("path_factors");
  detail::require(blocks.size() == 3 * factors.size(), "conv_tensor_product: " + std::to_string(blocks.size()) +
                                                           " block indices for " + std::to_string(factors.size()) +
                                                           " paths");
  for (std::size_t p = 0; p < factors.size(); ++p) {
    for (std::size_t i = 0; i < 3; ++i)
      detail::require(blocks[3 * p + i] >= 0, "conv_tensor_product: negative block index");
    config.instructions.push_back({static_cast<std::size_t>(blocks[3 * p]), static_cast<std::size_t>(blocks[3 * p + 1]),
                                   static_cast<std::size_t>(blocks[3 * p + 2]), factors[p]});
  }
  config.check();
  return config;
}
inline Signature ConvTensorProductConfig::signature() const {
  return {{{.name = "x", .axis = Axis::nodes, .trailing = {in.dim()}},
           {.name = "y", .axis = Axis::edges, .trailing = {edge.dim()}},
           {.name = "w", .axis = Axis::edges, .trailing = {weight_numel()}}},
          {},
          {{.name = "out", .axis = Axis::receivers, .trailing = {out.dim()}}},
          true};
}

inline std::int64_t SymmetricContractionConfig::out_dim() const {
  std::int64_t total = 0;
  for (const int l : targets) total += channels * (2 * l + 1);
  return total;
}
inline std::size_t SymmetricContractionConfig::u_index(std::size_t target, int nu) const {
  return 2 * (target * static_cast<std::size_t>(correlation) + static_cast<std::size_t>(nu - 1));
}
inline Attributes SymmetricContractionConfig::attributes() const {
  Attributes::Integers degrees, counts;
  for (const int l : targets) degrees.push_back(l);
  for (const auto& row : n_paths) counts.insert(counts.end(), row.begin(), row.end());
  Attributes a;
  a.set("channels", Attributes::Integers{channels}).set("dim", Attributes::Integers{dim});
  a.set("correlation", Attributes::Integers{correlation}).set("n_species", Attributes::Integers{n_species});
  a.set("targets", std::move(degrees)).set("n_paths", std::move(counts));
  return a;
}
inline SymmetricContractionConfig SymmetricContractionConfig::from(const Attributes& a) {
  SymmetricContractionConfig config;
  config.channels = detail::small(a, "channels", 1, 1 << 20);
  config.dim = detail::small(a, "dim", 1, 4096);
  config.correlation = detail::small(a, "correlation", 1, 8);
  config.n_species = detail::small(a, "n_species", 1, 1 << 20);
  for (const std::int64_t l : a.integers("targets")) {
    detail::require(l >= 0 && l <= 64, "symmetric_contraction: target degree " + std::to_string(l));
    config.targets.push_back(static_cast<int>(l));
  }
  const Attributes::Integers& counts = a.integers("n_paths");
  const auto nu_max = static_cast<std::size_t>(config.correlation);
  detail::require(counts.size() == config.targets.size() * nu_max,
                  "symmetric_contraction: n_paths has " + std::to_string(counts.size()) + " entries");
  for (std::size_t t = 0; t < config.targets.size(); ++t) {
    const auto first = counts.begin() + static_cast<std::ptrdiff_t>(t * nu_max);
    config.n_paths.emplace_back(first, first + config.correlation);
    for (const std::int64_t k : config.n_paths.back())
      detail::require(k >= 0, "symmetric_contraction: negative n_paths");
  }
  return config;
}
inline Signature SymmetricContractionConfig::signature() const {
  Signature signature{{{.name = "x", .axis = Axis::rows, .trailing = {channels, dim}},
                       {.name = "species", .axis = Axis::rows, .real = false, .differentiable = false}},
                      {},
                      {{.name = "out", .axis = Axis::rows, .trailing = {out_dim()}}},
                      false};
  for (std::size_t t = 0; t < targets.size(); ++t) {
    for (int nu = 1; nu <= correlation; ++nu) {
      const std::string suffix = "_" + std::to_string(t) + "_" + std::to_string(nu);
      const std::int64_t k = n_paths[t][static_cast<std::size_t>(nu - 1)];
      std::vector<std::int64_t> shape;
      if (targets[t] != 0) shape.push_back(2 * targets[t] + 1);
      shape.insert(shape.end(), static_cast<std::size_t>(nu), dim);
      shape.push_back(k);
      signature.parameters.push_back({.name = "u" + suffix, .trailing = shape, .differentiable = false});
      signature.parameters.push_back({.name = "w" + suffix, .trailing = {n_species, k, channels}});
    }
  }
  return signature;
}

inline Attributes MessageStepConfig::attributes() const {
  std::map<std::string, Attributes::Value> values;
  const auto add = [&](const std::string& prefix, const Attributes& part) {
    for (const auto& [name, value] : part.values()) values.emplace(prefix + name, value);
  };
  add("harmonics.", harmonics.attributes());
  add("radial.", radial.attributes());
  add("mlp.", mlp.attributes());
  add("conv.", conv.attributes());
  return Attributes(std::move(values));
}
inline MessageStepConfig MessageStepConfig::from(const Attributes& attributes) {
  const auto part = [&](std::string_view prefix) {
    std::map<std::string, Attributes::Value> values;
    for (const auto& [name, value] : attributes.values()) {
      if (name.starts_with(prefix)) values.emplace(name.substr(prefix.size()), value);
    }
    return Attributes(std::move(values));
  };
  MessageStepConfig config{SphericalHarmonicsConfig::from(part("harmonics.")), RadialBasisConfig::from(part("radial.")),
                           RadialMlpConfig::from(part("mlp.")), ConvTensorProductConfig::from(part("conv."))};
  config.check();
  return config;
}
inline void MessageStepConfig::check() const {
  const auto agree = [](const char* what, std::int64_t found, const char* with, std::int64_t expected) {
    detail::require(found == expected, "message_step: " + std::string(what) + " is " + std::to_string(found) + ", " +
                                           with + " is " + std::to_string(expected));
  };
  conv.check();
  agree("the dimension of the harmonics", harmonics.dim(), "that of conv.edge", conv.edge.dim());
  agree("the input width of the net", mlp.widths.front(), "n_basis", radial.n_basis);
  agree("the output width of the net", mlp.widths.back(), "the number of weights of an edge", conv.weight_numel());
}
inline Signature MessageStepConfig::signature() const {
  Signature signature{{{.name = "x", .axis = Axis::nodes, .trailing = {conv.in.dim()}},
                       {.name = "vectors", .axis = Axis::edges, .trailing = {3}},
                       {.name = "lengths", .axis = Axis::edges},
                       {.name = "species",
                        .axis = Axis::nodes,
                        .real = false,
                        .differentiable = false,
                        .optional = radial.transform == DistanceTransform::none}},
                      {{.name = "bessel_weights", .trailing = {radial.n_basis}, .differentiable = false}},
                      {{.name = "out", .axis = Axis::receivers, .trailing = {conv.out.dim()}}},
                      true};
  for (const Argument& weight : mlp.signature().parameters) signature.parameters.push_back(weight);
  return signature;
}

inline Attributes RegroupChannelsConfig::attributes() const {
  Attributes a;
  a.set("channels", Attributes::Integers{channels}).set("l_max", Attributes::Integers{l_max});
  return a;
}
inline RegroupChannelsConfig RegroupChannelsConfig::from(const Attributes& a) {
  return {detail::small(a, "channels", 1, 1 << 20), detail::small(a, "l_max", 0, 64)};
}
inline Signature RegroupChannelsConfig::signature() const {
  return {{{.name = "x", .axis = Axis::rows, .trailing = {channels * dim()}}},
          {},
          {{.name = "y", .axis = Axis::rows, .trailing = {channels, dim()}}},
          false};
}

inline Attributes SumConfig::attributes() const {
  Attributes a;
  a.set("n_inputs", Attributes::Integers{n_inputs}).set("width", Attributes::Integers{width});
  return a;
}
inline SumConfig SumConfig::from(const Attributes& a) {
  return {detail::small(a, "n_inputs", 1, 64), detail::small(a, "width", 1, 1 << 30)};
}
inline Signature SumConfig::signature() const {
  Signature signature{{}, {}, {{.name = "y", .axis = Axis::rows, .trailing = {width}}}, false};
  for (std::int64_t i = 0; i < n_inputs; ++i) {
    signature.inputs.push_back({.name = "x" + std::to_string(i), .axis = Axis::rows, .trailing = {width}});
  }
  return signature;
}

inline Attributes ScaledSiluConfig::attributes() const {
  Attributes a;
  a.set("width", Attributes::Integers{width}).set("constant", Attributes::Reals{constant});
  return a;
}
inline ScaledSiluConfig ScaledSiluConfig::from(const Attributes& a) {
  return {detail::small(a, "width", 1, 1 << 30), a.real("constant")};
}
inline Signature ScaledSiluConfig::signature() const {
  return {{{.name = "x", .axis = Axis::rows, .trailing = {width}}},
          {},
          {{.name = "y", .axis = Axis::rows, .trailing = {width}}},
          false};
}

inline std::optional<Signature> signature_of(std::string_view op, std::int32_t version, const Attributes& attributes) {
  if (version != 1) return std::nullopt;
  if (op == SphericalHarmonicsConfig::kOp) return SphericalHarmonicsConfig::from(attributes).signature();
  if (op == RadialBasisConfig::kOp) return RadialBasisConfig::from(attributes).signature();
  if (op == RadialMlpConfig::kOp) return RadialMlpConfig::from(attributes).signature();
  if (op == IrrepsLinearConfig::kOp) return IrrepsLinearConfig::from(attributes).signature();
  if (op == SpeciesLinearConfig::kOp) return SpeciesLinearConfig::from(attributes).signature();
  if (op == ConvTensorProductConfig::kOp) return ConvTensorProductConfig::from(attributes).signature();
  if (op == MessageStepConfig::kOp) return MessageStepConfig::from(attributes).signature();
  if (op == SymmetricContractionConfig::kOp) return SymmetricContractionConfig::from(attributes).signature();
  if (op == RegroupChannelsConfig::kOp) return RegroupChannelsConfig::from(attributes).signature();
  if (op == SumConfig::kOp) return SumConfig::from(attributes).signature();
  if (op == ScaledSiluConfig::kOp) return ScaledSiluConfig::from(attributes).signature();
  return std::nullopt;
}

}  // namespace fastpath::sdk
