#include "verify/op_trial.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <utility>

#include "fastpath/error.hpp"
#include "fastpath/plugin.h"
#include "fastpath/sdk/attributes.hpp"
#include "verify/measure.hpp"
#include "verify/op_problem.hpp"

namespace fastpath::verify {
namespace {

constexpr std::size_t kGuard = 256;      // bytes around an output that must stay as they are
constexpr unsigned char kPoison = 0xff;  // as the bytes of a real number: a NaN that no arithmetic makes
constexpr unsigned char kFence = 0xa5;

std::string pass_name(Pass pass) { return fastpath::to_string(Passes(pass)); }

bool has_tangents(Pass pass) { return pass == Pass::forward_tangent || pass == Pass::backward_tangent; }
bool is_backward(Pass pass) { return pass == Pass::backward || pass == Pass::backward_tangent; }

std::int32_t status_of(ErrorCode code) {
  return code == ErrorCode::out_of_memory ? FP_E_OUT_OF_MEMORY
         : code == ErrorCode::device_lost ? FP_E_DEVICE_LOST
                                          : FP_E_INTERNAL;
}

/// A tensor that a kernel reads, and what it must still hold afterwards.
struct Read {
  std::string name;
  Tensor original;  // on the host, untouched
  Tensor given;     // where the kernel reads it
};

/// A tensor that a kernel writes, with bytes around it that it must not write.
struct Written {
  std::string name;
  Tensor given;
  Tensor storage;          // with the guards
  std::size_t before = 0;  // guard bytes in front of it
};

Tensor upload(plugin::OpenDevice& device, const Tensor& host) {
  if (!host.defined()) return {};
  if (!device.owns_memory()) return host.clone();
  Tensor result = device.allocate(host.shape(), host.dtype());
  device.copy_to_device(host, result);
  return result;
}

Tensor download(plugin::OpenDevice& device, const Tensor& tensor) {
  if (!device.owns_memory()) return tensor;
  const Tensor host = Tensor::empty(tensor.shape(), tensor.dtype());
  device.copy_from_device(tensor, host);
  return host;
}

Written make_output(plugin::OpenDevice& device, std::string name, const Shape& shape, DType dtype) {
  std::size_t bytes = size_of(dtype);
  for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
  Written result{std::move(name), {}, {}, device.owns_memory() ? 0 : kGuard};
  const auto total = static_cast<std::int64_t>(result.before + bytes + kGuard);
  const Tensor host = Tensor::empty({total}, DType::uint8);
  auto* at = static_cast<unsigned char*>(host.raw());
  std::memset(at, kFence, static_cast<std::size_t>(total));
  std::memset(at + result.before, kPoison, bytes);
  result.storage = upload(device, host);
  auto* base = static_cast<std::byte*>(result.storage.base());
  result.given = Tensor::wrap(base + result.before, shape, {}, dtype, result.storage.device(), result.storage.owner());
  return result;
}

template <class Function>
auto with_scalar(DType dtype, Function function) {
  return dtype == DType::float32 ? function(float{}) : function(double{});
}

/// Elements that still hold the poison.
template <class T>
std::int64_t count_unwritten(const T* values, std::int64_t n) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    std::array<unsigned char, sizeof(T)> bytes;
    std::memcpy(bytes.data(), values + i, sizeof(T));
    count += std::all_of(bytes.begin(), bytes.end(), [](unsigned char byte) { return byte == kPoison; });
  }
  return count;
}

}  // namespace

std::string_view to_string(Fault fault) noexcept {
  switch (fault) {
    case Fault::failed:
      return "failed";
    case Fault::wrong_value:
      return "wrong_value";
    case Fault::not_finite:
      return "not_finite";
    case Fault::not_written:
      return "not_written";
    case Fault::input_modified:
      return "input_modified";
    case Fault::wrote_outside:
      return "wrote_outside";
  }
  return "failed";
}

double tolerance(DType dtype, double promised, double reference_error, double terms) noexcept {
  if (dtype == DType::float32) {
    return std::max({1e-6, std::min(promised, kMaxPromise32), kReferenceErrors * reference_error});
  }
  constexpr double kLongSum = 1e4;
  return std::max(terms > kLongSum ? 5e-14 : 1e-14, std::min(promised, kMaxPromise64));
}

std::vector<TrialShape> gate_shapes(const OpSpec& op) {
  TrialShape random;
  if (op.id == sdk::RadialMlpConfig::kOp || op.id == sdk::IrrepsLinearConfig::kOp) random.n_rows = 67;
  if (op.id == sdk::SphericalHarmonicsConfig::kOp || op.id == sdk::RadialBasisConfig::kOp) random.n_edges = 131;
  TrialShape none;
  none.name = "empty";
  none.n_edges = none.n_rows = 0;
  return {random, none};
}

std::vector<TrialShape> standard_shapes(const OpSpec& op) {
  std::vector<TrialShape> shapes = gate_shapes(op);
  const auto add = [&](const char* name, std::int64_t nodes, std::int64_t receivers, std::int64_t edges,
                       std::int64_t rows) {
    TrialShape shape;
    shape.name = name;
    shape.n_nodes = nodes;
    shape.n_receivers = receivers;
    shape.n_edges = edges;
    shape.n_rows = rows;
    shapes.push_back(shape);
  };
  add("one edge", 2, 2, 1, 1);
  add("no ghosts", 8, 8, 60, 16);
  add("one receiver", 5, 2, 50, 3);
  add("no nodes", 0, 0, 0, 0);
  add("one node", 1, 1, 6, 1);
  add("more", 40, 33, 300, 200);
  return shapes;
}

Request inputs_only(const sdk::Signature& signature) {
  Request request;
  request.grad_parameters.assign(signature.parameters.size(), false);
  return request;
}

struct OpTrial::Impl : Problem {
  Impl(FastPathModule& reference, DType type, const TrialShape& size, std::uint64_t seed)
      : Problem(draw_problem(reference, type, size, seed)), module(reference), dtype(type) {}

  FastPathModule& module;
  DType dtype;
  struct Results {
    std::vector<Tensor> reference, truth;
    std::vector<std::vector<Tensor>> moved;  // truth, with every input moved a little; made when it is needed
  };
  std::map<std::pair<Pass, bool>, Results> results;

  std::vector<Read> bound;
  double promised = 0;

  /// Without a graph nobody could tell how many nodes there are.
  bool needs_graph() const {
    const auto by_node = [](const sdk::Argument& argument) {
      return argument.axis == sdk::Axis::nodes || argument.axis == sdk::Axis::receivers;
    };
    return signature.needs_graph || std::any_of(signature.inputs.begin(), signature.inputs.end(), by_node);
  }

  bool has_input_gradient(std::size_t i) const {
    return signature.inputs[i].real && signature.inputs[i].differentiable && given.inputs[i].defined();
  }
  bool has_parameter_gradient(std::size_t i) const {
    return signature.parameters[i].differentiable && given.parameters[i].defined();
  }

  /// One tensor that a pass writes, or may write.
  struct Target {
    std::string name;
    Shape shape;
    bool exists = true;
  };
  /// In the order of OpTrial::reference(): without and, for tangent passes, then with "_t".
  std::vector<Target> targets(Pass pass, bool optional_outputs) const {
    std::vector<Target> result;
    const int planes = has_tangents(pass) ? 2 : 1;
    for (int plane = 0; plane < planes; ++plane) {
      const char* prefix = plane == 1 ? "tangent of " : "";
      if (!is_backward(pass)) {
        for (const sdk::Argument& argument : signature.outputs) {
          result.push_back({fmt::format("{}output '{}'", prefix, argument.name), shape_of(argument),
                            optional_outputs || !argument.optional});
        }
        continue;
      }
      for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
        result.push_back({fmt::format("{}gradient of input '{}'", prefix, signature.inputs[i].name),
                          shape_of(signature.inputs[i]), has_input_gradient(i)});
      }
      for (std::size_t i = 0; i < signature.parameters.size(); ++i) {
        result.push_back({fmt::format("{}gradient of parameter '{}'", prefix, signature.parameters[i].name),
                          shape_of(signature.parameters[i]), has_parameter_gradient(i)});
      }
    }
    return result;
  }

  /// Puts the tensors that a pass writes into a call.
  struct Lists {
    std::vector<Tensor> first, second, first_t, second_t;  // outputs, or gradients of inputs and of parameters
    void spread(const std::vector<Tensor>& all, Pass pass, std::size_t n_first, std::size_t n_second) {
      std::size_t at = 0;
      const auto take = [&](std::vector<Tensor>& list, std::size_t count) {
        for (std::size_t i = 0; i < count; ++i) list.push_back(all[at++]);
      };
      take(first, n_first), take(second, n_second);
      if (has_tangents(pass)) take(first_t, n_first), take(second_t, n_second);
    }
    void attach(OpCall& call, Pass pass) const {
      if (is_backward(pass)) {
        call.grad_inputs = first, call.grad_parameters = second;
        call.grad_inputs_t = first_t, call.grad_parameters_t = second_t;
      } else {
        call.outputs = first, call.outputs_t = first_t;
      }
    }
  };
  Lists spread(const std::vector<Tensor>& all, Pass pass) const {
    Lists lists;
    lists.spread(all, pass, is_backward(pass) ? signature.inputs.size() : signature.outputs.size(),
                 is_backward(pass) ? signature.parameters.size() : 0);
    return lists;
  }

  /// Gradients of outputs as a call of this request gives them.
  std::vector<Tensor> cotangents(const std::vector<Tensor>& all, bool optional_outputs) const {
    std::vector<Tensor> result = all;
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (signature.outputs[i].optional && !optional_outputs) result[i] = Tensor();
    }
    return result;
  }

  std::vector<Tensor> evaluate(const Side& side, DType type, Pass pass, bool optional_outputs) {
    std::vector<Tensor> all;
    for (const Target& target : targets(pass, optional_outputs)) {
      all.push_back(target.exists ? Tensor::zeros(target.shape, type) : Tensor());
    }
    const Lists lists = spread(all, pass);
    const std::vector<Tensor> grads = cotangents(side.grad_outputs, optional_outputs),
                              grads_t = cotangents(side.grad_outputs_t, optional_outputs);
    OpCall call;
    call.pass = pass;
    call.graph = &graph;
    call.inputs = side.inputs;
    if (is_backward(pass)) call.grad_outputs = grads;
    if (has_tangents(pass)) {
      call.inputs_t = side.inputs_t;
      call.parameters_t = side.parameters_t;
      if (is_backward(pass)) call.grad_outputs_t = grads_t;
    }
    lists.attach(call, pass);
    module.run_reference(call, side.parameters);
    return all;
  }

  /// How far one rounding of every input moves a tensor, relative to its largest value: the most that was seen.
  double conditioning(Results& expect, std::size_t i, Pass pass, bool optional_outputs) {
    constexpr double kStep = 0x1p-30;  // small enough to be linear, large enough to be seen in float64
    constexpr int kSamples = 6;        // one may move it by less than it can be moved
    Random random(static_cast<std::uint64_t>(pass));
    while (static_cast<int>(expect.moved.size()) < kSamples) {
      Side side = exact;
      for (auto* list : {&side.inputs, &side.inputs_t, &side.grad_outputs, &side.grad_outputs_t, &side.parameters_t,
                         &side.parameters}) {
        for (std::size_t k = 0; k < list->size(); ++k) {
          Tensor& tensor = (*list)[k];
          if (!tensor.defined() || !is_floating(tensor.dtype())) continue;
          if (list == &side.parameters && !signature.parameters[k].differentiable) continue;
          tensor = tensor.clone();
          for (double& value : tensor.span<double>()) value *= 1 + (random.next() % 2 == 0 ? kStep : -kStep);
        }
      }
      expect.moved.push_back(evaluate(side, DType::float64, pass, optional_outputs));
    }
    double most = 0;
    for (const std::vector<Tensor>& moved : expect.moved) {
      const double error = relative_error(moved[i], expect.truth[i]);
      if (std::isfinite(error)) most = std::max(most, error);
    }
    return most / kStep * (dtype == DType::float32 ? 0x1p-24 : 0x1p-53);
  }

  Results& expected(Pass pass, bool optional_outputs) {
    const bool all = optional_outputs || std::none_of(signature.outputs.begin(), signature.outputs.end(),
                                                      [](const sdk::Argument& output) { return output.optional; });
    const auto [place, added] = results.try_emplace({pass, all});
    if (added) {
      place->second.reference = evaluate(given, dtype, pass, optional_outputs);
      place->second.truth =
          dtype == DType::float64 ? place->second.reference : evaluate(exact, DType::float64, pass, optional_outputs);
    }
    return place->second;
  }

  std::string where(Pass pass) const {
    return fmt::format("{} ({} nodes, {} receivers, {} edges, {} rows), {}", shape.name, shape.n_nodes,
                       shape.n_receivers, shape.n_edges, shape.n_rows, pass_name(pass));
  }

  Finding finding(Fault fault, Pass pass, std::string tensor, const std::string& what) const {
    Finding result;
    result.fault = fault;
    result.pass = pass;
    result.text = fmt::format("{}: {}{}{}", where(pass), tensor, tensor.empty() ? "" : " ", what);
    result.tensor = std::move(tensor);
    return result;
  }
  Finding failure(Pass pass, plugin::CallStatus status) const {
    Finding result = finding(Fault::failed, pass, "", fmt::format("failed: {}", status.text));
    result.status = std::move(status);
    return result;
  }

  /// One call of the kernel. Compares unless the pass only prepares another one.
  void call(plugin::Kernel& kernel, plugin::OpenDevice& device, Pass pass, const Request& request, Tensor& saved,
            bool compare, RunResult& out) {
    std::vector<Read> reads;
    const auto give = [&](const std::vector<Tensor>& list, const std::vector<sdk::Argument>& arguments,
                          const char* what) {
      std::vector<Tensor> tensors;
      for (std::size_t i = 0; i < list.size(); ++i) {
        tensors.push_back(upload(device, list[i]));
        if (list[i].defined()) {
          reads.push_back({fmt::format("{} '{}'", what, arguments[i].name), list[i], tensors.back()});
        }
      }
      return tensors;
    };
    OpCall op_call;
    op_call.pass = pass;
    op_call.threads = request.threads;
    OpGraph on_device = graph;
    for (Tensor* index :
         {&on_device.sender, &on_device.receiver, &on_device.receiver_ptr, &on_device.sender_ptr,
          &on_device.sender_edge, &on_device.species, &on_device.species_ptr, &on_device.species_node}) {
      const Tensor original = *index;
      *index = upload(device, original);
      if (original.defined()) reads.push_back({"an index array of the graph", original, *index});
    }
    if (needs_graph() || request.with_graph) op_call.graph = &on_device;

    const std::vector<Tensor> inputs = give(given.inputs, signature.inputs, "input");
    std::vector<Tensor> inputs_t, parameters_t, grads, grads_t;
    op_call.inputs = inputs;
    if (has_tangents(pass)) {
      inputs_t = give(given.inputs_t, signature.inputs, "tangent of input");
      parameters_t = give(given.parameters_t, signature.parameters, "tangent of parameter");
      op_call.inputs_t = inputs_t;
      op_call.parameters_t = parameters_t;
    }
    if (is_backward(pass)) {
      grads = give(cotangents(given.grad_outputs, request.optional_outputs), signature.outputs, "gradient of output");
      op_call.grad_outputs = grads;
      if (has_tangents(pass)) {
        grads_t = give(cotangents(given.grad_outputs_t, request.optional_outputs), signature.outputs,
                       "tangent of gradient of output");
        op_call.grad_outputs_t = grads_t;
      }
    }
    const std::vector<Target> wanted = targets(pass, request.optional_outputs);
    const std::size_t n_inputs = signature.inputs.size(), n_gradients = n_inputs + signature.parameters.size();
    std::vector<Written> outputs(wanted.size());
    std::vector<Tensor> tensors(wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      bool asked = wanted[i].exists;
      if (is_backward(pass)) {
        const std::size_t position = i % n_gradients;
        const auto& mask = position < n_inputs ? request.grad_inputs : request.grad_parameters;
        const std::size_t entry = position < n_inputs ? position : position - n_inputs;
        asked = asked && (mask.empty() || (entry < mask.size() && mask[entry]));
      }
      if (!asked) continue;
      outputs[i] = make_output(device, wanted[i].name, wanted[i].shape, dtype);
      tensors[i] = outputs[i].given;
    }
    const Lists lists = spread(tensors, pass);
    lists.attach(op_call, pass);
    if (!is_backward(pass)) {
      const auto bytes = static_cast<std::int64_t>(kernel.saved_bytes(op_call));
      saved = {};
      if (bytes > 0) {
        const Tensor poison = Tensor::empty({bytes}, DType::uint8);
        std::memset(poison.raw(), kPoison, poison.bytes());
        saved = upload(device, poison);
      }
    }
    op_call.saved = saved;

    plugin::CallStatus status = kernel.run(op_call);
    if (!status.ok()) {
      out.finding = failure(pass, std::move(status));
      return;
    }
    for (const auto* list : {&reads, &bound}) {
      for (const Read& read : *list) {
        const Tensor now = download(device, read.given);
        if (now.bytes() > 0 && std::memcmp(now.raw(), read.original.raw(), now.bytes()) != 0) {
          out.finding = finding(Fault::input_modified, pass, read.name, "was written to, and belongs to the caller");
          return;
        }
      }
    }
    Results* expect = compare ? &expected(pass, request.optional_outputs) : nullptr;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].given.defined()) continue;
      check_fence(device, outputs[i], pass, out);
      if (out.finding) return;
      if (expect != nullptr) compare_tensor(device, outputs[i], *expect, i, pass, request, out);
    }
  }

  void check_fence(plugin::OpenDevice& device, const Written& output, Pass pass, RunResult& out) const {
    const Tensor bytes = download(device, output.storage);
    const auto* at = static_cast<const unsigned char*>(bytes.raw());
    const std::size_t total = bytes.bytes();
    const auto intact = [&](std::size_t from, std::size_t to) {
      return std::all_of(at + from, at + to, [](unsigned char byte) { return byte == kFence; });
    };
    if (!intact(0, output.before)) {
      out.finding = finding(Fault::wrote_outside, pass, output.name, "has bytes written before its first element");
    } else if (!intact(total - kGuard, total)) {
      out.finding = finding(Fault::wrote_outside, pass, output.name, "has bytes written after its last element");
    }
  }

  void compare_tensor(plugin::OpenDevice& device, const Written& output, Results& expect, std::size_t i, Pass pass,
                      const Request& request, RunResult& out) {
    const Tensor bytes = download(device, output.storage);
    const std::int64_t n = output.given.numel();
    with_scalar(dtype, [&]<class T>(T) {
      // Not through the tensor: on a device its address is none of ours.
      const auto* values = reinterpret_cast<const T*>(static_cast<const std::byte*>(bytes.raw()) + output.before);
      TensorResult result;
      result.tensor = output.name;
      result.error = relative_error(values, expect.reference[i].data<T>(), n);
      result.truth_error = relative_error(values, expect.truth[i].data<double>(), n);
      result.reference_error = relative_error(expect.reference[i].data<T>(), expect.truth[i].data<double>(), n);
      const double own = std::isfinite(result.reference_error) ? result.reference_error : 0.0;
      result.tolerance = tolerance(dtype, promised, own, terms);
      const auto close = [&] { return result.error <= result.tolerance || result.truth_error <= result.tolerance; };
      if (!close() && std::isfinite(result.error)) {
        // Nothing is to blame where the result hangs on the last bit of the inputs.
        result.tolerance =
            std::max(result.tolerance, kRoundings * conditioning(expect, i, pass, request.optional_outputs));
      }
      out.tensors.push_back(result);
      if (out.finding) return;
      const auto found = [&](Fault fault, const std::string& what) {
        out.finding = finding(fault, pass, output.name, what);
        out.finding->error = result.error;
        out.finding->tolerance = result.tolerance;
      };
      if (const std::int64_t missing = count_unwritten(values, n); missing > 0) {
        found(Fault::not_written, fmt::format("has {} of {} elements that were not written", missing, n));
      } else if (std::isnan(result.error)) {
        found(Fault::not_finite, "holds values that are not finite where the reference's are");
      } else if (!close()) {
        found(Fault::wrong_value, fmt::format("differs from the reference by {:.3g} of its largest value, at most "
                                              "{:.3g} in {} is accepted",
                                              result.error, result.tolerance, fastpath::to_string(dtype)));
      }
    });
  }
};

OpTrial::OpTrial(FastPathModule& module, DType dtype, const TrialShape& shape, std::uint64_t seed)
    : impl_(std::make_unique<Impl>(module, dtype, shape, seed)) {}
OpTrial::~OpTrial() = default;

const TrialShape& OpTrial::shape() const noexcept { return impl_->shape; }
const sdk::Signature& OpTrial::signature() const noexcept { return impl_->signature; }

plugin::CallStatus OpTrial::bind(plugin::Kernel& kernel, plugin::OpenDevice& device) {
  // Modules count up from 1, so none of theirs is that high.
  static std::atomic<std::uint64_t> next_version{std::uint64_t{1} << 63};
  impl_->bound.clear();
  impl_->promised = kernel.traits().tolerance;
  try {
    std::vector<Tensor> parameters;
    for (std::size_t i = 0; i < impl_->given.parameters.size(); ++i) {
      const Tensor& own = impl_->given.parameters[i];
      parameters.push_back(upload(device, own));
      if (own.defined()) {
        impl_->bound.push_back(
            {fmt::format("parameter '{}'", impl_->signature.parameters[i].name), own, parameters.back()});
      }
    }
    return kernel.bind(parameters, next_version.fetch_add(1));
  } catch (const Error& error) {
    return {status_of(error.code()), error.what()};
  }
}

RunResult OpTrial::run(plugin::Kernel& kernel, plugin::OpenDevice& device, Pass pass, const Request& request) {
  RunResult result;
  try {
    Tensor saved;
    if (is_backward(pass)) {
      const Pass before = has_tangents(pass) ? Pass::forward_tangent : Pass::forward;
      impl_->call(kernel, device, before, request, saved, false, result);
      if (result.finding) return result;
    }
    impl_->call(kernel, device, pass, request, saved, true, result);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::internal) throw;
    result.finding = impl_->failure(pass, {status_of(error.code()), error.what()});
  }
  return result;
}

const std::vector<Tensor>& OpTrial::reference(Pass pass) { return impl_->expected(pass, true).reference; }
const std::vector<Tensor>& OpTrial::truth(Pass pass) { return impl_->expected(pass, true).truth; }

}  // namespace fastpath::verify
