#pragma once

#include <memory>
#include <vector>

#include "fake_device.hpp"
#include "fastpath/sdk/plugin.hpp"

namespace fake_device {

/// The plugin of the fake device. Others derive from it: one that only brings kernels to the memory of this one, and
/// ones that break their contract. What it looks up of the host: `fake_device.native`, "none" (it has no native
/// handles) or "wrong" (of another kind); `fastpath.lose_device`, any text: a device opened then is lost by the first
/// run on it.
class FakePlugin : public sdk::Plugin {
 public:
  std::vector<sdk::DeviceDescription> devices() override;
  bool owns_memory() const override { return true; }
  std::unique_ptr<sdk::Device> open(const sdk::OpenRequest& request) override;
  const fp_extension* extensions() const override { return &counters().extension; }
  void shutdown() override { count(counters().shutdowns); }
  std::vector<sdk::OpDescription> ops() override;
  void query(const sdk::KernelQuery& query, sdk::KernelAnswer& answer) override;
  std::unique_ptr<sdk::Kernel> create(const sdk::KernelQuery& query, sdk::Device& device) override;

 protected:
  virtual std::unique_ptr<FakeDevice> make_device() { return std::make_unique<FakeDevice>(); }
  /// The kernel as it runs on the CPU.
  static std::unique_ptr<sdk::Kernel> make_kernel(const sdk::KernelQuery& query);
};

}  // namespace fake_device
