#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fastpath/extxyz.hpp"
#include "fastpath/model.hpp"
#include "fastpath/warning.hpp"
#include "lying_plugin.hpp"
#include "ops/make_op_module.hpp"

/// What tests of the comparison with the reference share: contexts with a plugin that lies, and models that use them.
namespace fastpath::test {

inline const std::string kMaceA = FASTPATH_TEST_DATA "/refdata/mace_a/";

inline std::shared_ptr<plugin::LoadedPlugin> cpu_ref() {
  static const auto plugin = real_plugin(FASTPATH_PLUGIN_DIRECTORY, "cpu_ref");
  return plugin;
}
inline std::shared_ptr<plugin::LoadedPlugin> fake_device() {
  static const auto plugin = real_plugin(FASTPATH_TEST_PLUGINS, "fake_device", DeviceKind::extension);
  return plugin;
}

/// A plugin with all four passes.
inline std::shared_ptr<plugin::LoadedPlugin> tangents() {
  static const auto plugin = real_plugin(FASTPATH_TANGENTS, "tangents");
  return plugin;
}

class Gate : public testing::Test {
 protected:
  Gate() {
    set_warning_handler([](const FastPathPrecisionWarning&) {});
    set_kernel_warning_handler([this](const FastPathKernelWarning& warning) {
      const std::lock_guard lock(warnings_mutex_);
      warnings.push_back(warning);
    });
  }
  ~Gate() override {
    set_warning_handler({});
    set_kernel_warning_handler({});
  }
  /// A context with a plugin that lies, then maybe an honest one.
  std::unique_ptr<Context> context(Liar& liar, bool honest_too = false, ContextOptions options = {},
                                   std::shared_ptr<plugin::LoadedPlugin> inner = cpu_ref()) {
    std::vector<std::shared_ptr<plugin::LoadedPlugin>> plugins;
    plugins.reserve(2);
    plugins.push_back(std::make_shared<LyingPlugin>(inner, liar));
    if (honest_too) plugins.push_back(inner);
    options.shared_registry = std::make_shared<PluginRegistry>(std::make_unique<GivenPlugins>(std::move(plugins)));
    return std::make_unique<Context>(std::move(options));
  }
  static std::unique_ptr<FastPathModule> linear(bool bias = true) {
    const sdk::IrrepsLinearConfig config{sdk::Irreps::parse("4x0e+3x1o"), sdk::Irreps::parse("2x0e+5x1o"), bias, 0.3};
    return ops::make_op_module({"irreps_linear", 1, config.attributes().values()});
  }
  static Selection pick(FastPathModule& module, Context& context, DType dtype = DType::float64,
                        Passes passes = kPassesForces, UseFast use_fast = UseFast::always) {
    return select({{"linear", &module}}, use_fast, nullptr, Device::cpu(), dtype, 100, passes, &context);
  }

  std::vector<FastPathKernelWarning> warnings;

 private:
  std::mutex warnings_mutex_;
};

class Failing : public Gate {
 protected:
  static const Structure& structure() {
    static const Structure instance = read_extxyz(kMaceA + "water8.xyz").front();
    return instance;
  }
  static const EvaluationResult& reference() {
    static const auto instance = [] {
      EvaluateOptions options;
      options.use_fast = UseFast::never;
      options.parameter_gradients = true;
      return Model::load(kMaceA + "model")->evaluate(structure(), options);
    }();
    return instance;
  }
  static void expect_reference(const EvaluationResult& result) {
    const auto same = [](const Tensor& a, const Tensor& b) {
      return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
    };
    EXPECT_EQ(result.energy, reference().energy);
    EXPECT_TRUE(same(result.forces, reference().forces));
    EXPECT_TRUE(same(result.node_energies, reference().node_energies));
    for (const auto& [name, tensor] : reference().parameter_gradients) {
      EXPECT_TRUE(same(result.parameter_gradients.at(name), tensor)) << name;
    }
    EXPECT_FALSE(result.selection);
  }
  EvaluateOptions options(Context& context, Device device = Device::cpu()) {
    EvaluateOptions result;
    result.use_fast = UseFast::always;
    result.context = &context;
    result.device = device;
    result.parameter_gradients = true;
    return result;
  }
  std::shared_ptr<Model> model = Model::load(kMaceA + "model");
};

}  // namespace fastpath::test
