#include <gtest/gtest.h>

#include "agreement.hpp"

namespace fastpath_gpu::test {
namespace {

TEST(GeneratedPointwise, Regroups) {
  expect_agreement("1 channel", spec(sdk::RegroupChannelsConfig{1, 3}), usual_target());
  expect_agreement("33 channels", spec(sdk::RegroupChannelsConfig{33, 2}), small_target());
}

TEST(GeneratedPointwise, Sums) {
  expect_agreement("one", spec(sdk::SumConfig{1, 5}), usual_target());
  expect_agreement("five", spec(sdk::SumConfig{5, 129}), small_target());
}

TEST(GeneratedPointwise, Activates) {
  expect_agreement("silu", spec(sdk::ScaledSiluConfig{67, 1.679}), usual_target());
}

}  // namespace
}  // namespace fastpath_gpu::test
