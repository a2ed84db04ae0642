#include "fastpath/tune.hpp"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "../plugin/simulated/simulated.h"
#include "fastpath/create_op.hpp"
#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/sdk/ops.hpp"

using namespace fastpath;

namespace {

const std::string kData = FASTPATH_TEST_DATA "/refdata/mace_a/";

std::shared_ptr<FastPathModule> harmonics(int l_max) {
  return create_op({"spherical_harmonics", 1, sdk::SphericalHarmonicsConfig{l_max}.attributes().values()}, 1);
}

/// A context with one plugin, and a store in memory.
std::unique_ptr<Context> context_of(const std::string& directory, const std::string& plugin,
                                    bool deterministic = false) {
  ContextOptions options;
  options.registry.search_paths = {directory};
  options.registry.enable = {plugin};
  options.registry.default_paths = false;
  options.registry.use_cache = false;
  options.threads = 1;
  options.measurements = std::make_shared<MeasurementStore>();
  options.deterministic = deterministic;
  return std::make_unique<Context>(std::move(options));
}

/// The clock of the simulated device: what its kernel counts, and for the reference 2 us and 100 ns an edge.
class SimulatedTime {
 public:
  SimulatedTime(double noise, unsigned seed) : noise_(noise), random_(seed) {}

  double operator()(Arm arm, const ProblemSize& size, int repeats, const std::function<void()>& evaluate) {
    double one = 2e-6 + 100e-9 * static_cast<double>(size.n_edges);
    if (arm == Arm::kernel) {
      if (const auto known = kernel_.find(size.n_edges); known != kernel_.end()) {
        one = known->second;
      } else {
        const double before = costs().seconds;
        evaluate();
        one = kernel_[size.n_edges] = costs().seconds - before;
      }
    }
    return one * repeats * std::exp(noise_ * std::normal_distribution<double>()(random_));
  }

 private:
  static const simulated_costs& costs() {
    void* library = ::dlopen(FASTPATH_TEST_SIMULATED "/fastpath_simulated.so", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) throw std::runtime_error("the simulated device is not loaded");
    const auto query = reinterpret_cast<fp_plugin_query_fn>(::dlsym(library, FP_QUERY_SYMBOL));
    fp_host host{};
    host.struct_size = FP_SIZE_HOST;
    host.abi_min = host.abi_max = FP_ABI_VERSION;
    const fp_plugin* table = nullptr;
    if (query(&host, &table) != FP_OK) throw std::runtime_error("the simulated device does not answer");
    return *reinterpret_cast<const simulated_costs*>(table->extensions);
  }

  double noise_;
  std::mt19937 random_;
  std::map<std::int64_t, double> kernel_;  // by edges: every evaluation costs the same
};

class SimulatedDevice : public testing::Test {
 protected:
  SimulatedDevice() : context(context_of(FASTPATH_TEST_SIMULATED, "simulated")) {
    options.passes = kPassesEnergy;
    options.context = context.get();
    options.max_edges = 3000;
    set_noise(0.03, 1);
  }
  void set_noise(double noise, unsigned seed) {
    auto time = std::make_shared<SimulatedTime>(noise, seed);
    options.timer = [time](Arm arm, const ProblemSize& size, int repeats, const std::function<void()>& evaluate) {
      return (*time)(arm, size, repeats, evaluate);
    };
  }
  Measurement measure(int l_max) {
    const TuneResult result = tune(*harmonics(l_max), options);
    EXPECT_TRUE(result.not_tuned.empty());
    if (result.measurements.size() != 1) throw std::runtime_error("expected one measurement");
    return result.measurements.front();
  }

  std::unique_ptr<Context> context;
  TuneOptions options;
};

testing::AssertionResult within_5_percent(std::int64_t edges, double truth) {
  const double off = std::abs(static_cast<double>(edges) / truth - 1);
  return (off <= 0.05 ? testing::AssertionSuccess() : testing::AssertionFailure())
         << edges << " edges, in truth " << truth;
}

// 50 us + 20 ns n against 2 us + 100 ns n.
TEST_F(SimulatedDevice, ACrossoverIsFoundWithinFivePercent) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    set_noise(0.03, seed);
    const Measurement measurement = measure(1);
    EXPECT_FALSE(measurement.inconclusive);
    ASSERT_EQ(measurement.windows.size(), 1u);
    EXPECT_TRUE(within_5_percent(measurement.windows[0].min_edges, 600));
    EXPECT_EQ(measurement.windows[0].max_edges, 0);
  }
}

// 30 us + 20 ns n + 4 ps n^2 against 2 us + 100 ns n.
TEST_F(SimulatedDevice, AKernelThatWinsOnlyBetweenTwoSizesIsFound) {
  options.max_edges = 60000;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(seed);
    set_noise(0.03, seed);
    const Measurement measurement = measure(2);
    ASSERT_EQ(measurement.windows.size(), 1u);
    EXPECT_TRUE(within_5_percent(measurement.windows[0].min_edges, 356.3));
    EXPECT_TRUE(within_5_percent(measurement.windows[0].max_edges, 19643.7));
  }
}

TEST_F(SimulatedDevice, AMachineThatIsSlowForAWhileMakesNoWindow) {
  SimulatedTime time(0.03, 1);
  bool slow = true;
  options.max_edges = 60000;
  options.timer = [&](Arm arm, const ProblemSize& size, int repeats, const std::function<void()>& evaluate) {
    const bool hit = slow && arm == Arm::kernel && size.n_edges > 2000 && size.n_edges < 9000;
    return (hit ? 5 : 1) * time(arm, size, repeats, evaluate);
  };
  std::vector<Measurement> measured;
  options.on_measurement = [&](const Measurement& measurement) {
    slow = false;
    measured.push_back(measurement);
  };
  const Measurement measurement = measure(1);
  ASSERT_EQ(measured.size(), 2u);
  EXPECT_EQ(measured[0].windows.size(), 2u);
  EXPECT_EQ(measured[1], measurement);
  ASSERT_EQ(measurement.windows.size(), 1u);
  EXPECT_TRUE(within_5_percent(measurement.windows[0].min_edges, 600));
  EXPECT_EQ(measurement.windows[0].max_edges, 0);
  const auto found = context->measurements().find(measurement.key, measurement.plugin_build, measurement.driver);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->measurement->windows, measurement.windows);
}

TEST_F(SimulatedDevice, ASecondLookDuringWhichTheMachineIsSlowDoesNotCount) {
  SimulatedTime time(0.03, 1);
  bool slow = false;
  int blocks = 0;
  options.max_edges = 60000;
  options.timer = [&](Arm arm, const ProblemSize& size, int repeats, const std::function<void()>& evaluate) {
    const bool hit = slow && arm == Arm::kernel && size.n_edges > 2000 && size.n_edges < 9000;
    blocks += hit ? 1 : 0;
    return (hit ? 5 : 1) * time(arm, size, repeats, evaluate);
  };
  options.on_measurement = [&](const Measurement&) { slow = true; };
  const Measurement measurement = measure(2);
  EXPECT_GT(blocks, 0);
  ASSERT_EQ(measurement.windows.size(), 1u);
  EXPECT_TRUE(within_5_percent(measurement.windows[0].max_edges, 19643.7));
}

TEST_F(SimulatedDevice, AMeasurementSaysWhatItBelongsTo) {
  set_noise(0, 1);
  const Measurement measurement = measure(1);
  EXPECT_EQ(measurement.key, measurement_key(harmonics(1)->op(), "simulated", cpu_info(), DType::float64, kPassesEnergy,
                                             context->threads()));
  EXPECT_EQ(measurement.plugin_version, "1.0.0");
  EXPECT_EQ(measurement.plugin_build, plugin_build(*context, DeviceKind::cpu, "simulated"));
  EXPECT_FALSE(measurement.host.empty());
  EXPECT_GT(measurement.unix_time, 0);
  const MeasuredPoint& first = measurement.points.front();
  EXPECT_EQ(first.n_edges, 8);
  EXPECT_NEAR(first.reference_seconds, 2.8e-6, 1e-12);
  EXPECT_NEAR(first.kernel_seconds, 50.16e-6, 1e-12);
  for (std::size_t i = 1; i < measurement.points.size(); ++i) {
    EXPECT_LT(measurement.points[i - 1].n_edges, measurement.points[i].n_edges);
  }
}

TEST_F(SimulatedDevice, WhatIsFoundIsKeptUnlessItIsNotWanted) {
  options.keep = false;
  measure(1);
  EXPECT_TRUE(context->measurements().empty());
  options.keep = true;
  const Measurement measurement = measure(1);
  const auto found = context->measurements().find(measurement.key, measurement.plugin_build, measurement.driver);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->measurement->windows, measurement.windows);
}

TEST_F(SimulatedDevice, OnlyWhatIsMissingIsMeasuredWhereThatIsAskedFor) {
  options.only_missing = true;
  measure(1);
  EXPECT_TRUE(tune(*harmonics(1), options).measurements.empty());
  options.passes = kPassesForces;
  EXPECT_EQ(tune(*harmonics(1), options).measurements.size(), 1u);
}

TEST_F(SimulatedDevice, AKernelThatIsWrongIsNotTimed) {
  int timed = 0;
  options.timer = [&](Arm, const ProblemSize&, int, const std::function<void()>&) {
    ++timed;
    return 1e-3;
  };
  const TuneResult result = tune(*harmonics(3), options);
  EXPECT_TRUE(result.measurements.empty());
  ASSERT_EQ(result.not_tuned.size(), 1u);
  EXPECT_EQ(result.not_tuned[0].plugin, "simulated");
  EXPECT_EQ(result.not_tuned[0].reason.code, ReasonCode::not_verified);
  EXPECT_EQ(timed, 0);
}

TEST_F(SimulatedDevice, APluginWithoutTheOpIsNotMentionedAndAnOpThatNoneHasIsToldOnce) {
  const OpSpec linear{
      "irreps_linear", 1,
      sdk::IrrepsLinearConfig{sdk::Irreps::parse("4x0e"), sdk::Irreps::parse("3x0e")}.attributes().values()};
  const TuneResult nobody = tune(*create_op(linear, 1), options);
  EXPECT_TRUE(nobody.measurements.empty());
  ASSERT_EQ(nobody.not_tuned.size(), 1u);
  EXPECT_EQ(nobody.not_tuned[0].plugin, "");
  EXPECT_EQ(nobody.not_tuned[0].reason.code, ReasonCode::no_kernel);
  EXPECT_EQ(nobody.not_tuned[0].reason.text, "no plugin here has a kernel for this op");

  ContextOptions both;
  both.registry.search_paths = {FASTPATH_TEST_SIMULATED, FASTPATH_TEST_CPU_REF};
  both.registry.enable = {"simulated", "cpu_ref"};
  both.registry.default_paths = both.registry.use_cache = false;
  both.measurements = std::make_shared<MeasurementStore>();
  Context two(std::move(both));
  options.context = &two;
  options.timer = [](Arm, const ProblemSize&, int repeats, const std::function<void()>&) { return 1e-4 * repeats; };
  const TuneResult one = tune(*create_op(linear, 1), options);
  ASSERT_EQ(one.measurements.size(), 1u);
  EXPECT_EQ(one.measurements[0].key.plugin, "cpu_ref");
  EXPECT_TRUE(one.not_tuned.empty());
}

TEST_F(SimulatedDevice, TheBudgetIsOfSimulatedTime) {
  options.budget_seconds = 0.2;
  const TuneResult result = tune(*harmonics(1), options);
  EXPECT_TRUE(result.out_of_time);
  ASSERT_EQ(result.measurements.size(), 1u);
  options.budget_seconds = 1e4;
  EXPECT_GT(measure(1).points.size(), result.measurements[0].points.size());
}

TEST_F(SimulatedDevice, StoppingKeepsWhatIsCompleteAndDropsTheRest) {
  bool stop = false;
  int sizes = 0;
  options.on_progress = [&](const TuneProgress& progress) {
    EXPECT_EQ(progress.op, "spherical_harmonics");
    EXPECT_EQ(progress.plugin, "simulated");
    EXPECT_EQ(progress.sizes, static_cast<std::size_t>(++sizes));
    stop = sizes == 3;
  };
  options.stop = [&] { return stop; };
  const TuneResult result = tune(*harmonics(1), options);
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(sizes, 3);
  EXPECT_TRUE(result.measurements.empty());
  EXPECT_TRUE(context->measurements().empty());
  ASSERT_EQ(result.not_tuned.size(), 1u);
  EXPECT_EQ(result.not_tuned[0].reason.text, "stopped before it was complete");
}

void refuse(const TuneOptions& options, ErrorCode code, const std::string& text) {
  try {
    tune(*harmonics(1), options);
    ADD_FAILURE() << "expected an error: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

TEST_F(SimulatedDevice, ADeterministicContextMeasuresNothing) {
  const auto deterministic = context_of(FASTPATH_TEST_SIMULATED, "simulated", true);
  options.context = deterministic.get();
  refuse(options, ErrorCode::invalid_argument, "deterministic");
}

TEST_F(SimulatedDevice, OptionsThatMakeNoSenseAreNamed) {
  TuneOptions wrong = options;
  wrong.dtype = DType::int32;
  refuse(wrong, ErrorCode::invalid_argument, "not in int32");
  wrong = options, wrong.passes = Passes();
  refuse(wrong, ErrorCode::invalid_argument, "no pass");
  wrong = options, wrong.min_edges = 0;
  refuse(wrong, ErrorCode::invalid_argument, "0 to 3000 edges");
  wrong = options, wrong.max_edges = 7;
  refuse(wrong, ErrorCode::invalid_argument, "8 to 7 edges");
  wrong = options, wrong.budget_seconds = 0;
  refuse(wrong, ErrorCode::invalid_argument, "budget of 0");
  wrong = options, wrong.device = parse_device("opencl:9");
  refuse(wrong, ErrorCode::invalid_argument, "one op on opencl:9");
  const auto model = Model::load(kData + "model");
  EXPECT_THROW(tune(*model, wrong), Error);
}

/// A whole model with the plugin cpu_ref, by the steady clock.
class WarmUpOfAModel : public testing::Test {
 protected:
  explicit WarmUpOfAModel(bool deterministic = false)
      : context(context_of(FASTPATH_TEST_CPU_REF, "cpu_ref", deterministic)), model(Model::load(kData + "model")) {
    options.context = context.get();
  }
  /// How many things there are records of; of one there may be two, where it was measured once more.
  std::size_t records() const {
    std::vector<MeasurementKey> keys;
    for (const MeasurementRecord& record : context->measurements().records({})) {
      if (std::find(keys.begin(), keys.end(), record.measurement.key) == keys.end()) {
        keys.push_back(record.measurement.key);
      }
    }
    return keys.size();
  }

  std::unique_ptr<Context> context;
  std::shared_ptr<Model> model;
  EvaluateOptions options;
  const Structure structure = read_extxyz(kData + "molecule.xyz").front();
};

TEST_F(WarmUpOfAModel, MeasuresWhatIsMissingAndKeepsIt) {
  std::size_t measured = 0;
  for (int i = 0; i < 2; ++i) {
    const WarmUp made = model->warm_up(structure, options, 1.5);
    EXPECT_GT(made.seconds, 0);
    EXPECT_TRUE(i > 0 || made.measured > 0);
    measured += made.measured;
    EXPECT_EQ(records(), measured);
  }
}

TEST_F(WarmUpOfAModel, NothingIsMeasuredWithoutNeed) {
  EXPECT_EQ(model->warm_up(structure, options, 0).measured, 0u);
  for (const UseFast use_fast : {UseFast::always, UseFast::never}) {
    options.use_fast = use_fast;
    EXPECT_EQ(model->warm_up(structure, options).measured, 0u);
  }
  options.use_fast = UseFast::automatic;
  (void)model->evaluate(structure, options);
  EXPECT_EQ(records(), 0u);
  EXPECT_THROW(model->warm_up(structure, options, -1), Error);
}

TEST_F(WarmUpOfAModel, LoadsPluginsAndEvaluatesOnce) {
  options.use_fast = UseFast::always;
  (void)model->warm_up(structure, options);
  const EvaluationResult result = model->evaluate(structure, options);
  EXPECT_TRUE(result.selection.any_fast());
}

class DeterministicWarmUp : public WarmUpOfAModel {
 protected:
  DeterministicWarmUp() : WarmUpOfAModel(true) {}
};
TEST_F(DeterministicWarmUp, MeasuresNothing) {
  EXPECT_EQ(model->warm_up(structure, options).measured, 0u);
  EXPECT_EQ(records(), 0u);
}

}  // namespace
