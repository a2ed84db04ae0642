#include <gtest/gtest.h>

#include "agreement.hpp"

namespace fastpath_gpu::test {
namespace {

TEST(GeneratedSphericalHarmonics, AgreeWithTheReference) {
  using sdk::Normalization;
  expect_agreement("degree 0", spec(sdk::SphericalHarmonicsConfig{0, true, Normalization::norm}), usual_target());
  expect_agreement("degree 3", spec(sdk::SphericalHarmonicsConfig{3, true, Normalization::component}), usual_target());
  expect_agreement("solid", spec(sdk::SphericalHarmonicsConfig{4, false, Normalization::integral}), small_target());
  expect_agreement("degree 6", spec(sdk::SphericalHarmonicsConfig{6, true, Normalization::component}), usual_target());
}

}  // namespace
}  // namespace fastpath_gpu::test
