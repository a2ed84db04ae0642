#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "cpu/kernel.hpp"
#include "cpu/radial.hpp"

namespace fastpath_cpu {

/// sin(t) / t of n arguments, its slope and that one's; the latter two where they are not null. No curvature without
/// slope.
using SincFunction = void(std::int64_t n, const double* t, double* value, double* slope, double* curvature);

/// Computed in double for float too: sin(w r) would lose what w r has before the point. Edges are worked on in tiles,
/// whose sines are made together.
template <class T>
class RadialBasis : public CpuKernel<T> {
 public:
  RadialBasis(const sdk::RadialBasisConfig& config, SincFunction* sinc)
      : CpuKernel<T>(config.signature()), config_(config), sinc_(sinc) {}

 private:
  static Chunks chunks(std::int64_t n_edges) { return Chunks(n_edges, 256, 16); }

  void take(const sdk::TensorList& parameters) override {
    const auto weights = parameters[0].template view<const T>();
    weights_.assign(weights.data(), weights.data() + weights.size());
    if (!config_.frequencies.empty()) weights_ = config_.frequencies;  // the same before rounding
  }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    if (pass == sdk::Pass::backward) {
      scratch.take<double>(chunks(extents[sdk::Axis::edges]).count * config_.n_basis);
    }
  }
  void plan_tangent(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    if (pass == sdk::Pass::backward_tangent) {
      scratch.take<Dual<double>>(chunks(extents[sdk::Axis::edges]).count * config_.n_basis);
    }
  }

  EdgeRadii radii(const sdk::Run& run) const {
    if (config_.transform == sdk::DistanceTransform::none) return {};
    return {config_, run.graph.value().host(), this->read_indices(run.inputs, 1)};
  }

  void forward(const sdk::Run& run, sdk::Scratch&) override { evaluate<double>(run); }
  void forward_tangent(const sdk::Run& run, sdk::Scratch&) override { evaluate<Dual<double>>(run); }
  void backward(const sdk::Run& run, sdk::Scratch& scratch) override { gradients<double>(run, scratch); }
  void backward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override { gradients<Dual<double>>(run, scratch); }

  template <class N>
  std::vector<N> weights(const sdk::Run& run) const {
    std::vector<N> result(weights_.begin(), weights_.end());
    if constexpr (!std::is_same_v<N, double>) {
      const T* tangent = this->read(run.parameters_t, 0);
      for (std::size_t n = 0; tangent != nullptr && n < result.size(); ++n) result[n].tangent = tangent[n];
    }
    return result;
  }

  /// Some edges: their envelopes, arguments, and what the basis function of one frequency makes of these.
  template <class N>
  struct Tile {
    static constexpr std::int64_t kEdges = 64;
    std::array<ValueAndSlopeOf<N>, kEdges> envelope, argument;
    std::array<double, kEdges> at, value, slope, curvature;
    std::array<N, kEdges> phase;

    Tile(const RadialBasis& basis, const ReadPair<T>& lengths, const EdgeRadii& nodes, std::int64_t first,
         std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) {
        const N r = get<N>(lengths, first + i);
        envelope[i] = fastpath_cpu::envelope(r, basis.config_.r_max, basis.config_.p);
        argument[i] = radial_argument(basis.config_, r, nodes, first + i);
      }
    }
    void set_frequency(const RadialBasis& basis, const N& w, bool slopes, std::int64_t n) {
      constexpr bool kTangents = !std::is_same_v<N, double>;
      for (std::int64_t i = 0; i < n; ++i) {
        phase[i] = w * argument[i].value;
        at[i] = primal(phase[i]);
      }
      basis.sinc_(n, at.data(), value.data(), slopes || kTangents ? slope.data() : nullptr,
                  slopes && kTangents ? curvature.data() : nullptr);
    }
    /// sin(t) / t and its slope, where t is the frequency times the argument.
    N sinc(std::int64_t i) const { return with_slope(N(value[i]), N(slope[i]), phase[i]); }
    N sinc_slope(std::int64_t i) const { return with_slope(N(slope[i]), N(curvature[i]), phase[i]); }
  };

  template <class N>
  void evaluate(const sdk::Run& run) {
    const auto lengths = this->read(run.inputs, run.inputs_t, 0);
    const auto embedding = this->write(run.outputs, run.outputs_t, 0);
    const auto envelopes = this->write(run.outputs, run.outputs_t, 1);
    const EdgeRadii nodes = radii(run);
    const std::vector<N> w = weights<N>(run);
    const Chunks chunks = this->chunks(run.inputs[0].size(0));
    for_each_tile(run, chunks, [&](std::int64_t, std::int64_t first, std::int64_t n_edges) {
      Tile<N> tile(*this, lengths, nodes, first, n_edges);
      for (std::int64_t i = 0; i < n_edges; ++i) set(envelopes, first + i, tile.envelope[i].value);
      for (std::int64_t n = 0; n < config_.n_basis; ++n) {
        tile.set_frequency(*this, w[n], false, n_edges);
        for (std::int64_t i = 0; i < n_edges; ++i) {
          const N factor = config_.prefactor * (config_.apply_cutoff ? tile.envelope[i].value : N(1.0));
          set(embedding, (first + i) * config_.n_basis + n, factor * w[n] * tile.sinc(i));
        }
      }
    });
  }
  /// Calls body(chunk, first edge, number of edges).
  template <class Body>
  void for_each_tile(const sdk::Run& run, const Chunks& chunks, const Body& body) {
    constexpr std::int64_t kEdges = Tile<double>::kEdges;
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      for (std::int64_t first = chunks.begin(chunk); first < chunks.end(chunk); first += kEdges) {
        body(chunk, first, std::min(kEdges, chunks.end(chunk) - first));
      }
    });
  }

  template <class N>
  void gradients(const sdk::Run& run, sdk::Scratch& scratch) {
    const auto lengths = this->read(run.inputs, run.inputs_t, 0);
    const auto grad_embedding = this->read(run.grad_outputs, run.grad_outputs_t, 0);
    const auto grad_envelope = this->read(run.grad_outputs, run.grad_outputs_t, 1);
    const auto grad_lengths = this->write(run.grad_inputs, run.grad_inputs_t, 0);
    const auto grad_weights = this->write(run.grad_parameters, run.grad_parameters_t, 0);
    const EdgeRadii nodes = radii(run);
    const std::vector<N> w = weights<N>(run);
    const Chunks chunks = this->chunks(run.inputs[0].size(0));
    N* partial = scratch.take<N>(chunks.count * config_.n_basis);
    std::fill_n(partial, chunks.count * config_.n_basis, N(0.0));
    for_each_tile(run, chunks, [&](std::int64_t chunk, std::int64_t first, std::int64_t n_edges) {
      Tile<N> tile(*this, lengths, nodes, first, n_edges);
      std::array<N, Tile<N>::kEdges> grad_x{}, grad_f{};
      for (std::int64_t i = 0; i < n_edges; ++i) grad_f[i] = get<N>(grad_envelope, first + i);
      for (std::int64_t n = 0; n < config_.n_basis; ++n) {
        tile.set_frequency(*this, w[n], true, n_edges);
        N& sum = partial[chunk * config_.n_basis + n];
        for (std::int64_t i = 0; i < n_edges; ++i) {
          const N g = config_.prefactor * get<N>(grad_embedding, (first + i) * config_.n_basis + n);
          const N cut = config_.apply_cutoff ? tile.envelope[i].value : N(1.0), value = tile.sinc(i),
                  slope = tile.sinc_slope(i);
          grad_x[i] += g * cut * w[n] * w[n] * slope;
          if (config_.apply_cutoff) grad_f[i] += g * w[n] * value;
          sum += g * cut * (value + tile.phase[i] * slope);  // the cosine
        }
      }
      for (std::int64_t i = 0; i < n_edges; ++i) {
        set(grad_lengths, first + i, grad_x[i] * tile.argument[i].slope + grad_f[i] * tile.envelope[i].slope);
      }
    });
    for (std::int64_t n = 0; n < config_.n_basis; ++n) {
      N sum(0.0);
      for (std::int64_t chunk = 0; chunk < chunks.count; ++chunk) sum += partial[chunk * config_.n_basis + n];
      set(grad_weights, n, sum);
    }
  }

  sdk::RadialBasisConfig config_;
  std::vector<double> weights_;
  SincFunction* sinc_;
};

}  // namespace fastpath_cpu
