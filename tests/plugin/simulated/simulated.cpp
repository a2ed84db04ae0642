// A device of known cost: spherical harmonics on the CPU, computed by the kernel of cpu_ref, that count the seconds a
// forward pass would take. l_max 1 starts slowly and is fast then, l_max 2 has a term in the square of the edges, so
// that it wins only between two sizes; l_max 3 is wrong.
#include "simulated.h"

#include <memory>
#include <utility>

#include "cpu/plugin.hpp"
#include "kernel.hpp"

namespace simulated {
namespace {

namespace sdk = fastpath::sdk;

simulated_costs& costs() {
  static simulated_costs instance = {
      {FP_SIZE_EXTENSION, 0, SIMULATED_COSTS_ID, sizeof(SIMULATED_COSTS_ID) - 1, nullptr}, 0};
  return instance;
}

double seconds(int l_max, double edges) {
  return l_max == 1 ? 50e-6 + 20e-9 * edges : 30e-6 + 20e-9 * edges + 4e-12 * edges * edges;
}

class Counted final : public sdk::Kernel {
 public:
  Counted(std::unique_ptr<sdk::Kernel> kernel, int l_max) : kernel_(std::move(kernel)), l_max_(l_max) {}
  void bind(const sdk::Bind& bind) override { kernel_->bind(bind); }
  sdk::Workspace workspace(const sdk::Sizes& sizes) override { return kernel_->workspace(sizes); }
  void run(const sdk::Run& run) override {
    kernel_->run(run);
    if (run.pass != sdk::Pass::forward) return;
    costs().seconds += seconds(l_max_, static_cast<double>(run.inputs[0].size(0)));
    if (l_max_ == 3 && run.inputs[0].size(0) > 0) run.outputs[0].view<double>().data()[0] += 1e-3;
  }

 private:
  const std::unique_ptr<sdk::Kernel> kernel_;
  const int l_max_;
};

class Simulated final : public fastpath_cpu::CpuPlugin {
 public:
  Simulated() : CpuPlugin({cpu_ref::spherical_harmonics()}, 0) {}
  const fp_extension* extensions() const override { return &costs().extension; }
  std::unique_ptr<sdk::Kernel> create(const sdk::KernelQuery& query, sdk::Device& device) override {
    return std::make_unique<Counted>(CpuPlugin::create(query, device),
                                     sdk::SphericalHarmonicsConfig::from(query.config).l_max);
  }
};

}  // namespace
}  // namespace simulated

FASTPATH_PLUGIN(simulated::Simulated, "simulated", "Example", "1.0.0", "cpu", "test");
