#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "ops/accumulator.hpp"
#include "ops/dual.hpp"
#include "ops/radial_basis/radial_basis.hpp"

/// Screened nuclear repulsion, operators.md 2.10. For S = float (computed in double), double or Dual<double>.
namespace fastpath::ops {

struct PairZblConstants {
  std::array<double, 4> c{0.1818, 0.5099, 0.2802, 0.02817};
  int p = 6;  ///< Degree of the envelope.
  double a_exp = 0.3;
  double a_prefactor = 0.4543;
  std::vector<double> radii;           ///< Covalent radius per species index, angstrom.
  std::vector<double> atomic_numbers;  ///< Per species index.
};

/// Half of the pair energy in eV, and its derivative, for a distance > 0 in angstrom. Exactly 0 from the sum of the
/// covalent radii on.
template <class S>
struct PairZblValue {
  S energy;
  S derivative;
};

template <class S>
PairZblValue<S> pair_zbl(const PairZblConstants& constants, const S& r, std::int32_t species_a,
                         std::int32_t species_b) {
  using std::exp;
  constexpr std::array<double, 4> kDecay{3.2, 0.9423, 0.4028, 0.2016};
  constexpr double kBohr = 0.529, kCoulomb = 14.3996;  // as the models were trained: not the CODATA values
  const auto a = static_cast<std::size_t>(species_a), b = static_cast<std::size_t>(species_b);
  const double r_max = constants.radii[a] + constants.radii[b];
  if (primal(r) >= r_max) return {S(0), S(0)};
  const double z_a = constants.atomic_numbers[a], z_b = constants.atomic_numbers[b];
  const double length =
      constants.a_prefactor * kBohr / (std::pow(z_a, constants.a_exp) + std::pow(z_b, constants.a_exp));
  S screening(0), slope(0);
  for (std::size_t i = 0; i < 4; ++i) {
    const S term = S(constants.c[i]) * exp(r * S(-kDecay[i] / length));
    screening += term;
    slope += term * S(-kDecay[i] / length);
  }
  const S envelope = polynomial_envelope(r, r_max, constants.p);
  const S scale = S(0.5 * kCoulomb * z_a * z_b) / r;
  return {scale * screening * envelope, scale * ((slope - screening / r) * envelope +
                                                 screening * polynomial_envelope_derivative(r, r_max, constants.p))};
}

/// @param lengths          [n_edges], angstrom, > 0.
/// @param sender,receiver  [n_edges]; receivers < n_nodes. `species` is indexed by both.
/// @param node_energy      Out: [n_nodes], eV, the sum over the edges that a node receives.
template <class S>
void pair_zbl_forward(const PairZblConstants& constants, std::int64_t n_edges, std::int64_t n_nodes, const S* lengths,
                      const std::int32_t* sender, const std::int32_t* receiver, const std::int32_t* species,
                      S* node_energy) {
  using A = Accumulator<S>;
  std::vector<A> sums(static_cast<std::size_t>(n_nodes), A(0));
  for (std::int64_t e = 0; e < n_edges; ++e) {
    sums[static_cast<std::size_t>(receiver[e])] +=
        pair_zbl(constants, A(lengths[e]), species[sender[e]], species[receiver[e]]).energy;
  }
  std::transform(sums.begin(), sums.end(), node_energy, [](const A& sum) { return static_cast<S>(sum); });
}

/// @param grad_node_energy  [n_nodes].
/// @param grad_lengths      Out: [n_edges].
template <class S>
void pair_zbl_backward(const PairZblConstants& constants, std::int64_t n_edges, const S* lengths,
                       const std::int32_t* sender, const std::int32_t* receiver, const std::int32_t* species,
                       const S* grad_node_energy, S* grad_lengths) {
  using A = Accumulator<S>;
  for (std::int64_t e = 0; e < n_edges; ++e) {
    const A slope = pair_zbl(constants, A(lengths[e]), species[sender[e]], species[receiver[e]]).derivative;
    grad_lengths[e] = static_cast<S>(A(grad_node_energy[receiver[e]]) * slope);
  }
}

}  // namespace fastpath::ops
