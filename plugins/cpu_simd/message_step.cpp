#include <algorithm>
#include <array>
#include <type_traits>

#include "harmonics.hpp"
#include "ops.hpp"
#include "pairs.hpp"
#include "schedule.hpp"
#include "step.hpp"
#include "step_tangents.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_simd/message_step.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets what they are compiled for.
#include "gemm-inl.hpp"
#include "hwy/highway.h"
#include "product-inl.hpp"
#include "silu-inl.hpp"
#include "step-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

template <class T>
void step_take(StepPlan<T>& plan, const T* const* weights) {
  const std::size_t last = plan.layers() - 1;
  for (std::size_t i = 0; i < last; ++i) {
    const std::int64_t in = plan.widths[i], out = plan.widths[i + 1];
    pack_panels(in, out, plan.stride(i + 1), weights[i], out, 1, plan.scales[i], plan.forward[i].data());
    pack_panels(out, in, plan.stride(i), weights[i], 1, out, plan.scales[i], plan.backward[i].data());
  }
  const std::int64_t in = plan.widths[last], out = plan.widths[last + 1];
  for (std::size_t p = 0; p < plan.product.paths.size(); ++p) {
    const ProductPath<T>& path = plan.product.paths[p];
    pack_panels(in, path.mul, path.padded, weights[last] + path.w, out, 1, plan.scales[last],
                plan.forward[last].data() + plan.last_forward[p]);
    pack_panels(path.mul, in, plan.stride(last), weights[last] + path.w, 1, out, plan.scales[last],
                plan.backward[last].data() + plan.last_backward[p]);
  }
}

/// Harmonics, net and gradients of them for a tile of edges.
template <class T>
struct FromGeometry {
  const StepPlan<T>& plan;
  const StepCall<T>& call;
  bool backward = false;
  std::int64_t stripe = -1;

  template <class D>
  HWY_INLINE void prepare(D d, const Tile& tile, StepBuffers<T>& b) const {
    const T* const vectors = call.vectors + 3 * tile.first;
    std::copy_n(vectors, 3 * tile.n, b.vectors);
    std::fill(b.vectors + 3 * tile.n, b.vectors + 3 * kTile, T(1));
    TileHarmonics<T>{plan.l_max, plan.product.edge_dim}.values(d, b.vectors, b.y);
    radial(tile, b);
    net(d, tile, b);
  }

  HWY_INLINE void radial(const Tile& tile, StepBuffers<T>& b) const {
    tile_basis(plan, call, b, tile.n, kTile, backward, [&](std::int64_t i) { return tile.first + i; });
    const std::int64_t n_basis = plan.widths[0], stride = plan.stride(0);
    for (std::int64_t e = 0; e < kTile; ++e) {
      T* const h = b.h[0] + e * stride;
      for (std::int64_t n = 0; n < n_basis; ++n) {
        h[n] = static_cast<T>(b.basis[n * kTile + e] * (plan.radial.apply_cutoff ? b.cut[e] : 1.0));
      }
      std::fill(h + n_basis, h + stride, T(0));
    }
  }

  template <class D>
  HWY_INLINE void net(D d, const Tile& tile, StepBuffers<T>& b) const {
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    const std::int64_t rows = tile.rows(kBlockRows);
    const auto constant = hn::Set(d, plan.constant), one = hn::Set(d, T(1));
    for (std::size_t i = 0; i + 1 < plan.layers(); ++i) {
      const std::int64_t stride = plan.stride(i + 1);
      T *const h = b.h[i + 1], *const slope = b.slope[i + 1];
      multiply(d, rows, stride, plan.widths[i], b.h[i], plan.stride(i), plan.forward[i].data(), h, stride, false);
      for (std::int64_t at = 0; at < rows * stride; at += kLanes) {
        const auto z = hn::LoadU(d, h + at);
        const auto s = sigmoid(d, z);
        const auto scaled = hn::Mul(constant, s.value);
        hn::StoreU(hn::Mul(scaled, z), d, h + at);
        // d/dz z s(z) = s (1 + z (1 - s))
        if (backward) hn::StoreU(hn::Mul(scaled, hn::MulAdd(z, s.rest, one)), d, slope + at);
      }
    }
    if (plan.radial.apply_cutoff) return;
    const std::int64_t stride = plan.stride(plan.layers() - 1);
    for (std::int64_t e = 0; e < rows; ++e) {
      const auto cut = hn::Set(d, static_cast<T>(b.cut[e]));
      for (std::int64_t at = e * stride; at < (e + 1) * stride; at += kLanes) {
        hn::StoreU(hn::Mul(cut, hn::LoadU(d, b.h.back() + at)), d, b.last + at);
      }
    }
  }

  std::size_t index_of(const ProductPath<T>& path) const {
    return static_cast<std::size_t>(&path - plan.product.paths.data());
  }
  template <class D>
  HWY_INLINE PathInputs<T> weights(D d, const ProductPath<T>& path, const Tile& tile, StepBuffers<T>& b,
                                   const ProductCall<T>&) const {
    const std::size_t last = plan.layers() - 1;
    multiply(d, tile.rows(kBlockRows), path.padded, plan.inputs(), b.last, plan.stride(last),
             plan.forward[last].data() + plan.last_forward[index_of(path)], b.weights, path.padded, false);
    return {call.x, plan.product.in.size, call.graph.sender + tile.first, b.weights, path.padded};
  }

  /// partial[in, columns from `column` on] += a^T b.
  template <class D>
  HWY_INLINE void add_to_partial(D d, const Tile& tile, StepBuffers<T>& b, std::size_t layer, const T* a, const T* grad,
                                 std::int64_t stride, std::int64_t column, std::int64_t columns) const {
    const std::int64_t in = plan.widths[layer], out = plan.widths[layer + 1];
    const std::int64_t rows = (in + kBlockRows - 1) / kBlockRows * kBlockRows;
    multiply_transposed(d, rows, stride, tile.n, a, plan.stride(layer), grad, stride, b.product_of_weights, stride);
    double* to = call.partials + stripe * plan.weight_numel() + column;
    for (std::size_t i = 0; i < layer; ++i) to += plan.widths[i] * plan.widths[i + 1];
    for (std::int64_t i = 0; i < in; ++i) {
      const T* const from = b.product_of_weights + i * stride;
      for (std::int64_t j = 0; j < columns; ++j) to[i * out + j] += static_cast<double>(from[j]);
    }
  }

  HWY_INLINE GradientRows<T> grad_weights(const ProductPath<T>& path, const Tile&, StepBuffers<T>& b) const {
    return {b.grad_weights, path.padded};
  }
  template <class D>
  HWY_INLINE void take(D d, const ProductPath<T>& path, const Tile& tile, StepBuffers<T>& b) const {
    const std::size_t last = plan.layers() - 1, p = index_of(path);
    multiply(d, tile.rows(kBlockRows), plan.stride(last), path.mul, b.grad_weights, path.padded,
             plan.backward[last].data() + plan.last_backward[p], b.grad, plan.stride(last), p > 0);
    if (stripe >= 0) add_to_partial(d, tile, b, last, b.last, b.grad_weights, path.padded, path.w, path.mul);
  }

  template <class D>
  HWY_INLINE void finish(D d, const Tile& tile, StepBuffers<T>& b) const {
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    const std::int64_t rows = tile.rows(kBlockRows);
    std::array<double, kTile> grad_cut{};
    T *grad = b.grad, *next = b.next;
    if (!plan.radial.apply_cutoff) {
      const std::int64_t stride = plan.stride(plan.layers() - 1);
      for (std::int64_t e = 0; e < rows; ++e) {
        const auto cut = hn::Set(d, static_cast<T>(b.cut[e]));
        auto sum = hn::Zero(d);
        for (std::int64_t at = e * stride; at < (e + 1) * stride; at += kLanes) {
          const auto g = hn::LoadU(d, grad + at);
          sum = hn::MulAdd(g, hn::LoadU(d, b.h.back() + at), sum);
          hn::StoreU(hn::Mul(cut, g), d, grad + at);
        }
        grad_cut[static_cast<std::size_t>(e)] = static_cast<double>(hn::GetLane(hn::SumOfLanes(d, sum)));
      }
    }
    for (std::size_t i = plan.layers() - 1; i-- > 0;) {
      const std::int64_t stride = plan.stride(i + 1);
      for (std::int64_t at = 0; at < rows * stride; at += kLanes) {
        hn::StoreU(hn::Mul(hn::LoadU(d, b.slope[i + 1] + at), hn::LoadU(d, grad + at)), d, grad + at);
      }
      if (stripe >= 0) add_to_partial(d, tile, b, i, b.h[i], grad, stride, 0, plan.widths[i + 1]);
      multiply(d, rows, plan.stride(i), plan.widths[i + 1], grad, stride, plan.backward[i].data(), next, plan.stride(i),
               false);
      std::swap(grad, next);
    }
    if (call.grad_lengths != nullptr) grad_lengths(tile, b, grad, grad_cut);
    if (call.grad_vectors == nullptr) return;
    TileHarmonics<T>{plan.l_max, plan.product.edge_dim}.gradients(d, tile.n, b.vectors, b.grad_y);
    std::copy_n(b.vectors, 3 * tile.n, call.grad_vectors + 3 * tile.first);
  }

  void grad_lengths(const Tile& tile, const StepBuffers<T>& b, const T* grad,
                    const std::array<double, kTile>& grad_cut) const {
    const bool cuts_basis = plan.radial.apply_cutoff;
    const std::int64_t n_basis = plan.widths[0], stride = plan.stride(0);
    for (std::int64_t e = 0; e < tile.n; ++e) {
      double of_argument = 0, of_cut = grad_cut[static_cast<std::size_t>(e)];
      for (std::int64_t n = 0; n < n_basis; ++n) {
        const double g = static_cast<double>(grad[e * stride + n]);
        of_argument += g * b.basis_slope[n * kTile + e];
        if (cuts_basis) of_cut += g * b.basis[n * kTile + e];
      }
      if (cuts_basis) of_argument *= b.cut[e];
      call.grad_lengths[tile.first + e] = static_cast<T>(of_argument * b.argument_slope[e] + of_cut * b.cut_slope[e]);
    }
  }
};

template <class T>
void step_forward(const StepPlan<T>& plan, const StepCall<T>& call, StepBuffers<T>& b, std::int64_t first,
                  std::int64_t last) {
  forward_receivers(hn::ScalableTag<T>(), plan.product, FromGeometry<T>{plan, call}, call, b, first, last);
}
template <class T>
void step_backward(const StepPlan<T>& plan, const StepCall<T>& call, StepBuffers<T>& b, const Tile& tile, T* to_senders,
                   std::int64_t stripe) {
  backward_edges(hn::ScalableTag<T>(), plan.product, FromGeometry<T>{plan, call, true, stripe}, call, b, tile,
                 to_senders);
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cpu_simd {
namespace {

template <class T>
struct StepJob {
  using Plan = StepPlan<T>;
  using Call = StepCall<T>;
  using Buffers = StepBuffers<T>;
  struct Functions {
    StepForward<T>* forward;
    StepBackward<T>* backward;
    AddToSenders<T>* add;
  };
  static Functions functions() {
    return {FASTPATH_FOR_TARGET(StepForward<T>, step_forward<T>),
            FASTPATH_FOR_TARGET(StepBackward<T>, step_backward<T>),
            FASTPATH_FOR_TARGET(AddToSenders<T>, add_to_senders<T>)};
  }
};

/// The work of a step, and the memory of a pass.
template <class T>
class StepWork : public EdgeWork<T, StepJob<T>> {
 public:
  StepWork(const StepPlan<T>& plan, sdk::Scratch& scratch, const sdk::Extents& extents, bool backward)
      : EdgeWork<T, StepJob<T>>(plan, scratch, extents, backward) {
    if (!backward) return;
    const std::int64_t n_edges = extents[sdk::Axis::edges];
    grad_rows_ = scratch.take<T>(extents[sdk::Axis::receivers] * plan.product.out.size);
    reverses_ = scratch.take<std::int64_t>(n_edges);
    tiles_ = scratch.take<std::int64_t>(n_edges / kTileDistances + 2);
  }

  /// Gradients of everything but the weights, which edges that run both ways share the net for.
  void backward_pairs(Workers& workers, int threads, const T* x, StepCall<T>& call, T* grad_x) {
    const auto& graph = call.graph;
    const std::int64_t n = graph.receiver_ptr[graph.n_receivers], size = this->plan_.product.out.size;
    const Chunks rows(graph.n_receivers, 4);
    workers.run(threads, rows.count, [&](std::int64_t chunk) {
      for (std::int64_t i = rows.begin(chunk); i < rows.end(chunk); ++i) {
        this->plan_.product.out.pack(call.grad_out + i * this->plan_.product.out.dim, grad_rows_ + i * size);
      }
    });
    const Reverses<T> reverses{graph, call.vectors, call.lengths, reverses_};
    const Chunks edges(n, 1024);
    workers.run(threads, edges.count, [&](std::int64_t chunk) { reverses.find(edges.begin(chunk), edges.end(chunk)); });
    std::int64_t n_tiles = 0;
    for (std::int64_t e = 0; e < n; e = tiles_[n_tiles]) {
      const PairTile tile(reverses, e, n, tiles_[n_tiles + 1]);
      if (tile.n == 0) break;  // what is left belongs to earlier ones
      tiles_[n_tiles++] = e;
    }
    this->backward_in_turn(
        workers, threads, x, call, grad_x, n_tiles, n_tiles, threads <= 1 ? 1 : 4 * threads,
        [&](std::int64_t t, std::int64_t, StepBuffers<T>& buffers, T* to_senders) {
          std::int64_t next = 0;
          step_backward_(this->plan_, call, buffers, PairTile(reverses, tiles_[t], n, next), grad_rows_, to_senders);
        },
        [&](std::int64_t t, const auto& add) {
          std::int64_t next = 0;
          const PairTile tile(reverses, tiles_[t], n, next);
          add(tile.n, tile.sender.data());
        });
  }

 private:
  T* grad_rows_ = nullptr;  // [n_receivers] packed
  std::int64_t *reverses_ = nullptr, *tiles_ = nullptr;
  StepBackwardPairs<T>* step_backward_ = step_backward_pairs_for_target<T>();
};

template <class T>
class MessageStep final : public CpuKernel<T> {
 public:
  explicit MessageStep(const sdk::MessageStepConfig& config)
      : CpuKernel<T>(config.signature()), plan_(config), tangents_(config) {}

 private:
  using Work = StepWork<T>;
  static constexpr std::uint64_t kFirstWeight = 1;  // among the parameters

  void take(const sdk::TensorList& parameters) override {
    plan_.frequencies = plan_.radial.frequencies;  // the same before rounding
    if (plan_.frequencies.empty()) {
      const auto weights = parameters[0].template view<const T>();
      plan_.frequencies.assign(weights.data(), weights.data() + weights.size());
    }
    std::vector<const T*> weights;
    for (std::size_t i = 0; i < plan_.layers(); ++i) weights.push_back(this->read(parameters, kFirstWeight + i));
    take_(plan_, weights.data());
    tangents_.bind(parameters);
  }
  void plan_tangent(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    tangents_.plan(scratch, extents, pass);
  }
  std::uint64_t saved_bytes(const sdk::Extents& extents, sdk::Pass pass) const override {
    const bool tangent = pass == sdk::Pass::forward_tangent || pass == sdk::Pass::backward_tangent;
    return tangent ? tangents_.saved_bytes(extents) : 0;
  }
  void forward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override {
    tangents_.forward(run, scratch, this->workers_);
  }
  void backward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override {
    tangents_.backward(run, scratch, this->workers_);
  }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    const bool backward = pass == sdk::Pass::backward;
    Work(plan_, scratch, extents, backward);
    if (backward) scratch.take<double>(Work::kStripes * plan_.weight_numel());
  }
  StepCall<T> call(const sdk::Run& run) const {
    StepCall<T> result;
    result.graph = run.graph.value().host();
    result.vectors = this->read(run.inputs, 1);
    result.lengths = this->read(run.inputs, 2);
    if (plan_.radial.transform != sdk::DistanceTransform::none) {
      result.radii = EdgeRadii(plan_.radial, result.graph, this->read_indices(run.inputs, 3));
    }
    return result;
  }
  void forward(const sdk::Run& run, sdk::Scratch& scratch) override {
    StepCall<T> call = this->call(run);
    call.out = this->write(run.outputs, 0);
    Work(plan_, scratch, sdk::Extents(run), false)
        .forward(this->workers_, run.threads, this->read(run.inputs, 0), call);
  }
  void backward(const sdk::Run& run, sdk::Scratch& scratch) override {
    StepCall<T> call = this->call(run);
    call.grad_out = this->read(run.grad_outputs, 0);
    call.grad_vectors = this->write(run.grad_inputs, 1);
    call.grad_lengths = this->write(run.grad_inputs, 2);
    std::vector<T*> grads;
    bool any = false;
    for (std::size_t i = 0; i < plan_.layers(); ++i) {
      grads.push_back(this->write(run.grad_parameters, kFirstWeight + i));
      any = any || grads.back() != nullptr;
    }
    Work work(plan_, scratch, sdk::Extents(run), true);
    const std::int64_t numel = plan_.weight_numel();
    if (any) {
      call.partials = scratch.take<double>(Work::kStripes * numel);
      std::fill_n(call.partials, Work::kStripes * numel, 0.0);
    }
    const T* const x = this->read(run.inputs, 0);
    T* const grad_x = this->write(run.grad_inputs, 0);
    if (any) {
      work.backward(this->workers_, run.threads, x, call, grad_x, true);
    } else {
      work.backward_pairs(this->workers_, run.threads, x, call, grad_x);
    }
    // Into ghosts there is no output.
    const std::int64_t active = call.graph.receiver_ptr[call.graph.n_receivers], rest = call.graph.n_edges - active;
    if (call.grad_vectors != nullptr) std::fill_n(call.grad_vectors + 3 * active, 3 * rest, T(0));
    if (call.grad_lengths != nullptr) std::fill_n(call.grad_lengths + active, rest, T(0));
    std::int64_t at = 0;
    for (std::size_t i = 0; i < plan_.layers(); ++i) {
      const std::int64_t n = plan_.widths[i] * plan_.widths[i + 1];
      for (std::int64_t j = 0; j < n && grads[i] != nullptr; ++j) {
        double sum = 0;
        for (std::int64_t stripe = 0; stripe < Work::kStripes; ++stripe) sum += call.partials[stripe * numel + at + j];
        grads[i][j] = static_cast<T>(plan_.scales[i] * sum);
      }
      at += n;
    }
  }

  StepPlan<T> plan_;
  StepTangents<T> tangents_;
  StepTake<T>* take_ = FASTPATH_FOR_TARGET(StepTake<T>, step_take<T>);
};

}  // namespace

Op message_step() {
  using Config = sdk::MessageStepConfig;
  return {Config::kOp, Config::kVersion,
          [](const sdk::Attributes& config, sdk::KernelAnswer& answer) {
            const Config typed = sdk::known_config<Config>(config);
            check_degrees(typed.conv.in, typed.conv.out, answer);
            if (typed.harmonics.l_max > harmonics::kMaxDegree) {
              answer.blocked(sdk::Reason::degree, "harmonics of degree " + std::to_string(typed.harmonics.l_max) +
                                                      ", at most " + std::to_string(harmonics::kMaxDegree));
            }
            if (!typed.harmonics.normalize || typed.harmonics.normalization != sdk::Normalization::component) {
              answer.blocked(sdk::Reason::config,
                             "harmonics of vectors as they are, or in another normalization than "
                             "component; only those of directions, in that one");
            }
          },
          create<MessageStep, Config>};
}

}  // namespace cpu_simd
#endif  // HWY_ONCE
