#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/radial.hpp"
#include "ops.hpp"
#include "pairs.hpp"
#include "product.hpp"

/// What both ways of going through the edges of a message step share.
namespace cpu_simd {

using fastpath_cpu::EdgeRadii;

/// A message step and its weights in the order in which products read them.
template <class T>
struct StepPlan {
  Product<T> product;
  sdk::RadialBasisConfig radial;
  int l_max;
  std::vector<std::int64_t> widths;  ///< Of the inputs of the layers, then of the output.
  std::vector<double> scales;
  T constant;  ///< Of the activation.
  std::vector<double> frequencies;
  /// Per layer, for forward [in, out] and for backward [out, in]. The last layer is cut by paths.
  std::vector<AlignedArray<T>> forward, backward;
  std::vector<std::int64_t> last_forward, last_backward;  ///< Where a path's part of the last layer starts.

  explicit StepPlan(const sdk::MessageStepConfig& config)
      : product(config.conv),
        radial(config.radial),
        l_max(config.harmonics.l_max),
        widths(config.mlp.widths),
        scales(config.mlp.scales),
        constant(static_cast<T>(config.mlp.activation_constant)),
        forward(scales.size()),
        backward(scales.size()) {
    std::int64_t at = 0, back = 0;
    for (const ProductPath<T>& path : product.paths) {
      last_forward.push_back(at);
      last_backward.push_back(back);
      at += inputs() * path.padded;
      back += path.mul * stride(layers() - 1);
    }
    forward.back().resize(at);
    backward.back().resize(back);
    for (std::size_t i = 0; i + 1 < layers(); ++i) {
      forward[i].resize(widths[i] * stride(i + 1));
      backward[i].resize(widths[i + 1] * stride(i));
    }
  }
  std::size_t layers() const { return scales.size(); }
  /// Inputs of the last layer.
  std::int64_t inputs() const { return widths[layers() - 1]; }
  /// Elements from edge to edge in the input of a layer.
  std::int64_t stride(std::size_t layer) const { return padded<T>(widths[layer]); }
  /// Elements of all weights.
  std::int64_t weight_numel() const {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < layers(); ++i) sum += widths[i] * widths[i + 1];
    return sum;
  }
};

template <class T>
struct StepCall : ProductCall<T> {
  const T *vectors = nullptr, *lengths = nullptr;
  EdgeRadii radii;
  T *grad_vectors = nullptr, *grad_lengths = nullptr;  ///< Null where not wanted.
  double* partials = nullptr;  ///< [stripes][weight_numel()]: gradients of the weights but for their scale; or null.
};

template <class T>
struct StepBuffers : ProductBuffers<T> {
  T* vectors;                                           ///< [3 * kTile]
  double *argument, *argument_slope, *cut, *cut_slope;  ///< [kTile]
  double *basis, *basis_slope;                          ///< [n_basis][kTile], without envelope
  std::vector<T*> h, slope;  ///< Per layer: its input [kTile][stride], and the slope of the activation that made it.
  T* last;                   ///< Input of the last layer, times the envelope where the weights have it.
  T *grad, *next;            ///< [kTile][widest stride]
  T* product_of_weights;     ///< What one product adds to the gradient of weights.

  StepBuffers(const StepPlan<T>& plan, sdk::Scratch& scratch, bool backward)
      : ProductBuffers<T>(plan.product, scratch, backward) {
    constexpr std::int64_t kSpare = 16;  // read beyond the end by products of a^T
    vectors = scratch.take<T>(3 * kTile);
    for (double** array : {&argument, &argument_slope, &cut, &cut_slope}) *array = scratch.take<double>(kTile);
    basis = scratch.take<double>(plan.widths[0] * kTile);
    basis_slope = scratch.take<double>(backward ? plan.widths[0] * kTile : 0);
    std::int64_t widest = 0, largest = 0;
    for (std::size_t i = 0; i < plan.layers(); ++i) {
      h.push_back(scratch.take<T>(kTile * plan.stride(i) + kSpare));
      slope.push_back(i > 0 && backward ? scratch.take<T>(kTile * plan.stride(i)) : nullptr);
      widest = std::max(widest, plan.stride(i));
      const std::int64_t out = i + 1 < plan.layers() ? plan.stride(i + 1) : plan.product.widest;
      largest = std::max(largest, (plan.widths[i] + kSpare) * out);
    }
    const bool cuts = !plan.radial.apply_cutoff;
    last = cuts ? scratch.take<T>(kTile * plan.stride(plan.layers() - 1) + kSpare) : h.back();
    grad = scratch.take<T>(backward ? kTile * widest : 0);
    next = scratch.take<T>(backward ? kTile * widest : 0);
    product_of_weights = scratch.take<T>(backward ? largest : 0);
  }
};

template <class T>
using StepTake = void(StepPlan<T>& plan, const T* const* weights);
template <class T>
using StepForward = void(const StepPlan<T>& plan, const StepCall<T>& call, StepBuffers<T>& buffers, std::int64_t first,
                         std::int64_t last);
template <class T>
using StepBackward = void(const StepPlan<T>& plan, const StepCall<T>& call, StepBuffers<T>& buffers, const Tile& tile,
                          T* to_senders, std::int64_t stripe);
/// Gradients of all but the weights. @param grad_rows  Packed gradients of all receivers.
template <class T>
using StepBackwardPairs = void(const StepPlan<T>& plan, const StepCall<T>& call, StepBuffers<T>& buffers,
                               const PairTile& tile, const T* grad_rows, T* to_senders);
/// That of the chosen instruction set; of message_step_pairs.cpp.
template <class T>
StepBackwardPairs<T>* step_backward_pairs_for_target();

}  // namespace cpu_simd
