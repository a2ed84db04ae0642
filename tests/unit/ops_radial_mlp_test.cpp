#include "ops/radial_mlp/radial_mlp.hpp"

#include <gmock/gmock.h>

#include "support/ops_data.hpp"

namespace fastpath::ops {
namespace {

using namespace test;

using Config = sdk::RadialMlpConfig;

Config mace_config(std::vector<std::int64_t> widths) {
  Config config;
  for (std::size_t i = 0; i + 1 < widths.size(); ++i) {
    config.scales.push_back(1 / std::sqrt(static_cast<double>(widths[i])));
  }
  config.widths = std::move(widths);
  return config;
}

template <class S>
using Layers = std::vector<std::vector<S>>;

template <class S>
std::vector<S> evaluate(const Config& config, const std::vector<S>& x, const Layers<S>& weights) {
  const std::size_t n = x.size() / static_cast<std::size_t>(config.widths.front());
  std::vector<const S*> pointers;
  for (const auto& layer : weights) pointers.push_back(layer.data());
  std::vector<S> y(n * static_cast<std::size_t>(config.widths.back()), S(99));
  radial_mlp_forward<S>(config, static_cast<std::int64_t>(n), x.data(), pointers.data(), y.data());
  return y;
}

/// Gradient by x, then by every layer, for outputs chosen by `wanted` (x first); the others stay empty.
template <class S>
Layers<S> gradients(const Config& config, const std::vector<S>& x, const Layers<S>& weights,
                    const std::vector<S>& grad_y, std::vector<bool> wanted = {}) {
  wanted.resize(weights.size() + 1, wanted.empty());
  Layers<S> result(weights.size() + 1);
  std::vector<const S*> pointers;
  std::vector<S*> out;
  for (std::size_t i = 0; i < result.size(); ++i) {
    if (wanted[i]) result[i].assign(i == 0 ? x.size() : weights[i - 1].size(), S(99));
    out.push_back(wanted[i] ? result[i].data() : nullptr);
  }
  for (const auto& layer : weights) pointers.push_back(layer.data());
  radial_mlp_backward<S>(config, static_cast<std::int64_t>(x.size()) / config.widths.front(), x.data(), pointers.data(),
                         grad_y.data(), out[0], out.data() + 1);
  return result;
}

Layers<double> random_weights(const Config& config, unsigned seed) {
  Layers<double> result;
  for (std::size_t i = 0; i < config.n_layers(); ++i) {
    result.push_back(rounded(random_values(static_cast<std::size_t>(config.widths[i] * config.widths[i + 1]), seed++)));
  }
  return result;
}

template <class T>
Layers<T> converted_layers(const Layers<double>& layers) {
  Layers<T> result;
  for (const Reals& layer : layers) result.push_back(converted<T>(layer));
  return result;
}

TEST(RadialMlp, HasThePublishedValue) {
  const Reals y = evaluate<double>(mace_config({2, 2, 1}), {1, 2}, {{.5, -1, 1, .25}, {2, -1}});
  EXPECT_NEAR(y[0], 3.7589709539114478, 1e-15 * 4);
}

TEST(RadialMlp, ReproducesReferenceData) {
  const TestData data("refdata/radial_mlp.safetensors");
  Config config = mace_config({8, 16, 16, 16, 40});
  config.activation_constant = data.reals("silu_cst")[0];
  const Layers<double> weights{data.reals("w0"), data.reals("w1"), data.reals("w2"), data.reals("w3")};
  const Reals x = data.reals("x");
  EXPECT_LE(relative_error(evaluate(config, x, weights), data.reals("y")), 1e-13);
  const Layers<double> grads = gradients(config, x, weights, data.reals("ct"));
  EXPECT_LE(relative_error(grads[0], data.reals("gx")), 1e-13);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_LE(relative_error(grads[i + 1], data.reals("gw" + std::to_string(i))), 1e-13) << i;
  }
}

TEST(RadialMlp, GradientsAndTheirTangentsMatchFiniteDifferences) {
  const Config config = mace_config({3, 5, 7, 6});  // widths that are no multiple of anything, rows beyond one block
  const std::size_t rows = 70;
  const Reals x = random_values(rows * 3, 1), grad_y = random_values(rows * 6, 2);
  const Layers<double> weights = random_weights(config, 3);
  const Layers<double> grads = gradients(config, x, weights, grad_y);
  for (std::size_t input = 0; input <= 3; ++input) {
    const auto with = [&](const Reals& at) {
      std::pair<Reals, Layers<double>> result{x, weights};
      (input == 0 ? result.first : result.second[input - 1]) = at;
      return result;
    };
    const Reals& point = input == 0 ? x : weights[input - 1];
    const Reals direction = random_values(point.size(), 20);
    const Reals slope = difference(
        [&](const Reals& at) {
          const auto [inputs, layers] = with(at);
          return Reals{dot(evaluate(config, inputs, layers), grad_y)};
        },
        point, direction, 1e-3);
    EXPECT_NEAR(dot(grads[input], direction) / slope[0], 1.0, 1e-7) << input;

    Duals dual_x = duals(x);
    Layers<Dual<double>> dual_weights;
    for (const Reals& layer : weights) dual_weights.push_back(duals(layer));
    (input == 0 ? dual_x : dual_weights[input - 1]) = duals(point, direction);
    const auto second = gradients(config, dual_x, dual_weights, duals(grad_y));
    for (std::size_t output = 0; output <= 3; ++output) {
      const Reals expected = difference(
          [&](const Reals& at) {
            const auto [inputs, layers] = with(at);
            return gradients(config, inputs, layers, grad_y)[output];
          },
          point, direction, 1e-3);
      double largest = 0;
      for (const double g : grads[output]) largest = std::max(largest, std::abs(g));
      const Reals got = tangents_of(second[output]);
      for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-7 * largest);
    }
  }
}

TEST(RadialMlp, ComputesOnlyWhatIsWanted) {
  const Config config = mace_config({3, 4, 5, 2});
  const Reals x = random_values(9, 1), grad_y = random_values(6, 2);
  const Layers<double> weights = random_weights(config, 3), all = gradients(config, x, weights, grad_y);
  for (std::size_t only = 0; only <= 3; ++only) {
    std::vector<bool> wanted(4, false);
    wanted[only] = true;
    const Layers<double> some = gradients(config, x, weights, grad_y, wanted);
    for (std::size_t i = 0; i <= 3; ++i) EXPECT_EQ(some[i], i == only ? all[i] : Reals{}) << only << i;
  }
  Reals grad_x(9);
  const std::array<const double*, 3> pointers{weights[0].data(), weights[1].data(), weights[2].data()};
  radial_mlp_backward<double>(config, 3, x.data(), pointers.data(), grad_y.data(), grad_x.data(), nullptr);
  EXPECT_EQ(grad_x, all[0]);
}

TEST(RadialMlp, SingleLayerIsAPlainProduct) {
  const Config config = mace_config({2, 3});
  EXPECT_LE(relative_error(evaluate<double>(config, {1, 2}, {{1, 2, 3, 4, 5, 6}}),
                           {9 / std::sqrt(2.0), 12 / std::sqrt(2.0), 15 / std::sqrt(2.0)}),
            1e-15);
  const auto grads = gradients<double>(config, {1, 2}, {{1, 2, 3, 4, 5, 6}}, {1, 0, -1});
  EXPECT_LE(relative_error(grads[0], {-2 / std::sqrt(2.0), -2 / std::sqrt(2.0)}), 1e-15);
  EXPECT_LE(relative_error(grads[1], {1 / std::sqrt(2.0), 0, -1 / std::sqrt(2.0), std::sqrt(2.0), 0, -std::sqrt(2.0)}),
            1e-15);
}

TEST(RadialMlp, FloatAgreesWithDoubleAlsoInLargeSums) {
  const Config config = mace_config({8, 64, 64, 64, 96});
  const std::size_t rows = 3000;
  const Reals x = rounded(random_values(rows * 8, 31)), grad_y = rounded(random_values(rows * 96, 32));
  const Layers<double> weights = random_weights(config, 33);
  const Layers<float> weights_float = converted_layers<float>(weights);
  EXPECT_LE(relative_error(evaluate(config, converted<float>(x), weights_float), evaluate(config, x, weights)), 1e-6);
  const auto grads = gradients(config, x, weights, grad_y);
  const auto grads_float = gradients(config, converted<float>(x), weights_float, converted<float>(grad_y));
  for (std::size_t i = 0; i < grads.size(); ++i) EXPECT_LE(relative_error(grads_float[i], grads[i]), 1e-6) << i;
}

TEST(RadialMlp, NoRowsGiveZeroWeightGradients) {
  const Config config = mace_config({3, 4, 2});
  const Layers<double> weights = random_weights(config, 3);
  EXPECT_TRUE(evaluate<double>(config, {}, weights).empty());
  const auto grads = gradients<double>(config, {}, weights, {});
  EXPECT_THAT(grads[1], ::testing::Each(0.0));
  EXPECT_THAT(grads[2], ::testing::Each(0.0));
}

TEST(RadialMlp, SaturatedUnitsStayFinite) {
  const Config config = mace_config({1, 1, 1});
  for (const double x : {-1e6, 1e6}) {
    const auto grads = gradients(config, Duals{{x, 1.0}}, Layers<Dual<double>>{{1.0}, {1.0}}, Duals{1.0});
    for (const auto& grad : grads) EXPECT_TRUE(std::isfinite(grad[0].value) && std::isfinite(grad[0].tangent));
  }
}

}  // namespace
}  // namespace fastpath::ops
