#pragma once

#include <deque>
#include <memory>

#include "fake_device.hpp"
#include "fastpath/sdk/kernel.hpp"

namespace fake_device {

/// Runs a kernel that was written for the CPU as if it were one of the fake device: every address of a call is looked
/// up on the device, checked against its allocation, and the call is put on the stream.
class OnDevice final : public sdk::Kernel {
 public:
  /// @param index  Of the device, as the plugin that makes the kernel numbers it.
  OnDevice(std::unique_ptr<sdk::Kernel> kernel, FakeDevice& device, std::int32_t index);
  ~OnDevice() override;

  void bind(const sdk::Bind& bind) override;
  sdk::Workspace workspace(const sdk::Sizes& sizes) override { return kernel_->workspace(sizes); }
  void run(const sdk::Run& run) override;

 private:
  struct Call;
  std::shared_ptr<sdk::Kernel> kernel_;  // shared with the calls that are still to be done
  FakeDevice& device_;
  const std::int32_t index_;
  std::shared_ptr<Call> bound_;  // what the kernel was bound to must stay valid
};

}  // namespace fake_device
