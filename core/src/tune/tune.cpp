#include "fastpath/tune.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <memory>
#include <utility>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "fastpath/version.hpp"
#include "measure/record.hpp"
#include "tune/bench.hpp"
#include "tune/search.hpp"
#include "verify/gate.hpp"

namespace fastpath {
namespace {

/// One measurement that is to be made.
struct Subject {
  MeasurementKey key;
  FastPathModule* module = nullptr;  // null: whole evaluations
};

class Tuner {
 public:
  explicit Tuner(const TuneOptions& options)
      : options_(options),
        context_(options.context != nullptr ? *options.context : Context::process()),
        threads_(options.threads > 0 ? options.threads : context_.threads()),
        clock_(options.timer) {
    if (context_.deterministic()) {
      throw Error(ErrorCode::invalid_argument, "the context is deterministic, so nothing is measured");
    }
    if (!is_floating(options.dtype)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("kernels are measured in float64 or float32, not in {}", to_string(options.dtype)));
    }
    if (options.passes.bits() == 0) throw Error(ErrorCode::invalid_argument, "no pass was asked for");
    if (options.min_edges < 1 || options.max_edges < options.min_edges) {
      throw Error(ErrorCode::invalid_argument, fmt::format("sizes from {} to {} edges: expected 1 or more, in order",
                                                           options.min_edges, options.max_edges));
    }
    if (!(options.budget_seconds > 0)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("a budget of {} seconds, expected more than 0", options.budget_seconds));
    }
    const std::optional<DeviceInfo> device = find_device(context_, options.device);
    if (!device) {
      throw Error(ErrorCode::unavailable, fmt::format("device {} is not here; 'fastpath list' shows those that are",
                                                      to_string(options.device)));
    }
    device_ = *device;
  }

  /// Every usable kernel of a module's op. The gate runs here, so that what it takes is not taken for the kernel's.
  void add(FastPathModule& module, const std::string& name) {
    const std::string config = op_config(module.op());
    if (!seen_.emplace(module.op().id + config, true).second) return;
    if (!verify::has_schema(module.op())) {
      skip(module.op().id, config, "",
           {ReasonCode::unmeasured, "fastpath has no schema of this op, so nobody can make inputs for it"});
      return;
    }
    const Selection selection = choose(module, name, "");
    const Decision& decision = selection.decisions.list().front();
    bool told = false;
    for (const Candidate& candidate : decision.candidates) {
      if (candidate.verdict == Candidate::Verdict::refused) {
        // A plugin need not have every op.
        const bool other_ops = std::any_of(candidate.reasons.begin(), candidate.reasons.end(),
                                           [](const Reason& reason) { return reason.code == ReasonCode::op; });
        if (other_ops) continue;
        skip(module.op().id, config, candidate.plugin,
             candidate.reasons.empty() ? Reason{ReasonCode::no_kernel, "no usable kernel"} : candidate.reasons.front());
        told = true;
        continue;
      }
      told = true;
      enlist({measurement_key(module.op(), candidate.plugin, device_, options_.dtype, options_.passes, threads_),
              &module});
    }
    if (told) return;
    skip(module.op().id, config, "",
         decision.candidates.empty() ? decision.reason
                                     : Reason{ReasonCode::no_kernel, "no plugin here has a kernel for this op"});
  }

  void add(Model& model, std::vector<NamedFastModule> modules) {
    model_ = &model;
    enlist({measurement_key(modules, device_, options_.dtype, options_.passes, threads_), nullptr});
  }

  TuneResult run() {
    start_ = clock_.now();
    total_ = subjects_.size();
    // A part of the budget is for what is measured again.
    double again = 0;
    for (const Subject& subject : subjects_) again += 0.1 * weight(subject);
    // Whole evaluations take longest, and decide least on the CPU.
    for (std::size_t i = 0; i < subjects_.size(); ++i) {
      done_ = i;
      const Subject& subject = subjects_[i];
      if (result_.stopped || (options_.stop && options_.stop())) {
        result_.stopped = true;
        skip(subject, {ReasonCode::unmeasured, "stopped before it was its turn"});
        continue;
      }
      double all = again;
      for (std::size_t k = i; k < subjects_.size(); ++k) all += weight(subjects_[k]);
      const double left = seconds_left();
      if (left <= 0) {
        result_.out_of_time = true;
        skip(subject, {ReasonCode::unmeasured,
                       fmt::format("the budget of {:.0f} seconds was used up", options_.budget_seconds)});
        continue;
      }
      if (std::optional<Measurement> measurement = measure(subject, left * weight(subject) / all, true)) {
        keep(*measurement);
        result_.measurements.push_back(std::move(*measurement));
      }
    }
    measure_again();
    return std::move(result_);
  }

 private:
  /// The whole model counts as much as a few ops.
  static double weight(const Subject& subject) { return subject.module == nullptr ? 4 : 1; }

  /// How often a kernel that was the faster one is not any more at larger sizes.
  static std::ptrdiff_t losses(const Measurement& measurement) {
    return std::count_if(measurement.windows.begin(), measurement.windows.end(),
                         [](const SizeWindow& window) { return window.max_edges != 0; });
  }

  /// A machine that is slow for some seconds looks like a kernel that is fast between two sizes only. So what looks
  /// like that is measured once more at the end, and the one of the two that has fewer such windows counts.
  void measure_again() {
    std::vector<std::size_t> odd;
    for (std::size_t i = 0; i < result_.measurements.size(); ++i) {
      if (losses(result_.measurements[i]) > 0) odd.push_back(i);
    }
    total_ = subjects_.size() + odd.size();
    for (std::size_t i = 0; i < odd.size(); ++i) {
      done_ = subjects_.size() + i;
      const double left = seconds_left();
      if (left <= 0 || result_.stopped || (options_.stop && options_.stop())) return;
      Measurement& first = result_.measurements[odd[i]];
      const auto subject = std::find_if(subjects_.begin(), subjects_.end(),
                                        [&](const Subject& other) { return other.key == first.key; });
      std::optional<Measurement> second = measure(*subject, left / static_cast<double>(odd.size() - i), false);
      if (!second || second->inconclusive || losses(*second) > losses(first)) continue;
      keep(*second);
      first = std::move(*second);
    }
  }

  void keep(const Measurement& measurement) {
    if (options_.keep) context_.measurements().add(measurement);
    if (options_.on_measurement) options_.on_measurement(measurement);
  }

  double seconds_left() const { return options_.budget_seconds - (clock_.now() - start_); }

  std::string build_of(const MeasurementKey& key) { return plugin_build(context_, options_.device.kind, key.plugin); }

  void enlist(Subject subject) {
    if (options_.only_missing &&
        context_.measurements().find(subject.key, build_of(subject.key), device_.driver).has_value()) {
      return;
    }
    subjects_.push_back(std::move(subject));
  }

  Selection choose(FastPathModule& module, const std::string& name, const std::string& plugin) {
    AutoPolicy policy;
    if (!plugin.empty()) policy.preference = {plugin};
    // A size that a kernel declines is told of where it is timed.
    return select({NamedFastModule{name, &module}}, UseFast::always, &policy, options_.device, options_.dtype,
                  ProblemSize(1000, 40), options_.passes, &context_, threads_);
  }

  void skip(std::string op, std::string config, std::string plugin, Reason reason) {
    result_.not_tuned.push_back({std::move(op), std::move(config), std::move(plugin), std::move(reason)});
  }
  void skip(const Subject& subject, Reason reason) {
    skip(subject.key.op, subject.key.config, subject.key.plugin, std::move(reason));
  }

  std::unique_ptr<tuning::Bench> bench(const Subject& subject) {
    if (subject.module == nullptr) {
      EvaluateOptions evaluate;
      evaluate.device = options_.device;
      evaluate.dtype = options_.dtype;
      evaluate.threads = threads_;
      evaluate.context = &context_;
      return std::make_unique<tuning::ModelBench>(clock_, *model_, std::move(evaluate), options_.passes);
    }
    const Selection selection = choose(*subject.module, subject.key.op, subject.key.plugin);
    const Decision& decision = selection.decisions.list().front();
    if (decision.choice != subject.key.plugin) {
      Reason reason = decision.reason;
      for (const Candidate& candidate : decision.candidates) {
        if (candidate.plugin == subject.key.plugin && !candidate.reasons.empty()) reason = candidate.reasons.front();
      }
      skip(subject, std::move(reason));
      return nullptr;
    }
    return std::make_unique<tuning::OpBench>(clock_, *subject.module, options_.dtype, options_.passes, threads_);
  }

  /// Nothing if it cannot be measured. The first time what was not tuned then says why.
  std::optional<Measurement> measure(const Subject& subject, double budget, bool first) {
    const std::string build = build_of(subject.key);
    if (build.empty()) {
      skip(subject, {ReasonCode::no_kernel, fmt::format("no plugin serves {}", to_string(options_.device))});
      return std::nullopt;
    }
    tuning::SearchOptions search;
    search.min_edges = options_.min_edges;
    search.max_edges = options_.max_edges;
    search.budget = budget;
    search.stop = options_.stop;
    std::size_t sizes = 0;
    search.on_point = [&](const MeasuredPoint& point, const std::vector<SizeWindow>& windows) {
      ++sizes;
      if (!options_.on_progress) return;
      options_.on_progress({subject.key.op, subject.key.config, subject.key.plugin, done_, total_, sizes, point.n_edges,
                            std::max(seconds_left(), 0.0), windows});
    };
    tuning::Searched found;
    try {
      const std::unique_ptr<tuning::Bench> timed = bench(subject);
      if (!timed) return std::nullopt;
      found = tuning::search(*timed, search);
    } catch (const Error& error) {
      // A kernel that fails, or sizes too large for the machine, cost their own measurement alone.
      if (error.code() == ErrorCode::device_lost) throw;
      if (first) skip(subject, {ReasonCode::unmeasured, error.what()});
      return std::nullopt;
    }
    if (found.stopped) {
      result_.stopped = true;
      if (first) skip(subject, {ReasonCode::unmeasured, "stopped before it was complete"});
      return std::nullopt;
    }
    if (first) result_.out_of_time = result_.out_of_time || found.out_of_time;
    Measurement measurement;
    measurement.key = subject.key;
    measurement.points = std::move(found.points);
    measurement.windows = std::move(found.windows);
    measurement.inconclusive = found.inconclusive;
    measurement.plugin_build = build;
    measurement.library_version = build_info().version;
    measurement.driver = device_.driver;
    measurement.host = measure::host_name();
    measurement.unix_time = static_cast<std::int64_t>(std::time(nullptr));
    for (const PluginInfo& plugin : context_.registry().plugins()) {
      if (plugin.id == subject.key.plugin && plugin.state == PluginState::usable) {
        measurement.plugin_version = plugin.version;
      }
    }
    return measurement;
  }

  const TuneOptions& options_;
  Context& context_;
  const int threads_;
  DeviceInfo device_;
  Model* model_ = nullptr;
  std::vector<Subject> subjects_;
  std::map<std::string, bool> seen_;
  TuneResult result_;
  tuning::Clock clock_;
  double start_ = 0;
  std::size_t done_ = 0, total_ = 0;
};

}  // namespace

TuneResult tune(FastPathModule& module, const TuneOptions& options) {
  if (!options.device.is_cpu()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("one op on {}: off the CPU whole models are measured, since a decision there is for all of "
                            "a model's ops together",
                            to_string(options.device)));
  }
  Tuner tuner(options);
  tuner.add(module, module.op().id);
  return tuner.run();
}

TuneResult tune(Model& model, const TuneOptions& options) {
  Tuner tuner(options);
  std::vector<NamedFastModule> modules = fast_modules(model);
  if (options.ops && options.device.is_cpu()) {
    for (const NamedFastModule& named : modules) tuner.add(*named.module, named.name);
  }
  if (options.whole) {
    if (!options.device.is_cpu()) {
      const std::vector<NamedFastModule>& small = model.small_ops();
      modules.insert(modules.end(), small.begin(), small.end());
    }
    tuner.add(model, modules);
  }
  return tuner.run();
}

WarmUp Model::warm_up(const Graph& graph, const EvaluateOptions& options, double budget_seconds) {
  if (!(budget_seconds >= 0)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("a budget of {} seconds, expected 0 or more", budget_seconds));
  }
  const tuning::Clock clock;
  const double start = clock.now();
  Context& context = options.context != nullptr ? *options.context : Context::process();
  WarmUp result;
  if (options.use_fast.value_or(use_fast_) == UseFast::automatic && !context.deterministic() && budget_seconds > 0) {
    TuneOptions tuning;
    tuning.device = options.device;
    tuning.dtype = options.dtype;
    tuning.passes = passes_of(options);
    tuning.threads = options.threads;
    tuning.budget_seconds = budget_seconds;
    tuning.max_edges = std::max(2 * graph.n_edges(), tuning.min_edges);
    tuning.only_missing = true;
    tuning.context = &context;
    const TuneResult tuned = tune(*this, tuning);
    result.measured = tuned.measurements.size();
    result.out_of_time = tuned.out_of_time;
  }
  (void)evaluate(graph, options);
  result.seconds = clock.now() - start;
  return result;
}

WarmUp Model::warm_up(const Structure& structure, const EvaluateOptions& options, double budget_seconds) {
  return warm_up(Graph::from_structure(structure, r_max()), options, budget_seconds);
}

}  // namespace fastpath
