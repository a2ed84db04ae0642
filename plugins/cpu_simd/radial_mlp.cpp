#include <algorithm>
#include <vector>

#include "ops.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_simd/radial_mlp.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets what they are compiled for.
#include "hwy/highway.h"
#include "matrix-inl.hpp"
#include "silu-inl.hpp"

#ifndef FASTPATH_CPU_SIMD_RADIAL_MLP
#define FASTPATH_CPU_SIMD_RADIAL_MLP
namespace cpu_simd {

/// Weights with their scale, packed for h W and for g W^T.
template <class T>
struct Layer {
  std::int64_t in, out;
  std::vector<T> weights, transposed;
};
/// Arrays for a tile of rows: argument z and value h of the activation behind each hidden layer; for backward also two
/// gradients, a packed gradient and a product of its kind.
template <class T>
struct MlpTile {
  std::vector<T*> h, z;
  T *grad = nullptr, *next = nullptr, *packed = nullptr, *sums = nullptr;
};
template <class T>
struct MlpBackward {
  const T *x, *grad_y;
  T* grad_x;                         // or null
  const std::vector<double*>* sums;  // per layer: += h^T g, or null
  std::size_t lowest;                // no gradient is wanted below this layer
};

template <class T>
using PanelWidth = std::int64_t();
template <class T>
using PackLayer = void(Layer<T>& layer, const T* weights, T scale);
template <class T>
using MlpForward = void(const std::vector<Layer<T>>& layers, T constant, std::int64_t rows, const T* x, T* y,
                        const MlpTile<T>& tile);
template <class T>
using MlpBackwardRows = void(const std::vector<Layer<T>>& layers, T constant, std::int64_t rows,
                             const MlpBackward<T>& job, const MlpTile<T>& tile);

}  // namespace cpu_simd
#endif

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

template <class T>
std::int64_t mlp_panel() {
  return panel_width<T>();
}

template <class T>
void pack_layer(Layer<T>& layer, const T* weights, T scale) {
  constexpr std::int64_t kWidth = panel_width<T>();
  const auto padded = [](std::int64_t n) { return (n + kWidth - 1) / kWidth * kWidth; };
  layer.weights.resize(layer.in * padded(layer.out));
  layer.transposed.resize(layer.out * padded(layer.in));
  pack(layer.in, layer.out, weights, layer.out, std::int64_t{1}, scale, layer.weights.data());
  pack(layer.out, layer.in, weights, std::int64_t{1}, layer.out, scale, layer.transposed.data());
}

template <class T>
void mlp_hidden(const std::vector<Layer<T>>& layers, T constant, std::int64_t rows, const T* x,
                const MlpTile<T>& tile) {
  for (std::size_t i = 0; i + 1 < layers.size(); ++i) {
    const Layer<T>& layer = layers[i];
    product(rows, layer.out, layer.in, i == 0 ? x : tile.h[i - 1], layer.in, std::int64_t{1}, layer.weights.data(),
            tile.z[i], layer.out);
    silu(rows * layer.out, constant, tile.z[i], tile.h[i]);
  }
}

template <class T>
void mlp_forward(const std::vector<Layer<T>>& layers, T constant, std::int64_t rows, const T* x, T* y,
                 const MlpTile<T>& tile) {
  mlp_hidden(layers, constant, rows, x, tile);
  const Layer<T>& last = layers.back();
  product(rows, last.out, last.in, layers.size() == 1 ? x : tile.h.back(), last.in, std::int64_t{1},
          last.weights.data(), y, last.out);
}

template <class T>
void mlp_backward(const std::vector<Layer<T>>& layers, T constant, std::int64_t rows, const MlpBackward<T>& job,
                  const MlpTile<T>& tile) {
  mlp_hidden(layers, constant, rows, job.x, tile);
  const T* grad = job.grad_y;
  T *mine = tile.grad, *next_mine = tile.next;
  for (std::size_t i = layers.size(); i-- > job.lowest;) {
    const Layer<T>& layer = layers[i];
    const T* h = i == 0 ? job.x : tile.h[i - 1];
    if (double* sums = (*job.sums)[i]) {
      pack(rows, layer.out, grad, layer.out, std::int64_t{1}, T(1), tile.packed);
      product(layer.in, layer.out, rows, h, std::int64_t{1}, layer.in, tile.packed, tile.sums, layer.out);
      for (std::int64_t j = 0; j < layer.in * layer.out; ++j) sums[j] += static_cast<double>(tile.sums[j]);
    }
    if (i == 0 && job.grad_x == nullptr) return;
    T* next = i == 0 ? job.grad_x : next_mine;
    product(rows, layer.in, layer.out, grad, layer.out, std::int64_t{1}, layer.transposed.data(), next, layer.in);
    if (i == 0) return;
    silu_gradient(rows * layer.in, constant, tile.z[i - 1], next, next);
    grad = next;
    std::swap(mine, next_mine);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cpu_simd {
namespace {

/// Works on tiles of rows, whose hidden layers stay in cache; backward computes them again.
template <class T>
class RadialMlp final : public CpuKernel<T> {
 public:
  explicit RadialMlp(const sdk::RadialMlpConfig& config) : CpuKernel<T>(config.signature()), config_(config) {}

 private:
  static constexpr std::int64_t kTile = 96;      // a multiple of the rows that a product takes at a time
  static constexpr std::int64_t kMostSums = 16;  // bounds the memory for partial weight gradients

  std::size_t layers() const { return config_.n_layers(); }
  std::int64_t width(std::size_t i) const { return config_.widths[i]; }
  std::int64_t widest_hidden() const {
    return layers() < 2 ? 0 : *std::max_element(config_.widths.begin() + 1, config_.widths.end() - 1);
  }
  std::int64_t weight_numel() const {
    std::int64_t total = 0;
    for (std::size_t i = 0; i < layers(); ++i) total += width(i) * width(i + 1);
    return total;
  }

  void take(const sdk::TensorList& parameters) override {
    layers_.resize(layers());
    for (std::size_t i = 0; i < layers(); ++i) {
      layers_[i].in = width(i);
      layers_[i].out = width(i + 1);
      pack_layer_(layers_[i], this->read(parameters, i), static_cast<T>(config_.scales[i]));
    }
  }

  MlpTile<T> tile(sdk::Scratch& scratch, bool backward, bool sums) const {
    MlpTile<T> result;
    for (std::size_t i = 0; i + 1 < layers(); ++i) {
      result.h.push_back(scratch.take<T>(kTile * width(i + 1)));
      result.z.push_back(scratch.take<T>(kTile * width(i + 1)));
    }
    if (!backward) return result;
    result.grad = scratch.take<T>(kTile * widest_hidden());
    result.next = scratch.take<T>(kTile * widest_hidden());
    if (!sums) return result;
    std::int64_t widest = 0, largest = 0;
    for (std::size_t i = 0; i < layers(); ++i) {
      widest = std::max(widest, width(i + 1));
      largest = std::max(largest, width(i) * width(i + 1));
    }
    result.packed = scratch.take<T>(kTile * (widest + panel_width_()));
    result.sums = scratch.take<T>(largest);
    return result;
  }
  static Chunks row_chunks(std::int64_t n) { return Chunks(n, kTile); }
  static Chunks sum_chunks(std::int64_t n) { return Chunks(n, 2 * kTile, kMostSums); }
  std::vector<MlpTile<T>> tiles(sdk::Scratch& scratch, const Chunks& chunks, bool backward, bool sums) const {
    std::vector<MlpTile<T>> result;
    for (std::int64_t chunk = 0; chunk < chunks.count; ++chunk) result.push_back(tile(scratch, backward, sums));
    return result;
  }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    const std::int64_t n = extents[sdk::Axis::rows];
    if (pass != sdk::Pass::backward) {
      tiles(scratch, row_chunks(n), false, false);
      return;
    }
    // Whether sums are wanted is known only when the pass runs.
    sdk::Scratch with_sums;
    tiles(with_sums, sum_chunks(n), true, true);
    with_sums.take<double>(sum_chunks(n).count * weight_numel());
    sdk::Scratch without;
    tiles(without, row_chunks(n), true, false);
    scratch.take<char>(static_cast<std::int64_t>(std::max(with_sums.bytes(), without.bytes())));
  }

  void forward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const T* x = this->read(run.inputs, 0);
    T* y = this->write(run.outputs, 0);
    const Chunks chunks = row_chunks(run.inputs[0].size(0));
    const std::vector<MlpTile<T>> all = tiles(scratch, chunks, false, false);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      for (std::int64_t first = chunks.begin(chunk); first < chunks.end(chunk); first += kTile) {
        const std::int64_t rows = std::min(kTile, chunks.end(chunk) - first);
        forward_(layers_, constant(), rows, x + first * width(0), y + first * width(layers()),
                 all[static_cast<std::size_t>(chunk)]);
      }
    });
  }

  void backward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const T* x = this->read(run.inputs, 0);
    const T* grad_y = this->read(run.grad_outputs, 0);
    T* grad_x = this->write(run.grad_inputs, 0);
    const std::int64_t n = run.inputs[0].size(0);
    std::size_t lowest = grad_x != nullptr ? 0 : layers();
    bool sums_wanted = false;
    for (std::size_t i = layers(); i-- > 0;) {
      if (!run.grad_parameters[i].present()) continue;
      lowest = std::min(lowest, i);
      sums_wanted = true;
    }
    if (lowest == layers()) return;

    const Chunks chunks = sums_wanted ? sum_chunks(n) : row_chunks(n);
    const std::vector<MlpTile<T>> all = tiles(scratch, chunks, true, sums_wanted);
    double* partial = sums_wanted ? scratch.take<double>(chunks.count * weight_numel()) : nullptr;
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      std::vector<double*> sums(layers(), nullptr);
      double* own = partial == nullptr ? nullptr : partial + chunk * weight_numel();
      if (own != nullptr) std::fill_n(own, weight_numel(), 0.0);
      for (std::size_t i = 0; own != nullptr && i < layers(); own += width(i) * width(i + 1), ++i) {
        if (run.grad_parameters[i].present()) sums[i] = own;
      }
      for (std::int64_t first = chunks.begin(chunk); first < chunks.end(chunk); first += kTile) {
        const std::int64_t rows = std::min(kTile, chunks.end(chunk) - first);
        const MlpBackward<T> job{x + first * width(0), grad_y + first * width(layers()),
                                 grad_x == nullptr ? nullptr : grad_x + first * width(0), &sums, lowest};
        backward_(layers_, constant(), rows, job, all[static_cast<std::size_t>(chunk)]);
      }
    });

    if (!sums_wanted) return;
    const double* sums = partial;
    for (std::size_t i = 0; i < layers(); ++i) {
      const std::int64_t size = width(i) * width(i + 1);
      if (T* target = this->write(run.grad_parameters, i)) {
        for (std::int64_t j = 0; j < size; ++j) {
          double sum = 0.0;
          for (std::int64_t chunk = 0; chunk < chunks.count; ++chunk) sum += sums[chunk * weight_numel() + j];
          target[j] = static_cast<T>(config_.scales[i] * sum);
        }
      }
      sums += size;
    }
  }

  T constant() const { return static_cast<T>(config_.activation_constant); }

  sdk::RadialMlpConfig config_;
  std::vector<Layer<T>> layers_;
  PanelWidth<T>* panel_width_ = FASTPATH_FOR_TARGET(PanelWidth<T>, mlp_panel<T>);
  PackLayer<T>* pack_layer_ = FASTPATH_FOR_TARGET(PackLayer<T>, pack_layer<T>);
  MlpForward<T>* forward_ = FASTPATH_FOR_TARGET(MlpForward<T>, mlp_forward<T>);
  MlpBackwardRows<T>* backward_ = FASTPATH_FOR_TARGET(MlpBackwardRows<T>, mlp_backward<T>);
};

}  // namespace

Op radial_mlp() {
  using Config = sdk::RadialMlpConfig;
  return {
      Config::kOp, Config::kVersion,
      [](const sdk::Attributes& config, sdk::KernelAnswer&) { static_cast<void>(sdk::known_config<Config>(config)); },
      create<RadialMlp, Config>, kPlainPasses};
}

}  // namespace cpu_simd
#endif  // HWY_ONCE
