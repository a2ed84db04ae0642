#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "dispatch/activate.hpp"
#include "dispatch/context_impl.hpp"
#include "dispatch/parts.hpp"
#include "dispatch/speak.hpp"
#include "fastpath/error.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/warning.hpp"
#include "verify/gate.hpp"

namespace fastpath {
namespace {

using rules::ask;
using rules::failed_gate;
using rules::Faster;
using rules::preference;
using rules::Setting;
using rules::Sizes;
using rules::Speech;
using State = FastPathModule::State;

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
