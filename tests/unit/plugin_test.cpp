#include "plugin/plugin.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "../plugin/answers/cases.h"
#include "../plugin/fake_device/counters.h"
#include "fastpath/error.hpp"
#include "plugin/host.hpp"

namespace fastpath::plugin {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kFactor = 2.5;

PluginRegistry& registry() {
  static PluginRegistry* const instance = [] {
    RegistryOptions options;
    options.search_paths = {FASTPATH_TEST_PLUGINS};
    options.default_paths = false;
    return new PluginRegistry(options);
  }();
  return *instance;
}

std::shared_ptr<LoadedPlugin> plugin_with_id(PluginRegistry& from, DeviceKind kind, const std::string& id) {
  for (auto& plugin : from.impl().usable(kind)) {
    if (plugin->info().id == id) return plugin;
  }
  throw std::runtime_error("no plugin " + id);
}

/// Runs `body` and returns the Error that it throws.
template <class Body>
Error error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::internal, "nothing was thrown");
}

std::vector<std::string> codes(const Support& support) {
  std::vector<std::string> result;
  for (const Reason& reason : support.reasons()) result.emplace_back(to_string(reason.code));
  return result;
}

// ---- Answers: a plugin that does what the configuration says ----

class Answers : public ::testing::Test {
 protected:
  static OpSpec op(int which) {
    return {"org.example.answer", 1, {{"case", std::vector<std::int64_t>{which}}, {"name", std::string("x")}}};
  }
  static Support query(int which, KernelTraits* traits = nullptr) {
    return plugin()->query(op(which), cpu_info(), DType::float64, kPassesForces, traits);
  }
  static std::shared_ptr<LoadedPlugin> plugin() { return plugin_with_id(registry(), DeviceKind::cpu, "answers"); }
  static std::unique_ptr<Kernel> kernel(int which) {
    return plugin()->open(cpu_info())->create_kernel(op(which), DType::float64, kPassesForces);
  }
  static CallStatus run(Kernel& kernel, Pass pass = Pass::forward) {
    const Tensor x = Tensor::from<double>({3}, {1, 2, 3});
    const Tensor y = Tensor::empty({3}, DType::float64);
    OpCall call;
    call.pass = pass;
    call.inputs = {&x, 1};
    call.outputs = {&y, 1};
    return kernel.run(call);
  }
};

TEST_F(Answers, OfYesCarryWhatTheKernelPromises) {
  KernelTraits traits;
  EXPECT_TRUE(query(ANSWER_GOOD, &traits));
  EXPECT_EQ(traits.min_edges, 10);
  EXPECT_EQ(traits.max_edges, 1000);
  EXPECT_EQ(traits.prior_edges, 500);
  EXPECT_EQ(traits.tolerance, 1e-7);
  EXPECT_EQ(traits.rank, 3);
  EXPECT_EQ(traits.flags, std::uint32_t{FP_KERNEL_DETERMINISTIC});
  EXPECT_FALSE(traits.unknown_until_open);
  EXPECT_TRUE(query(ANSWER_UNKNOWN, &traits));
  EXPECT_TRUE(traits.unknown_until_open);
}

TEST_F(Answers, OfNoKeepEveryReason) {
  const Support answer = query(ANSWER_NO_WITH_REASONS);
  EXPECT_THAT(codes(answer), ElementsAre("degree", "dtype", "other", "memory"));
  EXPECT_EQ(answer.reasons()[0].text, "degree 9, at most 8");
  EXPECT_EQ(answer.reasons()[2].text, "a reason of a later \xef\xbf\xbd( header");
}

TEST_F(Answers, OfNoHaveAReasonEvenIfThePluginGivesNone) {
  EXPECT_THAT(codes(query(ANSWER_NO_WITHOUT_REASON)), ElementsAre("other"));
  const Support refused = query(ANSWER_UNSUPPORTED);
  ASSERT_THAT(codes(refused), ElementsAre("other"));
  EXPECT_EQ(refused.reasons()[0].text, "not on a Sunday");
}

TEST_F(Answers, AreBoundedHoweverManyReasonsThePluginGives) {
  const std::size_t count = query(ANSWER_FLOOD).reasons().size();
  EXPECT_GE(count, 1u);
  EXPECT_LE(count, 64u);
}

TEST_F(Answers, ThatContradictThemselvesAreRefused) {
  for (const int which : {ANSWER_VERDICT, ANSWER_NEGATIVE_WINDOW, ANSWER_EMPTY_WINDOW, ANSWER_TOLERANCE_NAN,
                          ANSWER_TOLERANCE_HUGE, ANSWER_FAILS}) {
    KernelTraits traits;
    traits.rank = -77;
    EXPECT_THAT(codes(query(which, &traits)), ElementsAre("bad_answer")) << which;
    EXPECT_EQ(traits.rank, -77) << which;
  }
  EXPECT_THAT(codes(query(ANSWER_YES_WITH_REASON)), ElementsAre("other", "bad_answer"));
  EXPECT_THAT(codes(query(ANSWER_REDUCED_MATH)), ElementsAre("math_mode"));
}

TEST_F(Answers, AreNotAskedForADeviceThePluginDoesNotHave) {
  DeviceInfo other;
  other.device = {DeviceKind::cuda, 1};
  const Support answer = plugin()->query(op(ANSWER_GOOD), other, DType::float64, kPassesForces, nullptr);
  EXPECT_THAT(codes(answer), ElementsAre("device"));
  EXPECT_EQ(plugin()->find_device({DeviceKind::cuda, 1}), nullptr);
  EXPECT_EQ(error_of([&] { plugin()->open(other); }).code(), ErrorCode::unavailable);
}

TEST_F(Answers, ThatCannotBecomeAKernelAreErrorsWithTheCause) {
  const Error refused = error_of([] { kernel(ANSWER_NO_WITH_REASONS); });
  EXPECT_EQ(refused.code(), ErrorCode::unavailable);
  EXPECT_THAT(refused.what(), HasSubstr("degree: degree 9, at most 8; dtype: float64, only float32"));
  const Error failed = error_of([] { kernel(CREATE_FAILS); });
  EXPECT_EQ(failed.code(), ErrorCode::out_of_memory);
  EXPECT_THAT(failed.what(), HasSubstr("plugin answers cannot create a kernel for org.example.answer on cpu"));
  EXPECT_THAT(failed.what(), HasSubstr("no room for tables"));
  EXPECT_EQ(error_of([] { kernel(CREATE_NULL); }).code(), ErrorCode::unavailable);
}

TEST_F(Answers, RunWithTheArgumentsThatTheContractPromises) {
  const auto made = kernel(ANSWER_GOOD);
  EXPECT_EQ(made->plugin_id(), "answers");
  EXPECT_EQ(made->traits().rank, 3);
  // Every other element of a buffer, and an input that is not there.
  const Tensor buffer = Tensor::from<double>({7}, {9, 1, 9, 2, 9, 3, 9});
  const std::vector<Tensor> inputs{
      Tensor::wrap(buffer.raw(), {3}, {2}, DType::float64, Device::cpu(), nullptr, sizeof(double)), Tensor()};
  const Tensor y = Tensor::zeros({3}, DType::float64);
  OpCall call;
  call.inputs = inputs;
  call.outputs = {&y, 1};
  EXPECT_EQ(made->saved_bytes(call), 24u);
  const CallStatus status = made->run(call);
  ASSERT_TRUE(status.ok()) << status.text;
  EXPECT_THAT(y.span<double>(), ElementsAre(2, 4, 6));
  for (const Pass pass : {Pass::backward, Pass::forward_tangent, Pass::backward_tangent}) {
    const CallStatus other = run(*made, pass);
    EXPECT_TRUE(other.ok()) << other.text;
  }
}

TEST_F(Answers, KeepScratchOfAnySize) {
  const auto made = kernel(ANSWER_GOOD);
  for (const std::int64_t size : {0, 5, 100000, 17, 3}) {
    const Tensor x = Tensor::zeros({size}, DType::float64);
    const Tensor y = Tensor::empty({size}, DType::float64);
    OpCall call;
    call.inputs = {&x, 1};
    call.outputs = {&y, 1};
    const CallStatus status = made->run(call);
    EXPECT_TRUE(status.ok()) << status.text;
  }
}

TEST_F(Answers, ReportStatusesAndTexts) {
  const CallStatus unknown = run(*kernel(RUN_STATUS_UNKNOWN));
  EXPECT_EQ(unknown.status, FP_E_INTERNAL);
  EXPECT_THAT(unknown.text, HasSubstr("unknown status 5"));
  EXPECT_FALSE(unknown.recoverable());
  const CallStatus busy = run(*kernel(RUN_BUSY));
  EXPECT_EQ(busy.status, FP_E_BUSY);
  EXPECT_EQ(busy.text, "busy");
  EXPECT_TRUE(busy.recoverable());
  const CallStatus talks = run(*kernel(RUN_TALKS));
  EXPECT_EQ(talks.status, FP_E_NUMERICS);
  EXPECT_EQ(talks.text, "first; last");
  const CallStatus workspace = run(*kernel(WORKSPACE_FAILS));
  EXPECT_EQ(workspace.status, FP_E_UNSUPPORTED);
  EXPECT_EQ(workspace.text, "no such size");
}

TEST_F(Answers, AreNotBelievedAboutScratchThatNoMachineHas) {
  const CallStatus status = run(*kernel(WORKSPACE_HUGE));
  EXPECT_EQ(status.status, FP_E_OUT_OF_MEMORY);
  EXPECT_THAT(status.text, HasSubstr("1152921504606846976 bytes"));
}

TEST_F(Answers, AreBoundAgainOnlyIfTheVersionChanged) {
  const auto made = kernel(BIND_FAILS_ONCE);
  const Tensor parameter = Tensor::scalar(1.0);
  EXPECT_EQ(made->bind({&parameter, 1}, 1).status, FP_E_BUSY);
  EXPECT_TRUE(made->bind({&parameter, 1}, 1).ok());  // a bind that failed is repeated
  const auto tells = kernel(BIND_TELLS_VERSION);
  EXPECT_EQ(tells->bind({&parameter, 1}, 7).text, "seven");
  EXPECT_EQ(tells->bind({&parameter, 1}, 8).text, "other");
}

TEST_F(Answers, KeepOneOpenDevice) {
  EXPECT_EQ(plugin()->open(cpu_info()), plugin()->open(cpu_info()));
  std::vector<std::shared_ptr<OpenDevice>> devices(4);
  std::vector<std::thread> threads;
  for (auto& device : devices) threads.emplace_back([&] { device = plugin()->open(cpu_info()); });
  for (auto& thread : threads) thread.join();
  for (const auto& device : devices) EXPECT_EQ(device, devices[0]);
  EXPECT_FALSE(devices[0]->owns_memory());
}

TEST_F(Answers, LeaveADeviceThatIsLostAlone) {
  // A library of its own: a lost device stays lost for the process.
  const fs::path folder = fs::temp_directory_path() / ("fastpath-lost-" + std::to_string(::getpid()));
  fs::create_directory(folder);
  fs::copy_file(fs::path(FASTPATH_TEST_PLUGINS) / "fastpath_answers.so", folder / "fastpath_answers.so");
  RegistryOptions options;
  options.search_paths = {folder};
  options.default_paths = false;
  PluginRegistry own(options);
  const auto device = plugin_with_id(own, DeviceKind::cpu, "answers")->open(cpu_info());
  const auto good = device->create_kernel(op(ANSWER_GOOD), DType::float64, kPassesForces);
  EXPECT_TRUE(run(*good).ok());
  const CallStatus lost = run(*device->create_kernel(op(RUN_DEVICE_LOST), DType::float64, kPassesForces));
  EXPECT_EQ(lost.status, FP_E_DEVICE_LOST);
  EXPECT_EQ(lost.text, "fell off the bus");
  EXPECT_EQ(run(*good).status, FP_E_DEVICE_LOST);
  EXPECT_EQ(error_of([&] { device->create_kernel(op(ANSWER_GOOD), DType::float64, kPassesForces); }).code(),
            ErrorCode::device_lost);
  EXPECT_TRUE(run(*kernel(ANSWER_GOOD)).ok());  // the other library's device is another one
  fs::remove_all(folder);
}

// ---- A device whose memory is out of reach ----

class FakeDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    plugin_ = plugin_with_id(registry(), DeviceKind::extension, "fake_device");
    const DeviceInfo* info = plugin_->find_device({DeviceKind::extension, 0});
    ASSERT_NE(info, nullptr);
    device_ = plugin_->open(*info);
    before_ = counters();
  }
  void TearDown() override {
    EXPECT_EQ(counters().violations, before_.violations);
    EXPECT_EQ(counters().live_blocks, before_.live_blocks);
    EXPECT_EQ(counters().live_bytes, before_.live_bytes);
    EXPECT_EQ(counters().live_streams, before_.live_streams);
    EXPECT_EQ(counters().live_kernels, before_.live_kernels);
  }

  /// The table of the plugin, as a second host in this process sees it.
  static const fp_plugin& table() {
    static const fp_plugin* const instance = [] {
      void* library =
          ::dlopen((fs::path(FASTPATH_TEST_PLUGINS) / "fastpath_fake_device.so").c_str(), RTLD_NOW | RTLD_NOLOAD);
      const auto query = reinterpret_cast<fp_plugin_query_fn>(::dlsym(library, FP_QUERY_SYMBOL));
      const fp_plugin* result = nullptr;
      EXPECT_EQ(query(&host_table(), &result), FP_OK);
      return result;
    }();
    return *instance;
  }
  static fake_device_counters counters() {
    const fp_extension* extension = table().extensions;
    EXPECT_EQ(std::string(extension->id, extension->id_size), FAKE_DEVICE_COUNTERS_ID);
    return *reinterpret_cast<const fake_device_counters*>(extension);
  }

  static OpSpec scale(std::int64_t status = 0) {
    OpSpec op{"org.example.scale", 1, {{"factor", std::vector<double>{kFactor}}}};
    if (status != 0) op.config["status"] = std::vector<std::int64_t>{status};
    return op;
  }
  Tensor on_device(const Tensor& host) const {
    const Tensor result = device_->allocate(host.shape(), host.dtype());
    device_->copy_to_device(host, result);
    return result;
  }
  Tensor on_host(const Tensor& device) const {
    const Tensor result = Tensor::empty(device.shape(), device.dtype());
    device_->copy_from_device(device, result);
    return result;
  }

  std::shared_ptr<LoadedPlugin> plugin_;
  std::shared_ptr<OpenDevice> device_;
  fake_device_counters before_{};
};

TEST_F(FakeDevice, IsFoundWithItsIdentity) {
  const DeviceInfo& info = device_->info();
  EXPECT_EQ(to_string(info.device), "ext:0");
  EXPECT_EQ(info.name, "Fake device");
  EXPECT_EQ(info.arch, "fake_1");
  EXPECT_EQ(info.uuid, "00112233445566778899aabbccddeeff");
  EXPECT_TRUE(device_->owns_memory());
  EXPECT_EQ(counters().open_devices, 1);
}

TEST_F(FakeDevice, KeepsWhatIsCopiedToIt) {
  const Tensor host = Tensor::from<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor device = on_device(host);
  EXPECT_EQ(device.device(), device_->info().device);
  EXPECT_THAT(on_host(device).span<float>(), ElementsAre(1, 2, 3, 4, 5, 6));
  // A part of an allocation, which a handle cannot point to by itself.
  const Tensor second_row = device.narrow(0, 1, 1);
  EXPECT_THAT(on_host(second_row).span<float>(), ElementsAre(4, 5, 6));
  device_->copy_to_device(Tensor::from<float>({1, 3}, {7, 8, 9}), second_row);
  device_->fill_zero(device.narrow(0, 0, 1));
  EXPECT_THAT(on_host(device).span<float>(), ElementsAre(0, 0, 0, 7, 8, 9));
}

TEST_F(FakeDevice, HoldsTensorsWithoutElements) {
  const Tensor device = on_device(Tensor::empty({0, 4}, DType::float64));
  device_->fill_zero(device);
  EXPECT_EQ(on_host(device).numel(), 0);
}

TEST_F(FakeDevice, ReleasesMemoryWithTheLastTensorThatSharesIt) {
  const std::int64_t blocks = counters().live_blocks;
  {
    Tensor part;
    {
      const Tensor device = device_->allocate({10, 10}, DType::float64);
      EXPECT_EQ(counters().live_blocks, blocks + 1);
      part = device.narrow(0, 3, 2);
    }
    EXPECT_EQ(counters().live_blocks, blocks + 1);
  }
  EXPECT_EQ(counters().live_blocks, blocks);
}

TEST_F(FakeDevice, RefusesMoreMemoryThanItHas) {
  const Error error = error_of([&] { device_->allocate({std::int64_t{1} << 30}, DType::float64); });
  EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  EXPECT_THAT(error.what(), HasSubstr("8589934592 bytes on ext:0"));
  EXPECT_EQ(error_of([&] { device_->allocate({-1}, DType::float64); }).code(), ErrorCode::invalid_argument);
}

TEST_F(FakeDevice, RefusesCopiesBetweenTensorsThatDoNotMatch) {
  const Tensor host = Tensor::zeros({4}, DType::float64);
  const Tensor device = on_device(host);
  const auto code = [&](const Tensor& from, const Tensor& to) {
    return error_of([&] { device_->copy_to_device(from, to); }).code();
  };
  EXPECT_EQ(code(host, host), ErrorCode::invalid_argument);
  EXPECT_EQ(code(device, device), ErrorCode::invalid_argument);
  EXPECT_EQ(code(Tensor::zeros({5}, DType::float64), device), ErrorCode::invalid_argument);
  EXPECT_EQ(code(Tensor::zeros({8}, DType::float32), device), ErrorCode::invalid_argument);
  EXPECT_EQ(code(host, Tensor()), ErrorCode::invalid_argument);
  EXPECT_EQ(code(Tensor::zeros({4, 2}, DType::float64).transpose(0, 1).narrow(0, 0, 1), device),
            ErrorCode::invalid_argument);
}

/// Forward and backward of y = factor x + shift on the device, copied back.
TEST_F(FakeDevice, RunsAKernelOnItsOwnMemory) {
  for (const DType dtype : {DType::float32, DType::float64}) {
    const auto kernel = device_->create_kernel(scale(), dtype, kPassesForces);
    const Tensor shift = on_device(Tensor::from<double>({1}, {0.25}).to(dtype));
    const Tensor x = on_device(Tensor::from<double>({2, 2}, {1, 2, 3, 4}).to(dtype));
    const Tensor y = device_->allocate({2, 2}, dtype);
    ASSERT_TRUE(kernel->bind({&shift, 1}, 1).ok());
    OpCall call;
    call.inputs = {&x, 1};
    call.outputs = {&y, 1};
    const std::uint64_t saved = kernel->saved_bytes(call);
    ASSERT_EQ(saved, 8u);
    call.saved = device_->allocate({static_cast<std::int64_t>(saved)}, DType::uint8);
    const CallStatus forward = kernel->run(call);
    ASSERT_TRUE(forward.ok()) << forward.text;
    // Exact in both dtypes.
    EXPECT_THAT(on_host(y).to(DType::float64).span<double>(), ElementsAre(2.75, 5.25, 7.75, 10.25));

    const Tensor grad_y = on_device(Tensor::from<double>({2, 2}, {1, -1, 2, 4}).to(dtype));
    const Tensor grad_x = device_->allocate({2, 2}, dtype);
    const Tensor grad_shift = device_->allocate({1}, dtype);
    OpCall back;
    back.pass = Pass::backward;
    back.inputs = {&x, 1};
    back.saved = call.saved;
    back.grad_outputs = {&grad_y, 1};
    back.grad_inputs = {&grad_x, 1};
    back.grad_parameters = {&grad_shift, 1};
    const CallStatus backward = kernel->run(back);
    ASSERT_TRUE(backward.ok()) << backward.text;
    EXPECT_THAT(on_host(grad_x).to(DType::float64).span<double>(), ElementsAre(2.5, -2.5, 5, 10));
    EXPECT_EQ(on_host(grad_shift).to(DType::float64).item(), 6);
  }
  EXPECT_EQ(counters().runs, before_.runs + 4);
}

TEST_F(FakeDevice, BindsParametersOnlyWhenTheyChanged) {
  const auto kernel = device_->create_kernel(scale(), DType::float64, Pass::forward);
  const Tensor x = on_device(Tensor::from<double>({1}, {1}));
  const Tensor y = device_->allocate({1}, DType::float64);
  OpCall call;
  call.inputs = {&x, 1};
  call.outputs = {&y, 1};
  call.saved = device_->allocate({8}, DType::uint8);
  std::uint64_t version = 0;
  for (const double shift : {1.0, 2.0}) {
    {
      const Tensor parameter = on_device(Tensor::from<double>({1}, {shift}));
      ++version;
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(kernel->bind({&parameter, 1}, version).ok());
    }  // the kernel keeps what it is bound to
    EXPECT_TRUE(kernel->run(call).ok());
    EXPECT_EQ(on_host(y).item(), kFactor + shift);
  }
  EXPECT_EQ(counters().binds, before_.binds + 2);
}

TEST_F(FakeDevice, RefusesTensorsOfTheHostInACall) {
  const auto kernel = device_->create_kernel(scale(), DType::float64, Pass::forward);
  const Tensor x = Tensor::zeros({2}, DType::float64);
  const Tensor y = device_->allocate({2}, DType::float64);
  OpCall call;
  call.inputs = {&x, 1};
  call.outputs = {&y, 1};
  const CallStatus status = kernel->run(call);
  EXPECT_EQ(status.status, FP_E_INVALID_ARGUMENT);
  EXPECT_THAT(status.text, HasSubstr("a tensor on cpu in a call of a kernel on ext:0"));
  EXPECT_EQ(kernel->bind({&x, 1}, 1).status, FP_E_INVALID_ARGUMENT);
  EXPECT_EQ(counters().runs, before_.runs);
}

TEST_F(FakeDevice, TellsHowARunEndedThoughItEndsOnAStream) {
  const Tensor shift = on_device(Tensor::zeros({1}, DType::float64));
  const Tensor x = on_device(Tensor::zeros({2}, DType::float64));
  const Tensor y = device_->allocate({2}, DType::float64);
  OpCall call;
  call.inputs = {&x, 1};
  call.outputs = {&y, 1};
  call.saved = device_->allocate({8}, DType::uint8);
  for (const std::int32_t status : {FP_E_UNSUPPORTED, FP_E_BUSY, FP_E_OUT_OF_MEMORY, FP_E_NUMERICS}) {
    const auto kernel = device_->create_kernel(scale(status), DType::float64, Pass::forward);
    ASSERT_TRUE(kernel->bind({&shift, 1}, 1).ok());
    const CallStatus ended = kernel->run(call);
    EXPECT_EQ(ended.status, status);
    EXPECT_EQ(ended.text, "scale: was asked to fail");
    EXPECT_EQ(ended.recoverable(), status != FP_E_NUMERICS);
  }
}

TEST_F(FakeDevice, KeepsScratchMemoryBetweenRuns) {
  const auto kernel = device_->create_kernel(scale(), DType::float64, Pass::forward);
  const Tensor shift = on_device(Tensor::zeros({1}, DType::float64));
  ASSERT_TRUE(kernel->bind({&shift, 1}, 1).ok());
  const Tensor saved = device_->allocate({8}, DType::uint8);
  std::vector<std::int64_t> blocks;
  for (const std::int64_t rows : {100, 100, 50, 1000, 1000}) {
    const Tensor x = on_device(Tensor::zeros({rows}, DType::float64));
    const Tensor y = device_->allocate({rows}, DType::float64);
    OpCall call;
    call.inputs = {&x, 1};
    call.outputs = {&y, 1};
    call.saved = saved;
    EXPECT_TRUE(kernel->run(call).ok());
    blocks.push_back(counters().live_blocks);
  }
  EXPECT_THAT(blocks, testing::Each(blocks.front()));
}

TEST_F(FakeDevice, ServesThreadsWithAKernelEach) {
  const Tensor shift = on_device(Tensor::zeros({1}, DType::float64));
  std::vector<double> results(4);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < results.size(); ++t) {
    threads.emplace_back([&, t] {
      const auto kernel = device_->create_kernel(scale(), DType::float64, Pass::forward);
      if (!kernel->bind({&shift, 1}, 1).ok()) return;
      Tensor x = on_device(Tensor::from<double>({1}, {1}));
      for (int i = 0; i < 20; ++i) {
        const Tensor y = device_->allocate({1}, DType::float64);
        OpCall call;
        call.inputs = {&x, 1};
        call.outputs = {&y, 1};
        call.saved = device_->allocate({8}, DType::uint8);
        if (!kernel->run(call).ok()) return;
        results[t] = on_host(y).item();
        x = on_device(Tensor::from<double>({1}, {static_cast<double>(t) + i}));
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (std::size_t t = 0; t < results.size(); ++t) {
    EXPECT_EQ(results[t], kFactor * (static_cast<double>(t) + 18));
  }
}

TEST_F(FakeDevice, RefusesOpsAndDtypesItDoesNotHave) {
  OpSpec op = scale();
  op.id = "org.example.other";
  op.version = 2;
  const Support answer = plugin_->query(op, device_->info(), DType::int32, kPassesTraining, nullptr);
  EXPECT_THAT(codes(answer), ElementsAre("dtype", "pass", "op"));
  op = scale();
  op.config.clear();
  EXPECT_THAT(codes(plugin_->query(op, device_->info(), DType::float64, Pass::forward, nullptr)),
              ElementsAre("config"));
}

/// Memory, streams and events through the ABI itself, as the GPU back ends will use them.
class FakeStreams : public FakeDevice {
 protected:
  void SetUp() override {
    FakeDevice::SetUp();
    fp_device_info info{};
    info.struct_size = FP_SIZE_DEVICE_INFO;
    info.type = FP_DEVICE_EXT;
    fp_open_args args{};
    args.struct_size = FP_SIZE_OPEN_ARGS;
    args.device = &info;
    ASSERT_EQ(table().open(&table(), &args, &open_), FP_OK);
    for (void*& block : blocks_) ASSERT_EQ(api().allocate(open_, kBytes, &block, nullptr), FP_OK);
    for (fp_stream*& stream : streams_) ASSERT_EQ(api().create_stream(open_, &stream, nullptr), FP_OK);
    ASSERT_EQ(api().create_event(open_, &event_, nullptr), FP_OK);
  }
  void TearDown() override {
    api().destroy_event(open_, event_);
    for (fp_stream* stream : streams_) api().destroy_stream(open_, stream);
    for (void* block : blocks_) api().release(open_, block);
    table().close(&table(), open_);
    FakeDevice::TearDown();
  }
  static const fp_memory_api& api() { return *table().memory; }

  static constexpr std::uint64_t kBytes = 64;
  fp_device* open_ = nullptr;
  void* blocks_[2] = {};
  fp_stream* streams_[2] = {};
  fp_event* event_ = nullptr;
};

TEST_F(FakeStreams, DoNothingBeforeSomebodyWaits) {
  std::vector<char> from(kBytes, 'x');
  std::vector<char> to(kBytes, '-');
  ASSERT_EQ(api().copy_to_device(open_, blocks_[0], 0, from.data(), kBytes, streams_[0], nullptr), FP_OK);
  ASSERT_EQ(api().copy_on_device(open_, blocks_[1], 0, blocks_[0], 0, kBytes, streams_[0], nullptr), FP_OK);
  ASSERT_EQ(api().copy_from_device(open_, to.data(), blocks_[1], 0, kBytes, streams_[0], nullptr), FP_OK);
  EXPECT_EQ(to[0], '-');
  ASSERT_EQ(api().synchronize(open_, streams_[0], nullptr), FP_OK);
  EXPECT_EQ(to, from);
}

TEST_F(FakeStreams, RefuseMemoryThatAnotherStreamWorksOn) {
  ASSERT_EQ(api().fill_zero(open_, blocks_[0], 0, kBytes, streams_[0], nullptr), FP_OK);
  EXPECT_EQ(api().fill_zero(open_, blocks_[0], 0, kBytes, streams_[1], nullptr), FP_E_INVALID_ARGUMENT);
  EXPECT_EQ(api().fill_zero(open_, blocks_[0], 0, kBytes, nullptr, nullptr), FP_E_INVALID_ARGUMENT);
  EXPECT_EQ(api().fill_zero(open_, blocks_[1], 0, kBytes, streams_[1], nullptr), FP_OK);
  for (fp_stream* stream : streams_) ASSERT_EQ(api().synchronize(open_, stream, nullptr), FP_OK);
  EXPECT_EQ(api().fill_zero(open_, blocks_[0], 0, kBytes, streams_[1], nullptr), FP_OK);
  ASSERT_EQ(api().synchronize(open_, streams_[1], nullptr), FP_OK);
}

TEST_F(FakeStreams, AreOrderedByEvents) {
  std::vector<char> from(kBytes, 'x');
  std::vector<char> to(kBytes, '-');
  ASSERT_EQ(api().copy_to_device(open_, blocks_[0], 0, from.data(), kBytes, streams_[0], nullptr), FP_OK);
  ASSERT_EQ(api().record(open_, event_, streams_[0], nullptr), FP_OK);
  ASSERT_EQ(api().wait(open_, streams_[1], event_, nullptr), FP_OK);
  ASSERT_EQ(api().copy_from_device(open_, to.data(), blocks_[0], 0, kBytes, streams_[1], nullptr), FP_OK);
  // What comes after the event on the first stream is not covered by it.
  EXPECT_EQ(api().fill_zero(open_, blocks_[0], 0, kBytes, streams_[0], nullptr), FP_E_INVALID_ARGUMENT);
  ASSERT_EQ(api().synchronize(open_, streams_[1], nullptr), FP_OK);
  EXPECT_EQ(to, from);
  ASSERT_EQ(api().synchronize(open_, streams_[0], nullptr), FP_OK);
}

TEST_F(FakeStreams, RefuseAddressesOfTheHostAndBytesPastAnAllocation) {
  std::vector<char> host(kBytes);
  EXPECT_EQ(api().fill_zero(open_, host.data(), 0, kBytes, nullptr, nullptr), FP_E_INVALID_ARGUMENT);
  EXPECT_EQ(api().fill_zero(open_, blocks_[0], 1, kBytes, nullptr, nullptr), FP_E_INVALID_ARGUMENT);
  EXPECT_EQ(api().fill_zero(open_, blocks_[0], ~std::uint64_t{0}, kBytes, nullptr, nullptr), FP_E_INVALID_ARGUMENT);
  EXPECT_EQ(api().fill_zero(open_, static_cast<char*>(blocks_[0]) + 8, 0, 8, nullptr, nullptr), FP_E_INVALID_ARGUMENT);
}

// ---- What plugins get from the host ----

TEST(HostTable, HandsOutAlignedMemory) {
  const fp_host& host = host_table();
  for (const std::uint64_t alignment : {0, 1, 8, 64, 4096}) {
    for (const std::uint64_t bytes : {0, 1, 63, 64, 65, 10000}) {
      void* memory = host.allocate(host.context, bytes, alignment);
      ASSERT_NE(memory, nullptr);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % std::max<std::uint64_t>(alignment, 8), 0u);
      std::fill_n(static_cast<char*>(memory), bytes, 'x');
      host.release(host.context, memory);
    }
  }
  EXPECT_EQ(host.allocate(host.context, 8, 24), nullptr);
  EXPECT_EQ(host.allocate(host.context, ~std::uint64_t{0}, 64), nullptr);
  host.release(host.context, nullptr);
}

TEST(HostTable, StatesTheThreadBudget) {
  const fp_host& host = host_table();
  EXPECT_GE(host.thread_budget(host.context), 1);
  set_thread_budget(3);
  EXPECT_EQ(host.thread_budget(host.context), 3);
  set_thread_budget(0);
  EXPECT_GE(host.thread_budget(host.context), 1);
}

TEST(HostTable, LooksUpConfigurationWhoseValuesStayValid) {
  const fp_host& host = host_table();
  const auto lookup = [&](std::string_view key) -> const char* {
    const char* value = nullptr;
    std::uint64_t size = 0;
    return host.lookup(host.context, key.data(), key.size(), &value, &size) != 0 ? value : nullptr;
  };
  EXPECT_EQ(lookup("acme.cache"), nullptr);
  set_configuration("acme.cache", "/first");
  const char* first = lookup("acme.cache");
  ASSERT_NE(first, nullptr);
  set_configuration("acme.cache", "/second");
  EXPECT_STREQ(first, "/first");
  EXPECT_STREQ(lookup("acme.cache"), "/second");
  set_configuration("acme.cache", std::nullopt);
  EXPECT_EQ(lookup("acme.cache"), nullptr);
  EXPECT_STREQ(first, "/first");
}

TEST(HostTable, HandsLogLinesToTheSinkAndNoneOfItsExceptionsBack) {
  const fp_host& host = host_table();
  std::vector<std::string> lines;
  set_log_sink([&](std::int32_t level, std::string_view text) {
    lines.push_back(std::to_string(level) + " " + std::string(text));
    throw std::runtime_error("a sink that fails");
  });
  host.log(host.context, FP_LOG_INFO, "two\nlines", 9);
  host.log(host.context, FP_LOG_ERROR, nullptr, 9);
  set_log_sink(nullptr);
  host.log(host.context, FP_LOG_ERROR, "unheard", 7);
  EXPECT_THAT(lines, ElementsAre("1 two lines", "3 "));
}

TEST(Registry, LoadsOnlyWhatNamesTheKindOfDevice) {
  RegistryOptions options;
  options.search_paths = {FASTPATH_TEST_PLUGINS};
  options.default_paths = false;
  PluginRegistry fresh(options);
  const auto state = [&](const std::string& id) {
    for (const PluginInfo& plugin : fresh.impl().known()) {
      if (plugin.id == id) return std::string(to_string(plugin.reason.code));
    }
    return std::string("absent");
  };
  EXPECT_EQ(state("answers"), "not_needed");
  EXPECT_EQ(fresh.impl().usable(DeviceKind::cpu).size(), 1u);
  EXPECT_EQ(state("answers"), "usable");
  EXPECT_EQ(state("fake_device"), "not_needed");
  EXPECT_TRUE(fresh.impl().usable(DeviceKind::cuda).empty());
  EXPECT_EQ(state("fake_device"), "not_needed");
  EXPECT_EQ(fresh.impl().usable(DeviceKind::extension).size(), 1u);
  EXPECT_EQ(state("fake_device"), "usable");
}

TEST(Registry, SharesALibraryWithOtherRegistriesOfTheProcess) {
  RegistryOptions options;
  options.search_paths = {FASTPATH_TEST_PLUGINS};
  options.default_paths = false;
  PluginRegistry other(options);
  EXPECT_EQ(plugin_with_id(other, DeviceKind::cpu, "answers"), plugin_with_id(registry(), DeviceKind::cpu, "answers"));
}

}  // namespace
}  // namespace fastpath::plugin
