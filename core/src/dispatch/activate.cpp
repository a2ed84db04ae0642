#include "dispatch/activate.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "dispatch/context_impl.hpp"
#include "fastpath/error.hpp"
#include "fastpath/sdk/attributes.hpp"
#include "verify/gate.hpp"

namespace fastpath::rules {
namespace {

using State = FastPathModule::State;

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

}  // namespace

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

std::optional<Reason> failed_gate(const FastPathModule& module, const State::Answer& answer, DType dtype, Passes passes,
                                  Context& context) {
  if (!context.impl().gate || answer.device == nullptr) return std::nullopt;
  const auto known =
      context.impl().gates.find(verify::gate_key(module, *answer.plugin, *answer.device, answer.key, dtype, passes));
  if (!known || known->passed) return std::nullopt;
  return Reason{ReasonCode::not_verified, known->text};
}

}  // namespace fastpath::rules
