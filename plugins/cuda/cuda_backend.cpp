#include "cuda_backend.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include "fastpath/sdk/error.hpp"

namespace fastpath_cuda {
namespace {

// The driver's API as far as it is used here, from its documentation: these numbers never change.
constexpr int kMaxThreadsPerBlock = 1;
constexpr int kMaxSharedBytesPerBlock = 8;
constexpr int kMultiprocessors = 16;
constexpr int kCapabilityMajor = 75;
constexpr int kCapabilityMinor = 76;
constexpr const char* kOldest = "a driver for CUDA 11.0";

struct Uuid {
  unsigned char bytes[16];
};

std::string cuda_version(int number) {  // 12040 is 12.4
  return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
}

std::string hexadecimal(const Uuid& uuid) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : uuid.bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

}  // namespace

/// libcuda.so.1.
class CudaBackend::CudaDriver final : public gpu::Driver {
 public:
  /// @throws sdk::Unavailable without it, and where it cannot work.
  explicit CudaDriver(const std::vector<std::string>& names) : library_(names, "the NVIDIA driver's library") {
    const auto get = [&](auto*& function, const char* symbol) { library_.get(function, symbol, kOldest); };
    get(functions_.allocate, "cuMemAlloc_v2");
    get(functions_.release, "cuMemFree_v2");
    get(functions_.memory_info, "cuMemGetInfo_v2");
    get(functions_.copy_to_device, "cuMemcpyHtoDAsync_v2");
    get(functions_.copy_from_device, "cuMemcpyDtoHAsync_v2");
    get(functions_.copy_on_device, "cuMemcpyDtoDAsync_v2");
    get(functions_.fill, "cuMemsetD8Async");
    get(functions_.create_stream, "cuStreamCreate");
    get(functions_.destroy_stream, "cuStreamDestroy_v2");
    get(functions_.synchronize_stream, "cuStreamSynchronize");
    get(functions_.create_event, "cuEventCreate");
    get(functions_.destroy_event, "cuEventDestroy_v2");
    get(functions_.record, "cuEventRecord");
    get(functions_.wait, "cuStreamWaitEvent");
    get(functions_.load_module, "cuModuleLoadData");
    get(functions_.unload_module, "cuModuleUnload");
    get(functions_.find_function, "cuModuleGetFunction");
    get(functions_.launch, "cuLaunchKernel");
    get(init_, "cuInit");
    get(driver_version_, "cuDriverGetVersion");
    get(device_count_, "cuDeviceGetCount");
    get(device_get_, "cuDeviceGet");
    get(device_name_, "cuDeviceGetName");
    get(device_memory_, "cuDeviceTotalMem_v2");
    get(device_attribute_, "cuDeviceGetAttribute");
    get(device_pci_, "cuDeviceGetPCIBusId");
    get(retain_, "cuDevicePrimaryCtxRetain");
    get(release_, "cuDevicePrimaryCtxRelease_v2");
    get(push_, "cuCtxPushCurrent_v2");
    get(pop_, "cuCtxPopCurrent_v2");
    get(error_name_, "cuGetErrorName");
    get(error_string_, "cuGetErrorString");
    library_.get_optional(device_uuid_, "cuDeviceGetUuid_v2");  // where a device may be a part of one
    if (device_uuid_ == nullptr) library_.get_optional(device_uuid_, "cuDeviceGetUuid");

    if (const int error = driver_version_(&version_); error != 0) version_ = 0;
    if (const int error = init_(0); error != 0) {
      std::string text = library_.name() + ": " + error_text(error);
      if (error == gpu::kDriverStub) text += ", it is the toolkit's stub and no driver is installed";
      if (error == gpu::kDriverNoDevice) text += ", CUDA_VISIBLE_DEVICES may hide what there is";
      if (version_ != 0) text += "; " + version_text();
      throw sdk::Unavailable(text);
    }
  }

  std::string error_text(int error) const override {
    const char* name = nullptr;
    const char* text = nullptr;
    if (error_name_(error, &name) != 0 || name == nullptr) return "CUDA error " + std::to_string(error);
    if (error_string_(error, &text) != 0 || text == nullptr) return name;
    return std::string(name) + " (" + text + ")";
  }
  std::string version_text() const override { return "driver for CUDA " + cuda_version(version_); }

  int retain(int ordinal, void** context) override {
    int device = 0;
    if (const int error = device_get_(&device, ordinal); error != 0) return error;
    return retain_(context, device);
  }
  void release(int ordinal) noexcept override {
    int device = 0;
    if (device_get_(&device, ordinal) == 0) release_(device);
  }
  int enter(int, void* context, int*) override { return push_(context); }
  void leave(int) noexcept override {
    void* context = nullptr;
    pop_(&context);
  }
  fp_native native(int ordinal, void* context, void* stream) const override {
    fp_native result = sdk::abi_struct<fp_native>();
    result.kind = FP_NATIVE_CUDA;
    result.context = context;
    result.stream = stream;
    result.device = static_cast<std::uint64_t>(ordinal);
    return result;
  }

  std::vector<sdk::DeviceDescription> devices() const override {
    int count = 0;
    check(device_count_(&count), "the number of devices");
    std::vector<sdk::DeviceDescription> result;
    for (int ordinal = 0; ordinal < count; ++ordinal) result.push_back(describe(ordinal));
    if (result.empty()) {
      throw sdk::Unavailable("the driver finds no NVIDIA device, CUDA_VISIBLE_DEVICES may hide what there is; " +
                             version_text());
    }
    return result;
  }
  gpu::Target target(int ordinal) const override {
    const int device = get(ordinal);
    gpu::Target target = gpu::Target::of(gpu::Language::cuda, arch(device));
    target.max_group_size =
        std::min(target.max_group_size, static_cast<std::uint32_t>(attribute(device, kMaxThreadsPerBlock)));
    target.local_bytes =
        std::min(target.local_bytes, static_cast<std::uint32_t>(attribute(device, kMaxSharedBytesPerBlock)));
    return target;
  }

 private:
  void check(int error, const char* asked) const {
    if (error != 0) throw sdk::Unavailable(std::string(asked) + ": " + error_text(error));
  }
  int get(int ordinal) const {
    int device = 0;
    check(device_get_(&device, ordinal), "a device");
    return device;
  }
  int attribute(int device, int which) const {
    int value = 0;
    check(device_attribute_(&value, which, device), "an attribute of a device");
    return value;
  }
  std::string arch(int device) const {
    return "sm_" + std::to_string(attribute(device, kCapabilityMajor)) +
           std::to_string(attribute(device, kCapabilityMinor));
  }
  sdk::DeviceDescription describe(int ordinal) const {
    const int device = get(ordinal);
    sdk::DeviceDescription result;
    result.type = FP_DEVICE_CUDA;
    result.index = ordinal;
    result.vendor = "NVIDIA";
    std::array<char, 256> text{};
    check(device_name_(text.data(), static_cast<int>(text.size()) - 1, device), "a device's name");
    result.name = text.data();
    result.arch = arch(device);
    result.units = static_cast<std::uint32_t>(attribute(device, kMultiprocessors));
    std::size_t bytes = 0;
    check(device_memory_(&bytes, device), "a device's memory");
    result.memory_bytes = bytes;
    Uuid uuid{};
    if (device_uuid_ != nullptr && device_uuid_(&uuid, device) == 0) result.uuid = hexadecimal(uuid);
    text.fill('\0');
    if (device_pci_(text.data(), static_cast<int>(text.size()) - 1, device) == 0) {
      result.pci = text.data();
      std::transform(result.pci.begin(), result.pci.end(), result.pci.begin(),
                     [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    }
    result.driver = "CUDA " + cuda_version(version_);
    result.dtypes = FP_DTYPE_BIT_F32 | FP_DTYPE_BIT_F64;
    return result;
  }

  gpu::SharedLibrary library_;
  int version_ = 0;
  int (*init_)(unsigned) = nullptr;
  int (*driver_version_)(int*) = nullptr;
  int (*device_count_)(int*) = nullptr;
  int (*device_get_)(int*, int) = nullptr;
  int (*device_name_)(char*, int, int) = nullptr;
  int (*device_memory_)(std::size_t*, int) = nullptr;
  int (*device_attribute_)(int*, int, int) = nullptr;
  int (*device_pci_)(char*, int, int) = nullptr;
  int (*device_uuid_)(Uuid*, int) = nullptr;
  int (*retain_)(void**, int) = nullptr;
  int (*release_)(int) = nullptr;
  int (*push_)(void*) = nullptr;
  int (*pop_)(void**) = nullptr;
  int (*error_name_)(int, const char**) = nullptr;
  int (*error_string_)(int, const char**) = nullptr;
};

CudaBackend::Libraries CudaBackend::Libraries::usual() {
  // libnvrtc.so alone comes with the toolkit's development files; the versioned names with its libraries.
  Libraries libraries{{"libcuda.so.1"}, {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2", "libnvrtc.so"}};
  const std::size_t named = libraries.compiler.size();
  for (const char* folder : {"/usr/local/cuda/lib64", "/usr/local/cuda/lib", "/opt/cuda/lib64"}) {
    for (std::size_t i = 0; i < named; ++i) {
      libraries.compiler.push_back(std::string(folder) + "/" + libraries.compiler[i]);
    }
  }
  return libraries;
}

CudaBackend::CudaBackend(Libraries libraries)
    : DriverBackend("cuda", {"NVRTC", "nvrtc", "CUBIN", "11.2", libraries.compiler}),
      libraries_(std::move(libraries)) {}

std::shared_ptr<gpu::Driver> CudaBackend::open_driver() const {
  return std::make_shared<CudaDriver>(libraries_.driver);
}

// Full precision, said where it is also the default; a*b+c may be contracted. ptxas reports what kernels need.
std::vector<std::string> CudaBackend::options(const gpu::Target& target) const {
  return {"--gpu-architecture=" + target.arch,
          "--std=c++17",
          "--fmad=true",
          "--ftz=false",
          "--prec-div=true",
          "--prec-sqrt=true",
          "--ptxas-options=-v"};
}

gpu::Binary CudaBackend::compile(const gpu::Program& program, const gpu::Target& target) {
  gpu::RuntimeCompiler::Output output = opened_compiler().compile(program.source, options(target));
  gpu::Binary binary{std::move(output.code), {}};
  binary.resources = resources_of(program, binary.code, output.log);
  return binary;
}

}  // namespace fastpath_cuda
