#include <algorithm>
#include <type_traits>

#include "ops.hpp"
#include "past_caches.hpp"
#include "product.hpp"
#include "schedule.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_simd/conv_tensor_product.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets what they are compiled for.
#include "hwy/highway.h"
#include "product-inl.hpp"

#ifndef FASTPATH_CPU_SIMD_CONV_TENSOR_PRODUCT
#define FASTPATH_CPU_SIMD_CONV_TENSOR_PRODUCT
namespace cpu_simd {

template <class T>
struct ConvPlan {
  Product<T> product;
};
template <class T>
struct ConvCall : ProductCall<T> {
  const T *y = nullptr, *w = nullptr;
  T *grad_y = nullptr, *grad_w = nullptr;  ///< Null where not wanted.
};
template <class T>
struct ConvBuffers : ProductBuffers<T> {
  ConvBuffers(const ConvPlan<T>& plan, sdk::Scratch& scratch, bool backward)
      : ProductBuffers<T>(plan.product, scratch, backward) {}
};

template <class T>
using ConvForward = void(const ConvPlan<T>& plan, const ConvCall<T>& call, ConvBuffers<T>& buffers, std::int64_t first,
                         std::int64_t last);
template <class T>
using ConvBackward = void(const ConvPlan<T>& plan, const ConvCall<T>& call, ConvBuffers<T>& buffers, const Tile& tile,
                          T* to_senders, std::int64_t stripe);

}  // namespace cpu_simd
#endif

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

/// Edge attributes and weights from memory.
template <class T>
struct FromMemory {
  const ConvPlan<T>& plan;
  const ConvCall<T>& call;

  template <class D>
  HWY_INLINE void prepare(D, const Tile& tile, ConvBuffers<T>& b) const {
    const std::int64_t dim = plan.product.edge_dim;
    for (std::int64_t j = 0; j < dim; ++j) {
      T* const to = b.y + j * kTile;
      for (std::int64_t e = 0; e < tile.n; ++e) to[e] = call.y[(tile.first + e) * dim + j];
      std::fill(to + tile.n, to + kTile, T(0));
    }
  }
  template <class D>
  HWY_INLINE PathInputs<T> weights(D, const ProductPath<T>& path, const Tile& tile, ConvBuffers<T>& b,
                                   const ProductCall<T>&) const {
    const std::int64_t stride = plan.product.weight_dim;
    const T* const w = call.w + tile.first * stride + path.w;
    const std::int32_t* const sender = call.graph.sender + tile.first;
    if (path.mul == path.padded) {
      const auto& paths = plan.product.paths;
      const bool last = &path == &paths.back();
      const std::int64_t next = last ? tile.n * stride + paths.front().w : (&path)[1].w;
      return {call.x, plan.product.in.size, sender, w, stride, next - path.w};
    }
    for (std::int64_t e = 0; e < tile.n; ++e) {
      std::copy_n(w + e * stride, path.mul, b.weights + e * path.padded);
      std::fill_n(b.weights + e * path.padded + path.mul, path.padded - path.mul, T(0));
    }
    return {call.x, plan.product.in.size, sender, b.weights, path.padded};
  }
  HWY_INLINE GradientRows<T> grad_weights(const ProductPath<T>& path, const Tile& tile, ConvBuffers<T>& b) const {
    if (call.grad_w == nullptr || path.mul != path.padded) return {b.grad_weights, path.padded};
    const std::int64_t stride = plan.product.weight_dim;
    T* const rows = call.grad_w + tile.first * stride + path.w;
    return {rows, stride, past_caches(rows, stride, call.graph.n_edges)};
  }
  template <class D>
  HWY_INLINE void take(D, const ProductPath<T>& path, const Tile& tile, ConvBuffers<T>& b) const {
    if (call.grad_w == nullptr || path.mul == path.padded) return;
    for (std::int64_t e = 0; e < tile.n; ++e) {
      std::copy_n(b.grad_weights + e * path.padded, path.mul,
                  call.grad_w + (tile.first + e) * plan.product.weight_dim + path.w);
    }
  }
  template <class D>
  HWY_INLINE void finish(D, const Tile& tile, ConvBuffers<T>& b) const {
    if (call.grad_y == nullptr) return;
    const std::int64_t dim = plan.product.edge_dim;
    for (std::int64_t j = 0; j < dim; ++j) {
      for (std::int64_t e = 0; e < tile.n; ++e) call.grad_y[(tile.first + e) * dim + j] = b.grad_y[j * kTile + e];
    }
  }
};

template <class T>
void conv_forward(const ConvPlan<T>& plan, const ConvCall<T>& call, ConvBuffers<T>& b, std::int64_t first,
                  std::int64_t last) {
  forward_receivers(hn::ScalableTag<T>(), plan.product, FromMemory<T>{plan, call}, call, b, first, last);
}
template <class T>
void conv_backward(const ConvPlan<T>& plan, const ConvCall<T>& call, ConvBuffers<T>& b, const Tile& tile, T* to_senders,
                   std::int64_t) {
  backward_edges(hn::ScalableTag<T>(), plan.product, FromMemory<T>{plan, call}, call, b, tile, to_senders);
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cpu_simd {
namespace {

template <class T>
struct ConvJob {
  using Plan = ConvPlan<T>;
  using Call = ConvCall<T>;
  using Buffers = ConvBuffers<T>;
  struct Functions {
    ConvForward<T>* forward;
    ConvBackward<T>* backward;
    AddToSenders<T>* add;
  };
  static Functions functions() {
    return {FASTPATH_FOR_TARGET(ConvForward<T>, conv_forward<T>),
            FASTPATH_FOR_TARGET(ConvBackward<T>, conv_backward<T>),
            FASTPATH_FOR_TARGET(AddToSenders<T>, add_to_senders<T>)};
  }
};

template <class T>
class ConvTensorProduct final : public MultilinearKernel<T> {
 public:
  explicit ConvTensorProduct(const sdk::ConvTensorProductConfig& config)
      : MultilinearKernel<T>(config.signature()), plan_{Product<T>(config)} {}

 private:
  using Work = EdgeWork<T, ConvJob<T>>;

  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    Work(plan_, scratch, extents, pass == sdk::Pass::backward);
  }
  ConvCall<T> call(const sdk::Run& run) const {
    ConvCall<T> result;
    result.graph = run.graph.value().host();
    result.y = this->read(run.inputs, 1);
    result.w = this->read(run.inputs, 2);
    return result;
  }
  void forward(const sdk::Run& run, sdk::Scratch& scratch) override {
    ConvCall<T> call = this->call(run);
    call.out = this->write(run.outputs, 0);
    Work(plan_, scratch, sdk::Extents(run), false)
        .forward(this->workers_, run.threads, this->read(run.inputs, 0), call);
  }
  void backward(const sdk::Run& run, sdk::Scratch& scratch) override {
    ConvCall<T> call = this->call(run);
    call.grad_out = this->read(run.grad_outputs, 0);
    call.grad_y = this->write(run.grad_inputs, 1);
    call.grad_w = this->write(run.grad_inputs, 2);
    Work(plan_, scratch, sdk::Extents(run), true)
        .backward(this->workers_, run.threads, this->read(run.inputs, 0), call, this->write(run.grad_inputs, 0), false);
    // Into ghosts there is no output.
    const std::int64_t active = call.graph.receiver_ptr[call.graph.n_receivers], rest = call.graph.n_edges - active;
    const Product<T>& p = plan_.product;
    if (call.grad_y != nullptr) std::fill_n(call.grad_y + active * p.edge_dim, rest * p.edge_dim, T(0));
    if (call.grad_w != nullptr) std::fill_n(call.grad_w + active * p.weight_dim, rest * p.weight_dim, T(0));
  }

  ConvPlan<T> plan_;
};

}  // namespace

Op conv_tensor_product() {
  using Config = sdk::ConvTensorProductConfig;
  return {Config::kOp, Config::kVersion,
          [](const sdk::Attributes& config, sdk::KernelAnswer& answer) {
            const Config typed = sdk::known_config<Config>(config);
            check_degrees(typed.in, typed.out, answer);
            check_degree("degree of edge attributes", typed.edge.l_max(), answer);
          },
          create<ConvTensorProduct, Config>};
}

}  // namespace cpu_simd
#endif  // HWY_ONCE
