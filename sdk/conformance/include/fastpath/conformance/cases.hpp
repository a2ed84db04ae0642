#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "fastpath/sdk/attributes.hpp"
#include "fastpath/sdk/ops.hpp"

/// Configurations of the ops that fastpath defines: what plugins are tried with.
namespace fastpath::conformance {

/// An op and its configuration.
struct OpCase {
  std::string op;
  std::int32_t version = 1;
  sdk::Attributes config;
  sdk::Signature signature;
  std::string label;  ///< For messages.
  int degree = 0;     ///< Highest l in it.
};

inline const std::vector<std::string>& known_ops() {
  static const std::vector<std::string> ops{std::string(sdk::SphericalHarmonicsConfig::kOp),
                                            std::string(sdk::RadialBasisConfig::kOp),
                                            std::string(sdk::RadialMlpConfig::kOp),
                                            std::string(sdk::IrrepsLinearConfig::kOp),
                                            std::string(sdk::SpeciesLinearConfig::kOp),
                                            std::string(sdk::ConvTensorProductConfig::kOp),
                                            std::string(sdk::SymmetricContractionConfig::kOp),
                                            std::string(sdk::MessageStepConfig::kOp),
                                            std::string(sdk::RegroupChannelsConfig::kOp),
                                            std::string(sdk::SumConfig::kOp),
                                            std::string(sdk::ScaledSiluConfig::kOp)};
  return ops;
}

template <class Config>
OpCase make_case(const Config& config, std::string label, int degree) {
  return {std::string(Config::kOp), Config::kVersion, config.attributes(),
          config.signature(),       std::move(label), degree};
}

namespace cases {

using Random = std::mt19937_64;
/// The same everywhere, which std::uniform_int_distribution is not.
inline std::int64_t between(Random& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

inline OpCase harmonics(int l_max, bool normalize, sdk::Normalization normalization) {
  const char* const names[] = {"component", "norm", "integral"};
  return make_case(
      sdk::SphericalHarmonicsConfig{.l_max = l_max, .normalize = normalize, .normalization = normalization},
      "l_max " + std::to_string(l_max) + (normalize ? ", normalised" : "") + ", " +
          names[static_cast<std::size_t>(normalization)],
      l_max);
}

inline OpCase basis(std::int64_t n, double r_max, int p, bool cutoff, sdk::DistanceTransform transform) {
  sdk::RadialBasisConfig config;
  config.n_basis = n;
  config.r_max = r_max;
  config.prefactor = std::sqrt(2.0 / r_max);
  config.p = p;
  config.apply_cutoff = cutoff;
  config.transform = transform;
  if (transform != sdk::DistanceTransform::none) config.species_radii = {0.31, 0.76, 1.11};
  const char* const names[] = {"no transform", "agnesi", "soft"};
  return make_case(config,
                   "n_basis " + std::to_string(n) + ", p " + std::to_string(p) + (cutoff ? ", cutoff, " : ", ") +
                       names[static_cast<std::size_t>(transform)],
                   0);
}

inline OpCase mlp(const std::vector<std::int64_t>& widths) {
  sdk::RadialMlpConfig config;
  config.widths = widths;
  std::string label = "widths";
  for (std::size_t i = 0; i < widths.size(); ++i) {
    label += " " + std::to_string(widths[i]);
    if (i + 1 < widths.size()) config.scales.push_back(1.0 / std::sqrt(static_cast<double>(widths[i])));
  }
  return make_case(config, label, 0);
}

inline OpCase linear(const std::string& in, const std::string& out, bool bias = false, double scale = 1.0,
                     sdk::PathNormalization normalization = sdk::PathNormalization::element) {
  return make_case(sdk::IrrepsLinearConfig{sdk::Irreps::parse(in), sdk::Irreps::parse(out), bias, scale, normalization},
                   in + " -> " + out + (bias ? ", bias" : ""),
                   std::max(sdk::Irreps::parse(in).l_max(), sdk::Irreps::parse(out).l_max()));
}

inline OpCase by_species(const std::string& in, const std::string& out, std::int64_t n_species) {
  return make_case(sdk::SpeciesLinearConfig{sdk::Irreps::parse(in), sdk::Irreps::parse(out), n_species},
                   in + " -> " + out + ", " + std::to_string(n_species) + " species",
                   std::max(sdk::Irreps::parse(in).l_max(), sdk::Irreps::parse(out).l_max()));
}

/// Every path of `in` x `edge` into an output block of its own, up to l_max; with `shared`, paths into equal irreps of
/// equal multiplicity share one.
inline OpCase conv(const std::string& in_text, const std::string& edge_text, int l_max, bool shared) {
  sdk::ConvTensorProductConfig config;
  config.in = sdk::Irreps::parse(in_text);
  config.edge = sdk::Irreps::parse(edge_text);
  std::vector<sdk::IrrepsBlock> out;
  for (std::size_t i = 0; i < config.in.size(); ++i) {
    for (std::size_t j = 0; j < config.edge.size(); ++j) {
      const sdk::Irrep a = config.in[i].ir, b = config.edge[j].ir;
      for (int l = std::abs(a.l - b.l); l <= std::min(a.l + b.l, l_max); ++l) {
        const sdk::IrrepsBlock block{config.in[i].mul, {l, a.parity * b.parity}};
        auto found = std::find(out.begin(), out.end(), block);
        if (!shared || found == out.end()) found = out.insert(out.end(), block);
        config.instructions.push_back(
            {i, j, static_cast<std::size_t>(found - out.begin()), std::sqrt(static_cast<double>(2 * l + 1))});
      }
    }
  }
  config.out = sdk::Irreps(std::move(out));
  return make_case(config, in_text + " x " + edge_text + (shared ? ", shared outputs" : ""),
                   std::max({config.in.l_max(), config.edge.l_max(), config.out.l_max()}));
}

/// A message step: `basis` and `conv` as above, and a net of these hidden widths between them. The edge irreps of
/// `conv` are those of the harmonics up to `l_edge`.
inline OpCase step(const OpCase& basis, const std::vector<std::int64_t>& hidden, const OpCase& conv, int l_edge) {
  sdk::MessageStepConfig config;
  config.harmonics.l_max = l_edge;
  config.radial = sdk::RadialBasisConfig::from(basis.config);
  config.conv = sdk::ConvTensorProductConfig::from(conv.config);
  std::vector<std::int64_t> widths{config.radial.n_basis};
  widths.insert(widths.end(), hidden.begin(), hidden.end());
  widths.push_back(config.conv.weight_numel());
  const OpCase net = mlp(widths);
  config.mlp = sdk::RadialMlpConfig::from(net.config);
  return make_case(config, basis.label + ", " + net.label + ", " + conv.label, conv.degree);
}

inline OpCase contraction(std::int64_t channels, int l_max, int correlation, const std::vector<int>& targets,
                          std::int64_t n_species, std::int64_t n_paths = 2) {
  sdk::SymmetricContractionConfig config;
  config.channels = channels;
  config.dim = std::int64_t{l_max + 1} * (l_max + 1);
  config.correlation = correlation;
  config.n_species = n_species;
  config.targets = targets;
  std::string label = std::to_string(channels) + " channels, dim " + std::to_string(config.dim) + ", correlation " +
                      std::to_string(correlation) + ", targets";
  for (const int l : targets) {
    label += " " + std::to_string(l);
    config.n_paths.emplace_back(static_cast<std::size_t>(correlation), n_paths);
  }
  return make_case(config, label + ", " + std::to_string(n_species) + " species",
                   std::max(l_max, *std::max_element(targets.begin(), targets.end())));
}

/// "3x0e+1x1o" with parities as harmonics have them, or either.
inline std::string irreps(Random& random, int l_max, bool natural, bool equal_multiplicity, std::int64_t most) {
  std::string text;
  const std::int64_t common = between(random, 1, most);
  const int l_top = static_cast<int>(between(random, 0, l_max));
  for (int l = 0; l <= l_top; ++l) {
    const std::int64_t mul = equal_multiplicity ? common : between(random, 1, most);
    const bool even = natural ? l % 2 == 0 : between(random, 0, 1) == 0;
    text += (text.empty() ? "" : "+") + std::to_string(mul) + "x" + std::to_string(l) + (even ? "e" : "o");
  }
  return text;
}

inline std::string edge_irreps(int l_max) {
  std::string text;
  for (int l = 0; l <= l_max; ++l) {
    text += (l == 0 ? "1x" : "+1x") + std::to_string(l) + (l % 2 == 0 ? "e" : "o");
  }
  return text;
}

inline OpCase regrouping(std::int64_t channels, int l_max) {
  return make_case(sdk::RegroupChannelsConfig{channels, l_max},
                   std::to_string(channels) + " channels, l_max " + std::to_string(l_max), l_max);
}
inline OpCase summing(std::int64_t n_inputs, std::int64_t width) {
  return make_case(sdk::SumConfig{n_inputs, width}, std::to_string(n_inputs) + " inputs of " + std::to_string(width),
                   0);
}
inline OpCase activation(std::int64_t width, double constant) {
  return make_case(sdk::ScaledSiluConfig{width, constant}, "width " + std::to_string(width), 0);
}

}  // namespace cases

/// The configuration that an op's calls are tried with: small, with more than one block, channel and species.
inline OpCase small_case(const std::string& op) {
  using namespace cases;
  if (op == sdk::SphericalHarmonicsConfig::kOp) return harmonics(2, true, sdk::Normalization::component);
  if (op == sdk::RadialBasisConfig::kOp) return basis(5, 4.0, 5, true, sdk::DistanceTransform::none);
  if (op == sdk::RadialMlpConfig::kOp) return mlp({5, 7, 3});
  if (op == sdk::IrrepsLinearConfig::kOp) return linear("3x0e+2x1o", "2x0e+3x1o");
  if (op == sdk::SpeciesLinearConfig::kOp) return by_species("3x0e+2x1o", "2x0e+3x1o", 3);
  if (op == sdk::ConvTensorProductConfig::kOp) return conv("3x0e+3x1o", "1x0e+1x1o", 1, false);
  if (op == sdk::MessageStepConfig::kOp) {
    return step(basis(5, 4.0, 5, true, sdk::DistanceTransform::none), {7}, conv("3x0e+3x1o", "1x0e+1x1o", 1, false), 1);
  }
  if (op == sdk::RegroupChannelsConfig::kOp) return regrouping(3, 2);
  if (op == sdk::SumConfig::kOp) return summing(3, 5);
  if (op == sdk::ScaledSiluConfig::kOp) return activation(5, 1.6791767923989418);
  return contraction(3, 1, 2, {0, 1}, 3);
}

/// An op restricted to one degree: plugins are asked for rising degrees, to find out up to where they serve it.
inline OpCase case_of_degree(const std::string& op, int l) {
  using namespace cases;
  const std::string block = std::to_string(l) + (l % 2 == 0 ? "e" : "o");
  if (op == sdk::SphericalHarmonicsConfig::kOp) return harmonics(l, true, sdk::Normalization::component);
  if (op == sdk::IrrepsLinearConfig::kOp) return linear("2x" + block, "3x" + block);
  if (op == sdk::SpeciesLinearConfig::kOp) return by_species("2x" + block, "3x" + block, 2);
  if (op == sdk::ConvTensorProductConfig::kOp) return conv("1x0e", "1x" + block, l, false);
  if (op == sdk::SymmetricContractionConfig::kOp) return contraction(1, l, 1, {l}, 1);
  if (op == sdk::MessageStepConfig::kOp) {
    return step(basis(3, 4.0, 5, true, sdk::DistanceTransform::none), {4}, conv("1x0e", edge_irreps(l), l, false), l);
  }
  if (op == sdk::RegroupChannelsConfig::kOp) return regrouping(2, l);
  return small_case(op);
}

/// Configurations at the corners of what an op can be: one channel, odd channels, mixed multiplicities and parities,
/// every option, correlations 1 to 4. A plugin may decline any of them.
inline std::vector<OpCase> corner_cases(const std::string& op) {
  using namespace cases;
  using sdk::DistanceTransform;
  using sdk::Normalization;
  if (op == sdk::SphericalHarmonicsConfig::kOp) {
    return {harmonics(0, true, Normalization::component), harmonics(1, true, Normalization::norm),
            harmonics(3, true, Normalization::component), harmonics(3, false, Normalization::integral),
            harmonics(6, true, Normalization::component)};
  }
  if (op == sdk::RadialBasisConfig::kOp) {
    return {basis(8, 5.0, 5, true, DistanceTransform::none), basis(1, 4.0, 2, true, DistanceTransform::none),
            basis(7, 4.5, 6, false, DistanceTransform::none), basis(8, 5.0, 5, true, DistanceTransform::agnesi),
            basis(3, 5.0, 6, false, DistanceTransform::soft)};
  }
  if (op == sdk::RadialMlpConfig::kOp) {
    return {mlp({8, 64, 64, 64, 40}), mlp({1, 1}), mlp({3, 1, 5}), mlp({7, 33, 17}),
            mlp({8, 64, 2560})};  // sums as long as those of large models
  }
  if (op == sdk::IrrepsLinearConfig::kOp) {
    return {linear("1x0e", "1x0e"),
            linear("5x0e+3x1o+1x2e", "2x0e+7x1o+3x2e"),
            linear("3x0e", "5x0e", true),
            linear("4x0e+2x0e+3x1o", "3x0e+1x1o", true, 0.125, sdk::PathNormalization::path),
            linear("2x0e+2x1o", "3x0e+2x2e"),  // a block that nothing reaches
            linear("2x0e+1x0o+2x1e+3x1o", "3x0o+1x1e+2x0e"),
            linear("17x3o", "31x3o"),
            linear("1536x0e+960x1o", "32x0e+16x1o")};  // sums as long as those of large models
  }
  if (op == sdk::SpeciesLinearConfig::kOp) {
    return {by_species("1x0e", "1x0e", 1), by_species("5x0e+3x1o", "2x0e+7x1o", 4), by_species("3x0e", "5x0e", 7),
            by_species("2x0e+1x0o+2x1e", "3x0o+1x1e+2x0e", 2), by_species("768x0e", "32x0e", 2)};
  }
  if (op == sdk::ConvTensorProductConfig::kOp) {
    return {conv("1x0e", "1x0e", 0, false),
            conv("5x0e", edge_irreps(3), 3, false),
            conv("3x0e+3x1o", edge_irreps(3), 3, false),
            conv("7x0e+7x1o+7x2e", edge_irreps(3), 2, true),
            conv("2x0e+5x1o+1x2e", edge_irreps(2), 2, false),  // mixed multiplicities
            conv("2x0e+2x0o+3x1e+3x1o", "1x0e+1x1o+1x2e", 2, true),
            conv("2x3o", edge_irreps(3), 3, false)};
  }
  if (op == sdk::MessageStepConfig::kOp) {
    return {
        step(basis(1, 4.0, 2, true, DistanceTransform::none), {}, conv("1x0e", "1x0e", 0, false), 0),
        step(basis(8, 5.0, 5, true, DistanceTransform::none), {64, 64, 64}, conv("5x0e", edge_irreps(3), 3, false), 3),
        step(basis(8, 5.0, 6, false, DistanceTransform::none), {16}, conv("8x0e+8x1o", edge_irreps(3), 3, false), 3),
        step(basis(8, 5.0, 5, true, DistanceTransform::agnesi), {9, 7}, conv("3x0e+3x1o+3x2e", edge_irreps(2), 2, true),
             2),
        step(basis(3, 5.0, 6, false, DistanceTransform::soft), {33}, conv("2x0e+5x1o+1x2e", edge_irreps(2), 2, false),
             2)};
  }
  if (op == sdk::RegroupChannelsConfig::kOp) return {regrouping(1, 0), regrouping(1, 3), regrouping(33, 1)};
  if (op == sdk::SumConfig::kOp) return {summing(1, 1), summing(2, 7), summing(5, 129)};
  if (op == sdk::ScaledSiluConfig::kOp) return {activation(1, 1.0), activation(67, -0.5)};
  return {contraction(1, 0, 1, {0}, 1),    contraction(5, 1, 1, {0, 1}, 3), contraction(3, 2, 2, {0, 2}, 2),
          contraction(7, 2, 3, {0, 1}, 4), contraction(1, 3, 2, {3}, 1),    contraction(2, 1, 4, {0, 1}, 2),
          contraction(3, 1, 3, {1}, 2, 1)};
}

/// A configuration drawn at random, of degree l_max at most.
inline OpCase random_case(const std::string& op, std::mt19937_64& random, int l_max) {
  using namespace cases;
  const auto coin = [&] { return between(random, 0, 1) == 1; };
  if (op == sdk::SphericalHarmonicsConfig::kOp) {
    return harmonics(static_cast<int>(between(random, 0, l_max)), coin(),
                     static_cast<sdk::Normalization>(between(random, 0, 2)));
  }
  if (op == sdk::RadialBasisConfig::kOp) {
    return basis(between(random, 1, 12), 3.0 + 0.5 * static_cast<double>(between(random, 0, 6)),
                 static_cast<int>(between(random, 2, 8)), coin(),
                 static_cast<sdk::DistanceTransform>(between(random, 0, 2)));
  }
  if (op == sdk::RadialMlpConfig::kOp) {
    std::vector<std::int64_t> widths;
    for (std::int64_t n = between(random, 2, 5); n > 0; --n) widths.push_back(between(random, 1, 40));
    return mlp(widths);
  }
  const int degree = std::min(l_max, 4);
  if (op == sdk::IrrepsLinearConfig::kOp) {
    const std::string in = irreps(random, degree, coin(), false, 20), out = irreps(random, degree, coin(), false, 20);
    return linear(in, out, coin(), coin() ? 1.0 : 0.37,
                  coin() ? sdk::PathNormalization::path : sdk::PathNormalization::element);
  }
  if (op == sdk::SpeciesLinearConfig::kOp) {
    return by_species(irreps(random, degree, coin(), false, 12), irreps(random, degree, coin(), false, 12),
                      between(random, 1, 6));
  }
  if (op == sdk::ConvTensorProductConfig::kOp) {
    const int l_edge = static_cast<int>(between(random, 0, std::min(degree, 3)));
    return conv(irreps(random, std::min(degree, 2), coin(), coin(), 9), edge_irreps(l_edge),
                static_cast<int>(between(random, 1, std::max(1, std::min(degree, 3)))), coin());
  }
  if (op == sdk::MessageStepConfig::kOp) {
    const OpCase radial = random_case(std::string(sdk::RadialBasisConfig::kOp), random, l_max);
    const int l_edge = static_cast<int>(between(random, 0, std::min(degree, 3)));
    std::vector<std::int64_t> hidden;
    for (std::int64_t n = between(random, 0, 3); n > 0; --n) hidden.push_back(between(random, 1, 40));
    return step(radial, hidden,
                conv(irreps(random, std::min(degree, 2), coin(), coin(), 9), edge_irreps(l_edge),
                     static_cast<int>(between(random, 1, std::max(1, std::min(degree, 3)))), coin()),
                l_edge);
  }
  if (op == sdk::RegroupChannelsConfig::kOp) {
    return regrouping(between(random, 1, 40), static_cast<int>(between(random, 0, degree)));
  }
  if (op == sdk::SumConfig::kOp) return summing(between(random, 1, 6), between(random, 1, 200));
  if (op == sdk::ScaledSiluConfig::kOp)
    return activation(between(random, 1, 200), 0.25 * static_cast<double>(between(random, 1, 8)));
  const int correlation = static_cast<int>(between(random, 1, 3));
  const int l = static_cast<int>(between(random, 0, std::min(degree, correlation == 3 ? 2 : 3)));
  std::vector<int> targets{static_cast<int>(between(random, 0, std::min(degree, 3)))};
  if (coin()) targets.push_back(static_cast<int>(between(random, 0, std::min(degree, 3))));
  return contraction(between(random, 1, 11), l, correlation, targets, between(random, 1, 5), between(random, 1, 3));
}

}  // namespace fastpath::conformance
