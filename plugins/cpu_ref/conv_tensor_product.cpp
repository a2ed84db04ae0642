#include <algorithm>
#include <array>

#include "block_linear.hpp"
#include "fastpath/sdk/coupling.hpp"
#include "kernel.hpp"

namespace cpu_ref {
namespace {

/// Features are copied once per call into an order where channels are contiguous, so that every inner loop runs over
/// them. Forward walks the edges of a receiver, the gradient of x those of a sender, the other two gradients edge by
/// edge: each result is written by one thread, in an order that depends on the graph alone.
template <class T>
class ConvTensorProduct final : public MultilinearKernel<T> {
 public:
  explicit ConvTensorProduct(const sdk::ConvTensorProductConfig& config)
      : MultilinearKernel<T>(config.signature()),
        in_(config.in),
        out_(config.out),
        edge_dim_(config.edge.dim()),
        weight_dim_(config.weight_numel()) {
    for (const auto& instruction : config.instructions) {
      const sdk::IrrepsBlock in = config.in[instruction.in], out = config.out[instruction.out];
      Path path{in.mul,
                in_.offset(instruction.in),
                config.edge.offset(instruction.edge),
                paths_.empty() ? 0 : paths_.back().w + paths_.back().mul,
                out_.offset(instruction.out),
                {}};
      auto entries = sdk::coupling(in.ir.l, config.edge[instruction.edge].ir.l, out.ir.l).nonzero;
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return a.i != b.i ? a.i < b.i : a.k < b.k; });
      for (const auto& [i, j, k, value] : entries) {
        if (path.pairs.empty() || path.pairs.back().i != i || path.pairs.back().k != k)
          path.pairs.push_back({i, k, {}});
        path.pairs.back().terms.push_back({path.y + j, static_cast<T>(instruction.factor * value)});
      }
      n_pairs_ += static_cast<std::int64_t>(path.pairs.size());
      widest_ = std::max(widest_, path.mul);
      paths_.push_back(std::move(path));
    }
  }

 private:
  struct Term {
    std::int64_t j;  ///< Place in a row of y.
    T value;         ///< factor * C[i, j, k]
  };
  /// Component i of x and component k of the output, whose product per edge has the factor sum_j value * y[j].
  struct Pair {
    std::int64_t i, k;
    std::vector<Term> terms;
  };
  struct Path {
    std::int64_t mul;
    std::int64_t x, y, w, out;  ///< Where its block starts in a row of each argument.
    std::vector<Pair> pairs;
  };
  /// Sums of this many edges are kept in T before they go into a double.
  static constexpr std::int64_t kRun = 16;

  static Chunks chunks(std::int64_t n) { return Chunks(n, 8); }
  struct Local {
    T *factors, *product, *sum;
    double* total;
  };
  /// Memory of the chunks; `width` of the row that is summed.
  std::vector<Local> locals(sdk::Scratch& scratch, std::int64_t n, std::int64_t width) const {
    std::vector<Local> result;
    for (std::int64_t i = 0; i < chunks(n).count; ++i) {
      T* factors = scratch.take<T>(n_pairs_);
      T* product = scratch.take<T>(widest_);
      T* sum = scratch.take<T>(width);
      result.push_back({factors, product, sum, scratch.take<double>(width)});
    }
    return result;
  }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    const std::int64_t nodes = extents[sdk::Axis::nodes], receivers = extents[sdk::Axis::receivers];
    scratch.take<T>(nodes * in_.dim());
    if (pass == sdk::Pass::forward) {
      locals(scratch, receivers, out_.dim());
    } else {
      scratch.take<T>(receivers * out_.dim());
      locals(scratch, nodes, in_.dim());
      locals(scratch, extents[sdk::Axis::edges], edge_dim_);
    }
  }

  /// Rows [mul][dim] per block to [dim][mul].
  const T* reorder(const sdk::Run& run, const sdk::Irreps& irreps, std::int64_t n, const T* rows, T* to) {
    const Chunks chunks = this->chunks(n);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      for (std::int64_t row = chunks.begin(chunk); row < chunks.end(chunk); ++row) {
        for (std::size_t block = 0; block < irreps.size(); ++block) {
          const std::int64_t start = row * irreps.dim() + irreps.offset(block);
          channels_last(irreps[block], rows + start, to + start);
        }
      }
    });
    return to;
  }
  /// The factor of every pair of every path for one edge.
  void contract(const T* y, T* factors) const {
    for (const Path& path : paths_) {
      for (const Pair& pair : path.pairs) {
        T sum(0);
        for (const Term& term : pair.terms) sum += term.value * y[term.j];
        *factors++ = sum;
      }
    }
  }
  /// Sums row(e) over `count` edges of one node, where add(position) adds edge number `position` to local.sum.
  template <class Add>
  void sum_edges(const sdk::Irreps& irreps, std::int64_t count, const Local& local, T* row, const Add& add) const {
    std::fill_n(local.total, irreps.dim(), 0.0);
    for (std::int64_t first = 0; first < count; first += kRun) {
      std::fill_n(local.sum, irreps.dim(), T(0));
      for (std::int64_t i = first; i < std::min(first + kRun, count); ++i) add(i);
      for (std::int64_t c = 0; c < irreps.dim(); ++c) local.total[c] += static_cast<double>(local.sum[c]);
    }
    for (std::size_t block = 0; block < irreps.size(); ++block) {
      channels_first(irreps[block], local.total + irreps.offset(block), row + irreps.offset(block));
    }
  }

  void forward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const sdk::HostGraph graph = run.graph.value().host();
    const T *y = this->read(run.inputs, 1), *w = this->read(run.inputs, 2);
    T* out = this->write(run.outputs, 0);
    const T* x =
        reorder(run, in_, graph.n_nodes, this->read(run.inputs, 0), scratch.take<T>(graph.n_nodes * in_.dim()));
    const Chunks chunks = this->chunks(graph.n_receivers);
    const std::vector<Local> all = locals(scratch, graph.n_receivers, out_.dim());
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      const Local& local = all[static_cast<std::size_t>(chunk)];
      for (std::int64_t n = chunks.begin(chunk); n < chunks.end(chunk); ++n) {
        const std::int64_t begin = graph.receiver_ptr[n];
        sum_edges(out_, graph.receiver_ptr[n + 1] - begin, local, out + n * out_.dim(), [&](std::int64_t i) {
          const std::int64_t e = begin + i;
          contract(y + e * edge_dim_, local.factors);
          add_message(x + graph.sender[e] * in_.dim(), w + e * weight_dim_, local);
        });
      }
    });
  }
  /// local.sum[k][u] += factor[i, k] * w[u] * x[i][u]
  void add_message(const T* x, const T* w, const Local& local) const {
    const T* factor = local.factors;
    T* const wx = local.product;
    for (const Path& path : paths_) {
      std::int64_t i = -1;
      for (const Pair& pair : path.pairs) {
        if (pair.i != i) {
          i = pair.i;
          const T *xi = x + path.x + i * path.mul, *wp = w + path.w;
          for (std::int64_t u = 0; u < path.mul; ++u) wx[u] = wp[u] * xi[u];
        }
        const T f = *factor++;
        T* to = local.sum + path.out + pair.k * path.mul;
        for (std::int64_t u = 0; u < path.mul; ++u) to[u] += f * wx[u];
      }
    }
  }

  void backward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const sdk::HostGraph graph = run.graph.value().host();
    const T* g = reorder(run, out_, graph.n_receivers, this->read(run.grad_outputs, 0),
                         scratch.take<T>(graph.n_receivers * out_.dim()));
    if (run.grad_inputs[0].present()) grad_x(run, graph, g, scratch);
    if (run.grad_inputs[1].present() || run.grad_inputs[2].present()) grad_edges(run, graph, g, scratch);
  }

  void grad_x(const sdk::Run& run, const sdk::HostGraph& graph, const T* g, sdk::Scratch& scratch) {
    const T *y = this->read(run.inputs, 1), *w = this->read(run.inputs, 2);
    T* gx = this->write(run.grad_inputs, 0);
    const Chunks chunks = this->chunks(graph.n_nodes);
    const std::vector<Local> all = locals(scratch, graph.n_nodes, in_.dim());
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      const Local& local = all[static_cast<std::size_t>(chunk)];
      for (std::int64_t n = chunks.begin(chunk); n < chunks.end(chunk); ++n) {
        const std::int64_t begin = graph.sender_ptr[n];
        sum_edges(in_, graph.sender_ptr[n + 1] - begin, local, gx + n * in_.dim(), [&](std::int64_t i) {
          const std::int64_t e = graph.sender_edge[begin + i];
          if (graph.receiver[e] >= graph.n_receivers) return;  // into a ghost: there is no such output
          contract(y + e * edge_dim_, local.factors);
          add_gradient(g + graph.receiver[e] * out_.dim(), w + e * weight_dim_, local);
        });
      }
    });
  }
  /// local.sum[i][u] += w[u] * sum_k factor[i, k] * g[k][u]
  void add_gradient(const T* g, const T* w, const Local& local) const {
    const T* factor = local.factors;
    T* const sum = local.product;
    for (const Path& path : paths_) {
      for (auto pair = path.pairs.begin(); pair != path.pairs.end();) {
        const std::int64_t i = pair->i;
        std::fill_n(sum, path.mul, T(0));
        for (; pair != path.pairs.end() && pair->i == i; ++pair) {
          const T f = *factor++;
          const T* gk = g + path.out + pair->k * path.mul;
          for (std::int64_t u = 0; u < path.mul; ++u) sum[u] += f * gk[u];
        }
        const T* wp = w + path.w;
        T* to = local.sum + path.x + i * path.mul;
        for (std::int64_t u = 0; u < path.mul; ++u) to[u] += wp[u] * sum[u];
      }
    }
  }

  void grad_edges(const sdk::Run& run, const sdk::HostGraph& graph, const T* g, sdk::Scratch& scratch) {
    const T *y = this->read(run.inputs, 1), *w = this->read(run.inputs, 2);
    T *gy = this->write(run.grad_inputs, 1), *gw = this->write(run.grad_inputs, 2);
    const T* x =
        reorder(run, in_, graph.n_nodes, this->read(run.inputs, 0), scratch.take<T>(graph.n_nodes * in_.dim()));
    const Chunks chunks = this->chunks(graph.n_edges);
    const std::vector<Local> all = locals(scratch, graph.n_edges, edge_dim_);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      const Local& local = all[static_cast<std::size_t>(chunk)];
      for (std::int64_t e = chunks.begin(chunk); e < chunks.end(chunk); ++e) {
        T* gy_row = gy == nullptr ? nullptr : gy + e * edge_dim_;
        T* gw_row = gw == nullptr ? nullptr : gw + e * weight_dim_;
        if (gy_row != nullptr) std::fill_n(gy_row, edge_dim_, T(0));
        if (gw_row != nullptr) std::fill_n(gw_row, weight_dim_, T(0));
        if (graph.receiver[e] >= graph.n_receivers) continue;
        contract(y + e * edge_dim_, local.factors);
        add_edge_gradients(x + graph.sender[e] * in_.dim(), w + e * weight_dim_, g + graph.receiver[e] * out_.dim(),
                           local.factors, gy_row, gw_row);
      }
    });
  }
  /// gw[u] += factor[i, k] * x[i][u] * g[k][u], and gy[j] += value[i, j, k] * sum_u w[u] * x[i][u] * g[k][u]
  void add_edge_gradients(const T* x, const T* w, const T* g, const T* factor, T* gy, T* gw) const {
    constexpr std::int64_t kLanes = 8;  // sums side by side, so that the compiler can use vectors
    for (const Path& path : paths_) {
      const T* wp = w + path.w;
      for (const Pair& pair : path.pairs) {
        const T f = *factor++;
        const T *xi = x + path.x + pair.i * path.mul, *gk = g + path.out + pair.k * path.mul;
        if (gw != nullptr) {
          T* to = gw + path.w;
          for (std::int64_t u = 0; u < path.mul; ++u) to[u] += f * (xi[u] * gk[u]);
        }
        if (gy == nullptr) continue;
        std::array<T, kLanes> lanes{};
        std::int64_t u = 0;
        for (; u + kLanes <= path.mul; u += kLanes) {
          for (std::int64_t lane = 0; lane < kLanes; ++lane) {
            lanes[lane] += wp[u + lane] * (xi[u + lane] * gk[u + lane]);
          }
        }
        for (; u < path.mul; ++u) lanes[0] += wp[u] * (xi[u] * gk[u]);
        const T sum = ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
        for (const Term& term : pair.terms) gy[term.j] += term.value * sum;
      }
    }
  }

  sdk::Irreps in_, out_;
  std::int64_t edge_dim_, weight_dim_;
  std::int64_t n_pairs_ = 0, widest_ = 0;
  std::vector<Path> paths_;
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

}  // namespace cpu_ref
