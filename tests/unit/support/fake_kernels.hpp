#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fastpath/error.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/lock.hpp"
#include "fastpath/measurement.hpp"
#include "fastpath/plugin.h"
#include "fastpath/warning.hpp"
#include "plugin/plugin.hpp"

/// Modules, and plugins with kernels for them, that are made for tests of which path runs.
namespace fastpath::test {

/// y = scale * x; the kernels below write 2 * scale * x, so that one sees which path ran.
class Scale : public FastPathModule {
 public:
  explicit Scale(std::string id = "org.example.scale")
      : spec_{std::move(id), 1, {{"factor", std::vector<std::int64_t>{1}}}} {
    register_parameter("scale", Tensor::from<double>({1}, {3.0}));
  }
  const OpSpec& op() const override { return spec_; }
  int references = 0;

 protected:
  void reference(const OpCall& call, const std::vector<Tensor>& parameters) override {
    ++references;
    const double s = parameters[0].to(DType::float64).item();
    for (std::int64_t i = 0; i < call.inputs[0].numel(); ++i) {
      if (call.inputs[0].dtype() == DType::float32) {
        call.outputs[0].data<float>()[i] = static_cast<float>(s) * call.inputs[0].data<float>()[i];
      } else {
        call.outputs[0].data<double>()[i] = s * call.inputs[0].data<double>()[i];
      }
    }
  }
  std::vector<Tensor> schema_tensors() const override { return {parameter("scale")}; }

 private:
  OpSpec spec_;
};

/// How a fake plugin behaves.
struct Behaviour {
  std::string id = "fake";
  DeviceInfo device = cpu_info();
  Support support;
  plugin::KernelTraits traits;
  bool fail_create = false;
  std::string only;  // the one op that it has kernels for; empty: every op
  std::int32_t run_status = FP_OK;
  std::atomic<int> queries{0}, creates{0}, binds{0}, runs{0};
};

class FakeKernel : public plugin::Kernel {
 public:
  explicit FakeKernel(Behaviour& b) : b_(b) {}
  const std::string& plugin_id() const noexcept override { return b_.id; }
  const plugin::KernelTraits& traits() const noexcept override { return b_.traits; }
  plugin::CallStatus bind(std::span<const Tensor> parameters, std::uint64_t) override {
    ++b_.binds;
    scale_ = parameters[0].to(DType::float64).item();
    return {};
  }
  std::uint64_t saved_bytes(const OpCall&) override { return 0; }
  plugin::CallStatus run(const OpCall& call) override {
    ++b_.runs;
    if (b_.run_status != FP_OK) return {b_.run_status, "as told"};
    for (std::int64_t i = 0; i < call.inputs[0].numel(); ++i) {
      call.outputs[0].data<double>()[i] = 2 * scale_ * call.inputs[0].data<double>()[i];
    }
    return {};
  }

 private:
  Behaviour& b_;
  double scale_ = 0;
};

class FakeDevice : public plugin::OpenDevice {
 public:
  explicit FakeDevice(Behaviour& b) : b_(b) {}
  const DeviceInfo& info() const noexcept override { return b_.device; }
  bool owns_memory() const noexcept override { return !b_.device.device.is_cpu(); }
  Tensor allocate(const Shape& shape, DType dtype) override { return Tensor::empty(shape, dtype); }
  void copy_to_device(const Tensor&, const Tensor&) override {}
  void copy_from_device(const Tensor&, const Tensor&) override {}
  void fill_zero(const Tensor&) override {}
  std::unique_ptr<plugin::Kernel> create_kernel(const OpSpec&, DType, Passes) override {
    ++b_.creates;
    if (b_.fail_create) throw Error(ErrorCode::unavailable, "no kernel today");
    return std::make_unique<FakeKernel>(b_);
  }

 private:
  Behaviour& b_;
};

class FakePlugin : public plugin::LoadedPlugin {
 public:
  explicit FakePlugin(Behaviour& b) : b_(b) { info_.id = b.id; }
  const PluginInfo& info() const noexcept override { return info_; }
  const DeviceInfo* find_device(const Device& device) const noexcept override {
    return device == b_.device.device ? &b_.device : nullptr;
  }
  Support query(const OpSpec& op, const DeviceInfo&, DType, Passes, plugin::KernelTraits* traits) override {
    ++b_.queries;
    *traits = b_.traits;
    if (!b_.only.empty() && op.id != b_.only) {
      Support other;
      other.blocked(ReasonCode::op, op.id);
      return other;
    }
    return b_.support;
  }
  std::shared_ptr<plugin::OpenDevice> open(const DeviceInfo&) override { return std::make_shared<FakeDevice>(b_); }

 private:
  Behaviour& b_;
  PluginInfo info_;
};

class FakeRegistry : public PluginRegistry::Impl {
 public:
  explicit FakeRegistry(std::vector<std::shared_ptr<plugin::LoadedPlugin>> plugins, int* asked)
      : plugins_(std::move(plugins)), asked_(asked) {}
  std::vector<SearchDirectory> search_path() const override { return {}; }
  std::vector<PluginInfo> plugins() override { return {}; }
  std::vector<PluginInfo> known() override { return {}; }
  std::vector<std::shared_ptr<plugin::LoadedPlugin>> usable(DeviceKind) override {
    ++*asked_;
    return plugins_;
  }

 private:
  std::vector<std::shared_ptr<plugin::LoadedPlugin>> plugins_;
  int* asked_;
};

class Dispatch : public testing::Test {
 protected:
  Dispatch() {
    set_warning_handler([](const FastPathPrecisionWarning&) {});
  }
  ~Dispatch() override {
    set_warning_handler({});
    reset_float32_warning();
  }
  Context& context() {
    if (!context_) {
      std::vector<std::shared_ptr<plugin::LoadedPlugin>> plugins;
      for (auto& b : behaviours) plugins.push_back(std::make_shared<FakePlugin>(*b));
      auto registry = std::make_shared<PluginRegistry>(std::make_unique<FakeRegistry>(std::move(plugins), &asked));
      context_ = std::make_unique<Context>(ContextOptions{.registry = {},
                                                          .shared_registry = registry,
                                                          .threads = 1,
                                                          .gate = gate,
                                                          .measurements = store,
                                                          .replay = replay,
                                                          .deterministic = deterministic});
    }
    return *context_;
  }
  void renew() { context_.reset(); }
  Behaviour& add(const std::string& id) {
    behaviours.push_back(std::make_unique<Behaviour>());
    behaviours.back()->id = id;
    return *behaviours.back();
  }
  Selection pick(UseFast use_fast, const AutoPolicy* policy = nullptr, std::int64_t edges = 100,
                 DType dtype = DType::float64, Device device = Device::cpu()) {
    return select({{"scale", &module}}, use_fast, policy, device, dtype, edges, kPassesForces, &context());
  }
  double run() {
    const Tensor x = Tensor::from<double>({1}, {1.0}), y = Tensor::zeros({1}, DType::float64);
    const Tensor inputs[] = {x}, outputs[] = {y};
    OpCall call;
    call.inputs = inputs;
    call.outputs = outputs;
    module.run(call);
    return y.item();
  }

  std::vector<std::unique_ptr<Behaviour>> behaviours;
  bool gate = false;  // the kernels here are wrong on purpose
  int asked = 0;
  std::shared_ptr<MeasurementStore> store = std::make_shared<MeasurementStore>();
  std::shared_ptr<const SelectionLock> replay;
  bool deterministic = false;
  Scale module;

 private:
  std::unique_ptr<Context> context_;
};

/// Two fused modules, each with a part of its own, and a part that both use.
struct TwoFused {
  struct Fused : Scale {
    Fused(std::shared_ptr<Scale> own, std::shared_ptr<Scale> common)
        : Scale("org.example.fused"), parts{own.get(), common.get()} {
      register_child("own", std::move(own));
    }
    std::vector<FastPathModule*> covered() override { return parts; }
    std::vector<FastPathModule*> parts;
  };
  TwoFused() {
    const auto common = std::make_shared<Scale>();
    root.register_child("common", common);
    root.register_child("first", std::make_shared<Fused>(std::make_shared<Scale>(), common));
    root.register_child("second", std::make_shared<Fused>(std::make_shared<Scale>(), common));
    modules = fast_modules(root);
  }
  Module root;
  std::vector<NamedFastModule> modules;  // common, first, first.own, second, second.own
};

/// Decisions by what was measured, and what comes before and after that.
class Rules : public Dispatch {
 protected:
  ~Rules() override {
    for (const std::string& name : variables) ::unsetenv(name.c_str());
  }
  /// Both arms cost something per edge, the kernel also something per call, so that it is faster from some size on.
  Measurement crossing(const std::string& plugin, std::int64_t from, double kernel_per_edge = 1e-8) {
    constexpr double kReferencePerEdge = 1e-7;
    Measurement m;
    m.key = measurement_key(module.op(), plugin, cpu_info(), DType::float64, kPassesForces, 1);
    m.plugin_build = plugin_build(context(), DeviceKind::cpu, plugin);
    m.driver = cpu_info().driver;
    for (std::int64_t n = 10; n <= 100'000; n *= 10) {
      const double edges = static_cast<double>(n),
                   call = static_cast<double>(from) * (kReferencePerEdge - kernel_per_edge);
      m.points.push_back({n, n / 10, true, kReferencePerEdge * edges, call + kernel_per_edge * edges, 0.01, 0.01, 7});
    }
    m.windows = {{from, 0, 0.02, 0}};
    return m;
  }
  /// Of the whole group.
  Measurement of_model(Measurement m, const std::vector<NamedFastModule>& modules, const DeviceInfo& device) {
    m.key = measurement_key(modules, device, DType::float64, kPassesForces, 1);
    m.plugin_build = plugin_build(context(), device.device.kind, kEveryPlugin);
    m.driver = device.driver;
    return m;
  }
  void set(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    variables.push_back(name);
    renew();
  }
  Decision decided(std::int64_t edges, UseFast use_fast = UseFast::automatic, const AutoPolicy& policy = {}) {
    return pick(use_fast, &policy, edges).decisions[0];
  }
  std::vector<std::string> variables;
};

}  // namespace fastpath::test
