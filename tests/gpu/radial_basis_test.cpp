#include <gtest/gtest.h>

#include <cmath>

#include "agreement.hpp"
#include "generator/op.hpp"

namespace fastpath_gpu::test {
namespace {

sdk::RadialBasisConfig basis(std::int64_t n, int p, bool cutoff) {
  sdk::RadialBasisConfig config;
  config.n_basis = n;
  config.r_max = 5.1;
  config.prefactor = std::sqrt(2 / 5.1);
  config.p = p;
  config.apply_cutoff = cutoff;
  return config;
}

TEST(GeneratedRadialBasis, AgreesWithAndWithoutTheEnvelope) {
  expect_agreement("8 functions", spec(basis(8, 5, true)), usual_target());
  expect_agreement("1 function", spec(basis(1, 2, true)), usual_target());
  expect_agreement("no cutoff", spec(basis(7, 6, false)), small_target());
}

TEST(GeneratedRadialBasis, TakesFrequenciesFromTheConfiguration) {
  sdk::RadialBasisConfig config = basis(9, 5, true);
  for (int n = 1; n <= 9; ++n) config.frequencies.push_back(n * M_PI / config.r_max * (1 + 0.003 * n));
  expect_agreement("frequencies", spec(config), usual_target());
}

TEST(GeneratedRadialBasis, AgreesUnderDistanceTransforms) {
  sdk::RadialBasisConfig config = basis(5, 5, true);
  config.species_radii = {0.31, 0.66, 0.76};
  for (const sdk::DistanceTransform transform : {sdk::DistanceTransform::agnesi, sdk::DistanceTransform::soft}) {
    config.transform = transform;
    expect_agreement(transform == sdk::DistanceTransform::soft ? "soft" : "agnesi", spec(config), usual_target());
  }
}

TEST(GeneratedRadialBasis, DeclinesATransformWhereTheDeviceHasNoFloat64) {
  sdk::RadialBasisConfig config = basis(5, 5, true);
  config.species_radii = {0.31};
  config.transform = sdk::DistanceTransform::soft;
  Target target = usual_target();
  target.fp64 = false;
  const auto op = radial_basis().create(config.attributes());
  EXPECT_THROW(op->generate(target, sdk::kFloat32, FP_PASS_FORWARD), sdk::Refused);
  config.transform = sdk::DistanceTransform::none;
  EXPECT_NO_THROW(radial_basis().create(config.attributes())->generate(target, sdk::kFloat32, FP_PASS_FORWARD));
}

}  // namespace
}  // namespace fastpath_gpu::test
