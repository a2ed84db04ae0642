// What evaluations of whole models leave behind on a device, seen from a program outside the library. That their
// results are right is shown beside the model's other tests.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "counters.h"
#include "fastpath/extxyz.hpp"
#include "fastpath/model.hpp"
#include "fastpath/plugin.h"

namespace {

const std::string kData = FASTPATH_TEST_DATA "/refdata/mace_a/";

class OnFakeDevice : public testing::TestWithParam<const char*> {
 protected:
  static fastpath::EvaluationResult evaluate() {
    static fastpath::Context context(
        {.registry = {.search_paths = {FASTPATH_TEST_PLUGINS}, .default_paths = false, .enable = {"fake_device"}}});
    static const auto model = fastpath::Model::load(kData + "model");
    fastpath::EvaluateOptions options;
    options.context = &context;
    options.device = fastpath::parse_device("ext:0");
    options.use_fast = fastpath::UseFast::always;
    return model->evaluate(fastpath::read_extxyz(kData + GetParam() + ".xyz").front(), options);
  }
  static fake_device_counters counters() {
    void* library = ::dlopen(FASTPATH_TEST_PLUGINS "/fastpath_fake_device.so", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) throw std::runtime_error("the fake device is not loaded");
    const auto query = reinterpret_cast<fp_plugin_query_fn>(::dlsym(library, FP_QUERY_SYMBOL));
    fp_host host{};
    host.struct_size = FP_SIZE_HOST;
    host.abi_min = host.abi_max = FP_ABI_VERSION;
    const fp_plugin* table = nullptr;
    if (query(&host, &table) != FP_OK) throw std::runtime_error("the fake device does not answer");
    return *reinterpret_cast<const fake_device_counters*>(table->extensions);
  }
};

TEST_P(OnFakeDevice, NothingGrowsFromOneEvaluationToTheNext) {
  const fastpath::EvaluationResult first = evaluate();
  EXPECT_TRUE(first.selection);
  // The second one may hand out kept memory in another order than the first, which had none, and want a block more.
  (void)evaluate();
  const fake_device_counters before = counters();
  for (int i = 0; i < 3; ++i) {
    const fastpath::Tensor forces = evaluate().forces;
    EXPECT_TRUE(std::ranges::equal(forces.span<double>(), first.forces.span<double>()));
  }
  const fake_device_counters after = counters();
  EXPECT_GT(after.runs, before.runs);
  EXPECT_EQ(after.live_bytes, before.live_bytes);
  EXPECT_EQ(after.live_blocks, before.live_blocks);
  EXPECT_EQ(after.live_streams, before.live_streams);
  EXPECT_EQ(after.live_kernels, before.live_kernels);
  EXPECT_EQ(after.binds, before.binds);  // no parameter changed
  EXPECT_EQ(after.open_devices, 1);
  EXPECT_EQ(after.violations, 0);
}

INSTANTIATE_TEST_SUITE_P(Structures, OnFakeDevice, testing::Values("molecule", "slab"),
                         [](const auto& structure) { return std::string(structure.param); });

}  // namespace
