#include <algorithm>
#include <cmath>

#include "kernel.hpp"
#include "matrix.hpp"

namespace cpu_ref {
namespace {

/// Works on tiles of rows, whose hidden layers stay in cache; backward computes them again.
template <class T>
class RadialMlp final : public CpuKernel<T> {
 public:
  explicit RadialMlp(const sdk::RadialMlpConfig& config) : CpuKernel<T>(config.signature()), config_(config) {}

 private:
  static constexpr std::int64_t kTile = 32;
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

  /// Matrices of the layers with their scale, and transposed. A matrix that is empty is zero.
  struct Weights {
    std::vector<std::vector<T>> plain, transposed;
  };
  Weights scaled(const sdk::TensorList& parameters) const {
    Weights result{std::vector<std::vector<T>>(layers()), std::vector<std::vector<T>>(layers())};
    for (std::size_t i = 0; i < layers(); ++i) {
      const T* source = this->read(parameters, i);
      if (source == nullptr) continue;
      for (std::int64_t j = 0; j < width(i) * width(i + 1); ++j) {
        result.plain[i].push_back(static_cast<T>(config_.scales[i] * source[j]));
      }
      result.transposed[i].resize(result.plain[i].size());
      transpose(width(i), width(i + 1), result.plain[i].data(), result.transposed[i].data());
    }
    return result;
  }
  void take(const sdk::TensorList& parameters) override { weights_ = scaled(parameters); }

  /// Hidden layers of one tile: h[i] and z[i] are output and argument of the activation behind layer i; and gradients.
  struct Plane {
    std::vector<T*> h, z;
    T *grad = nullptr, *next = nullptr;
  };
  struct Tile {
    Plane value, tangent;  // the latter empty in plain passes
  };
  Plane plane(sdk::Scratch& scratch) const {
    Plane result;
    for (std::size_t i = 0; i + 1 < layers(); ++i) {
      result.h.push_back(scratch.take<T>(kTile * width(i + 1)));
      result.z.push_back(scratch.take<T>(kTile * width(i + 1)));
    }
    result.grad = scratch.take<T>(kTile * widest_hidden());
    result.next = scratch.take<T>(kTile * widest_hidden());
    return result;
  }
  static Chunks row_chunks(std::int64_t n) { return Chunks(n, kTile); }
  static Chunks sum_chunks(std::int64_t n) { return Chunks(n, 2 * kTile, kMostSums); }
  static bool has_tangents(sdk::Pass pass) {
    return pass == sdk::Pass::forward_tangent || pass == sdk::Pass::backward_tangent;
  }
  std::vector<Tile> tiles(sdk::Scratch& scratch, std::int64_t n, sdk::Pass pass) const {
    std::vector<Tile> result;
    for (std::int64_t chunk = 0; chunk < row_chunks(n).count; ++chunk) {
      const Plane value = plane(scratch);
      result.push_back({value, has_tangents(pass) ? plane(scratch) : Plane()});
    }
    return result;
  }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    const std::int64_t n = extents[sdk::Axis::rows];
    tiles(scratch, n, pass);
    const std::int64_t numel = sum_chunks(n).count * weight_numel();
    scratch.take<double>(pass == sdk::Pass::backward || pass == sdk::Pass::backward_tangent ? numel : 0);
    scratch.take<double>(pass == sdk::Pass::backward_tangent ? numel : 0);
  }
  void plan_tangent(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    plan(scratch, extents, pass);
  }

  /// c[m, n] += a[m, k] b[k, n], rows contiguous; a factor that is null or empty is zero.
  static void add_rows(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, const std::vector<T>& b, T* c) {
    if (a == nullptr || b.empty()) return;
    add_product<T, T>(m, n, k, {a, k}, {b.data(), n}, {c, n});
  }
  /// sums[in, out] += h[rows, in]^T grad[rows, out]
  static void add_outer(std::int64_t in, std::int64_t out, std::int64_t rows, const T* h, const T* grad, double* sums) {
    if (h == nullptr || grad == nullptr) return;
    add_product<T, double>(in, out, rows, {h, 1, in}, {grad, out}, {sums, out});
  }

  /// A call: what it reads, with its tangents or without.
  struct Call {
    bool tangents;
    ReadPair<T> x, grad_y;
    Weights weights_t;
  };
  Call call(const sdk::Run& run) const {
    Call result{has_tangents(run.pass),
                this->read(run.inputs, run.inputs_t, 0),
                this->read(run.grad_outputs, run.grad_outputs_t, 0),
                {}};
    if (result.tangents) result.weights_t = scaled(run.parameters_t);
    return result;
  }
  static const T* offset(const T* from, std::int64_t n) { return from == nullptr ? nullptr : from + n; }

  /// What layer i reads, of a tile that begins with row `first`.
  ReadPair<T> input(const Call& call, const Tile& tile, std::size_t i, std::int64_t first) const {
    if (i == 0) return {offset(call.x.value, first * width(0)), offset(call.x.tangent, first * width(0))};
    return {tile.value.h[i - 1], call.tangents ? tile.tangent.h[i - 1] : nullptr};
  }

  /// Fills the hidden layers of a tile.
  void hidden(const Call& call, std::int64_t first, std::int64_t rows, const Tile& tile) const {
    const T c = static_cast<T>(config_.activation_constant);
    for (std::size_t i = 0; i + 1 < layers(); ++i) {
      const std::int64_t in = width(i), out = width(i + 1);
      const ReadPair<T> x = input(call, tile, i, first);
      T *z = tile.value.z[i], *h = tile.value.h[i];
      std::fill_n(z, rows * out, T(0));
      add_rows(rows, out, in, x.value, weights_.plain[i], z);
      for (std::int64_t j = 0; j < rows * out; ++j) h[j] = c * z[j] / (T(1) + std::exp(-z[j]));
      if (!call.tangents) continue;
      T *z_t = tile.tangent.z[i], *h_t = tile.tangent.h[i];
      std::fill_n(z_t, rows * out, T(0));
      add_rows(rows, out, in, x.tangent, weights_.plain[i], z_t);
      add_rows(rows, out, in, x.value, call.weights_t.plain[i], z_t);
      for (std::int64_t j = 0; j < rows * out; ++j) h_t[j] = c * Silu(z[j]).slope() * z_t[j];
    }
  }
  /// z / (1 + e^-z), its slope and that one's.
  struct Silu {
    T z, value, rest;
    explicit Silu(T at) : z(at), value(T(1) / (T(1) + std::exp(-at))), rest(T(1) / (T(1) + std::exp(at))) {}
    T slope() const { return value * (T(1) + z * rest); }
    T curvature() const { return value * rest * (T(2) + z * (rest - value)); }
  };

  void forward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const Call call = this->call(run);
    const WritePair<T> y = this->write(run.outputs, run.outputs_t, 0);
    const std::int64_t n = run.inputs[0].size(0), in = width(layers() - 1), out = width(layers());
    const std::vector<Tile> all = tiles(scratch, n, run.pass);
    const Chunks chunks = row_chunks(n);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      const Tile& tile = all[static_cast<std::size_t>(chunk)];
      for (std::int64_t first = chunks.begin(chunk); first < chunks.end(chunk); first += kTile) {
        const std::int64_t rows = std::min(kTile, chunks.end(chunk) - first);
        hidden(call, first, rows, tile);
        const ReadPair<T> h = input(call, tile, layers() - 1, first);
        std::fill_n(y.value + first * out, rows * out, T(0));
        add_rows(rows, out, in, h.value, weights_.plain.back(), y.value + first * out);
        if (y.tangent == nullptr) continue;
        std::fill_n(y.tangent + first * out, rows * out, T(0));
        add_rows(rows, out, in, h.tangent, weights_.plain.back(), y.tangent + first * out);
        add_rows(rows, out, in, h.value, call.weights_t.plain.back(), y.tangent + first * out);
      }
    });
  }
  void forward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override { forward(run, scratch); }
  void backward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override { backward(run, scratch); }

  void backward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const Call call = this->call(run);
    const WritePair<T> grad_x = this->write(run.grad_inputs, run.grad_inputs_t, 0);
    const std::int64_t n = run.inputs[0].size(0);
    std::size_t lowest = grad_x ? 0 : layers();  // no gradient is wanted below this layer
    bool sums_wanted = false;
    std::vector<WritePair<T>> grad_weights;
    for (std::size_t i = 0; i < layers(); ++i) {
      grad_weights.push_back(this->write(run.grad_parameters, run.grad_parameters_t, i));
      if (!grad_weights.back()) continue;
      lowest = std::min(lowest, i);
      sums_wanted = true;
    }
    if (lowest == layers()) return;

    const std::vector<Tile> all = tiles(scratch, n, run.pass);
    const Chunks chunks = sums_wanted ? sum_chunks(n) : row_chunks(n);
    const std::int64_t size = sums_wanted ? weight_numel() : 0, size_of_t = call.tangents ? size : 0;
    double* partial = scratch.take<double>(chunks.count * size);
    double* partial_t = scratch.take<double>(chunks.count * size_of_t);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      Tile tile = all[static_cast<std::size_t>(chunk)];
      std::fill_n(partial + chunk * size, size, 0.0);
      std::fill_n(partial_t + chunk * size_of_t, size_of_t, 0.0);
      for (std::int64_t first = chunks.begin(chunk); first < chunks.end(chunk); first += kTile) {
        const std::int64_t rows = std::min(kTile, chunks.end(chunk) - first);
        hidden(call, first, rows, tile);
        const T *grad = call.grad_y.value + first * width(layers()),
                *grad_t = offset(call.grad_y.tangent, first * width(layers()));
        std::int64_t at = size;  // of a layer's weights among the sums
        for (std::size_t i = layers(); i-- > lowest;) {
          const std::int64_t in = width(i), out = width(i + 1);
          const ReadPair<T> h = input(call, tile, i, first);
          if (sums_wanted) at -= in * out;
          if (grad_weights[i].value != nullptr) {
            add_outer(in, out, rows, h.value, grad, partial + chunk * size + at);
          }
          if (grad_weights[i].tangent != nullptr) {
            add_outer(in, out, rows, h.tangent, grad, partial_t + chunk * size + at);
            add_outer(in, out, rows, h.value, grad_t, partial_t + chunk * size + at);
          }
          if (i == 0 && !grad_x) break;
          T* next = i > 0 ? tile.value.next : grad_x.value == nullptr ? nullptr : grad_x.value + first * in;
          if (next != nullptr) {
            std::fill_n(next, rows * in, T(0));
            add_rows(rows, in, out, grad, weights_.transposed[i], next);
          }
          T* next_t = !call.tangents              ? nullptr
                      : i > 0                     ? tile.tangent.next
                      : grad_x.tangent == nullptr ? nullptr
                                                  : grad_x.tangent + first * in;
          if (next_t != nullptr) {
            std::fill_n(next_t, rows * in, T(0));
            add_rows(rows, in, out, grad_t, weights_.transposed[i], next_t);
            add_rows(rows, in, out, grad, call.weights_t.transposed[i], next_t);
          }
          if (i == 0) break;
          const T c = static_cast<T>(config_.activation_constant);
          for (std::int64_t j = 0; j < rows * in; ++j) {
            const Silu silu(tile.value.z[i - 1][j]);
            if (next_t != nullptr) {
              next_t[j] = c * (silu.slope() * next_t[j] + silu.curvature() * tile.tangent.z[i - 1][j] * next[j]);
            }
            next[j] *= c * silu.slope();
          }
          grad = next;
          grad_t = next_t;
          std::swap(tile.value.grad, tile.value.next);
          std::swap(tile.tangent.grad, tile.tangent.next);
        }
      }
    });

    std::int64_t at = 0;
    for (std::size_t i = 0; i < layers(); ++i) {
      const auto join = [&](const double* sums, T* target) {
        for (std::int64_t j = 0; target != nullptr && j < width(i) * width(i + 1); ++j) {
          double sum = 0.0;
          for (std::int64_t chunk = 0; chunk < chunks.count; ++chunk) sum += sums[chunk * size + at + j];
          target[j] = static_cast<T>(config_.scales[i] * sum);
        }
      };
      join(partial, grad_weights[i].value);
      join(partial_t, grad_weights[i].tangent);
      at += width(i) * width(i + 1);
    }
  }

  sdk::RadialMlpConfig config_;
  Weights weights_;
};

}  // namespace

Op radial_mlp() { return op_of<RadialMlp, sdk::RadialMlpConfig>(); }

}  // namespace cpu_ref
