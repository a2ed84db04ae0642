#pragma once

#include <memory>
#include <string>
#include <vector>

#include "icd.hpp"
#include "runtime/backend.hpp"

namespace fastpath_opencl {

namespace gpu = fastpath_gpu;
namespace sdk = fastpath::sdk;

/// CPUs, GPUs and accelerators of every platform that the loader finds.
class OpenClBackend final : public gpu::Backend {
 public:
  gpu::Language language() const override { return gpu::Language::opencl; }
  std::vector<sdk::DeviceDescription> devices() override;
  std::unique_ptr<gpu::BackendDevice> open(const sdk::DeviceDescription& device) override;
  std::string compiler(const gpu::Target& target) override;
  gpu::Binary compile(const gpu::Program& program, const gpu::Target& target) override;
};

/// A device as OpenCL names it.
struct Handle {
  cl_platform_id platform = nullptr;
  cl_device_id device = nullptr;
};

std::string platform_text(const Icd& cl, cl_platform_id platform, cl_platform_info what);
std::string device_text(const Icd& cl, cl_device_id device, cl_device_info what);
template <class T>
T device_number(const Icd& cl, cl_device_id device, cl_device_info what) {
  T value{};
  return cl.clGetDeviceInfo(device, what, sizeof value, &value, nullptr) == CL_SUCCESS ? value : T{};
}

/// Options that every program is built with on a device.
std::string build_options(const Icd& cl, cl_device_id device);

std::unique_ptr<gpu::BackendDevice> open_device(const Icd& cl, const Handle& handle);

}  // namespace fastpath_opencl
