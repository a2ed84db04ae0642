#include <algorithm>
#include <array>

#include "block_linear.hpp"
#include "fastpath/sdk/symmetric.hpp"
#include "kernel.hpp"

namespace cpu_ref {
namespace {

/// Evaluates the sparse polynomial for kLanes channels at a time. Weights are merged into its coefficients when they
/// are bound. In double for float too: the hundreds of monomials of a channel can cancel.
template <class T>
class SymmetricContraction final : public CpuKernel<T> {
 public:
  explicit SymmetricContraction(const sdk::SymmetricContractionConfig& config)
      : CpuKernel<T>(config.signature()), config_(config) {}

 private:
  static constexpr std::int64_t kLanes = 16;
  using Lanes = std::array<double, kLanes>;

  std::int64_t blocks() const { return (config_.channels + kLanes - 1) / kLanes; }
  std::int64_t lanes_of(std::int64_t block) const { return std::min(kLanes, config_.channels - block * kLanes); }
  /// Coefficients of one species and channel block, one Lanes per row of the polynomial.
  const Lanes* coefficients(std::int64_t species, std::int64_t block) const {
    return coefficients_.data() + (species * blocks() + block) * polynomial_.n_rows();
  }

  void take(const sdk::TensorList& parameters) override {
    std::vector<const T*> u, weights;
    for (std::size_t t = 0; t < config_.targets.size(); ++t) {
      for (int nu = 1; nu <= config_.correlation; ++nu) {
        u.push_back(this->read(parameters, config_.u_index(t, nu)));
        weights.push_back(this->read(parameters, config_.w_index(t, nu)));
      }
    }
    polynomial_ = sdk::SymmetricPolynomial::build(config_, u.data());
    coefficients_.assign(static_cast<std::size_t>(config_.n_species * blocks() * polynomial_.n_rows()), Lanes{});
    std::vector<double> merged(static_cast<std::size_t>(polynomial_.n_rows() * config_.channels));
    for (std::int64_t z = 0; z < config_.n_species; ++z) {
      polynomial_.merge(weights.data(), z, merged.data());
      for (std::int64_t row = 0; row < polynomial_.n_rows(); ++row) {
        for (std::int64_t c = 0; c < config_.channels; ++c) {
          coefficients_[(z * blocks() + c / kLanes) * polynomial_.n_rows() + row][c % kLanes] =
              merged[row * config_.channels + c];
        }
      }
    }
  }

  struct Local {
    Lanes *x, *components, *grad_x, *rows, *paths;
  };
  static constexpr std::int64_t kMostChunks = 64;
  std::int64_t n_components() const {
    std::int64_t total = 0;
    for (const int l : config_.targets) total += 2 * l + 1;
    return total;
  }
  std::int64_t n_paths() const {
    std::int64_t total = 0;
    for (const auto& row : config_.n_paths) {
      for (const std::int64_t k : row) total += k;
    }
    return total;
  }
  std::vector<Local> locals(sdk::Scratch& scratch, bool sums) const {
    std::vector<Local> result;
    for (std::int64_t i = 0; i < kMostChunks; ++i) {
      Local local{};
      local.x = scratch.take<Lanes>(config_.dim);
      local.components = scratch.take<Lanes>(n_components());
      local.grad_x = scratch.take<Lanes>(config_.dim);
      if (sums) local.rows = scratch.take<Lanes>(polynomial_.n_rows());
      if (sums) local.paths = scratch.take<Lanes>(n_paths());
      result.push_back(local);
    }
    return result;
  }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    scratch.take<std::int64_t>(extents[sdk::Axis::rows] + 2 * config_.n_species + 1);
    locals(scratch, pass == sdk::Pass::backward);
  }

  struct Rows {
    std::int64_t n;
    const std::int64_t *order, *begin;
  };
  Rows rows(const sdk::Run& run, sdk::Scratch& scratch) const {
    const std::int64_t n = run.inputs[0].size(0);
    std::int64_t* order = scratch.take<std::int64_t>(n + 2 * config_.n_species + 1);
    std::int64_t* begin = order + n;
    group_by_species(n, config_.n_species, this->read_indices(run.inputs, 1), order, begin,
                     begin + config_.n_species + 1);
    return {n, order, begin};
  }

  /// A channel block of one row of x, [channels][dim], to lanes; channels past the last are 0.
  void load_x(const T* row, std::int64_t block, Lanes* x) const {
    for (std::int64_t i = 0; i < config_.dim; ++i) x[i] = {};
    for (std::int64_t c = 0; c < lanes_of(block); ++c) {
      for (std::int64_t i = 0; i < config_.dim; ++i) x[i][c] = row[(block * kLanes + c) * config_.dim + i];
    }
  }
  void load_components(const T* row, std::int64_t block, Lanes* components) const {
    for (std::size_t m = 0; m < polynomial_.components.size(); ++m) {
      const auto [offset, stride] = polynomial_.components[m];
      components[m] = {};
      for (std::int64_t c = 0; c < lanes_of(block); ++c) {
        components[m][c] = row[offset + (block * kLanes + c) * stride];
      }
    }
  }
  /// The product of the factors of a monomial but the one at position `skip`; -1: of all.
  static Lanes product(const sdk::SymmetricPolynomial::Monomial& monomial, int skip, Lanes result, const Lanes* x) {
    for (int position = 0; position < monomial.degree; ++position) {
      if (position == skip) continue;
      const Lanes& factor = x[monomial.factors[static_cast<std::size_t>(position)]];
      for (std::int64_t c = 0; c < kLanes; ++c) result[c] *= factor[c];
    }
    return result;
  }
  static Lanes ones() {
    Lanes result;
    result.fill(1.0);
    return result;
  }

  void forward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const Rows rows = this->rows(run, scratch);
    const T* x = this->read(run.inputs, 0);
    const std::int32_t* species = this->read_indices(run.inputs, 1);
    T* out = this->write(run.outputs, 0);
    for_each_block(run, scratch, rows, false, [&](const Local& local, std::int64_t n, std::int64_t block) {
      load_x(x + n * config_.channels * config_.dim, block, local.x);
      std::fill_n(local.components, polynomial_.components.size(), Lanes{});
      const Lanes* a = coefficients(species[n], block);
      for (std::size_t i = 0; i < polynomial_.monomials.size(); ++i) {
        const Lanes p = product(polynomial_.monomials[i], -1, ones(), local.x);
        for (std::int64_t r = polynomial_.row_begin[i]; r < polynomial_.row_begin[i + 1]; ++r, ++a) {
          Lanes& sum = local.components[polynomial_.rows[static_cast<std::size_t>(r)].component];
          for (std::int64_t c = 0; c < kLanes; ++c) sum[c] += (*a)[c] * p[c];
        }
      }
      T* row = out + n * config_.out_dim();
      for (std::size_t m = 0; m < polynomial_.components.size(); ++m) {
        const auto [offset, stride] = polynomial_.components[m];
        for (std::int64_t c = 0; c < lanes_of(block); ++c) {
          row[offset + (block * kLanes + c) * stride] = static_cast<T>(local.components[m][c]);
        }
      }
    });
  }
  /// Calls body(memory, row, channel block), rows of one species after each other, block by block.
  template <class Body>
  void for_each_block(const sdk::Run& run, sdk::Scratch& scratch, const Rows& rows, bool sums, const Body& body) {
    constexpr std::int64_t kTile = 16;
    const std::vector<Local> all = locals(scratch, sums);
    const Chunks chunks(rows.n, 4, kMostChunks);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      for (std::int64_t first = chunks.begin(chunk); first < chunks.end(chunk); first += kTile) {
        for (std::int64_t block = 0; block < blocks(); ++block) {
          for (std::int64_t i = first; i < std::min(first + kTile, chunks.end(chunk)); ++i) {
            body(all[static_cast<std::size_t>(chunk)], rows.order[i], block);
          }
        }
      }
    });
  }

  void backward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const Rows rows = this->rows(run, scratch);
    if (run.grad_inputs[0].present()) {
      sdk::Scratch own = scratch;
      grad_x(run, rows, own);
    }
    for (std::size_t t = 0; t < config_.targets.size(); ++t) {
      for (int nu = 1; nu <= config_.correlation; ++nu) {
        if (run.grad_parameters[config_.w_index(t, nu)].present()) return grad_weights(run, rows, scratch);
      }
    }
  }

  void grad_x(const sdk::Run& run, const Rows& rows, sdk::Scratch& scratch) {
    const T *x = this->read(run.inputs, 0), *g = this->read(run.grad_outputs, 0);
    const std::int32_t* species = this->read_indices(run.inputs, 1);
    T* gx = this->write(run.grad_inputs, 0);
    for_each_block(run, scratch, rows, true, [&](const Local& local, std::int64_t n, std::int64_t block) {
      load_x(x + n * config_.channels * config_.dim, block, local.x);
      load_components(g + n * config_.out_dim(), block, local.components);
      std::fill_n(local.grad_x, config_.dim, Lanes{});
      const Lanes* a = coefficients(species[n], block);
      for (std::size_t i = 0; i < polynomial_.monomials.size(); ++i) {
        const auto& monomial = polynomial_.monomials[i];
        Lanes head{};  // gradient of the value of the monomial
        for (std::int64_t r = polynomial_.row_begin[i]; r < polynomial_.row_begin[i + 1]; ++r, ++a) {
          const Lanes& from = local.components[polynomial_.rows[static_cast<std::size_t>(r)].component];
          for (std::int64_t c = 0; c < kLanes; ++c) head[c] += (*a)[c] * from[c];
        }
        for (int skip = 0; skip < monomial.degree; ++skip) {
          const Lanes p = product(monomial, skip, head, local.x);
          Lanes& to = local.grad_x[monomial.factors[static_cast<std::size_t>(skip)]];
          for (std::int64_t c = 0; c < kLanes; ++c) to[c] += p[c];
        }
      }
      T* row = gx + n * config_.channels * config_.dim;
      for (std::int64_t c = 0; c < lanes_of(block); ++c) {
        for (std::int64_t i = 0; i < config_.dim; ++i) {
          row[(block * kLanes + c) * config_.dim + i] = static_cast<T>(local.grad_x[i][c]);
        }
      }
    });
  }

  /// One task sums one species and channel block over all rows of that species, first per coefficient of the
  /// polynomial, then per path, so nothing has to be joined.
  void grad_weights(const sdk::Run& run, const Rows& rows, sdk::Scratch& scratch) {
    const T *x = this->read(run.inputs, 0), *g = this->read(run.grad_outputs, 0);
    std::vector<T*> targets;
    for (std::size_t t = 0; t < config_.targets.size(); ++t) {
      for (int nu = 1; nu <= config_.correlation; ++nu) {
        targets.push_back(this->write(run.grad_parameters, config_.w_index(t, nu)));
      }
    }
    const std::vector<Local> all = locals(scratch, true);
    const std::int64_t n_tasks = config_.n_species * blocks();
    this->workers_.run(run.threads, std::min(n_tasks, kMostChunks), [&](std::int64_t lane) {
      const Local& local = all[static_cast<std::size_t>(lane)];
      for (std::int64_t task = lane; task < n_tasks; task += kMostChunks) {
        const std::int64_t z = task / blocks(), block = task % blocks();
        std::fill_n(local.rows, polynomial_.n_rows(), Lanes{});
        for (std::int64_t position = rows.begin[z]; position < rows.begin[z + 1]; ++position) {
          const std::int64_t n = rows.order[position];
          load_x(x + n * config_.channels * config_.dim, block, local.x);
          load_components(g + n * config_.out_dim(), block, local.components);
          for (std::size_t i = 0; i < polynomial_.monomials.size(); ++i) {
            const Lanes p = product(polynomial_.monomials[i], -1, ones(), local.x);
            for (std::int64_t r = polynomial_.row_begin[i]; r < polynomial_.row_begin[i + 1]; ++r) {
              const Lanes& from = local.components[polynomial_.rows[static_cast<std::size_t>(r)].component];
              for (std::int64_t c = 0; c < kLanes; ++c) local.rows[r][c] += p[c] * from[c];
            }
          }
        }
        store_weights(local, z, block, targets);
      }
    });
  }
  void store_weights(const Local& local, std::int64_t z, std::int64_t block, const std::vector<T*>& targets) const {
    std::fill_n(local.paths, n_paths(), Lanes{});
    std::vector<std::int64_t> first(targets.size(), 0);  // of each weight tensor in local.paths
    for (std::size_t t = 1; t < first.size(); ++t) first[t] = first[t - 1] + polynomial_.n_paths[t - 1];
    for (std::int64_t r = 0; r < polynomial_.n_rows(); ++r) {
      const auto row = static_cast<std::size_t>(r);
      for (std::int64_t i = polynomial_.term_begin[row]; i < polynomial_.term_begin[row + 1]; ++i) {
        const auto& term = polynomial_.terms[static_cast<std::size_t>(i)];
        Lanes& to = local.paths[first[static_cast<std::size_t>(polynomial_.rows[row].tensor)] + term.path];
        for (std::int64_t c = 0; c < kLanes; ++c) to[c] += term.coefficient * local.rows[r][c];
      }
    }
    for (std::size_t t = 0; t < targets.size(); ++t) {
      if (targets[t] == nullptr) continue;
      for (std::int64_t k = 0; k < polynomial_.n_paths[t]; ++k) {
        for (std::int64_t c = 0; c < lanes_of(block); ++c) {
          targets[t][(z * polynomial_.n_paths[t] + k) * config_.channels + block * kLanes + c] =
              static_cast<T>(local.paths[first[t] + k][c]);
        }
      }
    }
  }

  sdk::SymmetricContractionConfig config_;
  sdk::SymmetricPolynomial polynomial_;
  std::vector<Lanes> coefficients_;
};

}  // namespace

Op symmetric_contraction() {
  using Config = sdk::SymmetricContractionConfig;
  return {Config::kOp, Config::kVersion,
          [](const sdk::Attributes& config, sdk::KernelAnswer& answer) {
            const Config typed = sdk::known_config<Config>(config);
            for (const int l : typed.targets) check_degree("target degree", l, answer);
            if (typed.correlation > sdk::SymmetricPolynomial::kMaxDegree) {
              answer.blocked(sdk::Reason::config, "correlation " + std::to_string(typed.correlation) + ", at most " +
                                                      std::to_string(sdk::SymmetricPolynomial::kMaxDegree));
            }
          },
          create<SymmetricContraction, Config>};
}

}  // namespace cpu_ref
