#include <gmock/gmock.h>

#include <array>
#include <numbers>
#include <optional>
#include <utility>

#include "ops/pair_zbl/pair_zbl.hpp"
#include "ops/radial_basis/radial_basis.hpp"
#include "support/ops_data.hpp"

namespace fastpath::ops {
namespace {

using namespace test;

using sdk::DistanceTransform;
using Config = sdk::RadialBasisConfig;

Config mace_config(std::int64_t n_basis, double r_max, int p) {
  Config config;
  config.n_basis = n_basis;
  config.r_max = r_max;
  config.prefactor = std::sqrt(2.0 / r_max);
  config.p = p;
  return config;
}

Reals frequencies(const Config& config) {
  Reals result;
  for (std::int64_t n = 1; n <= config.n_basis; ++n) {
    result.push_back(static_cast<double>(n) * std::numbers::pi / config.r_max);
  }
  return result;
}

/// Edges of a small graph; species only matter to transforms.
struct Edges {
  Indices sender, receiver, species;
};

Edges some_edges(std::size_t n) {
  Edges edges{{}, {}, {0, 1, 2, 1}};
  for (std::size_t e = 0; e < n; ++e) {
    edges.sender.push_back(static_cast<std::int32_t>(e % 4));
    edges.receiver.push_back(static_cast<std::int32_t>(e / 3 % 4));
  }
  return edges;
}

template <class S>
struct Output {
  std::vector<S> embedding, envelope;
};

template <class S>
Output<S> evaluate(const Config& config, const std::vector<S>& r, const std::vector<S>& weights,
                   const Edges& edges = {}) {
  Output<S> out{std::vector<S>(r.size() * static_cast<std::size_t>(config.n_basis), S(99)),
                std::vector<S>(r.size(), S(99))};
  radial_basis_forward<S>(config, static_cast<std::int64_t>(r.size()), r.data(), edges.sender.data(),
                          edges.receiver.data(), edges.species.data(), weights.data(), out.embedding.data(),
                          out.envelope.data());
  return out;
}

template <class S>
struct Gradient {
  std::vector<S> lengths, weights;
};

template <class S>
Gradient<S> gradient(const Config& config, const std::vector<S>& r, const std::vector<S>& weights,
                     const std::vector<S>& grad_embedding, const std::vector<S>& grad_envelope,
                     const Edges& edges = {}) {
  Gradient<S> out{std::vector<S>(r.size(), S(99)), std::vector<S>(weights.size(), S(99))};
  const auto pointer = [](const std::vector<S>& values) { return values.empty() ? nullptr : values.data(); };
  radial_basis_backward<S>(config, static_cast<std::int64_t>(r.size()), r.data(), edges.sender.data(),
                           edges.receiver.data(), edges.species.data(), weights.data(), pointer(grad_embedding),
                           pointer(grad_envelope), out.lengths.data(), out.weights.data());
  return out;
}

TEST(RadialBasis, HasThePublishedValues) {
  const Config config = mace_config(8, 5.0, 5);
  const Reals w = frequencies(config);
  const auto at = [&](double r) { return evaluate<double>(config, {r}, w); };
  const auto slope = [&](double r) { return gradient<double>(config, {r}, w, Reals(8, 1.0), {}).lengths[0]; };

  EXPECT_LE(relative_error(at(1.0).embedding,
                           {0.37001122764318656, 0.5986907425457504, 0.5986907425457505, 0.3700112276431866, 0.0,
                            -0.3700112276431865, -0.5986907425457504, -0.5986907425457505}),
            1e-14);
  EXPECT_LE(relative_error(at(2.5).embedding, {0.1956659302229185, 0, -0.1956659302229185, 0, 0.1956659302229185, 0,
                                               -0.1956659302229185, 0}),
            1e-14);
  EXPECT_NEAR(slope(1.0), -5.235532324589609, 1e-13);
  EXPECT_NEAR(slope(2.5), 0.49176211915690665, 1e-14);
  // near r_max the published numbers themselves carry the cancellation of the expanded polynomial, 1e-15 absolute
  EXPECT_NEAR(at(4.9).embedding[0], 2.136344666357879e-06, 1e-16);
  EXPECT_NEAR(at(4.9).embedding[7], -1.6390880341180156e-05, 1e-15);
  EXPECT_NEAR(slope(4.9), 0.0003135786049222405, 2e-15);
}

TEST(RadialBasis, HasThePublishedEnvelope) {
  EXPECT_NEAR(polynomial_envelope(1.0, 5.0, 5), 0.995328, 1e-15);
  EXPECT_NEAR(polynomial_envelope(1.0, 5.0, 6), 0.99876864, 1e-15);
  EXPECT_NEAR(polynomial_envelope(2.5, 5.0, 5), 0.7734375, 1e-15);
  EXPECT_NEAR(polynomial_envelope(2.5, 5.0, 6), 0.85546875, 1e-15);
  EXPECT_NEAR(polynomial_envelope(4.9, 5.0, 5), 0.000263598739197235, 1e-14);
  EXPECT_NEAR(polynomial_envelope_derivative(1.0, 5.0, 5), -0.021504, 1e-16);
  EXPECT_NEAR(polynomial_envelope_derivative(2.5, 5.0, 5), -0.328125, 1e-15);
  EXPECT_NEAR(polynomial_envelope_derivative(4.9, 5.0, 5), -0.007747892543994795,
              1e-14);  // differentiated term by term
  EXPECT_EQ(polynomial_envelope(0.0, 5.0, 5), 1.0);
  EXPECT_EQ(polynomial_envelope(5.0, 5.0, 5), 0.0);
  EXPECT_EQ(polynomial_envelope(6.0, 5.0, 5), 0.0);
  EXPECT_EQ(polynomial_envelope_derivative(6.0, 5.0, 5), 0.0);
}

TEST(RadialBasis, EnvelopeMatchesItsExpandedForm) {
  for (const int p : {2, 5, 6, 12}) {
    for (const double u : {0.01, 0.3, 0.77, 0.999}) {
      const double expanded = 1 - 0.5 * (p + 1) * (p + 2) * std::pow(u, p) + p * (p + 2) * std::pow(u, p + 1) -
                              0.5 * p * (p + 1) * std::pow(u, p + 2);
      EXPECT_NEAR(polynomial_envelope(3 * u, 3.0, p), expanded, 1e-15 * p * p);
      // To the last digits, also where it is nearly flat.
      const double slope = polynomial_envelope_derivative(3 * u, 3.0, p);
      EXPECT_NEAR(polynomial_envelope(Dual<double>(3 * u, 1.0), 3.0, p).tangent, slope, 1e-15 * std::abs(slope));
    }
  }
}

TEST(RadialBasis, TheOtherPrefactorGivesThePublishedNequipValues) {
  Config config = mace_config(4, 4.0, 6);
  config.prefactor = 2.0 / config.r_max;
  EXPECT_LE(relative_error(evaluate<double>(config, {2.23606797749979}, frequencies(config)).embedding,
                           {0.16793158467431815, -0.06191534188569409, -0.14510377912328393, 0.11541421233789623}),
            1e-14);
}

TEST(RadialBasis, ReproducesReferenceDataWithFirstAndSecondDerivatives) {
  const TestData data("refdata/radial_bessel.safetensors");
  for (const std::string key : {"c0_", "c1_", "c2_", "c3_"}) {
    const Reals r = data.reals(key + "r"), cotangent = data.reals(key + "ct");
    Config config = mace_config(static_cast<std::int64_t>(cotangent.size() / r.size()), data.reals(key + "r_max")[0],
                                static_cast<int>(data.integers(key + "p")[0]));
    const Reals w = frequencies(config);
    EXPECT_LE(relative_error(evaluate(config, r, w).embedding, data.reals(key + "embed")), 1e-13) << key;
    EXPECT_LE(relative_error(evaluate(config, r, w).envelope, data.reals(key + "cutoff")), 1e-13) << key;
    EXPECT_LE(relative_error(gradient(config, r, w, cotangent, {}).lengths, data.reals(key + "gr")), 1e-13) << key;
    const Duals second = gradient(config, duals(r, Reals(r.size(), 1.0)), duals(w), duals(cotangent), {}).lengths;
    EXPECT_LE(relative_error(tangents_of(second), data.reals(key + "g2r")), 1e-10) << key;
    config.apply_cutoff = false;
    EXPECT_LE(relative_error(evaluate(config, r, w).embedding, data.reals(key + "bessel")), 1e-13) << key;
  }
}

TEST(RadialBasis, TransformsHaveThePublishedValues) {
  const double h = 0.31, c = 0.76, o = 0.66;
  Config config = mace_config(1, 5.0, 5);
  const auto at = [&](double a, double b, double r) { return transform_distance(config, r, a, b).value; };
  config.transform = DistanceTransform::agnesi;
  EXPECT_NEAR(at(h, h, 0.8), 0.28549134924557656, 1e-15);
  EXPECT_NEAR(at(h, c, 1.1), 0.33842594082744143, 1e-15);
  EXPECT_NEAR(at(c, c, 1.5), 0.3493157436562217, 1e-15);
  EXPECT_NEAR(at(o, h, 0.97), 0.34573380527035824, 1e-15);
  EXPECT_NEAR(at(c, o, 1.2), 0.39586872375605314, 1e-15);
  EXPECT_EQ(at(c, o, 0.0), 1.0);
  config.transform = DistanceTransform::soft;
  EXPECT_NEAR(at(h, h, 0.8), 0.789286660674627, 1e-15);
  EXPECT_NEAR(at(h, c, 1.1), 0.9373884647000915, 1e-15);
  EXPECT_NEAR(at(c, c, 1.5), 1.2553482702440875, 1e-15);
}

// 1 + tanh and 1 - tanh^2 would have lost up to ten digits there. Expected values: 60 digits, rounded.
TEST(RadialBasis, SoftTransformKeepsItsDigitsFarBelowTheStep) {
  Config config = mace_config(1, 5.0, 5);
  config.transform = DistanceTransform::soft;
  for (const auto& [r, value, slope] : {std::array{0.0625, 4.64998997775449951e-1, -1.96789682220106067e-5},
                                        std::array{0.125, 4.64996626490330911e-1, -6.46985843727376688e-5}}) {
    const TransformedDistance<double> found = transform_distance(config, r, 0.31, 0.31);
    EXPECT_NEAR(found.value, value, 1e-15);
    EXPECT_NEAR(found.derivative / slope, 1.0, 1e-13);
  }
}

TEST(RadialBasis, AgnesiReproducesReferenceData) {
  const TestData data("refdata/radial_zbl_agnesi.safetensors");
  const Reals r = data.reals("r"), constants = data.reals("agnesi_qpa"), radii = data.reals("covalent_radii");
  const auto edge_index = data.integers("edge_index"), element = data.integers("element"),
             numbers = data.integers("atomic_numbers");
  Config config = mace_config(1, 5.0, 5);
  config.transform = DistanceTransform::agnesi;
  config.q_exponent = constants[0];
  config.p_exponent = constants[1];
  config.a = constants[2];
  const auto radius = [&](std::int64_t node) {
    return radii[static_cast<std::size_t>(numbers[static_cast<std::size_t>(element[static_cast<std::size_t>(node)])])];
  };
  Reals x, slope;
  for (std::size_t e = 0; e < r.size(); ++e) {
    const auto [value, derivative] =
        transform_distance(config, r[e], radius(edge_index[e]), radius(edge_index[e + r.size()]));
    x.push_back(value);
    slope.push_back(derivative);
  }
  EXPECT_LE(relative_error(x, data.reals("agnesi")), 1e-13);
  EXPECT_LE(relative_error(slope, data.reals("agnesi_grad")), 1e-13);
}

class RadialBasisVariants : public ::testing::TestWithParam<std::tuple<DistanceTransform, bool>> {
 protected:
  RadialBasisVariants() : edges(some_edges(20)) {
    config = mace_config(6, 4.0, 5);
    config.transform = std::get<0>(GetParam());
    config.apply_cutoff = std::get<1>(GetParam());
    config.species_radii = {0.31, 0.76, 0.66};
    config.alpha = 2.5;
    r = random_values_between(0.2, 3.9, 20, 1);
    w = frequencies(config);
    grad_embedding = random_values(120, 2);
    grad_envelope = random_values(20, 3);
  }
  Config config;
  Edges edges;
  Reals r, w, grad_embedding, grad_envelope;
};

TEST_P(RadialBasisVariants, GradientsMatchFiniteDifferences) {
  const auto loss = [&](const Reals& lengths, const Reals& weights) {
    const auto out = evaluate(config, lengths, weights, edges);
    return Reals{dot(out.embedding, grad_embedding) + dot(out.envelope, grad_envelope)};
  };
  const auto grad = gradient(config, r, w, grad_embedding, grad_envelope, edges);
  const Reals dr = random_values(20, 4), dw = random_values(6, 5);
  const Reals slope_r = difference([&](const Reals& at) { return loss(at, w); }, r, dr, 1e-3);
  const Reals slope_w = difference([&](const Reals& at) { return loss(r, at); }, w, dw, 1e-3);
  EXPECT_NEAR(dot(grad.lengths, dr) / slope_r[0], 1.0, 1e-8);
  EXPECT_NEAR(dot(grad.weights, dw) / slope_w[0], 1.0, 1e-8);
}

TEST_P(RadialBasisVariants, TangentsOfTheGradientsMatchFiniteDifferences) {
  const Reals dr = random_values(20, 4), dw = random_values(6, 5);
  const auto second = gradient(config, duals(r, dr), duals(w, dw), duals(grad_embedding), duals(grad_envelope), edges);
  Reals point = r, direction = dr;
  point.insert(point.end(), w.begin(), w.end());
  direction.insert(direction.end(), dw.begin(), dw.end());
  const Reals expected = difference(
      [&](const Reals& at) {
        const auto grad = gradient(config, Reals(at.begin(), at.begin() + 20), Reals(at.begin() + 20, at.end()),
                                   grad_embedding, grad_envelope, edges);
        Reals both = grad.lengths;
        both.insert(both.end(), grad.weights.begin(), grad.weights.end());
        return both;
      },
      point, direction, 1e-3);
  Reals got = tangents_of(second.lengths);
  for (const double tangent : tangents_of(second.weights)) got.push_back(tangent);
  EXPECT_LE(relative_error(got, expected), 1e-7);
}

TEST_P(RadialBasisVariants, FloatAgreesWithDouble) {
  const auto compare = [](const std::vector<float>& a, const Reals& b) { EXPECT_LE(relative_error(a, b), 1e-6); };
  r = rounded(r), w = rounded(w), grad_embedding = rounded(grad_embedding), grad_envelope = rounded(grad_envelope);
  const auto out = evaluate(config, r, w, edges);
  const auto out_float = evaluate(config, converted<float>(r), converted<float>(w), edges);
  compare(out_float.embedding, out.embedding);
  compare(out_float.envelope, out.envelope);
  const auto grad = gradient(config, r, w, grad_embedding, grad_envelope, edges);
  const auto grad_float = gradient(config, converted<float>(r), converted<float>(w), converted<float>(grad_embedding),
                                   converted<float>(grad_envelope), edges);
  compare(grad_float.lengths, grad.lengths);
  compare(grad_float.weights, grad.weights);
}

TEST_P(RadialBasisVariants, FrequenciesOfTheConfigurationComeBeforeRoundedOnes) {
  r = rounded(r), grad_embedding = rounded(grad_embedding), grad_envelope = rounded(grad_envelope);
  const auto out = evaluate(config, r, w, edges);
  const auto grad = gradient(config, r, w, grad_embedding, grad_envelope, edges);
  const auto run = [&] {
    const auto low = evaluate(config, converted<float>(r), converted<float>(w), edges);
    const auto low_grad = gradient(config, converted<float>(r), converted<float>(w), converted<float>(grad_embedding),
                                   converted<float>(grad_envelope), edges);
    return std::pair(low.embedding == converted<float>(out.embedding),
                     low_grad.lengths == converted<float>(grad.lengths));
  };
  EXPECT_EQ(run(), std::pair(false, false));
  config.frequencies = w;
  EXPECT_EQ(run(), std::pair(true, true));
  // In double they are what the parameter says, and their tangent is its tangent.
  const Duals moving = duals(w, random_values(6, 5)), at = duals(r);
  const auto with = evaluate(config, at, moving, edges);
  config.frequencies.clear();
  const auto without = evaluate(config, at, moving, edges);
  for (std::size_t i = 0; i < with.embedding.size(); ++i) {
    EXPECT_EQ(with.embedding[i].value, without.embedding[i].value);
    EXPECT_EQ(with.embedding[i].tangent, without.embedding[i].tangent);
  }
}

TEST_P(RadialBasisVariants, IsExactlyZeroFromTheCutoffOn) {
  const Reals beyond{4.0, std::nextafter(4.0, 5.0), 7.0};
  const auto out = evaluate(config, beyond, w, edges);
  EXPECT_THAT(out.envelope, ::testing::Each(0.0));
  if (!config.apply_cutoff) return;
  EXPECT_THAT(out.embedding, ::testing::Each(0.0));
  EXPECT_THAT(gradient(config, beyond, w, Reals(18, 1.0), Reals(3, 1.0), edges).lengths, ::testing::Each(0.0));
}

TEST_P(RadialBasisVariants, IsFiniteAtLengthZero) {
  const Duals zero(3, {0.0, 1.0});
  const Duals weights = duals(w);
  for (const auto& value : evaluate(config, zero, weights, edges).embedding) {
    EXPECT_TRUE(std::isfinite(value.value) && std::isfinite(value.tangent));
  }
  for (const auto& value : gradient(config, zero, weights, Duals(18, 1.0), Duals(3, 1.0), edges).lengths) {
    EXPECT_TRUE(std::isfinite(value.value) && std::isfinite(value.tangent));
  }
}

INSTANTIATE_TEST_SUITE_P(Transforms, RadialBasisVariants,
                         ::testing::Combine(::testing::Values(DistanceTransform::none, DistanceTransform::agnesi,
                                                              DistanceTransform::soft),
                                            ::testing::Bool()));

TEST(RadialBasis, TakesItsLimitAtLengthZero) {
  const Config config = mace_config(8, 5.0, 5);
  const Reals w = frequencies(config);
  Reals limit;
  for (const double frequency : w) limit.push_back(config.prefactor * frequency);
  EXPECT_LE(relative_error(evaluate<double>(config, {0.0}, w).embedding, limit), 1e-15);
  EXPECT_EQ(gradient<double>(config, {0.0}, w, Reals(8, 1.0), {1.0}).lengths[0], 0.0);
}

TEST(RadialBasis, DerivativeDoesNotCancelAtSmallLengths) {
  for (const double t : {1e-12, 1e-6, 1e-3, 0.1, 0.99, 1.01, 3.0}) {
    const long double x = t;
    const long double series = -x / 3 + x * x * x / 30 - std::pow(x, 5.0L) / 840 + std::pow(x, 7.0L) / 45360;
    const long double direct = (x * std::cos(x) - std::sin(x)) / (x * x);
    const auto expected = static_cast<double>(t < 0.05 ? series : direct);
    EXPECT_NEAR(sinc_derivative(t) / expected, 1.0, 2e-15) << t;
    EXPECT_NEAR(sinc(t) / static_cast<double>(std::sin(x) / x), 1.0, 1e-15) << t;
    EXPECT_NEAR(sinc(Dual<double>(t, 1.0)).tangent / expected, 1.0, 2e-14) << t;
  }
}

TEST(RadialBasis, NullOutputsAreNotWanted) {
  const Config config = mace_config(3, 5.0, 5);
  const Reals w = frequencies(config), r{1.0, 2.0};
  Reals embedding(6, 99.0), lengths(2, 99.0), weights(3, 99.0);
  radial_basis_forward<double>(config, 2, r.data(), nullptr, nullptr, nullptr, w.data(), embedding.data(), nullptr);
  EXPECT_EQ(embedding, evaluate(config, r, w).embedding);
  const Reals grad(6, 1.0);
  const auto both = gradient(config, r, w, grad, {});
  radial_basis_backward<double>(config, 2, r.data(), nullptr, nullptr, nullptr, w.data(), grad.data(), nullptr,
                                lengths.data(), nullptr);
  radial_basis_backward<double>(config, 2, r.data(), nullptr, nullptr, nullptr, w.data(), grad.data(), nullptr, nullptr,
                                weights.data());
  EXPECT_EQ(lengths, both.lengths);
  EXPECT_EQ(weights, both.weights);
}

TEST(RadialBasis, TakesNoEdges) {
  const Config config = mace_config(3, 5.0, 5);
  const auto grad = gradient<double>(config, {}, frequencies(config), {}, {});
  EXPECT_THAT(grad.weights, ::testing::Each(0.0));
}

PairZblConstants zbl_constants() {
  PairZblConstants constants;
  constants.radii = {0.31, 0.84, 0.76, 0.66, 0.58};  // H B C O Ne
  constants.atomic_numbers = {1, 5, 6, 8, 10};
  return constants;
}

TEST(PairZbl, HasThePublishedValues) {
  const PairZblConstants constants = zbl_constants();
  EXPECT_NEAR(pair_zbl(constants, 0.8, 0, 2).energy, 0.21301034432182203, 1e-15);
  EXPECT_NEAR(pair_zbl(constants, 1.0, 3, 3).energy, 0.24670994511618702, 1e-15);
  EXPECT_NEAR(pair_zbl(constants, 0.9, 3, 2).energy, 0.7408774257062346, 2e-15);
  EXPECT_NEAR(pair_zbl(constants, 1.0, 1, 4).energy, 0.3166652764835175, 1e-15);
  EXPECT_NEAR(polynomial_envelope(1.0, 0.84 + 0.58, 6), 0.4374788794430078, 1e-15);
  EXPECT_EQ(pair_zbl(constants, 1.42, 1, 4).energy, 0.0);
  EXPECT_EQ(pair_zbl(constants, 2.0, 1, 4).derivative, 0.0);
}

struct ZblCase {
  PairZblConstants constants;
  Reals r;
  Indices sender, receiver, species;
  std::int64_t n_nodes = 0;

  std::int64_t n_edges() const { return static_cast<std::int64_t>(r.size()); }
  template <class S>
  std::vector<S> energy(const std::vector<S>& lengths) const {
    std::vector<S> out(static_cast<std::size_t>(n_nodes), S(99));
    pair_zbl_forward<S>(constants, n_edges(), n_nodes, lengths.data(), sender.data(), receiver.data(), species.data(),
                        out.data());
    return out;
  }
  template <class S>
  std::vector<S> gradient(const std::vector<S>& lengths, const std::vector<S>& grad) const {
    std::vector<S> out(lengths.size(), S(99));
    pair_zbl_backward<S>(constants, n_edges(), lengths.data(), sender.data(), receiver.data(), species.data(),
                         grad.data(), out.data());
    return out;
  }
};

ZblCase zbl_reference() {
  const TestData data("refdata/radial_zbl_agnesi.safetensors");
  ZblCase result;
  const Reals c = data.reals("zbl_c"), radii = data.reals("covalent_radii");
  std::copy(c.begin(), c.end(), result.constants.c.begin());
  result.constants.p = static_cast<int>(data.integers("zbl_p")[0]);
  result.constants.a_exp = data.reals("zbl_a_exp")[0];
  result.constants.a_prefactor = data.reals("zbl_a_prefactor")[0];
  for (const std::int64_t number : data.integers("atomic_numbers")) {
    result.constants.atomic_numbers.push_back(static_cast<double>(number));
    result.constants.radii.push_back(radii[static_cast<std::size_t>(number)]);
  }
  result.r = data.reals("r");
  const Indices edge_index = converted<std::int32_t>(data.integers("edge_index"));
  result.sender.assign(edge_index.begin(), edge_index.begin() + result.n_edges());
  result.receiver.assign(edge_index.begin() + result.n_edges(), edge_index.end());
  result.species = converted<std::int32_t>(data.integers("element"));
  result.n_nodes = static_cast<std::int64_t>(result.species.size());
  return result;
}

TEST(PairZbl, ReproducesReferenceData) {
  const ZblCase test = zbl_reference();
  const TestData data("refdata/radial_zbl_agnesi.safetensors");
  EXPECT_LE(relative_error(test.energy(test.r), data.reals("zbl_node")), 1e-13);
  EXPECT_LE(
      relative_error(test.gradient(test.r, Reals(static_cast<std::size_t>(test.n_nodes), 1.0)), data.reals("zbl_grad")),
      1e-13);
}

TEST(PairZbl, DerivativesMatchFiniteDifferencesAndFloatAgrees) {
  ZblCase test = zbl_reference();
  test.r = rounded(random_values_between(0.3, 1.2, test.r.size(), 11));
  const Reals grad = rounded(random_values(static_cast<std::size_t>(test.n_nodes), 12)),
              direction = random_values(test.r.size(), 13);
  const Reals slope =
      difference([&](const Reals& at) { return Reals{dot(test.energy(at), grad)}; }, test.r, direction, 1e-4);
  EXPECT_NEAR(dot(test.gradient(test.r, grad), direction) / slope[0], 1.0, 1e-7);
  const Duals second = test.gradient(duals(test.r, direction), duals(grad));
  const Reals expected = difference([&](const Reals& at) { return test.gradient(at, grad); }, test.r, direction, 1e-4);
  EXPECT_LE(relative_error(tangents_of(second), expected), 1e-7);
  EXPECT_LE(relative_error(test.energy(converted<float>(test.r)), test.energy(test.r)), 1e-6);
  EXPECT_LE(
      relative_error(test.gradient(converted<float>(test.r), converted<float>(grad)), test.gradient(test.r, grad)),
      1e-6);
}

TEST(PairZbl, NodesWithoutEdgesGetZero) {
  ZblCase test = zbl_reference();
  test.r.clear();
  EXPECT_THAT(test.energy(test.r), ::testing::Each(0.0));
}

}  // namespace
}  // namespace fastpath::ops
