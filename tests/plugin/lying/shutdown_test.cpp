// Plugins that do not end well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fastpath/extxyz.hpp"
#include "fastpath/model.hpp"

namespace {

using testing::HasSubstr;

fastpath::RegistryOptions of(const std::string& way) {
  fastpath::RegistryOptions options;
  options.files = {std::string(FASTPATH_LYING) + "/fastpath_lying_" + way + ".so", FASTPATH_REFERENCE};
  options.default_paths = false;
  options.use_cache = false;
  return options;
}

TEST(LyingShutdown, ThatThrowsIsToldAndTheOthersEnd) {
  fastpath::Context context({.registry = of("throws_in_shutdown")});
  const std::string data = FASTPATH_TEST_DATA "/refdata/mace_a/";
  const auto model = fastpath::Model::load(data + "model");
  fastpath::EvaluateOptions options;
  options.context = &context;
  options.use_fast = fastpath::UseFast::always;
  EXPECT_TRUE(model->evaluate(fastpath::read_extxyz(data + "sparse.xyz").front(), options).selection);
  const auto ended = context.registry().shutdown();
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0].id, "cpu_ref");  // the last loaded first
  EXPECT_EQ(ended[0].reason.text, "");
  EXPECT_EQ(ended[1].id, "lying");
  EXPECT_EQ(ended[1].reason.code, fastpath::ReasonCode::shut_down);
  EXPECT_EQ(ended[1].reason.text, "its shutdown threw an exception: not yet");
}

TEST(LyingShutdown, ThatCrashesIsFoundBeforeThePluginIsLoaded) {
  fastpath::RegistryOptions options = of("crashes_in_shutdown");
  options.probe = fastpath::ProbeMode::helper;
  fastpath::PluginRegistry registry(options);
  const auto plugins = registry.plugins();
  ASSERT_EQ(plugins.size(), 2u);
  EXPECT_EQ(plugins[0].state, fastpath::PluginState::quarantined);
  EXPECT_EQ(plugins[0].reason.code, fastpath::ReasonCode::probe_crashed);
  EXPECT_THAT(plugins[0].reason.text, HasSubstr("in its shutdown"));
  EXPECT_EQ(plugins[1].state, fastpath::PluginState::usable);
}

}  // namespace
