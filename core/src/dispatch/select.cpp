#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "dispatch/module_state.hpp"
#include "dispatch/parts.hpp"
#include "dispatch/rules.hpp"
#include "fastpath/error.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/sdk/attributes.hpp"
#include "fastpath/warning.hpp"
#include "verify/gate.hpp"

namespace fastpath {
namespace {

using rules::Faster;
using rules::Sizes;
using rules::Speech;
using State = FastPathModule::State;

/// Asks every usable plugin about a module, once per question.
const std::vector<State::Answer>& ask(FastPathModule& module, const Device& device, DType dtype, Passes passes,
                                      Context& context) {
  State& state = module.state();
  const State::Question question{device, dtype, passes.bits(), context.impl().id, state.version()};
  if (state.question == question) return state.answers;
  const OpSpec& op = module.op();
  // Kernels belong to a configuration; one that changed is another op. Parameters alone are bound anew.
  if (op.id != state.asked.id || op.version != state.asked.version || op.config != state.asked.config) {
    state.memos.clear();
    state.slots.clear();
    state.asked = op;
  }
  state.question.reset();
  state.answers.clear();
  const std::string what = fmt::format("{}|{}|{:016x}|{}|{}", op.id, op.version, sdk::Attributes(op.config).hash(),
                                       to_string(device), to_string(dtype));
  // The device is one that some plugin has by this name; others may number it differently.
  const std::optional<DeviceInfo> wanted = find_device(context, device);
  for (const auto& plugin : context.registry().impl().usable(device.kind)) {
    State::Answer answer{plugin, nullptr, Support::yes(), {}, fmt::format("{}|{}", plugin->info().id, what)};
    if (wanted) answer.device = plugin->match_device(*wanted);
    if (answer.device != nullptr) {
      answer.support = plugin->query(op, *answer.device, dtype, passes, &answer.traits);
    } else {
      answer.support.blocked(ReasonCode::device,
                             fmt::format("{} has no device {}", plugin->info().id, to_string(device)));
    }
    state.answers.push_back(std::move(answer));
  }
  state.question = question;
  return state.answers;
}

/// Position of a plugin in the caller's list of preferences; the length of the list if it is not there.
std::size_t preference(const AutoPolicy* policy, const std::string& id) {
  if (policy == nullptr) return 0;
  std::size_t i = 0;
  while (i < policy->preference.size() && fnmatch(policy->preference[i].c_str(), id.c_str(), 0) != 0) ++i;
  return i;
}

struct Setting {
  UseFast use_fast;
  const AutoPolicy* policy;
  Device device;
  DType dtype;
  ProblemSize size;
  Passes passes;
  Context& context;
  int threads;
  Sizes sizes = {};
  /// What was measured counts here.
  bool measured = false;
  /// What speaks for all modules together, if something does: always off the CPU.
  std::optional<Speech> group = {};
  /// Off the CPU the memory of one plugin is used in an evaluation: that of the first that gets a module.
  std::string memory_owner = {};
};

bool in_window(const plugin::KernelTraits& traits, Setting& s, Support& support) {
  const bool enough = s.sizes.at_least(s.size.n_edges, traits.min_edges);
  const bool many = traits.max_edges > 0 && s.sizes.at_least(s.size.n_edges, traits.max_edges + 1);
  if (enough && !many) return true;
  support.blocked(ReasonCode::size,
                  fmt::format("{} edges; the kernel takes {} to {}", many ? "too many" : "too few", traits.min_edges,
                              traits.max_edges > 0 ? std::to_string(traits.max_edges) : "any number"));
  return false;
}

/// Whether the caller's tables say something about this device, rather than what is known of such devices in general.
std::optional<std::int64_t> callers_entry(const Setting& s, const DeviceInfo& device) {
  return s.policy->thresholds_are_priors ? std::nullopt : s.policy->entry(device, s.dtype);
}

Speech by_threshold(Setting& s, std::int64_t threshold, const DeviceInfo& device, ReasonCode fast, ReasonCode slow,
                    const char* whose) {
  const bool enough = s.sizes.at_least(s.size.n_edges, threshold);
  return {{enough ? fast : slow, fmt::format("{} {} edges, {} for {} in {}", enough ? "at least" : "fewer than",
                                             threshold, whose, device.name, to_string(s.dtype))},
          enough};
}

/// The highest of what vendors measured for the kernels that the modules would get: from there on all of them are worth
/// it. Nothing if no vendor knows.
std::optional<std::int64_t> highest_prior(const std::vector<NamedFastModule>& modules, const Setting& s) {
  std::optional<std::int64_t> highest;
  for (const NamedFastModule& named : modules) {
    const State::Answer* first = nullptr;
    std::size_t first_preference = 0;
    for (const State::Answer& answer : ask(*named.module, s.device, s.dtype, s.passes, s.context)) {
      if (!answer.support) continue;
      const std::size_t preferred = preference(s.policy, answer.plugin->info().id);
      if (first == nullptr || preferred < first_preference ||
          (preferred == first_preference && answer.traits.rank > first->traits.rank)) {
        first = &answer;
        first_preference = preferred;
      }
    }
    if (first != nullptr && first->traits.prior_edges >= 0) {
      highest = std::max(highest.value_or(0), first->traits.prior_edges);
    }
  }
  return highest;
}

/// The rule that speaks for the whole group, if there is one. On the CPU each module may have its own.
std::optional<Speech> rule_of_all(const std::vector<NamedFastModule>& modules, Setting& s, const DeviceInfo& device) {
  if (s.use_fast == UseFast::always) return Speech{{ReasonCode::forced_fast, "use_fast is true"}, true};
  if (s.policy == nullptr) return Speech{{ReasonCode::forced_fast, "use_fast is auto without a policy"}, true};
  if (const std::optional<std::int64_t> threshold = callers_entry(s, device)) {
    return by_threshold(s, *threshold, device, ReasonCode::policy_fast, ReasonCode::policy_reference,
                        "the policy's threshold");
  }
  if (s.measured) {
    const MeasurementKey key = measurement_key(modules, device, s.dtype, s.passes, s.threads);
    const std::string build = plugin_build(s.context, s.device.kind, kEveryPlugin);
    if (const auto found = s.context.measurements().find(key, build, device.driver)) {
      Speech speech = rules::judge(*found, "use_fast true", s.size.n_edges, s.sizes);
      if (speech.says_something()) return speech;
    }
  }
  if (s.device.is_cpu()) return std::nullopt;
  if (s.policy->use_priors) {
    if (const std::optional<std::int64_t> prior = highest_prior(modules, s)) {
      return by_threshold(s, *prior, device, ReasonCode::prior, ReasonCode::prior,
                          "measured by the vendors of the kernels");
    }
    if (const std::optional<std::int64_t> prior = s.policy->entry(device, s.dtype);
        prior && s.policy->thresholds_are_priors) {
      return by_threshold(s, *prior, device, ReasonCode::prior, ReasonCode::prior, "the published threshold");
    }
  }
  const std::int64_t threshold =
      s.dtype == DType::float64 ? s.policy->default_min_edges_float64 : s.policy->default_min_edges;
  return by_threshold(s, threshold, device, ReasonCode::policy_default, ReasonCode::policy_default,
                      "the policy's threshold for devices that it does not name,");
}

/// The rule that speaks for or against one kernel on the CPU, where none does for all.
Speech rule_of_one(const State::Answer& answer, const std::optional<MeasurementStore::Found>& found, Setting& s) {
  const std::string& id = answer.plugin->info().id;
  std::optional<Speech> measured;
  if (found) {
    measured = rules::judge(*found, id, s.size.n_edges, s.sizes);
    if (measured->says_something()) return *measured;
  }
  if (s.policy->use_priors && answer.traits.prior_edges >= 0) {
    const bool enough = s.sizes.at_least(s.size.n_edges, answer.traits.prior_edges);
    return {{ReasonCode::prior, fmt::format("{} than {} edges: from there on {} was faster where its vendor measured",
                                            enough ? "no fewer" : "fewer", answer.traits.prior_edges, id)},
            enough};
  }
  if (measured) return *measured;
  return {{ReasonCode::unmeasured, "use_fast is auto and nothing was measured on this CPU"}, false};
}

/// Why nothing can run on the device of a plugin, before it is opened; empty if it can be tried.
std::optional<Reason> barred(plugin::LoadedPlugin& plugin, const Setting& s) {
  if (plugin.ended()) return plugin::shut_down_reason();
  return s.context.impl().lost(plugin.info().id, s.device);
}

/// The same once it is open.
std::optional<Reason> barred(const plugin::OpenDevice& device, const std::string& id, const Setting& s) {
  if (device.forked()) {
    return Reason{ReasonCode::forked,
                  fmt::format("the process was forked after {} had opened {}", id, to_string(s.device))};
  }
  if (device.lost()) {
    return Reason{ReasonCode::device_lost, fmt::format("{} was lost in this process", to_string(s.device))};
  }
  return std::nullopt;
}

/// The device of a plugin that only brings kernels, on memory that another one lends: the one whose memory is in use,
/// else the first that can. Null, with the reason of every plugin that has memory there.
std::shared_ptr<plugin::OpenDevice> open_on_lent(plugin::LoadedPlugin& plugin, const DeviceInfo& own, const Setting& s,
                                                 Support& support) {
  bool any = false;
  for (const auto& lender : s.context.registry().impl().usable(s.device.kind)) {
    const DeviceInfo* const info = lender->match_device(own);
    if (info == nullptr || !lender->brings_memory()) continue;
    const std::string& id = lender->info().id;
    if (!s.memory_owner.empty() && s.memory_owner != id) continue;
    any = true;
    std::optional<Reason> reason = barred(*lender, s);
    if (!reason) {
      std::shared_ptr<plugin::OpenDevice> device;
      try {
        device = lender->open(*info);
      } catch (const Error& error) {
        support.blocked(ReasonCode::device, error.what());
        continue;
      }
      reason = barred(*device, id, s);
      const Support lends = device->lends();
      if (!reason && !lends) reason = lends.reasons().front();
      if (!reason) return plugin.open_on(own, device);
    }
    support.blocked(reason->code, fmt::format("{} brings kernels only, and {} cannot lend it the memory of {}: {}",
                                              plugin.info().id, id, to_string(s.device), reason->text));
  }
  if (!any) {
    support.blocked(ReasonCode::device,
                    fmt::format("{} brings kernels only, and no other plugin lends it the memory of {}",
                                plugin.info().id, to_string(s.device)));
  }
  return nullptr;
}

/// Opens the device of a plugin. Null, with a reason, if nothing can run on it.
std::shared_ptr<plugin::OpenDevice> open(plugin::LoadedPlugin& plugin, const DeviceInfo& own, const Setting& s,
                                         Support& support) {
  std::optional<Reason> reason = barred(plugin, s);
  std::shared_ptr<plugin::OpenDevice> device;
  if (!reason) {
    const bool lent = !s.device.is_cpu() && !plugin.brings_memory();
    device = lent ? open_on_lent(plugin, own, s, support) : plugin.open(own);
    if (device == nullptr) return nullptr;
    reason = barred(*device, plugin.info().id, s);
  }
  if (reason) support.blocked(reason->code, reason->text);
  return support ? device : nullptr;
}

/// Lets a kernel show that it agrees with the reference, once per process. False, with a reason, if it does not.
bool verified(FastPathModule& module, State::Slot& slot, const DeviceInfo& own, const Setting& s, Support& support) {
  Context::Impl& context = s.context.impl();
  const std::uint64_t version = module.state().version();
  if (!context.gate || (slot.gate_context == context.id && slot.gate_version == version)) return true;
  const auto refuse = [&](const std::string& text) {
    support.blocked(ReasonCode::not_verified, text);
    return false;
  };
  // Other parameters do not matter, unless they are constants: those are part of the key.
  std::string key = verify::gate_key(module, *slot.plugin, own, slot.key, s.dtype, s.passes);
  const bool again = slot.gate_context == context.id && slot.gate_key == key;
  slot.gate_key = std::move(key);
  slot.gate_version = version;
  if (again) return true;
  if (verify::has_schema(module.op())) {
    verify::GateResult result;
    try {
      result = context.gates.result(slot.gate_key, slot.plugin->build_is_content(), [&] {
        return verify::try_kernel(module, *slot.kernel, *slot.device, s.dtype, s.passes);
      });
    } catch (const Error& error) {
      if (error.code() == ErrorCode::device_lost) throw;
      result.text = fmt::format("could not be tried: {}", error.what());
    }
    slot.bound_version = 0;
    if (!result.passed) return refuse(result.text);
  } else {
    // Nobody but the host knows what inputs make sense, so its first call of each pass is compared.
    slot.unverified = 0;
    for (std::uint32_t pass = 1; pass <= s.passes.bits(); pass <<= 1) {
      if ((s.passes.bits() & pass) == 0) continue;
      const auto known = context.gates.find(fmt::format("{}|first call|{}", slot.gate_key, pass));
      if (!known) slot.unverified |= pass;
      if (known && !known->passed) return refuse(known->text);
    }
  }
  slot.gate_context = context.id;
  return true;
}

/// Makes the kernel of an answer the module's active one. False, with a reason, if it cannot be had.
bool activate(FastPathModule& module, const State::Answer& answer, Setting& s, Support& support) {
  State& state = module.state();
  Context::Impl& context = s.context.impl();
  if (const std::optional<Reason> out = context.taken_out(answer.key)) {
    support.blocked(out->code, out->text);
    return false;
  }
  try {
    const std::shared_ptr<plugin::OpenDevice> device = open(*answer.plugin, *answer.device, s, support);
    if (!device) return false;
    const std::string lender = device->lender();
    const std::string& owner = lender.empty() ? answer.plugin->info().id : lender;
    if (device->owns_memory() && !s.memory_owner.empty() && s.memory_owner != owner) {
      support.blocked(ReasonCode::device, fmt::format("the memory of {} belongs to {} in this evaluation",
                                                      to_string(s.device), s.memory_owner));
      return false;
    }
    auto slot = std::find_if(state.slots.begin(), state.slots.end(), [&](const std::unique_ptr<State::Slot>& known) {
      return known->plugin == answer.plugin && known->device->lender() == lender && known->key == answer.key &&
             known->passes == s.passes.bits();
    });
    if (slot == state.slots.end()) {
      auto made = std::make_unique<State::Slot>();
      made->plugin = answer.plugin;
      made->device = device;
      made->kernel = device->create_kernel(module.op(), s.dtype, s.passes);
      made->dtype = s.dtype;
      made->passes = s.passes.bits();
      made->key = answer.key;
      slot = state.slots.insert(state.slots.end(), std::move(made));
    }
    // A kernel that is not stays: another context, without a gate, may be using it.
    if (!verified(module, **slot, *answer.device, s, support)) return false;
    if (device->owns_memory()) s.memory_owner = owner;
    state.active = slot->get();
    state.context = &s.context;
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::device_lost) {
      context.lose(answer.plugin->info().id, s.device, error.what());
      throw;
    }
    if (answer.plugin->ended()) {
      support.blocked(ReasonCode::shut_down, error.what());
      return false;
    }
    support.blocked(ReasonCode::create_failed, error.what());
    context.record_failure(answer.key, error.what());
    return false;
  }
}

/// How early the policy lists a plugin that has a kernel for a part of a fused module.
std::size_t best_of_parts(FastPathModule& fused, const Setting& s) {
  std::size_t best = std::numeric_limits<std::size_t>::max();
  if (s.policy == nullptr || s.policy->preference.empty()) return best;
  for (FastPathModule* part : fused.covered()) {
    for (const State::Answer& answer : ask(*part, s.device, s.dtype, s.passes, s.context)) {
      if (answer.support) best = std::min(best, preference(s.policy, answer.plugin->info().id));
    }
  }
  return best;
}

Decision blank(const NamedFastModule& named) {
  const OpSpec& op = named.module->op();
  Decision decision{named.name, op.id, "reference", {}, {}};
  decision.op_version = op.version;
  decision.config = op_config(op);
  return decision;
}

/// A kernel that answered yes, and what speaks for it.
struct Ranked {
  std::size_t answer = 0;
  std::size_t preference = 0;
  std::optional<MeasurementStore::Found> found = {};
  std::optional<double> seconds = {};  // of an evaluation of this size
  Speech speech = {};
};

/// Of two kernels that were both measured.
std::optional<rules::Comparison> compare(const Ranked& a, const Ranked& b, const Setting& s) {
  if (!a.found || !b.found) return std::nullopt;
  return rules::compare(a.found->measurement->points, b.found->measurement->points, s.size.n_edges);
}

/// Measured kernels by their times, then the others by rank; in search order where that says nothing.
void sort(std::vector<Ranked>& usable, const std::vector<State::Answer>& answers, Setting& s) {
  for (std::size_t i = 0; i < usable.size(); ++i) {
    for (std::size_t k = i + 1; k < usable.size(); ++k) {
      if (usable[i].preference != usable[k].preference || !usable[i].found || !usable[k].found) continue;
      rules::keep_order(usable[i].found->measurement->points, usable[k].found->measurement->points, s.size.n_edges,
                        s.sizes);
    }
  }
  std::stable_sort(usable.begin(), usable.end(), [&](const Ranked& a, const Ranked& b) {
    if (a.preference != b.preference) return a.preference < b.preference;
    if (const auto both = compare(a, b, s)) return both->a < both->b;
    if (a.seconds.has_value() != b.seconds.has_value()) return a.seconds.has_value();
    return answers[a.answer].traits.rank > answers[b.answer].traits.rank;
  });
}

/// Why one of two usable kernels comes before the other.
std::string why_first(const Ranked& first, const Ranked& other, const std::vector<State::Answer>& answers,
                      const Setting& s) {
  if (first.preference != other.preference) return "the policy prefers it";
  if (const auto both = compare(first, other, s); both && both->a < both->b) {
    return both->n_edges == s.size.n_edges
               ? "it was measured to be the faster of the two"
               : fmt::format(
                     "it was measured to be the faster of the two at {} edges, the nearest that both were "
                     "measured for",
                     both->n_edges);
  }
  if (first.seconds) return "it was measured here";
  if (answers[first.answer].traits.rank != answers[other.answer].traits.rank) return "its rank is higher";
  return "it was found first";
}

/// What the lock that is replayed says about a module; null without one. @throws Error(unavailable) if it says nothing.
const LockedChoice* locked(const NamedFastModule& named, Setting& s) {
  const SelectionLock* const lock = s.context.impl().replay.get();
  if (lock == nullptr) return nullptr;
  std::string why;
  const LockedChoice* const choice =
      lock->find(named.name, named.module->op(), s.device, s.dtype, s.passes, s.size.n_edges, why);
  if (choice == nullptr) throw Error(ErrorCode::unavailable, fmt::format("the lock cannot be replayed: {}", why));
  s.sizes.within(choice->min_edges, choice->max_edges);
  return choice;
}

/// What speaks for each usable kernel of a module, by the rules that name a kernel: lock and environment. False if none
/// of them speaks.
bool speak_by_name(const FastPathModule& module, const std::vector<State::Answer>& answers, const LockedChoice* choice,
                   std::vector<Ranked>& usable, Setting& s) {
  const std::string* const asked = rules::override_of(s.context, module.op().id);
  if (choice == nullptr && asked == nullptr) return false;
  const std::string& plugin = choice != nullptr ? choice->choice : *asked;
  const Reason reason =
      choice != nullptr
          ? Reason{ReasonCode::lock, fmt::format("the lock says {}", plugin)}
          : Reason{ReasonCode::environment, fmt::format("{} is {}", rules::override_name(module.op().id), plugin)};
  for (Ranked& ranked : usable) ranked.speech = {reason, answers[ranked.answer].plugin->info().id == plugin};
  return true;
}

/// A part of a fused module for which the environment asks for something else than this plugin; its variable.
std::string part_asks_otherwise(FastPathModule& fused, const std::string& plugin, const Setting& s) {
  for (FastPathModule* part : fused.covered()) {
    const std::string* const asked = rules::override_of(s.context, part->op().id);
    if (asked != nullptr && *asked != plugin) return rules::override_name(part->op().id);
  }
  return {};
}

/// Fails where the lock's choice could not be made.
void require_locked(const NamedFastModule& named, const LockedChoice& choice, const Decision& decision) {
  std::string why = "no such plugin is usable here";
  for (const Candidate& candidate : decision.candidates) {
    if (candidate.plugin != choice.choice) continue;
    why.clear();
    for (const Reason& reason : candidate.reasons) why += (why.empty() ? "" : "; ") + reason.text;
  }
  if (decision.choice == choice.choice) {
    if (decision.build == choice.build) return;
    why = fmt::format("the lock's build of it is '{}', here it is '{}'", choice.build, decision.build);
  }
  throw Error(ErrorCode::unavailable,
              fmt::format("the lock cannot be replayed: {} ran {} in it: {}", named.name, choice.choice, why));
}

/// Why a module for which a kernel was wanted, or would have been, has none.
Reason nothing_placed(const Decision& decision, const std::vector<Ranked>& usable, Setting& s) {
  for (const Ranked& ranked : usable) {
    if (ranked.speech.fast) continue;
    return ranked.speech.reason;
  }
  if (s.context.registry().impl().ended()) return plugin::shut_down_reason();
  const std::size_t count = decision.candidates.size();
  if (count == 0) return {ReasonCode::no_kernel, fmt::format("no plugin serves {}", to_string(s.device))};
  const bool wrong = !usable.empty() && std::all_of(usable.begin(), usable.end(), [&](const Ranked& ranked) {
    const std::vector<Reason>& reasons = decision.candidates[ranked.answer].reasons;
    return !reasons.empty() && reasons.front().code == ReasonCode::not_verified;
  });
  const std::string text =
      fmt::format("none of {} plugin{} has a usable kernel; see the candidates", count, count == 1 ? "" : "s");
  return {wrong ? ReasonCode::not_verified : ReasonCode::no_kernel, text};
}

/// What can be said of a module's kernels before any of them is made.
struct Considered {
  std::vector<Ranked> usable;         ///< In the order of choice.
  std::vector<Candidate> candidates;  ///< One an answer; those that are not usable with their reasons.
  bool by_name = false;               ///< A rule that names a kernel has spoken.
};

Considered consider(FastPathModule& module, const LockedChoice* choice, Setting& s,
                    const std::optional<DeviceInfo>& device) {
  const std::vector<State::Answer>& answers = ask(module, s.device, s.dtype, s.passes, s.context);
  Considered result;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    Support support = answers[i].support;
    const std::string& id = answers[i].plugin->info().id;
    if (support && device && in_window(answers[i].traits, s, support)) {
      Ranked ranked{i, preference(s.policy, id)};
      if (s.measured) {
        ranked.found =
            s.context.measurements().find(measurement_key(module.op(), id, *device, s.dtype, s.passes, s.threads),
                                          answers[i].plugin->build(), device->driver);
      }
      if (ranked.found)
        ranked.seconds = predict_seconds(ranked.found->measurement->points, s.size.n_edges, Arm::kernel);
      result.usable.push_back(std::move(ranked));
    }
    result.candidates.push_back({id, Candidate::Verdict::refused, support.reasons()});
  }
  sort(result.usable, answers, s);
  result.by_name = speak_by_name(module, answers, choice, result.usable, s);
  if (!result.by_name) {
    for (Ranked& ranked : result.usable) {
      ranked.speech = s.group ? *s.group : rule_of_one(answers[ranked.answer], ranked.found, s);
    }
  }
  return result;
}

const Ranked* first_fast(const Considered& considered) {
  const auto found = std::find_if(considered.usable.begin(), considered.usable.end(),
                                  [](const Ranked& ranked) { return ranked.speech.fast; });
  return found == considered.usable.end() ? nullptr : &*found;
}

/// What the path costs that a module would take by itself. Nothing if it was not measured.
std::optional<rules::Cost> cost_alone(FastPathModule& module, Setting& s, const DeviceInfo& device) {
  const Considered considered = consider(module, nullptr, s, device);
  if (const Ranked* const first = first_fast(considered)) {
    return first->found ? std::optional(rules::Cost{first->found->measurement, Arm::kernel}) : std::nullopt;
  }
  for (const Ranked& ranked : considered.usable) {
    if (ranked.found) return rules::Cost{ranked.found->measurement, Arm::reference};
  }
  return std::nullopt;
}

/// Who would do the work of a module, by index; all of them, where it is shared.
using Parents = std::map<const FastPathModule*, std::vector<std::size_t>>;

/// The kernel that a fused module would run, if the rules have not settled that already. @param runs  Whether it would.
std::optional<rules::Cost> cost_fused(FastPathModule& module, Setting& s, const DeviceInfo& device, bool& runs) {
  const Considered considered = consider(module, nullptr, s, device);
  const Ranked* const first = first_fast(considered);
  runs = first != nullptr;
  if (!runs || considered.by_name) return std::nullopt;
  runs = part_asks_otherwise(module, considered.candidates[first->answer].plugin, s).empty();
  if (s.policy != nullptr && !s.policy->preference.empty()) {
    const std::size_t best = best_of_parts(module, s);
    runs = runs && first->preference <= best;
    if (first->preference != best) return std::nullopt;
  }
  if (!runs || !first->found) return std::nullopt;
  return rules::Cost{first->found->measurement, Arm::kernel};
}

/// For each module whether its fused kernel or its parts one by one are faster.
std::vector<Faster> compare_with_parts(const std::vector<NamedFastModule>& modules, const Parents& parents, Setting& s,
                                       const std::optional<DeviceInfo>& device) {
  std::vector<Faster> result(modules.size(), Faster::unknown);
  // Off the CPU nobody knows what an op costs alone, and a lock says what ran.
  if (!s.measured || !s.device.is_cpu() || !device || s.context.impl().replay != nullptr) return result;
  std::vector<rules::FusedCost> fused;
  std::vector<rules::SharedPart> shared;
  std::map<const FastPathModule*, std::size_t> index;  // in `shared`
  std::vector<bool> runs_fused(modules.size());
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const std::vector<FastPathModule*> parts = modules[i].module->covered();
    if (parts.empty()) continue;
    bool runs = false;
    const std::optional<rules::Cost> kernel = cost_fused(*modules[i].module, s, *device, runs);
    runs_fused[i] = runs;
    if (!kernel) continue;
    rules::FusedCost cost{i, *kernel, {}, {}};
    bool known = true;
    for (FastPathModule* part : parts) {
      const auto owners = parents.find(part);
      // Whether a part that is fused itself would run in parts is not followed.
      known = known && owners != parents.end() && part->covered().empty();
      if (!known) break;
      if (owners->second.size() > 1) {
        if (index.emplace(part, shared.size()).second) shared.push_back({cost_alone(*part, s, *device)});
        cost.shared.push_back(index.at(part));
      } else if (const std::optional<rules::Cost> alone = cost_alone(*part, s, *device)) {
        cost.own.push_back(*alone);
      } else {
        known = false;
      }
    }
    if (known) fused.push_back(std::move(cost));
  }
  for (const auto& [part, at] : index) {
    const std::vector<std::size_t>& owners = parents.at(part);
    shared[at].needed_anyway =
        !std::all_of(owners.begin(), owners.end(), [&](std::size_t owner) { return runs_fused[owner]; });
  }
  const std::vector<Faster> faster = rules::compare(fused, shared, s.size.n_edges, s.sizes);
  for (std::size_t i = 0; i < fused.size(); ++i) result[fused[i].module] = faster[i];
  return result;
}

/// Decides one module for which fast is possible, and writes the result into it.
Decision decide(const NamedFastModule& named, Setting& s, const std::optional<DeviceInfo>& device, Faster faster) {
  FastPathModule& module = *named.module;
  Decision decision = blank(named);
  const LockedChoice* const choice = locked(named, s);
  const std::vector<State::Answer>& answers = ask(module, s.device, s.dtype, s.passes, s.context);
  Considered considered = consider(module, choice, s, device);
  std::vector<Ranked>& usable = considered.usable;
  decision.candidates = std::move(considered.candidates);
  const bool by_name = considered.by_name;
  if (faster == Faster::in_one_piece) {
    const auto first = std::find_if(usable.begin(), usable.end(), [](const Ranked& r) { return r.speech.fast; });
    if (first != usable.end()) first->speech.reason.text += "; its parts one by one were not measured to be faster";
  }

  const bool fused = !module.covered().empty();
  const std::size_t best = fused && !by_name ? best_of_parts(module, s) : std::numeric_limits<std::size_t>::max();
  const Ranked* placed = nullptr;
  for (Ranked& ranked : usable) {
    Candidate& candidate = decision.candidates[ranked.answer];
    candidate.verdict = Candidate::Verdict::not_chosen;
    if (ranked.speech.fast && fused && !by_name) {
      if (const std::string variable = part_asks_otherwise(module, candidate.plugin, s); !variable.empty()) {
        ranked.speech = {{ReasonCode::environment, fmt::format("{} asks for another path of a part", variable)}, false};
      }
    }
    if (ranked.speech.fast && faster == Faster::in_parts && !by_name) {
      const std::string text = fmt::format("{} was measured to be slower than the parts one by one", candidate.plugin);
      ranked.speech = {{ReasonCode::measured, text}, false};
    }
    if (!ranked.speech.fast) {
      candidate.reasons.push_back(ranked.speech.reason);
      continue;
    }
    if (ranked.preference > best) {
      candidate.reasons.push_back({ReasonCode::not_chosen, "another plugin comes first and has a kernel for a part"});
      continue;
    }
    if (placed != nullptr) {
      const std::string why = why_first(*placed, ranked, answers, s);
      candidate.reasons.push_back({ReasonCode::not_chosen, fmt::format("{} comes first: {}", decision.choice, why)});
      continue;
    }
    Support support;
    if (activate(module, answers[ranked.answer], s, support)) {
      placed = &ranked;
      decision.choice = candidate.plugin;
      decision.build = answers[ranked.answer].plugin->build();
      candidate.verdict = Candidate::Verdict::chosen;
      candidate.reasons.push_back({ReasonCode::chosen, ranked.speech.reason.text});
    } else {
      candidate.verdict = Candidate::Verdict::refused;
      candidate.reasons = support.reasons();
    }
  }
  decision.reason = placed != nullptr ? placed->speech.reason : nothing_placed(decision, usable, s);
  if (choice != nullptr) {
    if (choice->choice == "reference") {
      decision.reason = {ReasonCode::lock, "the lock says reference"};
    } else {
      require_locked(named, *choice, decision);
    }
  } else if (const std::string* const asked = rules::override_of(s.context, module.op().id);
             asked != nullptr && placed == nullptr && *asked != "reference") {
    decision.reason = {ReasonCode::no_kernel,
                       fmt::format("{} is {}, which has no usable kernel for this module; see the candidates",
                                   rules::override_name(module.op().id), *asked)};
  }
  return decision;
}

/// Why a kernel is known not to agree with the reference, if it is.
std::optional<Reason> failed_gate(const FastPathModule& module, const State::Answer& answer, DType dtype, Passes passes,
                                  Context& context) {
  if (!context.impl().gate || answer.device == nullptr) return std::nullopt;
  const auto known =
      context.impl().gates.find(verify::gate_key(module, *answer.plugin, *answer.device, answer.key, dtype, passes));
  if (!known || known->passed) return std::nullopt;
  return Reason{ReasonCode::not_verified, known->text};
}

bool same(const std::optional<AutoPolicy>& kept, const AutoPolicy* policy) {
  return policy == nullptr ? !kept.has_value() : kept == *policy;
}

std::vector<Decision> refuse_all(const std::vector<NamedFastModule>& modules) {
  std::vector<Decision> decisions;
  for (const NamedFastModule& named : modules) {
    named.module->state().active = nullptr;
    decisions.push_back(blank(named));
    decisions.back().reason = {ReasonCode::forced_reference, "use_fast is false"};
  }
  return decisions;
}

std::vector<Decision> decide_all(const std::vector<NamedFastModule>& modules, UseFast use_fast,
                                 const AutoPolicy* policy, const Device& device, DType dtype, ProblemSize size,
                                 Passes passes, Context& context, int threads, Sizes& sizes) {
  rules::check_overrides(context, modules, device.kind);
  for (const NamedFastModule& named : modules) named.module->state().active = nullptr;
  Setting setting{use_fast, policy, device, dtype, size, passes, context, threads};
  const std::optional<DeviceInfo> info = find_device(context, device);
  setting.measured = info && !context.deterministic() && !context.measurements().empty();
  if (info) setting.group = rule_of_all(modules, setting, *info);
  Parents parents;
  std::vector<bool> fused(modules.size());
  for (std::size_t i = 0; i < modules.size(); ++i) {
    for (const FastPathModule* part : modules[i].module->covered()) {
      parents[part].push_back(i);
      fused[i] = true;
    }
  }
  const std::vector<Faster> faster = compare_with_parts(modules, parents, setting, info);
  std::vector<std::optional<Decision>> decisions(modules.size());
  const auto covered_by = [&](std::size_t i) -> std::string {
    const auto found = parents.find(modules[i].module);
    if (found == parents.end()) return {};
    std::string names;
    for (const std::size_t parent : found->second) {
      const bool done = decisions[parent] &&
                        (decisions[parent]->fast() || decisions[parent]->reason.code == ReasonCode::covered_by_parent);
      if (!done) return {};
      names += (names.empty() ? "" : ", ") + modules[parent].name;
    }
    return names;
  };
  for (const bool want_fused : {true, false}) {
    for (std::size_t i = 0; i < modules.size(); ++i) {
      if (fused[i] != want_fused) continue;
      const NamedFastModule& named = modules[i];
      if (const std::string names = covered_by(i); !names.empty()) {
        decisions[i] = blank(named);
        decisions[i]->reason = {ReasonCode::covered_by_parent, "its work is done by " + names};
      } else {
        decisions[i] = decide(named, setting, info, faster[i]);
      }
    }
  }
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (!fused[i] || decisions[i]->fast() || decisions[i]->reason.code == ReasonCode::covered_by_parent) continue;
    const std::vector<FastPathModule*> parts = modules[i].module->covered();
    if (std::any_of(parts.begin(), parts.end(), [](const FastPathModule* part) { return part->fast_active(); })) {
      decisions[i]->reason = {ReasonCode::in_parts, fmt::format("its parts are decided one by one; in one piece: {}",
                                                                decisions[i]->reason.text)};
    }
  }
  std::vector<Decision> result;
  for (std::optional<Decision>& decision : decisions) result.push_back(std::move(*decision));
  sizes = setting.sizes;
  return result;
}

/// True if a kept selection is the one that would be made now.
bool holds(const State::Memo& memo, const std::vector<NamedFastModule>& modules, UseFast use_fast,
           const AutoPolicy* policy, const Device& device, DType dtype, const ProblemSize& size, Passes passes,
           std::uint64_t context, std::uint64_t epoch, int threads) {
  if (memo.threads != threads || memo.use_fast != use_fast || memo.context != context || memo.epoch != epoch ||
      !(memo.device == device) || memo.dtype != dtype || memo.passes != passes.bits() ||
      size.n_edges < memo.min_edges || size.n_edges > memo.max_edges || memo.entries.size() != modules.size() ||
      !same(memo.policy, policy)) {
    return false;
  }
  for (std::size_t i = 0; i < modules.size(); ++i) {
    const State::Memo::Entry& entry = memo.entries[i];
    const NamedFastModule& named = modules[i];
    if (entry.module != named.module || entry.state != named.module->state().id ||
        entry.version != named.module->state().version() || entry.name != named.name) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::optional<DeviceInfo> find_device(Context& context, const Device& device) {
  if (device.is_cpu()) return cpu_info();
  for (const auto& plugin : context.registry().impl().usable(device.kind)) {
    if (const DeviceInfo* info = plugin->find_device(device)) return *info;
  }
  return std::nullopt;
}

Support FastPathModule::fast_supported(const Device& device, DType dtype, Passes passes, Context* context) const {
  Context& used = context != nullptr ? *context : Context::process();
  // Asking changes nothing that is observable; the answers are kept in the module.
  auto& self = const_cast<FastPathModule&>(*this);
  Support all;
  const auto& answers = ask(self, device, dtype, passes, used);
  for (const State::Answer& answer : answers) {
    Support support = answer.support;
    if (support) {
      std::optional<Reason> out = used.impl().taken_out(answer.key);
      if (!out && answer.plugin->ended()) out = plugin::shut_down_reason();
      if (!out) out = used.impl().lost(answer.plugin->info().id, device);
      if (!out) out = failed_gate(*this, answer, dtype, passes, used);
      if (!out) return Support::yes();
      support.blocked(out->code, out->text);
    }
    for (const Reason& reason : support.reasons()) {
      all.blocked(reason.code, fmt::format("{}: {}", answer.plugin->info().id, reason.text));
    }
  }
  if (answers.empty()) all.blocked(ReasonCode::no_kernel, fmt::format("no plugin serves {}", to_string(device)));
  return all;
}

const std::vector<Decision>& Decisions::list() const noexcept {
  static const auto* none = new std::vector<Decision>();
  return list_ ? *list_ : *none;
}

std::vector<Decision>& Decisions::edit() {
  if (!list_ || list_.use_count() > 1) list_ = std::make_shared<std::vector<Decision>>(list());
  return *list_;
}

bool Selection::any_fast() const noexcept {
  return std::any_of(decisions.begin(), decisions.end(), [](const Decision& decision) { return decision.fast(); });
}

std::vector<NamedFastModule> fast_modules(Module& model) {
  std::vector<NamedFastModule> result;
  for (const auto& [name, module] : model.named_modules()) {
    if (auto* fast = dynamic_cast<FastPathModule*>(module)) result.push_back({name, fast});
  }
  return result;
}

std::size_t FastCapableRange::next(std::size_t from) const {
  while (from < modules_.size() && !modules_[from].module->fast_supported(device_, dtype_, passes_, context_)) ++from;
  return from;
}

FastCapableRange iter_fast_capable(Module& model, const Device& device, DType dtype, Passes passes, Context* context) {
  return {fast_modules(model), device, dtype, passes, context};
}

Selection select(const std::vector<NamedFastModule>& modules, UseFast use_fast, const AutoPolicy* policy,
                 const Device& device, DType dtype, ProblemSize size, Passes passes, Context* context, int threads) {
  if (modules.empty()) return {};
  // Under use_fast false nobody is asked, so there need not even be a context.
  Context* const used = use_fast == UseFast::never ? nullptr : context != nullptr ? context : &Context::process();
  const std::uint64_t context_id = used != nullptr ? used->impl().id : 0,
                      epoch = used != nullptr ? used->impl().epoch() : 0;
  const int used_threads = used == nullptr ? 0 : threads > 0 ? threads : used->threads();
  auto& memos = modules.front().module->state().memos;
  auto kept = std::find_if(memos.begin(), memos.end(), [&](const std::unique_ptr<State::Memo>& memo) {
    return holds(*memo, modules, use_fast, policy, device, dtype, size, passes, context_id, epoch, used_threads);
  });
  if (kept != memos.end()) {
    for (const State::Memo::Entry& entry : (*kept)->entries) {
      State& state = const_cast<FastPathModule*>(entry.module)->state();
      state.active = entry.slot;
      state.context = used;
    }
  } else {
    auto memo = std::make_unique<State::Memo>();
    memo->use_fast = use_fast;
    if (policy != nullptr) memo->policy = *policy;
    memo->device = device;
    memo->dtype = dtype;
    memo->passes = passes.bits();
    memo->context = context_id;
    memo->epoch = epoch;
    memo->threads = used_threads;
    Sizes sizes;
    memo->selection.decisions =
        used != nullptr ? decide_all(modules, use_fast, policy, device, dtype, size, passes, *used, used_threads, sizes)
                        : refuse_all(modules);
    memo->selection.device = device;
    memo->selection.dtype = dtype;
    memo->selection.passes = passes;
    memo->selection.min_edges = sizes.min;
    memo->selection.max_edges = sizes.max;
    memo->min_edges = sizes.min;
    memo->max_edges = sizes.max;
    memo->any_fast = memo->selection.any_fast();
    for (const NamedFastModule& named : modules) {
      const State& state = named.module->state();
      memo->entries.push_back({named.name, named.module, state.id, state.version(), state.active});
    }
    if (memos.size() >= State::kMemos) memos.pop_back();
    kept = memos.insert(memos.begin(), std::move(memo));
  }
  const bool compare = (*kept)->any_fast && used->impl().shadow_due();
  for (const NamedFastModule& named : modules) {
    named.module->state().compare = compare;
    named.module->state().last_failure.reset();
  }
  if (dtype == DType::float32 && (*kept)->any_fast) warn_float32_once();
  return (*kept)->selection;
}

bool hold_plugins(const std::vector<NamedFastModule>& modules, plugin::Lease& lease) {
  return std::all_of(modules.begin(), modules.end(), [&](const NamedFastModule& named) {
    const State::Slot* const slot = named.module->state().active;
    return slot == nullptr || slot->device->hold(lease);
  });
}

void deactivate(Module& model) {
  for (const NamedFastModule& named : fast_modules(model)) named.module->state().active = nullptr;
}

}  // namespace fastpath
