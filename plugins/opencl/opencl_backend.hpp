#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "context.hpp"
#include "icd.hpp"
#include "runtime/backend.hpp"

namespace fastpath_opencl {

namespace sdk = fastpath::sdk;

/// CPUs, GPUs and accelerators of every platform that the loader finds. Devices of PoCL that are open at the same time,
/// or one after the other, share a context with the code that was built in it: PoCL keeps a little of the memory of
/// every program that is built, whatever is released, so the same source is built once.
class OpenClBackend final : public gpu::Backend {
 public:
  gpu::Language language() const override { return gpu::Language::opencl; }
  std::vector<sdk::DeviceDescription> devices() override;
  std::unique_ptr<gpu::BackendDevice> open(const sdk::DeviceDescription& device) override;
  std::string compiler(const gpu::Target& target) override;
  gpu::Binary compile(const gpu::Program& program, const gpu::Target& target) override;
  void shutdown() noexcept override;

 private:
  std::shared_ptr<Context> context(const Icd& cl, const Handle& handle);

  std::mutex mutex_;
  std::map<cl_device_id, std::shared_ptr<Context>> contexts_;  // PoCL's
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

/// Whether a platform is PoCL, which keeps compiled kernels on disk itself and compiles them for the sizes of their
/// first launch.
bool is_pocl(const Icd& cl, cl_platform_id platform);

std::unique_ptr<gpu::BackendDevice> open_device(const Icd& cl, const Handle& handle, std::shared_ptr<Context> context);

}  // namespace fastpath_opencl
