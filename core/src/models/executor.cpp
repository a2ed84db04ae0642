#include "models/executor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

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

/// An absent tensor. Copied into a list it leaves the memory of the entry's shape there.
const Tensor kNone;

/// Entry `i` of a list that grows as needed.
const Tensor& put(std::vector<Tensor>& list, std::size_t i, const Tensor& tensor) {
  if (list.size() <= i) list.resize(i + 1);
  return list[i] = tensor;
}

std::span<const Tensor> first(const std::vector<Tensor>& list, std::size_t n) { return {list.data(), n}; }

/// The index arrays of a graph.
std::array<Tensor*, 8> arrays_of(OpGraph& graph) {
  return {&graph.sender,      &graph.receiver, &graph.receiver_ptr, &graph.sender_ptr,
          &graph.sender_edge, &graph.species,  &graph.species_ptr,  &graph.species_node};
}

}  // namespace

Tensor BufferPool::take(const Shape& shape, DType dtype) {
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
  auto found = free_.lower_bound(bytes);
  while (found != free_.end() && found->second.empty()) ++found;
  // A buffer much larger than needed is left for one who needs it.
  if (found == free_.end() || found->first > 4 * bytes + 4096) {
    // Some room to grow: the number of edges changes a little from step to step of a trajectory.
    const std::size_t capacity = bytes + bytes / 8 + 256;
    const Shape size{static_cast<std::int64_t>(capacity)};
    const Tensor fresh = device_ ? device_->allocate(size, DType::uint8) : Tensor::empty(size, DType::uint8);
    capacity_[fresh.base()] = capacity;
    bytes_ += capacity;
    return Tensor::wrap(fresh.base(), shape, {}, dtype, fresh.device(), fresh.owner());
  }
  std::vector<Tensor>& free = found->second;
  // One that has this shape already, as in an evaluation of the same sizes, needs no new one.
  const auto fits = [&](const Tensor& tensor) { return tensor.dtype() == dtype && tensor.shape() == shape; };
  const auto same = std::find_if(free.rbegin(), free.rend(), fits);
  if (same != free.rend()) std::swap(*same, free.back());
  Tensor result = std::move(free.back());
  free.pop_back();
  if (fits(result)) return result;
  return Tensor::wrap(result.base(), shape, {}, dtype, result.device(), result.owner());
}

void BufferPool::give(Tensor&& tensor) {
  const auto found = capacity_.find(tensor.base());
  if (found == capacity_.end()) return;
  free_[found->second].push_back(std::move(tensor));
}

void BufferPool::clear() {
  free_.clear();
  capacity_.clear();
  bytes_ = 0;
}

Executor::Executor(const Program& program)
    : program_(program),
      buffers_(program.slots().size()),
      saved_(program.steps().size()),
      forward_had_tangent_(program.steps().size()) {}

Executor::~Executor() { abandon(); }

void Executor::begin(const RunSettings& settings) {
  end();
  settings_ = settings;
  gradient_slots_ = program_.gradient_slots(settings.parameter_gradients);
  done_.clear();
  for (const Step& step : program_.steps()) done_.push_back(Program::is_done(step));
  parameter_gradients_.clear();
  // Small, and a replica is not told when they change.
  for (auto& [glue, kept] : glue_parameters_) kept.valid = false;
  copied_bytes_ = 0;
  synchronizations_ = 0;
}

void Executor::end() {
  abandon();  // an evaluation that failed may have left work that writes to the host
  if (device_graph_valid_) {
    for (Tensor* index : arrays_of(device_graph_)) release(*index);
    device_graph_ = {};
    device_graph_valid_ = false;
  }
  for (SlotBuffers& slot : buffers_) {
    for (Buffer& plane : slot) release(plane);
  }
  for (Tensor& saved : saved_) release(saved);
  for (Pending& each : pending_) release(each.term);
  pending_.clear();
  // The lists stay, so that filling them allocates nothing; memory of a device does not stay for that.
  for (auto* list : {&inputs_, &inputs_t_, &outputs_, &outputs_t_, &grad_outputs_, &grad_outputs_t_, &grad_inputs_,
                     &grad_inputs_t_, &grad_parameters_, &grad_parameters_t_}) {
    for (Tensor& tensor : *list) {
      if (!tensor.device().is_cpu()) tensor = {};
    }
  }
  if (!call_.saved.device().is_cpu()) call_.saved = {};
}

void Executor::release(Buffer& buffer) {
  if (buffer.pooled) release(buffer.host);
  release(buffer.device);
  buffer = {};
}

void Executor::release(Tensor& tensor) {
  if (!tensor.defined()) return;
  if (!tensor.device().is_cpu()) {
    device_pool_.give(std::move(tensor));  // whoever gets it works behind what the queue still does with it
  } else if (busy_) {
    held_.push_back(std::move(tensor));
  } else {
    pool_.give(std::move(tensor));
  }
  tensor = {};
}

Tensor Executor::take(const Shape& shape, DType dtype, plugin::OpenDevice* device) {
  return (device != nullptr ? device_pool_ : pool_).take(shape, dtype);
}

void Executor::use(const std::shared_ptr<plugin::OpenDevice>& device) {
  if (device == device_) return;
  if (device_ != nullptr && device_graph_valid_) {
    throw Error(ErrorCode::internal, fmt::format("kernels of one evaluation on {} and {}",
                                                 to_string(device_->info().device), to_string(device->info().device)));
  }
  abandon();
  queue_.reset();
  device_pool_ = BufferPool(device);
  device_ = device;
  queue_ = device->create_queue();
}

Tensor Executor::upload(const Tensor& host) {
  if (!host.defined()) return {};
  Tensor result = device_pool_.take(host.shape(), host.dtype());
  if (queue_ != nullptr) {
    busy_ = true;
    references_.push_back(host);
    queue_->copy_to_device(host, result);
  } else {
    device_->copy_to_device(host, result);
  }
  copied_bytes_ += host.bytes();
  return result;
}

bool Executor::fetch(SlotId slot, Plane plane) {
  if (slot == kAbsent) return false;
  Buffer& b = buffer(slot, plane);
  if (b.host_valid || !b.device_valid) return false;
  b.host = pool_.take(b.device.shape(), b.device.dtype());
  b.pooled = true;
  if (queue_ != nullptr) {
    busy_ = true;
    queue_->copy_from_device(b.device, b.host);
  } else {
    device_->copy_from_device(b.device, b.host);
  }
  b.host_valid = true;
  copied_bytes_ += b.host.bytes();
  return true;
}

void Executor::synchronize() {
  if (!busy_) return;
  ++synchronizations_;
  try {
    queue_->synchronize();
  } catch (const Error& error) {
    const bool recoverable = error.code() == ErrorCode::out_of_memory || error.code() == ErrorCode::unavailable;
    if (!recoverable || !settings_.repeat || settings_.require_fast) throw;
    throw KernelGaveWay{to_string(device_->info().device), {ReasonCode::fallback, error.what()}};
  }
  idle();
}

void Executor::idle() {
  busy_ = false;
  for (Tensor& tensor : held_) release(tensor);
  held_.clear();
  references_.clear();
}

void Executor::abandon() noexcept {
  if (!busy_) return;
  try {
    queue_->synchronize();
  } catch (const Error&) {
    // Whoever waited has been told of an error; here it matters only that nothing is under way any more.
  }
  idle();
}

const Shape& Executor::shape_of(SlotId id) {
  const Slot& slot = program_.slots()[static_cast<std::size_t>(id)];
  const OpGraph& graph = *settings_.graph;
  shape_.assign(1, slot.rows == Rows::edges   ? graph.n_edges
                   : slot.rows == Rows::nodes ? graph.n_nodes
                                              : graph.n_receivers);
  shape_.insert(shape_.end(), slot.trailing.begin(), slot.trailing.end());
  return shape_;
}

DType Executor::dtype_of(SlotId id) const {
  const Slot& slot = program_.slots()[static_cast<std::size_t>(id)];
  return slot.wide ? DType::float64 : slot.real ? settings_.dtype : DType::int32;
}

void Executor::set_input(SlotId slot, const Tensor& value, const Tensor& tangent) {
  buffer(slot, kValue) = {value, {}, true, false, false};
  if (tangent.defined()) buffer(slot, kTangent) = {tangent, {}, true, false, false};
}

void Executor::seed(SlotId slot, const Tensor& gradient, const Tensor& tangent) {
  buffer(slot, kGrad) = {gradient, {}, true, false, false};
  if (tangent.defined()) buffer(slot, kGradTangent) = {tangent, {}, true, false, false};
}

Tensor Executor::host(SlotId slot, Plane plane) {
  return buffer(slot, plane).defined() ? read(slot, plane, nullptr) : Tensor();
}

const Tensor& Executor::read(SlotId slot, Plane plane, plugin::OpenDevice* device) {
  if (slot == kAbsent) return kNone;
  Buffer& b = buffer(slot, plane);
  if (!b.defined()) return kNone;
  if (device != nullptr) {
    if (!b.device_valid) {
      b.device = upload(b.host);
      b.device_valid = true;
    }
    return b.device;
  }
  if (fetch(slot, plane)) synchronize();
  return b.host;
}

const Tensor& Executor::write(SlotId slot, Plane plane, plugin::OpenDevice* device) {
  Buffer& b = buffer(slot, plane);
  release(b);
  const DType dtype = dtype_of(slot);
  if (device != nullptr) {
    b.device = device_pool_.take(shape_of(slot), dtype);
    b.device_valid = true;
    return b.device;
  }
  b.host = pool_.take(shape_of(slot), dtype);
  b.pooled = b.host_valid = true;
  return b.host;
}

Tensor Executor::scratch(SlotId slot, plugin::OpenDevice* device) {
  return take(shape_of(slot), dtype_of(slot), device);
}

bool Executor::add_on_device(SlotId slot, Plane plane, const Tensor& term, plugin::OpenDevice* device) {
  if (term.numel() == 0) return true;
  const std::int64_t rows = term.size(0), width = term.numel() / rows;
  const NamedFastModule* sum = program_.gradient_sum(width);
  if (sum == nullptr || !sum->module->fast_active() || sum->module->placement() != device->info().device) return false;
  const Shape flat{rows, width};
  const std::array<Tensor, 2> terms{read(slot, plane, device).view(flat), term.view(flat)};
  Tensor result = device_pool_.take(term.shape(), term.dtype());
  const Tensor flat_result = result.view(flat);
  OpCall call;
  call.inputs = terms;
  call.outputs = {&flat_result, 1};
  call.queue = queue_.get();
  busy_ = busy_ || queue_ != nullptr;
  try {
    sum->module->run(call);
  } catch (const Error& error) {
    // The host adds instead: the step itself has been done, and must not be done again.
    if (error.code() != ErrorCode::out_of_memory && error.code() != ErrorCode::unavailable) throw;
    release(result);
    note_failure(sum->name, sum->module->last_failure().value_or(Reason{ReasonCode::fallback, error.what()}));
    return false;
  }
  release(buffer(slot, plane));
  buffer(slot, plane) = {{}, result, false, true, false};
  if (!sum->module->fast_active()) note_failure(sum->name, *sum->module->last_failure());
  return true;
}

void Executor::add_into(SlotId slot, Plane plane, const Tensor& term, plugin::OpenDevice* device) {
  if (device != nullptr && add_on_device(slot, plane, term, device)) return;
  Tensor copy;
  if (device != nullptr) {
    synchronize();
    copy = pool_.take(term.shape(), term.dtype());
    device->copy_from_device(term, copy);
    copied_bytes_ += term.bytes();
  }
  if (busy_ && buffer(slot, plane).device_valid) synchronize();  // it may still be on its way to the device
  const Tensor& target = read(slot, plane, nullptr);
  const Tensor& host_term = device != nullptr ? copy : term;
  if (target.dtype() == DType::float32) {
    add<float>(target, host_term);
  } else {
    add<double>(target, host_term);
  }
  release(copy);
  release(buffer(slot, plane).device);
  buffer(slot, plane).device_valid = false;
}

const OpGraph& Executor::graph_on(plugin::OpenDevice* device) {
  if (device == nullptr) return *settings_.graph;
  if (!device_graph_valid_) {
    device_graph_ = *settings_.graph;
    device_graph_valid_ = true;
    for (Tensor* index : arrays_of(device_graph_)) *index = upload(*index);
  }
  return device_graph_;
}

void Executor::forward() {
  for (std::size_t i = 0; i < program_.steps().size(); ++i) {
    // Under a tangent the way back asks of every step what it has seen on the way forward.
    if (done_[i] && (!program_.steps()[i].late || settings_.tangent)) run_step(program_.steps()[i], i, false);
  }
}

void Executor::fetch_late() {
  for (const Step& step : program_.steps()) {
    if (!step.late) continue;
    for (const SlotId id : step.inputs) fetch(id, kValue);
  }
}

void Executor::finish_forward() {
  if (settings_.tangent) return;  // done
  fetch_late();
  synchronize();
  for (std::size_t i = 0; i < program_.steps().size(); ++i) {
    if (program_.steps()[i].late) run_step(program_.steps()[i], i, false);
  }
}

bool Executor::on_host(const Step& step) const { return step.op == nullptr || step.op->placement().is_cpu(); }

void Executor::fetch_rest(std::size_t index) {
  const std::vector<Step>& steps = program_.steps();
  for (std::size_t i = 0; i <= index; ++i) {
    const bool runs = done_[i] && std::any_of(steps[i].outputs.begin(), steps[i].outputs.end(), [&](SlotId id) {
                        return id != kAbsent && gradient_slots_[static_cast<std::size_t>(id)];
                      });
    if (runs && !on_host(steps[i])) return;
  }
  for (std::size_t i = 0; i <= index; ++i) {
    for (const SlotId id : steps[i].outputs) {
      fetch(id, kGrad);
      fetch(id, kGradTangent);
    }
  }
  fetch_late();
  synchronize();
}

void Executor::backward() {
  for (std::size_t i = program_.steps().size(); i-- > 0;) {
    const Step& step = program_.steps()[i];
    const auto has_gradient = [&](SlotId id) { return id != kAbsent && buffer(id, kGrad).defined(); };
    const bool wanted =
        std::any_of(step.inputs.begin(), step.inputs.end(),
                    [&](SlotId id) { return id != kAbsent && gradient_slots_[static_cast<std::size_t>(id)]; }) ||
        (settings_.parameter_gradients && !step.parameters.empty());
    if (!done_[i] || !wanted || std::none_of(step.outputs.begin(), step.outputs.end(), has_gradient)) continue;
    if (busy_ && on_host(step)) fetch_rest(i);
    run_step(step, i, true);
    // The gradient of what this step wrote has been used up.
    for (const SlotId id : step.outputs) {
      if (id == kAbsent) continue;
      release(buffer(id, kGrad));
      release(buffer(id, kGradTangent));
    }
  }
  synchronize();  // gradients of parameters are on their way
}

void Executor::run_step(const Step& step, std::size_t index, bool backward) {
  if (step.exchange) {
    run_exchange(step, backward);
    return;
  }
  plugin::OpenDevice* device = nullptr;
  if (step.op != nullptr && !step.op->placement().is_cpu()) {
    const std::shared_ptr<plugin::OpenDevice>& chosen = step.op->state().active->device;
    const std::shared_ptr<plugin::OpenDevice> lending = chosen->lending();
    use(lending != nullptr ? lending : chosen);
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
    if (settings_.repeat) note_failure(step.name, *step.op->last_failure());
    backward ? run_backward(step, nullptr, index) : run_forward(step, nullptr, index);
  }
  if (fast && !step.op->fast_active()) note_failure(step.name, *step.op->last_failure());
}

void Executor::note_failure(const std::string& module, const Reason& reason) {
  if (settings_.require_fast) {
    throw Error(ErrorCode::strict_violation, fmt::format("{}: {} (strict mode)", module, reason.text));
  }
  if (settings_.repeat) throw KernelGaveWay{module, reason};
  if (settings_.selection == nullptr) return;
  for (Decision& decision : settings_.selection->decisions.edit()) {
    if (decision.module != module) continue;
    for (Candidate& candidate : decision.candidates) {
      if (candidate.plugin != decision.choice) continue;
      candidate.verdict = Candidate::Verdict::refused;
      candidate.reasons.push_back(reason);
    }
    decision.choice = "reference";
    decision.reason = reason;
  }
}

void Executor::prepare_call(const Step& step, plugin::OpenDevice* device, Pass pass) {
  call_.pass = pass;
  call_.graph = &graph_on(device);
  call_.threads = settings_.threads;
  call_.queue = device != nullptr ? queue_.get() : nullptr;
  busy_ = busy_ || call_.queue != nullptr;
  call_.inputs = first(inputs_, step.inputs.size());
  call_.inputs_t = call_.outputs = call_.outputs_t = {};
  call_.grad_outputs = call_.grad_outputs_t = call_.grad_inputs = call_.grad_inputs_t = {};
  call_.grad_parameters = call_.grad_parameters_t = {};
  call_.saved = kNone;
}

void Executor::call(const Step& step) {
  if (step.op != nullptr) {
    step.op->run(call_);
    return;
  }
  step.glue->apply(call_, glue_parameters(*step.glue));
}

const std::vector<Tensor>& Executor::glue_parameters(Glue& glue) {
  GlueParameters& kept = glue_parameters_[{&glue, settings_.dtype}];
  if (kept.valid) return kept.tensors;
  kept.valid = true;
  std::size_t i = 0;
  for (const ops::SchemaTensor& item : glue.schema()) {
    const Tensor& own = glue.module()->parameter(item.name);
    if (own.dtype() == settings_.dtype) {
      put(kept.tensors, i++, own);
    } else if (i < kept.tensors.size()) {
      kept.tensors[i++].copy_from(own);
    } else {
      put(kept.tensors, i++, own.to(settings_.dtype));
    }
  }
  return kept.tensors;
}

void Executor::run_forward(const Step& step, plugin::OpenDevice* device, std::size_t index) {
  const std::size_t n_inputs = step.inputs.size(), n_outputs = step.outputs.size();
  bool tangent = false;
  for (std::size_t i = 0; i < n_inputs; ++i) {
    put(inputs_, i, read(step.inputs[i], kValue, device));
    if (settings_.tangent) tangent |= put(inputs_t_, i, read(step.inputs[i], kTangent, device)).defined();
  }
  for (std::size_t i = 0; i < n_outputs; ++i) {
    const SlotId id = step.outputs[i];
    put(outputs_, i, id == kAbsent ? kNone : write(id, kValue, device));
    if (tangent) put(outputs_t_, i, id == kAbsent ? kNone : write(id, kTangent, device));
  }
  forward_had_tangent_[index] = tangent;
  prepare_call(step, device, tangent ? Pass::forward_tangent : Pass::forward);
  call_.outputs = first(outputs_, n_outputs);
  if (tangent) {
    call_.inputs_t = first(inputs_t_, n_inputs);
    call_.outputs_t = first(outputs_t_, n_outputs);
  }
  release(saved_[index]);
  if (step.op != nullptr && step.op->fast_active()) {
    // A kernel may keep intermediate results for its backward pass.
    if (const std::uint64_t bytes = step.op->saved_bytes(call_); bytes > 0) {
      shape_.assign(1, static_cast<std::int64_t>(bytes));
      saved_[index] = take(shape_, DType::uint8, device);
      call_.saved = saved_[index];
    }
  }
  call(step);
}

void Executor::run_backward(const Step& step, plugin::OpenDevice* device, std::size_t index) {
  const std::size_t n_inputs = step.inputs.size(), n_outputs = step.outputs.size();
  // What a pass of forward has kept is for its own pass of backward: no other one knows how it lies there. Where the
  // inputs have no tangent, forward was the plain one. Then backward is linear in the gradients of the outputs, and its
  // tangent is itself, of their tangents.
  const bool tangent = settings_.tangent && forward_had_tangent_[index];
  bool along = tangent;  // gradients have tangents that are not zero
  for (std::size_t i = 0; i < n_inputs; ++i) {
    const SlotId id = step.inputs[i];
    if (step.late && !settings_.tangent && id != kAbsent && !buffer(id, kValue).host_valid) {
      // Linear: its gradient needs to know how many numbers there are, not which, and they may still be on the way.
      put(inputs_, i, Tensor::wrap(nullptr, shape_of(id), {}, dtype_of(id), Device::cpu(), nullptr));
      continue;
    }
    put(inputs_, i, read(id, kValue, device));
    if (tangent) put(inputs_t_, i, read(id, kTangent, device));
  }
  for (std::size_t i = 0; i < n_outputs; ++i) {
    put(grad_outputs_, i, read(step.outputs[i], kGrad, device));
    if (settings_.tangent) {
      along |= put(grad_outputs_t_, i, read(step.outputs[i], kGradTangent, device)).defined();
    }
  }
  fresh_gradients_.clear();
  const auto add_target = [&](std::vector<Tensor>& list, std::size_t i, Plane plane) {
    const SlotId id = step.inputs[i];
    if (id == kAbsent || !gradient_slots_[static_cast<std::size_t>(id)]) {
      put(list, i, kNone);
    } else if (!buffer(id, plane).defined()) {
      fresh_gradients_.emplace_back(id, plane);
      put(list, i, write(id, plane, device));
    } else {
      pending_.push_back({id, plane, scratch(id, device)});
      put(list, i, pending_.back().term);
    }
  };
  try {
    for (std::size_t i = 0; i < n_inputs; ++i) {
      add_target(grad_inputs_, i, kGrad);
      if (along) add_target(grad_inputs_t_, i, kGradTangent);
    }
    const std::size_t n_parameters = settings_.parameter_gradients ? step.parameters.size() : 0;
    if (n_parameters > 0) add_parameter_targets(step, device, along);
    prepare_call(step, device, tangent ? Pass::backward_tangent : Pass::backward);
    call_.grad_outputs = first(grad_outputs_, n_outputs);
    call_.grad_inputs = first(grad_inputs_, n_inputs);
    call_.grad_parameters = first(grad_parameters_, n_parameters);
    call_.saved = saved_[index];
    if (tangent) {
      call_.inputs_t = first(inputs_t_, n_inputs);
      call_.grad_outputs_t = first(grad_outputs_t_, n_outputs);
      call_.grad_inputs_t = first(grad_inputs_t_, n_inputs);
      call_.grad_parameters_t = first(grad_parameters_t_, n_parameters);
    }
    call(step);
    if (along && !tangent) {
      for (std::size_t i = 0; i < n_outputs; ++i) {
        if (!grad_outputs_[i].defined() || grad_outputs_t_[i].defined()) continue;
        const Tensor zero = Tensor::zeros(grad_outputs_[i].shape(), grad_outputs_[i].dtype());
        put(grad_outputs_t_, i, device != nullptr ? upload(zero) : zero);
      }
      call_.grad_outputs = first(grad_outputs_t_, n_outputs);
      call_.grad_inputs = first(grad_inputs_t_, n_inputs);
      call_.grad_parameters = first(grad_parameters_t_, n_parameters);
      call(step);
    }
  } catch (...) {
    // Whoever repeats the step must find it as it was.
    for (const auto& [slot, plane] : fresh_gradients_) release(buffer(slot, plane));
    for (Pending& each : pending_) release(each.term);
    pending_.clear();
    throw;
  }
  if (device != nullptr) {
    for (const std::string& name : step.parameters) {
      if (name.empty() || !settings_.parameter_gradients) continue;
      for (Tensor& kept : parameter_gradients_[name]) {
        if (!kept.defined() || kept.device().is_cpu()) continue;
        const Tensor on_host = Tensor::empty(kept.shape(), kept.dtype());
        if (queue_ != nullptr) {
          queue_->copy_from_device(kept, on_host);
        } else {
          device->copy_from_device(kept, on_host);
        }
        release(kept);
        kept = on_host;
      }
    }
  }
  for (Pending& each : pending_) {
    add_into(each.slot, each.plane, each.term, device);
    release(each.term);
  }
  pending_.clear();
}

void Executor::add_parameter_targets(const Step& step, plugin::OpenDevice* device, bool along) {
  const std::vector<ops::SchemaTensor> schema =
      step.op != nullptr ? std::vector<ops::SchemaTensor>() : step.glue->schema();
  for (std::size_t i = 0; i < step.parameters.size(); ++i) {
    put(grad_parameters_, i, kNone);
    put(grad_parameters_t_, i, kNone);
    if (step.parameters[i].empty()) continue;
    const Shape& shape = step.op != nullptr ? step.op->op_parameters(settings_.dtype)[i].shape()
                                            : step.glue->module()->parameter(schema[i].name).shape();
    const auto fresh = [&] {
      return device != nullptr ? device_pool_.take(shape, settings_.dtype) : Tensor::empty(shape, settings_.dtype);
    };
    auto& kept = parameter_gradients_[step.parameters[i]];
    kept[0] = put(grad_parameters_, i, fresh());
    if (along) {
      kept[1] = put(grad_parameters_t_, i, fresh());
    } else if (settings_.tangent) {
      kept[1] = Tensor::zeros(shape, settings_.dtype);
    }
  }
}

void Executor::run_exchange(const Step& step, bool backward) {
  if (settings_.tangent) {
    throw Error(ErrorCode::unsupported, "derivatives along a direction are not available under a ghost exchange");
  }
  const SlotId from = step.inputs[0], to = step.outputs[0];
  if (!backward) {
    const Tensor& source = read(from, kValue, nullptr);
    const Tensor& target = write(to, kValue, nullptr);
    std::memset(target.raw(), 0, target.bytes());
    std::memcpy(target.raw(), source.raw(), source.bytes());
    (*settings_.exchange)(ExchangeDirection::forward, step.layer, target);
    return;
  }
  const Tensor& source = read(to, kGrad, nullptr);
  (*settings_.exchange)(ExchangeDirection::backward, step.layer, source);
  if (!gradient_slots_[static_cast<std::size_t>(from)]) return;
  const Tensor& target = write(from, kGrad, nullptr);
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
