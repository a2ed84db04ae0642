#include "ops/spherical_harmonics/spherical_harmonics.hpp"

#include <gmock/gmock.h>

#include "support/ops_data.hpp"

namespace fastpath::ops {
namespace {

using namespace test;

using sdk::Normalization;
using Config = sdk::SphericalHarmonicsConfig;

template <class S>
std::vector<S> evaluate(const Config& config, const std::vector<S>& vectors) {
  const std::size_t n = vectors.size() / 3;
  std::vector<S> sh(n * static_cast<std::size_t>(config.dim()), S(99));
  spherical_harmonics_forward<S>(config, static_cast<std::int64_t>(n), vectors.data(), sh.data());
  return sh;
}

template <class S>
std::vector<S> gradient(const Config& config, const std::vector<S>& vectors, const std::vector<S>& grad_sh) {
  std::vector<S> result(vectors.size(), S(99));
  spherical_harmonics_backward<S>(config, static_cast<std::int64_t>(vectors.size() / 3), vectors.data(), grad_sh.data(),
                                  result.data());
  return result;
}

/// 1 in block l, 0 elsewhere.
Reals ones_in_block(int l_max, int l) {
  Reals result(static_cast<std::size_t>((l_max + 1) * (l_max + 1)), 0.0);
  std::fill(result.begin() + l * l, result.begin() + (l + 1) * (l + 1), 1.0);
  return result;
}

TEST(SphericalHarmonics, HasThePublishedValues) {
  const Reals sh = evaluate<double>({.l_max = 4}, {1, 2, 3});
  const Reals expected{
      1.0,
      // l = 1
      0.4629100498862757, 0.9258200997725514, 1.3887301496588271,
      // l = 2
      0.8299250027587319, 0.5532833351724881, -0.15971914124998496, 1.6598500055174639, 1.1065666703449757,
      // l = 3
      1.0381744181249022, 1.173691194653927, 0.18557687223952257, -1.1111677990074316, 0.5567306167185677,
      1.5649215928719025, 0.718736135624932,
      // l = 4
      1.086626898936664, 1.6647827058586193, 0.718736135624932, -0.3388154635894691, -1.017857142857143,
      -1.0164463907684071, 0.9583148474999094, 1.1525418732867363, 0.31693284552319345};
  EXPECT_LE(relative_error(sh, expected), 1e-15);
}

TEST(SphericalHarmonics, HasThePublishedGradients) {
  const std::vector<Reals> expected{{0.26452002850644324, 0.06613000712661084, -0.1322600142532218},
                                    {0.37686097587446593, 0.6054701289038656, -0.5292670778940664},
                                    {-0.2271501477306924, 1.42870027877609, -0.876750136607163}};
  for (int l = 1; l <= 3; ++l) {
    const Reals grad = gradient<double>({.l_max = 3}, {1, 2, 3}, ones_in_block(3, l));
    EXPECT_LE(relative_error(grad, expected[static_cast<std::size_t>(l - 1)]), 5e-15) << l;
  }
  const Reals solid2 = gradient<double>({.l_max = 3, .normalize = false}, {1, 2, 3}, ones_in_block(3, 2));
  EXPECT_LE(relative_error(solid2, {13.255865407329878, 24.436205294828827, 16.529696144745127}), 1e-15);
  const Reals solid3 = gradient<double>({.l_max = 3, .normalize = false}, {1, 2, 3}, ones_in_block(3, 3));
  EXPECT_LE(relative_error(solid3, {34.42282524625806, 167.48325260304912, 93.0380521717567}), 1e-15);
}

TEST(SphericalHarmonics, ReproducesReferenceDataWithFirstAndSecondDerivatives) {
  const TestData data("refdata/sh_l6.safetensors");
  const Reals vectors = data.reals("vectors"), cotangent = data.reals("cotangent"), along = data.reals("cotangent2");
  for (const auto& [normalization, name] : {std::pair{Normalization::component, "component"},
                                            {Normalization::norm, "norm"},
                                            {Normalization::integral, "integral"}}) {
    for (const bool normalize : {true, false}) {
      const Config config{.l_max = 6, .normalize = normalize, .normalization = normalization};
      const std::string key = std::string(name) + (normalize ? "" : "_solid");
      EXPECT_LE(worst_row_error(evaluate(config, vectors), data.reals("sh_" + key), 49), 1e-13) << key;
      EXPECT_LE(worst_row_error(gradient(config, vectors, cotangent), data.reals("vjp_" + key), 3), 1e-13) << key;
      // the Hessian is symmetric, so its product with a vector is the tangent of the gradient
      const Duals second = gradient(config, duals(vectors, along), duals(cotangent));
      EXPECT_LE(worst_row_error(tangents_of(second), data.reals("vjpvjp_" + key), 3), 1e-10) << key;
    }
  }
}

/// Legendre polynomials 0..l_max.
Reals legendre(int l_max, double t) {
  Reals p{1.0, t};
  for (int l = 2; l <= l_max; ++l) {
    p.push_back(((2.0 * l - 1) * t * p[p.size() - 1] - (l - 1) * p[p.size() - 2]) / l);
  }
  return p;
}

TEST(SphericalHarmonics, SatisfiesTheAdditionTheoremUpToDegreeTwelve) {
  const Reals vectors = random_values(3 * 40, 3);
  const Reals sh = evaluate<double>({.l_max = 12}, vectors);
  const std::size_t dim = 169;
  for (std::size_t a = 0; a < 40; ++a) {
    for (std::size_t b = 0; b <= a; ++b) {
      const auto row = [&](std::size_t i) { return Reals{vectors[3 * i], vectors[3 * i + 1], vectors[3 * i + 2]}; };
      const double cosine = dot(row(a), row(b)) / std::sqrt(dot(row(a), row(a)) * dot(row(b), row(b)));
      const Reals p = legendre(12, cosine);
      for (std::size_t l = 0; l <= 12; ++l) {
        double sum = 0;
        for (std::size_t c = l * l; c < (l + 1) * (l + 1); ++c) sum += sh[a * dim + c] * sh[b * dim + c];
        // relative to the largest value 2l + 1; the cosine's own rounding is amplified by up to l^2 / 2
        ASSERT_NEAR(sum / (2.0 * static_cast<double>(l) + 1), p[l], 5e-14) << l;
      }
    }
  }
}

TEST(SphericalHarmonics, StaysWithinTheFloat64ContractAtDegreeTwelve) {
  for (const bool normalize : {true, false}) {
    const Config config{.l_max = 12, .normalize = normalize};
    const Reals vectors = random_values(3 * 100, 8), cotangent = random_values(100 * 169, 9);
    const auto exact = evaluate(config, converted<long double>(vectors));
    EXPECT_LE(worst_row_error(evaluate(config, vectors), Reals(exact.begin(), exact.end()), 169), 1e-14);
    const auto exact_gradient = gradient(config, converted<long double>(vectors), converted<long double>(cotangent));
    EXPECT_LE(relative_error(gradient(config, vectors, cotangent), Reals(exact_gradient.begin(), exact_gradient.end())),
              1e-14);
  }
}

TEST(SphericalHarmonics, HasTheStatedNorms) {
  const Reals vectors = random_values(30, 4);
  const double sphere = 4 * std::numbers::pi;
  for (const Normalization normalization : {Normalization::component, Normalization::norm, Normalization::integral}) {
    const Reals sh = evaluate<double>({.l_max = 11, .normalization = normalization}, vectors);
    for (std::size_t row = 0; row < 10; ++row) {
      for (std::size_t l = 0; l <= 11; ++l) {
        double sum = 0;
        for (std::size_t c = l * l; c < (l + 1) * (l + 1); ++c) sum += sh[row * 144 + c] * sh[row * 144 + c];
        const double components = 2.0 * static_cast<double>(l) + 1;
        const double expected = normalization == Normalization::component ? components
                                : normalization == Normalization::norm    ? 1.0
                                                                          : components / sphere;
        EXPECT_NEAR(sum, expected, 2e-14 * expected);
      }
    }
  }
}

TEST(SphericalHarmonics, RotatesWithItsArgument) {
  // Y_l(R v) = D_l(R) Y_l(v), said without D: C(l1,l2,l3) contracted with Y(a), Y(b), Y(c) does not change.
  const Reals vectors{0.3, -1.2, 0.7, 1.1, 0.4, -0.2, -0.5, 0.9, 1.6};
  const double a = 0.9, b = -2.3;
  Reals rotated;
  for (std::size_t i = 0; i < 3; ++i) {
    const double x = vectors[3 * i], y = vectors[3 * i + 1], z = vectors[3 * i + 2];
    const double x1 = std::cos(a) * x + std::sin(a) * z, z1 = std::cos(a) * z - std::sin(a) * x;
    rotated.insert(rotated.end(), {x1, std::cos(b) * y - std::sin(b) * z1, std::sin(b) * y + std::cos(b) * z1});
  }
  const auto contract = [](const Reals& sh, const sdk::CouplingTensor& c) {
    const auto at = [&](std::size_t row, int l, int m) { return sh[row * 49 + static_cast<std::size_t>(l * l + m)]; };
    double sum = 0;
    for (const auto& e : c.nonzero) sum += e.value * at(0, c.l1, e.i) * at(1, c.l2, e.j) * at(2, c.l3, e.k);
    return sum;
  };
  const Reals before = evaluate<double>({.l_max = 6}, vectors), after = evaluate<double>({.l_max = 6}, rotated);
  double largest = 0;
  for (int l1 = 0; l1 <= 6; ++l1) {
    for (int l2 = 0; l2 <= 6; ++l2) {
      for (int l3 = std::abs(l1 - l2); l3 <= std::min(6, l1 + l2); ++l3) {
        const double value = contract(before, sdk::coupling(l1, l2, l3));
        EXPECT_NEAR(contract(after, sdk::coupling(l1, l2, l3)), value, 1e-13) << l1 << l2 << l3;
        largest = std::max(largest, std::abs(value));
      }
    }
  }
  EXPECT_GT(largest, 1.0);
}

TEST(SphericalHarmonics, GradientMatchesFiniteDifferencesUpToDegreeEleven) {
  for (const bool normalize : {true, false}) {
    const Config config{.l_max = 11, .normalize = normalize};
    const Reals vectors = random_values(3 * 7, 5), direction = random_values(3 * 7, 6),
                cotangent = random_values(7 * 144, 7);
    const Reals slope = difference([&](const Reals& v) { return Reals{dot(evaluate(config, v), cotangent)}; }, vectors,
                                   direction, 1e-3);
    EXPECT_NEAR(dot(gradient(config, vectors, cotangent), direction) / slope[0], 1.0, 1e-6);  // step^4 * 11^5
    const Duals tangent = evaluate(config, duals(vectors, direction));
    EXPECT_NEAR(dot(tangents_of(tangent), cotangent) / slope[0], 1.0, 1e-6);
  }
}

TEST(SphericalHarmonics, TangentOfTheGradientMatchesFiniteDifferences) {
  for (const bool normalize : {true, false}) {
    const Config config{.l_max = 4, .normalize = normalize};
    const Reals vectors = random_values(3 * 5, 15), cotangent = random_values(5 * 25, 17);
    const Reals direction = random_values(3 * 5, 16), other = random_values(5 * 25, 18);
    const Duals result = gradient(config, duals(vectors, direction), duals(cotangent, other));
    Reals expected =
        difference([&](const Reals& v) { return gradient(config, v, cotangent); }, vectors, direction, 1e-4);
    const Reals linear = gradient(config, vectors, other);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += linear[i];
    EXPECT_LE(relative_error(tangents_of(result), expected), 1e-8);
    EXPECT_LE(relative_error(values_of(result), gradient(config, vectors, cotangent)), 1e-15);
  }
}

TEST(SphericalHarmonics, FloatAgreesWithDouble) {
  for (const bool normalize : {true, false}) {
    const Config config{.l_max = 11, .normalize = normalize};
    const Reals vectors = rounded(random_values(3 * 50, 21)), cotangent = rounded(random_values(50 * 144, 22));
    EXPECT_LE(worst_row_error(evaluate(config, converted<float>(vectors)), evaluate(config, vectors), 144), 1e-6);
    EXPECT_LE(worst_row_error(gradient(config, converted<float>(vectors), converted<float>(cotangent)),
                              gradient(config, vectors, cotangent), 3),
              1e-6);
  }
}

TEST(SphericalHarmonics, ZeroVectorGivesOneThenZerosAndNoGradient) {
  const Reals sh = evaluate<double>({.l_max = 3}, {0, 0, 0});
  Reals expected(16, 0.0);
  expected[0] = 1.0;
  EXPECT_EQ(sh, expected);
  EXPECT_THAT(gradient<double>({.l_max = 3}, {0, 0, 0}, Reals(16, 1.0)), ::testing::Each(0.0));
  const Duals second = gradient<Dual<double>>({.l_max = 3}, Duals(3, {0.0, 1.0}), Duals(16, {1.0, 1.0}));
  EXPECT_THAT(tangents_of(second), ::testing::Each(0.0));
  // solid harmonics are polynomials: degree 1 has a gradient at 0
  EXPECT_LE(relative_error(gradient<double>({.l_max = 3, .normalize = false}, {0, 0, 0}, Reals(16, 1.0)),
                           Reals(3, std::sqrt(3.0))),
            1e-15);
}

TEST(SphericalHarmonics, DegreeZeroIsConstant) {
  EXPECT_EQ(evaluate<double>({.l_max = 0}, {1, 2, 3, 0, 0, 0}), (Reals{1, 1}));
  EXPECT_EQ(gradient<double>({.l_max = 0}, {1, 2, 3}, {5}), (Reals{0, 0, 0}));
  EXPECT_EQ(gradient<double>({.l_max = 0, .normalize = false}, {1, 2, 3}, {5}), (Reals{0, 0, 0}));
}

TEST(SphericalHarmonics, TakesNoRowsAndRefusesDegreesBeyondTheCouplingTensors) {
  EXPECT_TRUE(evaluate<double>({.l_max = 5}, {}).empty());
  EXPECT_TRUE(gradient<double>({.l_max = 5}, {}, {}).empty());
  EXPECT_THROW(evaluate<double>({.l_max = 40}, {1, 2, 3}), sdk::ConfigError);
}

}  // namespace
}  // namespace fastpath::ops
