// A kernel runs only after it has agreed with the reference, and results are those of the reference when it fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <latch>
#include <mutex>
#include <thread>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/model.hpp"
#include "fastpath/plugin.h"
#include "fastpath/warning.hpp"
#include "ops/make_op_module.hpp"
#include "plugin/host.hpp"
#include "support/lying_plugin.hpp"

namespace fastpath {
namespace {

using test::Liar;
using test::Lie;
using testing::HasSubstr;

const std::string kData = FASTPATH_TEST_DATA "/refdata/mace_a/";

std::shared_ptr<plugin::LoadedPlugin> cpu_ref() {
  static const auto plugin = test::real_plugin(FASTPATH_PLUGIN_DIRECTORY, "cpu_ref");
  return plugin;
}
std::shared_ptr<plugin::LoadedPlugin> fake_device() {
  static const auto plugin = test::real_plugin(FASTPATH_TEST_PLUGINS, "fake_device", DeviceKind::extension);
  return plugin;
}

/// A plugin with all four passes.
std::shared_ptr<plugin::LoadedPlugin> tangents() {
  static const auto plugin = test::real_plugin(FASTPATH_TANGENTS, "tangents");
  return plugin;
}

class Gate : public testing::Test {
 protected:
  Gate() {
    set_warning_handler([](const FastPathPrecisionWarning&) {});
    set_kernel_warning_handler([this](const FastPathKernelWarning& warning) {
      const std::lock_guard lock(warnings_mutex_);
      warnings.push_back(warning);
    });
  }
  ~Gate() override {
    set_warning_handler({});
    set_kernel_warning_handler({});
  }
  /// A context with a plugin that lies, then maybe an honest one.
  std::unique_ptr<Context> context(Liar& liar, bool honest_too = false, ContextOptions options = {},
                                   std::shared_ptr<plugin::LoadedPlugin> inner = cpu_ref()) {
    std::vector<std::shared_ptr<plugin::LoadedPlugin>> plugins;
    plugins.reserve(2);
    plugins.push_back(std::make_shared<test::LyingPlugin>(inner, liar));
    if (honest_too) plugins.push_back(inner);
    options.shared_registry =
        std::make_shared<PluginRegistry>(std::make_unique<test::GivenPlugins>(std::move(plugins)));
    return std::make_unique<Context>(std::move(options));
  }
  static std::unique_ptr<FastPathModule> linear(bool bias = true) {
    const sdk::IrrepsLinearConfig config{sdk::Irreps::parse("4x0e+3x1o"), sdk::Irreps::parse("2x0e+5x1o"), bias, 0.3};
    return ops::make_op_module({"irreps_linear", 1, config.attributes().values()});
  }
  static Selection pick(FastPathModule& module, Context& context, DType dtype = DType::float64,
                        Passes passes = kPassesForces, UseFast use_fast = UseFast::always) {
    return select({{"linear", &module}}, use_fast, nullptr, Device::cpu(), dtype, 100, passes, &context);
  }

  std::vector<FastPathKernelWarning> warnings;

 private:
  std::mutex warnings_mutex_;
};

TEST_F(Gate, AKernelThatAgreesIsChosen) {
  Liar honest{.id = "honest"};
  const auto c = context(honest);
  const auto module = linear();
  EXPECT_EQ(pick(*module, *c).decisions[0].choice, "honest");
  EXPECT_GT(honest.runs, 0);
}

TEST_F(Gate, EveryLieIsRefusedWithAReasonAndTheNextCandidateRuns) {
  for (const Lie lie : {Lie::wrong_in_forward, Lie::wrong_in_backward, Lie::wrong_parameter_gradient, Lie::not_a_number,
                        Lie::slightly_wrong, Lie::last_not_written, Lie::modifies_an_input, Lie::modifies_a_parameter,
                        Lie::writes_behind, Lie::fails, Lie::zeros_when_busy}) {
    Liar liar{.lie = lie, .status = FP_E_BUSY, .tolerance = 0.5, .id = "liar"};
    const auto c = context(liar, true);
    const auto module = linear();
    const Selection selection = pick(*module, *c);
    ASSERT_EQ(selection.decisions[0].choice, "cpu_ref") << static_cast<int>(lie);
    const Candidate& candidate = selection.decisions[0].candidates[0];
    EXPECT_EQ(candidate.plugin, "liar");
    EXPECT_EQ(candidate.verdict, Candidate::Verdict::refused);
    ASSERT_EQ(candidate.reasons.size(), 1u);
    EXPECT_EQ(candidate.reasons[0].code, ReasonCode::not_verified) << candidate.reasons[0].text;
    EXPECT_FALSE(candidate.reasons[0].text.empty());
  }
}

TEST_F(Gate, TheReasonNamesTensorPassErrorAndTolerance) {
  Liar liar{.lie = Lie::wrong_in_backward, .id = "liar"};
  const auto c = context(liar);
  const auto module = linear();
  const Selection selection = pick(*module, *c);
  EXPECT_EQ(selection.decisions[0].reason.code, ReasonCode::not_verified);
  EXPECT_THAT(selection.decisions[0].candidates[0].reasons[0].text,
              testing::AllOf(HasSubstr("backward"), HasSubstr("gradient of input 'x'"), HasSubstr("differs"),
                             HasSubstr("at most 1e-14 in float64")));
}

TEST_F(Gate, AutomaticIsGatedToo) {
  Liar liar{.lie = Lie::wrong_in_forward};
  const auto c = context(liar);
  const auto module = linear();
  EXPECT_FALSE(pick(*module, *c, DType::float64, kPassesForces, UseFast::automatic));
}

TEST_F(Gate, OnlyThePassesAndTheDtypeThatAreAskedForCount) {
  Liar backward{.lie = Lie::wrong_in_backward};
  const auto module = linear();
  const auto a = context(backward);
  EXPECT_TRUE(pick(*module, *a, DType::float64, kPassesEnergy));
  EXPECT_FALSE(pick(*module, *a, DType::float64, kPassesForces));
  Liar single{.lie = Lie::wrong_in_float32};
  const auto b = context(single);
  EXPECT_TRUE(pick(*module, *b, DType::float64));
  EXPECT_FALSE(pick(*module, *b, DType::float32));
}

TEST_F(Gate, ALieInATangentPassCountsWhereThatPassIsNeeded) {
  struct Case {
    Lie lie;
    const char* pass;
    const char* tensor;
  };
  for (const auto& [lie, pass, tensor] :
       {Case{Lie::wrong_in_forward_tangent, "forward_tangent", "tangent of output 'y'"},
        Case{Lie::wrong_in_backward_tangent, "backward_tangent", "tangent of gradient of input 'x'"},
        Case{Lie::wrong_parameter_tangent, "backward_tangent", "tangent of gradient of parameter 'weight'"},
        Case{Lie::value_wrong_beside_tangent, "forward_tangent", "output 'y'"}}) {
    SCOPED_TRACE(pass + std::string(", ") + tensor);
    Liar liar{.lie = lie, .id = "liar"};
    const auto c = context(liar, false, {}, tangents());
    for (const DType dtype : {DType::float64, DType::float32}) {
      const auto module = linear(false);
      EXPECT_TRUE(pick(*module, *c, dtype, kPassesEnergy));
      EXPECT_TRUE(pick(*module, *c, dtype, kPassesForces));
      const Selection training = pick(*module, *c, dtype, kPassesTraining);
      ASSERT_FALSE(training);
      const std::vector<Reason>& reasons = training.decisions[0].candidates[0].reasons;
      ASSERT_EQ(reasons.size(), 1u);
      EXPECT_EQ(reasons[0].code, ReasonCode::not_verified);
      EXPECT_THAT(reasons[0].text, testing::AllOf(HasSubstr(pass), HasSubstr(tensor), HasSubstr("differs")));
      EXPECT_TRUE(pick(*module, *c, dtype, kPassesForces));  // which is still so
    }
  }
  Liar honest{.id = "honest"};
  const auto c = context(honest, false, {}, tangents());
  const auto module = linear(false);
  EXPECT_TRUE(pick(*module, *c, DType::float64, kPassesTraining));
}

/// Changes a buffer of a module in place, as a host may.
template <class Change>
void change(FastPathModule& module, const std::string& buffer, Change change) {
  change(module.buffer(buffer).template data<double>());
  module.touch();
}

// Once it was looked at, the kernel lies: whoever finds it out has looked again.
TEST_F(Gate, AnotherConfigurationOrOtherConstantsAreTriedAnew) {
  sdk::RadialBasisConfig basis;
  basis.n_basis = 4;
  basis.r_max = 4.0;
  basis.prefactor = 0.7;
  basis.transform = sdk::DistanceTransform::agnesi;
  basis.species_radii = {0.3, 0.7};
  sdk::SymmetricContractionConfig contraction;
  contraction.channels = 2;
  contraction.dim = 4;
  contraction.correlation = 2;
  contraction.n_species = 2;
  contraction.targets = {0, 1};
  contraction.n_paths = {{1, 2}, {1, 2}};
  const auto negate_two = [](double* values) {
    int negated = 0;
    for (std::int64_t i = 0; negated < 2; ++i) negated += values[i] != 0 ? (values[i] = -values[i], 1) : 0;
  };
  const std::string u = "contractions.0.U_matrix_2";
  struct Case {
    const char* what;
    OpSpec spec;
    std::function<void(FastPathModule&)> change;
  };
  const OpSpec radial{"radial_basis", 1, basis.attributes().values()};
  const OpSpec symmetric{"symmetric_contraction", 1, contraction.attributes().values()};
  for (const auto& [what, spec, change_it] :
       {Case{"prefactor", radial, [](auto& m) { change(m, "bessel_fn.prefactor", [](double* v) { *v = 0.9; }); }},
        Case{"cutoff", radial, [](auto& m) { change(m, "cutoff_fn.r_max", [](double* v) { *v = 3.5; }); }},
        Case{"frequencies", radial,
             [](auto& m) { change(m, "bessel_fn.bessel_weights", [](double* v) { v[2] = 5; }); }},
        Case{"transform", radial, [](auto& m) { change(m, "distance_transform.a", [](double* v) { *v = 1.1; }); }},
        Case{"radii", radial,
             [](auto& m) { change(m, "distance_transform.covalent_radii", [](double* v) { v[2] = 0.8; }); }},
        Case{"basis", symmetric, [&](auto& m) { change(m, u, [](double* v) { v[0] += 0.5; }); }},
        Case{"signs of a basis", symmetric, [&](auto& m) { change(m, u, negate_two); }}}) {
    SCOPED_TRACE(what);
    Liar liar{.lie = Lie::wrong_in_forward, .from_run = 1 << 30, .id = "liar"};
    const auto c = context(liar);
    const auto module = ops::make_op_module(spec), unchanged = ops::make_op_module(spec);
    ASSERT_TRUE(pick(*module, *c));
    liar.from_run = 0;
    EXPECT_TRUE(pick(*module, *c));
    change_it(*module);
    const Selection after = pick(*module, *c);
    ASSERT_FALSE(after);
    EXPECT_EQ(after.decisions[0].candidates[0].reasons[0].code, ReasonCode::not_verified);
    EXPECT_TRUE(pick(*unchanged, *c));
  }
}

TEST_F(Gate, AKernelIsTriedOncePerContextWhoeverAsks) {
  Liar honest;
  const auto c = context(honest);
  const auto first = linear(), second = linear();
  pick(*first, *c);
  const int runs = honest.runs;
  EXPECT_TRUE(pick(*second, *c));
  EXPECT_TRUE(pick(*first, *c));
  EXPECT_EQ(honest.runs, runs);
}

TEST_F(Gate, AnotherBuildIsTriedAnew) {
  verify::GateStore store;
  int made = 0;
  const auto make = [&] { return verify::GateResult{++made == 1, true, "text"}; };
  EXPECT_TRUE(store.result("a", false, make).passed);
  EXPECT_TRUE(store.result("a", false, make).passed);
  EXPECT_FALSE(store.result("b", false, make).passed);
  EXPECT_EQ(made, 2);
  Liar old_build{.build = "1"}, new_build{.build = "2"};
  EXPECT_NE(test::LyingPlugin(cpu_ref(), old_build).build(), test::LyingPlugin(cpu_ref(), new_build).build());
  EXPECT_THAT(cpu_ref()->build(), HasSubstr("cpu_ref/"));
}

TEST_F(Gate, AResultThatDoesNotLastIsForgotten) {
  verify::GateStore store;
  int made = 0;
  const auto make = [&] { return verify::GateResult{++made == 2, made == 2, ""}; };
  EXPECT_FALSE(store.result("a", false, make).passed);
  EXPECT_TRUE(store.result("a", false, make).passed);
  EXPECT_EQ(made, 2);
  EXPECT_THROW(store.result("b", false, []() -> verify::GateResult { throw Error(ErrorCode::device_lost, "gone"); }),
               Error);
  EXPECT_TRUE(store.result("b", false, [] { return verify::GateResult{true, true, ""}; }).passed);
}

class KeptGates : public testing::Test {
 protected:
  KeptGates() : directory_(std::filesystem::path(testing::TempDir()) / ("gates" + std::to_string(getpid()))) {
    std::filesystem::remove_all(directory_);
  }
  ~KeptGates() override { std::filesystem::remove_all(directory_); }
  /// How often a kernel is tried by another process that asks once.
  int tries(const std::string& key, bool passes = true, bool keep = true) {
    int count = 0;
    verify::GateStore(directory_).result(key, keep, [&] {
      ++count;
      return verify::GateResult{passes, true, ""};
    });
    return count;
  }
  std::filesystem::path file() { return verify::GateArchive(directory_).file(); }
  std::filesystem::path directory_;
};

TEST_F(KeptGates, WhatPassedIsNotTriedInTheNextProcess) {
  EXPECT_EQ(tries("a"), 1);
  EXPECT_EQ(tries("a"), 0);
  EXPECT_EQ(tries("b"), 1);
  EXPECT_EQ(tries("b"), 0);
  EXPECT_EQ(tries("a"), 0);
}

TEST_F(KeptGates, WhatFailedOrIsNotNamedByItsContentIsTriedAgain) {
  EXPECT_EQ(tries("a", false), 1);
  EXPECT_EQ(tries("a", false), 1);
  EXPECT_EQ(tries("b", true, false), 1);
  EXPECT_EQ(tries("b", true, false), 1);
}

TEST_F(KeptGates, AFileThatIsTornForeignOrTooLongIsNotBelieved) {
  EXPECT_EQ(tries("a"), 1);
  std::filesystem::permissions(file(), std::filesystem::perms::others_write, std::filesystem::perm_options::add);
  EXPECT_EQ(tries("a"), 1);
  std::filesystem::permissions(file(), std::filesystem::perms::others_write, std::filesystem::perm_options::remove);
  EXPECT_EQ(tries("a"), 0);
  std::filesystem::resize_file(file(), 40);
  EXPECT_EQ(tries("a"), 1);
  std::filesystem::resize_file(file(), 2 << 20);
  EXPECT_EQ(tries("a"), 1);
  EXPECT_EQ(tries("a"), 0);
  std::filesystem::remove(file());
  std::filesystem::create_directory(file());
  EXPECT_EQ(tries("a"), 1);
  EXPECT_EQ(tries("a"), 1);
}

TEST_F(KeptGates, StoresInSeveralThreadsLoseNothingThatPassed) {
  constexpr int kKeys = 20;
  verify::GateStore one(directory_), other(directory_);
  std::atomic<int> made{0};
  {
    std::latch start(4);
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t, &store = t % 2 == 0 ? one : other] {
        start.arrive_and_wait();
        for (int i = 0; i < kKeys; ++i) {
          const std::string key = std::to_string((i + t * kKeys / 4) % kKeys);
          store.result(key, true, [&] { return verify::GateResult{++made > 0, true, ""}; });
        }
      });
    }
  }
  EXPECT_GE(made, kKeys);
  EXPECT_LE(made, 2 * kKeys);
  for (int k = 0; k < kKeys; ++k) EXPECT_EQ(tries(std::to_string(k)), 0) << k;
}

TEST_F(KeptGates, AContextKeepsThemInItsCacheDirectory) {
  const auto evaluate = [&] {
    Context c(
        {.registry = {
             .search_paths = {FASTPATH_PLUGIN_DIRECTORY}, .default_paths = false, .cache_directory = directory_}});
    const sdk::SphericalHarmonicsConfig config{2, true, sdk::Normalization::component};
    const auto module = ops::make_op_module({"spherical_harmonics", 1, config.attributes().values()});
    return select({{"sh", module.get()}}, UseFast::always, nullptr, Device::cpu(), DType::float64, 10, kPassesForces,
                  &c)
        .any_fast();
  };
  EXPECT_TRUE(evaluate());
  ASSERT_TRUE(std::filesystem::exists(file()));
  const auto size = std::filesystem::file_size(file());
  EXPECT_EQ(size, 65u);
  EXPECT_TRUE(evaluate());
  EXPECT_EQ(std::filesystem::file_size(file()), size);
}

TEST_F(Gate, ManyThreadsThatAskAtOnceTryOnce) {
  verify::GateStore store;
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) {
        const std::string key = std::to_string(k);
        EXPECT_TRUE(store.result(key, false, [&] { return verify::GateResult{++made > 0, true, ""}; }).passed);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 50);
}

TEST_F(Gate, CanBeSwitchedOff) {
  Liar liar{.lie = Lie::wrong_in_forward};
  const auto c = context(liar, false, {.gate = false});
  const auto module = linear();
  EXPECT_TRUE(pick(*module, *c));
  EXPECT_EQ(liar.runs, 0);
}

TEST_F(Gate, AKernelKnownToBeWrongIsNotSupported) {
  Liar liar{.lie = Lie::wrong_in_forward};
  const auto c = context(liar);
  const auto module = linear();
  EXPECT_TRUE(module->fast_supported(Device::cpu(), DType::float64, kPassesForces, c.get()));
  pick(*module, *c);
  const Support support = module->fast_supported(Device::cpu(), DType::float64, kPassesForces, c.get());
  ASSERT_FALSE(support);
  EXPECT_EQ(support.reasons()[0].code, ReasonCode::not_verified);
}

TEST_F(Gate, ChangedParametersAreBoundAndTheKernelIsKept) {
  Liar honest;
  const auto c = context(honest);
  const auto module = linear();
  pick(*module, *c);
  const int creates = honest.creates, runs = honest.runs;
  module->parameter("weight").data<double>()[0] = 3;
  module->touch();
  EXPECT_TRUE(pick(*module, *c));
  EXPECT_EQ(honest.creates, creates);
  EXPECT_EQ(honest.runs, runs);
}

// ---- ops of third parties

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

// ---- whole models

class Failing : public Gate {
 protected:
  static const Structure& structure() {
    static const Structure instance = read_extxyz(kData + "water8.xyz").front();
    return instance;
  }
  static const EvaluationResult& reference() {
    static const auto instance = [] {
      EvaluateOptions options;
      options.use_fast = UseFast::never;
      options.parameter_gradients = true;
      return Model::load(kData + "model")->evaluate(structure(), options);
    }();
    return instance;
  }
  static void expect_reference(const EvaluationResult& result) {
    const auto same = [](const Tensor& a, const Tensor& b) {
      return a.bytes() == b.bytes() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
    };
    EXPECT_EQ(result.energy, reference().energy);
    EXPECT_TRUE(same(result.forces, reference().forces));
    EXPECT_TRUE(same(result.node_energies, reference().node_energies));
    for (const auto& [name, tensor] : reference().parameter_gradients) {
      EXPECT_TRUE(same(result.parameter_gradients.at(name), tensor)) << name;
    }
    EXPECT_FALSE(result.selection);
  }
  EvaluateOptions options(Context& context, Device device = Device::cpu()) {
    EvaluateOptions result;
    result.use_fast = UseFast::always;
    result.context = &context;
    result.device = device;
    result.parameter_gradients = true;
    return result;
  }
  std::shared_ptr<Model> model = Model::load(kData + "model");
};

struct FailingCase {
  const char* name;
  Lie lie;
  Pass pass;
  const char* op;
  bool on_device;
  std::int32_t status = FP_E_OUT_OF_MEMORY;
};

class FailingPoint : public Failing, public testing::WithParamInterface<FailingCase> {};

TEST_P(FailingPoint, ResultsAreThoseOfTheReferenceAndTheKernelIsOutAfterItsSecondFailure) {
  const FailingCase& c = GetParam();
  Liar liar{.lie = c.lie, .status = c.status, .failing_pass = c.pass, .only_op = c.op};
  const Device device = c.on_device ? Device{DeviceKind::extension, 0} : Device::cpu();
  // The kernel is honest while it is looked at.
  liar.from_run = 1 << 30;
  const auto ctx = context(liar, false, {}, c.on_device ? fake_device() : cpu_ref());
  ASSERT_TRUE(model->evaluate(structure(), options(*ctx, device)).selection);
  liar.from_run = 0;
  for (int time = 0; time < 2; ++time) {
    const EvaluationResult result = model->evaluate(structure(), options(*ctx, device));
    expect_reference(result);
    int failed = 0;
    for (const Decision& decision : result.selection.decisions) {
      if (c.on_device && decision.op == "species_linear") continue;
      EXPECT_EQ(decision.choice, "reference");
      EXPECT_EQ(decision.reason.code, ReasonCode::fallback) << decision.module;
      failed += decision.reason.text.find("failed") != std::string::npos &&
                decision.reason.text.find("repeated") == std::string::npos;
    }
    EXPECT_EQ(failed, 1);
    EXPECT_EQ(warnings.size(), 1u);
  }
  liar.from_run = 1 << 30;
  const EvaluationResult after = model->evaluate(structure(), options(*ctx, device));
  int out = 0;
  for (const Decision& decision : after.selection.decisions) {
    for (const Candidate& candidate : decision.candidates) {
      for (const Reason& reason : candidate.reasons) out += reason.code == ReasonCode::run_failed;
    }
  }
  EXPECT_GE(out, 1);
  EXPECT_TRUE(after.selection);  // the others still run
  EXPECT_NEAR(after.energy, reference().energy, 1e-12 * std::abs(reference().energy));
}

INSTANTIATE_TEST_SUITE_P(
    Points, FailingPoint,
    testing::Values(
        FailingCase{"FirstOpForward", Lie::fails, Pass::forward, "spherical_harmonics", false},
        FailingCase{"MiddleForward", Lie::fails, Pass::forward, "conv_tensor_product", false},
        FailingCase{"MiddleBackward", Lie::fails, Pass::backward, "conv_tensor_product", false, FP_E_BUSY},
        FailingCase{"LastOpOfBackward", Lie::fails, Pass::backward, "spherical_harmonics", false, FP_E_UNSUPPORTED},
        FailingCase{"HalfWritten", Lie::zeros_when_busy, Pass::forward, "symmetric_contraction", false, FP_E_BUSY},
        FailingCase{"HalfWrittenGradients", Lie::zeros_when_busy, Pass::backward, "radial_mlp", false, FP_E_BUSY},
        FailingCase{"ForwardOnADevice", Lie::fails, Pass::forward, "conv_tensor_product", true},
        FailingCase{"BackwardOnADevice", Lie::fails, Pass::backward, "conv_tensor_product", true},
        FailingCase{"LastOnADevice", Lie::fails, Pass::backward, "spherical_harmonics", true, FP_E_BUSY}),
    [](const auto& point) { return std::string(point.param.name); });

TEST_F(Failing, AKernelThatFailsInItsSecondCallOnlyIsCaughtThere) {
  Liar liar{.lie = Lie::fails, .status = FP_E_BUSY, .only_op = "conv_tensor_product", .from_run = 1 << 30};
  const auto ctx = context(liar);
  ASSERT_TRUE(model->evaluate(structure(), options(*ctx)).selection);
  liar.from_run =
      liar.runs + 1;  // the first convolution of the next evaluation is fine, that of the second layer fails
  expect_reference(model->evaluate(structure(), options(*ctx)));
}

TEST_F(Failing, StrictModeMakesItAnError) {
  Liar liar{.lie = Lie::fails, .status = FP_E_BUSY, .only_op = "radial_mlp", .from_run = 1 << 30};
  const auto ctx = context(liar);
  EvaluateOptions strict = options(*ctx);
  strict.require_fast = true;
  ASSERT_TRUE(model->evaluate(structure(), strict).selection);
  liar.from_run = 0;
  try {
    (void)model->evaluate(structure(), strict);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::strict_violation);
    EXPECT_THAT(error.what(), HasSubstr("conv_tp_weights"));
  }
}

TEST_F(Failing, ErrorsWithoutAFallbackAreErrorsAndCountAsFailures) {
  for (const auto& [status, code] :
       {std::pair{FP_E_NUMERICS, ErrorCode::numerics}, std::pair{FP_E_INTERNAL, ErrorCode::kernel_failed},
        std::pair{FP_E_INVALID_ARGUMENT, ErrorCode::kernel_failed}}) {
    Liar liar{.lie = Lie::fails, .status = status, .only_op = "radial_mlp", .from_run = 1 << 30};
    const auto ctx = context(liar);
    ASSERT_TRUE(model->evaluate(structure(), options(*ctx)).selection);
    liar.from_run = 0;
    for (int time = 0; time < 2; ++time) {
      try {
        (void)model->evaluate(structure(), options(*ctx));
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), code);
      }
    }
    liar.from_run = 1 << 30;
    const EvaluationResult after = model->evaluate(structure(), options(*ctx));
    EXPECT_NEAR(after.energy, reference().energy, 1e-12 * std::abs(reference().energy));
  }
}

TEST_F(Failing, ALostDeviceIsAnErrorAndStaysLost) {
  Liar liar{.lie = Lie::fails, .status = FP_E_DEVICE_LOST, .only_op = "radial_mlp", .from_run = 1 << 30};
  const auto ctx = context(liar, false, {}, fake_device());
  const Device device{DeviceKind::extension, 0};
  ASSERT_TRUE(model->evaluate(structure(), options(*ctx, device)).selection);
  liar.from_run = 0;
  try {
    (void)model->evaluate(structure(), options(*ctx, device));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::device_lost);
  }
  const int runs = liar.runs;
  const EvaluationResult after = model->evaluate(structure(), options(*ctx, device));
  expect_reference(after);
  EXPECT_EQ(after.selection.decisions[0].candidates[0].reasons[0].code, ReasonCode::device_lost);
  EXPECT_EQ(liar.runs, runs);
}

TEST_F(Failing, AChildOfAForkRunsTheReferenceAndSaysWhy) {
  for (const bool on_device : {false, true}) {
    Context ctx({.registry = {.search_paths = {on_device ? FASTPATH_TEST_PLUGINS : FASTPATH_PLUGIN_DIRECTORY},
                              .default_paths = false,
                              .enable = {on_device ? "fake_device" : "cpu_ref"}}});
    EvaluateOptions o = options(ctx, on_device ? Device{DeviceKind::extension, 0} : Device::cpu());
    ASSERT_TRUE(model->evaluate(structure(), o).selection);
    (void)reference();
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int wrong = 1;
      try {
        const EvaluationResult result = model->evaluate(structure(), o);
        bool all = true;
        for (const Decision& decision : result.selection.decisions) {
          if ((on_device && decision.op == "species_linear") || decision.op == "message_step") continue;
          all = all && !decision.fast() && decision.candidates.at(0).reasons.at(0).code == ReasonCode::forked;
        }
        wrong = all && result.energy == reference().energy ? 0 : 2;
        model.reset();  // releases kernels that are the parent's
      } catch (...) {
        wrong = 3;
      }
      _exit(wrong);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_TRUE(model->evaluate(structure(), o).selection);
  }
}

// ---- replicas in several threads

class Replicas : public Gate {
 protected:
  Replicas() {
    EvaluateOptions o;
    o.use_fast = UseFast::never;
    energy_ = model->replica()->evaluate(structure, o).energy;
  }
  EvaluateOptions options(Context& context, Device device = Device::cpu()) const {
    EvaluateOptions result;
    result.use_fast = UseFast::always;
    result.context = &context;
    result.device = device;
    return result;
  }
  /// What replicas give that are evaluated at the same time, each in a thread of its own; undefined forces where one
  /// threw.
  std::vector<EvaluationResult> at_once(EvaluateOptions options) {
    std::vector<EvaluationResult> results(3);
    std::vector<std::jthread> threads;
    for (EvaluationResult& result : results) {
      threads.emplace_back([this, &options, &result] {
        try {
          result = model->replica()->evaluate(structure, options);
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::device_lost) << error.what();
          ++errors;
        }
      });
    }
    threads.clear();
    return results;
  }
  void expect_energy(const EvaluationResult& result, double relative = 1e-12) const {
    EXPECT_NEAR(result.energy, energy_, relative * std::abs(energy_));
  }
  std::shared_ptr<Model> model = Model::load(kData + "model");
  Structure structure = read_extxyz(kData + "molecule.xyz").front();
  std::atomic<int> errors{0};

 private:
  double energy_ = 0;  // of the reference
};

TEST_F(Replicas, ShareOneGateAndTheParametersOfEachDtype) {
  Context ctx({.registry = {.search_paths = {FASTPATH_PLUGIN_DIRECTORY}, .default_paths = false}, .threads = 3});
  for (const DType dtype : {DType::float64, DType::float32}) {
    EvaluateOptions o = options(ctx);
    o.dtype = dtype;
    o.parameter_gradients = true;
    for (const EvaluationResult& result : at_once(o)) {
      EXPECT_TRUE(result.selection);
      expect_energy(result, dtype == DType::float64 ? 1e-12 : 1e-5);
    }
  }
  EXPECT_EQ(errors, 0);
}

TEST_F(Replicas, AKernelThatFailsInAllOfThemIsReportedOnce) {
  Liar liar{.lie = Lie::fails, .status = FP_E_OUT_OF_MEMORY, .only_op = "spherical_harmonics", .from_run = 1 << 30};
  const auto ctx = context(liar);
  ASSERT_TRUE(model->evaluate(structure, options(*ctx)).selection);
  liar.from_run = 0;
  for (int round = 0; round < 2; ++round) {
    for (const EvaluationResult& result : at_once(options(*ctx))) expect_energy(result);
  }
  EXPECT_EQ(errors, 0);
  EXPECT_EQ(warnings.size(), 1u);
}

TEST_F(Replicas, AreComparedInTurnAndAWrongKernelIsTakenOutOfAll) {
  Liar liar{.lie = Lie::wrong_in_forward, .only_op = "spherical_harmonics", .from_run = 1 << 30};
  const auto ctx = context(liar, false, {.shadow = 1});
  for (const EvaluationResult& result : at_once(options(*ctx))) EXPECT_TRUE(result.selection);
  EXPECT_TRUE(warnings.empty());
  liar.from_run = 0;
  for (int round = 0; round < 2; ++round) {
    for (const EvaluationResult& result : at_once(options(*ctx))) expect_energy(result);
  }
  EXPECT_EQ(errors, 0);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0].code, ReasonCode::wrong_result);
}

TEST_F(Replicas, ADeviceThatIsLostIsLostForAll) {
  Liar liar{.lie = Lie::fails, .status = FP_E_DEVICE_LOST, .only_op = "spherical_harmonics", .from_run = 1 << 30};
  const auto ctx = context(liar, false, {}, fake_device());
  const EvaluateOptions o = options(*ctx, {DeviceKind::extension, 0});
  for (const EvaluationResult& result : at_once(o)) EXPECT_TRUE(result.selection);
  liar.from_run = 0;
  (void)at_once(o);
  EXPECT_GE(errors, 1);
  errors = 0;
  for (const EvaluationResult& result : at_once(o)) {
    expect_energy(result);
    EXPECT_FALSE(result.selection);
  }
  EXPECT_EQ(errors, 0);
}

// ---- shadow

TEST_F(Failing, EveryNthEvaluationIsComparedAndAWrongKernelIsTakenOut) {
  for (const Lie lie : {Lie::wrong_in_backward, Lie::not_a_number, Lie::wrong_in_forward}) {
    warnings.clear();
    Liar liar{.lie = lie, .only_op = "conv_tensor_product", .from_run = 1 << 30};
    const auto ctx = context(liar, false, {.shadow = 3});
    for (int time = 0; time < 3; ++time) ASSERT_TRUE(model->evaluate(structure(), options(*ctx)).selection);
    EXPECT_TRUE(warnings.empty());
    liar.from_run = 0;
    if (lie != Lie::not_a_number) {  // which a result that is not finite shows anyway
      EXPECT_TRUE(model->evaluate(structure(), options(*ctx)).selection);
      EXPECT_TRUE(model->evaluate(structure(), options(*ctx)).selection);
    } else {
      liar.from_run = 1 << 30;
      for (int time = 0; time < 2; ++time) ASSERT_TRUE(model->evaluate(structure(), options(*ctx)).selection);
      liar.from_run = 0;
    }
    const EvaluationResult result = model->evaluate(structure(), options(*ctx));
    expect_reference(result);
    ASSERT_EQ(warnings.size(), 1u);
    EXPECT_EQ(warnings[0].code, ReasonCode::wrong_result);
    int found = 0;
    for (const Decision& decision : result.selection.decisions)
      found += decision.reason.code == ReasonCode::wrong_result;
    EXPECT_EQ(found, 1);
    liar.from_run = 1 << 30;
    const EvaluationResult after = model->evaluate(structure(), options(*ctx));
    for (const Decision& decision : after.selection.decisions) {
      if (decision.op != "conv_tensor_product" || decision.candidates[0].reasons.empty()) continue;
      if (decision.fast()) continue;
      EXPECT_EQ(decision.candidates[0].reasons[0].code, ReasonCode::wrong_result);
    }
    EXPECT_NEAR(after.energy, reference().energy, 1e-12 * std::abs(reference().energy));
  }
}

TEST_F(Failing, ComparisonWorksOnADeviceAndInFloat32AndFindsNothingInGoodKernels) {
  Liar honest;
  const auto on_device = context(honest, false, {.shadow = 1}, fake_device());
  const auto on_cpu = context(honest, false, {.shadow = 1});
  for (const DType dtype : {DType::float64, DType::float32}) {
    for (auto* ctx : {&on_device, &on_cpu}) {
      EvaluateOptions o = options(**ctx, ctx == &on_device ? Device{DeviceKind::extension, 0} : Device::cpu());
      o.dtype = dtype;
      EXPECT_TRUE(model->evaluate(structure(), o).selection);
    }
  }
  EXPECT_TRUE(warnings.empty()) << warnings[0].text;
}

TEST(Host, TakesThreadsLogAndConfigurationFromAContext) {
  std::vector<std::string> lines;
  const Context context(
      {.registry = {.default_paths = false},
       .threads = 3,
       .log = [&](std::int32_t level,
                  std::string_view text) { lines.push_back(std::to_string(level) + " " + std::string(text)); },
       .plugin_configuration = {{"gate_test.key", "value"}}});
  const fp_host& host = plugin::host_table();
  EXPECT_EQ(host.thread_budget(host.context), 3);
  host.log(host.context, FP_LOG_WARNING, "careful", 7);
  EXPECT_THAT(lines, testing::ElementsAre("2 careful"));
  const char* value = nullptr;
  std::uint64_t size = 0;
  EXPECT_EQ(host.lookup(host.context, "gate_test.key", 13, &value, &size), 1);
  EXPECT_EQ(std::string(value, size), "value");
  plugin::set_log_sink({});
  plugin::set_thread_budget(0);
  plugin::set_configuration("gate_test.key", std::nullopt);
}

TEST(Context, OffersPluginsTheDirectoryOfItsCache) {
  const fp_host& host = plugin::host_table();
  const auto offered = [&]() -> std::string {
    const char* value = nullptr;
    std::uint64_t size = 0;
    return host.lookup(host.context, "cache_dir", 9, &value, &size) == 1 ? std::string(value, size) : "nothing";
  };
  plugin::set_configuration("cache_dir", std::nullopt);
  { const Context none({.registry = {.default_paths = false, .use_cache = false}}); }
  EXPECT_EQ(offered(), "nothing");
  { const Context one({.registry = {.default_paths = false, .cache_directory = "/somewhere"}}); }
  EXPECT_EQ(offered(), "/somewhere");
  {
    const Context own({.registry = {.default_paths = false, .cache_directory = "/somewhere"},
                       .plugin_configuration = {{"cache_dir", "/elsewhere"}}});
  }
  EXPECT_EQ(offered(), "/elsewhere");
  plugin::set_configuration("cache_dir", std::nullopt);
}

TEST(Host, ServesPluginsInSeveralThreadsWhileItIsChanged) {
  const fp_host& host = plugin::host_table();
  std::atomic<int> lines{0};
  const auto sink = [&](std::int32_t, std::string_view text) { lines += text == "from a thread"; };
  constexpr int kRounds = 50;
  plugin::set_log_sink(sink);
  plugin::set_configuration("gate_test.key", "short");
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&host] {
        for (int round = 0; round < kRounds; ++round) {
          host.log(host.context, FP_LOG_INFO, "from a thread", 13);
          EXPECT_GE(host.thread_budget(host.context), 1);
          const char* value = nullptr;
          std::uint64_t size = 0;
          ASSERT_EQ(host.lookup(host.context, "gate_test.key", 13, &value, &size), 1);
          const std::string found(value, size);  // what was handed out stays, whatever is set meanwhile
          EXPECT_TRUE(found == "short" || found == std::string(100, 'x')) << found;
        }
      });
    }
    for (int round = 0; round < kRounds; ++round) {
      plugin::set_log_sink(sink);
      plugin::set_thread_budget(round % 3);
      plugin::set_configuration("gate_test.key", round % 2 == 0 ? std::string(100, 'x') : "short");
    }
  }
  EXPECT_EQ(lines, 3 * kRounds);
  plugin::set_log_sink({});
  plugin::set_thread_budget(0);
  plugin::set_configuration("gate_test.key", std::nullopt);
}

TEST(Shadow, TheVariableIsANumberOrAnError) {
  const auto with = [](const char* value) {
    setenv("FASTPATH_SHADOW", value, 1);
    try {
      const Context context({.registry = {.default_paths = false}});
      unsetenv("FASTPATH_SHADOW");
      return std::string();
    } catch (const Error& error) {
      unsetenv("FASTPATH_SHADOW");
      return std::string(error.what());
    }
  };
  EXPECT_EQ(with(""), "");
  EXPECT_EQ(with("0"), "");
  EXPECT_EQ(with("100"), "");
  for (const char* bad : {"-1", "often", "1.5", "3 ", "99999999999999999999"}) {
    EXPECT_THAT(with(bad), HasSubstr(std::string("FASTPATH_SHADOW is '") + bad + "'"));
  }
  EXPECT_THROW(Context({.registry = {.default_paths = false}, .shadow = -1}), Error);
}

}  // namespace
}  // namespace fastpath
