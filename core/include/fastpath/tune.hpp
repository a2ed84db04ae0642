#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "fastpath/context.hpp"
#include "fastpath/export.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/measurement.hpp"
#include "fastpath/model.hpp"
#include "fastpath/op.hpp"

/// Measuring when a plugin's kernel is faster than the reference (docs/tuning.md).
namespace fastpath {

/// Where a tuning is. Texts and references are valid during the call.
struct TuneProgress {
  std::string op;                   ///< "model" for whole evaluations.
  std::string config;               ///< As MeasurementKey::config.
  std::string plugin;               ///< As MeasurementKey::plugin.
  std::size_t done = 0;             ///< Measurements that are complete,
  std::size_t total = 0;            ///< of so many.
  std::size_t sizes = 0;            ///< Sizes of this one that are complete.
  std::int64_t n_edges = 0;         ///< The size measured last.
  double seconds_left = 0;          ///< Of the whole budget.
  std::vector<SizeWindow> windows;  ///< What this one comes to so far.
};

/// Stands in for the clock, for devices that are simulated (tests/plugin/simulated): how many seconds `repeats`
/// evaluations of this size take on that arm. It may call `evaluate` to have one done.
using TuneTimer =
    std::function<double(Arm arm, const ProblemSize& size, int repeats, const std::function<void()>& evaluate)>;

struct TuneOptions {
  Device device = Device::cpu();  ///< Off the CPU whole evaluations are all that is measured: decisions are for all.
  DType dtype = DType::float64;
  Passes passes = kPassesForces;
  int threads = 0;             ///< 0: as the context says.
  double budget_seconds = 60;  ///< For everything together, about; the size under way is finished.
  std::int64_t min_edges = 8, max_edges = 200000;
  bool ops = true;            ///< Measure every distinct op configuration of a model; only looked at on the CPU.
  bool whole = true;          ///< Measure whole evaluations of a model.
  bool only_missing = false;  ///< Leave out what has a measurement that counts here and now.
  bool keep = true;           ///< Add what is complete to Context::measurements() at once.
  TuneTimer timer = nullptr;  ///< Null: the steady clock. Otherwise the budget is of its seconds too.
  std::function<void(const TuneProgress&)> on_progress = nullptr;  ///< After every size.
  /// After every measurement, once it is stored. What is measured a second time comes twice.
  std::function<void(const Measurement&)> on_measurement = nullptr;
  std::function<bool()> stop = nullptr;  ///< True to stop: what is complete is kept, what is under way is dropped.
  Context* context = nullptr;            ///< Null: Context::process().
};

/// What was not measured, and why.
struct NotTuned {
  std::string op, config;
  std::string plugin;  ///< Empty where no plugin serves the op.
  Reason reason;
};

struct TuneResult {
  std::vector<Measurement> measurements;
  std::vector<NotTuned> not_tuned;
  bool stopped = false;
  bool out_of_time = false;  ///< Some sizes, or whole measurements (see not_tuned), had to be left out.
};

/// Measures every plugin's kernel of one module against its reference. The gate comes first: a kernel that does not
/// agree is not timed. Inputs are made by the core.
/// @param module  Its own parameters are used; which path it takes is undefined until the next select().
/// @throws Error(invalid_argument) for a dtype that is none, sizes out of order, a device other than the CPU, or a
///   context that is deterministic; what the store throws.
FASTPATH_EXPORT TuneResult tune(FastPathModule& module, const TuneOptions& options = {});

/// Measures each distinct op configuration of a model, then whole evaluations of crystals of its elements.
/// @throws as above, and Error(unavailable) for a device that is not here.
FASTPATH_EXPORT TuneResult tune(Model& model, const TuneOptions& options = {});

/// A page of HTML that shows measurements: for each both cost curves, the samples, and where the faster one changes,
/// with device and versions. It needs nothing but itself: no network, no script.
FASTPATH_EXPORT std::string tuning_report(const std::vector<Measurement>& measurements);
/// The same to a file, which appears whole or not at all. @throws Error(io) naming the path.
FASTPATH_EXPORT void write_tuning_report(const std::filesystem::path& file,
                                         const std::vector<Measurement>& measurements);

}  // namespace fastpath
