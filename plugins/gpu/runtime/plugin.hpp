#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend.hpp"
#include "fastpath/sdk/plugin.hpp"

namespace fastpath_gpu {

/// A plugin for one vendor: what the generator has, on the devices of a backend. A vendor's plugin class derives from
/// it and has a default constructor.
class GpuPlugin : public sdk::Plugin {
 public:
  /// @param device_type  FP_DEVICE_* of the backend's devices.
  GpuPlugin(std::unique_ptr<Backend> backend, std::int32_t device_type)
      : backend_(std::move(backend)), device_type_(device_type) {}

  std::vector<sdk::DeviceDescription> devices() override { return backend_->devices(); }
  std::vector<sdk::OpDescription> ops() override;
  void query(const sdk::KernelQuery& query, sdk::KernelAnswer& answer) override;
  std::unique_ptr<sdk::Kernel> create(const sdk::KernelQuery& query, sdk::Device& device) override;
  std::unique_ptr<sdk::Device> open(const sdk::OpenRequest& request) override;
  bool owns_memory() const override { return true; }

 private:
  std::unique_ptr<Backend> backend_;
  std::int32_t device_type_;
};

}  // namespace fastpath_gpu
