// Ops of third parties, which have no schema: the first call of each pass is compared.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "support/gates.hpp"

namespace fastpath {
namespace {

using test::Gate;

/// y = 3 x, an op that fastpath has no schema of.
class Triple : public FastPathModule {
 public:
  const OpSpec& op() const override { return spec_; }
  int references = 0;

 protected:
  void reference(const OpCall& call, const std::vector<Tensor>&) override {
    ++references;
    if (call.pass == Pass::forward) {
      for (std::int64_t i = 0; i < call.inputs[0].numel(); ++i) {
        call.outputs[0].data<double>()[i] = 3 * call.inputs[0].data<double>()[i];
      }
    } else {
      for (std::int64_t i = 0; i < call.inputs[0].numel(); ++i) {
        call.grad_inputs[0].data<double>()[i] = 3 * call.grad_outputs[0].data<double>()[i];
      }
    }
  }
  std::vector<Tensor> schema_tensors() const override { return {}; }

 private:
  OpSpec spec_{"org.example.triple", 1, {}};
};

class TriplePlugin final : public plugin::LoadedPlugin {
  class Kernel final : public plugin::Kernel {
   public:
    explicit Kernel(const double* factor) : factor_(factor) {}
    const std::string& plugin_id() const noexcept override { return id_; }
    const plugin::KernelTraits& traits() const noexcept override { return traits_; }
    plugin::CallStatus bind(std::span<const Tensor>, std::uint64_t) override { return {}; }
    std::uint64_t saved_bytes(const OpCall&) override { return 0; }
    plugin::CallStatus run(const OpCall& call) override {
      const bool forward = call.pass == Pass::forward;
      const Tensor& from = forward ? call.inputs[0] : call.grad_outputs[0];
      const Tensor& to = forward ? call.outputs[0] : call.grad_inputs[0];
      for (std::int64_t i = 0; i < from.numel(); ++i) {
        to.data<double>()[i] = (forward ? 3 : *factor_) * from.data<double>()[i];
      }
      return {};
    }

   private:
    const double* factor_;
    std::string id_ = "triple";
    plugin::KernelTraits traits_;
  };
  class Cpu final : public plugin::OpenDevice {
   public:
    explicit Cpu(const double* factor) : factor_(factor) {}
    const DeviceInfo& info() const noexcept override { return cpu_info(); }
    bool owns_memory() const noexcept override { return false; }
    Tensor allocate(const Shape& shape, DType dtype) override { return Tensor::empty(shape, dtype); }
    void copy_to_device(const Tensor& from, const Tensor& to) override { to.copy_from(from); }
    void copy_from_device(const Tensor& from, const Tensor& to) override { to.copy_from(from); }
    void fill_zero(const Tensor& tensor) override { tensor.fill_zero(); }
    std::unique_ptr<plugin::Kernel> create_kernel(const OpSpec&, DType, Passes) override {
      return std::make_unique<Kernel>(factor_);
    }

   private:
    const double* factor_;
  };

 public:
  double factor = 3;  // of the backward pass
  TriplePlugin() { info_.id = "triple"; }
  const PluginInfo& info() const noexcept override { return info_; }
  const DeviceInfo* find_device(const Device&) const noexcept override { return &cpu_info(); }
  Support query(const OpSpec&, const DeviceInfo&, DType, Passes, plugin::KernelTraits*) override {
    return Support::yes();
  }
  std::shared_ptr<plugin::OpenDevice> open(const DeviceInfo&) override { return std::make_shared<Cpu>(&factor); }

 private:
  PluginInfo info_;
};

class ForeignOp : public Gate {
 protected:
  ForeignOp() {
    plugin = std::make_shared<TriplePlugin>();
    context_ = std::make_unique<Context>(
        ContextOptions{.shared_registry = std::make_shared<PluginRegistry>(std::make_unique<test::GivenPlugins>(
                           std::vector<std::shared_ptr<plugin::LoadedPlugin>>{plugin}))});
  }
  double run(Pass pass) {
    const Tensor x[] = {Tensor::from<double>({2}, {1.0, 2.0})}, y[] = {Tensor::zeros({2}, DType::float64)};
    OpCall call;
    call.pass = pass;
    call.inputs = x;
    const Tensor other[] = {Tensor::from<double>({2}, {7.0, 7.0})};  // of a pass that is not run
    call.outputs = pass == Pass::forward ? y : other;
    call.grad_inputs = pass == Pass::forward ? other : y;
    if (pass == Pass::backward) call.grad_outputs = x;
    module.run(call);
    EXPECT_EQ(other[0].data<double>()[0], 7.0);
    return y[0].data<double>()[1];
  }
  Triple module;
  std::shared_ptr<TriplePlugin> plugin;
  std::unique_ptr<Context> context_;
};

TEST_F(ForeignOp, TheFirstCallOfEachPassIsCompared) {
  EXPECT_TRUE(pick(module, *context_));
  EXPECT_EQ(run(Pass::forward), 6);
  EXPECT_EQ(run(Pass::backward), 6);
  EXPECT_EQ(module.references, 2);
  EXPECT_EQ(run(Pass::forward), 6);
  EXPECT_EQ(run(Pass::backward), 6);
  EXPECT_EQ(module.references, 2);
  Triple other;  // and once is enough for the process
  EXPECT_TRUE(pick(other, *context_));
  EXPECT_EQ(other.state().active->unverified, 0u);
}

TEST_F(ForeignOp, AWrongKernelGivesTheResultOfTheReferenceAndIsOut) {
  plugin->factor = 4;
  EXPECT_TRUE(pick(module, *context_));
  EXPECT_EQ(run(Pass::forward), 6);
  EXPECT_EQ(run(Pass::backward), 6);
  EXPECT_FALSE(module.fast_active());
  ASSERT_TRUE(module.last_failure());
  EXPECT_EQ(module.last_failure()->code, ReasonCode::not_verified);
  ASSERT_EQ(warnings.size(), 1u);
  const Selection next = pick(module, *context_);
  EXPECT_FALSE(next);
  EXPECT_EQ(next.decisions[0].candidates[0].reasons[0].code, ReasonCode::not_verified);
}

}  // namespace
}  // namespace fastpath
