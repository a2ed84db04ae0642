#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "fastpath/sdk/ops.hpp"
#include "ops/accumulator.hpp"
#include "ops/dual.hpp"

/// Bessel basis, polynomial envelope and distance transforms, operators.md 2.3. For S = float (computed in double),
/// double or Dual<double>.
namespace fastpath::ops {

/// Smooth cutoff of degree p: 1 at r = 0, triple zero at r_max, exactly 0 from there on.
/// Written as (1-u)^3 sum_{k<p} (k+1)(k+2)/2 u^k, u = r/r_max, which is the polynomial of 2.3 without its cancellation.
template <class S>
S polynomial_envelope(const S& r, double r_max, int p) {
  if (primal(r) >= r_max) return S(0);
  const S u = r / S(r_max);
  S sum(0);
  for (int k = p - 1; k >= 0; --k) sum = sum * u + S(0.5 * (k + 1) * (k + 2));
  return integer_power((S(r_max) - r) / S(r_max), 3) * sum;
}

/// d envelope / dr.
template <class S>
S polynomial_envelope_derivative(const S& r, double r_max, int p) {
  if (primal(r) >= r_max) return S(0);
  const S u = r / S(r_max);
  const S rest = (S(r_max) - r) / S(r_max);
  return S(-0.5 * p * (p + 1) * (p + 2) / r_max) * integer_power(u, p - 1) * rest * rest;
}

/// With the tangent that the derivative gives: by the product rule it would cancel where the envelope is flat.
template <class T>
Dual<T> polynomial_envelope(const Dual<T>& r, double r_max, int p) {
  return {polynomial_envelope(r.value, r_max, p), polynomial_envelope_derivative(r.value, r_max, p) * r.tangent};
}

/// sin(t) / t.
template <class S>
S sinc(const S& t) {
  using std::abs;
  using std::sin;
  if (abs(primal(t)) > 1) return sin(t) / t;
  S sum(0), square = t * t;  // a series, so that its derivatives do not cancel either
  for (int k = 10; k > 0; --k) sum = -(S(1) + sum) * square / S((2.0 * k) * (2.0 * k + 1.0));
  return S(1) + sum;
}

/// d sinc / dt = (t cos t - sin t) / t^2.
template <class S>
S sinc_derivative(const S& t) {
  using std::abs;
  using std::cos;
  using std::sin;
  if (abs(primal(t)) > 1) return (t * cos(t) - sin(t)) / (t * t);
  S sum(0), square = t * t;  // coefficient of t^(2k-1): (-1)^k 2k / (2k+1)!
  for (int k = 10; k > 0; --k) sum = -(S(2.0 * k) + sum * square / S((2.0 * k + 2.0) * (2.0 * k + 3.0)));
  return sum * t / S(6);
}

/// Argument of the basis: the distance or its transform, and the derivative. The radii of both ends are needed only by
/// a transform.
template <class S>
struct TransformedDistance {
  S value;
  S derivative;
};

template <class S>
TransformedDistance<S> transform_distance(const sdk::RadialBasisConfig& config, const S& r, double radius_a,
                                          double radius_b) {
  using std::exp;
  using std::pow;
  if (config.transform == sdk::DistanceTransform::agnesi) {
    // y^q / (1 + y^(q-p)) of 2.3, multiplied by y^(p-q) above and below: finite at y = 0
    const double r0 = 0.5 * (radius_a + radius_b), q = config.q_exponent, p = config.p_exponent;
    const S y = r / S(r0);
    const S tail = pow(y, p - q);
    const S x = S(1) / (S(1) + S(config.a) * pow(y, p) / (S(1) + tail));
    const S slope = pow(y, p - 1) * (S(p) + S(q) * tail) / ((S(1) + tail) * (S(1) + tail));
    return {x, S(-config.a / r0) * slope * x * x};
  }
  if (config.transform == sdk::DistanceTransform::soft) {
    const double r0 = radius_a + radius_b, p0 = 0.75 * r0, p1 = 4.0 / 3.0 * r0, alpha = config.alpha / (p1 - p0);
    // (1 + tanh z) / 2 and (1 - tanh z) / 2 as they keep their digits where one of them is small
    const S z = S(2 * alpha) * (r - S(0.5 * (p0 + p1)));
    const S part = S(1) / (S(1) + exp(-z)), rest = S(1) / (S(1) + exp(z));
    return {S(p0) + (r - S(p0)) * part, part * (S(1) + (r - S(p0)) * S(2 * alpha) * rest)};
  }
  return {r, S(1)};
}

namespace detail {
template <class A>
TransformedDistance<A> basis_argument(const sdk::RadialBasisConfig& config, const A& r, std::int64_t edge,
                                      const std::int32_t* sender, const std::int32_t* receiver,
                                      const std::int32_t* species) {
  if (config.transform == sdk::DistanceTransform::none) return {r, A(1)};
  const auto radius = [&](std::int32_t node) { return config.species_radii[static_cast<std::size_t>(species[node])]; };
  return transform_distance(config, r, radius(sender[edge]), radius(receiver[edge]));
}
/// Frequency i: its value from the configuration if that has it, its tangent from the parameter.
template <class S>
Accumulator<S> frequency(const sdk::RadialBasisConfig& config, const S* bessel_weights, std::int64_t i) {
  Accumulator<S> w(bessel_weights[i]);
  if (config.frequencies.empty()) return w;
  const double exact = config.frequencies[static_cast<std::size_t>(i)];
  return w + Accumulator<S>(exact - primal(w));
}
}  // namespace detail

/// @param lengths         [n_edges], angstrom.
/// @param sender,receiver [n_edges] node indices, and species [nodes] indices into species_radii. Read only if the
///                        configuration has a transform; null otherwise.
/// @param bessel_weights  [n_basis], 1/angstrom; the frequencies of the configuration, if there are any, are preferred.
/// @param embedding       Out: [n_edges, n_basis]; with apply_cutoff times the envelope, then exactly 0 from r_max on.
/// @param envelope        Out: [n_edges], of the untransformed length. May be null.
template <class S>
void radial_basis_forward(const sdk::RadialBasisConfig& config, std::int64_t n_edges, const S* lengths,
                          const std::int32_t* sender, const std::int32_t* receiver, const std::int32_t* species,
                          const S* bessel_weights, S* embedding, S* envelope) {
  using A = Accumulator<S>;
  for (std::int64_t e = 0; e < n_edges; ++e) {
    const A r(lengths[e]);
    const A f = polynomial_envelope(r, config.r_max, config.p);
    if (envelope != nullptr) envelope[e] = static_cast<S>(f);
    const A x = detail::basis_argument(config, r, e, sender, receiver, species).value;
    const A scale = config.apply_cutoff ? A(config.prefactor) * f : A(config.prefactor);
    for (std::int64_t i = 0; i < config.n_basis; ++i) {
      const A w = detail::frequency(config, bessel_weights, i);
      embedding[e * config.n_basis + i] = static_cast<S>(scale * w * sinc(w * x));
    }
  }
}

/// Gradients of sum(grad_embedding * embedding) + sum(grad_envelope * envelope); a null cotangent counts as zero.
/// @param grad_lengths         Out: [n_edges]. May be null.
/// @param grad_bessel_weights  Out: [n_basis]. May be null.
template <class S>
void radial_basis_backward(const sdk::RadialBasisConfig& config, std::int64_t n_edges, const S* lengths,
                           const std::int32_t* sender, const std::int32_t* receiver, const std::int32_t* species,
                           const S* bessel_weights, const S* grad_embedding, const S* grad_envelope, S* grad_lengths,
                           S* grad_bessel_weights) {
  using std::cos;
  using A = Accumulator<S>;
  std::vector<A> grad_weights(static_cast<std::size_t>(config.n_basis), A(0));
  for (std::int64_t e = 0; e < n_edges; ++e) {
    const A r(lengths[e]);
    const A f = polynomial_envelope(r, config.r_max, config.p);
    const auto [x, slope] = detail::basis_argument(config, r, e, sender, receiver, species);
    A grad_f = grad_envelope != nullptr ? A(grad_envelope[e]) : A(0);
    A grad_x(0);
    if (grad_embedding != nullptr) {
      const A cut = config.apply_cutoff ? f : A(1);
      for (std::int64_t i = 0; i < config.n_basis; ++i) {
        const A w = detail::frequency(config, bessel_weights, i);
        const A g = A(config.prefactor) * A(grad_embedding[e * config.n_basis + i]);
        if (grad_lengths != nullptr) {
          grad_x += g * cut * w * w * sinc_derivative(w * x);
          if (config.apply_cutoff) grad_f += g * w * sinc(w * x);
        }
        if (grad_bessel_weights != nullptr) grad_weights[static_cast<std::size_t>(i)] += g * cut * cos(w * x);
      }
    }
    if (grad_lengths != nullptr) {
      const A derivative = polynomial_envelope_derivative(r, config.r_max, config.p);
      grad_lengths[e] = static_cast<S>(grad_x * slope + grad_f * derivative);
    }
  }
  if (grad_bessel_weights == nullptr) return;
  for (std::size_t i = 0; i < grad_weights.size(); ++i) grad_bessel_weights[i] = static_cast<S>(grad_weights[i]);
}

}  // namespace fastpath::ops
