#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fastpath/sdk/ops.hpp"
#include "ops/accumulator.hpp"
#include "ops/conv_tensor_product/conv_tensor_product.hpp"
#include "ops/dual.hpp"
#include "ops/graph_view.hpp"
#include "ops/multiply_rows.hpp"
#include "ops/radial_basis/radial_basis.hpp"
#include "ops/radial_mlp/radial_mlp.hpp"
#include "ops/spherical_harmonics/spherical_harmonics.hpp"

/// The message step as the composition of its four ops: what their references give one after the other, bit for bit.
/// For S = float (each computed in double), double or Dual<double>.
namespace fastpath::ops {

/// What a message step reads. Shapes: sdk::MessageStepConfig.
template <class S>
struct MessageStepInputs {
  GraphView graph;
  const S* x = nullptr;
  const S* vectors = nullptr;
  const S* lengths = nullptr;
  const std::int32_t* species = nullptr;  ///< Null without a distance transform.
  const S* bessel_weights = nullptr;
  std::vector<const S*> weights;  ///< One a layer of the net.
};

/// Where its gradients go; null where not wanted.
template <class S>
struct MessageStepGradients {
  S* x = nullptr;
  S* vectors = nullptr;
  S* lengths = nullptr;
  std::vector<S*> weights;
};

namespace detail {

/// What the ops hand to each other: harmonics, basis, envelope, weights before and after the envelope.
template <class S>
struct MessageStepEdges {
  std::vector<S> sh, basis, envelope, plain, cut;
  const S* weights() const { return cut.empty() ? plain.data() : cut.data(); }

  MessageStepEdges(const sdk::MessageStepConfig& c, const MessageStepInputs<S>& in) {
    const std::int64_t n = in.graph.n_edges, width = c.conv.weight_numel();
    sh.resize(static_cast<std::size_t>(n * c.harmonics.dim()));
    basis.resize(static_cast<std::size_t>(n * c.radial.n_basis));
    plain.resize(static_cast<std::size_t>(n * width));
    if (!c.radial.apply_cutoff) {
      envelope.resize(static_cast<std::size_t>(n));
      cut.resize(plain.size());
    }
    spherical_harmonics_forward(c.harmonics, n, in.vectors, sh.data());
    const bool pairs = c.radial.transform != sdk::DistanceTransform::none;
    radial_basis_forward(c.radial, n, in.lengths, pairs ? in.graph.sender : nullptr,
                         pairs ? in.graph.receiver : nullptr, in.species, in.bessel_weights, basis.data(),
                         c.radial.apply_cutoff ? static_cast<S*>(nullptr) : envelope.data());
    radial_mlp_forward(c.mlp, n, basis.data(), in.weights.data(), plain.data());
    if (!c.radial.apply_cutoff) multiply_rows_forward(n, width, plain.data(), envelope.data(), cut.data());
  }
};

}  // namespace detail

/// @param out  Out: [n_receivers, conv.out.dim()].
template <class S>
void message_step_forward(const sdk::MessageStepConfig& config, const MessageStepInputs<S>& in, S* out) {
  const detail::MessageStepEdges<S> edges(config, in);
  conv_tensor_product_forward(config.conv, in.graph, in.x, edges.sh.data(), edges.weights(), out);
}

/// @param grad_out  [n_receivers, conv.out.dim()].
template <class S>
void message_step_backward(const sdk::MessageStepConfig& config, const MessageStepInputs<S>& in, const S* grad_out,
                           const MessageStepGradients<S>& to) {
  const std::int64_t n = in.graph.n_edges, width = config.conv.weight_numel();
  bool radial = to.lengths != nullptr;
  for (const S* grad : to.weights) radial = radial || grad != nullptr;
  const detail::MessageStepEdges<S> edges(config, in);

  std::vector<S> grad_sh(to.vectors != nullptr ? edges.sh.size() : 0), grad_weights(radial ? edges.plain.size() : 0);
  conv_tensor_product_backward(config.conv, in.graph, in.x, edges.sh.data(), edges.weights(), grad_out, to.x,
                               to.vectors != nullptr ? grad_sh.data() : static_cast<S*>(nullptr),
                               radial ? grad_weights.data() : static_cast<S*>(nullptr));
  if (to.vectors != nullptr) {
    spherical_harmonics_backward(config.harmonics, n, in.vectors, grad_sh.data(), to.vectors);
  }
  if (!radial) return;

  std::vector<S> grad_envelope, grad_plain;
  if (!config.radial.apply_cutoff) {
    grad_envelope.resize(static_cast<std::size_t>(n));
    grad_plain.resize(grad_weights.size());
    multiply_rows_backward(n, width, edges.plain.data(), edges.envelope.data(), grad_weights.data(), grad_plain.data(),
                           grad_envelope.data());
    grad_weights.swap(grad_plain);
  }
  std::vector<S> grad_basis(to.lengths != nullptr ? edges.basis.size() : 0);
  radial_mlp_backward(config.mlp, n, edges.basis.data(), in.weights.data(), grad_weights.data(),
                      to.lengths != nullptr ? grad_basis.data() : static_cast<S*>(nullptr), to.weights.data());
  if (to.lengths == nullptr) return;
  const bool pairs = config.radial.transform != sdk::DistanceTransform::none;
  radial_basis_backward(config.radial, n, in.lengths, pairs ? in.graph.sender : nullptr,
                        pairs ? in.graph.receiver : nullptr, in.species, in.bessel_weights, grad_basis.data(),
                        config.radial.apply_cutoff ? static_cast<const S*>(nullptr) : grad_envelope.data(), to.lengths,
                        static_cast<S*>(nullptr));
}

}  // namespace fastpath::ops
