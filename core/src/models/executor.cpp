#include "models/executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "fastpath/plugin.h"

namespace fastpath::models {
namespace {

/// target += term, element by element.
template <class T>
void add(const Tensor& target, const Tensor& term) {
  T* to = target.data<T>();
  const T* from = term.data<T>();
  for (std::int64_t i = 0; i < target.numel(); ++i) to[i] += from[i];
}

Tensor upload(plugin::OpenDevice& device, const Tensor& host) {
  if (!host.defined()) return {};
  Tensor result = device.allocate(host.shape(), host.dtype());
  device.copy_to_device(host, result);
  return result;
}

}  // namespace

Tensor BufferPool::take(const Shape& shape, DType dtype) {
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
  auto found = free_.lower_bound(bytes);
  // A buffer much larger than needed is left for one who needs it.
  if (found == free_.end() || found->first > 4 * bytes + 4096) {
    // Some room to grow: the number of edges changes a little from step to step of a trajectory.
    const std::size_t capacity = bytes + bytes / 8 + 256;
    const Tensor fresh = Tensor::empty({static_cast<std::int64_t>(capacity)}, DType::uint8);
    capacity_[fresh.base()] = capacity;
    bytes_ += capacity;
    found = free_.emplace(capacity, fresh);
  }
  const Tensor storage = found->second;
  free_.erase(found);
  return Tensor::wrap(storage.base(), shape, {}, dtype, Device::cpu(), storage.owner());
}

void BufferPool::give(Tensor tensor) {
  const auto found = capacity_.find(tensor.base());
  if (found == capacity_.end()) return;
  free_.emplace(found->second, std::move(tensor));
}

void BufferPool::clear() {
  free_.clear();
  capacity_.clear();
  bytes_ = 0;
}

Executor::Executor(const Program& program)
    : program_(program), buffers_(program.slots().size()), saved_(program.steps().size()) {}

void Executor::begin(const RunSettings& settings) {
  end();
  settings_ = settings;
  gradient_slots_ = program_.gradient_slots(settings.parameter_gradients);
  parameter_gradients_.clear();
  copied_bytes_ = 0;
  device_graph_ = {};
  device_graph_valid_ = false;
}

void Executor::end() {
  for (SlotBuffers& slot : buffers_) {
    for (Buffer& plane : slot) release(plane);
  }
  for (Tensor& saved : saved_) saved = {};
}

void Executor::release(Buffer& buffer) {
  if (buffer.pooled) pool_.give(std::move(buffer.host));
  buffer = {};
}

Shape Executor::shape_of(SlotId id) const {
  const Slot& slot = program_.slots()[static_cast<std::size_t>(id)];
  const OpGraph& graph = *settings_.graph;
  Shape shape{slot.rows == Rows::edges ? graph.n_edges : slot.rows == Rows::nodes ? graph.n_nodes : graph.n_receivers};
  shape.insert(shape.end(), slot.trailing.begin(), slot.trailing.end());
  return shape;
}

DType Executor::dtype_of(SlotId id) const {
  const Slot& slot = program_.slots()[static_cast<std::size_t>(id)];
  return slot.wide ? DType::float64 : slot.real ? settings_.dtype : DType::int32;
}

void Executor::set_input(SlotId slot, const Tensor& value, const Tensor& tangent) {
  buffer(slot, kValue) = {value, {}, true, false, false};
  if (tangent.defined()) buffer(slot, kTangent) = {tangent, {}, true, false, false};
}

void Executor::seed(SlotId slot, const Tensor& gradient) { buffer(slot, kGrad) = {gradient, {}, true, false, false}; }

Tensor Executor::host(SlotId slot, Plane plane) {
  return buffer(slot, plane).defined() ? read(slot, plane, nullptr) : Tensor();
}

Tensor Executor::read(SlotId slot, Plane plane, plugin::OpenDevice* device) {
  Buffer& b = buffer(slot, plane);
  if (!b.defined()) return {};
  if (device != nullptr) {
    if (!b.device_valid) {
      b.device = upload(*device, b.host);
      b.device_valid = true;
      copied_bytes_ += b.host.bytes();
    }
    return b.device;
  }
  if (!b.host_valid) {
    b.host = pool_.take(b.device.shape(), b.device.dtype());
    b.pooled = true;
    device_->copy_from_device(b.device, b.host);
    b.host_valid = true;
    copied_bytes_ += b.host.bytes();
  }
  return b.host;
}

Tensor Executor::write(SlotId slot, Plane plane, plugin::OpenDevice* device) {
  Buffer& b = buffer(slot, plane);
  release(b);
  const DType dtype = dtype_of(slot);
  if (device != nullptr) {
    b.device = device->allocate(shape_of(slot), dtype);
    b.device_valid = true;
    return b.device;
  }
  b.host = pool_.take(shape_of(slot), dtype);
  b.pooled = b.host_valid = true;
  return b.host;
}

Tensor Executor::scratch(SlotId slot, plugin::OpenDevice* device) {
  return device != nullptr ? device->allocate(shape_of(slot), dtype_of(slot))
                           : pool_.take(shape_of(slot), dtype_of(slot));
}

void Executor::add_into(SlotId slot, Plane plane, const Tensor& term, plugin::OpenDevice* device) {
  const Tensor target = read(slot, plane, nullptr);
  Tensor host_term = term;
  if (device != nullptr) {
    host_term = pool_.take(term.shape(), term.dtype());
    device->copy_from_device(term, host_term);
    copied_bytes_ += term.bytes();
  }
  if (target.dtype() == DType::float32) {
    add<float>(target, host_term);
  } else {
    add<double>(target, host_term);
  }
  pool_.give(host_term);
  buffer(slot, plane).device = {};
  buffer(slot, plane).device_valid = false;
}

const OpGraph& Executor::graph_on(plugin::OpenDevice* device) {
  if (device == nullptr) return *settings_.graph;
  if (!device_graph_valid_) {
    device_graph_ = *settings_.graph;
    for (Tensor* index : {&device_graph_.sender, &device_graph_.receiver, &device_graph_.receiver_ptr,
                          &device_graph_.sender_ptr, &device_graph_.sender_edge, &device_graph_.species,
                          &device_graph_.species_ptr, &device_graph_.species_node}) {
      *index = upload(*device, *index);
      copied_bytes_ += index->bytes();
    }
    device_graph_valid_ = true;
  }
  return device_graph_;
}

void Executor::forward() {
  for (std::size_t i = 0; i < program_.steps().size(); ++i) run_step(program_.steps()[i], i, false);
}

void Executor::backward() {
  for (std::size_t i = program_.steps().size(); i-- > 0;) {
    const Step& step = program_.steps()[i];
    const auto has_gradient = [&](SlotId id) { return id != kAbsent && buffer(id, kGrad).defined(); };
    const bool wanted =
        std::any_of(step.inputs.begin(), step.inputs.end(),
                    [&](SlotId id) { return id != kAbsent && gradient_slots_[static_cast<std::size_t>(id)]; }) ||
        (settings_.parameter_gradients && !step.parameters.empty());
    if (!wanted || std::none_of(step.outputs.begin(), step.outputs.end(), has_gradient)) continue;
    run_step(step, i, true);
    // The gradient of what this step wrote has been used up.
    for (const SlotId id : step.outputs) {
      if (id == kAbsent) continue;
      release(buffer(id, kGrad));
      release(buffer(id, kGradTangent));
    }
  }
}

void Executor::run_step(const Step& step, std::size_t index, bool backward) {
  if (step.exchange) {
    run_exchange(step, backward);
    return;
  }
  plugin::OpenDevice* device = nullptr;
  if (step.op != nullptr && !step.op->placement().is_cpu()) {
    device_ = step.op->state().active->device;
    device = device_.get();
  }
  const bool fast = step.op != nullptr && step.op->fast_active();
  try {
    backward ? run_backward(step, device, index) : run_forward(step, device, index);
  } catch (const Error& error) {
    const bool recoverable = error.code() == ErrorCode::out_of_memory || error.code() == ErrorCode::unavailable;
    if (device == nullptr || !recoverable) throw;
    // The kernel gave up on its device: bring the tensors back and let the reference do the step.
    if (step.op->fast_active()) {
      const bool memory = error.code() == ErrorCode::out_of_memory;
      step.op->state().drop_active({memory ? FP_E_OUT_OF_MEMORY : FP_E_UNSUPPORTED, error.what()});
    }
    if (settings_.repeat) note_failure(step);
    backward ? run_backward(step, nullptr, index) : run_forward(step, nullptr, index);
  }
  if (fast && !step.op->fast_active()) note_failure(step);
}

void Executor::note_failure(const Step& step) {
  const Reason reason = *step.op->last_failure();
  if (settings_.require_fast) {
    throw Error(ErrorCode::strict_violation, fmt::format("{}: {} (strict mode)", step.name, reason.text));
  }
  if (settings_.repeat) throw KernelGaveWay{step.name, reason};
  if (settings_.selection == nullptr) return;
  for (Decision& decision : settings_.selection->decisions.edit()) {
    if (decision.module != step.name) continue;
    for (Candidate& candidate : decision.candidates) {
      if (candidate.plugin != decision.choice) continue;
      candidate.verdict = Candidate::Verdict::refused;
      candidate.reasons.push_back(reason);
    }
    decision.choice = "reference";
    decision.reason = reason;
  }
}

void Executor::call(const Step& step, OpCall& op_call) {
  op_call.threads = settings_.threads;
  if (step.op != nullptr) {
    step.op->run(op_call);
    return;
  }
  step.glue->apply(op_call, glue_parameters(*step.glue));
}

const std::vector<Tensor>& Executor::glue_parameters(Glue& glue) {
  GlueParameters& kept = glue_parameters_[{&glue, settings_.dtype}];
  const std::uint64_t version = glue.module() != nullptr ? glue.module()->version() : 1;
  if (kept.version == version) return kept.tensors;
  kept.tensors.clear();
  for (const ops::SchemaTensor& item : glue.schema()) {
    kept.tensors.push_back(glue.module()->parameter(item.name).to(settings_.dtype));
  }
  kept.version = version;
  return kept.tensors;
}

void Executor::run_forward(const Step& step, plugin::OpenDevice* device, std::size_t index) {
  std::vector<Tensor> inputs, inputs_t, outputs, outputs_t;
  bool tangent = false;
  for (const SlotId id : step.inputs) {
    inputs.push_back(id == kAbsent ? Tensor() : read(id, kValue, device));
    inputs_t.push_back(id == kAbsent || !settings_.tangent ? Tensor() : read(id, kTangent, device));
    tangent |= inputs_t.back().defined();
  }
  for (const SlotId id : step.outputs) {
    outputs.push_back(id == kAbsent ? Tensor() : write(id, kValue, device));
    outputs_t.push_back(id == kAbsent || !tangent ? Tensor() : write(id, kTangent, device));
  }
  OpCall op_call;
  op_call.pass = tangent ? Pass::forward_tangent : Pass::forward;
  op_call.graph = &graph_on(device);
  op_call.inputs = inputs;
  op_call.outputs = outputs;
  if (tangent) {
    op_call.inputs_t = inputs_t;
    op_call.outputs_t = outputs_t;
  }
  if (step.op != nullptr && step.op->fast_active()) {
    // A kernel may keep intermediate results for its backward pass.
    const std::uint64_t bytes = step.op->saved_bytes(op_call);
    if (bytes > 0) {
      const Shape shape{static_cast<std::int64_t>(bytes)};
      saved_[index] = device != nullptr ? device->allocate(shape, DType::uint8) : Tensor::empty(shape, DType::uint8);
      op_call.saved = saved_[index];
    }
  }
  call(step, op_call);
}

void Executor::run_backward(const Step& step, plugin::OpenDevice* device, std::size_t index) {
  std::vector<Tensor> inputs, inputs_t, grad_outputs, grad_outputs_t, grad_inputs, grad_inputs_t, grad_parameters,
      grad_parameters_t;
  struct Pending {
    SlotId slot;
    Plane plane;
    Tensor term;
  };
  std::vector<std::pair<SlotId, Plane>> fresh_gradients;
  std::vector<Pending> pending;  // gradients of slots that another reader has contributed to already
  for (const SlotId id : step.inputs) {
    inputs.push_back(id == kAbsent ? Tensor() : read(id, kValue, device));
    inputs_t.push_back(id == kAbsent || !settings_.tangent ? Tensor() : read(id, kTangent, device));
  }
  for (const SlotId id : step.outputs) {
    grad_outputs.push_back(id == kAbsent ? Tensor() : read(id, kGrad, device));
    grad_outputs_t.push_back(id == kAbsent || !settings_.tangent ? Tensor() : read(id, kGradTangent, device));
  }
  const auto target = [&](SlotId id, Plane plane) {
    if (id == kAbsent || !gradient_slots_[static_cast<std::size_t>(id)]) return Tensor();
    if (!buffer(id, plane).defined()) {
      fresh_gradients.emplace_back(id, plane);
      return write(id, plane, device);
    }
    pending.push_back({id, plane, scratch(id, device)});
    return pending.back().term;
  };
  for (const SlotId id : step.inputs) {
    grad_inputs.push_back(target(id, kGrad));
    grad_inputs_t.push_back(settings_.tangent ? target(id, kGradTangent) : Tensor());
  }
  if (settings_.parameter_gradients) {
    const std::vector<ops::SchemaTensor> schema = step.op != nullptr ? step.op->schema() : step.glue->schema();
    for (std::size_t i = 0; i < step.parameters.size(); ++i) {
      if (step.parameters[i].empty()) {
        grad_parameters.emplace_back(), grad_parameters_t.emplace_back();
        continue;
      }
      Module& module = step.op != nullptr ? static_cast<Module&>(*step.op) : *step.glue->module();
      const Shape& shape = module.parameter(schema[i].name).shape();
      auto& kept = parameter_gradients_[step.parameters[i]];
      for (std::size_t k = 0; k < (settings_.tangent ? 2u : 1u); ++k) {
        const Tensor fresh =
            device != nullptr ? device->allocate(shape, settings_.dtype) : Tensor::empty(shape, settings_.dtype);
        kept[k] = fresh;
        (k == 0 ? grad_parameters : grad_parameters_t).push_back(fresh);
      }
    }
  }
  OpCall op_call;
  op_call.pass = settings_.tangent ? Pass::backward_tangent : Pass::backward;
  op_call.graph = &graph_on(device);
  op_call.inputs = inputs;
  op_call.grad_outputs = grad_outputs;
  op_call.grad_inputs = grad_inputs;
  op_call.grad_parameters = grad_parameters;
  op_call.saved = saved_[index];
  if (settings_.tangent) {
    op_call.inputs_t = inputs_t;
    op_call.grad_outputs_t = grad_outputs_t;
    op_call.grad_inputs_t = grad_inputs_t;
    op_call.grad_parameters_t = grad_parameters_t;
  }
  try {
    call(step, op_call);
  } catch (...) {
    // Whoever repeats the step must find it as it was.
    for (const auto& [slot, plane] : fresh_gradients) release(buffer(slot, plane));
    throw;
  }
  if (device != nullptr) {
    for (const std::string& name : step.parameters) {
      if (name.empty() || !settings_.parameter_gradients) continue;
      for (Tensor& kept : parameter_gradients_[name]) {
        if (!kept.defined() || kept.device().is_cpu()) continue;
        const Tensor on_host = Tensor::empty(kept.shape(), kept.dtype());
        device->copy_from_device(kept, on_host);
        kept = on_host;
      }
    }
  }
  for (const Pending& term : pending) add_into(term.slot, term.plane, term.term, device);
}

void Executor::run_exchange(const Step& step, bool backward) {
  if (settings_.tangent) {
    throw Error(ErrorCode::unsupported, "derivatives along a direction are not available under a ghost exchange");
  }
  const SlotId from = step.inputs[0], to = step.outputs[0];
  if (!backward) {
    const Tensor source = read(from, kValue, nullptr);
    const Tensor target = write(to, kValue, nullptr);
    std::memset(target.raw(), 0, target.bytes());
    std::memcpy(target.raw(), source.raw(), source.bytes());
    (*settings_.exchange)(ExchangeDirection::forward, step.layer, target);
    return;
  }
  const Tensor source = read(to, kGrad, nullptr);
  (*settings_.exchange)(ExchangeDirection::backward, step.layer, source);
  if (!gradient_slots_[static_cast<std::size_t>(from)]) return;
  const Tensor target = write(from, kGrad, nullptr);
  std::memcpy(target.raw(), source.raw(), target.bytes());
}

StateDict Executor::parameter_gradients(bool tangent) const {
  StateDict result;
  for (const auto& [name, planes] : parameter_gradients_) {
    if (planes[tangent ? 1 : 0].defined()) result.add(name, planes[tangent ? 1 : 0]);
  }
  return result;
}

}  // namespace fastpath::models
