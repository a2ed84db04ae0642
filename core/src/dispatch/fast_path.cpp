#include "fastpath/fast_path.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "fastpath/plugin.h"
#include "fastpath/sdk/attributes.hpp"

namespace fastpath {
namespace {

/// Throws unless `tensor` has the shape of its argument; fills in the sizes that are still unknown (-1).
void check_argument(const sdk::Argument& argument, const Tensor& tensor, DType dtype, const std::string& op,
                    const char* list, std::int64_t sizes[4], bool gradient) {
  if (!tensor.defined()) {
    if (argument.optional || gradient) return;
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {} '{}' is missing", op, list, argument.name));
  }
  const DType wanted = argument.real ? dtype : DType::int32;
  Shape shape;
  if (argument.axis != sdk::Axis::none) {
    std::int64_t& size = sizes[static_cast<int>(argument.axis)];
    if (size < 0 && tensor.rank() > 0) size = tensor.size(0);
    shape.push_back(size);
  }
  shape.insert(shape.end(), argument.trailing.begin(), argument.trailing.end());
  if (tensor.dtype() != wanted || tensor.shape() != shape || !tensor.is_contiguous()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: {} '{}' is {} {}{}, expected contiguous {} {}", op, list, argument.name,
                            to_string(tensor.dtype()), to_string(tensor.shape()),
                            tensor.is_contiguous() ? "" : " (strided)", to_string(wanted), to_string(shape)));
  }
}

void check_list(const std::vector<sdk::Argument>& arguments, std::span<const Tensor> tensors, DType dtype,
                const std::string& op, const char* list, std::int64_t sizes[4], bool gradient) {
  if (tensors.size() > arguments.size() || (!gradient && tensors.size() < arguments.size())) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: {} {}s, expected {}", op, tensors.size(), list, arguments.size()));
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_argument(arguments[i], tensors[i], dtype, op, list, sizes, gradient);
  }
}

/// Checks shapes of a call of an op that fastpath defines.
void check_shapes(const sdk::Signature& signature, const OpCall& call, DType dtype, const std::string& op) {
  // Indexed by sdk::Axis: edges, nodes, receivers, rows.
  std::int64_t sizes[4] = {-1, -1, -1, -1};
  if (call.graph != nullptr) {
    sizes[0] = call.graph->n_edges;
    sizes[1] = call.graph->n_nodes;
    sizes[2] = call.graph->n_receivers;
  } else if (signature.needs_graph) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: the call has no graph", op));
  }
  check_list(signature.inputs, call.inputs, dtype, op, "input", sizes, false);
  const bool backward = call.pass == Pass::backward || call.pass == Pass::backward_tangent;
  if (backward) {
    check_list(signature.outputs, call.grad_outputs, dtype, op, "output gradient", sizes, true);
    check_list(signature.inputs, call.grad_inputs, dtype, op, "input gradient", sizes, true);
    check_list(signature.parameters, call.grad_parameters, dtype, op, "parameter gradient", sizes, true);
  } else {
    check_list(signature.outputs, call.outputs, dtype, op, "output", sizes, false);
  }
}

/// Every tensor of a call must lie on one device.
void check_devices(const OpCall& call, const Device& device, const std::string& op) {
  for (const auto list :
       {call.inputs, call.outputs, call.grad_outputs, call.grad_inputs, call.grad_parameters, call.inputs_t,
        call.outputs_t, call.parameters_t, call.grad_outputs_t, call.grad_inputs_t, call.grad_parameters_t}) {
    for (const Tensor& tensor : list) {
      if (tensor.defined() && tensor.device() != device) {
        throw Error(ErrorCode::invalid_argument, fmt::format("{}: a tensor is on {}, the call runs on {}", op,
                                                             to_string(tensor.device()), to_string(device)));
      }
    }
  }
}

}  // namespace

std::string_view to_string(UseFast value) noexcept {
  switch (value) {
    case UseFast::never:
      return "false";
    case UseFast::always:
      return "true";
    case UseFast::automatic:
      return "auto";
  }
  return "auto";
}

UseFast resolve_use_fast(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (lower == "true" || lower == "on") return UseFast::always;
  if (lower == "false" || lower == "off") return UseFast::never;
  if (lower == "auto") return UseFast::automatic;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("use_fast '{}' is unknown; accepted: true, false, on, off, auto", text));
}

std::string_view to_string(Candidate::Verdict verdict) noexcept {
  switch (verdict) {
    case Candidate::Verdict::chosen:
      return "chosen";
    case Candidate::Verdict::not_chosen:
      return "not_chosen";
    case Candidate::Verdict::refused:
      return "refused";
  }
  return "refused";
}

DType call_dtype(const OpCall& call) {
  for (const auto list : {call.inputs, call.outputs, call.grad_outputs}) {
    for (const Tensor& tensor : list) {
      if (tensor.defined() && is_floating(tensor.dtype())) return tensor.dtype();
    }
  }
  throw Error(ErrorCode::invalid_argument, "a call without any floating-point tensor");
}

FastPathModule::FastPathModule() : state_(std::make_unique<State>()) {}
FastPathModule::~FastPathModule() = default;

bool FastPathModule::fast_active() const noexcept { return state_->active != nullptr; }

Device FastPathModule::placement() const noexcept {
  if (state_->active == nullptr || !state_->active->device->owns_memory()) return Device::cpu();
  return state_->active->device->info().device;
}

const std::optional<Reason>& FastPathModule::last_failure() const noexcept { return state_->last_failure; }

void FastPathModule::share_parameters(const FastPathModule& other) { state_->shared = other.state_->shared; }

void FastPathModule::on_change() {
  const std::lock_guard lock(state_->shared->mutex);
  ++state_->shared->version;
}

const std::vector<Tensor>& FastPathModule::op_parameters(DType dtype) const {
  State::Shared& shared = *state_->shared;
  const std::lock_guard lock(shared.mutex);
  if (shared.converted_version != shared.version) {
    shared.converted.clear();
    shared.converted_version = shared.version;
  }
  // A map: references stay valid while other dtypes are added, until the parameters change.
  const auto [place, added] = shared.converted.try_emplace(dtype);
  if (added) {
    for (const Tensor& tensor : schema_tensors()) {
      place->second.push_back(tensor.defined() && is_floating(tensor.dtype()) ? tensor.to(dtype).contiguous() : tensor);
    }
  }
  return place->second;
}

std::vector<FastPathModule*> FastPathModule::covered() {
  std::vector<FastPathModule*> result;
  for (const auto& [name, module] : named_modules()) {
    if (module == this) continue;
    if (auto* fast = dynamic_cast<FastPathModule*>(module)) result.push_back(fast);
  }
  return result;
}

std::uint64_t FastPathModule::saved_bytes(const OpCall& call) const {
  return state_->active == nullptr ? 0 : state_->active->kernel->saved_bytes(call);
}

void FastPathModule::run_reference(const OpCall& call) {
  check_devices(call, Device::cpu(), op().id);
  reference(call, op_parameters(call_dtype(call)));
}

void FastPathModule::run_reference(const OpCall& call, const std::vector<Tensor>& parameters) {
  const std::size_t expected = op_parameters(call_dtype(call)).size();
  if (parameters.size() != expected) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: {} parameters, expected {}", op().id, parameters.size(), expected));
  }
  check_devices(call, Device::cpu(), op().id);
  reference(call, parameters);
}

plugin::CallStatus FastPathModule::State::run_active(const FastPathModule& module, const OpCall& call, DType dtype) {
  Slot& slot = *active;
  const std::uint64_t current = version();
  if (slot.bound_version != current) {
    slot.parameters = module.op_parameters(dtype);
    if (slot.device->owns_memory()) {
      for (Tensor& tensor : slot.parameters) {
        if (!tensor.defined()) continue;
        Tensor on_device = slot.device->allocate(tensor.shape(), tensor.dtype());
        slot.device->copy_to_device(tensor, on_device);
        tensor = on_device;
      }
    }
    plugin::CallStatus status = slot.kernel->bind(slot.parameters, current);
    if (!status.ok()) return status;
    slot.bound_version = current;
  }
  return slot.kernel->run(call);
}

void FastPathModule::State::drop_active(const plugin::CallStatus& status) {
  last_failure = Reason{ReasonCode::fallback, fmt::format("{} failed: {}", active->kernel->plugin_id(), status.text)};
  if (context != nullptr) context->impl().record_failure(active->key, status.text);
  active = nullptr;
}

void FastPathModule::run(const OpCall& call) {
  const OpSpec& spec = op();
  const DType dtype = call_dtype(call);
  if (!state_->signature || state_->signature_version != state_->version()) {
    try {
      state_->signature = sdk::signature_of(spec.id, spec.version, sdk::Attributes(spec.config));
    } catch (const sdk::ConfigError& error) {
      throw Error(ErrorCode::internal, fmt::format("{}: {}", spec.id, error.what()));
    }
    state_->signature_version = state_->version();
  }
  check_devices(call, placement(), spec.id);
  if (state_->signature) check_shapes(*state_->signature, call, dtype, spec.id);
  if (state_->active == nullptr) {
    reference(call, op_parameters(dtype));
    return;
  }
  const plugin::CallStatus status = state_->run_active(*this, call, dtype);
  if (status.ok()) return;
  const std::string text =
      fmt::format("{}: kernel of {} failed: {}", spec.id, state_->active->kernel->plugin_id(), status.text);
  const bool on_host = placement().is_cpu();
  if (status.status == FP_E_DEVICE_LOST) throw Error(ErrorCode::device_lost, text);
  if (status.status == FP_E_NUMERICS) throw Error(ErrorCode::numerics, text);
  if (!status.recoverable()) {
    state_->drop_active(status);
    throw Error(ErrorCode::kernel_failed, text);
  }
  state_->drop_active(status);
  // On a device the caller holds the tensors and has to bring them back first.
  if (!on_host)
    throw Error(status.status == FP_E_OUT_OF_MEMORY ? ErrorCode::out_of_memory : ErrorCode::unavailable, text);
  reference(call, op_parameters(dtype));
}

}  // namespace fastpath
