#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "cpu/dual.hpp"
#include "fastpath/sdk/kernel.hpp"
#include "fastpath/sdk/ops.hpp"

/// The radial basis of one edge, operators.md 2.3, in double whatever the dtype: sin(w r) would lose what w r has
/// before the point.
namespace fastpath_cpu {

template <class N>
struct ValueAndSlopeOf {
  N value, slope;
};
using ValueAndSlope = ValueAndSlopeOf<double>;

/// The value with the tangent that its slope gives it: by the product rule it would lose digits where terms cancel.
inline double with_slope(double value, double, double) { return value; }
inline Dual<double> with_slope(const Dual<double>& value, const Dual<double>& slope, const Dual<double>& at) {
  return {value.value, slope.value * at.tangent};
}

/// 1 - (p+1)(p+2)/2 u^p + p(p+2) u^(p+1) - p(p+1)/2 u^(p+2), u = r / r_max, in the form (1-u)^3 q(u), which keeps its
/// digits near r_max; 0 from there on. N: double or Dual<double>.
template <class N>
ValueAndSlopeOf<N> envelope(N r, double r_max, int p) {
  if (!(r < N(r_max))) return {r == r ? N(0.0) : r, r == r ? N(0.0) : r};
  const N u = r / N(r_max), rest = (N(r_max) - r) / N(r_max);
  N q(0.0), power(1.0);  // power: u^k
  for (int k = 0; k < p; ++k) {
    q += 0.5 * (k + 1) * (k + 2) * power;
    if (k < p - 1) power *= u;
  }
  const N slope = -0.5 * p * (p + 1) * (p + 2) / r_max * power * rest * rest;
  return {with_slope(rest * rest * rest * q, slope, r), slope};
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

/// What the basis functions take as their argument. N: double or Dual<double>.
template <class N>
ValueAndSlopeOf<N> radial_argument(const fastpath::sdk::RadialBasisConfig& config, N r, const EdgeRadii& nodes,
                                   std::int64_t e) {
  using fastpath::sdk::DistanceTransform;
  using std::pow;
  if (config.transform == DistanceTransform::none) return {r, N(1.0)};
  const double sum = config.species_radii[static_cast<std::size_t>(nodes.species[nodes.sender[e]])] +
                     config.species_radii[static_cast<std::size_t>(nodes.species[nodes.receiver[e]])];
  const N one(1.0);
  if (config.transform == DistanceTransform::agnesi) {
    // x = 1 / (1 + s), s = a y^q / (1 + y^(q-p)) = a y^p / (1 + y^(p-q)), which is defined at y = 0.
    const double q = config.q_exponent, p = config.p_exponent;
    const N y = 2.0 * r / N(sum), t = pow(y, p - q);
    const N x = one / (one + config.a * pow(y, p) / (one + t));
    const N of_s = config.a * pow(y, p - 1.0) * (N(p) + q * t) / ((one + t) * (one + t));
    const N slope = -x * x * of_s * (2.0 / sum);
    return {with_slope(x, slope, r), slope};
  }
  const double p0 = 0.75 * sum, p1 = 4.0 / 3.0 * sum, alpha = config.alpha / (p1 - p0);
  // (1 + tanh z) / 2 and (1 - tanh z) / 2 as they keep their digits where one of them is small.
  const N z = 2.0 * alpha * (r - N(0.5 * (p0 + p1)));
  const N part = logistic(z), rest = logistic(-z);
  const N slope = part * (one + (r - N(p0)) * (2.0 * alpha) * rest);
  return {with_slope(N(p0) + (r - N(p0)) * part, slope, r), slope};
}

/// sin(t) / t and its derivative; below 1 by their series, which does not cancel. N: double or Dual<double>.
template <class N>
ValueAndSlopeOf<N> sinc(N t) {
  using std::abs;
  using std::cos;
  using std::sin;
  if (abs(t) >= N(1.0)) {
    const N s = sin(t) / t, slope = (cos(t) - s) / t;
    return {with_slope(s, slope, t), slope};
  }
  N value(1.0), slope(0.0), term(1.0);  // term: (-1)^k t^(2k) / (2k+1)!
  for (int k = 1; k <= 9; ++k) {
    slope += -(2 * k / (2.0 * k * (2.0 * k + 1.0))) * term * t;
    term *= -(1.0 / (2.0 * k * (2.0 * k + 1.0))) * t * t;
    value += term;
  }
  return {with_slope(value, slope, t), slope};
}

}  // namespace fastpath_cpu
