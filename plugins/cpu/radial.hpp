#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "fastpath/sdk/kernel.hpp"
#include "fastpath/sdk/ops.hpp"

/// The radial basis of one edge, operators.md 2.3, in double whatever the dtype: sin(w r) would lose what w r has
/// before the point.
namespace fastpath_cpu {

struct ValueAndSlope {
  double value, slope;
};

/// 1 - (p+1)(p+2)/2 u^p + p(p+2) u^(p+1) - p(p+1)/2 u^(p+2), u = r / r_max, in the form (1-u)^3 q(u), which keeps its
/// digits near r_max; 0 from there on.
inline ValueAndSlope envelope(double r, double r_max, int p) {
  if (!(r < r_max)) return {r == r ? 0.0 : r, r == r ? 0.0 : r};
  const double u = r / r_max, rest = (r_max - r) / r_max;
  double q = 0.0, power = 1.0;  // power: u^k
  for (int k = 0; k < p; ++k) {
    q += 0.5 * (k + 1) * (k + 2) * power;
    if (k < p - 1) power *= u;
  }
  return {rest * rest * rest * q, -0.5 * p * (p + 1) * (p + 2) / r_max * power * rest * rest};
}

/// Covalent radii of both ends of an edge, or nothing without a transform.
struct EdgeRadii {
  const std::int32_t *sender = nullptr, *receiver = nullptr, *species = nullptr;

  /// @param species  [graph.n_nodes]. @throws InvalidArgument naming a species out of range.
  EdgeRadii() = default;
  EdgeRadii(const fastpath::sdk::RadialBasisConfig& config, const fastpath::sdk::HostGraph& graph,
            const std::int32_t* node_species)
      : sender(graph.sender), receiver(graph.receiver), species(node_species) {
    const auto n_species = static_cast<std::int32_t>(config.species_radii.size());
    for (std::int64_t n = 0; n < graph.n_nodes; ++n) {
      if (species[n] < 0 || species[n] >= n_species) {
        throw fastpath::sdk::InvalidArgument("species " + std::to_string(species[n]) + " of node " + std::to_string(n) +
                                             ", expected 0.." + std::to_string(n_species - 1));
      }
    }
  }
};

/// What the basis functions take as their argument.
inline ValueAndSlope radial_argument(const fastpath::sdk::RadialBasisConfig& config, double r, const EdgeRadii& nodes,
                                     std::int64_t e) {
  using fastpath::sdk::DistanceTransform;
  if (config.transform == DistanceTransform::none) return {r, 1.0};
  const double sum = config.species_radii[static_cast<std::size_t>(nodes.species[nodes.sender[e]])] +
                     config.species_radii[static_cast<std::size_t>(nodes.species[nodes.receiver[e]])];
  if (config.transform == DistanceTransform::agnesi) {
    // x = 1 / (1 + s), s = a y^q / (1 + y^(q-p)) = a y^p / (1 + y^(p-q)), which is defined at y = 0.
    const double q = config.q_exponent, p = config.p_exponent, y = 2.0 * r / sum, t = std::pow(y, p - q);
    const double x = 1.0 / (1.0 + config.a * std::pow(y, p) / (1.0 + t));
    const double slope = config.a * std::pow(y, p - 1.0) * (p + q * t) / ((1.0 + t) * (1.0 + t));
    return {x, -x * x * slope * 2.0 / sum};
  }
  const double p0 = 0.75 * sum, p1 = 4.0 / 3.0 * sum, alpha = config.alpha / (p1 - p0);
  // (1 + tanh z) / 2 and (1 - tanh z) / 2 as they keep their digits where one of them is small.
  const double z = 2.0 * alpha * (r - 0.5 * (p0 + p1));
  const double part = 1.0 / (1.0 + std::exp(-z)), rest = 1.0 / (1.0 + std::exp(z));
  return {p0 + (r - p0) * part, part * (1.0 + (r - p0) * 2.0 * alpha * rest)};
}

}  // namespace fastpath_cpu
