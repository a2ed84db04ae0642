#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <optional>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/sdk/attributes.hpp"
#include "fastpath/warning.hpp"

namespace fastpath {
namespace {

using State = FastPathModule::State;

/// Asks every usable plugin about a module, once per question.
const std::vector<State::Answer>& ask(FastPathModule& module, const Device& device, DType dtype, Passes passes,
                                      Context& context) {
  State& state = module.state();
  const State::Question question{device, dtype, passes.bits(), &context, state.version()};
  if (state.question == question) return state.answers;
  // Kernels belong to a configuration; one that changed is another op.
  if (state.question && state.question->version != question.version) state.slots.clear();
  state.question.reset();
  state.answers.clear();
  for (const auto& plugin : context.registry().impl().usable(device.kind)) {
    State::Answer answer{plugin, Support::yes(), {}};
    if (const DeviceInfo* info = plugin->find_device(device)) {
      answer.support = plugin->query(module.op(), *info, dtype, passes, &answer.traits);
    } else {
      answer.support.blocked(ReasonCode::device,
                             fmt::format("{} has no device {}", plugin->info().id, to_string(device)));
    }
    state.answers.push_back(std::move(answer));
  }
  state.question = question;
  return state.answers;
}

std::string kernel_key(const State::Answer& answer, const FastPathModule& module, const Device& device, DType dtype) {
  const OpSpec& op = module.op();
  return fmt::format("{}|{}|{}|{:016x}|{}|{}", answer.plugin->info().id, op.id, op.version,
                     sdk::Attributes(op.config).hash(), to_string(device), to_string(dtype));
}

/// Position of a plugin in the caller's list of preferences; the length of the list if it is not there.
std::size_t preference(const AutoPolicy* policy, const std::string& id) {
  if (policy == nullptr) return 0;
  std::size_t i = 0;
  while (i < policy->preference.size() && fnmatch(policy->preference[i].c_str(), id.c_str(), 0) != 0) ++i;
  return i;
}

bool in_window(const plugin::KernelTraits& traits, const ProblemSize& size, Support& support) {
  if (size.n_edges < traits.min_edges || (traits.max_edges > 0 && size.n_edges > traits.max_edges)) {
    support.blocked(ReasonCode::size,
                    fmt::format("{} edges; the kernel takes {} to {}", size.n_edges, traits.min_edges,
                                traits.max_edges > 0 ? std::to_string(traits.max_edges) : "any number"));
    return false;
  }
  return true;
}

struct Setting {
  UseFast use_fast;
  const AutoPolicy* policy;
  Device device;
  DType dtype;
  ProblemSize size;
  Passes passes;
  Context& context;
  /// Off the CPU one plugin owns the memory of the device in an evaluation: the first that gets a module.
  const plugin::LoadedPlugin* memory_owner = nullptr;
};

/// The rule that speaks for or against kernels, for the whole group.
Reason rule(const Setting& s, const DeviceInfo& device) {
  if (s.use_fast == UseFast::always) return {ReasonCode::forced_fast, "use_fast is true"};
  if (s.policy == nullptr) return {ReasonCode::forced_fast, "use_fast is auto without a policy"};
  if (s.device.is_cpu()) {
    return {ReasonCode::unmeasured, "use_fast is auto and nothing was measured on this CPU"};
  }
  const std::int64_t threshold = s.policy->threshold(device, s.dtype);
  const bool fast = s.policy->decide(device, s.dtype, s.size.n_edges);
  return {
      fast ? ReasonCode::policy_fast : ReasonCode::policy_reference,
      fmt::format("{} edges, threshold {} on {} in {}", s.size.n_edges, threshold, device.name, to_string(s.dtype))};
}

/// Makes the kernel of an answer the module's active one. False, with a reason, if it cannot be had.
bool activate(FastPathModule& module, const State::Answer& answer, Setting& s, Support& support) {
  State& state = module.state();
  const std::string key = kernel_key(answer, module, s.device, s.dtype);
  if (const std::string text = s.context.impl().taken_out(key); !text.empty()) {
    support.blocked(ReasonCode::run_failed, fmt::format("failed twice in this process: {}", text));
    return false;
  }
  std::unique_ptr<State::Slot>& slot = state.slots[fmt::format("{}|{}", key, s.passes.bits())];
  if (!slot) {
    try {
      auto made = std::make_unique<State::Slot>();
      made->plugin = answer.plugin;
      made->device = answer.plugin->open(*answer.plugin->find_device(s.device));
      if (!s.device.is_cpu() && !made->device->owns_memory()) {
        support.blocked(ReasonCode::device,
                        fmt::format("{} brings kernels only, and no other plugin lends it the memory of {}",
                                    answer.plugin->info().id, to_string(s.device)));
        return false;
      }
      made->kernel = made->device->create_kernel(module.op(), s.dtype, s.passes);
      made->key = key;
      slot = std::move(made);
    } catch (const Error& error) {
      support.blocked(ReasonCode::create_failed, error.what());
      if (error.code() == ErrorCode::device_lost) throw;
      s.context.impl().record_failure(key, error.what());
      return false;
    }
  }
  if (slot->device->owns_memory()) {
    if (s.memory_owner != nullptr && s.memory_owner != answer.plugin.get()) {
      support.blocked(ReasonCode::device, fmt::format("the memory of {} belongs to {} in this evaluation",
                                                      to_string(s.device), s.memory_owner->info().id));
      return false;
    }
    s.memory_owner = answer.plugin.get();
  }
  state.active = slot.get();
  state.context = &s.context;
  return true;
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
    if (support && in_window(answers[i].traits, s.size, support)) {
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
  bool placed = false;
  for (const Ranked& ranked : usable) {
    Candidate& candidate = decision.candidates[ranked.answer];
    candidate.verdict = Candidate::Verdict::not_chosen;
    if (!wanted) {
      candidate.reasons.push_back({speaks.code, speaks.text});
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
    decision.reason = {ReasonCode::no_kernel,
                       answers.empty() ? fmt::format("no plugin serves {}", to_string(s.device))
                                       : fmt::format("none of {} plugin{} has a usable kernel; see the candidates",
                                                     answers.size(), answers.size() == 1 ? "" : "s")};
  }
  return decision;
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
      const std::string text = used.impl().taken_out(kernel_key(answer, *this, device, dtype));
      if (text.empty()) return Support::yes();
      support.blocked(ReasonCode::run_failed, text);
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
                 const Device& device, DType dtype, ProblemSize size, Passes passes, Context* context) {
  std::vector<Decision> decisions;
  for (const NamedFastModule& named : modules) {
    named.module->state().active = nullptr;
    named.module->state().last_failure.reset();
  }
  if (use_fast == UseFast::never) {
    for (const NamedFastModule& named : modules) {
      decisions.push_back(
          {named.name, named.module->op().id, "reference", {ReasonCode::forced_reference, "use_fast is false"}, {}});
    }
    return {std::move(decisions)};
  }
  Setting setting{use_fast, policy, device, dtype, size, passes, context != nullptr ? *context : Context::process()};
  const std::optional<DeviceInfo> info = find_device(setting.context, device);
  std::map<const FastPathModule*, std::string> parent;
  for (const NamedFastModule& named : modules) {
    if (const auto found = parent.find(named.module); found != parent.end()) {
      decisions.push_back({named.name,
                           named.module->op().id,
                           "reference",
                           {ReasonCode::covered_by_parent, fmt::format("{} does its work", found->second)},
                           {}});
      continue;
    }
    decisions.push_back(decide(named, setting, info));
    if (named.module->fast_active()) {
      for (const FastPathModule* child : named.module->covered()) parent.emplace(child, named.name);
    }
  }
  Selection selection{std::move(decisions)};
  if (dtype == DType::float32 && selection) warn_float32_once();
  return selection;
}

void deactivate(Module& model) {
  for (const NamedFastModule& named : fast_modules(model)) named.module->state().active = nullptr;
}

}  // namespace fastpath
