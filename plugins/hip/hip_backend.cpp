#include "hip_backend.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <limits>
#include <string_view>

#include "code_object.hpp"
#include "fastpath/sdk/error.hpp"

namespace fastpath_hip {
namespace {

// HIP's API as far as it is used here. The numbers of attributes have been these since ROCm 5.0: those that went out of
// use later kept their places.
constexpr int kMaxThreadsPerBlock = 56;
constexpr int kMultiprocessors = 63;
constexpr int kMaxSharedBytesPerBlock = 74;
constexpr const char* kOldest = "ROCm 5.0";

struct Uuid {
  unsigned char bytes[16];
};

std::string hexadecimal(const Uuid& uuid) {
  // AMD writes the digits themselves as characters, 16 of them; others write bytes.
  constexpr const char* kDigits = "0123456789abcdef";
  const bool characters =
      std::all_of(std::begin(uuid.bytes), std::end(uuid.bytes), [](unsigned char c) { return std::isxdigit(c) != 0; });
  std::string text;
  for (const unsigned char byte : uuid.bytes) {
    if (characters) {
      text += static_cast<char>(std::tolower(byte));
    } else {
      text += kDigits[byte >> 4];
      text += kDigits[byte & 15];
    }
  }
  if (characters) text = std::string(32 - text.size(), '0') + text;
  return text;
}

/// The name of an architecture in the properties of a device. Their layout differs between ROCm 5 and 6 while the name
/// of the function may not, and the name of the architecture lies at a place of its own in each: it is looked for
/// rather than read from an offset. It is the last text there that begins with "gfx" and a digit; its features
/// (":sramecc+:xnack-") are left away, so that code serves devices whichever way they are switched.
std::string arch_in(const std::vector<char>& properties) {
  const std::string_view all(properties.data(), properties.size());
  std::string found;
  for (std::size_t at = all.find("gfx"); at != std::string_view::npos; at = all.find("gfx", at + 1)) {
    if (at != 0 && std::isprint(static_cast<unsigned char>(all[at - 1])) != 0) continue;  // inside another text
    std::size_t end = at + 3;
    while (end < all.size() && std::isxdigit(static_cast<unsigned char>(all[end])) != 0) ++end;
    if (end > at + 5) found = all.substr(at, end - at);
  }
  return found;
}

/// What hipRTC knew while it was part of the runtime, before ROCm 5.3: for other names it crashes instead of refusing.
constexpr std::array<std::string_view, 18> kEarlyArchs{
    "gfx803",  "gfx900",  "gfx902",  "gfx904",  "gfx906",  "gfx908",  "gfx909",  "gfx90a",  "gfx90c",
    "gfx1010", "gfx1011", "gfx1012", "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035"};
void refuse_unknown_arch(const gpu::RuntimeCompiler& compiler, const std::string& arch) {
  const bool early = compiler.library().find("libamdhip64") != std::string::npos;
  if (!early || std::find(kEarlyArchs.begin(), kEarlyArchs.end(), arch) != kEarlyArchs.end()) return;
  std::string known;
  for (const std::string_view name : kEarlyArchs) known += (known.empty() ? "" : ", ") + std::string(name);
  throw sdk::Refused(compiler.version() + " of a ROCm before 5.3 (" + compiler.library() + ") does not know '" + arch +
                     "', only " + known);
}

}  // namespace

/// libamdhip64.so.
class HipBackend::HipDriver final : public gpu::Driver {
 public:
  /// @throws sdk::Unavailable without it, and where it cannot work.
  explicit HipDriver(const std::vector<std::string>& names) : library_(names, "the HIP runtime's library") {
    const auto get = [&](auto*& function, const char* symbol) { library_.get(function, symbol, kOldest); };
    get(functions_.allocate, "hipMalloc");
    get(functions_.release, "hipFree");
    get(functions_.memory_info, "hipMemGetInfo");
    get(functions_.copy_to_device, "hipMemcpyHtoDAsync");
    get(functions_.copy_from_device, "hipMemcpyDtoHAsync");
    get(functions_.copy_on_device, "hipMemcpyDtoDAsync");
    get(functions_.fill, "hipMemsetD8Async");
    get(functions_.create_stream, "hipStreamCreateWithFlags");
    get(functions_.destroy_stream, "hipStreamDestroy");
    get(functions_.synchronize_stream, "hipStreamSynchronize");
    get(functions_.create_event, "hipEventCreateWithFlags");
    get(functions_.destroy_event, "hipEventDestroy");
    get(functions_.record, "hipEventRecord");
    get(functions_.wait, "hipStreamWaitEvent");
    get(functions_.load_module, "hipModuleLoadData");
    get(functions_.unload_module, "hipModuleUnload");
    get(functions_.find_function, "hipModuleGetFunction");
    get(functions_.launch, "hipModuleLaunchKernel");
    get(init_, "hipInit");
    get(runtime_version_, "hipRuntimeGetVersion");
    get(device_count_, "hipGetDeviceCount");
    get(get_device_, "hipGetDevice");
    get(set_device_, "hipSetDevice");
    get(device_name_, "hipDeviceGetName");
    get(device_memory_, "hipDeviceTotalMem");
    get(device_attribute_, "hipDeviceGetAttribute");
    get(device_pci_, "hipDeviceGetPCIBusId");
    get(error_name_, "hipGetErrorName");
    get(error_string_, "hipGetErrorString");
    library_.get_optional(device_uuid_, "hipDeviceGetUuid");            // since ROCm 5.1
    library_.get_optional(properties_, "hipGetDevicePropertiesR0600");  // since ROCm 6.0
    if (properties_ == nullptr) get(properties_, "hipGetDeviceProperties");

    const int error = init_(0);
    if (runtime_version_(&version_) != 0) version_ = 0;
    if (error != 0) {
      std::string text = library_.name() + ": " + error_text(error);
      if (error == gpu::kDriverNoDevice) {
        text += ", HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES may hide what there is";
      }
      throw sdk::Unavailable(text);
    }
  }

  std::string error_text(int error) const override {
    const char* name = error_name_(error);
    const char* text = error_string_(error);
    if (name == nullptr) return "HIP error " + std::to_string(error);
    return text == nullptr || std::strcmp(name, text) == 0 ? std::string(name) : std::string(name) + " (" + text + ")";
  }
  std::string version_text() const override { return "HIP runtime " + version_number(); }
  // The grid is counted in work-items, on 32 bits.
  std::int64_t max_items() const noexcept override { return std::numeric_limits<std::uint32_t>::max(); }

  // The runtime has one context a device, made at its first use and kept.
  int retain(int ordinal, void** context) override {
    *context = nullptr;
    int previous = 0;
    const int error = enter(ordinal, nullptr, &previous);
    if (error == 0) leave(previous);
    return error;
  }
  void release(int) noexcept override {}
  int enter(int ordinal, void*, int* previous) override {
    if (const int error = get_device_(previous); error != 0) return error;
    return *previous == ordinal ? 0 : set_device_(ordinal);
  }
  void leave(int previous) noexcept override {
    int now = previous;
    if (get_device_(&now) != 0 || now != previous) set_device_(previous);
  }
  fp_native native(int ordinal, void*, void* stream) const override {
    fp_native result = sdk::abi_struct<fp_native>();
    result.kind = FP_NATIVE_HIP;
    result.stream = stream;
    result.device = static_cast<std::uint64_t>(ordinal);
    return result;
  }

  std::vector<sdk::DeviceDescription> devices() const override {
    int count = 0;
    const int error = device_count_(&count);
    if (error != gpu::kDriverNoDevice) check(error, "the number of devices");
    std::vector<sdk::DeviceDescription> result;
    for (int ordinal = 0; ordinal < count; ++ordinal) result.push_back(describe(ordinal));
    if (result.empty()) {
      throw sdk::Unavailable(
          "the HIP runtime finds no AMD device, HIP_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES may hide what there is; " +
          version_text());
    }
    return result;
  }
  gpu::Target target(int ordinal) const override {
    gpu::Target target = gpu::Target::of(gpu::Language::hip, arch(ordinal));
    target.max_group_size =
        std::min(target.max_group_size, static_cast<std::uint32_t>(attribute(ordinal, kMaxThreadsPerBlock)));
    target.local_bytes =
        std::min(target.local_bytes, static_cast<std::uint32_t>(attribute(ordinal, kMaxSharedBytesPerBlock)));
    return target;
  }

 private:
  std::string version_number() const {  // 50221153 is 5.2.21153
    return std::to_string(version_ / 10000000) + "." + std::to_string(version_ / 100000 % 100) + "." +
           std::to_string(version_ % 100000);
  }
  void check(int error, const char* asked) const {
    if (error != 0) throw sdk::Unavailable(std::string(asked) + ": " + error_text(error));
  }
  int attribute(int ordinal, int which) const {
    int value = 0;
    check(device_attribute_(&value, which, ordinal), "an attribute of a device");
    return value;
  }
  std::string arch(int ordinal) const {
    std::vector<char> properties(16384, '\0');  // several times what any version writes
    check(properties_(properties.data(), ordinal), "a device's properties");
    const std::string found = arch_in(properties);
    if (found.empty()) throw sdk::Unavailable("the properties of hip:" + std::to_string(ordinal) + " name no gfx..");
    return found;
  }
  sdk::DeviceDescription describe(int ordinal) const {
    sdk::DeviceDescription result;
    result.type = FP_DEVICE_ROCM;
    result.index = ordinal;
    result.vendor = "AMD";
    std::array<char, 256> text{};
    check(device_name_(text.data(), static_cast<int>(text.size()) - 1, ordinal), "a device's name");
    result.name = text.data();
    result.arch = arch(ordinal);
    result.units = static_cast<std::uint32_t>(attribute(ordinal, kMultiprocessors));
    std::size_t bytes = 0;
    check(device_memory_(&bytes, ordinal), "a device's memory");
    result.memory_bytes = bytes;
    Uuid uuid{};
    if (device_uuid_ != nullptr && device_uuid_(&uuid, ordinal) == 0) result.uuid = hexadecimal(uuid);
    text.fill('\0');
    if (device_pci_(text.data(), static_cast<int>(text.size()) - 1, ordinal) == 0) {
      result.pci = text.data();
      std::transform(result.pci.begin(), result.pci.end(), result.pci.begin(),
                     [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    }
    result.driver = "HIP " + version_number();
    result.dtypes = FP_DTYPE_BIT_F32 | FP_DTYPE_BIT_F64;
    return result;
  }

  gpu::SharedLibrary library_;
  int version_ = 0;
  int (*init_)(unsigned) = nullptr;
  int (*runtime_version_)(int*) = nullptr;
  int (*device_count_)(int*) = nullptr;
  int (*get_device_)(int*) = nullptr;
  int (*set_device_)(int) = nullptr;
  int (*device_name_)(char*, int, int) = nullptr;
  int (*device_memory_)(std::size_t*, int) = nullptr;
  int (*device_attribute_)(int*, int, int) = nullptr;
  int (*device_pci_)(char*, int, int) = nullptr;
  int (*device_uuid_)(Uuid*, int) = nullptr;
  int (*properties_)(void*, int) = nullptr;
  const char* (*error_name_)(int) = nullptr;
  const char* (*error_string_)(int) = nullptr;
};

HipBackend::Libraries HipBackend::Libraries::usual() {
  Libraries libraries;
  const std::array<std::string, 2> folders{"", "/opt/rocm/lib/"};
  for (const std::string& folder : folders) {
    for (const char* version : {".7", ".6", ".5", ""}) {
      libraries.runtime.push_back(folder + "libamdhip64.so" + version);
    }
  }
  // A library of its own since ROCm 5.3, before that part of the runtime.
  for (const std::string& folder : folders) {
    for (const char* version : {".7", ".6", ".5", ""}) libraries.compiler.push_back(folder + "libhiprtc.so" + version);
  }
  libraries.compiler.insert(libraries.compiler.end(), libraries.runtime.begin(), libraries.runtime.end());
  libraries.device_nodes = {"/dev/kfd", "/dev/dxg"};
  return libraries;
}

HipBackend::HipBackend(Libraries libraries)
    : DriverBackend("hip", {"hipRTC", "hiprtc", "Code", kOldest, libraries.compiler}),
      libraries_(std::move(libraries)) {}

std::shared_ptr<gpu::Driver> HipBackend::open_driver() const {
  const std::vector<std::string>& nodes = libraries_.device_nodes;
  const bool there = std::any_of(nodes.begin(), nodes.end(),
                                 [](const std::string& node) { return ::access(node.c_str(), F_OK) == 0; });
  if (!nodes.empty() && !there) {
    throw sdk::Unavailable("no AMD driver: " + nodes.front() + ", which the kernel module amdgpu makes, is not there");
  }
  return std::make_shared<HipDriver>(libraries_.runtime);
}

// Full precision: the compiler's default, as far as hipRTC has options for it at all. a*b+c may be contracted.
std::vector<std::string> HipBackend::options(const gpu::Target& target) const {
  return {"--gpu-architecture=" + target.arch, "-O3", "-std=c++17", "-fno-fast-math", "-ffp-contract=fast"};
}

gpu::Binary HipBackend::compile(const gpu::Program& program, const gpu::Target& target) {
  const gpu::RuntimeCompiler& compiler = opened_compiler();
  refuse_unknown_arch(compiler, target.arch);
  gpu::RuntimeCompiler::Output output = compiler.compile(program.source, options(target));
  gpu::Binary binary{std::move(output.code), {}};
  binary.resources = resources_of(program, binary.code);
  return binary;
}

}  // namespace fastpath_hip
