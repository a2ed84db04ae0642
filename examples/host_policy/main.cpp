// A host with opinions: its own thresholds, from code and from a file, its own warning handler, a look at every
// candidate of every decision, what was measured here, and a run that is repeated kernel by kernel.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/lock.hpp"
#include "fastpath/measurement.hpp"
#include "fastpath/model.hpp"
#include "fastpath/policy.hpp"
#include "fastpath/version.hpp"
#include "fastpath/warning.hpp"

#ifndef DEFAULT_MODEL  // the build names them; see CMakeLists.txt
#define DEFAULT_MODEL "examples/models/demo"
#define DEFAULT_STRUCTURE "examples/structures/silicon.xyz"
#define DEFAULT_POLICY "examples/host_policy/policy.json"
#endif

namespace {

constexpr int kSkipped = 77;
int failures = 0;

void check(bool good, const char* what) {
  std::printf("  %-70s %s\n", what, good ? "ok" : "WRONG");
  if (!good) ++failures;
}

/// A device as a registry would list it; only what a policy looks at.
fastpath::DeviceInfo device_named(const char* name, fastpath::DeviceKind kind) {
  fastpath::DeviceInfo info;
  info.device = {kind, 0};
  info.name = name;
  return info;
}

std::shared_ptr<const fastpath::AutoPolicy> make_policy() {
  auto policy = std::make_shared<fastpath::AutoPolicy>();
  // First match wins, so the special case stands before the general one.
  policy->min_edges = {{"acme x2 mini", 80'000}, {"acme x2", 20'000}, {"acme", 40'000}};
  policy->min_edges_float64 = {{"acme x2", 10'000}};
  policy->default_min_edges = 100'000;
  policy->default_min_edges_float64 = 50'000;
  policy->preference = {"cpu_simd", "cpu_*"};
  return policy;
}

void check_policy(const fastpath::AutoPolicy& policy) {
  using fastpath::DeviceKind;
  using fastpath::DType;
  const fastpath::DeviceInfo mini = device_named("ACME X2 Mini (2nd)", DeviceKind::cuda);
  const fastpath::DeviceInfo x2 = device_named("ACME X2 80GB", DeviceKind::cuda);
  const fastpath::DeviceInfo other = device_named("Other 9000", DeviceKind::hip);
  std::printf("policy\n");
  check(policy.threshold(mini, DType::float32) == 80'000, "the first matching entry counts, in any case");
  check(policy.threshold(x2, DType::float32) == 20'000, "a name that matches a later entry gets that one");
  check(policy.threshold(mini, DType::float64) == 10'000, "float64 has a table of its own");
  check(policy.threshold(other, DType::float32) == 100'000 && policy.threshold(other, DType::float64) == 50'000,
        "a device without an entry gets the default of the dtype");
  check(!policy.decide(x2, DType::float32, 19'999) && policy.decide(x2, DType::float32, 20'000),
        "fast from the threshold on, and not one edge earlier");
  check(!policy.decide(device_named("ACME X2 CPU", DeviceKind::cpu), DType::float32, 1'000'000),
        "a CPU is never decided by a table");
}

void print(const fastpath::Selection& selection) {
  for (const fastpath::Decision& decision : selection.decisions) {
    std::printf("  %s (%s): %s, %s: %s\n", decision.module.c_str(), decision.op.c_str(), decision.choice.c_str(),
                std::string(to_string(decision.reason.code)).c_str(), decision.reason.text.c_str());
    for (const fastpath::Candidate& candidate : decision.candidates) {
      std::printf("    %s %s", candidate.plugin.c_str(), std::string(to_string(candidate.verdict)).c_str());
      for (const fastpath::Reason& reason : candidate.reasons) {
        std::printf("; %s: %s", std::string(to_string(reason.code)).c_str(), reason.text.c_str());
      }
      std::printf("\n");
    }
  }
}

/// True if every module got the reference for this reason.
bool all_by_reference(const fastpath::Selection& selection, fastpath::ReasonCode code) {
  for (const fastpath::Decision& decision : selection.decisions) {
    if (decision.fast() || decision.reason.code != code) return false;
  }
  return !selection.decisions.empty();
}

bool same_choices(const fastpath::Selection& a, const fastpath::Selection& b) {
  if (a.decisions.size() != b.decisions.size()) return false;
  for (std::size_t i = 0; i < a.decisions.size(); ++i) {
    if (a.decisions[i].choice != b.decisions[i].choice) return false;
  }
  return true;
}

/// Keeps which kernels ran in a file, and runs them again in another context: these very kernels, or an error.
void check_replay(fastpath::Model& model, const fastpath::Structure& structure,
                  const std::filesystem::path& lock_file) {
  std::printf("lock\n");
  fastpath::EvaluateOptions options;
  options.use_fast = fastpath::UseFast::always;
  const fastpath::EvaluationResult first = model.evaluate(structure, options);
  fastpath::SelectionLock lock;
  lock.add(first.selection);
  lock.save(lock_file);

  fastpath::ContextOptions as_before;
  as_before.replay = std::make_shared<const fastpath::SelectionLock>(fastpath::SelectionLock::load(lock_file));
  fastpath::Context context(as_before);
  options.context = &context;
  options.use_fast = fastpath::UseFast::automatic;
  const fastpath::EvaluationResult again = model.evaluate(structure, options);
  check(same_choices(first.selection, again.selection), "a lock makes the same choices again, under auto too");
  check(again.energy == first.energy, "the same kernels give the same energy");

  options.forces = options.stress = false;  // not what the lock was made with
  std::string refusal;
  try {
    model.evaluate(structure, options);
  } catch (const fastpath::Error& error) {
    if (error.code() == fastpath::ErrorCode::unavailable) refusal = error.what();
  }
  check(!refusal.empty(), "what the lock does not say is an error that names it");
  std::printf("  \"%s...\"\n", refusal.substr(0, 150).c_str());
}

/// Measurements of this machine that count, though new ones would be better: made with another fastpath or driver, or
/// long ago.
std::size_t stale_measurements(fastpath::Context& context) {
  const auto here = fastpath::MeasurementSituation::of(context, {fastpath::DeviceKind::cpu});
  std::size_t stale = 0;
  for (const fastpath::MeasurementRecord& record : context.measurements().records(here)) {
    if (record.counts && !record.reasons.empty()) ++stale;
  }
  return stale;
}

/// What an upgrade of fastpath does to measurements, and how a host has them made again.
void check_stale(fastpath::Model& model, const fastpath::Structure& structure, fastpath::Context& measured) {
  std::printf("stale measurements\n");
  auto store = std::make_shared<fastpath::MeasurementStore>();
  for (fastpath::MeasurementRecord& record : measured.measurements().records({})) {
    record.measurement.library_version = "0.0.1";  // as if an upgrade lay between
    store->add(record.measurement);
  }
  fastpath::ContextOptions kept_in_memory;
  kept_in_memory.measurements = store;
  fastpath::Context context(kept_in_memory);
  check(stale_measurements(measured) == 0 && stale_measurements(context) > 0,
        "an upgrade makes what was measured stale");

  fastpath::EvaluateOptions options;
  options.context = &context;
  options.use_fast = fastpath::UseFast::automatic;
  const std::string now = fastpath::build_info().version;
  context.measurements().forget([&now](const fastpath::Measurement& known) { return known.library_version != now; });
  const double budget_seconds = 1;
  const fastpath::WarmUp ready = model.warm_up(structure, options, budget_seconds);
  check(ready.measured > 0 && stale_measurements(context) == 0, "what was forgotten is measured again");
}

int run(const std::string& model_folder, const std::string& structure_file, const std::string& policy_file) {
  const auto model = fastpath::Model::load(model_folder);
  const fastpath::Structure structure = fastpath::read_extxyz(structure_file).front();

  std::vector<fastpath::FastPathPrecisionWarning> warnings;
  fastpath::set_warning_handler(
      [&warnings](const fastpath::FastPathPrecisionWarning& warning) { warnings.push_back(warning); });

  const std::shared_ptr<const fastpath::AutoPolicy> policy = make_policy();
  check_policy(*policy);
  model->set_policy(policy);
  model->set_policy(fastpath::AutoPolicy::load(policy_file));
  check(*model->policy() == *policy, "a policy from a file is a value like one from code");
  fastpath::set_use_fast(*model, true);

  fastpath::EvaluateOptions options;
  options.dtype = fastpath::DType::float32;
  const fastpath::EvaluationResult result = model->evaluate(structure, options);
  std::printf("decisions, use_fast true in float32\n");
  print(result.selection);
  const fastpath::EvaluationResult again = model->evaluate(structure, options);

  std::printf("warning\n");
  for (const auto& warning : warnings) std::printf("  \"%s\"\n", warning.text.c_str());
  if (result.selection) {
    check(warnings.size() == 1, "two float32 evaluations with kernels warn exactly once");
  } else {
    check(warnings.empty(), "without kernels there is nothing to warn of");
  }
  check(again.energy == result.energy, "the same evaluation twice gives the same energy");

  // The call may say otherwise than the model.
  options.use_fast = fastpath::UseFast::never;
  const fastpath::EvaluationResult reference = model->evaluate(structure, options);
  check(all_by_reference(reference.selection, fastpath::ReasonCode::forced_reference),
        "use_fast false runs the reference everywhere");
  check(std::abs(result.energy - reference.energy) <= 1e-6 * std::abs(reference.energy),
        "both paths agree to the float32 contract, 1e-6");

  // A host that must not lose speed silently asks for an error. This context has no plugin at all.
  fastpath::ContextOptions nothing;
  nothing.registry.default_paths = false;
  fastpath::Context bare(nothing);
  fastpath::EvaluateOptions strict;
  strict.use_fast = fastpath::UseFast::always;
  strict.require_fast = true;
  strict.context = &bare;
  std::string refusal;
  try {
    model->evaluate(structure, strict);
  } catch (const fastpath::Error& error) {
    if (error.code() == fastpath::ErrorCode::strict_violation) refusal = error.what();
  }
  check(!refusal.empty(), "strict mode refuses to run the reference, with a reason");
  std::printf("  \"%s...\"\n", refusal.substr(0, 150).c_str());

  // Before a long run: measures what is not known on this machine yet, and evaluates once. Left alone, a context keeps
  // what it measures in the user's directory; this one keeps it in memory.
  fastpath::ContextOptions kept_in_memory;
  kept_in_memory.measurements = std::make_shared<fastpath::MeasurementStore>();
  fastpath::Context context(kept_in_memory);
  fastpath::EvaluateOptions long_run;
  long_run.context = &context;
  long_run.use_fast = fastpath::UseFast::automatic;
  const double budget_seconds = 1;
  const fastpath::WarmUp ready = model->warm_up(structure, long_run, budget_seconds);
  std::printf("warm-up: %zu measurements in %.1f s%s\n", ready.measured, ready.seconds,
              ready.out_of_time ? ", the budget ended before all was known well" : "");
  check(ready.measured > 0 || !result.selection, "the first warm-up measures, where there are kernels");
  check(context.measurements().empty() == (ready.measured == 0), "what was measured is kept");

  if (result.selection) {
    check_stale(*model, structure, context);
    const std::filesystem::path lock_file =
        std::filesystem::temp_directory_path() / ("host_policy-" + std::to_string(::getpid()) + ".lock");
    check_replay(*model, structure, lock_file);
    std::filesystem::remove(lock_file);
  }

  fastpath::set_warning_handler({});
  if (failures > 0) return 1;
  if (!result.selection) {
    std::printf("SKIPPED in part: no plugin has a kernel here, so the warning could not be provoked\n");
    return kSkipped;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string model = argc > 1 ? argv[1] : DEFAULT_MODEL;
  const std::string structure = argc > 2 ? argv[2] : DEFAULT_STRUCTURE;
  const std::string policy = argc > 3 ? argv[3] : DEFAULT_POLICY;
  try {
    return run(model, structure, policy);
  } catch (const fastpath::Error& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(to_string(error.code())).c_str(), error.what());
    return 1;
  }
}
