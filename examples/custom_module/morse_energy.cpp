#include "morse_energy.hpp"

#include <algorithm>
#include <cmath>

#include "fastpath/error.hpp"
#include "morse_op.hpp"

namespace morse {
namespace {

using fastpath::Error;
using fastpath::ErrorCode;
using fastpath::OpCall;
using fastpath::Pass;
using fastpath::Shape;
using fastpath::Tensor;

/// Half the energy of a pair and its derivatives.
template <class T>
struct Pair {
  T energy, by_distance, by_depth, by_stiffness, by_equilibrium;
};

template <class T>
Pair<T> pair_energy(T r, T depth, T stiffness, T distance, T r_max) {
  if (r >= r_max) return {};
  const T x = r / r_max;
  const T end = (1 - x * x) * (1 - x * x), end_slope = -4 * x * (1 - x * x) / r_max;
  const T decay = std::exp(-stiffness * (r - distance));
  const T m = 1 - decay, half = T(0.5);
  const T well = decay * (decay - 2);  // m^2 - 1, without the difference of numbers near 1 far away
  return {half * depth * well * end, half * depth * (2 * m * stiffness * decay * end + well * end_slope),
          half * well * end, half * depth * 2 * m * decay * (r - distance) * end,
          -half * depth * 2 * m * stiffness * decay * end};
}

template <class T>
void compute(const OpCall& call, const std::vector<Tensor>& parameters, double r_max) {
  const T depth = *parameters[0].data<T>(), stiffness = *parameters[1].data<T>(), distance = *parameters[2].data<T>();
  const fastpath::OpGraph& graph = *call.graph;
  const T* vectors = call.inputs[0].data<T>();
  const auto first_edge = graph.receiver_ptr.span<std::int64_t>();
  const auto pair = [&](std::int64_t e) {
    const T* v = vectors + 3 * e;
    const T r = std::sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
    return std::pair(r, pair_energy(r, depth, stiffness, distance, static_cast<T>(r_max)));
  };
  if (call.pass == Pass::forward) {
    T* energies = call.outputs[0].data<T>();
    for (std::int64_t n = 0; n < graph.n_receivers; ++n) {
      double sum = 0;
      for (std::int64_t e = first_edge[n]; e < first_edge[n + 1]; ++e)
        sum += static_cast<double>(pair(e).second.energy);
      energies[n] = static_cast<T>(sum);
    }
    return;
  }
  // Only what is asked for is defined, and all of that is written.
  T* grad_vectors =
      !call.grad_inputs.empty() && call.grad_inputs[0].defined() ? call.grad_inputs[0].data<T>() : nullptr;
  const T* grad_energies = call.grad_outputs[0].data<T>();
  double sums[3] = {};
  for (std::int64_t n = 0; n < graph.n_receivers; ++n) {
    for (std::int64_t e = first_edge[n]; e < first_edge[n + 1]; ++e) {
      const auto [r, p] = pair(e);
      for (int k = 0; k < 3 && grad_vectors != nullptr; ++k) {
        grad_vectors[3 * e + k] = grad_energies[n] * p.by_distance * vectors[3 * e + k] / r;
      }
      sums[0] += static_cast<double>(grad_energies[n] * p.by_depth);
      sums[1] += static_cast<double>(grad_energies[n] * p.by_stiffness);
      sums[2] += static_cast<double>(grad_energies[n] * p.by_equilibrium);
    }
  }
  for (std::size_t i = 0; i < call.grad_parameters.size(); ++i) {
    if (call.grad_parameters[i].defined()) *call.grad_parameters[i].data<T>() = static_cast<T>(sums[i]);
  }
}

/// fastpath checks shapes of the ops it knows; those of a host's own op are the host's to check.
void require_shape(const Tensor& tensor, const Shape& shape, const char* name) {
  if (tensor.defined() && tensor.shape() == shape && tensor.is_contiguous()) return;
  throw Error(ErrorCode::invalid_argument, std::string(kOp) + ": '" + name + "' has shape " +
                                               fastpath::to_string(tensor.shape()) + ", expected contiguous " +
                                               fastpath::to_string(shape));
}

}  // namespace

MorseEnergy::MorseEnergy(double depth, double stiffness, double distance, double r_max)
    : op_{kOp, kVersion, {{"r_max", std::vector<double>{r_max}}}}, r_max_(r_max) {
  register_parameter("depth", Tensor::from({1}, std::vector<double>{depth}));
  register_parameter("stiffness", Tensor::from({1}, std::vector<double>{stiffness}));
  register_parameter("distance", Tensor::from({1}, std::vector<double>{distance}));
}

void MorseEnergy::reference(const OpCall& call, const std::vector<Tensor>& parameters) {
  if (call.pass != Pass::forward && call.pass != Pass::backward) {
    throw Error(ErrorCode::unsupported, std::string(kOp) + ": has no tangents");
  }
  if (call.graph == nullptr || call.inputs.size() != 1) {
    throw Error(ErrorCode::invalid_argument, std::string(kOp) + ": needs a graph and one input");
  }
  require_shape(call.inputs[0], {call.graph->n_edges, 3}, "edge_vectors");
  const auto results = call.pass == Pass::forward ? call.outputs : call.grad_outputs;
  require_shape(results.empty() ? Tensor() : results[0], {call.graph->n_receivers}, "node_energies");
  if (call.inputs[0].dtype() == fastpath::DType::float32) {
    compute<float>(call, parameters, r_max_);
  } else {
    compute<double>(call, parameters, r_max_);
  }
}

}  // namespace morse
