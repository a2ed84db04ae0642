// Which path runs: the rules of the host API on plugins made in the test.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <thread>

#include "dispatch/module_state.hpp"
#include "dispatch/parts.hpp"
#include "fastpath/error.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/lock.hpp"
#include "fastpath/measurement.hpp"
#include "fastpath/model.hpp"
#include "fastpath/plugin.h"
#include "fastpath/warning.hpp"
#include "plugin/plugin.hpp"

namespace fastpath {
namespace {

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

TEST_F(Dispatch, NeverUsesTheReferenceAndAsksNobody) {
  add("fake");
  const Selection selection = pick(UseFast::never);
  EXPECT_FALSE(selection);
  EXPECT_EQ(asked, 0);
  EXPECT_EQ(selection.decisions[0].choice, "reference");
  EXPECT_EQ(selection.decisions[0].reason.code, ReasonCode::forced_reference);
  EXPECT_TRUE(selection.decisions[0].candidates.empty());
  EXPECT_EQ(run(), 3.0);
}

TEST_F(Dispatch, AlwaysUsesAUsableKernel) {
  add("fake");
  const Selection selection = pick(UseFast::always);
  EXPECT_TRUE(selection);
  EXPECT_TRUE(module.fast_active());
  EXPECT_EQ(selection.decisions[0].choice, "fake");
  EXPECT_EQ(selection.decisions[0].reason.code, ReasonCode::forced_fast);
  EXPECT_EQ(selection.decisions[0].candidates[0].verdict, Candidate::Verdict::chosen);
  EXPECT_EQ(run(), 6.0);
  EXPECT_EQ(module.references, 0);
}

TEST_F(Dispatch, AlwaysWithoutAnyPluginGivesTheReferenceAndSaysSo) {
  const Selection selection = pick(UseFast::always);
  EXPECT_FALSE(selection);
  EXPECT_EQ(selection.decisions[0].reason.code, ReasonCode::no_kernel);
  EXPECT_EQ(run(), 3.0);
}

TEST_F(Dispatch, EveryBlockerOfEveryPluginIsKept) {
  Behaviour& a = add("a");
  a.support.blocked(ReasonCode::degree, "l_max 9, at most 8").blocked(ReasonCode::dtype, "float64, only float32");
  add("b").support.blocked(ReasonCode::pass, "no backward");
  const Selection selection = pick(UseFast::always);
  ASSERT_EQ(selection.decisions[0].candidates.size(), 2u);
  EXPECT_EQ(selection.decisions[0].candidates[0].reasons.size(), 2u);
  EXPECT_EQ(selection.decisions[0].candidates[1].reasons[0].code, ReasonCode::pass);
  EXPECT_EQ(selection.decisions[0].reason.code, ReasonCode::no_kernel);
  const Support support = module.fast_supported(Device::cpu(), DType::float64, kPassesForces, &context());
  EXPECT_FALSE(support);
  EXPECT_EQ(support.reasons().size(), 3u);
}

TEST_F(Dispatch, AutomaticWithoutAPolicyBehavesAsAlways) {
  add("fake");
  EXPECT_TRUE(pick(UseFast::automatic, nullptr));
  EXPECT_EQ(run(), 6.0);
}

TEST_F(Dispatch, AutomaticOnTheCpuIsUnmeasuredAndKeepsTheReference) {
  add("fake");
  const AutoPolicy policy;
  const Selection selection = pick(UseFast::automatic, &policy);
  EXPECT_FALSE(selection);
  EXPECT_EQ(selection.decisions[0].reason.code, ReasonCode::unmeasured);
  EXPECT_EQ(selection.decisions[0].candidates[0].verdict, Candidate::Verdict::not_chosen);
  EXPECT_EQ(run(), 3.0);
}

TEST_F(Dispatch, AutomaticOnADeviceFollowsTheThreshold) {
  Behaviour& fake = add("fake");
  fake.device.device = {DeviceKind::cuda, 0};
  fake.device.name = "NVIDIA H200";
  AutoPolicy policy;
  policy.min_edges = {{"h200", 50}};
  policy.min_edges_float64 = {{"H100", 1}, {"nvidia", 200}, {"H200", 1}};
  const Selection below = pick(UseFast::automatic, &policy, 199, DType::float64, {DeviceKind::cuda, 0});
  EXPECT_FALSE(below);
  EXPECT_EQ(below.decisions[0].reason.code, ReasonCode::policy_reference);
  const Selection at = pick(UseFast::automatic, &policy, 200, DType::float64, {DeviceKind::cuda, 0});
  EXPECT_TRUE(at);
  EXPECT_EQ(at.decisions[0].reason.code, ReasonCode::policy_fast);
  EXPECT_TRUE(pick(UseFast::automatic, &policy, 50, DType::float32, {DeviceKind::cuda, 0}));
  EXPECT_FALSE(pick(UseFast::automatic, &policy, 49, DType::float32, {DeviceKind::cuda, 0}));
}

TEST_F(Dispatch, SelectWritesEveryModuleAndDeactivateClears) {
  add("fake");
  Scale other;
  const std::vector<NamedFastModule> both = {{"scale", &module}, {"other", &other}};
  EXPECT_TRUE(select(both, UseFast::always, nullptr, Device::cpu(), DType::float64, 1, kPassesForces, &context()));
  EXPECT_TRUE(other.fast_active());
  EXPECT_FALSE(select(both, UseFast::never, nullptr, Device::cpu(), DType::float64, 1, kPassesForces, &context()));
  EXPECT_FALSE(module.fast_active());
  EXPECT_FALSE(other.fast_active());
  (void)select(both, UseFast::always, nullptr, Device::cpu(), DType::float64, 1, kPassesForces, &context());
  Module root;
  root.register_child("a", std::shared_ptr<Module>(&module, [](Module*) {}));
  deactivate(root);
  EXPECT_FALSE(module.fast_active());
  EXPECT_TRUE(other.fast_active());
}

TEST_F(Dispatch, PreferenceThenRankThenSearchOrderDecideBetweenKernels) {
  add("first");
  add("second").traits.rank = 5;
  add("third").traits.rank = 5;
  EXPECT_EQ(pick(UseFast::always).decisions[0].choice, "second");
  AutoPolicy policy;
  policy.preference = {"th*", "first"};
  EXPECT_EQ(pick(UseFast::always, &policy).decisions[0].choice, "third");
}

TEST_F(Dispatch, SizeWindowsAreRespected) {
  Behaviour& fake = add("fake");
  fake.traits.min_edges = 10;
  fake.traits.max_edges = 20;
  EXPECT_FALSE(pick(UseFast::always, nullptr, 9));
  const Selection above = pick(UseFast::always, nullptr, 21);
  EXPECT_FALSE(above);
  EXPECT_EQ(above.decisions[0].candidates[0].reasons[0].code, ReasonCode::size);
  EXPECT_TRUE(pick(UseFast::always, nullptr, 20));
}

TEST_F(Dispatch, AKernelThatCannotBeCreatedIsPassedOver) {
  add("broken").fail_create = true;
  add("good");
  const Selection selection = pick(UseFast::always);
  EXPECT_EQ(selection.decisions[0].choice, "good");
  EXPECT_EQ(selection.decisions[0].candidates[0].verdict, Candidate::Verdict::refused);
  EXPECT_EQ(selection.decisions[0].candidates[0].reasons[0].code, ReasonCode::create_failed);
}

TEST_F(Dispatch, OffTheCpuOnePluginOwnsTheMemoryOfAnEvaluation) {
  Behaviour& a = add("a");
  Behaviour& b = add("b");
  a.device.device = b.device.device = {DeviceKind::cuda, 0};
  Scale other;
  // `a` takes only the first module; `b` would take the second, but its memory is another.
  b.traits.rank = -1;
  const std::vector<NamedFastModule> first = {{"scale", &module}};
  EXPECT_TRUE(
      select(first, UseFast::always, nullptr, {DeviceKind::cuda, 0}, DType::float64, 1, kPassesForces, &context()));
  a.support.blocked(ReasonCode::op, "not this one");
  const Selection both = select({{"scale", &module}, {"other", &other}}, UseFast::always, nullptr,
                                {DeviceKind::cuda, 0}, DType::float64, 1, kPassesForces, &context());
  EXPECT_EQ(both.decisions[0].choice, "a");
  EXPECT_EQ(both.decisions[1].choice, "reference");
  EXPECT_EQ(both.decisions[1].candidates[1].verdict, Candidate::Verdict::refused);
  EXPECT_EQ(both.decisions[1].candidates[1].reasons[0].code, ReasonCode::device);
}

TEST_F(Dispatch, ARecoverableFailureFallsBackAndTheSecondOneTakesTheKernelOut) {
  Behaviour& fake = add("fake");
  fake.run_status = FP_E_OUT_OF_MEMORY;
  for (int time = 0; time < 2; ++time) {
    EXPECT_TRUE(pick(UseFast::always));
    EXPECT_EQ(run(), 3.0);
    ASSERT_TRUE(module.last_failure().has_value());
    EXPECT_EQ(module.last_failure()->code, ReasonCode::fallback);
    EXPECT_FALSE(module.fast_active());
  }
  const Selection third = pick(UseFast::always);
  EXPECT_FALSE(third);
  EXPECT_EQ(third.decisions[0].candidates[0].reasons[0].code, ReasonCode::run_failed);
  EXPECT_FALSE(module.fast_supported(Device::cpu(), DType::float64, kPassesForces, &context()));
}

TEST_F(Dispatch, OtherFailuresAreErrorsWithTheirCode) {
  Behaviour& fake = add("fake");
  const auto code_of = [&](std::int32_t status) {
    renew();  // a lost device stays lost, and a kernel that failed twice is out
    fake.run_status = status;
    (void)pick(UseFast::always);
    try {
      (void)run();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code_of(FP_E_DEVICE_LOST), ErrorCode::device_lost);
  EXPECT_EQ(code_of(FP_E_NUMERICS), ErrorCode::numerics);
  EXPECT_EQ(code_of(FP_E_INVALID_ARGUMENT), ErrorCode::kernel_failed);
}

TEST_F(Dispatch, ParametersAreBoundOncePerVersion) {
  Behaviour& fake = add("fake");
  (void)pick(UseFast::always);
  EXPECT_EQ(run(), 6.0);
  EXPECT_EQ(run(), 6.0);
  EXPECT_EQ(fake.binds, 1);
  module.parameter("scale").data<double>()[0] = 5.0;
  module.touch();
  (void)pick(UseFast::always);
  EXPECT_EQ(run(), 10.0);
}

TEST_F(Dispatch, PluginsAreAskedOncePerQuestion) {
  Behaviour& fake = add("fake");
  (void)pick(UseFast::always);
  (void)pick(UseFast::always);
  EXPECT_EQ(fake.queries, 1);
  EXPECT_EQ(fake.creates, 1);
  (void)pick(UseFast::always, nullptr, 100, DType::float32);
  EXPECT_EQ(fake.queries, 2);
}

TEST_F(Dispatch, ChildrenOfAFusedParentAreCoveredByIt) {
  add("fake");
  struct Parent : Scale {
    Parent() { register_child("child", std::make_shared<Scale>()); }
  };
  Module root;
  root.register_child("parent", std::make_shared<Parent>());
  const auto modules = fast_modules(root);
  ASSERT_EQ(modules.size(), 2u);
  EXPECT_EQ(modules[1].name, "parent.child");
  const Selection selection =
      select(modules, UseFast::always, nullptr, Device::cpu(), DType::float64, 1, kPassesForces, &context());
  EXPECT_EQ(selection.decisions[0].choice, "fake");
  EXPECT_EQ(selection.decisions[1].choice, "reference");
  EXPECT_EQ(selection.decisions[1].reason.code, ReasonCode::covered_by_parent);
  EXPECT_FALSE(modules[1].module->fast_active());
}

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

TEST_F(Dispatch, WorkThatFusedModulesShareIsCoveredWhenAllOfThemRunFast) {
  Behaviour& fused = add("fused");
  fused.only = "org.example.fused";
  TwoFused two;
  Selection selection =
      select(two.modules, UseFast::always, nullptr, Device::cpu(), DType::float64, 1, kPassesForces, &context());
  ASSERT_EQ(selection.decisions.size(), 5u);
  for (const std::size_t i : {0u, 2u, 4u}) {
    EXPECT_EQ(selection.decisions[i].reason.code, ReasonCode::covered_by_parent) << selection.decisions[i].module;
  }
  EXPECT_EQ(selection.decisions[0].reason.text, "its work is done by first, second");
}

TEST_F(Dispatch, AFusedModuleWithoutAKernelIsDecidedInParts) {
  Behaviour& parts = add("parts");
  parts.only = "org.example.scale";
  TwoFused two;
  const Selection selection =
      select(two.modules, UseFast::always, nullptr, Device::cpu(), DType::float64, 1, kPassesForces, &context());
  for (const std::size_t i : {1u, 3u}) {
    EXPECT_EQ(selection.decisions[i].choice, "reference");
    EXPECT_EQ(selection.decisions[i].reason.code, ReasonCode::in_parts);
  }
  for (const std::size_t i : {0u, 2u, 4u}) EXPECT_EQ(selection.decisions[i].choice, "parts");
}

TEST_F(Dispatch, AFusedKernelGivesWayToAPreferredPluginWithKernelsForTheParts) {
  Behaviour& fused = add("fused");
  fused.only = "org.example.fused";
  Behaviour& parts = add("parts");
  parts.only = "org.example.scale";
  TwoFused two;
  AutoPolicy policy;
  policy.preference = {"parts"};
  const Selection preferred =
      select(two.modules, UseFast::always, &policy, Device::cpu(), DType::float64, 1, kPassesForces, &context());
  EXPECT_EQ(preferred.decisions[0].choice, "parts");
  EXPECT_EQ(preferred.decisions[1].reason.code, ReasonCode::in_parts);
  EXPECT_EQ(preferred.decisions[1].candidates[0].reasons[0].code, ReasonCode::not_chosen);
  policy.preference = {"fused"};
  const Selection other =
      select(two.modules, UseFast::always, &policy, Device::cpu(), DType::float64, 1, kPassesForces, &context());
  EXPECT_EQ(other.decisions[1].choice, "fused");
}

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

TEST_F(Rules, AMeasuredWindowDecidesOnTheCpuAndTheSelectionHoldsForAllOfIt) {
  add("fake");
  store->add(crossing("fake", 500));
  const AutoPolicy policy;
  const Selection below = pick(UseFast::automatic, &policy, 100), above = pick(UseFast::automatic, &policy, 5000);
  EXPECT_EQ(below.decisions[0].choice, "reference");
  EXPECT_EQ(below.decisions[0].reason.code, ReasonCode::measured) << below.decisions[0].reason.text;
  EXPECT_EQ(below.decisions[0].reason.text, "the reference was measured to be faster than fake up to 499 edges");
  EXPECT_EQ(below.min_edges, 0);
  EXPECT_EQ(below.max_edges, 499);
  EXPECT_EQ(above.decisions[0].choice, "fake");
  EXPECT_EQ(above.decisions[0].reason.code, ReasonCode::measured);
  EXPECT_GE(above.min_edges, 500);
  EXPECT_LT(above.min_edges, 1000);
  EXPECT_GT(above.max_edges, 1'000'000);
  const int asked_before = asked;
  (void)pick(UseFast::automatic, &policy, 6000);
  EXPECT_EQ(asked, asked_before) << "the selection was kept";
}

TEST_F(Rules, AWindowThatEndsGoesBackToTheReference) {
  add("fake");
  Measurement m = crossing("fake", 500);
  for (MeasuredPoint& point : m.points) point.kernel_seconds = 0.5 * point.reference_seconds;
  m.points.back().kernel_seconds = 3 * m.points.back().reference_seconds;
  m.windows = {{50, 20'000, 0, 0}};
  store->add(m);
  EXPECT_EQ(decided(49).choice, "reference");
  EXPECT_EQ(decided(5000).choice, "fake");
  EXPECT_EQ(decided(20'001).choice, "reference");
  EXPECT_EQ(decided(20'001).reason.code, ReasonCode::measured);
}

TEST_F(Rules, BeyondWhatWasMeasuredAClosedEndSaysNothingAndAnOpenWindowGoesOn) {
  Behaviour& fake = add("fake");
  Measurement m = crossing("fake", 500);
  store->add(m);
  EXPECT_EQ(decided(10'000'000).choice, "fake");
  store->forget([](const Measurement&) { return true; });
  m.windows.clear();
  store->add(m);
  EXPECT_EQ(decided(200'000).reason.code, ReasonCode::measured);
  EXPECT_EQ(decided(200'001).reason.code, ReasonCode::unmeasured);
  EXPECT_EQ(decided(200'001).reason.text, "fake was measured up to 100000 edges only");
  fake.traits.prior_edges = 200;
  module.touch();
  EXPECT_EQ(decided(200'001).choice, "fake");
  EXPECT_EQ(decided(200'000).choice, "reference");
}

TEST_F(Rules, ANearTieGoesToTheReference) {
  add("fake");
  Measurement m = crossing("fake", 10);
  for (MeasuredPoint& point : m.points)
    point.kernel_seconds = (point.n_edges < 1000 ? 0.98 : 0.9) * point.reference_seconds;
  m.windows = {{10, 0, 0, 0}};
  store->add(m);
  EXPECT_EQ(decided(50).choice, "reference");
  EXPECT_EQ(decided(50).reason.code, ReasonCode::tie);
  EXPECT_EQ(decided(2000).choice, "fake");
}

TEST_F(Rules, WhatIsInconclusiveLeavesThePriorAndWithoutOneTheReference) {
  Behaviour& fake = add("fake");
  Measurement m = crossing("fake", 500);
  m.inconclusive = true;
  m.windows.clear();
  store->add(m);
  EXPECT_EQ(decided(5000).reason.code, ReasonCode::inconclusive);
  EXPECT_EQ(decided(5000).choice, "reference");
  fake.traits.prior_edges = 200;
  module.touch();
  EXPECT_EQ(decided(5000).reason.code, ReasonCode::prior);
  EXPECT_EQ(decided(5000).choice, "fake");
}

TEST_F(Rules, APriorOfThePluginSpeaksOnTheCpuUnlessPriorsAreOff) {
  add("fake").traits.prior_edges = 200;
  EXPECT_EQ(decided(199).choice, "reference");
  EXPECT_EQ(decided(199).reason.code, ReasonCode::prior);
  EXPECT_EQ(decided(200).choice, "fake");
  AutoPolicy policy;
  policy.use_priors = false;
  EXPECT_EQ(decided(200, UseFast::automatic, policy).reason.code, ReasonCode::unmeasured);
}

TEST_F(Rules, AMeasurementOfTheWholeModelCountsMoreThanThoseOfItsOps) {
  add("fake");
  store->add(crossing("fake", 500));
  store->add(of_model(crossing("fake", 2000), {{"scale", &module}}, cpu_info()));
  EXPECT_EQ(decided(1000).choice, "reference");
  EXPECT_NE(decided(1000).reason.text.find("use_fast true"), std::string::npos);
  EXPECT_EQ(decided(3000).choice, "fake");
  Measurement nothing = of_model(crossing("fake", 2000), {{"scale", &module}}, cpu_info());
  store->forget([&](const Measurement& m) { return m.key == nothing.key; });
  nothing.inconclusive = true;
  nothing.windows.clear();
  store->add(nothing);
  EXPECT_EQ(decided(1000).choice, "fake");
}

TEST_F(Rules, OffTheCpuThePolicysOwnEntryComesFirstThenMeasurementsOfTheModelThenPriorsThenDefaults) {
  Behaviour& fake = add("fake");
  fake.device.device = {DeviceKind::cuda, 0};
  fake.device.name = "NVIDIA H200";
  AutoPolicy policy;
  policy.default_min_edges_float64 = 100;
  const auto at = [&](std::int64_t edges) {
    return pick(UseFast::automatic, &policy, edges, DType::float64, {DeviceKind::cuda, 0}).decisions[0];
  };
  EXPECT_EQ(at(99).reason.code, ReasonCode::policy_default);
  EXPECT_EQ(at(99).choice, "reference");
  EXPECT_EQ(at(100).choice, "fake");
  policy.min_edges_float64 = {{"H200", 1000}};
  policy.thresholds_are_priors = true;
  EXPECT_EQ(at(999).choice, "reference");
  EXPECT_EQ(at(999).reason.code, ReasonCode::prior);
  EXPECT_EQ(at(1000).choice, "fake");
  Measurement op = crossing("fake", 500);
  op.key = measurement_key(module.op(), "fake", fake.device, DType::float64, kPassesForces, 1);
  store->add(op);
  EXPECT_EQ(at(999).reason.code, ReasonCode::prior) << "an op alone says nothing there";
  store->add(of_model(crossing("fake", 50), {{"scale", &module}}, fake.device));
  EXPECT_EQ(at(999).choice, "fake");
  EXPECT_EQ(at(999).reason.code, ReasonCode::measured);
  policy.thresholds_are_priors = false;
  EXPECT_EQ(at(999).choice, "reference");
  EXPECT_EQ(at(999).reason.code, ReasonCode::policy_reference);
}

TEST_F(Rules, BetweenKernelsTheFastestMeasuredOneRunsUnderTrueToo) {
  add("ranked").traits.rank = 5;
  add("steep");
  add("flat");
  const AutoPolicy policy;
  EXPECT_EQ(decided(100, UseFast::always).choice, "ranked");
  // Per call and per edge: 45 us + 10 ns, 8 us + 20 ns.
  store->add(crossing("flat", 500, 1e-8));
  store->add(crossing("steep", 100, 2e-8));
  for (const UseFast use_fast : {UseFast::always, UseFast::automatic}) {
    EXPECT_EQ(decided(2000, use_fast).choice, "steep");
    EXPECT_EQ(decided(20'000, use_fast).choice, "flat");
  }
  const Decision decision = decided(20'000, UseFast::always);
  EXPECT_EQ(decision.candidates[1].reasons[0].text, "flat comes first: it was measured to be the faster of the two");
  AutoPolicy preferring;
  preferring.preference = {"steep"};
  EXPECT_EQ(decided(20'000, UseFast::always, preferring).choice, "steep");
  deterministic = true;
  renew();
  EXPECT_EQ(decided(20'000, UseFast::always).choice, "ranked");
  EXPECT_EQ(decided(20'000).reason.code, ReasonCode::unmeasured);
}

TEST_F(Rules, ARecordOfAnotherBuildOrNumberOfThreadsDoesNotCountAndAStaleOneDoes) {
  add("fake");
  Measurement build = crossing("fake", 500), threads = crossing("fake", 500), stale = crossing("fake", 500);
  build.plugin_build = "another";
  threads.key.threads = 2;
  store->add(build);
  store->add(threads);
  EXPECT_EQ(decided(5000).reason.code, ReasonCode::unmeasured);
  stale.library_version = "0.0.1";
  store->add(stale);
  EXPECT_EQ(decided(5000).choice, "fake");
  EXPECT_NE(decided(5000).reason.text.find("stale: made with fastpath 0.0.1"), std::string::npos)
      << decided(5000).reason.text;
  const AutoPolicy policy;
  const auto with = [&](int n_threads) {
    return select({{"scale", &module}}, UseFast::automatic, &policy, Device::cpu(), DType::float64, 5000, kPassesForces,
                  &context(), n_threads)
        .decisions[0];
  };
  EXPECT_EQ(with(2).choice, "fake");
  EXPECT_EQ(with(3).reason.code, ReasonCode::unmeasured);
}

TEST_F(Rules, TheEnvironmentChoosesByOpUnderTrueAndAuto) {
  add("first");
  add("second");
  set("FASTPATH_OP_ORG_EXAMPLE_SCALE", "reference");
  EXPECT_EQ(decided(100, UseFast::always).choice, "reference");
  EXPECT_EQ(decided(100, UseFast::always).reason.code, ReasonCode::environment);
  set("FASTPATH_OP_ORG_EXAMPLE_SCALE", "second");
  for (const UseFast use_fast : {UseFast::always, UseFast::automatic}) {
    EXPECT_EQ(decided(100, use_fast).choice, "second");
    EXPECT_EQ(decided(100, use_fast).reason.code, ReasonCode::environment);
  }
  EXPECT_EQ(decided(100, UseFast::never).reason.code, ReasonCode::forced_reference);
  behaviours[1]->support.blocked(ReasonCode::degree, "no");
  renew();
  EXPECT_EQ(decided(100, UseFast::always).choice, "reference");
  EXPECT_NE(decided(100, UseFast::always).reason.text.find("is second"), std::string::npos);
}

TEST_F(Rules, AnOverrideThatNamesNothingThatIsThereIsAnErrorNamingWhatIs) {
  add("first");
  const auto error = [&] {
    try {
      (void)decided(100, UseFast::always);
    } catch (const Error& caught) {
      EXPECT_EQ(caught.code(), ErrorCode::invalid_argument);
      return std::string(caught.what());
    }
    return std::string("no error");
  };
  set("FASTPATH_OP_ORG_EXAMPLE_SCALE", "frist");
  EXPECT_NE(error().find("'frist'"), std::string::npos) << error();
  EXPECT_NE(error().find("first, reference"), std::string::npos) << error();
  set("FASTPATH_OP_ORG_EXAMPLE_SCALE", "");
  set("FASTPATH_OP_CONV", "reference");
  EXPECT_NE(error().find("FASTPATH_OP_CONV:"), std::string::npos) << error();
  EXPECT_NE(error().find("CONV_TENSOR_PRODUCT"), std::string::npos) << error();
}

TEST_F(Rules, AFusedKernelGivesWayWhereTheEnvironmentAsksForAnotherPathOfAPart) {
  add("fake");
  set("FASTPATH_OP_ORG_EXAMPLE_SCALE", "reference");
  TwoFused two;
  const auto pick_two = [&] {
    return select(two.modules, UseFast::always, nullptr, Device::cpu(), DType::float64, 1, kPassesForces, &context());
  };
  for (const Decision& decision : pick_two().decisions) {
    EXPECT_EQ(decision.choice, "reference") << decision.module;
    EXPECT_EQ(decision.reason.code, ReasonCode::environment) << decision.module;
  }
  set("FASTPATH_OP_ORG_EXAMPLE_FUSED", "fake");
  EXPECT_EQ(pick_two().decisions[1].choice, "fake");
}

/// Two fused modules that share a part: one plugin has the fused kernel, another one kernels of the parts.
class InParts : public Rules {
 protected:
  InParts() {
    add("fused").only = "org.example.fused";
    add("parts").only = "org.example.scale";
  }
  /// What a kernel and the reference cost: so much per call, and so much per edge.
  void measure(std::size_t i, const std::string& plugin, double per_call, double per_edge, double reference_per_edge) {
    Measurement m;
    m.key = measurement_key(two.modules[i].module->op(), plugin, cpu_info(), DType::float64, kPassesForces, 1);
    m.plugin_build = plugin_build(context(), DeviceKind::cpu, plugin);
    m.driver = cpu_info().driver;
    for (std::int64_t n = 16; n <= 1 << 16; n *= 2) {
      const double edges = static_cast<double>(n);
      m.points.push_back({n, n, true, reference_per_edge * edges, per_call + per_edge * edges, 0.01, 0.01, 7});
    }
    if (per_call + per_edge < reference_per_edge) m.windows = {{0, 0, 0, 0}};
    store->add(m);
  }
  void measure_fused(double per_call, double per_edge) { measure(1, "fused", per_call, per_edge, 1e-2); }
  /// 1 us an edge, the reference twice that.
  void measure_parts() { measure(0, "parts", 0, 1e-6, 2e-6); }
  void forget() {
    store->forget([](const Measurement&) { return true; });
  }
  Selection pick_two(std::int64_t edges = 1000, UseFast use_fast = UseFast::automatic) {
    return select(two.modules, use_fast, &policy, Device::cpu(), DType::float64, edges, kPassesForces, &context());
  }
  static bool in_one_piece(const Selection& selection) {
    return selection.decisions[1].choice == "fused" && selection.decisions[3].choice == "fused";
  }
  static bool in_parts(const Selection& selection) {
    return selection.decisions[1].reason.code == ReasonCode::in_parts &&
           selection.decisions[3].reason.code == ReasonCode::in_parts && selection.decisions[0].choice == "parts" &&
           selection.decisions[2].choice == "parts" && selection.decisions[4].choice == "parts";
  }

  TwoFused two;  // common, first, first.own, second, second.own
  AutoPolicy policy;
};

TEST_F(InParts, TheFasterOneRunsUnderTrueAndAuto) {
  for (const UseFast use_fast : {UseFast::always, UseFast::automatic}) {
    measure_parts();
    measure_fused(0, 3e-6);  // 6 us an edge for both, and 3 us the three parts
    const Selection slow = pick_two(1000, use_fast);
    EXPECT_TRUE(in_parts(slow));
    EXPECT_EQ(
        slow.decisions[1].reason.text,
        "its parts are decided one by one; in one piece: fused was measured to be slower than the parts one by one");
    EXPECT_EQ(slow.decisions[1].candidates[0].verdict, Candidate::Verdict::not_chosen);
    EXPECT_EQ(slow.decisions[1].candidates[0].reasons[0].code, ReasonCode::measured);
    forget();
    measure_parts();
    measure_fused(0, 0.5e-6);
    const Selection fast = pick_two(1000, use_fast);
    EXPECT_TRUE(in_one_piece(fast));
    EXPECT_NE(fast.decisions[1].reason.text.find("; its parts one by one were not measured to be faster"),
              std::string::npos)
        << fast.decisions[1].reason.text;
    forget();
  }
}

TEST_F(InParts, WhatTheyShareCountsOnceForAllOfThem) {
  measure_parts();
  measure_fused(0, 1.4e-6);  // in parts each saves 0.4 us, and the common part costs 1 us
  EXPECT_TRUE(in_one_piece(pick_two()));
  forget();
  measure_parts();
  measure_fused(0, 1.53e-6);  // 3.06 us in one piece, 3 us in parts: too near
  EXPECT_TRUE(in_one_piece(pick_two()));
  forget();
  measure_parts();
  measure_fused(0, 1.6e-6);
  EXPECT_TRUE(in_parts(pick_two()));
}

TEST(ComparisonWithParts, WorkThatIsDoneAnywayCostsNothing) {
  const auto cost = [](double per_edge) {
    auto m = std::make_shared<Measurement>();
    for (std::int64_t n = 10; n <= 1000; n *= 10) {
      const double seconds = per_edge * static_cast<double>(n);
      m->points.push_back({n, n, true, 2 * seconds, seconds, 0.01, 0.01, 7});
    }
    return rules::Cost{m, Arm::kernel};
  };
  const std::vector<rules::FusedCost> fused = {{3, cost(1.4e-6), {cost(1e-6)}, {0}}};
  const auto answer = [&](const rules::SharedPart& shared, std::int64_t n_edges) {
    rules::Sizes sizes;
    return rules::compare(fused, {shared}, n_edges, sizes).at(0);
  };
  EXPECT_EQ(answer({cost(1e-6), false}, 100), rules::Faster::in_one_piece);
  EXPECT_EQ(answer({cost(1e-6), true}, 100), rules::Faster::in_parts);
  EXPECT_EQ(answer({std::nullopt, true}, 100), rules::Faster::in_parts);
  EXPECT_EQ(answer({std::nullopt, false}, 100), rules::Faster::unknown);
  EXPECT_EQ(answer({cost(1e-6), true}, 0), rules::Faster::unknown);
  EXPECT_EQ(answer({cost(1e-6), true}, std::numeric_limits<std::int64_t>::max()), rules::Faster::unknown);
  rules::Sizes sizes;
  EXPECT_TRUE(rules::compare({}, {}, 100, sizes).empty());
  EXPECT_EQ(sizes.min, 0);
  EXPECT_EQ(sizes.max, std::numeric_limits<std::int64_t>::max());
}

TEST_F(InParts, ASelectionHoldsForTheSizesWithTheSameAnswer) {
  measure_parts();
  measure_fused(1e-3, 1e-6);  // in parts below about 2000 edges: 2 ms + 2 us n against 3 us n
  const Selection small = pick_two(700), large = pick_two(20'000);
  EXPECT_TRUE(in_parts(small));
  EXPECT_TRUE(in_one_piece(large));
  EXPECT_EQ(small.max_edges + 1, large.min_edges);
  EXPECT_GT(small.max_edges, 1700);
  EXPECT_LT(small.max_edges, 2000);
  for (const std::int64_t edges : {small.min_edges, small.max_edges}) EXPECT_TRUE(in_parts(pick_two(edges)));
  for (const std::int64_t edges : {large.min_edges, std::int64_t{100'000}}) EXPECT_TRUE(in_one_piece(pick_two(edges)));
}

TEST_F(InParts, WhatWasNotMeasuredLeavesItInOnePiece) {
  measure_fused(0, 3e-6);
  EXPECT_TRUE(in_one_piece(pick_two()));
  forget();
  measure_parts();
  EXPECT_TRUE(in_one_piece(pick_two(1000, UseFast::always)));
  measure_fused(0, 3e-6);
  EXPECT_TRUE(in_parts(pick_two(100'000)));
  EXPECT_TRUE(in_one_piece(pick_two(1'000'000))) << "too far from what was measured";
  deterministic = true;
  renew();
  EXPECT_TRUE(in_one_piece(pick_two(1000, UseFast::always)));
}

TEST_F(InParts, PartsWhoseReferenceIsFasterCountAsThat) {
  measure(0, "parts", 0, 1e-6, 0.5e-6);
  measure_fused(0, 1e-6);  // 2 us an edge for both, and 1.5 us the references of the three parts
  const Selection selection = pick_two();
  for (const Decision& decision : selection.decisions) EXPECT_EQ(decision.choice, "reference") << decision.module;
  EXPECT_EQ(selection.decisions[1].reason.code, ReasonCode::measured);
  EXPECT_EQ(selection.decisions[1].reason.text, "fused was measured to be slower than the parts one by one");
}

TEST_F(InParts, WhatThePolicyPrefersComesBeforeWhatIsFaster) {
  measure_parts();
  measure_fused(0, 3e-6);
  policy.preference = {"fused"};
  EXPECT_TRUE(in_one_piece(pick_two()));
  policy.preference = {"*"};
  EXPECT_TRUE(in_parts(pick_two()));
  forget();
  measure_parts();
  measure_fused(0, 0.5e-6);
  EXPECT_TRUE(in_one_piece(pick_two()));
  policy.preference = {"parts"};
  EXPECT_TRUE(in_parts(pick_two()));
}

TEST_F(InParts, ALockAndTheEnvironmentSayWhatRuns) {
  measure_parts();
  auto lock = std::make_shared<SelectionLock>();
  lock->add(pick_two(1000, UseFast::always));
  measure_fused(0, 3e-6);
  set("FASTPATH_OP_ORG_EXAMPLE_FUSED", "fused");
  EXPECT_TRUE(in_one_piece(pick_two()));
  ::unsetenv("FASTPATH_OP_ORG_EXAMPLE_FUSED");
  renew();
  EXPECT_TRUE(in_parts(pick_two()));
  replay = lock;
  renew();
  EXPECT_TRUE(in_one_piece(pick_two()));
}

TEST_F(Rules, ALockIsHonouredOrFailsNamingWhatDiffers) {
  add("fake");
  add("other");
  const AutoPolicy policy;
  auto lock = std::make_shared<SelectionLock>();
  AutoPolicy preferring;
  preferring.preference = {"other"};
  lock->add(pick(UseFast::always, &preferring, 100));
  replay = lock;
  renew();
  for (const UseFast use_fast : {UseFast::always, UseFast::automatic}) {
    EXPECT_EQ(decided(7, use_fast).choice, "other");
    EXPECT_EQ(decided(7, use_fast).reason.code, ReasonCode::lock);
  }
  const auto error = [&](DType dtype) {
    try {
      (void)pick(UseFast::always, &policy, 100, dtype);
    } catch (const Error& caught) {
      EXPECT_EQ(caught.code(), ErrorCode::unavailable);
      return std::string(caught.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(error(DType::float32).find("scale ran in float64 in the lock, here float32"), std::string::npos)
      << error(DType::float32);
  behaviours[1]->support.blocked(ReasonCode::degree, "too high for it");
  renew();
  EXPECT_NE(error(DType::float64).find("too high for it"), std::string::npos) << error(DType::float64);
  behaviours.pop_back();
  renew();
  EXPECT_NE(error(DType::float64).find("no such plugin is usable here"), std::string::npos) << error(DType::float64);
  auto reference = std::make_shared<SelectionLock>();
  reference->add(pick(UseFast::never));
  replay = reference;
  renew();
  EXPECT_EQ(decided(5000, UseFast::always).choice, "reference");
  EXPECT_EQ(decided(5000, UseFast::always).reason.code, ReasonCode::lock);
}

TEST_F(Dispatch, AFusedModuleSeesChangesOfItsParts) {
  TwoFused two;
  FastPathModule& fused = *two.modules[1].module;
  fused.state().parts = {two.modules[2].module};
  const std::uint64_t before = fused.state().version();
  two.modules[2].module->touch();
  EXPECT_GT(fused.state().version(), before);
}

TEST_F(Dispatch, SharedModulesAreListedOnceAndCapableOnesLazily) {
  Behaviour& fake = add("fake");
  Module root;
  const auto shared = std::make_shared<Scale>();
  root.register_child("a", shared);
  root.register_child("b", shared);
  root.register_child("c", std::make_shared<Scale>());
  EXPECT_EQ(fast_modules(root).size(), 2u);
  const FastCapableRange capable = iter_fast_capable(root, Device::cpu(), DType::float64, kPassesForces, &context());
  auto it = capable.begin();
  EXPECT_EQ(it->name, "a");
  EXPECT_EQ(fake.queries, 1);
  ++it;
  EXPECT_EQ(it->name, "c");
  EXPECT_EQ(fake.queries, 2);
  ++it;
  EXPECT_TRUE(it == capable.end());
}

TEST_F(Dispatch, TensorsOnTwoDevicesAreAnErrorNamingBoth) {
  const Tensor x = Tensor::from<double>({1}, {1.0});
  const Tensor y = Tensor::wrap(nullptr, {1}, {}, DType::float64, {DeviceKind::cuda, 1}, nullptr);
  const Tensor inputs[] = {x}, outputs[] = {y};
  OpCall call;
  call.inputs = inputs;
  call.outputs = outputs;
  try {
    module.run(call);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_NE(std::string(error.what()).find("cuda:1"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("cpu"), std::string::npos);
  }
}

TEST_F(Dispatch, Float32WithAKernelWarnsOncePerProcess) {
  add("fake");
  reset_float32_warning();
  int warnings = 0;
  set_warning_handler([&](const FastPathPrecisionWarning&) { ++warnings; });
  (void)pick(UseFast::never, nullptr, 1, DType::float32);
  (void)pick(UseFast::always, nullptr, 1, DType::float64);
  EXPECT_EQ(warnings, 0);
  (void)pick(UseFast::always, nullptr, 1, DType::float32);
  (void)pick(UseFast::always, nullptr, 1, DType::float32);
  EXPECT_EQ(warnings, 1);
}

TEST(Warning, OnlyOneOfManyThreadsWarnsAndAThrowingHandlerIsNotCalledAgain) {
  reset_float32_warning();
  std::atomic<int> warnings{0};
  set_warning_handler([&](const FastPathPrecisionWarning&) {
    ++warnings;
    throw std::runtime_error("raised");
  });
  std::atomic<int> raised{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      try {
        (void)warn_float32_once();
      } catch (const std::runtime_error&) {
        ++raised;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(raised, 1);
  EXPECT_FALSE(warn_float32_once());
  set_warning_handler({});
  reset_float32_warning();
}

TEST(Warning, NoneIsLostWhenHandlersAreReplacedWhileThreadsWarn) {
  constexpr int kRounds = 100;
  std::atomic<int> told{0};
  const auto set = [&] {
    set_warning_handler([&](const FastPathPrecisionWarning&) {});
    set_kernel_warning_handler([&](const FastPathKernelWarning& warning) { told += warning.text == "text"; });
  };
  set();
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i) {
      threads.emplace_back([] {
        for (int round = 0; round < kRounds; ++round) {
          warn_about_kernel({ReasonCode::fallback, "text"});
          reset_float32_warning();
          (void)warn_float32_once();
        }
      });
    }
    for (int round = 0; round < kRounds; ++round) set();
  }
  EXPECT_EQ(told, 3 * kRounds);
  set_warning_handler({});
  set_kernel_warning_handler({});
  reset_float32_warning();
}

TEST(UseFast, TextInAnyCaseAndExactlyBoolAreUnderstood) {
  EXPECT_EQ(resolve_use_fast("true"), UseFast::always);
  EXPECT_EQ(resolve_use_fast("ON"), UseFast::always);
  EXPECT_EQ(resolve_use_fast("False"), UseFast::never);
  EXPECT_EQ(resolve_use_fast(std::string("off")), UseFast::never);
  EXPECT_EQ(resolve_use_fast("Auto"), UseFast::automatic);
  EXPECT_EQ(resolve_use_fast(true), UseFast::always);
  EXPECT_EQ(resolve_use_fast(false), UseFast::never);
  EXPECT_EQ(resolve_use_fast(UseFast::automatic), UseFast::automatic);
}

TEST(UseFast, OtherTextIsRefusedNamingItAndWhatIsAccepted) {
  for (const char* text : {"", "yes", "1", "automatic", " true"}) {
    try {
      (void)resolve_use_fast(text);
      FAIL() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("'" + std::string(text) + "'"), std::string::npos);
      EXPECT_NE(std::string(error.what()).find("true, false, on, off, auto"), std::string::npos);
    }
  }
}

template <class T>
concept Resolvable = requires(T value) {
  resolve_use_fast(value);
};
static_assert(Resolvable<bool> && Resolvable<const char*> && Resolvable<UseFast>);
static_assert(!Resolvable<int> && !Resolvable<char> && !Resolvable<long> && !Resolvable<std::nullptr_t>);

TEST(AutoPolicy, FirstMatchingSubstringWinsInAnyCaseAndDefaultsFollow) {
  AutoPolicy policy;
  policy.min_edges = {{"a100", 10}, {"nvidia", 20}};
  policy.default_min_edges = 7;
  policy.default_min_edges_float64 = 9;
  DeviceInfo device;
  device.device = {DeviceKind::cuda, 0};
  device.name = "NVIDIA A100-SXM4";
  EXPECT_EQ(policy.threshold(device, DType::float32), 10);
  EXPECT_EQ(policy.threshold(device, DType::float64), 9);
  EXPECT_EQ(policy.threshold(device, DType::int32), 10);
  device.name = "NVIDIA L4";
  EXPECT_EQ(policy.threshold(device, DType::float32), 20);
  device.name = "Arc A770";
  EXPECT_EQ(policy.threshold(device, DType::float32), 7);
  EXPECT_TRUE(policy.decide(device, DType::float32, 7));
  EXPECT_FALSE(policy.decide(device, DType::float32, 6));
  device.device = Device::cpu();
  EXPECT_FALSE(policy.decide(device, DType::float32, 1'000'000));
  EXPECT_TRUE(AutoPolicy{}.min_edges.empty());
  EXPECT_EQ(AutoPolicy{}.default_min_edges, 0);
}

TEST(AutoPolicy, TheBuiltinOneHoldsThePublishedThresholds) {
  ASSERT_NE(AutoPolicy::builtin(), nullptr);
  DeviceInfo device;
  device.device = {DeviceKind::cuda, 0};
  const auto both = [&](const char* name) {
    device.name = name;
    return std::pair{AutoPolicy::builtin()->threshold(device, DType::float32),
                     AutoPolicy::builtin()->threshold(device, DType::float64)};
  };
  EXPECT_EQ(both("NVIDIA A100-SXM4-80GB"), std::pair(std::int64_t{50'000}, std::int64_t{25'000}));
  EXPECT_EQ(both("NVIDIA H100 PCIe"), std::pair(std::int64_t{60'000}, std::int64_t{30'000}));
  EXPECT_EQ(both("NVIDIA H200"), std::pair(std::int64_t{60'000}, std::int64_t{30'000}));
  EXPECT_EQ(both("NVIDIA L40S"), std::pair(std::int64_t{30'000}, std::int64_t{0}));
  EXPECT_EQ(both("Radeon"), std::pair(std::int64_t{50'000}, std::int64_t{25'000}));
}

}  // namespace
}  // namespace fastpath
