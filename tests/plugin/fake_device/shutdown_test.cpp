// The end of plugins, as a host asks for it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "fastpath/error.hpp"
#include "on_two.hpp"

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::string> ids(const std::vector<fastpath::PluginInfo>& plugins) {
  std::vector<std::string> result;
  for (const fastpath::PluginInfo& plugin : plugins) result.push_back(plugin.id);
  return result;
}

/// Nothing of a plugin is left, and it was told once.
void expect_ended(const fake_device_counters& counters) {
  EXPECT_EQ(counters.open_devices, 0);
  EXPECT_EQ(counters.live_kernels, 0);
  EXPECT_EQ(counters.live_blocks, 0);
  EXPECT_EQ(counters.live_streams, 0);
  EXPECT_EQ(counters.live_events, 0);
  EXPECT_EQ(counters.shutdowns, 1);
  EXPECT_EQ(counters.violations, 0);
}

TEST(Shutdown, EndsKernelsThenDevicesThenPluginsWhoeverStillHoldsThem) {
  const auto context = on_two::context();
  auto model = fastpath::Model::load(on_two::kData + "model");
  const auto options = on_two::options(*context);
  const fastpath::EvaluationResult before = on_two::evaluate(*model, options);
  ASSERT_THAT(on_two::choices(before.selection), ElementsAre("fake_device", "fake_kernels", "reference"));
  ASSERT_GT(on_two::owner_counters().live_kernels, 0);

  // Kernels alone before the owner of the memory that they work on, though both were loaded in the other order.
  const std::vector<fastpath::PluginInfo> ended = context->registry().shutdown();
  EXPECT_THAT(ids(ended), ElementsAre("fake_kernels", "fake_device"));
  for (const fastpath::PluginInfo& plugin : ended) {
    EXPECT_EQ(plugin.state, fastpath::PluginState::idle);
    EXPECT_EQ(plugin.reason.code, fastpath::ReasonCode::shut_down);
  }
  expect_ended(on_two::owner_counters());
  expect_ended(on_two::kernel_counters());

  // The model still holds what it held, and is the better for it.
  const fastpath::EvaluationResult after = on_two::evaluate(*model, options);
  EXPECT_THAT(on_two::choices(after.selection), ElementsAre("reference"));
  EXPECT_EQ(after.energy, on_two::by_reference(*model).energy);
  for (const fastpath::Decision& decision : after.selection.decisions) {
    EXPECT_EQ(decision.reason.code, fastpath::ReasonCode::shut_down) << decision.module << ": " << decision.reason.text;
  }
  EXPECT_THAT(on_two::refusals(after.selection, "fake_device").codes, ElementsAre("shut_down"));

  EXPECT_THAT(context->registry().shutdown(), IsEmpty());
  model.reset();
  expect_ended(on_two::owner_counters());
  expect_ended(on_two::kernel_counters());
}

TEST(Shutdown, OfTheOwnerEndsTheKernelsOfAnotherRegistryOnItsMemory) {
  const auto both = on_two::context();
  const auto owner = on_two::context({"fake_device"});
  const auto model = fastpath::Model::load(on_two::kData + "model");
  on_two::evaluate(*model, on_two::options(*both));
  on_two::evaluate(*model, on_two::options(*owner));
  EXPECT_THAT(ids(owner->registry().shutdown()), ElementsAre("fake_device"));
  expect_ended(on_two::owner_counters());
  EXPECT_EQ(on_two::kernel_counters().live_kernels, 0);
  EXPECT_EQ(on_two::kernel_counters().open_devices, 0);
  EXPECT_EQ(on_two::kernel_counters().shutdowns, 0);
  // The other registry says why, of the one that ended and of the one that has nothing to work on.
  const fastpath::EvaluationResult after = on_two::evaluate(*model, on_two::options(*both));
  EXPECT_THAT(on_two::choices(after.selection), ElementsAre("reference"));
  EXPECT_THAT(on_two::refusals(after.selection, "fake_device").codes, ElementsAre("shut_down"));
  EXPECT_THAT(on_two::refusals(after.selection, "fake_kernels").codes, ElementsAre("shut_down"));
  EXPECT_THAT(ids(both->registry().shutdown()), ElementsAre("fake_kernels"));
  expect_ended(on_two::kernel_counters());
}

TEST(Shutdown, MakesStrictEvaluationsErrorsThatSayIt) {
  fastpath::ContextOptions context_options;
  context_options.registry.files = {FASTPATH_TEST_REFERENCE};
  context_options.registry.default_paths = false;
  context_options.registry.use_cache = false;
  fastpath::Context context(context_options);
  const auto model = fastpath::Model::load(on_two::kData + "model");
  fastpath::EvaluateOptions options = on_two::options(context, "cpu");
  options.require_fast = true;
  EXPECT_TRUE(on_two::evaluate(*model, options).selection);
  EXPECT_THAT(ids(context.registry().shutdown()), ElementsAre("cpu_ref"));
  try {
    on_two::evaluate(*model, options);
    ADD_FAILURE() << "no error";
  } catch (const fastpath::Error& error) {
    EXPECT_EQ(error.code(), fastpath::ErrorCode::strict_violation);
    EXPECT_THAT(error.what(), HasSubstr("plugins were shut down in this process"));
  }
  // Nobody gets it back in this process.
  fastpath::Context later(context_options);
  EXPECT_FALSE(on_two::evaluate(*model, on_two::options(later, "cpu")).selection);
  const auto plugins = later.registry().plugins();
  ASSERT_EQ(plugins.size(), 1u);
  EXPECT_EQ(plugins[0].reason.code, fastpath::ReasonCode::shut_down) << plugins[0].reason.text;
  EXPECT_FALSE(fastpath::fast_modules(*model).front().module->fast_supported(
      fastpath::Device::cpu(), fastpath::DType::float64, fastpath::kPassesForces, &context));
}

TEST(Shutdown, OfARegistryThatLoadedNothingLoadsNothingLater) {
  const auto context = on_two::context();
  EXPECT_THAT(context->registry().shutdown(), IsEmpty());
  const auto plugins = context->registry().plugins();
  ASSERT_FALSE(plugins.empty());
  for (const fastpath::PluginInfo& plugin : plugins) {
    if (plugin.state == fastpath::PluginState::disabled) continue;
    EXPECT_EQ(plugin.state, fastpath::PluginState::idle) << plugin.id;
    EXPECT_EQ(plugin.reason.code, fastpath::ReasonCode::shut_down) << plugin.id;
  }
}

TEST(Shutdown, InTheChildOfAForkCallsNoPlugin) {
  const auto context = on_two::context();
  const auto model = fastpath::Model::load(on_two::kData + "model");
  on_two::evaluate(*model, on_two::options(*context));
  const fake_device_counters before = on_two::owner_counters();
  EXPECT_EXIT(
      {
        const bool nothing = context->registry().shutdown().empty();
        const fake_device_counters after = on_two::owner_counters();
        std::_Exit(nothing && after.shutdowns == 0 && after.live_kernels == before.live_kernels ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
