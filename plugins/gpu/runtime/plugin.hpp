#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend.hpp"
#include "fastpath/sdk/compile.hpp"
#include "fastpath/sdk/plugin.hpp"
#include "offline.hpp"

namespace fastpath_gpu {

/// A plugin for one vendor: what the generator has, on the devices of a backend. A vendor's plugin class derives from
/// it and has a default constructor.
class GpuPlugin : public sdk::Plugin {
 public:
  /// @param device_type  FP_DEVICE_* of the backend's devices.
  GpuPlugin(std::unique_ptr<Backend> backend, std::int32_t device_type)
      : backend_(std::move(backend)),
        device_type_(device_type),
        offline_(*this, *backend_),
        extension_(offline_, device_type) {}

  std::vector<sdk::DeviceDescription> devices() override { return backend_->devices(); }
  std::vector<sdk::OpDescription> ops() override;
  void query(const sdk::KernelQuery& query, sdk::KernelAnswer& answer) override;
  std::unique_ptr<sdk::Kernel> create(const sdk::KernelQuery& query, sdk::Device& device) override;
  std::unique_ptr<sdk::Device> open(const sdk::OpenRequest& request) override;
  void shutdown() override { backend_->shutdown(); }
  bool owns_memory() const override { return true; }
  /// Compiling without a device, where that is possible: an OpenCL driver compiles for its own devices alone.
  const fp_extension* extensions() const override {
    return backend_->language() == Language::opencl ? nullptr : extension_.get();
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::int32_t device_type_;
  GpuOfflineCompiler offline_;
  sdk::CompileExtension extension_;
};

}  // namespace fastpath_gpu
