#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "count_allocations.hpp"
#include "offers.hpp"
#include "runtime/kernel.hpp"
#include "runtime/plugin.hpp"

/// The runtime that the plugins of all vendors share, on a device that is made up.

namespace fastpath_gpu {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// What happened on the made-up device, and what is to happen.
struct Events {
  int compiled = 0, loaded = 0, launches = 0, live_memory = 0, told_of_loss = 0;
  bool lost = false, gives_modules = true, refuses_binaries = false;
  std::string compiler_error;
  std::vector<std::string> launched;  // "kernel groups memory+offset/value.."
  bool record = true;
};

struct FakeModule final : Module {
  explicit FakeModule(const Program& program) {
    for (const KernelInfo& kernel : program.kernels) names.push_back(kernel.name);
  }
  std::vector<std::string> names;
};

class FakeDevice final : public BackendDevice {
 public:
  explicit FakeDevice(Events& events) : events_(events) {}
  const Target& target() const override { return target_; }
  Binary compile(const Program& program, std::unique_ptr<Module>& module) override {
    alive();
    if (!events_.compiler_error.empty()) throw sdk::Refused(events_.compiler_error);
    ++events_.compiled;
    if (events_.gives_modules) module = std::make_unique<FakeModule>(program);
    return {{program.source.begin(), program.source.end()}, {}};
  }
  std::unique_ptr<Module> load(const Program& program, const Binary&) override {
    alive();
    if (events_.refuses_binaries) throw sdk::Refused("not mine");
    ++events_.loaded;
    return std::make_unique<FakeModule>(program);
  }
  void lost() noexcept override { ++events_.told_of_loss; }
  void launch(Module& module, std::size_t kernel, std::int64_t groups, std::span<const BoundArgument> arguments,
              fp_stream*) override {
    alive();
    ++events_.launches;
    if (!events_.record) return;
    std::string text = static_cast<FakeModule&>(module).names.at(kernel) + " " + std::to_string(groups);
    for (const BoundArgument& argument : arguments) {
      text += argument.is_buffer ? " " + name(argument.memory) + "+" + std::to_string(argument.value)
                                 : " " + std::to_string(argument.value);
    }
    events_.launched.push_back(text);
  }
  void* allocate(std::uint64_t bytes) override {
    alive();
    ++events_.live_memory;
    return std::malloc(bytes == 0 ? 1 : bytes);
  }
  void release(void* memory) noexcept override {
    --events_.live_memory;
    std::free(memory);
  }
  void copy_to_device(void* to, std::uint64_t at, const void* from, std::uint64_t bytes, fp_stream*) override {
    alive();
    std::memcpy(static_cast<char*>(to) + at, from, bytes);
  }
  void copy_from_device(void* to, const void* from, std::uint64_t at, std::uint64_t bytes, fp_stream*) override {
    alive();
    std::memcpy(to, static_cast<const char*>(from) + at, bytes);
  }
  void copy_on_device(void*, std::uint64_t, const void*, std::uint64_t, std::uint64_t, fp_stream*) override { alive(); }
  void fill_zero(void*, std::uint64_t, std::uint64_t, fp_stream*) override { alive(); }
  fp_stream* create_stream() override { return alive(), nullptr; }
  void destroy_stream(fp_stream*) noexcept override {}
  void synchronize(fp_stream*) override { alive(); }
  fp_event* create_event() override { return alive(), nullptr; }
  void destroy_event(fp_event*) noexcept override {}
  void record(fp_event*, fp_stream*) override { alive(); }
  void wait(fp_stream*, fp_event*) override { alive(); }
  void memory_info(std::uint64_t*, std::uint64_t*) override { alive(); }

  /// Gives memory a name in launches.
  static std::string name(const void* memory) {
    const auto found = names().find(memory);
    return found == names().end() ? (memory == nullptr ? "null" : "own") : found->second;
  }
  static std::map<const void*, std::string>& names() {
    static std::map<const void*, std::string> instance;
    return instance;
  }

 private:
  void alive() const {
    if (events_.lost) throw DeviceLost("fell off the bus");
  }
  Events& events_;
  Target target_{Language::opencl, "fake", 256, 32 * 1024, true};
};

class FakeBackend final : public Backend {
 public:
  explicit FakeBackend(Events& events) : events_(events) {}
  Language language() const override { return Language::opencl; }
  std::vector<sdk::DeviceDescription> devices() override {
    sdk::DeviceDescription wide, narrow;
    wide.type = narrow.type = FP_DEVICE_OPENCL;
    wide.name = "Wide";
    wide.dtypes = FP_DTYPE_BIT_F32 | FP_DTYPE_BIT_F64;
    narrow.index = 1;
    narrow.name = "Narrow";
    narrow.dtypes = FP_DTYPE_BIT_F32;
    return {wide, narrow};
  }
  std::unique_ptr<BackendDevice> open(const sdk::DeviceDescription&) override {
    return std::make_unique<FakeDevice>(events_);
  }
  std::string compiler(const Target&) override { return "fake compiler"; }
  Binary compile(const Program&, const Target&) override { return {}; }

 private:
  Events& events_;
};

/// An op with an output, a parameter whose values go into the source, and one that is repacked.
class MadeUpOp final : public Op {
 public:
  MadeUpOp()
      : Op({{{.name = "x", .axis = sdk::Axis::rows, .trailing = {2}}},
            {{.name = "constant", .trailing = {2}}, {.name = "weight", .trailing = {3}}},
            {{.name = "y", .axis = sdk::Axis::rows, .trailing = {2}}},
            false}) {}
  std::vector<std::size_t> constants() const override { return {0}; }
  void set_constants(const std::vector<std::vector<double>>& values) override { values_ = values.at(0); }
  Program generate(const Target&, sdk::DType, std::uint32_t) override {
    Program program;
    program.source = "source with " + std::to_string(values_.at(0)) + " and " + std::to_string(values_.at(1));
    program.kernels = {{"pack", 32, 0, {true, true}},
                       {"forward", 64, 0, {true, true, true, true, false}},
                       {"backward", 64, 0, {true, true, true}}};
    program.owned = {24};
    program.tables = {{1, 2, 3}};
    return program;
  }
  void plan_bind(Plan& plan) const override {
    plan.launch("pack", 1, {Buffer{Role::parameter, 1}, Buffer{Role::owned, 0}});
  }
  void plan(const Call& call, Plan& plan) const override {
    const Buffer scratch = plan.scratch(static_cast<std::uint64_t>(call.n_rows));
    if (call.pass == sdk::Pass::forward) {
      plan.launch_items(
          "forward", call.n_rows,
          {Buffer{Role::input, 0}, Buffer{Role::output, 0, 8}, Buffer{Role::owned, 0}, scratch, call.n_rows});
    } else if (call.grad_inputs[0]) {
      plan.launch_items("backward", call.n_rows,
                        {Buffer{Role::grad_output, 0}, Buffer{Role::grad_input, 0}, Buffer{Role::parameter, 1}});
    }
  }

 private:
  std::vector<double> values_;
};

struct Array {
  Array(std::string name, std::vector<std::int64_t> sizes) : shape(std::move(sizes)) {
    std::int64_t n = 1;
    strides.resize(shape.size());
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      strides[axis] = n;
      n *= shape[axis];
    }
    values.assign(static_cast<std::size_t>(n), 0.0);
    FakeDevice::names()[values.data()] = std::move(name);
  }
  ~Array() { FakeDevice::names().erase(values.data()); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  fp_tensor c(std::uint32_t access, std::int32_t index = 0) {
    fp_tensor tensor = sdk::abi_struct<fp_tensor>();
    tensor.access = access;
    tensor.data = values.data();
    tensor.device_type = FP_DEVICE_OPENCL;
    tensor.device_id = index;
    tensor.ndim = static_cast<std::int32_t>(shape.size());
    tensor.dtype_code = FP_CODE_FLOAT;
    tensor.dtype_bits = 64;
    tensor.dtype_lanes = 1;
    tensor.shape = shape.data();
    tensor.strides = strides.data();
    return tensor;
  }
  std::vector<std::int64_t> shape, strides;
  std::vector<double> values;
};

class List {
 public:
  explicit List(std::vector<fp_tensor> tensors)
      : tensors_(std::move(tensors)), list_(sdk::abi_struct<fp_tensor_list>()) {
    list_.stride = sizeof(fp_tensor);
    list_.count = tensors_.size();
    list_.items = tensors_.data();
  }
  sdk::TensorList get() const { return sdk::TensorList(&list_); }

 private:
  std::vector<fp_tensor> tensors_;
  fp_tensor_list list_;
};

class Runtime : public testing::Test {
 protected:
  std::unique_ptr<GpuDevice> open(CompileCache cache = {}) {
    return std::make_unique<GpuDevice>(backend_.devices()[0], 0, backend_, std::move(cache));
  }
  static std::unique_ptr<GpuKernel> kernel(GpuDevice& device) {
    return std::make_unique<GpuKernel>(std::make_unique<MadeUpOp>(), sdk::kFloat64, FP_PASS_FORWARD | FP_PASS_BACKWARD,
                                       device);
  }
  void bind(GpuKernel& kernel, std::uint64_t version) {
    const List list({constant_.c(FP_ACCESS_READ), weight_.c(FP_ACCESS_READ)});
    kernel.bind({version, list.get(), nullptr, {}});
  }
  static sdk::Sizes rows(std::int64_t n, sdk::Pass pass = sdk::Pass::forward) { return {pass, n, 0, 0, n}; }
  sdk::Run forward() {
    sdk::Run run;
    run.sizes = rows(3);
    run.inputs = x_list_.get();
    run.outputs = y_list_.get();
    run.scratch = scratch_.values.data();
    run.scratch_bytes = 256;
    return run;
  }

  Events events_;
  FakeBackend backend_{events_};
  Array constant_{"constant", {2}}, weight_{"weight", {3}}, x_{"x", {3, 2}}, y_{"y", {3, 2}}, scratch_{"scratch", {32}};
  List x_list_{{x_.c(FP_ACCESS_READ)}}, y_list_{{y_.c(FP_ACCESS_WRITE)}};
};

TEST_F(Runtime, FindsTheMemoryOfEveryArgument) {
  const auto device = open();
  const auto made = kernel(*device);
  bind(*made, 1);
  EXPECT_EQ(made->workspace(rows(3)).scratch_bytes, 256u);
  made->run(forward());
  EXPECT_THAT(events_.launched, ElementsAre("pack 1 weight+0 own+0", "forward 1 x+0 y+8 own+0 scratch+0 3"));
}

TEST_F(Runtime, LaunchesOnlyWhatIsWanted) {
  const auto device = open();
  const auto made = kernel(*device);
  bind(*made, 1);
  events_.launched.clear();
  Array grad_y("grad_y", {3, 2}), grad_x("grad_x", {3, 2});
  const List given({grad_y.c(FP_ACCESS_READ)}), wanted({grad_x.c(FP_ACCESS_WRITE)}),
      none({sdk::abi_struct<fp_tensor>()});
  sdk::Run run = forward();
  run.pass = run.sizes.pass = sdk::Pass::backward;
  run.grad_outputs = given.get();
  run.grad_inputs = none.get();
  made->run(run);
  EXPECT_THAT(events_.launched, ElementsAre());
  run.grad_inputs = wanted.get();
  made->run(run);
  EXPECT_THAT(events_.launched, ElementsAre("backward 1 grad_y+0 grad_x+0 weight+0"));
}

TEST_F(Runtime, GeneratesAnewWhenAConstantChangedAndRepacksWithEveryVersion) {
  const auto device = open();
  const auto made = kernel(*device);
  bind(*made, 1);
  bind(*made, 1);
  EXPECT_EQ(events_.compiled, 1);
  EXPECT_EQ(events_.launches, 1);
  weight_.values[0] = 5;
  bind(*made, 2);
  EXPECT_EQ(events_.compiled, 1);
  EXPECT_EQ(events_.launches, 2);
  constant_.values[1] = 2;
  bind(*made, 3);
  EXPECT_EQ(events_.compiled, 2);
  EXPECT_EQ(events_.launches, 3);
  made->run(forward());
  EXPECT_EQ(events_.launches, 4);
}

TEST_F(Runtime, AllocatesNothingForACallLikeOneBefore) {
  const auto device = open();
  const auto made = kernel(*device);
  bind(*made, 1);
  const sdk::Run run = forward();
  made->run(run);
  events_.record = false;
  const std::uint64_t before = allocations();
  made->run(run);
  EXPECT_EQ(allocations(), before);
}

TEST_F(Runtime, KeepsTrackOfMoreSizesThanItKeepsPlansFor) {
  const auto device = open();
  const auto made = kernel(*device);
  bind(*made, 1);
  for (std::int64_t n = 1; n <= 40; ++n) {
    Array x("x", {n, 2}), y("y", {n, 2});
    const List in({x.c(FP_ACCESS_READ)}), out({y.c(FP_ACCESS_WRITE)});
    sdk::Run run = forward();
    run.sizes = rows(n);
    run.inputs = in.get();
    run.outputs = out.get();
    made->run(run);
    EXPECT_EQ(events_.launched.back(), "forward 1 x+0 y+8 own+0 scratch+0 " + std::to_string(n));
  }
}

TEST_F(Runtime, SharesCodeBetweenKernelsOfOneSource) {
  const auto device = open();
  const auto one = kernel(*device), two = kernel(*device);
  bind(*one, 1);
  bind(*two, 1);
  EXPECT_EQ(events_.compiled, 1);
}

TEST_F(Runtime, GivesBackAllMemoryOfItsKernels) {
  const auto device = open();
  for (int i = 0; i < 3; ++i) {
    const auto made = kernel(*device);
    bind(*made, 1);
    constant_.values[0] = i + 1;
    bind(*made, 2);
    EXPECT_EQ(events_.live_memory, 2);
  }
  EXPECT_EQ(events_.live_memory, 0);
}

TEST_F(Runtime, AnswersALostDeviceWithItsLossFromThenOn) {
  const auto device = open();
  const auto made = kernel(*device);
  bind(*made, 1);
  events_.lost = true;
  EXPECT_THROW(made->run(forward()), DeviceLost);
  events_.lost = false;  // a driver may forget; what was on the device is gone all the same
  EXPECT_THROW(made->run(forward()), DeviceLost);
  EXPECT_THROW(device->allocate(1), DeviceLost);
  EXPECT_EQ(events_.told_of_loss, 1);
  try {
    device->synchronize(nullptr);
    FAIL() << "expected DeviceLost";
  } catch (const DeviceLost& error) {
    EXPECT_STREQ(error.what(), "fell off the bus");
    EXPECT_EQ(error.status(), FP_E_DEVICE_LOST);
  }
}

TEST_F(Runtime, IsNotBoundAfterABindThatFailed) {
  const auto device = open();
  const auto made = kernel(*device);
  EXPECT_THROW(made->workspace(rows(3)), sdk::InvalidArgument);
  events_.compiler_error = "line 1: expected ';'";
  try {
    bind(*made, 1);
    FAIL() << "expected Refused";
  } catch (const sdk::Refused& error) {
    EXPECT_THAT(error.what(), HasSubstr("expected ';'"));
  }
  EXPECT_THROW(made->run(forward()), sdk::InvalidArgument);
  events_.compiler_error.clear();
  bind(*made, 1);
  made->run(forward());
}

TEST_F(Runtime, RefusesTensorsThatAreNotOnItsDeviceOrCannotBeUsed) {
  const auto device = open();
  const auto made = kernel(*device);
  bind(*made, 1);
  const std::size_t before = events_.launched.size();
  const auto with = [&](const std::function<void(fp_tensor&)>& edit) {
    fp_tensor tensor = x_.c(FP_ACCESS_READ);
    edit(tensor);
    const List list({tensor});
    sdk::Run run = forward();
    run.inputs = list.get();
    made->run(run);
  };
  EXPECT_THROW(with([](fp_tensor& t) { t.device_id = 1; }), sdk::InvalidArgument);
  EXPECT_THROW(with([](fp_tensor& t) { t.device_type = FP_DEVICE_CPU; }), sdk::InvalidArgument);
  EXPECT_THROW(with([](fp_tensor& t) { t.access = FP_ACCESS_WRITE; }), sdk::InvalidArgument);
  EXPECT_THROW(with([](fp_tensor& t) { t.data = nullptr; }), sdk::InvalidArgument);
  EXPECT_THROW(with([](fp_tensor& t) { t.byte_offset = 4; }), sdk::InvalidArgument);
  const std::int64_t strides[] = {4, 1};
  EXPECT_THROW(with([&](fp_tensor& t) { t.strides = strides; }), sdk::Refused);
  sdk::Run small = forward();
  small.scratch_bytes = 255;
  EXPECT_THROW(made->run(small), sdk::InvalidArgument);
  EXPECT_EQ(events_.launched.size(), before);
}

class RuntimeCache : public Runtime {
 protected:
  RuntimeCache() {
    std::string name = (std::filesystem::temp_directory_path() / "fastpath-runtime-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~RuntimeCache() override { std::filesystem::remove_all(folder_); }
  CompileCache cache() { return {offers_.host(), folder_, CompileCache::kMostBytes}; }
  void use() {
    const auto device = open(cache());
    const auto made = kernel(*device);
    bind(*made, 1);
    made->run(forward());
  }
  std::filesystem::path folder_;
  Offers offers_;
};

TEST_F(RuntimeCache, CompilesOnceForEveryProcess) {
  use();
  use();
  EXPECT_EQ(events_.compiled, 1);
  EXPECT_EQ(events_.loaded, 1);
}

TEST_F(RuntimeCache, LoadsWhatACompilerWithoutADeviceMade) {
  events_.gives_modules = false;
  use();
  EXPECT_EQ(events_.compiled, 1);
  EXPECT_EQ(events_.loaded, 1);
}

TEST_F(RuntimeCache, CompilesAnewWhatTheDriverDoesNotTake) {
  use();
  events_.refuses_binaries = true;
  use();
  EXPECT_EQ(events_.compiled, 2);
  EXPECT_THAT(offers_.lines, testing::Contains(HasSubstr("not mine")));
}

TEST(GpuPluginQuery, RefusesFloat64WhereTheDeviceHasNone) {
  Events events;
  class Plugin final : public GpuPlugin {
   public:
    explicit Plugin(Events& e) : GpuPlugin(std::make_unique<FakeBackend>(e), FP_DEVICE_OPENCL) {}
  } plugin(events);
  const std::vector<sdk::DeviceDescription> devices = plugin.devices();
  sdk::KernelQuery query;
  query.op = sdk::SphericalHarmonicsConfig::kOp;
  query.op_version = 1;
  query.config = sdk::SphericalHarmonicsConfig{.l_max = 2}.attributes();
  query.passes = FP_PASS_FORWARD | FP_PASS_BACKWARD;
  const auto blockers = [&](const sdk::DeviceDescription& device, sdk::DType dtype) {
    query.device = device;
    query.dtype = dtype;
    sdk::KernelAnswer answer;
    plugin.query(query, answer);
    std::vector<sdk::Reason> reasons;
    for (const auto& blocker : answer.blockers) reasons.push_back(blocker.first);
    return reasons;
  };
  EXPECT_THAT(blockers(devices[0], sdk::kFloat64), ElementsAre());
  EXPECT_THAT(blockers(devices[1], sdk::kFloat32), ElementsAre());
  EXPECT_THAT(blockers(devices[1], sdk::kFloat64), ElementsAre(sdk::Reason::dtype));
  sdk::DeviceDescription other = devices[0];
  other.type = FP_DEVICE_CUDA;
  query.passes |= FP_PASS_FORWARD_TANGENT;
  EXPECT_THAT(blockers(other, sdk::kFloat64), ElementsAre(sdk::Reason::device, sdk::Reason::pass));
}

TEST(GpuPluginOpen, KnowsItsOwnDevicesAlone) {
  Events events;
  class Plugin final : public GpuPlugin {
   public:
    explicit Plugin(Events& e) : GpuPlugin(std::make_unique<FakeBackend>(e), FP_DEVICE_OPENCL) {}
  } plugin(events);
  sdk::DeviceDescription device = plugin.devices()[1];
  EXPECT_EQ(static_cast<GpuDevice&>(*plugin.open({device, {}})).description().name, "Narrow");
  device.index = 2;
  EXPECT_THROW(plugin.open({device, {}}), sdk::InvalidArgument);
  fp_native native = sdk::abi_struct<fp_native>();
  native.kind = FP_NATIVE_OPENCL;
  device.index = 0;
  EXPECT_THROW(plugin.open({device, native}), sdk::Refused);
}

}  // namespace
}  // namespace fastpath_gpu
