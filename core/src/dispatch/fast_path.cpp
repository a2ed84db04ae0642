#include "fastpath/fast_path.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "fastpath/plugin.h"
#include "fastpath/sdk/attributes.hpp"
#include "fastpath/warning.hpp"
#include "verify/gate.hpp"

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
  const std::size_t leading = argument.axis == sdk::Axis::none ? 0 : 1;
  const Shape& shape = tensor.shape();
  bool good =
      tensor.dtype() == wanted && tensor.is_contiguous() && shape.size() == leading + argument.trailing.size() &&
      std::equal(argument.trailing.begin(), argument.trailing.end(), shape.end() - std::ssize(argument.trailing));
  if (leading == 1) {
    std::int64_t& size = sizes[static_cast<int>(argument.axis)];
    if (size < 0 && !shape.empty()) size = shape[0];
    good = good && shape[0] == size;
  }
  if (good) return;
  Shape expected;
  if (leading == 1) expected.push_back(sizes[static_cast<int>(argument.axis)]);
  for (const std::int64_t extent : argument.trailing) expected.push_back(extent);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: {} '{}' is {} {}{}, expected contiguous {} {}", op, list, argument.name,
                          to_string(tensor.dtype()), to_string(shape), tensor.is_contiguous() ? "" : " (strided)",
                          to_string(wanted), to_string(expected)));
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

/// What an error of a device means as the status of a call. Other errors go on.
plugin::CallStatus device_status(const Error& error) {
  switch (error.code()) {
    case ErrorCode::out_of_memory:
      return {FP_E_OUT_OF_MEMORY, error.what()};
    case ErrorCode::device_lost:
      return {FP_E_DEVICE_LOST, error.what()};
    case ErrorCode::kernel_failed:
    case ErrorCode::unavailable:
      return {FP_E_INTERNAL, error.what()};
    default:
      throw;
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

void FastPathModule::on_change() { state_->shared->version.fetch_add(1, std::memory_order_acq_rel); }

const std::vector<Tensor>& FastPathModule::op_parameters(DType dtype) const {
  State::Shared& shared = *state_->shared;
  const std::lock_guard lock(shared.mutex);
  if (const std::uint64_t version = state_->version(); shared.converted_version != version) {
    shared.converted.clear();
    shared.converted_version = version;
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
  if (state_->active == nullptr) return 0;
  // A kernel may answer by what it is bound to. If it cannot be bound, running it says so.
  return state_->bind_active(*this, call_dtype(call)).ok() ? state_->active->kernel->saved_bytes(call) : 0;
}

std::uint64_t FastPathModule::saved_bytes(ProblemSize size, std::int64_t n_rows, DType dtype, Passes passes) const {
  if (state_->active == nullptr || !state_->bind_active(*this, dtype).ok()) return 0;
  OpGraph graph;
  graph.n_edges = size.n_edges;
  graph.n_nodes = graph.n_receivers = size.n_nodes;
  const Tensor first = Tensor::wrap(nullptr, {n_rows}, {}, dtype, Device::cpu(), nullptr);
  OpCall call;
  call.graph = &graph;
  call.inputs = {&first, 1};
  std::uint64_t most = 0;
  for (const Pass pass : {Pass::forward, Pass::backward, Pass::forward_tangent, Pass::backward_tangent}) {
    if (!passes.contains(pass)) continue;
    call.pass = pass;
    most = std::max(most, state_->active->kernel->saved_bytes(call));
  }
  return most;
}

void FastPathModule::run_reference(const OpCall& call) {
  check_devices(call, Device::cpu(), op().id);
  reference(call, op_parameters(call_dtype(call)));
}

void FastPathModule::run_reference(const OpCall& call, const std::vector<Tensor>& parameters) {
  const std::size_t expected = schema_tensors().size();
  if (parameters.size() != expected) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: {} parameters, expected {}", op().id, parameters.size(), expected));
  }
  check_devices(call, Device::cpu(), op().id);
  reference(call, parameters);
}

plugin::CallStatus FastPathModule::State::bind_active(const FastPathModule& module, DType dtype) {
  Slot& slot = *active;
  const std::uint64_t current = version();
  if (slot.bound_version == current) return {};
  slot.bound_version = 0;
  slot.parameters = module.op_parameters(dtype);
  try {
    if (slot.device->owns_memory()) {
      for (Tensor& tensor : slot.parameters) {
        if (!tensor.defined()) continue;
        Tensor on_device = slot.device->allocate(tensor.shape(), tensor.dtype());
        slot.device->copy_to_device(tensor, on_device);
        tensor = on_device;
      }
    }
  } catch (const Error& error) {
    return device_status(error);
  }
  plugin::CallStatus status = slot.kernel->bind(slot.parameters, current);
  if (status.ok()) slot.bound_version = current;
  return status;
}

void FastPathModule::State::drop_active(const plugin::CallStatus& status) {
  const Slot& slot = *active;
  active = nullptr;
  const std::string& plugin = slot.kernel->plugin_id();
  last_failure = Reason{ReasonCode::fallback, fmt::format("{} failed: {}", plugin, status.text)};
  if (context == nullptr) return;
  Context::Impl& known = context->impl();
  if (status.status == FP_E_DEVICE_LOST) {
    known.lose(plugin, slot.device->info().device, status.text);
    return;  // the error says so
  }
  if (known.record_failure(slot.key, status.text)) {
    warn_about_kernel({ReasonCode::fallback,
                       fmt::format("{}: the kernel of {} failed and the reference takes over; once more and it is out "
                                   "for this process: {}",
                                   asked.id, plugin, status.text)});
  }
}

void FastPathModule::State::leave_active() {
  const Reason reason = plugin::shut_down_reason();
  last_failure = Reason{reason.code, fmt::format("{}: {}", active->kernel->plugin_id(), reason.text)};
  active = nullptr;
}

void FastPathModule::State::expose_active(ReasonCode code, const std::string& text) {
  const Slot& slot = *active;
  active = nullptr;
  const std::string& plugin = slot.kernel->plugin_id();
  last_failure = Reason{code, fmt::format("{}: {}", plugin, text)};
  if (context == nullptr || !context->impl().take_out(slot.key, {code, text})) return;
  warn_about_kernel(
      {code, fmt::format("{}: the kernel of {} disagrees with the reference, whose results are used; it is "
                         "out for this process: {}",
                         asked.id, plugin, text)});
}

void FastPathModule::run(const OpCall& call) {
  State& state = *state_;
  const OpSpec& spec = op();
  const DType dtype = call_dtype(call);
  if (const std::uint64_t version = state.version(); state.signature_version != version) {
    try {
      state.signature = sdk::signature_of(spec.id, spec.version, sdk::Attributes(spec.config));
    } catch (const sdk::ConfigError& error) {
      throw Error(ErrorCode::internal, fmt::format("{}: {}", spec.id, error.what()));
    }
    state.signature_version = version;
  }
  check_devices(call, placement(), spec.id);
  if (state.signature) check_shapes(*state.signature, call, dtype, spec.id);
  if (state.active == nullptr) {
    reference(call, op_parameters(dtype));
    return;
  }
  State::Slot& slot = *state.active;
  plugin::Lease lease;
  if (!slot.device->hold(lease)) {
    const bool on_host = placement().is_cpu();
    state.leave_active();
    if (!on_host) throw Error(ErrorCode::unavailable, fmt::format("{}: {}", spec.id, state.last_failure->text));
    reference(call, op_parameters(dtype));
    return;
  }
  const auto pass = static_cast<std::uint32_t>(call.pass);
  const bool first = (slot.unverified & pass) != 0;
  plugin::CallStatus status = state.bind_active(*this, dtype);
  if (status.ok() && (state.compare || first)) {
    verify::Compared compared;
    try {
      if (call.queue != nullptr) call.queue->synchronize();  // the comparison looks at what it is given
      compared = verify::run_compared(*this, *slot.kernel, *slot.device, call, dtype);
    } catch (const Error& error) {
      compared.status = device_status(error);
    }
    status = std::move(compared.status);
    if (status.ok()) {
      if (first) {
        if (state.context != nullptr) {
          state.context->impl().gates.put(fmt::format("{}|first call|{}", slot.gate_key, pass),
                                          {!compared.mismatch, true, compared.mismatch.value_or("")});
        }
        slot.unverified &= ~pass;
      }
      if (compared.mismatch) {
        state.expose_active(first ? ReasonCode::not_verified : ReasonCode::wrong_result, *compared.mismatch);
      }
      return;
    }
  } else if (status.ok()) {
    status = slot.kernel->run(call);
  }
  if (status.ok()) return;

  const std::string text = fmt::format("{}: kernel of {} failed: {}", spec.id, slot.kernel->plugin_id(), status.text);
  const bool on_host = placement().is_cpu();
  state.drop_active(status);
  if (status.status == FP_E_DEVICE_LOST) throw Error(ErrorCode::device_lost, text);
  if (status.status == FP_E_NUMERICS) throw Error(ErrorCode::numerics, text);
  if (!status.recoverable()) throw Error(ErrorCode::kernel_failed, text);
  // On a device the caller holds the tensors and has to bring them back first.
  if (!on_host)
    throw Error(status.status == FP_E_OUT_OF_MEMORY ? ErrorCode::out_of_memory : ErrorCode::unavailable, text);
  reference(call, op_parameters(dtype));
}

}  // namespace fastpath
