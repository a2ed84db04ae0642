#include <gtest/gtest.h>

#include <string>

#include "ops/irreps_linear/irreps_linear.hpp"
#include "ops/species_linear/species_linear.hpp"
#include "support/ops_data.hpp"

namespace fastpath::ops {
namespace {

using sdk::Irreps;
using sdk::IrrepsLinearConfig;
using sdk::SpeciesLinearConfig;
using test::random_values;
using test::relative_error;

constexpr double kDouble = 1e-14;  // the contract in float64: a few roundings per term, sums of at most 10^2 terms
constexpr double kFloat = 1e-6;    // the contract in float32

template <class S>
std::vector<S> forward(const IrrepsLinearConfig& config, const std::vector<S>& x, const std::vector<S>& weight,
                       const std::vector<S>& bias = {}) {
  const auto n = static_cast<std::int64_t>(x.size()) / config.in.dim();
  std::vector<S> y(static_cast<std::size_t>(n * config.out.dim()), S(99));
  irreps_linear_forward<S>(config, n, x.data(), weight.data(), bias.empty() ? nullptr : bias.data(), y.data());
  return y;
}

template <class S>
struct Gradients {
  std::vector<S> x, weight, bias;
};

template <class S>
Gradients<S> backward(const IrrepsLinearConfig& config, const std::vector<S>& x, const std::vector<S>& weight,
                      const std::vector<S>& grad_y) {
  const auto n = static_cast<std::int64_t>(x.size()) / config.in.dim();
  Gradients<S> g{std::vector<S>(x.size(), S(99)), std::vector<S>(weight.size(), S(99)),
                 std::vector<S>(static_cast<std::size_t>(config.bias_numel()), S(99))};
  irreps_linear_backward<S>(config, n, x.data(), weight.data(), grad_y.data(), g.x.data(), g.weight.data(),
                            g.bias.data());
  return g;
}

template <class S>
std::vector<S> forward(const SpeciesLinearConfig& config, const std::vector<S>& x,
                       const std::vector<std::int32_t>& species, const std::vector<S>& weight) {
  std::vector<S> y(species.size() * static_cast<std::size_t>(config.out.dim()), S(99));
  species_linear_forward<S>(config, static_cast<std::int64_t>(species.size()), x.data(), species.data(), weight.data(),
                            y.data());
  return y;
}

TEST(IrrepsLinear, MatchesThePublishedVector) {
  const IrrepsLinearConfig config{Irreps::parse("2x0e+1x1o+1x0e"), Irreps::parse("2x0e+2x1o")};
  const std::vector<double> y = forward<double>(config, {1, 2, 3, 4, 5, 6}, {.1, .2, .3, .4, .5, .6, .7, .8});
  EXPECT_LE(relative_error(y, std::vector{2.829016319029166, 3.3486315612998294, 1.5, 2.0, 2.5, 1.8, 2.4, 3.0}),
            kDouble);
}

TEST(IrrepsLinear, MatchesTheReferencePackageForwardAndBackward) {
  const test::TestData data("refdata/linear.safetensors");
  const std::vector<IrrepsLinearConfig> configs{
      {Irreps::parse("8x0e+8x1o"), Irreps::parse("8x0e+8x1o")},
      {Irreps::parse("5x0e+3x1o+2x2e+1x0e"), Irreps::parse("4x0e+2x1o+3x2e+2x0e")},
      {Irreps::parse("4x0e+4x0e+4x1o+4x1o+4x1o+4x2e"), Irreps::parse("4x0e+4x1o+4x2e+4x3o")},
      {Irreps::parse("3x0e+2x1o+4x0o"), Irreps::parse("2x0e+2x0o+1x1o"), true},
      {.in = Irreps::parse("3x0e+2x1o+4x0e"),
       .out = Irreps::parse("2x0e+2x1o+5x0e"),
       .normalization = sdk::PathNormalization::path}};
  for (std::size_t c = 0; c < configs.size(); ++c) {
    std::string key("c");
    key.append(std::to_string(c)).append("_");
    SCOPED_TRACE(key);
    const IrrepsLinearConfig& config = configs[c];
    const auto x = data.reals(key + "x"), w = data.reals(key + "w"), ct = data.reals(key + "ct");
    const auto bias = data.reals(key + "b");
    EXPECT_EQ(config.weight_numel(), static_cast<std::int64_t>(w.size()));
    EXPECT_EQ(config.bias_numel(), static_cast<std::int64_t>(bias.size()));
    EXPECT_LE(relative_error(forward(config, x, w, bias), data.reals(key + "y")), kDouble);
    const Gradients<double> g = backward(config, x, w, ct);
    EXPECT_LE(relative_error(g.x, data.reals(key + "gx")), kDouble);
    EXPECT_LE(relative_error(g.weight, data.reals(key + "gw")), kDouble);
    // The same configuration after a trip through attributes.
    EXPECT_EQ(forward(IrrepsLinearConfig::from(config.attributes()), x, w, bias), forward(config, x, w, bias));
  }
}

TEST(IrrepsLinear, BiasGradientIsTheColumnSumOverScalarsInBlockOrder) {
  const IrrepsLinearConfig config{Irreps::parse("1x0e"), Irreps::parse("1x0e+1x1o+1x0o+2x0e"), true};
  ASSERT_EQ(config.bias_numel(), 3);
  const std::vector<double> grad_y{1, 2, 3, 4, 5, 6, 7, 10, 20, 30, 40, 50, 60, 70};
  const Gradients<double> g = backward<double>(config, {1, 1}, {0, 0, 0}, grad_y);
  EXPECT_EQ(g.bias, (std::vector<double>{11, 66, 77}));
  const std::vector<double> y = forward<double>(config, {1}, {0, 0, 0}, {5, 6, 7});
  EXPECT_EQ(y, (std::vector<double>{5, 0, 0, 0, 0, 6, 7}));
}

TEST(IrrepsLinear, ScaleMultipliesTheSumButNotTheBias) {
  IrrepsLinearConfig config{Irreps::parse("4x0e"), Irreps::parse("1x0e"), true};
  config.scale = 0.5;
  EXPECT_EQ(forward<double>(config, {1, 2, 3, 4}, {1, 1, 1, 1}, {100}), (std::vector<double>{102.5}));
}

TEST(IrrepsLinear, OutputsWithoutAPathAreZero) {
  const IrrepsLinearConfig config{Irreps::parse("2x0e"), Irreps::parse("2x0o+1x0e+1x2e")};
  const std::vector<double> y = forward<double>(config, {1, 1}, {1, 1});
  for (const std::size_t i : {0, 1, 3, 4, 5, 6, 7}) EXPECT_EQ(y[i], 0.0) << i;
  EXPECT_NE(y[2], 0.0);
}

TEST(IrrepsLinear, GradientsMatchFiniteDifferencesForUnequalMultiplicities) {
  const IrrepsLinearConfig config{Irreps::parse("7x0e+3x1o+2x2e+1x3o+1x4e"), Irreps::parse("1x4e+2x3o+5x0e+1x1o+3x2e")};
  const auto x = random_values(4 * config.in.dim(), 1), dx = random_values(4 * config.in.dim(), 2);
  const auto w = random_values(config.weight_numel(), 3), dw = random_values(config.weight_numel(), 4);
  const auto ct = random_values(4 * config.out.dim(), 5);
  const Gradients<double> g = backward(config, x, w, ct);
  const double expected = test::derivative(
      [&](double h) { return test::dot(ct, forward(config, test::moved(x, h, dx), test::moved(w, h, dw))); }, 0.5);
  EXPECT_NEAR(test::dot(g.x, dx) + test::dot(g.weight, dw), expected, 1e-12 * std::abs(expected));
}

TEST(IrrepsLinear, TangentsFollowTheProductRule) {
  const IrrepsLinearConfig config{Irreps::parse("3x0e+2x1o"), Irreps::parse("2x0e+4x1o")};
  const auto x = random_values(4 * config.in.dim(), 1), dx = random_values(4 * config.in.dim(), 2);
  const auto w = random_values(config.weight_numel(), 3), dw = random_values(config.weight_numel(), 4);
  const auto ct = random_values(4 * config.out.dim(), 5);
  const auto moving = backward(config, test::duals(x, dx), test::duals(w, dw), test::duals(ct));
  EXPECT_LE(relative_error(test::tangents_of(moving.x), backward(config, x, dw, ct).x), kDouble);
  EXPECT_LE(relative_error(test::tangents_of(moving.weight), backward(config, dx, w, ct).weight), kDouble);
}

TEST(IrrepsLinear, FloatStaysWithinTheContractAlsoForLongSums) {
  const IrrepsLinearConfig config{Irreps::parse("640x0e+640x0e+16x1o"), Irreps::parse("64x0e+16x1o")};
  const std::int64_t n = 400;
  const auto x = random_values(n * config.in.dim(), 1), w = random_values(config.weight_numel(), 2);
  const auto ct = random_values(n * config.out.dim(), 3);
  const auto xf = test::converted<float>(x), wf = test::converted<float>(w), ctf = test::converted<float>(ct);
  const auto xd = test::converted<double>(xf), wd = test::converted<double>(wf), ctd = test::converted<double>(ctf);
  EXPECT_LE(relative_error(forward(config, xf, wf), forward(config, xd, wd)), kFloat);
  const auto gf = backward(config, xf, wf, ctf);
  const auto gd = backward(config, xd, wd, ctd);
  EXPECT_LE(relative_error(gf.x, gd.x), kFloat);
  EXPECT_LE(relative_error(gf.weight, gd.weight), kFloat);
}

TEST(IrrepsLinear, NoRowsGiveZeroParameterGradients) {
  const IrrepsLinearConfig config{Irreps::parse("2x0e+1x1o"), Irreps::parse("3x0e+1x1o"), true};
  const auto w = random_values(config.weight_numel(), 1);
  EXPECT_TRUE(forward<double>(config, {}, w, {1, 2, 3}).empty());
  const Gradients<double> g = backward<double>(config, {}, w, {});
  EXPECT_EQ(g.weight, std::vector<double>(7, 0.0));
  EXPECT_EQ(g.bias, std::vector<double>(3, 0.0));
}

TEST(SpeciesLinear, MatchesThePublishedVectors) {
  const SpeciesLinearConfig config{Irreps::parse("1x0e+1x1o"), Irreps::parse("2x0e+1x1o"), 2};
  const std::vector<double> w{.1, .2, .3, .4, .5, .6}, x{1, 2, 3, 4, 1, 2, 3, 4};
  EXPECT_LE(relative_error(forward(config, x, {1, 0}, w),
                           std::vector{0.21213203435596426, 0.28284271247461906, 0.848528137423857, 1.2727922061357855,
                                       1.697056274847714, 0.07071067811865477, 0.14142135623730953, 0.7071067811865476,
                                       1.0606601717798214, 1.4142135623730951}),
            kDouble);
}

TEST(SpeciesLinear, GradientsMatchFiniteDifferencesAndVanishForAbsentSpecies) {
  const SpeciesLinearConfig config{Irreps::parse("7x0e+3x1o+2x2e+1x4e"), Irreps::parse("4x0e+2x2e+1x1o+3x4e"), 4};
  const std::vector<std::int32_t> species{3, 0, 1, 0, 3};  // species 2 is absent
  const auto x = random_values(5 * config.in.dim(), 1), dx = random_values(5 * config.in.dim(), 2);
  const auto w = random_values(config.weight_numel(), 3), dw = random_values(config.weight_numel(), 4);
  const auto ct = random_values(5 * config.out.dim(), 5);
  std::vector<double> gx(x.size(), 99), gw(w.size(), 99);
  species_linear_backward<double>(config, 5, x.data(), species.data(), w.data(), ct.data(), gx.data(), gw.data());
  const double expected = test::derivative(
      [&](double h) { return test::dot(ct, forward(config, test::moved(x, h, dx), species, test::moved(w, h, dw))); },
      0.5);
  EXPECT_NEAR(test::dot(gx, dx) + test::dot(gw, dw), expected, 1e-12 * std::abs(expected));
  for (const auto& path : config.paths()) {
    const std::int64_t mul_in = config.in[path.in].mul, mul_out = config.out[path.out].mul;
    for (std::int64_t u = 0; u < mul_in; ++u) {
      for (std::int64_t i = 0; i < mul_out; ++i) {
        EXPECT_EQ(gw[static_cast<std::size_t>(path.weight_offset + (u * 4 + 2) * mul_out + i)], 0.0);
      }
    }
  }
}

TEST(SpeciesLinear, OnlyTheWantedGradientIsWritten) {
  const SpeciesLinearConfig config{Irreps::parse("2x0e"), Irreps::parse("2x0e"), 1};
  const std::vector<double> x{1, 2}, w{1, 2, 3, 4}, ct{1, -1};
  const std::vector<std::int32_t> species{0};
  std::vector<double> gx(2, 99);
  species_linear_backward<double>(config, 1, x.data(), species.data(), w.data(), ct.data(), gx.data(), nullptr);
  EXPECT_LE(relative_error(gx, std::vector{-std::sqrt(0.5), -std::sqrt(0.5)}), kDouble);
}

}  // namespace
}  // namespace fastpath::ops
