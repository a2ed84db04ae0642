#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fastpath/sdk/attributes.hpp"
#include "fastpath/sdk/error.hpp"
#include "fastpath/sdk/kernel.hpp"
#include "fastpath/sdk/ops.hpp"
#include "fastpath/sdk/tensor.hpp"

/// Compares what a host passes with the signature of the op, so that no kernel reads or writes past an array.
namespace fastpath::sdk {

/// The typed configuration of a query. @throws ConfigError also for an attribute that the op does not have: it may be
/// one of a later version that changes what is computed.
template <class Config>
Config known_config(const Attributes& given) {
  Config config = Config::from(given);
  const Attributes own = config.attributes();
  for (const auto& [name, value] : given.values()) {
    if (!own.has(name)) throw ConfigError("attribute '" + name + "' is not one of " + std::string(Config::kOp));
  }
  return config;
}

/// Number of rows on each axis of a call.
class Extents {
 public:
  /// From the graph where there is one, else from the sizes of the call.
  explicit Extents(const Run& run) : Extents(run.sizes) {
    if (run.graph) {
      set(Axis::edges, run.graph->n_edges);
      set(Axis::nodes, run.graph->n_nodes);
      set(Axis::receivers, run.graph->n_receivers);
    }
  }
  explicit Extents(const Sizes& sizes) {
    set(Axis::edges, sizes.n_edges);
    set(Axis::nodes, sizes.n_nodes);
    set(Axis::receivers, sizes.n_receivers);
    set(Axis::rows, sizes.n_rows);
    set(Axis::none, 1);
  }
  std::int64_t operator[](Axis axis) const { return values_[static_cast<std::size_t>(axis)]; }

 private:
  void set(Axis axis, std::int64_t value) { values_[static_cast<std::size_t>(axis)] = value; }
  std::array<std::int64_t, 5> values_{};
};

/// @throws InvalidArgument if the tensor is absent but `required`, or if its shape or dtype is not the argument's.
inline void check_tensor(const Argument& argument, const Tensor& tensor, std::int64_t rows, DType real, bool required,
                         const char* role) {
  const auto name = [&] { return std::string(role) + " '" + argument.name + "'"; };
  if (!tensor.present()) {
    if (required) throw InvalidArgument(name() + " is absent, but needed");
    return;
  }
  const DType dtype = argument.real ? real : kInt32;
  if (!(tensor.dtype() == dtype)) {
    throw InvalidArgument(name() + " is " + tensor.dtype().name() + ", expected " + dtype.name());
  }
  const int leading = argument.axis == Axis::none ? 0 : 1;
  bool same = tensor.ndim() == leading + static_cast<int>(argument.trailing.size());
  if (same && leading == 1) same = tensor.size(0) == rows;
  for (std::size_t i = 0; same && i < argument.trailing.size(); ++i) {
    same = tensor.size(leading + static_cast<int>(i)) == argument.trailing[i];
  }
  if (same) return;
  std::string expected = leading == 1 ? std::to_string(rows) : std::string();
  for (const std::int64_t size : argument.trailing) expected += (expected.empty() ? "" : ", ") + std::to_string(size);
  throw InvalidArgument(name() + " has shape " + tensor.shape_text() + ", expected [" + expected + "]");
}

/// Parameters of a bind against the signature. @throws InvalidArgument naming the parameter.
inline void check_bind(const Signature& signature, const Bind& bind, DType real) {
  for (std::size_t i = 0; i < signature.parameters.size(); ++i) {
    const Argument& argument = signature.parameters[i];
    check_tensor(argument, bind.parameters[i], 1, real, !argument.optional, "parameter");
  }
}

/// Tensors of a call against the signature.
/// @throws InvalidArgument naming the tensor whose shape or dtype is wrong, that is missing, that has an extent other
/// than the graph or sizes say, or the tangent of something that has none; or a graph that is missing. @throws Refused
/// for a gradient of something that has none.
inline void check_run(const Signature& signature, const Run& run, DType real) {
  if (signature.needs_graph && !run.graph) throw InvalidArgument("the op needs a graph, and none is given");
  const Extents extents(run);
  const auto list = [&](const std::vector<Argument>& arguments, const TensorList& tensors, bool required,
                        const char* role) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      check_tensor(arguments[i], tensors[i], extents[arguments[i].axis], real, required && !arguments[i].optional,
                   role);
    }
  };
  const auto gradients = [&](const std::vector<Argument>& arguments, const TensorList& tensors, const char* role) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (!arguments[i].differentiable && tensors[i].present()) {
        throw Refused(std::string(role) + " '" + arguments[i].name + "' is asked for, but the op has none");
      }
    }
    list(arguments, tensors, false, role);
  };
  const auto tangents = [&](const std::vector<Argument>& arguments, const TensorList& tensors, const char* role) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (!arguments[i].differentiable && tensors[i].present()) {
        throw InvalidArgument(std::string(role) + " '" + arguments[i].name + "' is given, but the op has none");
      }
    }
    list(arguments, tensors, false, role);
  };
  const bool has_tangents = run.pass == Pass::forward_tangent || run.pass == Pass::backward_tangent;
  list(signature.inputs, run.inputs, true, "input");
  if (has_tangents) {
    tangents(signature.inputs, run.inputs_t, "tangent of input");
    tangents(signature.parameters, run.parameters_t, "tangent of parameter");
  }
  if (run.pass == Pass::forward || run.pass == Pass::forward_tangent) {
    list(signature.outputs, run.outputs, true, "output");
    if (has_tangents) list(signature.outputs, run.outputs_t, false, "tangent of output");
    return;
  }
  list(signature.outputs, run.grad_outputs, true, "gradient of output");
  gradients(signature.inputs, run.grad_inputs, "gradient of input");
  gradients(signature.parameters, run.grad_parameters, "gradient of parameter");
  if (!has_tangents) return;
  list(signature.outputs, run.grad_outputs_t, false, "tangent of gradient of output");
  gradients(signature.inputs, run.grad_inputs_t, "tangent of gradient of input");
  gradients(signature.parameters, run.grad_parameters_t, "tangent of gradient of parameter");
}

}  // namespace fastpath::sdk
