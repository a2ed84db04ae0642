#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "fastpath/export.hpp"
#include "fastpath/graph.hpp"
#include "fastpath/tensor.hpp"

namespace fastpath::plugin {
class Queue;  // of a device, for the library
}

namespace fastpath {

/// What a call computes. Tangent passes carry one directional derivative of every quantity beside its value.
enum class Pass : std::uint32_t { forward = 1, backward = 2, forward_tangent = 4, backward_tangent = 8 };

/// A set of passes.
class Passes {
 public:
  constexpr Passes() = default;
  constexpr Passes(Pass pass) : bits_(static_cast<std::uint32_t>(pass)) {}  // NOLINT: a pass is a set of one
  static constexpr Passes from_bits(std::uint32_t bits) {
    Passes result;
    result.bits_ = bits & 15u;
    return result;
  }
  constexpr std::uint32_t bits() const noexcept { return bits_; }
  constexpr bool contains(Passes other) const noexcept { return (bits_ & other.bits_) == other.bits_; }
  friend constexpr Passes operator|(Passes a, Passes b) noexcept { return from_bits(a.bits_ | b.bits_); }
  friend constexpr bool operator==(const Passes&, const Passes&) = default;

 private:
  std::uint32_t bits_ = 0;
};
constexpr Passes operator|(Pass a, Pass b) noexcept { return Passes(a) | Passes(b); }
/// Energies only; energies and forces; everything a training step or a Hessian needs.
inline constexpr Passes kPassesEnergy = Pass::forward;
inline constexpr Passes kPassesForces = Pass::forward | Pass::backward;
inline constexpr Passes kPassesTraining = kPassesForces | Pass::forward_tangent | Pass::backward_tangent;
/// "forward, backward".
FASTPATH_EXPORT std::string to_string(Passes passes);

/// Named values that configure an op; what crosses the plugin ABI.
using OpConfig = std::map<std::string, std::variant<std::vector<std::int64_t>, std::vector<double>, std::string>>;

/// An op and its configuration: what a fast-path module asks plugins for.
struct OpSpec {
  std::string id;  ///< "conv_tensor_product"; reverse-DNS for ops that fastpath does not define.
  std::int32_t version = 1;
  OpConfig config;
};

/// The sizes a decision depends on. A bare number is an edge count.
struct ProblemSize {
  std::int64_t n_edges = 0;
  std::int64_t n_nodes = 0;
  ProblemSize() = default;
  ProblemSize(std::int64_t edges) : n_edges(edges) {}  // NOLINT: implicit by design
  ProblemSize(std::int64_t edges, std::int64_t nodes) : n_edges(edges), n_nodes(nodes) {}
};

/// A graph as ops see it: index tensors on one device, contiguous, with the meaning they have in Graph.
struct FASTPATH_EXPORT OpGraph {
  std::int64_t n_edges = 0;
  std::int64_t n_nodes = 0;
  std::int64_t n_receivers = 0;  ///< Rows of outputs per receiver: n_nodes, or n_local under a ghost exchange.
  std::int64_t n_species = 0;
  Tensor sender, receiver;                       ///< [n_edges] int32
  Tensor receiver_ptr, sender_ptr, sender_edge;  ///< int64
  Tensor species;                                ///< [n_nodes] int32: species index of every node; may be undefined
  Tensor species_ptr, species_node;              ///< [n_species + 1] int64, [n_nodes] int32: nodes grouped by species

  /// @param species  [n_nodes] int32 with values 0..n_species-1, or undefined.
  static OpGraph from(const Graph& graph, const Tensor& species, std::int64_t n_species, std::int64_t n_receivers);
};

/// One evaluation of an op. Lists are in the order of the op's schema; an undefined tensor is absent or not wanted.
/// Outputs and gradients are overwritten, completely. Which lists a pass reads and writes:
///   forward: inputs -> outputs. backward: inputs, grad_outputs -> grad_inputs, grad_parameters.
///   forward_tangent: inputs, inputs_t, parameters_t -> outputs, outputs_t.
///   backward_tangent: the former and grad_outputs, grad_outputs_t -> grad_inputs(_t), grad_parameters(_t).
/// An absent tangent of an input, parameter or output gradient is zero.
struct OpCall {
  Pass pass = Pass::forward;
  const OpGraph* graph = nullptr;
  std::span<const Tensor> inputs, outputs, grad_outputs, grad_inputs, grad_parameters;
  std::span<const Tensor> inputs_t, outputs_t, parameters_t, grad_outputs_t, grad_inputs_t, grad_parameters_t;
  Tensor saved;     ///< Bytes that forward keeps for backward, if the kernel asked for some.
  int threads = 1;  ///< CPU threads the call may use.
  /// On a device: where the call is enqueued, behind what the queue was given before. Null: complete on return.
  plugin::Queue* queue = nullptr;
};

}  // namespace fastpath
