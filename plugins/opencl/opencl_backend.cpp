#include "opencl_backend.hpp"

#include <CL/cl_ext.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "process_state.hpp"

namespace fastpath_opencl {
namespace {

constexpr const char* kPocl = "Portable Computing Language";

std::string trimmed(std::string text) {
  while (!text.empty() && (text.back() == '\0' || text.back() == ' ' || text.back() == '\n')) text.pop_back();
  text.erase(0, text.find_first_not_of(" \n"));
  return text;
}

std::string hex(const unsigned char* bytes, std::size_t count) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

std::string pci_address(unsigned domain, unsigned bus, unsigned device, unsigned function) {
  const auto byte = [](unsigned value) {
    const auto small = static_cast<unsigned char>(value);
    return hex(&small, 1);
  };
  return byte(domain >> 8) + byte(domain) + ":" + byte(bus) + ":" + byte(device) + "." +
         hex(std::array<unsigned char, 1>{static_cast<unsigned char>(function)}.data(), 1).substr(1);
}

bool has_extension(const std::string& extensions, const std::string& name) {
  return (" " + extensions + " ").find(" " + name + " ") != std::string::npos;
}

/// Identity as the vendor's driver names it, where an extension tells.
void identify(const Icd& cl, cl_device_id device, sdk::DeviceDescription& description) {
  const std::string extensions = device_text(cl, device, CL_DEVICE_EXTENSIONS);
  if (has_extension(extensions, "cl_khr_device_uuid")) {
    std::array<unsigned char, CL_UUID_SIZE_KHR> uuid{};
    const bool told = cl.clGetDeviceInfo(device, CL_DEVICE_UUID_KHR, uuid.size(), uuid.data(), nullptr) == CL_SUCCESS;
    const bool blank = std::all_of(uuid.begin(), uuid.end(), [](unsigned char byte) { return byte == 0; });
    if (told && !blank) description.uuid = hex(uuid.data(), uuid.size());
  }
  if (has_extension(extensions, "cl_khr_pci_bus_info")) {
    cl_device_pci_bus_info_khr pci{};
    if (cl.clGetDeviceInfo(device, CL_DEVICE_PCI_BUS_INFO_KHR, sizeof pci, &pci, nullptr) == CL_SUCCESS) {
      description.pci = pci_address(pci.pci_domain, pci.pci_bus, pci.pci_device, pci.pci_function);
    }
  } else if (has_extension(extensions, "cl_nv_device_attribute_query")) {
    constexpr cl_device_info kBus = 0x4008, kSlot = 0x4009, kDomain = 0x400A;
    const auto slot = device_number<cl_uint>(cl, device, kSlot);
    description.pci = pci_address(device_number<cl_uint>(cl, device, kDomain), device_number<cl_uint>(cl, device, kBus),
                                  slot >> 3, slot & 7);
  }
}

/// A device that is there but cannot be used, and why. Empty: it can.
std::string unusable(const Icd& cl, cl_device_id device) {
  if (device_number<cl_bool>(cl, device, CL_DEVICE_AVAILABLE) == CL_FALSE) return "is not available";
  if (device_number<cl_bool>(cl, device, CL_DEVICE_COMPILER_AVAILABLE) == CL_FALSE) return "has no compiler";
  if (device_number<cl_bool>(cl, device, CL_DEVICE_ENDIAN_LITTLE) == CL_FALSE) return "is big-endian";
  if (device_number<cl_uint>(cl, device, CL_DEVICE_ADDRESS_BITS) < 64) return "has addresses of less than 64 bits";
  const std::string version = device_text(cl, device, CL_DEVICE_VERSION);
  if (version.starts_with("OpenCL 1.0") || version.starts_with("OpenCL 1.1")) {
    return "is of " + version + ", at least 1.2 is needed";
  }
  return {};
}

struct Found {
  std::vector<std::pair<Handle, sdk::DeviceDescription>> devices;
  std::string none;  // why there is none
};

std::string without_devices(const std::string& platform) {
  std::string text = "platform '" + platform + "' offers no device";
  if (platform.find(kPocl) != std::string::npos) {
    text += " (PoCL has none where it cannot write to the folder of its kernels: POCL_CACHE_DIR, else ~/.cache/pocl)";
  }
  return text;
}

Found find(const Icd& cl) {
  Found found;
  cl_uint count = 0;
  const cl_int status = cl.clGetPlatformIDs(0, nullptr, &count);
  if (status != CL_SUCCESS || count == 0) {
    found.none = "the OpenCL loader finds no driver (no file /etc/OpenCL/vendors/*.icd names one that can be loaded)";
    return found;
  }
  std::vector<cl_platform_id> platforms(count);
  check(cl.clGetPlatformIDs(count, platforms.data(), &count), "listing OpenCL platforms");
  platforms.resize(std::min<std::size_t>(platforms.size(), count));
  const auto none = [&](const std::string& text) { found.none += (found.none.empty() ? "" : "; ") + text; };
  for (cl_platform_id platform : platforms) {
    const std::string name = platform_text(cl, platform, CL_PLATFORM_NAME);
    constexpr cl_device_type kTypes = CL_DEVICE_TYPE_CPU | CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_ACCELERATOR;
    cl_uint n = 0;
    if (cl.clGetDeviceIDs(platform, kTypes, 0, nullptr, &n) != CL_SUCCESS || n == 0) {
      none(without_devices(name));
      continue;
    }
    std::vector<cl_device_id> devices(n);
    if (cl.clGetDeviceIDs(platform, kTypes, n, devices.data(), &n) != CL_SUCCESS) continue;
    devices.resize(std::min<std::size_t>(devices.size(), n));
    for (cl_device_id device : devices) {
      sdk::DeviceDescription description;
      description.name = device_text(cl, device, CL_DEVICE_NAME);
      if (const std::string why = unusable(cl, device); !why.empty()) {
        none("device '" + description.name + "' of platform '" + name + "' " + why);
        continue;
      }
      description.type = FP_DEVICE_OPENCL;
      description.index = static_cast<std::int32_t>(found.devices.size());
      description.units = device_number<cl_uint>(cl, device, CL_DEVICE_MAX_COMPUTE_UNITS);
      description.vendor = device_text(cl, device, CL_DEVICE_VENDOR);
      description.arch = device_text(cl, device, CL_DEVICE_VERSION);
      description.driver = device_text(cl, device, CL_DRIVER_VERSION);
      description.memory_bytes = device_number<cl_ulong>(cl, device, CL_DEVICE_GLOBAL_MEM_SIZE);
      description.dtypes = FP_DTYPE_BIT_F32;
      if (device_number<cl_device_fp_config>(cl, device, CL_DEVICE_DOUBLE_FP_CONFIG) != 0) {
        description.dtypes |= FP_DTYPE_BIT_F64;
      }
      identify(cl, device, description);
      found.devices.emplace_back(Handle{platform, device}, std::move(description));
    }
  }
  return found;
}

}  // namespace

std::string platform_text(const Icd& cl, cl_platform_id platform, cl_platform_info what) {
  std::size_t size = 0;
  if (cl.clGetPlatformInfo(platform, what, 0, nullptr, &size) != CL_SUCCESS || size == 0) return {};
  std::string text(size, '\0');
  if (cl.clGetPlatformInfo(platform, what, size, text.data(), nullptr) != CL_SUCCESS) return {};
  return trimmed(std::move(text));
}

std::string device_text(const Icd& cl, cl_device_id device, cl_device_info what) {
  std::size_t size = 0;
  if (cl.clGetDeviceInfo(device, what, 0, nullptr, &size) != CL_SUCCESS || size == 0) return {};
  std::string text(size, '\0');
  if (cl.clGetDeviceInfo(device, what, size, text.data(), nullptr) != CL_SUCCESS) return {};
  return trimmed(std::move(text));
}

bool is_pocl(const Icd& cl, cl_platform_id platform) {
  return platform_text(cl, platform, CL_PLATFORM_NAME).find(kPocl) != std::string::npos;
}

std::string build_options(const Icd& cl, cl_device_id device) {
  std::string options = "-cl-std=CL1.2";
  const auto narrow = device_number<cl_device_fp_config>(cl, device, CL_DEVICE_SINGLE_FP_CONFIG);
  if ((narrow & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT) != 0) options += " -cl-fp32-correctly-rounded-divide-sqrt";
  return options;
}

std::vector<sdk::DeviceDescription> OpenClBackend::devices() {
  const KeepProcessState keep;
  const KeepEnvironment environment;
  const Found found = find(icd());
  if (found.devices.empty()) throw sdk::Unavailable(found.none);
  std::vector<sdk::DeviceDescription> result;
  for (const auto& [handle, description] : found.devices) result.push_back(description);
  return result;
}

std::unique_ptr<gpu::BackendDevice> OpenClBackend::open(const sdk::DeviceDescription& device) {
  const KeepProcessState keep;
  const KeepEnvironment environment;
  const Icd& cl = icd();
  for (const auto& [handle, description] : find(cl).devices) {
    if (description == device) return open_device(cl, handle, context(cl, handle));
  }
  throw sdk::Unavailable("the OpenCL device '" + device.name + "' is no longer there");
}

std::shared_ptr<Context> OpenClBackend::context(const Icd& cl, const Handle& handle) {
  if (!is_pocl(cl, handle.platform)) return std::make_shared<Context>(cl, handle);
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Context>& kept = contexts_[handle.device];
  if (kept == nullptr || kept->abandoned()) kept = std::make_shared<Context>(cl, handle);
  return kept;
}

void OpenClBackend::shutdown() noexcept {
  const std::lock_guard lock(mutex_);
  contexts_.clear();
}

// The driver is the compiler: what tells drivers apart is in the architecture of an open device.
std::string OpenClBackend::compiler(const gpu::Target&) { return "OpenCL driver"; }

gpu::Binary OpenClBackend::compile(const gpu::Program&, const gpu::Target&) {
  throw sdk::Unavailable("OpenCL programs are compiled by a device's driver, so not without the device");
}

}  // namespace fastpath_opencl
