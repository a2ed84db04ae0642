#include <algorithm>
#include <array>
#include <type_traits>

#include "cpu/radial.hpp"
#include "harmonics.hpp"
#include "ops.hpp"
#include "product.hpp"
#include "schedule.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_simd/message_step.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets what they are compiled for.
#include "gemm-inl.hpp"
#include "harmonics-inl.hpp"
#include "hwy/highway.h"
#include "product-inl.hpp"
#include "silu-inl.hpp"
#include "sinc-inl.hpp"

#ifndef FASTPATH_CPU_SIMD_MESSAGE_STEP
#define FASTPATH_CPU_SIMD_MESSAGE_STEP
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
  T* vectors;                                                    ///< [3 * kTile]
  double *length, *argument, *argument_slope, *cut, *cut_slope;  ///< [kTile]
  double *basis, *basis_slope;                                   ///< [n_basis][kTile], without envelope
  std::vector<T*> h, slope;  ///< Per layer: its input [kTile][stride], and the slope of the activation that made it.
  T* last;                   ///< Input of the last layer, times the envelope where the weights have it.
  T *grad, *next;            ///< [kTile][widest stride]
  T* product_of_weights;     ///< What one product adds to the gradient of weights.

  StepBuffers(const StepPlan<T>& plan, sdk::Scratch& scratch, bool backward)
      : ProductBuffers<T>(plan.product, scratch, backward) {
    constexpr std::int64_t kSpare = 16;  // read beyond the end by products of a^T
    vectors = scratch.take<T>(3 * kTile);
    for (double** array : {&length, &argument, &argument_slope, &cut, &cut_slope}) *array = scratch.take<double>(kTile);
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

}  // namespace cpu_simd
#endif

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
    harmonics(d, b);
    radial(tile, b);
    net(d, tile, b);
  }

  template <class D>
  HWY_INLINE void harmonics(D d, StepBuffers<T>& b) const {
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    for (std::int64_t e = 0; e < kTile; e += kLanes) {
      hn::Vec<D> x, y, z;
      hn::LoadInterleaved3(d, b.vectors + 3 * e, x, y, z);
      switch (plan.l_max) {
        case 0:
          hn::StoreU(hn::Set(d, T(1)), d, b.y + e);
          break;
        case 1:
          harmonics_of<1>(d, x, y, z, b.y + e);
          break;
        case 2:
          harmonics_of<2>(d, x, y, z, b.y + e);
          break;
        case 3:
          harmonics_of<3>(d, x, y, z, b.y + e);
          break;
        case 4:
          harmonics_of<4>(d, x, y, z, b.y + e);
          break;
        default:
          harmonics_of<-1>(d, x, y, z, b.y + e);
      }
    }
  }
  static constexpr int components(int l_max) {
    return l_max < 0 ? (harmonics::kMaxDegree + 1) * (harmonics::kMaxDegree + 1) : (l_max + 1) * (l_max + 1);
  }
  template <int kLMax, class D, class V>
  HWY_INLINE void harmonics_of(D d, V x, V y, V z, T* to) const {
    V p[components(kLMax)];
    const auto u = directions(d, x, y, z);
    if (kLMax >= 0 && HWY_LIKELY(u.all_unit)) {
      unit_harmonics<HWY_MAX(kLMax, 0)>(d, u.x, u.y, u.z, p);
    } else {
      solid_harmonics(d, plan.l_max, u.x, u.y, u.z, hn::MulAdd(u.x, u.x, hn::MulAdd(u.y, u.y, hn::Mul(u.z, u.z))), p);
    }
    const std::int64_t dim = plan.product.edge_dim;
    for (std::int64_t j = 0; j < dim; ++j) hn::StoreU(p[j], d, to + j * kTile);
  }

  HWY_INLINE void radial(const Tile& tile, StepBuffers<T>& b) const {
    const sdk::RadialBasisConfig& config = plan.radial;
    for (std::int64_t e = 0; e < kTile; ++e) {
      const bool there = e < tile.n;
      const double r = there ? static_cast<double>(call.lengths[tile.first + e]) : config.r_max;
      const auto cut = fastpath_cpu::envelope(r, config.r_max, config.p);
      const auto x = there ? fastpath_cpu::radial_argument(config, r, call.radii, tile.first + e)
                           : fastpath_cpu::ValueAndSlope{1.0, 0.0};
      b.length[e] = r;
      b.cut[e] = cut.value;
      b.cut_slope[e] = cut.slope;
      b.argument[e] = x.value;
      b.argument_slope[e] = x.slope;
    }
    const hn::ScalableTag<double> d;
    constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<double>());
    const std::int64_t n_basis = plan.widths[0], stride = plan.stride(0);
    for (std::int64_t n = 0; n < n_basis; ++n) {
      const double w = plan.frequencies[static_cast<std::size_t>(n)];
      const auto factor = hn::Set(d, config.prefactor * w), factor_slope = hn::Set(d, config.prefactor * w * w);
      for (std::int64_t e = 0; e < kTile; e += kLanes) {
        auto value = hn::Zero(d), slope = hn::Zero(d);
        sinc(d, hn::Mul(hn::Set(d, w), hn::LoadU(d, b.argument + e)), backward, value, slope);
        hn::StoreU(hn::Mul(factor, value), d, b.basis + n * kTile + e);
        if (backward) hn::StoreU(hn::Mul(factor_slope, slope), d, b.basis_slope + n * kTile + e);
      }
      for (std::int64_t e = 0; e < kTile; ++e) {
        b.h[0][e * stride + n] = static_cast<T>(b.basis[n * kTile + e] * (config.apply_cutoff ? b.cut[e] : 1.0));
      }
    }
    for (std::int64_t e = 0; e < kTile; ++e) std::fill(b.h[0] + e * stride + n_basis, b.h[0] + (e + 1) * stride, T(0));
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
    if (call.grad_vectors != nullptr) grad_vectors(d, tile, b);
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

  template <class D>
  HWY_INLINE void grad_vectors(D d, const Tile& tile, StepBuffers<T>& b) const {
    constexpr std::int64_t kLanes = hn::MaxLanes(D());
    for (std::int64_t e = 0; e < tile.n; e += kLanes) {
      hn::Vec<D> x, y, z;
      hn::LoadInterleaved3(d, b.vectors + 3 * e, x, y, z);
      const auto u = directions(d, x, y, z);
      Gradient<hn::Vec<D>> result{hn::Zero(d), hn::Zero(d), hn::Zero(d)};
      switch (plan.l_max) {
        case 0:
          break;
        case 1:
          result = gradient_of<1>(d, u, b.grad_y + e);
          break;
        case 2:
          result = gradient_of<2>(d, u, b.grad_y + e);
          break;
        case 3:
          result = gradient_of<3>(d, u, b.grad_y + e);
          break;
        case 4:
          result = gradient_of<4>(d, u, b.grad_y + e);
          break;
        default:
          result = gradient_of<-1>(d, u, b.grad_y + e);
      }
      hn::StoreInterleaved3(result.x, result.y, result.z, d, b.vectors + 3 * e);
    }
    std::copy_n(b.vectors, 3 * tile.n, call.grad_vectors + 3 * tile.first);
  }
  template <int kLMax, class D, class V>
  HWY_INLINE Gradient<V> gradient_of(D d, const Directions<V>& u, const T* grad_y) const {
    V g[components(kLMax)];
    const std::int64_t dim = plan.product.edge_dim;
    for (std::int64_t j = 0; j < dim; ++j) g[j] = hn::LoadU(d, grad_y + j * kTile);
    if constexpr (kLMax < 0) {
      const V r2 = hn::MulAdd(u.x, u.x, hn::MulAdd(u.y, u.y, hn::Mul(u.z, u.z)));
      return across(d, u, solid_gradient(d, plan.l_max, u.x, u.y, u.z, r2, g));
    } else {
      return across(d, u, unit_gradient<kLMax>(d, u.x, u.y, u.z, g));
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

template <class T>
class MessageStep final : public CpuKernel<T> {
 public:
  explicit MessageStep(const sdk::MessageStepConfig& config) : CpuKernel<T>(config.signature()), plan_(config) {}

 private:
  using Work = EdgeWork<T, StepJob<T>>;
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
    work.backward(this->workers_, run.threads, this->read(run.inputs, 0), call, this->write(run.grad_inputs, 0), any);
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
          create<MessageStep, Config>, kPlainPasses};
}

}  // namespace cpu_simd
#endif  // HWY_ONCE
