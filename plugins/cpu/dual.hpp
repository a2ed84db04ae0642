#pragma once

#include <cmath>
#include <compare>
#include <cstdint>
#include <type_traits>

/// Forward-mode differentiation: a value and its derivative along one direction.
namespace fastpath_cpu {

/// Arithmetic acts on the value and carries the tangent by the chain rule; comparisons see the value only. S: double,
/// or anything with its arithmetic. In code for either write `using std::sqrt; sqrt(x)`.
template <class S>
struct Dual {
  S value{}, tangent{};

  constexpr Dual() = default;
  constexpr Dual(S v) : value(v) {}  // NOLINT: constants convert implicitly
  constexpr Dual(S v, S t) : value(v), tangent(t) {}

  constexpr Dual& operator+=(const Dual& b) { return *this = *this + b; }
  constexpr Dual& operator*=(const Dual& b) { return *this = *this * b; }

  friend constexpr Dual operator-(const Dual& a) { return {-a.value, -a.tangent}; }
  friend constexpr Dual operator+(const Dual& a, const Dual& b) { return {a.value + b.value, a.tangent + b.tangent}; }
  friend constexpr Dual operator-(const Dual& a, const Dual& b) { return {a.value - b.value, a.tangent - b.tangent}; }
  friend constexpr Dual operator*(const Dual& a, const Dual& b) {
    return {a.value * b.value, a.tangent * b.value + a.value * b.tangent};
  }
  friend constexpr Dual operator*(const S& a, const Dual& b) { return {a * b.value, a * b.tangent}; }
  friend constexpr Dual operator*(const Dual& a, const S& b) { return {a.value * b, a.tangent * b}; }
  friend constexpr Dual operator/(const Dual& a, const Dual& b) {
    const S quotient = a.value / b.value;
    return {quotient, (a.tangent - quotient * b.tangent) / b.value};
  }
  friend constexpr bool operator==(const Dual& a, const Dual& b) { return a.value == b.value; }
  friend constexpr auto operator<=>(const Dual& a, const Dual& b) { return a.value <=> b.value; }

  friend Dual sqrt(const Dual& x) {
    const S root = std::sqrt(x.value);
    return {root, x.tangent / (root + root)};
  }
  friend Dual sin(const Dual& x) { return {std::sin(x.value), std::cos(x.value) * x.tangent}; }
  friend Dual cos(const Dual& x) { return {std::cos(x.value), -std::sin(x.value) * x.tangent}; }
  friend Dual abs(const Dual& x) { return x.value < S(0) ? -x : x; }
  friend Dual pow(const Dual& x, const S& exponent) {
    return {std::pow(x.value, exponent), exponent * std::pow(x.value, exponent - S(1)) * x.tangent};
  }
};

inline double primal(double x) { return x; }
inline double primal(const Dual<double>& x) { return x.value; }

/// 1 / (1 + e^-x). logistic(-x) is 1 - logistic(x) with all of its digits.
inline double logistic(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline Dual<double> logistic(const Dual<double>& x) {
  const double value = logistic(x.value);
  return {value, value * logistic(-x.value) * x.tangent};
}

/// A tensor that a pass reads, and its tangent; null is zero.
template <class T>
struct ReadPair {
  const T *value, *tangent;
};
/// A tensor that a pass writes, and its tangent; null is not wanted.
template <class T>
struct WritePair {
  T *value, *tangent;
  explicit operator bool() const { return value != nullptr || tangent != nullptr; }
};

/// The same from element `at` on, of a ReadPair or WritePair.
template <class Pair>
Pair part(const Pair& pair, std::int64_t at) {
  return {pair.value == nullptr ? nullptr : pair.value + at, pair.tangent == nullptr ? nullptr : pair.tangent + at};
}

/// Element i of both as a number N: double, which is the value alone, or Dual<double>.
template <class N, class T>
N get(const ReadPair<T>& from, std::int64_t i) {
  const double value = from.value == nullptr ? 0.0 : static_cast<double>(from.value[i]);
  if constexpr (std::is_same_v<N, double>) {
    return value;
  } else {
    return {value, from.tangent == nullptr ? 0.0 : static_cast<double>(from.tangent[i])};
  }
}
template <class T>
void set(const WritePair<T>& to, std::int64_t i, double value) {
  if (to.value != nullptr) to.value[i] = static_cast<T>(value);
}
template <class T>
void set(const WritePair<T>& to, std::int64_t i, const Dual<double>& number) {
  set(to, i, number.value);
  if (to.tangent != nullptr) to.tangent[i] = static_cast<T>(number.tangent);
}

}  // namespace fastpath_cpu
