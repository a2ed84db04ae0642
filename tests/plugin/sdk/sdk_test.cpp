// What the SDK's entry points do with hosts of other versions, with exceptions and with null pointers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "fake_host.hpp"
#include "fastpath/sdk/check.hpp"
#include "fastpath/sdk/ops.hpp"

namespace {

using namespace fastpath;
using fake::Dialect;
using fake::Tensor;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

const fake::Plugin& throws() {
  static const fake::Plugin& loaded = *new fake::Plugin(FASTPATH_PLUGIN_THROWS);
  return loaded;
}

TEST(SdkNegotiation, AnswersEveryHostWhoseRangeMeetsItsOwn) {
  for (const auto& [low, high] : {std::pair{0x10000u, 0x10000u}, {0x10000u, 0x1ffffu}, {0x0u, 0x30000u}}) {
    const fake::Plugin plugin(FASTPATH_PLUGIN_THROWS, {.abi_min = low, .abi_max = high});
    EXPECT_EQ(plugin.status(), FP_OK);
    EXPECT_TRUE(plugin.loaded());
    EXPECT_EQ(plugin.log(), "");
  }
}

TEST(SdkNegotiation, RefusesOtherHostsAndLogsBothRanges) {
  const fake::Plugin later(FASTPATH_PLUGIN_THROWS, {.abi_min = 0x20000, .abi_max = 0x20003});
  EXPECT_EQ(later.status(), FP_E_INCOMPATIBLE);
  EXPECT_FALSE(later.loaded());
  EXPECT_EQ(later.log(), "throws: serves ABI 1.0 to 1.0, host speaks 2.0 to 2.3");
  const fake::Plugin zero(FASTPATH_PLUGIN_THROWS, {.abi_min = 0, .abi_max = 0});
  EXPECT_EQ(zero.status(), FP_E_INCOMPATIBLE);
}

TEST(SdkPlugin, FillsItsTableFromTheMacro) {
  const fp_plugin& c = throws().c();
  EXPECT_EQ(c.struct_size, FP_SIZE_PLUGIN);
  EXPECT_EQ(c.abi_version, FP_ABI_VERSION);
  EXPECT_EQ(c.sdk_version, FP_SDK_VERSION);
  EXPECT_EQ(c.numerics_version, 7u);
  EXPECT_EQ(sdk::text_view(c.id, c.id_size), "throws");
  EXPECT_EQ(sdk::text_view(c.vendor, c.vendor_size), "Example");
  EXPECT_EQ(sdk::text_view(c.version, c.version_size), "1.2.3");
}

TEST(SdkPlugin, KeepsWhatItHandsOutByPointer) {
  fake::Errors errors;
  fp_device_list first = sdk::abi_struct<fp_device_list>(), second = first;
  ASSERT_EQ(throws().c().enumerate(&throws().c(), &first, errors.c()), FP_OK);
  ASSERT_EQ(throws().c().enumerate(&throws().c(), &second, errors.c()), FP_OK);
  EXPECT_EQ(first.items, second.items);
  ASSERT_EQ(first.count, 2u);
  EXPECT_EQ(sdk::DeviceDescription::from(first.items).name, "heap");
}

TEST(SdkErrors, EveryExceptionBecomesAStatusWithItsText) {
  const std::tuple<const char*, std::int32_t, const char*> ends[] = {
      {"refused", FP_E_UNSUPPORTED, "not today"},
      {"invalid", FP_E_INVALID_ARGUMENT, "found 3, expected 4"},
      {"unavailable", FP_E_UNAVAILABLE, "no driver"},
      {"lost", FP_E_DEVICE_LOST, "gone"},
      {"memory", FP_E_OUT_OF_MEMORY, "host memory exhausted"},
      {"config", FP_E_INVALID_ARGUMENT, "attribute 'x' is missing"},
      {"standard", FP_E_INTERNAL, "a bug"},
      {"int", FP_E_INTERNAL, "an exception that is no std::exception"},
  };
  for (const auto& [how, status, text] : ends) {
    SCOPED_TRACE(how);
    fake::Kernel kernel(throws(), {.op = how, .config = {}});
    ASSERT_EQ(kernel.created().status, FP_OK);
    const fake::Result bound = kernel.bind({});
    EXPECT_EQ(bound.status, status);
    EXPECT_EQ(bound.text, text);
    fake::Call call;
    const fake::Result ran = kernel.run(call);  // its workspace query fails first
    EXPECT_EQ(ran.status, status);
    EXPECT_EQ(ran.text, text);
  }
}

TEST(SdkErrors, ASinkIsNotNeeded) {
  fake::Kernel kernel(throws(), {.op = "standard", .config = {}});
  EXPECT_EQ(throws().c().kernels->run(nullptr, nullptr), FP_E_INVALID_ARGUMENT);
  EXPECT_EQ(throws().c().kernels->workspace(nullptr, nullptr, nullptr, nullptr), FP_E_INVALID_ARGUMENT);
  EXPECT_EQ(throws().c().kernels->bind(nullptr, nullptr), FP_E_INVALID_ARGUMENT);
  EXPECT_EQ(throws().c().kernels->query(&throws().c(), nullptr, nullptr, nullptr), FP_E_INVALID_ARGUMENT);
  EXPECT_EQ(throws().c().enumerate(nullptr, nullptr, nullptr), FP_E_INVALID_ARGUMENT);
  EXPECT_EQ(throws().c().ops(&throws().c(), nullptr, nullptr), FP_E_INVALID_ARGUMENT);
  EXPECT_EQ(throws().c().open(&throws().c(), nullptr, nullptr), FP_E_INVALID_ARGUMENT);
  throws().c().kernels->destroy(nullptr);
  throws().c().close(&throws().c(), nullptr);
}

TEST(SdkQuery, PassesOnAllBlockersAndPromises) {
  const fake::Answer blocked = fake::ask(throws(), {.op = "blocked", .config = {}});
  EXPECT_EQ(blocked.c.verdict, FP_ANSWER_NO);
  EXPECT_THAT(blocked.blockers,
              ElementsAre(Pair(FP_REASON_ARCH, "sm_50, at least sm_80"), Pair(FP_REASON_SIZE, "too small")));
  const fake::Answer yes = fake::ask(throws(), {.op = "anything", .config = {}});
  EXPECT_EQ(yes.c.verdict, FP_ANSWER_YES);
  EXPECT_EQ(yes.c.min_edges, 10);
  EXPECT_EQ(yes.c.max_edges, 1000);
  EXPECT_EQ(yes.c.prior_edges, 100);
  EXPECT_EQ(yes.c.tolerance, 1e-3);
  EXPECT_EQ(yes.c.rank, 5);
  EXPECT_EQ(fake::ask(throws(), {.op = "unknown", .config = {}}).c.verdict, FP_ANSWER_UNKNOWN);
}

TEST(SdkQuery, AConfigurationThatCannotBeReadIsABlockerAndABugIsNot) {
  const fake::Answer config = fake::ask(throws(), {.op = "query_config", .config = {}});
  EXPECT_EQ(config.result.status, FP_OK);
  EXPECT_EQ(config.c.verdict, FP_ANSWER_NO);
  EXPECT_THAT(config.blockers, ElementsAre(Pair(FP_REASON_CONFIG, "attribute 'x' is missing")));
  const fake::Answer bug = fake::ask(throws(), {.op = "query_standard", .config = {}});
  EXPECT_EQ(bug.result.status, FP_E_INTERNAL);
  EXPECT_EQ(bug.result.text, "a bug");
}

TEST(SdkCreate, GivesEitherAKernelOrAReason) {
  EXPECT_EQ(fake::Kernel(throws(), {.op = "blocked", .config = {}}).created().text, "sm_50, at least sm_80; too small");
  const fake::Kernel null(throws(), {.op = "create_null", .config = {}});
  EXPECT_EQ(null.created().status, FP_E_INTERNAL);
  EXPECT_EQ(null.created().text, "create returned no kernel");
}

TEST(SdkMemory, ReachesTheDeviceThatOwnsItAndNoOther) {
  const fp_memory_api& memory = *throws().c().memory;
  const auto open = [](std::int32_t type, const fake::Errors& errors, fp_device** device) {
    fp_device_info info = sdk::abi_struct<fp_device_info>();
    info.type = type;
    fp_open_args args = sdk::abi_struct<fp_open_args>();
    args.device = &info;
    args.errors = errors.c();
    return throws().c().open(&throws().c(), &args, device);
  };
  fake::Errors errors;
  fp_device *heap = nullptr, *cpu = nullptr, *none = nullptr;
  ASSERT_EQ(open(FP_DEVICE_EXT, errors, &heap), FP_OK);
  ASSERT_EQ(open(FP_DEVICE_CPU, errors, &cpu), FP_OK);
  EXPECT_EQ(open(FP_DEVICE_OPENCL, errors, &none), FP_E_UNAVAILABLE);
  EXPECT_EQ(none, nullptr);

  const double from[] = {1.0, 2.0};
  double to[] = {0.0, 0.0};
  void* block = nullptr;
  ASSERT_EQ(memory.allocate(heap, 32, &block, errors.c()), FP_OK);
  EXPECT_EQ(memory.copy_to_device(heap, block, 8, from, 16, nullptr, errors.c()), FP_OK);
  EXPECT_EQ(memory.fill_zero(heap, block, 8, 8, nullptr, errors.c()), FP_OK);
  EXPECT_EQ(memory.copy_on_device(heap, block, 0, block, 16, 8, nullptr, errors.c()), FP_OK);
  EXPECT_EQ(memory.copy_from_device(heap, to, block, 0, 16, nullptr, errors.c()), FP_OK);
  EXPECT_THAT(to, ElementsAre(2.0, 0.0));
  memory.release(heap, block);
  EXPECT_EQ(memory.allocate(heap, 2u << 20, &block, errors.c()), FP_E_OUT_OF_MEMORY);
  fp_stream* stream = nullptr;
  ASSERT_EQ(memory.create_stream(heap, &stream, errors.c()), FP_OK);
  EXPECT_EQ(memory.synchronize(heap, stream, errors.c()), FP_E_DEVICE_LOST);
  memory.destroy_stream(heap, stream);
  fp_native native = sdk::abi_struct<fp_native>();
  EXPECT_EQ(memory.native(heap, nullptr, &native), FP_E_UNSUPPORTED);

  fake::Errors on_cpu;
  EXPECT_EQ(on_cpu.result(memory.allocate(cpu, 32, &block, on_cpu.c())).status, FP_E_UNSUPPORTED);
  EXPECT_EQ(on_cpu.result(0).text, "this device has no memory of its own");
  throws().c().close(&throws().c(), heap);
  throws().c().close(&throws().c(), cpu);
}

/// Runs harmonics and a linear map with a host of some dialect; returns all results.
std::vector<double> evaluate(const Dialect& dialect) {
  const fake::Plugin plugin(FASTPATH_PLUGIN_CPU_REF, dialect);
  EXPECT_EQ(plugin.status(), FP_OK);
  std::vector<double> results;
  const auto run = [&](const fake::Query& query, std::vector<Tensor> parameters, Tensor input, Tensor output) {
    const fake::Answer answer = fake::ask(plugin, query);
    EXPECT_EQ(answer.c.verdict, FP_ANSWER_YES);
    EXPECT_TRUE(answer.rubbish_is_untouched);
    fake::Kernel kernel(plugin, query);
    EXPECT_EQ(kernel.bind(parameters).status, FP_OK);
    fake::Call call;
    call.n_edges = call.n_rows = input.shape[0];
    call.inputs = {std::move(input)};
    call.outputs = {std::move(output)};
    const fake::Result ran = kernel.run(call);
    EXPECT_EQ(ran.status, FP_OK) << ran.text;
    for (const double value : call.outputs[0].values<double>()) results.push_back(value);
  };
  run({.op = "spherical_harmonics", .config = sdk::SphericalHarmonicsConfig{2}.attributes()}, {},
      Tensor::of<double>({1, 3}, std::vector<double>{1, 2, 3}), Tensor::unwritten<double>({1, 9}));
  const sdk::IrrepsLinearConfig linear{sdk::Irreps::parse("2x0e"), sdk::Irreps::parse("2x0e")};
  run({.op = "irreps_linear", .config = linear.attributes()},
      {Tensor::of<double>({4}, std::vector<double>{1, 2, 3, 4}), Tensor::absent()},
      Tensor::of<double>({1, 2}, std::vector<double>{1, 10}), Tensor::unwritten<double>({1, 2}));
  return results;
}

TEST(SdkStructs, HostsBuiltWithAnOlderOrNewerHeaderAreServed) {
  const std::vector<double> results = evaluate({});
  ASSERT_EQ(results.size(), 11u);
  EXPECT_NEAR(results[1], 0.4629100498862757, 1e-15);  // operators.md 2.2
  EXPECT_NEAR(results[9], 31 / std::sqrt(2.0), 1e-13);
  EXPECT_EQ(evaluate({.older = true}), results);
  EXPECT_EQ(evaluate({.extra = 24}), results);
}

TEST(SdkStructs, MembersThatAnOlderHostLacksHaveTheirDefaults) {
  for (const bool older : {false, true}) {
    const fake::Plugin plugin(FASTPATH_PLUGIN_THROWS, {.older = older});
    fake::Kernel kernel(plugin, {.op = "org.example.echo", .config = {}});
    fake::Call call;
    call.n_rows = 300;
    call.threads = 3;
    call.outputs = {Tensor::unwritten<double>({4})};
    const fake::Result ran = kernel.run(call);
    ASSERT_EQ(ran.status, FP_OK) << ran.text;
    EXPECT_THAT(call.outputs[0].values<double>(), ElementsAre(3.0, 300.0, 300.0, 0.0));
  }
}

TEST(SdkTensor, ListsTheirRankAndSizesAreChecked) {
  fp_tensor c = Tensor::zeros<double>({2, 3}).c(FP_ACCESS_READ);
  c.shape = nullptr;
  EXPECT_THROW(sdk::Tensor{c}, sdk::InvalidArgument);
  const std::int64_t huge[] = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  c.shape = huge;
  EXPECT_THROW(sdk::Tensor{c}, sdk::InvalidArgument);
  fp_tensor_list list = sdk::abi_struct<fp_tensor_list>();
  list.count = 3;
  EXPECT_THROW(sdk::TensorList{&list}, sdk::InvalidArgument);
  EXPECT_EQ(sdk::TensorList(nullptr).size(), 0u);
  EXPECT_FALSE(sdk::TensorList(nullptr)[5].present());
}

TEST(SdkTensor, ViewsNeedTheRightDtypeAccessAndAlignment) {
  Tensor tensor = Tensor::zeros<double>({2, 3});
  const sdk::Tensor readable(tensor.c(FP_ACCESS_READ));
  EXPECT_EQ(readable.view<const double>().row_size(), 3);
  EXPECT_THROW(readable.view<double>(), sdk::InvalidArgument);
  EXPECT_THROW(readable.view<const float>(), sdk::InvalidArgument);
  tensor.byte_offset = 4;
  EXPECT_THROW(sdk::Tensor(tensor.c(FP_ACCESS_READ)).view<const double>(), sdk::InvalidArgument);
  tensor.byte_offset = 0;
  tensor.strides = {1, 2};
  EXPECT_THROW(sdk::Tensor(tensor.c(FP_ACCESS_READ)).view<const double>(), sdk::Refused);
  EXPECT_FALSE(sdk::Tensor().view<double>());
}

TEST(SdkScratch, CountsWhatItLaterHandsOut) {
  const auto plan = [](sdk::Scratch& scratch) {
    scratch.take<char>(3);
    return scratch.take<double>(5);
  };
  sdk::Scratch counting;
  EXPECT_EQ(plan(counting), nullptr);
  EXPECT_EQ(counting.bytes(), 128u);
  alignas(64) char memory[128];
  sdk::Scratch scratch(memory, sizeof memory);
  EXPECT_EQ(reinterpret_cast<char*>(plan(scratch)), memory + 64);
  EXPECT_THROW(scratch.take<char>(1), sdk::InvalidArgument);
  sdk::Scratch none(nullptr, 100);
  EXPECT_THROW(none.take<char>(1), sdk::InvalidArgument);
}

TEST(PlainC, APluginNeedsNothingButTheHeader) {
  const fake::Plugin plugin(FASTPATH_PLUGIN_PLAIN_C);
  ASSERT_EQ(plugin.status(), FP_OK);
  EXPECT_THAT(fake::ask(plugin, {.op = "other", .config = {}}).blockers,
              ElementsAre(Pair(FP_REASON_OP, "only org.example.double")));
  EXPECT_EQ(fake::ask(plugin, {.op = "org.example.double", .config = {}}).c.verdict, FP_ANSWER_YES);
  fake::Kernel kernel(plugin, {.op = "org.example.double", .config = {}});
  fake::Call call;
  call.inputs = {Tensor::of<double>({3}, std::vector<double>{1, 2, 3})};
  call.outputs = {Tensor::unwritten<double>({3})};
  ASSERT_EQ(kernel.run(call).status, FP_OK);
  EXPECT_THAT(call.outputs[0].values<double>(), ElementsAre(2.0, 4.0, 6.0));
  call.outputs = {Tensor::unwritten<double>({4})};
  const fake::Result ran = kernel.run(call);
  EXPECT_EQ(ran.status, FP_E_INVALID_ARGUMENT);
  EXPECT_THAT(ran.text, HasSubstr("one length"));
}

}  // namespace
