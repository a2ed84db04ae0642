#include <dlfcn.h>
#include <gmock/gmock.h>

#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda_backend.hpp"
#include "fake_driver/fake_driver.hpp"
#include "fastpath/sdk/error.hpp"
#include "hip_backend.hpp"

namespace fastpath_gpu::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// The text of the T that `action` throws; a failure if it throws no T.
template <class T>
std::string thrown(const std::function<void()>& action) {
  try {
    action();
  } catch (const T& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another exception: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no exception";
  return {};
}
std::int32_t status_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const sdk::Failure& failure) {
    return failure.status();
  }
  return FP_OK;
}

struct Vendor {
  const char* name;
  const char* library;  ///< The fake in the vendor's place.
  std::unique_ptr<Backend> (*backend)(const std::string& driver);
  const char *load, *launch;  ///< Names of functions.
};

/// Of both vendors, on a driver whose device is host memory.
class GpuDriver : public ::testing::TestWithParam<Vendor> {
 protected:
  void SetUp() override {
    void* library = ::dlopen(GetParam().library, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(library, nullptr) << ::dlerror();
    library_ = library;
    fake_ = static_cast<FakeDriver*>(::dlsym(library, "fake_driver"));
    ASSERT_NE(fake_, nullptr);
    *fake_ = {};
    backend_ = GetParam().backend(GetParam().library);
  }
  bool cuda() const { return GetParam().name == std::string("cuda"); }
  std::unique_ptr<BackendDevice> open(std::size_t i = 0) { return backend_->open(backend_->devices().at(i)); }
  /// The context or device that the calling thread has.
  std::intptr_t current() const {
    if (cuda()) {
      void* context = nullptr;
      reinterpret_cast<int (*)(void**)>(::dlsym(library_, "cuCtxGetCurrent"))(&context);
      return reinterpret_cast<std::intptr_t>(context);
    }
    int ordinal = 0;
    reinterpret_cast<int (*)(int*)>(::dlsym(library_, "hipGetDevice"))(&ordinal);
    return ordinal;
  }
  void choose_device(int ordinal) {
    if (cuda()) {
      reinterpret_cast<int (*)(void*)>(::dlsym(library_, "cuCtxPushCurrent_v2"))(&own_context_);
    } else {
      reinterpret_cast<int (*)(int)>(::dlsym(library_, "hipSetDevice"))(ordinal);
    }
  }
  void TearDown() override {
    if (cuda() && current() != 0) {
      void* context = nullptr;
      reinterpret_cast<int (*)(void**)>(::dlsym(library_, "cuCtxPopCurrent_v2"))(&context);
    } else if (!cuda()) {
      choose_device(0);
    }
  }
  static Program program() {
    Program result;
    result.kernels = {{"first", 64, 0, {true, false}}, {"second", 128, 0, {true, true, false}}};
    return result;
  }
  static Binary binary() { return {{1, 2, 3}, {}}; }

  void* library_ = nullptr;
  FakeDriver* fake_ = nullptr;
  std::unique_ptr<Backend> backend_;
  char own_context_ = 0;
};

TEST_P(GpuDriver, DescribesDevicesWithoutAContext) {
  const std::vector<sdk::DeviceDescription> devices = backend_->devices();
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[0].type, cuda() ? FP_DEVICE_CUDA : FP_DEVICE_ROCM);
  EXPECT_EQ(devices[0].index, 0);
  EXPECT_EQ(devices[1].index, 1);
  EXPECT_EQ(devices[0].name, cuda() ? "Fake H100" : "Fake MI250X");
  EXPECT_EQ(devices[0].arch, cuda() ? "sm_90" : "gfx90a");
  EXPECT_EQ(devices[1].arch, cuda() ? "sm_80" : "gfx1030");
  EXPECT_EQ(devices[0].uuid, cuda() ? "0a1a2a3a4a5a6a7a8a9aaabacadaeafa" : "00000000000000005f31cdc0ad72e300");
  EXPECT_EQ(devices[0].pci, "0000:3b:00.0");
  EXPECT_EQ(devices[0].units, 132u);
  EXPECT_EQ(devices[0].memory_bytes, fake_->memory_bytes);
  EXPECT_EQ(devices[0].driver, cuda() ? "CUDA 12.4" : "HIP 6.1.40093");
  EXPECT_EQ(fake_->retained, 0);
  EXPECT_EQ(fake_->entered, 0);
  EXPECT_TRUE(fake_->streams.empty());
}

TEST_P(GpuDriver, SaysWhichLibraryIsMissing) {
  const auto backend = GetParam().backend("libno_such_driver.so.1");
  EXPECT_THAT(thrown<sdk::Unavailable>([&] { backend->devices(); }),
              AllOf(HasSubstr("could not be opened"), HasSubstr("libno_such_driver.so.1")));
}

TEST_P(GpuDriver, SaysWhyADriverWithoutDevicesIsIdle) {
  fake_->init_error = kDriverNoDevice;
  EXPECT_THAT(thrown<sdk::Unavailable>([&] { backend_->devices(); }), HasSubstr("VISIBLE_DEVICES may hide"));
  fake_->init_error = 0;
  fake_->devices = 0;
  EXPECT_THAT(thrown<sdk::Unavailable>([&] { backend_->devices(); }), HasSubstr("VISIBLE_DEVICES may hide"));
  fake_->devices = 2;
  EXPECT_EQ(backend_->devices().size(), 2u);  // asked anew each time
}

TEST_P(GpuDriver, RefusesADeviceThatTheDriverDoesNotShow) {
  sdk::DeviceDescription other = backend_->devices().at(0);
  other.uuid = std::string(32, 'f');
  thrown<sdk::InvalidArgument>([&] { backend_->open(other); });
  fake_->failing = cuda() ? "cuDevicePrimaryCtxRetain" : "hipStreamCreateWithFlags";
  fake_->error = kDriverDeviceBusy;
  EXPECT_EQ(status_of([&] { open(); }), FP_E_BUSY);
  EXPECT_EQ(fake_->retained, 0);
}

TEST_P(GpuDriver, CopiesAndFillsAtOffsets) {
  const auto device = open();
  std::array<char, 8> there{'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'}, back{};
  void* const first = device->allocate(8);
  void* const second = device->allocate(8);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 256, 0u);
  fp_stream* const stream = device->create_stream();
  device->copy_to_device(first, 0, there.data(), 8, nullptr);
  device->fill_zero(second, 0, 8, stream);
  device->copy_on_device(second, 1, first, 5, 3, stream);
  device->synchronize(stream);
  device->copy_from_device(back.data(), second, 1, 4, nullptr);
  EXPECT_EQ(std::string(back.data(), 5), std::string("fgh\0\0", 5));
  device->copy_to_device(first, 8, nullptr, 0, nullptr);  // nothing, at the end
  std::uint64_t unused = 0, total = 0;
  device->memory_info(&unused, &total);
  EXPECT_EQ(total - unused, 16u);
  device->release(first);
  device->release(second);
  device->release(nullptr);
  device->destroy_stream(stream);
  EXPECT_TRUE(fake_->memory.empty());
}

TEST_P(GpuDriver, WaitsForStreamsWhereThereIsNone) {
  const auto device = open();
  fp_stream* const stream = device->create_stream();
  void* const memory = device->allocate(8);
  fake_->calls.clear();
  device->fill_zero(memory, 0, 8, nullptr);
  ASSERT_EQ(fake_->calls.size(), 3u);
  char expected[64];
  std::snprintf(expected, sizeof expected, "synchronize %p", static_cast<void*>(stream));
  EXPECT_EQ(fake_->calls[0], expected);
  EXPECT_THAT(fake_->calls[1], StartsWith("fill"));
  EXPECT_THAT(fake_->calls[2], StartsWith("synchronize"));
  EXPECT_NE(fake_->calls[2], expected);
  fake_->calls.clear();
  device->fill_zero(memory, 0, 8, stream);
  EXPECT_EQ(fake_->calls.size(), 1u) << "a call with a stream waits for nothing";
  device->release(memory);
}

TEST_P(GpuDriver, LaunchesWithAddressesOffsetsAndIntegers) {
  const auto device = open();
  const auto module = device->load(program(), binary());
  void* const memory = device->allocate(64);
  fp_stream* const stream = device->create_stream();
  const std::array<BoundArgument, 3> arguments{BoundArgument{true, memory, 16}, BoundArgument{true, nullptr, 0},
                                               BoundArgument{false, nullptr, std::int64_t{1} << 40}};
  fake_->arguments = 5;
  device->launch(*module, 1, 7, arguments, stream);
  device->launch(*module, 1, 0, arguments, stream);  // nothing to do
  ASSERT_EQ(fake_->launches.size(), 1u);
  const FakeDriver::Launch& launch = fake_->launches[0];
  EXPECT_EQ(launch.kernel, "second");
  EXPECT_EQ(launch.groups, 7u);
  EXPECT_EQ(launch.items, 128u);
  EXPECT_EQ(launch.stream, stream);
  EXPECT_THAT(launch.arguments,
              ::testing::ElementsAre(reinterpret_cast<std::int64_t>(memory), 16, 0, 0, std::int64_t{1} << 40));
  EXPECT_THAT(thrown<sdk::Refused>([&] { device->launch(*module, 1, std::int64_t{1} << 31, arguments, stream); }),
              AllOf(HasSubstr("second"), HasSubstr("2147483648 groups")));
  device->release(memory);
}

TEST_P(GpuDriver, PutsBackTheThreadsDevice) {
  const auto device = open(1);
  choose_device(0);
  const std::intptr_t own = current();
  std::array<char, 8> bytes{};
  void* memory = nullptr;
  fp_stream* stream = nullptr;
  fp_event* event = nullptr;
  std::unique_ptr<Module> module;
  const std::vector<std::pair<const char*, std::function<void()>>> steps{
      {"allocate", [&] { memory = device->allocate(8); }},
      {"copy_to_device", [&] { device->copy_to_device(memory, 0, bytes.data(), 8, nullptr); }},
      {"copy_from_device", [&] { device->copy_from_device(bytes.data(), memory, 0, 8, nullptr); }},
      {"copy_on_device", [&] { device->copy_on_device(memory, 0, memory, 4, 4, nullptr); }},
      {"fill_zero", [&] { device->fill_zero(memory, 0, 8, nullptr); }},
      {"create_stream", [&] { stream = device->create_stream(); }},
      {"create_event", [&] { event = device->create_event(); }},
      {"record", [&] { device->record(event, stream); }},
      {"wait", [&] { device->wait(nullptr, event); }},
      {"synchronize", [&] { device->synchronize(nullptr); }},
      {"load", [&] { module = device->load(program(), binary()); }},
      {"launch", [&] { device->launch(*module, 0, 1, {}, stream); }},
      {"native", [&] { device->native(stream); }},
      {"no memory", [&] { status_of([&] { device->allocate(std::uint64_t{1} << 40); }); }},
      {"a failed launch",
       [&] {
         fake_->failing = GetParam().launch;
         fake_->error = kDriverIllegalAddress;
         status_of([&] { device->launch(*module, 0, 1, {}, stream); });
       }},
      {"unload", [&] { module.reset(); }},
      {"destroy_event", [&] { device->destroy_event(event); }},
      {"destroy_stream", [&] { device->destroy_stream(stream); }},
      {"release", [&] { device->release(memory); }},
  };
  for (const auto& [name, step] : steps) {
    step();
    EXPECT_EQ(current(), own) << name;
  }
  EXPECT_EQ(fake_->entered - (cuda() ? 1 : 0), fake_->left);  // but for the one of this test
}

TEST_P(GpuDriver, RecoversFromAMemoryThatIsFull) {
  fake_->memory_bytes = 1 << 20;
  const auto device = open();
  const std::string text = thrown<sdk::Failure>([&] { device->allocate(std::uint64_t{1} << 21); });
  EXPECT_THAT(text, AllOf(StartsWith(std::string(GetParam().name) + ":0"), HasSubstr("2097152 bytes"),
                          HasSubstr("1048576 of 1048576 are free")));
  EXPECT_EQ(status_of([&] { device->allocate(std::uint64_t{1} << 21); }), FP_E_OUT_OF_MEMORY);
  device->release(device->allocate(1 << 20));
}

TEST_P(GpuDriver, TellsALossFromWhatCanBeRecovered) {
  const auto device = open();
  const auto module = device->load(program(), binary());
  const auto status_for = [&](int error) {
    fake_->failing = GetParam().launch;
    fake_->error = error;
    return status_of([&] { device->launch(*module, 0, 1, {}, nullptr); });
  };
  EXPECT_EQ(status_for(kDriverOutOfResources), FP_E_UNSUPPORTED);
  EXPECT_EQ(status_for(kDriverNotSupported), FP_E_UNSUPPORTED);
  EXPECT_EQ(status_for(kDriverOutOfMemory), FP_E_OUT_OF_MEMORY);
  EXPECT_EQ(status_for(kDriverNotInitialized), FP_E_UNAVAILABLE);
  EXPECT_EQ(status_for(1), FP_E_INTERNAL);
  EXPECT_EQ(status_for(999), FP_E_INTERNAL);
  for (const int error : {214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719}) {
    EXPECT_EQ(status_for(error), FP_E_DEVICE_LOST) << error;
  }
  fake_->failing = GetParam().launch;
  fake_->error = kDriverIllegalAddress;
  EXPECT_THAT(thrown<DeviceLost>([&] { device->launch(*module, 0, 1, {}, nullptr); }),
              AllOf(HasSubstr("kernel 'first'"), HasSubstr("700")));
}

TEST_P(GpuDriver, GoesQuietlyOnceItIsLost) {
  auto device = open();
  auto module = device->load(program(), binary());
  fp_stream* const stream = device->create_stream();
  void* const memory = device->allocate(8);
  fake_->lost = kDriverIllegalAddress;
  EXPECT_EQ(status_of([&] { device->synchronize(stream); }), FP_E_DEVICE_LOST);
  EXPECT_EQ(status_of([&] { device->allocate(8); }), FP_E_DEVICE_LOST);
  module.reset();
  device->release(memory);
  device->destroy_stream(stream);
  device.reset();
  EXPECT_EQ(current(), 0);
}

TEST_P(GpuDriver, NamesBothVersionsWhereCodeIsNotTaken) {
  const auto device = open();
  fake_->failing = GetParam().load;
  fake_->error = cuda() ? kDriverUnsupportedPtx : kDriverNoBinary;
  EXPECT_THAT(thrown<sdk::Refused>([&] { device->load(program(), binary()); }),
              AllOf(HasSubstr(cuda() ? "sm_90" : "gfx90a"), HasSubstr(cuda() ? "CUDA 12.4" : "HIP runtime 6.1"),
                    HasSubstr("compiler here")));
}

TEST_P(GpuDriver, GivesBackEverything) {
  auto device = open();
  auto module = device->load(program(), binary());
  device->destroy_event(device->create_event());
  device->destroy_stream(device->create_stream());
  device->release(device->allocate(0));
  module.reset();
  device.reset();
  EXPECT_EQ(fake_->retained, 0);
  EXPECT_TRUE(fake_->memory.empty());
  EXPECT_TRUE(fake_->streams.empty());
  EXPECT_TRUE(fake_->events.empty());
  EXPECT_TRUE(fake_->modules.empty());
}

TEST_P(GpuDriver, SharesItsNativeHandles) {
  const auto device = open(1);
  fp_stream* const stream = device->create_stream();
  const fp_native native = device->native(stream);
  EXPECT_EQ(native.kind, cuda() ? FP_NATIVE_CUDA : FP_NATIVE_HIP);
  EXPECT_EQ(native.stream, stream);
  EXPECT_EQ(native.device, 1u);
  EXPECT_EQ(native.context != nullptr, cuda());
}

INSTANTIATE_TEST_SUITE_P(Vendors, GpuDriver,
                         ::testing::Values(Vendor{"cuda", FASTPATH_FAKE_CUDA,
                                                  [](const std::string& driver) -> std::unique_ptr<Backend> {
                                                    return std::make_unique<fastpath_cuda::CudaBackend>(
                                                        fastpath_cuda::CudaBackend::Libraries{{driver}, {"none"}});
                                                  },
                                                  "cuModuleLoadData", "cuLaunchKernel"},
                                           Vendor{"hip", FASTPATH_FAKE_HIP,
                                                  [](const std::string& driver) -> std::unique_ptr<Backend> {
                                                    return std::make_unique<fastpath_hip::HipBackend>(
                                                        fastpath_hip::HipBackend::Libraries{{driver}, {"none"}, {}});
                                                  },
                                                  "hipModuleLoadData", "hipModuleLaunchKernel"}),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST(GpuDriverOfAmd, NeedsNoLibraryToSayThatThereIsNoDriver) {
  fastpath_hip::HipBackend backend({{FASTPATH_FAKE_HIP}, {}, {"/no/such/node"}});
  EXPECT_THAT(thrown<sdk::Unavailable>([&] { backend.devices(); }), HasSubstr("/no/such/node"));
}

}  // namespace
}  // namespace fastpath_gpu::test
