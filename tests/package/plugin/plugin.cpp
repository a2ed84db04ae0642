// The least that is a plugin: it has an identity, a CPU, and no kernel for anything.
#include "fastpath/sdk/plugin.hpp"

namespace {

namespace sdk = fastpath::sdk;

class Minimal final : public sdk::Plugin {
 public:
  std::vector<sdk::DeviceDescription> devices() override {
    sdk::DeviceDescription cpu;
    cpu.type = FP_DEVICE_CPU;
    cpu.dtypes = FP_DTYPE_BIT_F64;
    return {cpu};
  }
  std::vector<sdk::OpDescription> ops() override { return {}; }
  void query(const sdk::KernelQuery& query, sdk::KernelAnswer& answer) override {
    answer.blocked(sdk::Reason::op, "op '" + query.op + "' is not known here");
  }
  std::unique_ptr<sdk::Kernel> create(const sdk::KernelQuery&, sdk::Device&) override { return nullptr; }
};

}  // namespace

FASTPATH_PLUGIN(Minimal, "minimal", "fastpath tests", "1.0", "cpu", "");
