#include <gtest/gtest.h>

#include <cmath>

#include "agreement.hpp"
#include "host_device.hpp"

namespace fastpath_gpu::test {
namespace {

using fastpath::verify::TrialShape;

sdk::IrrepsLinearConfig linear(const char* in, const char* out, bool bias = false, double scale = 1) {
  return {irreps(in), irreps(out), bias, scale, sdk::PathNormalization::element};
}
TrialShape rows(std::int64_t n) {
  TrialShape shape;
  shape.name = "many rows";
  shape.n_rows = n;
  return shape;
}

TEST(GeneratedIrrepsLinear, AgreesWithTheReference) {
  expect_agreement("uneven", spec(linear("7x0e+3x1o+1x2e", "2x0e+5x1o+1x0o", true, 0.3)), usual_target());
  expect_agreement("one channel", spec(linear("1x0e", "1x0e", true)), usual_target());
}

TEST(GeneratedIrrepsLinear, WritesZerosWhereNoPathLeads) {
  expect_agreement("no paths", spec(linear("3x0e", "2x1o")), usual_target());
  expect_agreement("empty blocks", spec(linear("0x0e+4x1o", "3x1o+0x2e")), usual_target());
}

TEST(GeneratedIrrepsLinear, AgreesOnASmallDevice) {
  expect_agreement("blocks of one irrep", spec(linear("5x0e+17x1o+2x0e+1x1o", "3x1o+6x0e+4x1o+1x0e", true)),
                   small_target());
  expect_agreement("high degrees", spec(linear("3x6e+2x3o", "5x6e+3x3o")), small_target());
}

TEST(GeneratedIrrepsLinear, AgreesWhereBlocksAreWiderThanATile) {
  expect_agreement("wide", spec(linear("130x0e+70x1o", "65x0e+129x1o")), usual_target());
}

TEST(GeneratedIrrepsLinear, SumsOverManyRowsInPieces) {
  expect_agreement("pieces", spec(linear("5x0e+3x1o", "4x0e+2x1o", true)), usual_target(), {rows(2000)});
}

fastpath::OpSpec species_linear_spec(const char* in, const char* out, std::int64_t n_species) {
  return spec(sdk::SpeciesLinearConfig{irreps(in), irreps(out), n_species});
}

TEST(GeneratedSpeciesLinear, AgreesWithTheReference) {
  expect_agreement("uneven", species_linear_spec("7x0e+3x1o", "2x0e+5x1o+1x0o", 4), usual_target());
  expect_agreement("one channel", species_linear_spec("1x0e", "1x0e", 1), usual_target());
  expect_agreement("no paths", species_linear_spec("3x0e", "2x1o", 2), usual_target());
}

TEST(GeneratedSpeciesLinear, AgreesWhereMostSpeciesAreUnused) {
  expect_agreement("unused", species_linear_spec("3x0e+2x2e", "5x0e+3x2e", 89), small_target());
}

TEST(GeneratedSpeciesLinear, AgreesWhereBlocksAreWiderThanATile) {
  expect_agreement("wide", species_linear_spec("66x0e+33x1o", "65x0e+34x1o", 3), small_target());
}

TEST(GeneratedSpeciesLinear, SumsOverManyRowsInPieces) {
  expect_agreement("pieces", spec(sdk::SpeciesLinearConfig{irreps("5x0e+3x1o"), irreps("4x0e+2x1o"), 3}),
                   usual_target(), {rows(1500)});
}

TEST(GeneratedSpeciesLinear, ARowWhoseSpeciesIsNoneIsNotANumber) {
  using fastpath::DType;
  using fastpath::Tensor;
  HostDevice device(usual_target());
  const auto kernel =
      device.create_kernel(species_linear_spec("1x0e", "1x0e", 2), DType::float64, fastpath::kPassesForces);
  const std::vector<Tensor> parameters{Tensor::from<double>({2}, {3, 5})};
  ASSERT_TRUE(kernel->bind(parameters, 1).ok());
  const std::vector<Tensor> inputs{Tensor::from<double>({4, 1}, {1, 1, 1, 1}),
                                   Tensor::from<std::int32_t>({4}, {1, -1, 0, 2})};
  const std::vector<Tensor> outputs{Tensor::empty({4, 1}, DType::float64)};
  fastpath::OpCall call;
  call.inputs = inputs;
  call.outputs = outputs;
  const auto status = kernel->run(call);
  ASSERT_TRUE(status.ok()) << status.text;
  const auto y = outputs[0].span<double>();
  const double unit = std::sqrt(0.5);  // 1 / sqrt(channels * species)
  EXPECT_DOUBLE_EQ(y[0], 5 * unit);
  EXPECT_TRUE(std::isnan(y[1])) << y[1];
  EXPECT_DOUBLE_EQ(y[2], 3 * unit);
  EXPECT_TRUE(std::isnan(y[3])) << y[3];
}

}  // namespace
}  // namespace fastpath_gpu::test
