#include <gmock/gmock.h>

#include "ops/activation.hpp"
#include "support/ops_data.hpp"

namespace fastpath::ops {
namespace {

using namespace test;

using D = Dual<double>;

/// Derivative of f at x from its tangent, and from a difference of its values.
template <class Function>
void expect_derivative(const Function& f, double x) {
  const D result = f(D(x, 1.0));
  EXPECT_EQ(result.value, f(x));
  const Reals expected = difference([&](const Reals& at) { return Reals{f(at[0])}; }, {x}, {1.0});
  EXPECT_NEAR(result.tangent, expected[0], 1e-9 * std::max(1.0, std::abs(expected[0]))) << "at " << x;
}

TEST(Dual, DifferentiatesElementaryFunctions) {
  using std::abs, std::cos, std::exp, std::log, std::pow, std::sin, std::sqrt, std::tanh;
  for (const double x : {0.3, 1.7, 2.9}) {
    expect_derivative([](auto v) { return sqrt(v); }, x);
    expect_derivative([](auto v) { return exp(v); }, x);
    expect_derivative([](auto v) { return log(v); }, x);
    expect_derivative([](auto v) { return sin(v); }, x);
    expect_derivative([](auto v) { return cos(-v); }, x);
    expect_derivative([](auto v) { return tanh(v); }, x);
    expect_derivative([](auto v) { return abs(v) + abs(-v); }, x);
    expect_derivative([](auto v) { return pow(v, 2.5); }, x);
    expect_derivative([](auto v) { return pow(v, 3); }, x);
    expect_derivative([](auto v) { return integer_power(v, 7) + integer_power(v, 0); }, x);
    expect_derivative([](auto v) { return 2.0 / v + v / 3.0 - v * v + 1.0; }, x);
    expect_derivative([](auto v) { return silu(v) + silu(-v) * 2.0; }, x);
    expect_derivative([](auto v) { return silu_derivative(v) + silu_derivative(-v) * 2.0; }, x);
    expect_derivative([](auto v) { return sigmoid(v) + sigmoid_derivative(v) + tanh_derivative(v); }, x);
  }
  const D power = pow(D(2.0, 1.0), D(3.0, 0.5));
  EXPECT_NEAR(power.value, 8.0, 1e-14);
  EXPECT_NEAR(power.tangent, 12.0 + 0.5 * 8.0 * std::log(2.0), 1e-13);
}

TEST(Dual, UpdatesInPlaceLikeTheBinaryOperators) {
  const D a(2.0, 3.0), b(5.0, 7.0);
  D x = a;
  x += b;
  x *= a;
  x -= b;
  x /= a;
  const D y = ((a + b) * a - b) / a;
  EXPECT_EQ(x.value, y.value);
  EXPECT_EQ(x.tangent, y.tangent);
  x = a;
  x *= x;
  EXPECT_EQ(x.tangent, 12.0);
}

TEST(Dual, ComparesValuesAndKeepsTheTangentOfTheLarger) {
  EXPECT_TRUE(D(1.0, 5.0) == D(1.0, 6.0));
  EXPECT_TRUE(D(1.0, 5.0) < D(2.0, 0.0));
  EXPECT_TRUE(D(1.0) >= 1.0);
  EXPECT_EQ(std::max(D(1.0, 5.0), D(0.5)).tangent, 5.0);
  EXPECT_EQ(primal(D(4.0, 1.0)), 4.0);
  EXPECT_EQ(primal(2.5f), 2.5f);
}

TEST(Activation, SiluMatchesThePublishedValue) {
  EXPECT_NEAR(1.6791767923989418 * silu(1.0), 1.2275765991196612, 1e-15);
}

TEST(Activation, StaysFiniteForAnyFiniteArgument) {
  for (const double x : {-1e300, -800.0, -40.0, 40.0, 800.0, 1e300}) {
    const D value = silu(D(x, 1.0)), slope = silu_derivative(D(x, 1.0));
    EXPECT_NEAR(value.value, std::max(x, 0.0), 1e-15 * std::abs(x));
    EXPECT_NEAR(value.tangent, x > 0 ? 1.0 : 0.0, 1e-15);
    EXPECT_NEAR(slope.value, x > 0 ? 1.0 : 0.0, 1e-15);
    EXPECT_NEAR(slope.tangent, 0.0, 1e-15);
  }
  EXPECT_EQ(silu(-200.0f), -0.0f);
  EXPECT_EQ(silu(200.0f), 200.0f);
}

}  // namespace
}  // namespace fastpath::ops
