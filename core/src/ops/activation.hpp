#pragma once

#include <cmath>

#include "ops/dual.hpp"

/// Activations of the radial net, the readouts and the gates, operators.md 2.0 and 2.4. For S = float, double or Dual.
namespace fastpath::ops {

/// 1 / (1 + exp(-x)); never overflows, and neither does its tangent.
template <class S>
S sigmoid(const S& x) {
  using std::exp;
  if (primal(x) >= 0) return S(1) / (S(1) + exp(-x));
  const S e = exp(x);
  return e / (S(1) + e);
}

/// x * sigmoid(x), without the second-moment constant.
template <class S>
S silu(const S& x) {
  return x * sigmoid(x);
}

template <class S>
S silu_derivative(const S& x) {
  return sigmoid(x) * (S(1) + x * sigmoid(-x));
}

template <class S>
S tanh_derivative(const S& x) {
  using std::tanh;
  const S value = tanh(x);
  return S(1) - value * value;
}

/// sigmoid(x) * (1 - sigmoid(x)), without cancellation.
template <class S>
S sigmoid_derivative(const S& x) {
  return sigmoid(x) * sigmoid(-x);
}

}  // namespace fastpath::ops
