#include <algorithm>
#include <vector>

#include "cpu/species.hpp"
#include "ops.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_simd/linear.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets what they are compiled for.
#include "hwy/highway.h"
#include "matrix-inl.hpp"
#include "rows-inl.hpp"

#ifndef FASTPATH_CPU_SIMD_LINEAR
#define FASTPATH_CPU_SIMD_LINEAR
namespace cpu_simd {

/// A block of what is written, from all blocks that it is a sum over: to[w, m] = sum_u weight[u, w] from[u, m], where u
/// runs over the channels of the sources one after the other.
template <class T>
struct Sum {
  struct Source {
    std::int64_t offset, mul;
  };
  std::int64_t offset = 0, mul = 0, dim = 1, k = 0;
  std::vector<Source> sources;
  std::vector<T> weights;  // [k, mul] packed, one species after the other
  std::int64_t size = 0;   // of one species in weights
  bool joined = false;     // the sources follow each other in a row, so that it can be read in place
};
/// n rows of one species; row i is order[i], or i itself.
struct Rows {
  std::int64_t n, species;
  const std::int64_t* order;
};
template <class T>
struct LinearBuffers {
  T *from, *to;
};
/// One path, for the gradient of its weight.
template <class T>
struct PathSum {
  std::int64_t x_offset, mul_in, y_offset, mul_out, dim;
};

template <class T>
using PackSum = void(Sum<T>& sum, std::int64_t species, std::int64_t n_species, const T* rows);
template <class T>
using ApplySums = void(const std::vector<Sum<T>>& sums, const Rows& rows, const T* x, std::int64_t x_row, T* y,
                       std::int64_t y_row, const LinearBuffers<T>& buffers);
/// sums[u, w] += sum over rows and components of x[u, m] g[w, m].
template <class T>
using AddOuter = void(const PathSum<T>& path, const Rows& rows, const T* x, std::int64_t x_row, const T* g,
                      std::int64_t g_row, T* x_copy, T* packed, T* product, double* sums);

}  // namespace cpu_simd
#endif

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

/// @param rows  The matrix of one species, [k, mul].
template <class T>
void pack_sum(Sum<T>& sum, std::int64_t species, std::int64_t n_species, const T* rows) {
  constexpr std::int64_t kWidth = panel_width<T>();
  sum.size = sum.k * ((sum.mul + kWidth - 1) / kWidth * kWidth);
  sum.weights.resize(sum.size * n_species);
  pack(sum.k, sum.mul, rows, sum.mul, std::int64_t{1}, T(1), sum.weights.data() + species * sum.size);
}

/// [dim][mul] to [mul][dim].
template <class T>
HWY_INLINE void channels_first(std::int64_t mul, std::int64_t dim, const T* HWY_RESTRICT from, T* HWY_RESTRICT to) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(d));
  constexpr std::int64_t kMostDim = 2 * fastpath_cpu::kMaxDegree + 1;
  std::int64_t w = 0;
  if (dim == 3) {
    for (; w + kLanes <= mul; w += kLanes) {
      hn::StoreInterleaved3(hn::LoadU(d, from + w), hn::LoadU(d, from + mul + w), hn::LoadU(d, from + 2 * mul + w), d,
                            to + w * 3);
    }
  } else if (dim >= 4) {
    hn::Vec<decltype(d)> v[kMostDim];
    for (; w + kLanes <= mul; w += kLanes) {
      for (std::int64_t m = 0; m < dim; ++m) v[m] = hn::LoadU(d, from + m * mul + w);
      store_rows(d, v, dim, to + w * dim, dim);
    }
  }
  for (; w < mul; ++w) {
    for (std::int64_t m = 0; m < dim; ++m) to[w * dim + m] = from[m * mul + w];
  }
}

/// [mul][dim] to dim rows of mul, `row` elements apart.
template <class T>
HWY_INLINE void components_first(std::int64_t mul, std::int64_t dim, const T* HWY_RESTRICT from, T* HWY_RESTRICT to,
                                 std::int64_t row) {
  const hn::ScalableTag<T> d;
  constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(d));
  constexpr std::int64_t kMostDim = 2 * fastpath_cpu::kMaxDegree + 1;
  if (dim == 1) {
    std::copy_n(from, mul, to);
    return;
  }
  std::int64_t u = 0;
  if (dim == 3) {
    for (; u + kLanes <= mul; u += kLanes) {
      hn::Vec<decltype(d)> a, b, c;
      hn::LoadInterleaved3(d, from + 3 * u, a, b, c);
      hn::StoreU(a, d, to + u);
      hn::StoreU(b, d, to + row + u);
      hn::StoreU(c, d, to + 2 * row + u);
    }
  } else {
    hn::Vec<decltype(d)> v[kMostDim];
    for (; u + kLanes <= mul; u += kLanes) {
      load_rows(d, from + u * dim, dim, dim, v);
      for (std::int64_t m = 0; m < dim; ++m) hn::StoreU(v[m], d, to + m * row + u);
    }
  }
  for (; u < mul; ++u) {
    for (std::int64_t m = 0; m < dim; ++m) to[m * row + u] = from[u * dim + m];
  }
}

template <class T>
void apply_sums(const std::vector<Sum<T>>& sums, const Rows& rows, const T* x, std::int64_t x_row, T* y,
                std::int64_t y_row, const LinearBuffers<T>& buffers) {
  const auto place = [&](std::int64_t i) { return rows.order == nullptr ? i : rows.order[i]; };
  for (const Sum<T>& sum : sums) {
    if (sum.k == 0) {
      for (std::int64_t i = 0; i < rows.n; ++i) std::fill_n(y + place(i) * y_row + sum.offset, sum.mul * sum.dim, T(0));
      continue;
    }
    const T* const weights = sum.weights.data() + rows.species * sum.size;
    if (sum.dim == 1 && sum.joined && rows.order == nullptr) {
      product(rows.n, sum.mul, sum.k, x + sum.sources.front().offset, x_row, std::int64_t{1}, weights, y + sum.offset,
              y_row);
      continue;
    }
    // Component by component, so that products read rows of channels.
    for (std::int64_t i = 0; i < rows.n; ++i) {
      T* to = buffers.from + i * sum.k;
      for (const auto& [offset, mul] : sum.sources) {
        components_first(mul, sum.dim, x + place(i) * x_row + offset, to, rows.n * sum.k);
        to += mul;
      }
    }
    for (std::int64_t m = 0; m < sum.dim; ++m) {
      product(rows.n, sum.mul, sum.k, buffers.from + m * rows.n * sum.k, sum.k, std::int64_t{1}, weights,
              buffers.to + m * sum.mul, sum.dim * sum.mul);
    }
    for (std::int64_t i = 0; i < rows.n; ++i) {
      channels_first(sum.mul, sum.dim, buffers.to + i * sum.dim * sum.mul, y + place(i) * y_row + sum.offset);
    }
  }
}

template <class T>
void add_outer(const PathSum<T>& path, const Rows& rows, const T* x, std::int64_t x_row, const T* g, std::int64_t g_row,
               T* x_copy, T* packed, T* sum, double* sums) {
  const auto place = [&](std::int64_t i) { return rows.order == nullptr ? i : rows.order[i]; };
  const std::int64_t size = path.mul_in * path.dim, g_size = path.mul_out * path.dim;
  T* g_copy = x_copy + rows.n * size;
  for (std::int64_t i = 0; i < rows.n; ++i) {
    std::copy_n(x + place(i) * x_row + path.x_offset, size, x_copy + i * size);
    std::copy_n(g + place(i) * g_row + path.y_offset, g_size, g_copy + i * g_size);
  }
  for (std::int64_t m = 0; m < path.dim; ++m) {
    pack(rows.n, path.mul_out, g_copy + m, g_size, path.dim, T(1), packed);
    product(path.mul_in, path.mul_out, rows.n, x_copy + m, path.dim, size, packed, sum, path.mul_out);
    for (std::int64_t j = 0; j < path.mul_in * path.mul_out; ++j) sums[j] += static_cast<double>(sum[j]);
  }
}

template <class T>
std::int64_t linear_panel() {
  return panel_width<T>();
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cpu_simd {
namespace {

template <class T>
using LinearPanel = std::int64_t();

/// y[n, out, w, m] = factor * sum over paths and u of weight[u, species(n), w] x[n, in, u, m], and its gradients: what
/// irreps_linear (one species) and species_linear have in common.
template <class T>
class BlockLinear {
 public:
  using Path = sdk::IrrepsLinearConfig::Path;

  BlockLinear(sdk::Irreps in, sdk::Irreps out, std::vector<Path> paths, std::int64_t n_species)
      : in_(std::move(in)), out_(std::move(out)), paths_(std::move(paths)), n_species_(n_species) {}

  /// Rows grouped by species: positions begin[z]..begin[z+1]-1 of order. Null: in their own order, one species.
  struct Grouped {
    std::int64_t n = 0;
    const std::int64_t* order = nullptr;
    const std::int64_t* begin = nullptr;
  };

  /// @param weight  Per path [mul_in, n_species, mul_out].
  void take(const T* weight) {
    forward_ = sums(out_, in_, true);
    backward_ = sums(in_, out_, false);
    std::vector<T> matrix;
    for (std::int64_t z = 0; z < n_species_; ++z) {
      for (std::size_t o = 0; o < out_.size(); ++o) {
        matrix.clear();
        for (const Path& path : paths_) {
          if (path.out != o) continue;
          for (std::int64_t u = 0; u < in_[path.in].mul; ++u) {
            for (std::int64_t w = 0; w < out_[o].mul; ++w) matrix.push_back(element(weight, path, u, z, w));
          }
        }
        if (forward_[o].k > 0) pack_(forward_[o], z, n_species_, matrix.data());
      }
      for (std::size_t i = 0; i < in_.size(); ++i) {
        matrix.clear();
        for (const Path& path : paths_) {
          if (path.in != i) continue;
          for (std::int64_t w = 0; w < out_[path.out].mul; ++w) {
            for (std::int64_t u = 0; u < in_[i].mul; ++u) matrix.push_back(element(weight, path, u, z, w));
          }
        }
        if (backward_[i].k > 0) pack_(backward_[i], z, n_species_, matrix.data());
      }
    }
  }

  void plan(sdk::Scratch& scratch, std::int64_t n_rows, sdk::Pass pass) const {
    buffers(scratch, row_chunks(n_rows).count);
    if (pass == sdk::Pass::backward) slices(scratch);
  }

  void forward(Workers& workers, int threads, sdk::Scratch& scratch, const Grouped& rows, const T* x, T* y) const {
    apply(workers, threads, scratch, rows, forward_, x, in_.dim(), y, out_.dim());
  }
  void grad_x(Workers& workers, int threads, sdk::Scratch& scratch, const Grouped& rows, const T* g, T* gx) const {
    apply(workers, threads, scratch, rows, backward_, g, out_.dim(), gx, in_.dim());
  }

  /// One task sums a few matrix rows of one path and species over all rows of that species, so nothing has to be
  /// joined.
  void grad_weight(Workers& workers, int threads, sdk::Scratch& scratch, const Grouped& rows, const T* x, const T* g,
                   T* grad) const {
    buffers(scratch, row_chunks(rows.n).count);
    const std::vector<Slice> all = slices(scratch);
    struct Task {
      std::size_t path;
      std::int64_t species, first;
    };
    std::vector<Task> tasks;
    for (std::size_t p = 0; p < paths_.size(); ++p) {
      for (std::int64_t z = 0; z < n_species_; ++z) {
        for (std::int64_t u = 0; u < in_[paths_[p].in].mul; u += kSlice) tasks.push_back({p, z, u});
      }
    }
    const auto n_tasks = static_cast<std::int64_t>(tasks.size());
    workers.run(threads, std::min(n_tasks, kMostSlices), [&](std::int64_t lane) {
      const Slice& slice = all[static_cast<std::size_t>(lane)];
      for (std::int64_t t = lane; t < n_tasks; t += kMostSlices) {
        const auto& [p, z, first_u] = tasks[static_cast<std::size_t>(t)];
        const Path& path = paths_[p];
        const std::int64_t dim = in_[path.in].ir.dim(), n_u = std::min(kSlice, in_[path.in].mul - first_u);
        const std::int64_t mul_out = out_[path.out].mul;
        const PathSum<T> sum{in_.offset(path.in) + first_u * dim, n_u, out_.offset(path.out), mul_out, dim};
        std::fill_n(slice.sums, n_u * mul_out, 0.0);
        const std::int64_t begin = rows.begin == nullptr ? 0 : rows.begin[z];
        const std::int64_t end = rows.begin == nullptr ? rows.n : rows.begin[z + 1];
        for (std::int64_t first = begin; first < end; first += kTile) {
          const std::int64_t at = rows.order == nullptr ? first : 0;
          const Rows some{std::min(kTile, end - first), z, rows.order == nullptr ? nullptr : rows.order + first};
          outer_(sum, some, x + at * in_.dim(), in_.dim(), g + at * out_.dim(), out_.dim(), slice.x, slice.packed,
                 slice.product, slice.sums);
        }
        for (std::int64_t u = 0; u < n_u; ++u) {
          T* target = grad + path.weight_offset + ((first_u + u) * n_species_ + z) * mul_out;
          for (std::int64_t w = 0; w < mul_out; ++w) {
            target[w] = static_cast<T>(path.factor * slice.sums[u * mul_out + w]);
          }
        }
      }
    });
  }

 private:
  static constexpr std::int64_t kTile = 48;   // rows
  static constexpr std::int64_t kSlice = 48;  // rows of a weight matrix
  static constexpr std::int64_t kMostSlices = 64;

  struct Slice {
    T *x, *packed, *product;
    double* sums;
  };
  static Chunks row_chunks(std::int64_t n) { return Chunks(n, kTile); }

  T element(const T* weight, const Path& path, std::int64_t u, std::int64_t z, std::int64_t w) const {
    return static_cast<T>(path.factor * weight[path.weight_offset + (u * n_species_ + z) * out_[path.out].mul + w]);
  }
  std::vector<Sum<T>> sums(const sdk::Irreps& to, const sdk::Irreps& from, bool forward) const {
    std::vector<Sum<T>> result(to.size());
    for (std::size_t t = 0; t < to.size(); ++t) {
      Sum<T>& sum = result[t];
      sum.offset = to.offset(t);
      sum.mul = to[t].mul;
      sum.dim = to[t].ir.dim();
      sum.joined = true;
      for (const Path& path : paths_) {
        if ((forward ? path.out : path.in) != t) continue;
        const std::size_t source = forward ? path.in : path.out;
        if (!sum.sources.empty()) {
          const auto& last = sum.sources.back();
          sum.joined = sum.joined && last.offset + last.mul * sum.dim == from.offset(source);
        }
        sum.sources.push_back({from.offset(source), from[source].mul});
        sum.k += from[source].mul;
      }
    }
    return result;
  }

  std::vector<LinearBuffers<T>> buffers(sdk::Scratch& scratch, std::int64_t n) const {
    std::int64_t from = 0, to = 0;
    for (const auto* sums : {&forward_, &backward_}) {
      for (const Sum<T>& sum : *sums) {
        from = std::max(from, sum.k * sum.dim);
        to = std::max(to, sum.mul * sum.dim);
      }
    }
    std::vector<LinearBuffers<T>> result;
    for (std::int64_t i = 0; i < n; ++i) {
      T* const first = scratch.take<T>(kTile * from);
      result.push_back({first, scratch.take<T>(kTile * to)});
    }
    return result;
  }
  std::vector<Slice> slices(sdk::Scratch& scratch) const {
    std::int64_t size = 0, mul = 0, tasks = 0;
    for (const Path& path : paths_) {
      const std::int64_t dim = in_[path.in].ir.dim(), n_u = std::min(kSlice, in_[path.in].mul);
      size = std::max(size, (n_u + out_[path.out].mul) * dim);
      mul = std::max(mul, out_[path.out].mul);
      tasks += n_species_ * ((in_[path.in].mul + kSlice - 1) / kSlice);
    }
    std::vector<Slice> result;
    for (std::int64_t i = 0; i < std::min(tasks, kMostSlices); ++i) {
      T* const x = scratch.take<T>(kTile * size);
      T* const packed = scratch.take<T>(kTile * (mul + panel_()));
      T* const product = scratch.take<T>(kSlice * mul);
      result.push_back({x, packed, product, scratch.take<double>(kSlice * mul)});
    }
    return result;
  }

  void apply(Workers& workers, int threads, sdk::Scratch& scratch, const Grouped& rows, const std::vector<Sum<T>>& sums,
             const T* x, std::int64_t x_row, T* y, std::int64_t y_row) const {
    const Chunks chunks = row_chunks(rows.n);
    const std::vector<LinearBuffers<T>> all = buffers(scratch, chunks.count);
    workers.run(threads, chunks.count, [&](std::int64_t chunk) {
      std::int64_t z = 0;
      for (std::int64_t first = chunks.begin(chunk); first < chunks.end(chunk);) {
        std::int64_t end = std::min(first + kTile, chunks.end(chunk));
        if (rows.begin != nullptr) {
          while (rows.begin[z + 1] <= first) ++z;
          end = std::min(end, rows.begin[z + 1]);
        }
        const std::int64_t at = rows.order == nullptr ? first : 0;
        apply_(sums, {end - first, z, rows.order == nullptr ? nullptr : rows.order + first}, x + at * x_row, x_row,
               y + at * y_row, y_row, all[static_cast<std::size_t>(chunk)]);
        first = end;
      }
    });
  }

  sdk::Irreps in_, out_;
  std::vector<Path> paths_;
  std::int64_t n_species_;
  std::vector<Sum<T>> forward_, backward_;  // per block of y, of x
  LinearPanel<T>* panel_ = FASTPATH_FOR_TARGET(LinearPanel<T>, linear_panel<T>);
  PackSum<T>* pack_ = FASTPATH_FOR_TARGET(PackSum<T>, pack_sum<T>);
  ApplySums<T>* apply_ = FASTPATH_FOR_TARGET(ApplySums<T>, apply_sums<T>);
  AddOuter<T>* outer_ = FASTPATH_FOR_TARGET(AddOuter<T>, add_outer<T>);
};

template <class T>
class IrrepsLinear final : public MultilinearKernel<T> {
 public:
  explicit IrrepsLinear(const sdk::IrrepsLinearConfig& config)
      : MultilinearKernel<T>(config.signature()), config_(config), linear_(config.in, config.out, config.paths(), 1) {}

 private:
  std::unique_ptr<MultilinearKernel<T>> another() const override { return std::make_unique<IrrepsLinear>(config_); }
  void take(const sdk::TensorList& parameters) override {
    linear_.take(this->read(parameters, 0));
    if (!config_.bias) return;
    const T* bias = this->read(parameters, 1);
    bias_.assign(bias, bias + config_.bias_numel());
  }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    linear_.plan(scratch, extents[sdk::Axis::rows], pass);
  }
  /// Calls f(place in a row of y, place in the bias).
  template <class F>
  void for_each_bias(const F& f) const {
    std::int64_t position = 0;
    for (std::size_t block = 0; block < config_.out.size(); ++block) {
      if (!(config_.out[block].ir == sdk::Irrep{0, 1})) continue;
      for (std::int64_t w = 0; w < config_.out[block].mul; ++w) f(config_.out.offset(block) + w, position++);
    }
  }

  void forward_products(const sdk::Run& run, sdk::Scratch& scratch) override {
    linear_.forward(this->workers_, run.threads, scratch, {run.inputs[0].size(0)}, this->read(run.inputs, 0),
                    this->write(run.outputs, 0));
  }
  void forward(const sdk::Run& run, sdk::Scratch& scratch) override {
    forward_products(run, scratch);
    if (!config_.bias) return;
    T* y = this->write(run.outputs, 0);
    for (std::int64_t row = 0; row < run.inputs[0].size(0); ++row) {
      for_each_bias([&](std::int64_t place, std::int64_t i) { y[row * config_.out.dim() + place] += bias_[i]; });
    }
  }

  void backward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const std::int64_t n = run.inputs[0].size(0);
    const T* grad_y = this->read(run.grad_outputs, 0);
    if (T* grad_x = this->write(run.grad_inputs, 0)) {
      sdk::Scratch own = scratch;
      linear_.grad_x(this->workers_, run.threads, own, {n}, grad_y, grad_x);
    }
    if (T* grad_weight = this->write(run.grad_parameters, 0)) {
      sdk::Scratch own = scratch;
      linear_.grad_weight(this->workers_, run.threads, own, {n}, this->read(run.inputs, 0), grad_y, grad_weight);
    }
    if (T* grad_bias = this->write(run.grad_parameters, 1)) {
      for_each_bias([&](std::int64_t place, std::int64_t i) {
        double sum = 0.0;
        for (std::int64_t row = 0; row < n; ++row) sum += grad_y[row * config_.out.dim() + place];
        grad_bias[i] = static_cast<T>(sum);
      });
    }
  }

  sdk::IrrepsLinearConfig config_;
  BlockLinear<T> linear_;
  std::vector<T> bias_;
};

/// Groups the rows by species, then multiplies each group with the matrices of its species.
template <class T>
class SpeciesLinear final : public MultilinearKernel<T> {
 public:
  explicit SpeciesLinear(const sdk::SpeciesLinearConfig& config)
      : MultilinearKernel<T>(config.signature()),
        config_(config),
        linear_(config.in, config.out, config.paths(), config.n_species) {}

 private:
  std::unique_ptr<MultilinearKernel<T>> another() const override { return std::make_unique<SpeciesLinear>(config_); }
  void take(const sdk::TensorList& parameters) override { linear_.take(this->read(parameters, 0)); }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    scratch.take<std::int64_t>(extents[sdk::Axis::rows] + 2 * config_.n_species + 1);
    linear_.plan(scratch, extents[sdk::Axis::rows], pass);
  }

  typename BlockLinear<T>::Grouped rows(const sdk::Run& run, sdk::Scratch& scratch) const {
    const std::int64_t n = run.inputs[0].size(0);
    std::int64_t* order = scratch.take<std::int64_t>(n + 2 * config_.n_species + 1);
    std::int64_t* begin = order + n;
    fastpath_cpu::group_by_species(n, config_.n_species, this->read_indices(run.inputs, 1), order, begin,
                                   begin + config_.n_species + 1);
    return {n, order, begin};
  }

  void forward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const auto rows = this->rows(run, scratch);
    linear_.forward(this->workers_, run.threads, scratch, rows, this->read(run.inputs, 0), this->write(run.outputs, 0));
  }

  void backward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const auto rows = this->rows(run, scratch);
    const T* grad_y = this->read(run.grad_outputs, 0);
    if (T* grad_x = this->write(run.grad_inputs, 0)) {
      sdk::Scratch own = scratch;
      linear_.grad_x(this->workers_, run.threads, own, rows, grad_y, grad_x);
    }
    if (T* grad_weight = this->write(run.grad_parameters, 0)) {
      sdk::Scratch own = scratch;
      linear_.grad_weight(this->workers_, run.threads, own, rows, this->read(run.inputs, 0), grad_y, grad_weight);
    }
  }

  sdk::SpeciesLinearConfig config_;
  BlockLinear<T> linear_;
};

template <template <class> class K, class Config>
Op linear_op() {
  return {Config::kOp, Config::kVersion,
          [](const sdk::Attributes& config, sdk::KernelAnswer& answer) {
            const Config typed = sdk::known_config<Config>(config);
            check_degrees(typed.in, typed.out, answer);
          },
          create<K, Config>};
}

}  // namespace

Op irreps_linear() { return linear_op<IrrepsLinear, sdk::IrrepsLinearConfig>(); }
Op species_linear() { return linear_op<SpeciesLinear, sdk::SpeciesLinearConfig>(); }

}  // namespace cpu_simd
#endif  // HWY_ONCE
