#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/kernel.hpp"
#include "fastpath/sdk/plugin.hpp"

namespace fastpath_cpu {

/// A plugin with kernels of CpuKernel's kind: it answers what it is asked from a list of ops.
class CpuPlugin : public sdk::Plugin {
 public:
  std::vector<sdk::DeviceDescription> devices() override;
  std::vector<sdk::OpDescription> ops() override;
  void query(const sdk::KernelQuery& query, sdk::KernelAnswer& answer) override;
  std::unique_ptr<sdk::Kernel> create(const sdk::KernelQuery& query, sdk::Device& device) override;

 protected:
  /// @param rank  What kernels answer for it: of two plugins the one with the higher rank is chosen.
  CpuPlugin(std::vector<Op> ops, std::int32_t rank) : ops_(std::move(ops)), rank_(rank) {}
  /// Adds a blocker for everything that keeps all kernels from running on this machine.
  virtual void check_machine(sdk::KernelAnswer& answer) { static_cast<void>(answer); }

 private:
  std::vector<Op> ops_;
  std::int32_t rank_;
};

}  // namespace fastpath_cpu
