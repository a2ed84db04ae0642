#pragma once

#include <cmath>
#include <compare>

#include "ops/accumulator.hpp"

/// Forward-mode differentiation of the reference: a value and its derivative along one direction.
namespace fastpath::ops {

/// Arithmetic and elementary functions act on the value and carry the tangent by the chain rule; comparisons see the
/// value only. In code templated on the scalar write `using std::sqrt; sqrt(x)`, and S(0.5) instead of 0.5, which
/// would turn float into double.
template <class T>
struct Dual {
  T value{};
  T tangent{};

  constexpr Dual() = default;
  constexpr Dual(T v) : value(v) {}  // NOLINT: constants convert implicitly, as they do to float
  constexpr Dual(T v, T t) : value(v), tangent(t) {}

  constexpr Dual& operator+=(const Dual& b) { return *this = *this + b; }
  constexpr Dual& operator-=(const Dual& b) { return *this = *this - b; }
  constexpr Dual& operator*=(const Dual& b) { return *this = *this * b; }
  constexpr Dual& operator/=(const Dual& b) { return *this = *this / b; }

  friend constexpr Dual operator+(const Dual& a) { return a; }
  friend constexpr Dual operator-(const Dual& a) { return {-a.value, -a.tangent}; }
  friend constexpr Dual operator+(const Dual& a, const Dual& b) { return {a.value + b.value, a.tangent + b.tangent}; }
  friend constexpr Dual operator-(const Dual& a, const Dual& b) { return {a.value - b.value, a.tangent - b.tangent}; }
  friend constexpr Dual operator*(const Dual& a, const Dual& b) {
    return {a.value * b.value, a.tangent * b.value + a.value * b.tangent};
  }
  friend constexpr Dual operator/(const Dual& a, const Dual& b) {
    const T quotient = a.value / b.value;
    return {quotient, (a.tangent - quotient * b.tangent) / b.value};
  }
  friend constexpr bool operator==(const Dual& a, const Dual& b) { return a.value == b.value; }
  friend constexpr auto operator<=>(const Dual& a, const Dual& b) { return a.value <=> b.value; }

  friend Dual sqrt(const Dual& x) {
    using std::sqrt;
    const T root = sqrt(x.value);
    return {root, x.tangent / (root + root)};
  }
  friend Dual exp(const Dual& x) {
    using std::exp;
    const T power = exp(x.value);
    return {power, power * x.tangent};
  }
  friend Dual log(const Dual& x) {
    using std::log;
    return {log(x.value), x.tangent / x.value};
  }
  friend Dual sin(const Dual& x) {
    using std::cos;
    using std::sin;
    return {sin(x.value), cos(x.value) * x.tangent};
  }
  friend Dual cos(const Dual& x) {
    using std::cos;
    using std::sin;
    return {cos(x.value), -sin(x.value) * x.tangent};
  }
  friend Dual tanh(const Dual& x) {
    using std::tanh;
    const T t = tanh(x.value);
    return {t, (T(1) - t * t) * x.tangent};
  }
  /// The derivative at 0 is taken as 0.
  friend Dual abs(const Dual& x) { return x.value > T(0) ? x : x.value < T(0) ? -x : Dual(x.value, T(0)); }
  /// Constant exponent. The tangent of x^0 is 0, also at x = 0.
  friend Dual pow(const Dual& x, double exponent) {
    using std::pow;
    if (exponent == 0.0) return {T(1), T(0)};
    return {pow(x.value, T(exponent)), T(exponent) * pow(x.value, T(exponent - 1.0)) * x.tangent};
  }
  friend Dual pow(const Dual& x, int exponent) { return pow(x, static_cast<double>(exponent)); }
  friend Dual pow(const Dual& x, const Dual& exponent) { return exp(exponent * log(x)); }
};

/// The value without its tangent.
template <class T>
constexpr T primal(const T& x) {
  return x;
}
template <class T>
constexpr T primal(const Dual<T>& x) {
  return x.value;
}

/// x^n by repeated squaring, n >= 0, in the arithmetic of S (std::pow of a float and an int is a double).
template <class S>
constexpr S integer_power(S x, int n) {
  S result(1);
  for (; n > 0; n /= 2) {
    if (n % 2 == 1) result *= x;
    x *= x;
  }
  return result;
}

}  // namespace fastpath::ops
