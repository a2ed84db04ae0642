#include <algorithm>
#include <array>
#include <type_traits>

#include "block_linear.hpp"
#include "fastpath/sdk/symmetric.hpp"
#include "kernel.hpp"

namespace cpu_ref {
namespace {

constexpr std::int64_t kLanes = 16;

/// A number of each of some channels.
struct Lanes {
  std::array<double, kLanes> lane{};

  Lanes& operator+=(const Lanes& b) {
    for (std::int64_t c = 0; c < kLanes; ++c) lane[c] += b.lane[c];
    return *this;
  }
  Lanes& operator*=(const Lanes& b) {
    for (std::int64_t c = 0; c < kLanes; ++c) lane[c] *= b.lane[c];
    return *this;
  }
  friend Lanes operator+(Lanes a, const Lanes& b) { return a += b; }
  friend Lanes operator*(Lanes a, const Lanes& b) { return a *= b; }
  friend Lanes operator*(double a, Lanes b) {
    for (double& value : b.lane) value *= a;
    return b;
  }
  static Lanes ones() {
    Lanes result;
    result.lane.fill(1.0);
    return result;
  }
};

/// Element i of a tensor, and its tangent, to channel c.
template <class T>
void load(const ReadPair<T>& from, std::int64_t i, std::int64_t c, Lanes& to) {
  to.lane[c] = get<double>(from, i);
}
template <class T>
void load(const ReadPair<T>& from, std::int64_t i, std::int64_t c, Dual<Lanes>& to) {
  const auto number = get<Dual<double>>(from, i);
  to.value.lane[c] = number.value;
  to.tangent.lane[c] = number.tangent;
}
template <class T>
void store(const WritePair<T>& to, std::int64_t i, std::int64_t c, const Lanes& from) {
  set(to, i, from.lane[c]);
}
template <class T>
void store(const WritePair<T>& to, std::int64_t i, std::int64_t c, const Dual<Lanes>& from) {
  set(to, i, Dual<double>(from.value.lane[c], from.tangent.lane[c]));
}
Lanes times(double factor, const Lanes& a) { return factor * a; }
Dual<Lanes> times(double factor, const Dual<Lanes>& a) { return {factor * a.value, factor * a.tangent}; }

/// Evaluates the sparse polynomial for kLanes channels at a time. Weights are merged into its coefficients when they
/// are bound. In double for float too: the hundreds of monomials of a channel can cancel. A number N of a channel is
/// Lanes, or Dual<Lanes> in passes with tangents.
template <class T>
class SymmetricContraction final : public CpuKernel<T> {
 public:
  explicit SymmetricContraction(const sdk::SymmetricContractionConfig& config)
      : CpuKernel<T>(config.signature()), config_(config) {}

 private:
  std::int64_t blocks() const { return (config_.channels + kLanes - 1) / kLanes; }
  std::int64_t lanes_of(std::int64_t block) const { return std::min(kLanes, config_.channels - block * kLanes); }

  using Pointers = std::vector<const T*>;  // of the weights, per target and order
  void take(const sdk::TensorList& parameters) override {
    Pointers u, weights;
    for (std::size_t t = 0; t < config_.targets.size(); ++t) {
      for (int nu = 1; nu <= config_.correlation; ++nu) {
        u.push_back(this->read(parameters, config_.u_index(t, nu)));
        weights.push_back(this->read(parameters, config_.w_index(t, nu)));
      }
    }
    polynomial_ = sdk::SymmetricPolynomial::build(config_, u.data());
    coefficients_ = merged(weights);
  }
  /// Coefficients of each species and channel block, one number per row of the polynomial.
  std::vector<Lanes> merged(const Pointers& weights) const {
    std::vector<Lanes> result(static_cast<std::size_t>(config_.n_species * blocks() * polynomial_.n_rows()));
    std::vector<double> one(static_cast<std::size_t>(polynomial_.n_rows() * config_.channels));
    for (std::int64_t z = 0; z < config_.n_species; ++z) {
      polynomial_.merge(weights.data(), z, one.data());
      for (std::int64_t row = 0; row < polynomial_.n_rows(); ++row) {
        for (std::int64_t c = 0; c < config_.channels; ++c) {
          result[(z * blocks() + c / kLanes) * polynomial_.n_rows() + row].lane[c % kLanes] =
              one[row * config_.channels + c];
        }
      }
    }
    return result;
  }
  /// The coefficients as numbers N. @param own  Memory for them where they are not those of the kernel.
  template <class N>
  const N* coefficients(const sdk::Run& run, std::vector<N>& own) const {
    if constexpr (std::is_same_v<N, Lanes>) {
      return coefficients_.data();
    } else {
      own.assign(coefficients_.begin(), coefficients_.end());
      Pointers weights;
      std::int64_t longest = 0;
      for (std::size_t t = 0; t < config_.targets.size(); ++t) {
        for (int nu = 1; nu <= config_.correlation; ++nu) {
          weights.push_back(this->read(run.parameters_t, config_.w_index(t, nu)));
          longest = std::max(longest, config_.n_paths[t][static_cast<std::size_t>(nu - 1)]);
        }
      }
      if (std::all_of(weights.begin(), weights.end(), [](const T* w) { return w == nullptr; })) return own.data();
      const std::vector<T> zeros(static_cast<std::size_t>(config_.n_species * longest * config_.channels), T(0));
      std::replace(weights.begin(), weights.end(), static_cast<const T*>(nullptr), zeros.data());
      const std::vector<Lanes> tangents = merged(weights);
      for (std::size_t i = 0; i < own.size(); ++i) own[i].tangent = tangents[i];
      return own.data();
    }
  }

  template <class N>
  struct Local {
    N *x, *components, *grad_x, *rows, *paths;
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
  template <class N>
  std::vector<Local<N>> locals(sdk::Scratch& scratch, bool sums) const {
    std::vector<Local<N>> result;
    for (std::int64_t i = 0; i < kMostChunks; ++i) {
      Local<N> local{};
      local.x = scratch.take<N>(config_.dim);
      local.components = scratch.take<N>(n_components());
      local.grad_x = scratch.take<N>(config_.dim);
      if (sums) local.rows = scratch.take<N>(polynomial_.n_rows());
      if (sums) local.paths = scratch.take<N>(n_paths());
      result.push_back(local);
    }
    return result;
  }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    scratch.take<std::int64_t>(extents[sdk::Axis::rows] + 2 * config_.n_species + 1);
    locals<Lanes>(scratch, pass == sdk::Pass::backward);
  }
  void plan_tangent(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    scratch.take<std::int64_t>(extents[sdk::Axis::rows] + 2 * config_.n_species + 1);
    locals<Dual<Lanes>>(scratch, pass == sdk::Pass::backward_tangent);
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

  /// A channel block of row n of x, [channels][dim], to lanes; channels past the last are 0.
  template <class N>
  void load_x(const ReadPair<T>& x, std::int64_t n, std::int64_t block, N* to) const {
    std::fill_n(to, config_.dim, N());
    for (std::int64_t c = 0; c < lanes_of(block); ++c) {
      const std::int64_t channel = n * config_.channels + block * kLanes + c;
      for (std::int64_t i = 0; i < config_.dim; ++i) load(x, channel * config_.dim + i, c, to[i]);
    }
  }
  /// Calls f(component, its place in the output, channel) for a channel block of row n.
  template <class F>
  void for_each_output(std::int64_t n, std::int64_t block, const F& f) const {
    for (std::size_t m = 0; m < polynomial_.components.size(); ++m) {
      const auto [offset, stride] = polynomial_.components[m];
      for (std::int64_t c = 0; c < lanes_of(block); ++c) {
        f(m, n * config_.out_dim() + offset + (block * kLanes + c) * stride, c);
      }
    }
  }
  template <class N>
  void load_components(const ReadPair<T>& g, std::int64_t n, std::int64_t block, N* components) const {
    std::fill_n(components, polynomial_.components.size(), N());
    for_each_output(n, block, [&](auto m, auto place, auto c) { load(g, place, c, components[m]); });
  }
  /// The product of the factors of a monomial but the one at position `skip`; -1: of all.
  template <class N>
  static N product(const sdk::SymmetricPolynomial::Monomial& monomial, int skip, N result, const N* x) {
    for (int position = 0; position < monomial.degree; ++position) {
      if (position != skip) result *= x[monomial.factors[static_cast<std::size_t>(position)]];
    }
    return result;
  }

  void forward(const sdk::Run& run, sdk::Scratch& scratch) override { evaluate<Lanes>(run, scratch); }
  void forward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override { evaluate<Dual<Lanes>>(run, scratch); }
  void backward(const sdk::Run& run, sdk::Scratch& scratch) override { gradients<Lanes>(run, scratch); }
  void backward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override { gradients<Dual<Lanes>>(run, scratch); }

  template <class N>
  void evaluate(const sdk::Run& run, sdk::Scratch& scratch) {
    const Rows rows = this->rows(run, scratch);
    const ReadPair<T> x = this->read(run.inputs, run.inputs_t, 0);
    const std::int32_t* species = this->read_indices(run.inputs, 1);
    const WritePair<T> out = this->write(run.outputs, run.outputs_t, 0);
    std::vector<N> own;
    const N* const all = coefficients<N>(run, own);
    for_each_block<N>(run, scratch, rows, false, [&](const Local<N>& local, std::int64_t n, std::int64_t block) {
      load_x(x, n, block, local.x);
      std::fill_n(local.components, polynomial_.components.size(), N());
      const N* a = all + (species[n] * blocks() + block) * polynomial_.n_rows();
      for (std::size_t i = 0; i < polynomial_.monomials.size(); ++i) {
        const N p = product(polynomial_.monomials[i], -1, N(Lanes::ones()), local.x);
        for (std::int64_t r = polynomial_.row_begin[i]; r < polynomial_.row_begin[i + 1]; ++r, ++a) {
          local.components[polynomial_.rows[static_cast<std::size_t>(r)].component] += *a * p;
        }
      }
      for_each_output(n, block, [&](auto m, auto place, auto c) { store(out, place, c, local.components[m]); });
    });
  }
  /// Calls body(memory, row, channel block), rows of one species after each other, block by block.
  template <class N, class Body>
  void for_each_block(const sdk::Run& run, sdk::Scratch& scratch, const Rows& rows, bool sums, const Body& body) {
    constexpr std::int64_t kTile = 16;
    const std::vector<Local<N>> all = locals<N>(scratch, sums);
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

  template <class N>
  void gradients(const sdk::Run& run, sdk::Scratch& scratch) {
    const Rows rows = this->rows(run, scratch);
    if (const WritePair<T> gx = this->write(run.grad_inputs, run.grad_inputs_t, 0)) {
      sdk::Scratch own = scratch;
      grad_x<N>(run, rows, gx, own);
    }
    std::vector<WritePair<T>> targets;
    bool any = false;
    for (std::size_t t = 0; t < config_.targets.size(); ++t) {
      for (int nu = 1; nu <= config_.correlation; ++nu) {
        targets.push_back(this->write(run.grad_parameters, run.grad_parameters_t, config_.w_index(t, nu)));
        any = any || targets.back();
      }
    }
    if (any) grad_weights<N>(run, rows, targets, scratch);
  }

  template <class N>
  void grad_x(const sdk::Run& run, const Rows& rows, const WritePair<T>& gx, sdk::Scratch& scratch) {
    const ReadPair<T> x = this->read(run.inputs, run.inputs_t, 0),
                      g = this->read(run.grad_outputs, run.grad_outputs_t, 0);
    const std::int32_t* species = this->read_indices(run.inputs, 1);
    std::vector<N> own;
    const N* const all = coefficients<N>(run, own);
    for_each_block<N>(run, scratch, rows, true, [&](const Local<N>& local, std::int64_t n, std::int64_t block) {
      load_x(x, n, block, local.x);
      load_components(g, n, block, local.components);
      std::fill_n(local.grad_x, config_.dim, N());
      const N* a = all + (species[n] * blocks() + block) * polynomial_.n_rows();
      for (std::size_t i = 0; i < polynomial_.monomials.size(); ++i) {
        const auto& monomial = polynomial_.monomials[i];
        N head{};  // gradient of the value of the monomial
        for (std::int64_t r = polynomial_.row_begin[i]; r < polynomial_.row_begin[i + 1]; ++r, ++a) {
          head += *a * local.components[polynomial_.rows[static_cast<std::size_t>(r)].component];
        }
        for (int skip = 0; skip < monomial.degree; ++skip) {
          local.grad_x[monomial.factors[static_cast<std::size_t>(skip)]] += product(monomial, skip, head, local.x);
        }
      }
      for (std::int64_t c = 0; c < lanes_of(block); ++c) {
        const std::int64_t channel = n * config_.channels + block * kLanes + c;
        for (std::int64_t i = 0; i < config_.dim; ++i) store(gx, channel * config_.dim + i, c, local.grad_x[i]);
      }
    });
  }

  /// One task sums one species and channel block over all rows of that species, first per coefficient of the
  /// polynomial, then per path, so nothing has to be joined.
  template <class N>
  void grad_weights(const sdk::Run& run, const Rows& rows, const std::vector<WritePair<T>>& targets,
                    sdk::Scratch& scratch) {
    const ReadPair<T> x = this->read(run.inputs, run.inputs_t, 0),
                      g = this->read(run.grad_outputs, run.grad_outputs_t, 0);
    const std::vector<Local<N>> all = locals<N>(scratch, true);
    const std::int64_t n_tasks = config_.n_species * blocks();
    this->workers_.run(run.threads, std::min(n_tasks, kMostChunks), [&](std::int64_t lane) {
      const Local<N>& local = all[static_cast<std::size_t>(lane)];
      for (std::int64_t task = lane; task < n_tasks; task += kMostChunks) {
        const std::int64_t z = task / blocks(), block = task % blocks();
        std::fill_n(local.rows, polynomial_.n_rows(), N());
        for (std::int64_t position = rows.begin[z]; position < rows.begin[z + 1]; ++position) {
          const std::int64_t n = rows.order[position];
          load_x(x, n, block, local.x);
          load_components(g, n, block, local.components);
          for (std::size_t i = 0; i < polynomial_.monomials.size(); ++i) {
            const N p = product(polynomial_.monomials[i], -1, N(Lanes::ones()), local.x);
            for (std::int64_t r = polynomial_.row_begin[i]; r < polynomial_.row_begin[i + 1]; ++r) {
              local.rows[r] += p * local.components[polynomial_.rows[static_cast<std::size_t>(r)].component];
            }
          }
        }
        store_weights(local, z, block, targets);
      }
    });
  }
  template <class N>
  void store_weights(const Local<N>& local, std::int64_t z, std::int64_t block,
                     const std::vector<WritePair<T>>& targets) const {
    std::fill_n(local.paths, n_paths(), N());
    std::vector<std::int64_t> first(targets.size(), 0);  // of each weight tensor in local.paths
    for (std::size_t t = 1; t < first.size(); ++t) first[t] = first[t - 1] + polynomial_.n_paths[t - 1];
    for (std::int64_t r = 0; r < polynomial_.n_rows(); ++r) {
      const auto row = static_cast<std::size_t>(r);
      for (std::int64_t i = polynomial_.term_begin[row]; i < polynomial_.term_begin[row + 1]; ++i) {
        const auto& term = polynomial_.terms[static_cast<std::size_t>(i)];
        local.paths[first[static_cast<std::size_t>(polynomial_.rows[row].tensor)] + term.path] +=
            times(term.coefficient, local.rows[r]);
      }
    }
    for (std::size_t t = 0; t < targets.size(); ++t) {
      for (std::int64_t k = 0; k < polynomial_.n_paths[t]; ++k) {
        for (std::int64_t c = 0; c < lanes_of(block); ++c) {
          store(targets[t], (z * polynomial_.n_paths[t] + k) * config_.channels + block * kLanes + c, c,
                local.paths[first[t] + k]);
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
