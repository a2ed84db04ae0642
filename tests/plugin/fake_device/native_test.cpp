// Two plugins on one device: one owns its memory and streams, the other brings kernels and works inside native handles.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fastpath/error.hpp"
#include "on_two.hpp"

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Whole models in float64, as the precision contract has it.
constexpr double kTolerance = 1e-12;

TEST(NativeHandles, LetKernelsOfOnePluginRunOnTheMemoryOfAnother) {
  const auto context = on_two::context();
  const auto model = fastpath::Model::load(on_two::kData + "model");
  const fastpath::EvaluationResult result = on_two::evaluate(*model, on_two::options(*context));
  EXPECT_THAT(on_two::choices(result.selection), ElementsAre("fake_device", "fake_kernels", "reference"));
  EXPECT_LE(on_two::largest_difference(result, on_two::by_reference(*model)), kTolerance);
  EXPECT_GT(on_two::owner_counters().runs, 0);
  EXPECT_GT(on_two::kernel_counters().runs, 0);
  EXPECT_EQ(on_two::owner_counters().open_devices, 1);
  EXPECT_EQ(on_two::kernel_counters().open_devices, 1);
  EXPECT_EQ(on_two::owner_counters().violations, 0);
}

TEST(NativeHandles, AreFoundByTheIdentityOfTheDeviceNotByItsPlace) {
  // The plugin that brings kernels lists the device as its fourth.
  const auto context = on_two::context();
  const auto model = fastpath::Model::load(on_two::kData + "model");
  const fastpath::EvaluationResult result = on_two::evaluate(*model, on_two::options(*context, "ext:3"));
  EXPECT_THAT(on_two::choices(result.selection), ElementsAre("fake_device", "fake_kernels", "reference"));
  EXPECT_LE(on_two::largest_difference(result, on_two::by_reference(*model)), kTolerance);
}

TEST(NativeHandles, LeaveNothingBehindFromOneEvaluationToTheNext) {
  const auto context = on_two::context();
  const auto model = fastpath::Model::load(on_two::kData + "model");
  const auto options = on_two::options(*context);
  // The second one may hand out kept memory in another order than the first, which had none, and want a block more.
  for (int i = 0; i < 2; ++i) on_two::evaluate(*model, options);
  const fake_device_counters before = on_two::owner_counters();
  for (int i = 0; i < 3; ++i) on_two::evaluate(*model, options);
  const fake_device_counters after = on_two::owner_counters();
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_EQ(after.live_streams, before.live_streams);
  EXPECT_EQ(after.violations, 0);
}

/// A context in which the second plugin cannot work, and what is said about it.
void expect_refused(fastpath::Context& context, const std::string& code, const std::string& words) {
  const auto model = fastpath::Model::load(on_two::kData + "model");
  const fastpath::EvaluationResult result = on_two::evaluate(*model, on_two::options(context));
  EXPECT_THAT(on_two::choices(result.selection), ElementsAre("fake_device", "reference"));
  const on_two::Refusals refusals = on_two::refusals(result.selection, "fake_kernels");
  EXPECT_THAT(refusals.codes, ElementsAre(code));
  EXPECT_THAT(refusals.words, HasSubstr(words));
  EXPECT_LE(on_two::largest_difference(result, on_two::by_reference(*model)), kTolerance);
}

TEST(NativeHandles, ThatTheOwnerDoesNotHaveAreAReason) {
  expect_refused(
      *on_two::context({"fake_device", "fake_kernels"}, {{"fake_device.native", "none"}}), "device",
      "fake_kernels brings kernels only, and fake_device cannot lend it the memory of ext:0: fake_device: its native "
      "handles cannot be had");
}

TEST(NativeHandles, OfAnotherKindThanTheDeviceAreAReason) {
  expect_refused(*on_two::context({"fake_device", "fake_kernels"}, {{"fake_device.native", "wrong"}}), "device",
                 "its native handles are of kind 1, for ext kind 4 is expected");
}

TEST(NativeHandles, ThatThePluginDoesNotTakeAreAReasonInItsOwnWords) {
  expect_refused(*on_two::context({"fake_device", "fake_kernels"}, {{"fake_kernels.open", "refuse"}}), "create_failed",
                 "plugin fake_kernels cannot open ext:3 on the memory of fake_device: fake kernels: not today");
}

TEST(NativeHandles, OfADeviceThatWasLostAreAReason) {
  const auto alone = on_two::context({"fake_device"}, {{"fastpath.lose_device", "1"}});
  const auto model = fastpath::Model::load(on_two::kData + "model");
  try {
    on_two::evaluate(*model, on_two::options(*alone));
    ADD_FAILURE() << "nothing was lost";
  } catch (const fastpath::Error& error) {
    EXPECT_EQ(error.code(), fastpath::ErrorCode::device_lost) << error.what();
  }
  const auto both = on_two::context();
  const fastpath::EvaluationResult result = on_two::evaluate(*model, on_two::options(*both));
  EXPECT_THAT(on_two::choices(result.selection), ElementsAre("reference"));
  for (const char* plugin : {"fake_device", "fake_kernels"}) {
    EXPECT_THAT(on_two::refusals(result.selection, plugin).codes, ElementsAre("device_lost")) << plugin;
  }
  EXPECT_EQ(result.energy, on_two::by_reference(*model).energy);
}

TEST(NativeHandles, NeedAnOwner) {
  const auto context = on_two::context({"fake_kernels"});
  const auto model = fastpath::Model::load(on_two::kData + "model");
  const fastpath::EvaluationResult result = on_two::evaluate(*model, on_two::options(*context, "ext:3"));
  EXPECT_THAT(on_two::choices(result.selection), ElementsAre("reference"));
  const on_two::Refusals refusals = on_two::refusals(result.selection, "fake_kernels");
  EXPECT_THAT(refusals.codes, ElementsAre("device"));
  EXPECT_THAT(refusals.words, HasSubstr("brings kernels only, and no other plugin lends it the memory of ext:3"));
}

}  // namespace
