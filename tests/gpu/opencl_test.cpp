#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <csignal>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "generator/source.hpp"
#include "opencl_backend.hpp"

/// The OpenCL backend on whatever device there is: the CPU, where PoCL is installed.
namespace fastpath_opencl {
namespace {

using testing::HasSubstr;

class OpenCl : public testing::Test {
 protected:
  void SetUp() override {
    try {
      devices_ = backend_.devices();
    } catch (const sdk::Unavailable& error) {
      const char* required = std::getenv("FASTPATH_REQUIRE_PLUGINS");
      if (required != nullptr && std::string(required).find("opencl") != std::string::npos) FAIL() << error.what();
      GTEST_SKIP() << error.what();
    }
    device_ = backend_.open(devices_.at(0));
  }
  /// y[i] = x[i] + 3, in groups of 64.
  gpu::Program addition(const std::string& three = "3") const {
    gpu::Source source(device_->target(), sdk::kFloat32);
    source.begin_kernel("add", 64, {gpu::Source::in("x"), gpu::Source::out("y"), gpu::Source::integer("n")});
    source.item("i", "n");
    source.line("y[i] = x[i] + ", three, ";");
    source.end_kernel();
    return source.finish();
  }
  std::vector<float> add(gpu::Module& module, std::size_t n, fp_stream* stream) const {
    std::vector<float> x(n), y(n, -1.0f);
    std::iota(x.begin(), x.end(), 0.0f);
    constexpr std::uint64_t kOffset = 256;
    const std::uint64_t bytes = n * sizeof(float);
    void* from = device_->allocate(bytes + kOffset);
    void* to = device_->allocate(bytes);
    device_->copy_to_device(from, kOffset, x.data(), bytes, stream);
    device_->fill_zero(to, 0, bytes, stream);
    const std::vector<gpu::BoundArgument> arguments{
        {true, from, kOffset}, {true, to, 0}, {false, nullptr, static_cast<std::int64_t>(n)}};
    device_->launch(module, 0, static_cast<std::int64_t>((n + 63) / 64), arguments, stream);
    device_->copy_from_device(y.data(), to, 0, bytes, stream);
    if (stream != nullptr) device_->synchronize(stream);
    device_->release(from);
    device_->release(to);
    return y;
  }
  static std::vector<float> expected(std::size_t n) {
    std::vector<float> y(n);
    std::iota(y.begin(), y.end(), 3.0f);
    return y;
  }

  OpenClBackend backend_;
  std::vector<sdk::DeviceDescription> devices_;
  std::unique_ptr<gpu::BackendDevice> device_;
};

TEST_F(OpenCl, DescribesItsDevices) {
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    const sdk::DeviceDescription& device = devices_[i];
    EXPECT_EQ(device.type, FP_DEVICE_OPENCL);
    EXPECT_EQ(device.index, static_cast<std::int32_t>(i));
    EXPECT_FALSE(device.name.empty());
    EXPECT_FALSE(device.vendor.empty());
    EXPECT_FALSE(device.driver.empty());
    EXPECT_THAT(device.arch, testing::StartsWith("OpenCL "));
    EXPECT_GT(device.units, 0u);
    EXPECT_GT(device.memory_bytes, 0u);
    EXPECT_NE(device.dtypes & FP_DTYPE_BIT_F32, 0u);
  }
  EXPECT_EQ(backend_.devices(), devices_);
}

TEST_F(OpenCl, RunsAKernelWithAndWithoutAStream) {
  std::unique_ptr<gpu::Module> module;
  const gpu::Binary binary = device_->compile(addition(), module);
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(add(*module, 1000, nullptr), expected(1000));
  fp_stream* stream = device_->create_stream();
  EXPECT_EQ(add(*module, 1000, stream), expected(1000));
  device_->destroy_stream(stream);
}

TEST_F(OpenCl, LoadsWhatItCompiledEarlier) {
  std::unique_ptr<gpu::Module> module;
  const gpu::Program program = addition();
  const gpu::Binary binary = device_->compile(program, module);
  ASSERT_FALSE(binary.code.empty());
  module.reset();
  const auto again = backend_.open(devices_.at(0));
  device_ = backend_.open(devices_.at(0));
  module = device_->load(program, binary);
  EXPECT_EQ(add(*module, 100, nullptr), expected(100));
}

// PoCL keeps some memory of every program that is built.
TEST_F(OpenCl, BuildsASourceOnceForAllDevicesOfPoclThatAreNotLost) {
  if (!device_->driver_keeps_code()) GTEST_SKIP() << "the first device is not PoCL's";
  const gpu::Program program = addition();
  const std::shared_ptr<gpu::Module> module = device_->build_module(program);
  device_.reset();
  device_ = backend_.open(devices_.at(0));
  EXPECT_EQ(device_->build_module(program), module);
  EXPECT_NE(device_->build_module(addition("2 + 1")), module);
  EXPECT_EQ(add(*module, 100, nullptr), expected(100));
  device_->lost();
  const auto next = backend_.open(devices_.at(0));
  EXPECT_NE(next->build_module(program), module);
  EXPECT_NE(next->native(nullptr).context, device_->native(nullptr).context);
}

TEST_F(OpenCl, KeepsOnlySoMuchCode) {
  if (!device_->driver_keeps_code()) GTEST_SKIP() << "the first device is not PoCL's";
  cl_platform_id platform = nullptr;
  const auto device = reinterpret_cast<cl_device_id>(device_->native(nullptr).device);
  ASSERT_EQ(icd().clGetDeviceInfo(device, CL_DEVICE_PLATFORM, sizeof platform, &platform, nullptr), CL_SUCCESS);
  Context context(icd(), {platform, device});
  struct Code final : gpu::Module {};
  int built = 0;
  const auto code = [&](std::size_t i) {
    return context.code(std::to_string(i), [&] { return ++built, std::make_shared<Code>(); });
  };
  for (std::size_t i = 0; i < Context::kMostCode; ++i) code(i);
  code(0);
  code(Context::kMostCode);  // in the place of 1
  const int before = built;
  code(0);
  code(2);
  EXPECT_EQ(built, before);
  code(1);
  EXPECT_EQ(built, before + 1);
}

TEST_F(OpenCl, RefusesWhatIsNoProgram) {
  EXPECT_THROW(device_->load(addition(), {{'n', 'o', 'n', 'e'}, {}}), sdk::Refused);
}

TEST_F(OpenCl, RefusesSourceThatDoesNotCompileWithTheCompilersWords) {
  std::unique_ptr<gpu::Module> module;
  try {
    device_->compile(addition("undeclared_name"), module);
    FAIL() << "expected Refused";
  } catch (const sdk::Refused& error) {
    EXPECT_THAT(error.what(), HasSubstr("undeclared_name"));
    EXPECT_LT(std::string(error.what()).size(), 2000u);
  }
  EXPECT_EQ(module, nullptr);
  device_->compile(addition(), module);  // the device goes on
  EXPECT_EQ(add(*module, 10, nullptr), expected(10));
}

TEST_F(OpenCl, RecoversFromMoreMemoryThanThereIs) {
  try {
    device_->allocate(std::uint64_t{1} << 60);
    FAIL() << "expected a failure";
  } catch (const sdk::Failure& error) {
    EXPECT_EQ(error.status(), FP_E_OUT_OF_MEMORY);
    EXPECT_THAT(error.what(), HasSubstr("1152921504606846976 bytes"));
  }
  std::uint64_t free_before = 0, free_with = 0, total = 0;
  device_->memory_info(&free_before, &total);
  void* memory = device_->allocate(1 << 20);
  device_->memory_info(&free_with, &total);
  EXPECT_EQ(free_before - free_with, 1u << 20);
  device_->release(memory);
  device_->memory_info(&free_with, &total);
  EXPECT_EQ(free_before, free_with);
}

TEST_F(OpenCl, AcceptsMemoryOfNoBytes) {
  void* memory = device_->allocate(0);
  EXPECT_NE(memory, nullptr);
  device_->copy_to_device(memory, 0, nullptr, 0, nullptr);
  device_->copy_from_device(nullptr, memory, 0, 0, nullptr);
  device_->fill_zero(memory, 0, 0, nullptr);
  device_->release(memory);
  device_->release(nullptr);
}

TEST_F(OpenCl, RefusesCopiesOutsideOfMemory) {
  void* memory = device_->allocate(16);
  std::vector<char> bytes(32);
  EXPECT_THROW(device_->copy_to_device(memory, 8, bytes.data(), 16, nullptr), sdk::InvalidArgument);
  EXPECT_THROW(device_->copy_from_device(bytes.data(), memory, 8, 16, nullptr), sdk::InvalidArgument);
  device_->release(memory);
}

TEST_F(OpenCl, WaitsForAnEventOfAnotherStream) {
  constexpr std::uint64_t kBytes = 1 << 22;
  std::vector<char> data(kBytes, 'x'), back(kBytes, '?');
  fp_stream* one = device_->create_stream();
  fp_stream* two = device_->create_stream();
  fp_event* event = device_->create_event();
  device_->wait(two, event);  // never recorded: nothing to wait for
  void* memory = device_->allocate(kBytes);
  device_->copy_to_device(memory, 0, data.data(), kBytes, one);
  device_->record(event, one);
  device_->record(event, one);
  device_->wait(two, event);
  device_->copy_from_device(back.data(), memory, 0, kBytes, two);
  device_->synchronize(two);
  EXPECT_EQ(data, back);
  device_->synchronize(nullptr);
  device_->release(memory);
  device_->destroy_event(event);
  device_->destroy_stream(one);
  device_->destroy_stream(two);
}

extern "C" void opencl_test_handler(int) {}

// Set before the driver is initialised: for this test in a process of its own.
class OpenClProcess : public OpenCl {
 protected:
  void SetUp() override {
    ASSERT_EQ(std::signal(SIGFPE, opencl_test_handler), SIG_DFL);
    std::fesetround(FE_UPWARD);
    ::setenv("HWLOC_PLUGINS_PATH", "/of/the/host", 1);
    OpenCl::SetUp();
  }
  void TearDown() override {
    std::fesetround(FE_TONEAREST);
    std::signal(SIGFPE, SIG_DFL);
    ::unsetenv("HWLOC_PLUGINS_PATH");
  }
};

TEST_F(OpenClProcess, IsAsItWasAfterADriverWorkedInIt) {
  std::unique_ptr<gpu::Module> module;
  device_->compile(addition("4 - 1"), module);
  add(*module, 10, nullptr);
  EXPECT_STREQ(std::getenv("HWLOC_PLUGINS_PATH"), "/of/the/host");
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  EXPECT_EQ(std::signal(SIGFPE, SIG_DFL), opencl_test_handler);
}

}  // namespace
}  // namespace fastpath_opencl
