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

  void take(const sdk::TensorList& parameters) override {
    weights_.assign(layers(), {});
    transposed_.assign(layers(), {});
    for (std::size_t i = 0; i < layers(); ++i) {
      const T* source = this->read(parameters, i);
      for (std::int64_t j = 0; j < width(i) * width(i + 1); ++j) {
        weights_[i].push_back(static_cast<T>(config_.scales[i] * source[j]));
      }
      transposed_[i].resize(weights_[i].size());
      transpose(width(i), width(i + 1), weights_[i].data(), transposed_[i].data());
    }
  }

  /// What one tile needs. h[i] and z[i] are output and argument of the activation behind layer i.
  struct Tile {
    std::vector<T*> h, z;
    T *grad = nullptr, *next = nullptr;
  };
  Tile tile(sdk::Scratch& scratch) const {
    Tile result;
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
  std::vector<Tile> tiles(sdk::Scratch& scratch, std::int64_t n) const {
    std::vector<Tile> result;
    for (std::int64_t chunk = 0; chunk < row_chunks(n).count; ++chunk) result.push_back(tile(scratch));
    return result;
  }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    const std::int64_t n = extents[sdk::Axis::rows];
    tiles(scratch, n);
    if (pass == sdk::Pass::backward) scratch.take<double>(sum_chunks(n).count * weight_numel());
  }

  /// Fills the hidden layers of a tile.
  void hidden(std::int64_t rows, const T* x, Tile& tile) const {
    for (std::size_t i = 0; i + 1 < layers(); ++i) {
      const T* in = i == 0 ? x : tile.h[i - 1];
      T *z = tile.z[i], *h = tile.h[i];
      std::fill_n(z, rows * width(i + 1), T(0));
      add_product<T, T>(rows, width(i + 1), width(i), {in, width(i)}, {weights_[i].data(), width(i + 1)},
                        {z, width(i + 1)});
      const T c = static_cast<T>(config_.activation_constant);
      for (std::int64_t j = 0; j < rows * width(i + 1); ++j) h[j] = c * z[j] / (T(1) + std::exp(-z[j]));
    }
  }

  void forward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const T* x = this->read(run.inputs, 0);
    T* y = this->write(run.outputs, 0);
    const std::int64_t n = run.inputs[0].size(0), last = static_cast<std::int64_t>(layers()) - 1;
    const std::int64_t in = width(layers() - 1), out = width(layers());
    std::vector<Tile> all = tiles(scratch, n);
    const Chunks chunks = row_chunks(n);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      Tile& tile = all[static_cast<std::size_t>(chunk)];
      for (std::int64_t first = chunks.begin(chunk); first < chunks.end(chunk); first += kTile) {
        const std::int64_t rows = std::min(kTile, chunks.end(chunk) - first);
        hidden(rows, x + first * width(0), tile);
        std::fill_n(y + first * out, rows * out, T(0));
        add_product<T, T>(rows, out, in, {last == 0 ? x + first * in : tile.h.back(), in},
                          {weights_.back().data(), out}, {y + first * out, out});
      }
    });
  }

  void backward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const T* x = this->read(run.inputs, 0);
    const T* grad_y = this->read(run.grad_outputs, 0);
    T* grad_x = this->write(run.grad_inputs, 0);
    const std::int64_t n = run.inputs[0].size(0);
    std::size_t lowest = grad_x != nullptr ? 0 : layers();  // no gradient is wanted below this layer
    bool sums_wanted = false;
    for (std::size_t i = layers(); i-- > 0;) {
      if (!run.grad_parameters[i].present()) continue;
      lowest = std::min(lowest, i);
      sums_wanted = true;
    }
    if (lowest == layers()) return;

    std::vector<Tile> all = tiles(scratch, n);
    const Chunks chunks = sums_wanted ? sum_chunks(n) : row_chunks(n);
    double* partial = sums_wanted ? scratch.take<double>(chunks.count * weight_numel()) : nullptr;
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      Tile& tile = all[static_cast<std::size_t>(chunk)];
      if (sums_wanted) std::fill_n(partial + chunk * weight_numel(), weight_numel(), 0.0);
      for (std::int64_t first = chunks.begin(chunk); first < chunks.end(chunk); first += kTile) {
        const std::int64_t rows = std::min(kTile, chunks.end(chunk) - first);
        hidden(rows, x + first * width(0), tile);
        const T* grad = grad_y + first * width(layers());
        double* sums = sums_wanted ? partial + (chunk + 1) * weight_numel() : nullptr;
        for (std::size_t i = layers(); i-- > lowest;) {
          const std::int64_t in = width(i), out = width(i + 1);
          const T* h = i == 0 ? x + first * in : tile.h[i - 1];
          if (sums_wanted) sums -= in * out;
          if (run.grad_parameters[i].present()) {
            add_product<T, double>(in, out, rows, {h, 1, in}, {grad, out}, {sums, out});
          }
          if (i == 0 && grad_x == nullptr) break;
          T* next = i == 0 ? grad_x + first * in : tile.next;
          std::fill_n(next, rows * in, T(0));
          add_product<T, T>(rows, in, out, {grad, out}, {transposed_[i].data(), in}, {next, in});
          if (i == 0) break;
          const T* z = tile.z[i - 1];
          const T c = static_cast<T>(config_.activation_constant);
          for (std::int64_t j = 0; j < rows * in; ++j) {
            const T sigmoid = T(1) / (T(1) + std::exp(-z[j])), rest = T(1) / (T(1) + std::exp(z[j]));
            next[j] *= c * sigmoid * (T(1) + z[j] * rest);
          }
          grad = next;
          std::swap(tile.grad, tile.next);
        }
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

  sdk::RadialMlpConfig config_;
  std::vector<std::vector<T>> weights_, transposed_;  // with their scale
};

}  // namespace

Op radial_mlp() {
  using Config = sdk::RadialMlpConfig;
  return {
      Config::kOp, Config::kVersion,
      [](const sdk::Attributes& config, sdk::KernelAnswer&) { static_cast<void>(sdk::known_config<Config>(config)); },
      create<RadialMlp, Config>};
}

}  // namespace cpu_ref
