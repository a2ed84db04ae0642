#include "fastpath/create_op.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "fastpath/error.hpp"
#include "fastpath/sdk/ops.hpp"

namespace fastpath {
namespace {

template <class Config>
OpSpec spec(const Config& config) {
  return {std::string(Config::kOp), Config::kVersion, config.attributes().values()};
}

sdk::MessageStepConfig message_step() {
  sdk::MessageStepConfig config;
  config.harmonics.l_max = 1;
  config.radial.n_basis = 4;
  config.radial.r_max = 5;
  config.radial.prefactor = 0.5;
  config.conv = {sdk::Irreps::parse("2x0e"),
                 sdk::Irreps::natural(1, 1),
                 sdk::Irreps::parse("2x0e+2x1o"),
                 {{0, 0, 0, 1.0}, {0, 1, 1, 1.0}}};
  config.mlp.widths = {4, 3, 4};
  config.mlp.scales = {0.5, 0.5};
  return config;
}

TEST(CreateOp, DrawsTheSameParametersOfVarianceOneFromTheSameSeed) {
  const sdk::IrrepsLinearConfig config{sdk::Irreps::parse("60x0e"), sdk::Irreps::parse("50x0e")};
  const auto a = create_op(spec(config), 1), b = create_op(spec(config), 1), c = create_op(spec(config), 2);
  double sum = 0, squares = 0, same = 0, other = 0;
  for (std::int64_t i = 0; i < 3000; ++i) {
    const double value = a->parameter("weight").data<double>()[i];
    sum += value;
    squares += value * value;
    same += std::abs(value - b->parameter("weight").data<double>()[i]);
    other += std::abs(value - c->parameter("weight").data<double>()[i]);
  }
  EXPECT_EQ(same, 0);
  EXPECT_GT(other, 1000);
  EXPECT_NEAR(sum / 3000, 0, 0.1);
  EXPECT_NEAR(squares / 3000, 1, 0.1);
}

TEST(CreateOp, EvaluatesWithTheParametersOfAllItsParts) {
  const auto module = create_op(spec(message_step()), 7);
  EXPECT_EQ(module->kind(), "message_step");
  const std::vector<Tensor>& parameters = module->op_parameters(DType::float64);
  ASSERT_EQ(parameters.size(), 3u);  // frequencies, two layers
  EXPECT_NE(parameters[1].data<double>()[0], 0);
  EXPECT_NE(parameters[2].data<double>()[0], parameters[1].data<double>()[0]);
}

TEST(CreateOp, RefusesWhatHasNoSchema) {
  try {
    create_op({"com.example.op", 1, {}}, 1);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
  }
}

}  // namespace
}  // namespace fastpath
