#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/sdk/attributes.hpp"
#include "fastpath/warning.hpp"
#include "verify/gate.hpp"

namespace fastpath {
namespace {

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

/// The sizes for which a decision holds: those that every comparison on the way to it would have answered alike.
struct Sizes {
  std::int64_t min = 0, max = std::numeric_limits<std::int64_t>::max();
  /// size >= threshold, remembered.
  bool at_least(std::int64_t size, std::int64_t threshold) {
    const bool result = size >= threshold;
    if (result) {
      min = std::max(min, threshold);
    } else {
      max = std::min(max, threshold - 1);
    }
    return result;
  }
};

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
  Sizes sizes = {};
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

/// The rule that speaks for or against kernels, for the whole group.
Reason rule(Setting& s, const DeviceInfo& device) {
  if (s.use_fast == UseFast::always) return {ReasonCode::forced_fast, "use_fast is true"};
  if (s.policy == nullptr) return {ReasonCode::forced_fast, "use_fast is auto without a policy"};
  if (s.device.is_cpu()) {
    return {ReasonCode::unmeasured, "use_fast is auto and nothing was measured on this CPU"};
  }
  const std::int64_t threshold = s.policy->threshold(device, s.dtype);
  s.sizes.at_least(s.size.n_edges, threshold);
  const bool fast = s.policy->decide(device, s.dtype, s.size.n_edges);
  return {fast ? ReasonCode::policy_fast : ReasonCode::policy_reference,
          fmt::format("{} {} edges, the threshold on {} in {}", fast ? "at least" : "fewer than", threshold,
                      device.name, to_string(s.dtype))};
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

/// Decides one module for which fast is possible, and writes the result into it.
Decision decide(const NamedFastModule& named, Setting& s, const std::optional<DeviceInfo>& device) {
  FastPathModule& module = *named.module;
  Decision decision{named.name, module.op().id, "reference", {}, {}};
  const std::vector<State::Answer>& answers = ask(module, s.device, s.dtype, s.passes, s.context);
  struct Ranked {
    std::size_t answer;
    std::size_t preference;
  };
  std::vector<Ranked> usable;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    Support support = answers[i].support;
    if (support && in_window(answers[i].traits, s, support)) {
      usable.push_back({i, preference(s.policy, answers[i].plugin->info().id)});
    }
    decision.candidates.push_back({answers[i].plugin->info().id, Candidate::Verdict::refused, support.reasons()});
  }
  std::stable_sort(usable.begin(), usable.end(), [&](const Ranked& a, const Ranked& b) {
    if (a.preference != b.preference) return a.preference < b.preference;
    return answers[a.answer].traits.rank > answers[b.answer].traits.rank;
  });

  const Reason speaks = device ? rule(s, *device) : Reason{ReasonCode::no_kernel, ""};
  const bool wanted = speaks.code == ReasonCode::forced_fast || speaks.code == ReasonCode::policy_fast;
  const bool fused = !module.covered().empty();
  const std::size_t best = fused ? best_of_parts(module, s) : std::numeric_limits<std::size_t>::max();
  bool placed = false;
  for (const Ranked& ranked : usable) {
    Candidate& candidate = decision.candidates[ranked.answer];
    candidate.verdict = Candidate::Verdict::not_chosen;
    if (!wanted) {
      candidate.reasons.push_back({speaks.code, speaks.text});
      continue;
    }
    if (ranked.preference > best) {
      candidate.reasons.push_back({ReasonCode::not_chosen, "another plugin comes first and has a kernel for a part"});
      continue;
    }
    if (placed) {
      candidate.reasons.push_back({ReasonCode::not_chosen, fmt::format("{} comes first", decision.choice)});
      continue;
    }
    Support support;
    if (activate(module, answers[ranked.answer], s, support)) {
      placed = true;
      decision.choice = candidate.plugin;
      candidate.verdict = Candidate::Verdict::chosen;
      candidate.reasons.push_back({ReasonCode::chosen, speaks.text});
    } else {
      candidate.verdict = Candidate::Verdict::refused;
      candidate.reasons = support.reasons();
    }
  }
  if (placed || (!wanted && !usable.empty())) {
    decision.reason = speaks;
  } else {
    decision.reason =
        s.context.registry().impl().ended()
            ? plugin::shut_down_reason()
            : Reason{ReasonCode::no_kernel,
                     answers.empty() ? fmt::format("no plugin serves {}", to_string(s.device))
                                     : fmt::format("none of {} plugin{} has a usable kernel; see the candidates",
                                                   answers.size(), answers.size() == 1 ? "" : "s")};
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
    decisions.push_back(
        {named.name, named.module->op().id, "reference", {ReasonCode::forced_reference, "use_fast is false"}, {}});
  }
  return decisions;
}

std::vector<Decision> decide_all(const std::vector<NamedFastModule>& modules, UseFast use_fast,
                                 const AutoPolicy* policy, const Device& device, DType dtype, ProblemSize size,
                                 Passes passes, Context& context, Sizes& sizes) {
  for (const NamedFastModule& named : modules) named.module->state().active = nullptr;
  Setting setting{use_fast, policy, device, dtype, size, passes, context};
  const std::optional<DeviceInfo> info = find_device(context, device);
  // Who would do the work of a module, by index; all of them, where it is shared.
  std::map<const FastPathModule*, std::vector<std::size_t>> parents;
  std::vector<bool> fused(modules.size());
  for (std::size_t i = 0; i < modules.size(); ++i) {
    for (const FastPathModule* part : modules[i].module->covered()) {
      parents[part].push_back(i);
      fused[i] = true;
    }
  }
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
        decisions[i] = Decision{named.name,
                                named.module->op().id,
                                "reference",
                                {ReasonCode::covered_by_parent, "its work is done by " + names},
                                {}};
      } else {
        decisions[i] = decide(named, setting, info);
      }
    }
  }
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (!fused[i] || decisions[i]->reason.code != ReasonCode::no_kernel) continue;
    const std::vector<FastPathModule*> parts = modules[i].module->covered();
    if (std::any_of(parts.begin(), parts.end(), [](const FastPathModule* part) { return part->fast_active(); })) {
      decisions[i]->reason = {ReasonCode::in_parts, "no fused kernel; its parts are decided one by one"};
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
           std::uint64_t context, std::uint64_t epoch) {
  if (memo.use_fast != use_fast || memo.context != context || memo.epoch != epoch || !(memo.device == device) ||
      memo.dtype != dtype || memo.passes != passes.bits() || size.n_edges < memo.min_edges ||
      size.n_edges > memo.max_edges || memo.entries.size() != modules.size() || !same(memo.policy, policy)) {
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
  static_cast<void>(threads);
  if (modules.empty()) return {};
  // Under use_fast false nobody is asked, so there need not even be a context.
  Context* const used = use_fast == UseFast::never ? nullptr : context != nullptr ? context : &Context::process();
  const std::uint64_t context_id = used != nullptr ? used->impl().id : 0,
                      epoch = used != nullptr ? used->impl().epoch() : 0;
  auto& memos = modules.front().module->state().memos;
  auto kept = std::find_if(memos.begin(), memos.end(), [&](const std::unique_ptr<State::Memo>& memo) {
    return holds(*memo, modules, use_fast, policy, device, dtype, size, passes, context_id, epoch);
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
    Sizes sizes;
    memo->selection.decisions = used != nullptr
                                    ? decide_all(modules, use_fast, policy, device, dtype, size, passes, *used, sizes)
                                    : refuse_all(modules);
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
