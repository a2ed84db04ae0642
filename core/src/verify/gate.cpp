#include "verify/gate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "fastpath/error.hpp"
#include "fastpath/plugin.h"
#include "fastpath/sdk/attributes.hpp"
#include "fastpath/sdk/ops.hpp"
#include "verify/measure.hpp"
#include "verify/op_trial.hpp"

namespace fastpath::verify {
namespace {

constexpr std::uint64_t kSeed = 0x5eed;

/// FNV-1a over words of 8 bytes: constants may be megabytes.
std::uint64_t hash_of(const Tensor& tensor) {
  constexpr std::uint64_t kPrime = 0x100000001b3u;
  std::uint64_t hash = 0xcbf29ce484222325u;
  const auto* bytes = static_cast<const unsigned char*>(tensor.raw());
  std::size_t at = 0;
  for (; at + 8 <= tensor.bytes(); at += 8) {
    std::uint64_t word;
    std::memcpy(&word, bytes + at, 8);
    hash = (hash ^ word) * kPrime;
    // A product carries upwards only: without this the signs of two values would cancel.
    hash ^= hash >> 32;
  }
  for (; at < tensor.bytes(); ++at) hash = (hash ^ bytes[at]) * kPrime;
  return hash;
}

std::optional<sdk::Signature> signature_of(const OpSpec& op) {
  try {
    return sdk::signature_of(op.id, op.version, sdk::Attributes(op.config));
  } catch (const sdk::ConfigError&) {
    return std::nullopt;
  }
}

/// Makes a shape one that the kernel takes. False if it takes no such thing.
bool fit(TrialShape& shape, const plugin::KernelTraits& traits) {
  if (traits.max_edges > 0) shape.n_edges = std::min(shape.n_edges, traits.max_edges);
  if (shape.n_edges == 0 && traits.min_edges > 0) return false;
  shape.n_edges = std::max(shape.n_edges, traits.min_edges);
  return true;
}

bool has_optional_outputs(const sdk::Signature& signature) {
  return std::any_of(signature.outputs.begin(), signature.outputs.end(),
                     [](const sdk::Argument& argument) { return argument.optional; });
}

}  // namespace

GateResult GateStore::result(const std::string& key, bool keep, const std::function<GateResult()>& make) {
  std::unique_lock lock(mutex_);
  Entry& entry = entries_[key];
  done_.wait(lock, [&] { return !entry.running; });
  if (entry.result) return *entry.result;
  entry.running = true;
  lock.unlock();
  GateResult made;
  try {
    const bool known = keep && archive_.has_passed(key);
    made = known ? GateResult{true, true, {}} : make();
    if (keep && !known && made.passed) archive_.keep(key);
  } catch (...) {
    lock.lock();
    entry.running = false;
    done_.notify_all();
    throw;
  }
  lock.lock();
  entry.running = false;
  if (made.lasting) entry.result = made;
  done_.notify_all();
  return made;
}

std::optional<GateResult> GateStore::find(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(key);
  return found == entries_.end() ? std::nullopt : found->second.result;
}

void GateStore::put(const std::string& key, GateResult result) {
  const std::lock_guard lock(mutex_);
  entries_[key].result = std::move(result);
}

bool has_schema(const OpSpec& op) { return signature_of(op).has_value(); }

std::string gate_key(const FastPathModule& module, const plugin::LoadedPlugin& plugin, const DeviceInfo& device,
                     const std::string& kernel, DType dtype, Passes passes) {
  std::string key = fmt::format("{}|{}|{}|{}|{}|{}|{}", plugin.build(), kernel, device.name, device.arch, device.uuid,
                                device.driver, passes.bits());
  const std::vector<Tensor>& parameters = module.op_parameters(dtype);
  const std::optional<sdk::Signature> signature = signature_of(module.op());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].defined()) continue;
    key += "|" + fastpath::to_string(parameters[i].shape());
    // A kernel may make use of what a basis looks like.
    if (signature && !signature->parameters[i].differentiable) key += fmt::format("#{:016x}", hash_of(parameters[i]));
  }
  return key;
}

GateResult try_kernel(FastPathModule& module, plugin::Kernel& kernel, plugin::OpenDevice& device, DType dtype,
                      Passes passes) {
  for (TrialShape shape : gate_shapes(module.op())) {
    const bool empty = shape.n_edges == 0;
    if (!fit(shape, kernel.traits())) continue;
    OpTrial trial(module, dtype, shape, kSeed);
    if (plugin::CallStatus status = trial.bind(kernel, device); !status.ok()) {
      return {false, !status.recoverable(), fmt::format("parameters cannot be bound: {}", status.text)};
    }
    std::vector<Request> requests = {Request{}};
    if (!empty) {
      Request few = inputs_only(trial.signature());
      few.optional_outputs = false;
      const bool backward = passes.contains(Pass::backward) || passes.contains(Pass::backward_tangent);
      if (has_optional_outputs(trial.signature()) || (backward && !trial.signature().parameters.empty())) {
        requests.push_back(few);
      }
    }
    for (const Request& request : requests) {
      for (const Pass pass : {Pass::forward, Pass::backward, Pass::forward_tangent, Pass::backward_tangent}) {
        if (!passes.contains(pass)) continue;
        const RunResult result = trial.run(kernel, device, pass, request);
        if (!result.finding) continue;
        const plugin::CallStatus& status = result.finding->status;
        if (status.status == FP_E_DEVICE_LOST) throw Error(ErrorCode::device_lost, result.finding->text);
        return {false, status.ok() || !status.recoverable(), result.finding->text};
      }
    }
  }
  return {true, true, {}};
}

namespace {

Tensor to_host(plugin::OpenDevice& device, const Tensor& tensor) {
  if (!tensor.defined()) return {};
  if (tensor.device().is_cpu()) return tensor.clone();
  const Tensor host = Tensor::empty(tensor.shape(), tensor.dtype());
  device.copy_from_device(tensor, host);
  return host;
}

Tensor to_device(plugin::OpenDevice& device, const Tensor& host) {
  if (!host.defined()) return {};
  if (!device.owns_memory()) return host.clone();
  const Tensor result = device.allocate(host.shape(), host.dtype());
  device.copy_to_device(host, result);
  return result;
}

bool has_tangents(Pass pass) { return pass == Pass::forward_tangent || pass == Pass::backward_tangent; }
bool is_backward(Pass pass) { return pass == Pass::backward || pass == Pass::backward_tangent; }

/// A call with tensors of its own.
struct OwnCall {
  // In the order of read_lists() and write_lists().
  static constexpr std::size_t kReads = 5, kWrites = 6;
  std::array<std::vector<Tensor>, kReads> reads;
  std::array<std::vector<Tensor>, kWrites> writes;
  OpGraph graph;
  OpCall call;

  // A caller may leave lists of another pass where they are; nobody touches those.
  static std::array<std::span<const Tensor>, kReads> read_lists(const OpCall& c) {
    std::array<std::span<const Tensor>, kReads> lists{c.inputs};
    if (is_backward(c.pass)) lists[1] = c.grad_outputs;
    if (has_tangents(c.pass)) lists[2] = c.inputs_t, lists[3] = c.parameters_t;
    if (has_tangents(c.pass) && is_backward(c.pass)) lists[4] = c.grad_outputs_t;
    return lists;
  }
  static std::array<std::span<const Tensor>, kWrites> write_lists(const OpCall& c) {
    const bool tangents = has_tangents(c.pass);
    std::array<std::span<const Tensor>, kWrites> lists{};
    if (is_backward(c.pass)) {
      lists[2] = c.grad_inputs, lists[4] = c.grad_parameters;
      if (tangents) lists[3] = c.grad_inputs_t, lists[5] = c.grad_parameters_t;
    } else {
      lists[0] = c.outputs;
      if (tangents) lists[1] = c.outputs_t;
    }
    return lists;
  }
  void attach(const OpCall& original) {
    call = original;
    call.graph = original.graph != nullptr ? &graph : nullptr;
    call.inputs = reads[0], call.grad_outputs = reads[1], call.inputs_t = reads[2], call.parameters_t = reads[3];
    call.grad_outputs_t = reads[4];
    call.outputs = writes[0], call.outputs_t = writes[1], call.grad_inputs = writes[2];
    call.grad_inputs_t = writes[3], call.grad_parameters = writes[4], call.grad_parameters_t = writes[5];
  }
};

constexpr std::array<const char*, OwnCall::kWrites> kWritten{"output",
                                                             "tangent of output",
                                                             "gradient of input",
                                                             "tangent of gradient of input",
                                                             "gradient of parameter",
                                                             "tangent of gradient of parameter"};

/// Copies what a call reads, makes room for what it writes.
template <class Copy, class Make>
void build(OwnCall& own, const OpCall& original, Copy copy, Make make) {
  const auto reads = OwnCall::read_lists(original);
  for (std::size_t k = 0; k < reads.size(); ++k) {
    for (const Tensor& tensor : reads[k]) own.reads[k].push_back(copy(tensor));
  }
  const auto writes = OwnCall::write_lists(original);
  for (std::size_t k = 0; k < writes.size(); ++k) {
    for (const Tensor& tensor : writes[k]) own.writes[k].push_back(tensor.defined() ? make(tensor) : Tensor());
  }
  if (original.graph != nullptr) {
    own.graph = *original.graph;
    OpGraph& graph = own.graph;
    for (Tensor* index : {&graph.sender, &graph.receiver, &graph.receiver_ptr, &graph.sender_ptr, &graph.sender_edge,
                          &graph.species, &graph.species_ptr, &graph.species_node}) {
      *index = copy(*index);
    }
  }
  own.attach(original);
}

Tensor poisoned(const Tensor& like, DType dtype) {
  const Tensor result = Tensor::empty(like.shape(), dtype);
  std::memset(result.raw(), 0xff, result.bytes());
  return result;
}

}  // namespace

Compared run_compared(FastPathModule& module, plugin::Kernel& kernel, plugin::OpenDevice& device, const OpCall& call,
                      DType dtype) {
  OwnCall reference, fast;
  build(
      reference, call, [&](const Tensor& tensor) { return to_host(device, tensor); },
      [&](const Tensor& tensor) { return poisoned(tensor, tensor.dtype()); });
  reference.call.saved = {};
  build(
      fast, reference.call, [&](const Tensor& tensor) { return to_device(device, tensor); },
      [&](const Tensor& tensor) { return to_device(device, tensor); });
  fast.call.saved = call.saved;  // the core's own: what forward keeps for backward

  Compared result;
  result.status = kernel.run(fast.call);
  if (!result.status.ok()) return result;
  module.run_reference(reference.call);

  // In single precision the reference rounds too; only where they differ is it worth asking how much.
  OwnCall exact;
  const auto truth = [&](std::size_t list, std::size_t i) -> const Tensor& {
    if (exact.call.inputs.empty()) {
      const auto wide = [](const Tensor& tensor) {
        return tensor.defined() && is_floating(tensor.dtype()) ? tensor.to(DType::float64) : tensor;
      };
      build(exact, reference.call, wide, [](const Tensor& tensor) { return poisoned(tensor, DType::float64); });
      std::vector<Tensor> parameters;
      for (const Tensor& tensor : module.op_parameters(dtype)) parameters.push_back(wide(tensor));
      module.run_reference(exact.call, parameters);
    }
    return exact.writes[list][i];
  };
  const double promised = kernel.traits().tolerance;
  std::array<std::vector<Tensor>, OwnCall::kWrites> kernel_results;
  for (std::size_t k = 0; k < OwnCall::kWrites; ++k) {
    for (std::size_t i = 0; i < fast.writes[k].size(); ++i) {
      const Tensor& expected = reference.writes[k][i];
      kernel_results[k].push_back(to_host(device, fast.writes[k][i]));
      if (!expected.defined() || result.mismatch) continue;
      const double error = relative_error(kernel_results[k][i], expected);
      double limit = call_tolerance(dtype, promised, 0);
      bool close = error <= limit;
      if (!close && dtype == DType::float32 && std::isfinite(error)) {
        limit = call_tolerance(dtype, promised, relative_error(expected, truth(k, i)));
        close = error <= limit || relative_error(kernel_results[k][i], truth(k, i)) <= limit;
      }
      if (close) continue;
      result.mismatch =
          std::isnan(error)
              ? fmt::format("{}, {} {} holds values that are not finite where the reference's are",
                            to_string(Passes(call.pass)), kWritten[k], i)
              : fmt::format(
                    "{}, {} {} differs from the reference by {:.3g} of its largest value, at most {:.3g} is "
                    "accepted",
                    to_string(Passes(call.pass)), kWritten[k], i, error, limit);
    }
  }
  const auto& chosen = result.mismatch ? reference.writes : kernel_results;
  const auto targets = OwnCall::write_lists(call);
  for (std::size_t k = 0; k < OwnCall::kWrites; ++k) {
    for (std::size_t i = 0; i < targets[k].size(); ++i) {
      if (!targets[k][i].defined()) continue;
      if (targets[k][i].device().is_cpu()) {
        targets[k][i].copy_from(chosen[k][i]);
      } else {
        device.copy_to_device(chosen[k][i], targets[k][i]);
      }
    }
  }
  return result;
}

}  // namespace fastpath::verify
