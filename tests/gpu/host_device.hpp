#pragma once

#include <memory>
#include <vector>

#include "generator/op.hpp"
#include "host_program.hpp"
#include "plugin/plugin.hpp"

namespace fastpath_gpu::test {

/// Runs generated kernels on the CPU, so that a trial (verify/op_trial.hpp) can compare them with the reference. Each
/// call runs three times, with the items of a group in different orders, and fails if a bit of the results differs.
/// Scratch memory is full of NaNs before; bytes behind it must not change.
class HostDevice final : public fastpath::plugin::OpenDevice {
 public:
  /// @param target  Limits that kernels are generated for; its language is taken as host.
  explicit HostDevice(Target target) : target_(std::move(target)) { target_.language = Language::host; }

  const fastpath::DeviceInfo& info() const noexcept override { return fastpath::cpu_info(); }
  bool owns_memory() const noexcept override { return false; }
  fastpath::Tensor allocate(const fastpath::Shape& shape, fastpath::DType dtype) override {
    return fastpath::Tensor::empty(shape, dtype);
  }
  void copy_to_device(const fastpath::Tensor& host, const fastpath::Tensor& device) override { device.copy_from(host); }
  void copy_from_device(const fastpath::Tensor& device, const fastpath::Tensor& host) override {
    host.copy_from(device);
  }
  void fill_zero(const fastpath::Tensor& device) override { device.fill_zero(); }
  /// @throws std::runtime_error if the generator has no such op, or declines the configuration.
  std::unique_ptr<fastpath::plugin::Kernel> create_kernel(const fastpath::OpSpec& op, fastpath::DType dtype,
                                                          fastpath::Passes passes) override;

 private:
  Target target_;
};

}  // namespace fastpath_gpu::test
