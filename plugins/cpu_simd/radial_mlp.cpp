#include <algorithm>
#include <vector>

#include "ops.hpp"
#include "past_caches.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_simd/radial_mlp.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets what they are compiled for.
#include "hwy/highway.h"
#include "matrix-inl.hpp"
#include "silu-inl.hpp"
#include "silu_tangent-inl.hpp"

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

/// A call with tangents, of a tile of rows. What is null is zero, or not wanted; weights that are empty are zero.
template <class T>
struct MlpTangent {
  const std::vector<Layer<T>>*layers, *layers_t;
  T constant;
  const MlpTile<T>*tile, *tile_t;
  T* spare;                                  // [rows, widest width], where weights have tangents
  ReadPair<T> x, grad_y;                     // grad_y: in backward
  WritePair<T> y, grad_x;                    // the one or the other
  const std::vector<double*>*sums, *sums_t;  // per layer, as in MlpBackward
  std::size_t lowest;
};

template <class T>
using PanelWidth = std::int64_t();
template <class T>
using PackLayer = void(Layer<T>& layer, const T* weights, T scale);
template <class T>
using MlpForward = void(const std::vector<Layer<T>>& layers, T constant, std::int64_t rows, const T* x, T* y,
                        const MlpTile<T>& tile, bool past_caches);
template <class T>
using MlpTangentRows = void(const MlpTangent<T>& job, std::int64_t rows);
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
                 const MlpTile<T>& tile, bool past_caches) {
  mlp_hidden(layers, constant, rows, x, tile);
  const Layer<T>& last = layers.back();
  product(rows, last.out, last.in, layers.size() == 1 ? x : tile.h.back(), last.in, std::int64_t{1},
          last.weights.data(), y, last.out, past_caches);
  if (past_caches) hwy::FlushStream();
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

/// c = a b, or c += a b where something is there already, with b packed; a factor that is null or empty is zero.
template <class T>
void put_term(std::int64_t rows, std::int64_t n, std::int64_t k, const T* a, const std::vector<T>& b, T* spare, T* c,
              bool& there) {
  if (a == nullptr || b.empty()) return;
  T* const to = there ? spare : c;
  product(rows, n, k, a, k, std::int64_t{1}, b.data(), to, n);
  for (std::int64_t i = 0; there && i < rows * n; ++i) c[i] += to[i];
  there = true;
}
/// c = a b_t + a_t b, each with its own tangent.
template <class T>
void tangent_of_product(std::int64_t rows, std::int64_t n, std::int64_t k, const ReadPair<T>& a,
                        const std::vector<T>& b, const std::vector<T>& b_t, T* spare, T* c) {
  bool there = false;
  put_term(rows, n, k, a.tangent, b, spare, c, there);
  put_term(rows, n, k, a.value, b_t, spare, c, there);
  if (!there) std::fill_n(c, rows * n, T(0));
}
/// What layer i reads.
template <class T>
ReadPair<T> layer_input(const MlpTangent<T>& job, std::size_t i) {
  if (i == 0) return job.x;
  return {job.tile->h[i - 1], job.tile_t->h[i - 1]};
}

template <class T>
void mlp_hidden_tangent(const MlpTangent<T>& job, std::int64_t rows) {
  mlp_hidden(*job.layers, job.constant, rows, job.x.value, *job.tile);
  for (std::size_t i = 0; i + 1 < job.layers->size(); ++i) {
    const Layer<T>&layer = (*job.layers)[i], &layer_t = (*job.layers_t)[i];
    T* const z_t = job.tile_t->z[i];
    tangent_of_product(rows, layer.out, layer.in, layer_input(job, i), layer.weights, layer_t.weights, job.spare, z_t);
    silu_gradient(rows * layer.out, job.constant, job.tile->z[i], z_t, job.tile_t->h[i]);
  }
}

template <class T>
void mlp_forward_tangent(const MlpTangent<T>& job, std::int64_t rows) {
  mlp_hidden_tangent(job, rows);
  const Layer<T>&last = job.layers->back(), &last_t = job.layers_t->back();
  const ReadPair<T> h = layer_input(job, job.layers->size() - 1);
  product(rows, last.out, last.in, h.value, last.in, std::int64_t{1}, last.weights.data(), job.y.value, last.out);
  if (job.y.tangent == nullptr) return;
  tangent_of_product(rows, last.out, last.in, h, last.weights, last_t.weights, job.spare, job.y.tangent);
}

/// sums += h^T g
template <class T>
void add_sums(const Layer<T>& layer, std::int64_t rows, const T* h, const T* g, const MlpTile<T>& tile, double* sums) {
  if (h == nullptr || g == nullptr || sums == nullptr) return;
  pack(rows, layer.out, g, layer.out, std::int64_t{1}, T(1), tile.packed);
  product(layer.in, layer.out, rows, h, std::int64_t{1}, layer.in, tile.packed, tile.sums, layer.out);
  for (std::int64_t j = 0; j < layer.in * layer.out; ++j) sums[j] += static_cast<double>(tile.sums[j]);
}

template <class T>
void mlp_backward_tangent(const MlpTangent<T>& job, std::int64_t rows) {
  mlp_hidden_tangent(job, rows);
  ReadPair<T> grad = job.grad_y;
  T *mine = job.tile->grad, *next_mine = job.tile->next, *mine_t = job.tile_t->grad, *next_mine_t = job.tile_t->next;
  for (std::size_t i = job.layers->size(); i-- > job.lowest;) {
    const Layer<T>&layer = (*job.layers)[i], &layer_t = (*job.layers_t)[i];
    const ReadPair<T> h = layer_input(job, i);
    add_sums(layer, rows, h.value, grad.value, *job.tile, (*job.sums)[i]);
    add_sums(layer, rows, h.tangent, grad.value, *job.tile, (*job.sums_t)[i]);
    add_sums(layer, rows, h.value, grad.tangent, *job.tile, (*job.sums_t)[i]);
    const WritePair<T> next = i == 0 ? job.grad_x : WritePair<T>{next_mine, next_mine_t};
    if (next.value != nullptr) {
      product(rows, layer.in, layer.out, grad.value, layer.out, std::int64_t{1}, layer.transposed.data(), next.value,
              layer.in);
    }
    if (next.tangent != nullptr) {
      tangent_of_product(rows, layer.in, layer.out, grad, layer.transposed, layer_t.transposed, job.spare,
                         next.tangent);
    }
    if (i == 0) return;
    const std::int64_t n = rows * layer.in;
    silu_gradient_tangent(n, job.constant, job.tile->z[i - 1], job.tile_t->z[i - 1], next.value, next.tangent,
                          next.tangent);
    silu_gradient(n, job.constant, job.tile->z[i - 1], next.value, next.value);
    grad = {next.value, next.tangent};
    std::swap(mine, next_mine);
    std::swap(mine_t, next_mine_t);
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
    plan(scratch, extents, pass == sdk::Pass::backward, false);
  }
  void plan_tangent(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    plan(scratch, extents, pass == sdk::Pass::backward_tangent, true);
  }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, bool backward, bool tangents) {
    const std::int64_t n = extents[sdk::Axis::rows];
    if (!backward) {
      Memory(*this, scratch, row_chunks(n), false, false, tangents);
      return;
    }
    // Whether sums are wanted is known only when the pass runs.
    sdk::Scratch with_sums, without;
    Memory(*this, with_sums, sum_chunks(n), true, true, tangents);
    Memory(*this, without, row_chunks(n), true, false, tangents);
    scratch.take<char>(static_cast<std::int64_t>(std::max(with_sums.bytes(), without.bytes())));
  }
  /// Of a call.
  struct Memory {
    std::vector<MlpTile<T>> tiles, tiles_t;  // of each chunk
    double *partial = nullptr, *partial_t = nullptr;

    Memory(const RadialMlp& mlp, sdk::Scratch& scratch, const Chunks& chunks, bool backward, bool sums, bool tangents)
        : tiles(mlp.tiles(scratch, chunks, backward, sums)) {
      if (tangents) tiles_t = mlp.tiles(scratch, chunks, backward, false);
      if (sums) partial = scratch.take<double>(chunks.count * mlp.weight_numel());
      if (sums && tangents) partial_t = scratch.take<double>(chunks.count * mlp.weight_numel());
    }
  };

  void forward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const T* x = this->read(run.inputs, 0);
    T* y = this->write(run.outputs, 0);
    const Chunks chunks = row_chunks(run.inputs[0].size(0));
    const std::vector<MlpTile<T>> all = tiles(scratch, chunks, false, false);
    const bool past = past_caches(y, width(layers()), run.inputs[0].size(0));
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      for (std::int64_t first = chunks.begin(chunk); first < chunks.end(chunk); first += kTile) {
        const std::int64_t rows = std::min(kTile, chunks.end(chunk) - first);
        forward_(layers_, constant(), rows, x + first * width(0), y + first * width(layers()),
                 all[static_cast<std::size_t>(chunk)], past);
      }
    });
  }

  void forward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override {
    const ReadPair<T> x = this->read(run.inputs, run.inputs_t, 0);
    const WritePair<T> y = this->write(run.outputs, run.outputs_t, 0);
    const Along along(*this, run);
    const Chunks chunks = row_chunks(run.inputs[0].size(0));
    const Memory memory(*this, scratch, chunks, false, false, true);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      MlpTangent<T> job = along.job(*this, memory, chunk);
      for (std::int64_t first = chunks.begin(chunk); first < chunks.end(chunk); first += kTile) {
        job.x = part(x, first * width(0));
        job.y = part(y, first * width(layers()));
        forward_tangent_(job, std::min(kTile, chunks.end(chunk) - first));
      }
    });
  }
  void backward(const sdk::Run& run, sdk::Scratch& scratch) override { gradients(run, scratch, nullptr); }
  void backward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override {
    const Along along(*this, run);
    gradients(run, scratch, &along);
  }

  /// The tangents of the weights of a call.
  struct Along {
    std::vector<Layer<T>> layers;
    mutable std::vector<std::vector<T>> spare;  // per chunk, where a weight has a tangent

    Along(const RadialMlp& mlp, const sdk::Run& run) {
      std::int64_t widest = mlp.width(0);
      bool any = false;
      for (std::size_t i = 0; i < mlp.layers(); ++i) {
        layers.push_back({mlp.width(i), mlp.width(i + 1), {}, {}});
        widest = std::max(widest, mlp.width(i + 1));
        const T* tangent = mlp.read(run.parameters_t, i);
        if (tangent == nullptr) continue;
        any = true;
        mlp.pack_layer_(layers.back(), tangent, static_cast<T>(mlp.config_.scales[i]));
      }
      constexpr std::size_t kMostChunks = 64;
      if (any) spare.assign(kMostChunks, std::vector<T>(static_cast<std::size_t>(kTile * widest)));
    }
    MlpTangent<T> job(const RadialMlp& mlp, const Memory& memory, std::int64_t chunk) const {
      MlpTangent<T> result{};
      const auto at = static_cast<std::size_t>(chunk);
      result.layers = &mlp.layers_;
      result.layers_t = &layers;
      result.constant = mlp.constant();
      result.tile = &memory.tiles[at];
      result.tile_t = &memory.tiles_t[at];
      result.spare = spare.empty() ? nullptr : spare[at].data();
      return result;
    }
  };

  /// @param along  Null in the plain pass.
  void gradients(const sdk::Run& run, sdk::Scratch& scratch, const Along* along) {
    const ReadPair<T> x = this->read(run.inputs, run.inputs_t, 0);
    const ReadPair<T> grad_y = this->read(run.grad_outputs, run.grad_outputs_t, 0);
    const WritePair<T> grad_x = this->write(run.grad_inputs, run.grad_inputs_t, 0);
    const std::int64_t n = run.inputs[0].size(0);
    std::size_t lowest = grad_x ? 0 : layers();
    bool sums_wanted = false;
    std::vector<WritePair<T>> targets;
    for (std::size_t i = 0; i < layers(); ++i) {
      targets.push_back(this->write(run.grad_parameters, run.grad_parameters_t, i));
      if (!targets.back()) continue;
      lowest = std::min(lowest, i);
      sums_wanted = true;
    }
    if (lowest == layers()) return;

    const Chunks chunks = sums_wanted ? sum_chunks(n) : row_chunks(n);
    const Memory memory(*this, scratch, chunks, true, sums_wanted, along != nullptr);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      const std::vector<double*> sums = sums_of(memory.partial, chunk, [&](std::size_t i) { return targets[i].value; });
      const std::vector<double*> sums_t =
          sums_of(memory.partial_t, chunk, [&](std::size_t i) { return targets[i].tangent; });
      for (std::int64_t first = chunks.begin(chunk); first < chunks.end(chunk); first += kTile) {
        const std::int64_t rows = std::min(kTile, chunks.end(chunk) - first);
        const ReadPair<T> tile_x = part(x, first * width(0)), tile_grad = part(grad_y, first * width(layers()));
        const WritePair<T> tile_grad_x = part(grad_x, first * width(0));
        if (along == nullptr) {
          backward_(layers_, constant(), rows, {tile_x.value, tile_grad.value, tile_grad_x.value, &sums, lowest},
                    memory.tiles[static_cast<std::size_t>(chunk)]);
          continue;
        }
        MlpTangent<T> job = along->job(*this, memory, chunk);
        job.x = tile_x;
        job.grad_y = tile_grad;
        job.grad_x = tile_grad_x;
        job.sums = &sums;
        job.sums_t = &sums_t;
        job.lowest = lowest;
        backward_tangent_(job, rows);
      }
    });

    if (!sums_wanted) return;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < layers(); ++i) {
      const std::int64_t size = width(i) * width(i + 1);
      const auto join = [&](const double* sums, T* target) {
        for (std::int64_t j = 0; target != nullptr && j < size; ++j) {
          double sum = 0.0;
          for (std::int64_t chunk = 0; chunk < chunks.count; ++chunk) sum += sums[chunk * weight_numel() + at + j];
          target[j] = static_cast<T>(config_.scales[i] * sum);
        }
      };
      join(memory.partial, targets[i].value);
      join(memory.partial_t, targets[i].tangent);
      at += size;
    }
  }
  /// Where a chunk adds to the sums of each layer, set to zero; null for a layer without a target.
  template <class Target>
  std::vector<double*> sums_of(double* partial, std::int64_t chunk, const Target& target) const {
    std::vector<double*> result(layers(), nullptr);
    if (partial == nullptr) return result;
    double* own = partial + chunk * weight_numel();
    std::fill_n(own, weight_numel(), 0.0);
    for (std::size_t i = 0; i < layers(); own += width(i) * width(i + 1), ++i) {
      if (target(i) != nullptr) result[i] = own;
    }
    return result;
  }

  T constant() const { return static_cast<T>(config_.activation_constant); }

  sdk::RadialMlpConfig config_;
  std::vector<Layer<T>> layers_;
  PanelWidth<T>* panel_width_ = FASTPATH_FOR_TARGET(PanelWidth<T>, mlp_panel<T>);
  PackLayer<T>* pack_layer_ = FASTPATH_FOR_TARGET(PackLayer<T>, pack_layer<T>);
  MlpForward<T>* forward_ = FASTPATH_FOR_TARGET(MlpForward<T>, mlp_forward<T>);
  MlpBackwardRows<T>* backward_ = FASTPATH_FOR_TARGET(MlpBackwardRows<T>, mlp_backward<T>);
  MlpTangentRows<T>* forward_tangent_ = FASTPATH_FOR_TARGET(MlpTangentRows<T>, mlp_forward_tangent<T>);
  MlpTangentRows<T>* backward_tangent_ = FASTPATH_FOR_TARGET(MlpTangentRows<T>, mlp_backward_tangent<T>);
};

}  // namespace

Op radial_mlp() { return op_of<RadialMlp, sdk::RadialMlpConfig>(); }

}  // namespace cpu_simd
#endif  // HWY_ONCE
