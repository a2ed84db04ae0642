#include <algorithm>
#include <array>
#include <map>

#include "cpu/species.hpp"
#include "fastpath/sdk/symmetric.hpp"
#include "ops.hpp"
#include "product.hpp"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu_simd/symmetric_contraction.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h, which sets what they are compiled for.
#include "hwy/highway.h"

#ifndef FASTPATH_CPU_SIMD_SYMMETRIC_CONTRACTION
#define FASTPATH_CPU_SIMD_SYMMETRIC_CONTRACTION
namespace cpu_simd {

/// The polynomial of an output component, nested: sum_i x_i (a_i + sum_j x_j (a_ij + sum_k x_k a_ijk)), which takes one
/// multiplication a coefficient. All components share the arrays, so a tree is a range of roots.
struct NestedPolynomial {
  static constexpr int kDepth = sdk::SymmetricPolynomial::kMaxDegree;
  /// Channels that are worked on together, in double: hundreds of monomials of a channel may cancel.
  static constexpr std::int64_t kBlock = 8;
  /// Atoms of one species that share a reading of the coefficients.
  static constexpr std::int64_t kAtoms = 4;

  struct Node {
    std::int32_t factor;       ///< Which component of x.
    std::int32_t coefficient;  ///< Its place among the coefficients.
    std::int32_t begin, end;   ///< Its children, one level down.
  };
  std::array<std::vector<Node>, kDepth> levels;
  std::vector<std::pair<std::int32_t, std::int32_t>> roots;  ///< Per output component.
  std::vector<std::int64_t> row_of;  ///< Per coefficient: its row in the polynomial; -1: it is always 0.

  void build(const sdk::SymmetricPolynomial& polynomial);
  std::int64_t size() const { return static_cast<std::int64_t>(row_of.size()); }
};

/// kAtoms atoms of one species and a block of channels. Arrays are [..][atom][channel].
struct ContractionBlock {
  const double* coefficients;  ///< [size()][kBlock]
  const double* x;             ///< [dim][kAtoms][kBlock]
  double* components;          ///< [components][kAtoms][kBlock]: written by forward, gradients for the others.
  double* grad_x;              ///< [dim][kAtoms][kBlock], zero at first.
  double* grad_coefficients;   ///< [size()][kBlock], added to.
};

using ContractionFunction = void(const NestedPolynomial& polynomial, const ContractionBlock& block);

}  // namespace cpu_simd
#endif

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Doubles = hn::CappedTag<double, static_cast<std::size_t>(NestedPolynomial::kBlock)>;
using DoubleVector = hn::Vec<Doubles>;

/// One vector of each atom.
struct Atoms {
  static constexpr int kCount = static_cast<int>(NestedPolynomial::kAtoms);
  DoubleVector v[kCount];
};
HWY_INLINE Atoms load(const double* from) {
  const Doubles d;
  Atoms result;
  for (int a = 0; a < Atoms::kCount; ++a) result.v[a] = hn::LoadU(d, from + a * NestedPolynomial::kBlock);
  return result;
}
HWY_INLINE Atoms broadcast(DoubleVector value) {
  Atoms result;
  for (int a = 0; a < Atoms::kCount; ++a) result.v[a] = value;
  return result;
}
HWY_INLINE Atoms multiply(const Atoms& x, const Atoms& y) {
  Atoms result;
  for (int a = 0; a < Atoms::kCount; ++a) result.v[a] = hn::Mul(x.v[a], y.v[a]);
  return result;
}
HWY_INLINE void multiply_add(const Atoms& x, const Atoms& y, Atoms& sum) {
  for (int a = 0; a < Atoms::kCount; ++a) sum.v[a] = hn::MulAdd(x.v[a], y.v[a], sum.v[a]);
}
HWY_INLINE void add_to(const Atoms& x, const Atoms& y, double* to) {
  const Doubles d;
  for (int a = 0; a < Atoms::kCount; ++a) {
    double* const at = to + a * NestedPolynomial::kBlock;
    hn::StoreU(hn::MulAdd(x.v[a], y.v[a], hn::LoadU(d, at)), d, at);
  }
}

constexpr std::int64_t kStride = NestedPolynomial::kAtoms * NestedPolynomial::kBlock;

/// Adds the sum over nodes begin..end-1 of a level of x_factor times what is nested in them.
template <int kLevel>
HWY_INLINE void add_nested(const NestedPolynomial& p, const ContractionBlock& block, std::int64_t at,
                           std::int32_t begin, std::int32_t end, Atoms& sum) {
  const Doubles d;
  for (std::int32_t n = begin; n < end; ++n) {
    const NestedPolynomial::Node& node = p.levels[kLevel][static_cast<std::size_t>(n)];
    Atoms inner = broadcast(hn::LoadU(d, block.coefficients + node.coefficient * NestedPolynomial::kBlock + at));
    if constexpr (kLevel + 1 < NestedPolynomial::kDepth) {
      add_nested<kLevel + 1>(p, block, at, node.begin, node.end, inner);
    }
    multiply_add(load(block.x + node.factor * kStride + at), inner, sum);
  }
}

/// Adds to the gradient of x: `gradient` is that of the sum that add_nested() adds to.
template <int kLevel>
HWY_INLINE void add_gradients(const NestedPolynomial& p, const ContractionBlock& block, std::int64_t at,
                              std::int32_t begin, std::int32_t end, const Atoms& gradient) {
  const Doubles d;
  for (std::int32_t n = begin; n < end; ++n) {
    const NestedPolynomial::Node& node = p.levels[kLevel][static_cast<std::size_t>(n)];
    Atoms inner = broadcast(hn::LoadU(d, block.coefficients + node.coefficient * NestedPolynomial::kBlock + at));
    if constexpr (kLevel + 1 < NestedPolynomial::kDepth) {
      if (node.begin < node.end) {
        add_nested<kLevel + 1>(p, block, at, node.begin, node.end, inner);
        add_gradients<kLevel + 1>(p, block, at, node.begin, node.end,
                                  multiply(gradient, load(block.x + node.factor * kStride + at)));
      }
    }
    add_to(gradient, inner, block.grad_x + node.factor * kStride + at);
  }
}

/// Adds to the gradients of the coefficients: `product` is the gradient of the output times the factors so far.
template <int kLevel>
HWY_INLINE void add_coefficients(const NestedPolynomial& p, const ContractionBlock& block, std::int64_t at,
                                 std::int32_t begin, std::int32_t end, const Atoms& product) {
  const Doubles d;
  for (std::int32_t n = begin; n < end; ++n) {
    const NestedPolynomial::Node& node = p.levels[kLevel][static_cast<std::size_t>(n)];
    const Atoms here = multiply(product, load(block.x + node.factor * kStride + at));
    double* const to = block.grad_coefficients + node.coefficient * NestedPolynomial::kBlock + at;
    auto sum = hn::LoadU(d, to);
    for (int a = 0; a < Atoms::kCount; ++a) sum = hn::Add(sum, here.v[a]);
    hn::StoreU(sum, d, to);
    if constexpr (kLevel + 1 < NestedPolynomial::kDepth) {
      add_coefficients<kLevel + 1>(p, block, at, node.begin, node.end, here);
    }
  }
}

template <class Body>
HWY_INLINE void for_components(const NestedPolynomial& p, const Body& body) {
  constexpr std::int64_t kLanes = hn::MaxLanes(Doubles());
  for (std::int64_t at = 0; at < NestedPolynomial::kBlock; at += kLanes) {
    for (std::size_t c = 0; c < p.roots.size(); ++c) {
      body(at, p.roots[c].first, p.roots[c].second, static_cast<std::int64_t>(c) * kStride + at);
    }
  }
}

inline void contraction_forward(const NestedPolynomial& p, const ContractionBlock& block) {
  const Doubles d;
  for_components(p, [&](std::int64_t at, std::int32_t begin, std::int32_t end, std::int64_t component) HWY_ATTR {
    Atoms sum = broadcast(hn::Zero(d));
    add_nested<0>(p, block, at, begin, end, sum);
    for (int a = 0; a < Atoms::kCount; ++a) {
      hn::StoreU(sum.v[a], d, block.components + component + a * NestedPolynomial::kBlock);
    }
  });
}
inline void contraction_grad_x(const NestedPolynomial& p, const ContractionBlock& block) {
  for_components(p, [&](std::int64_t at, std::int32_t begin, std::int32_t end, std::int64_t component)
                        HWY_ATTR { add_gradients<0>(p, block, at, begin, end, load(block.components + component)); });
}
inline void contraction_grad_coefficients(const NestedPolynomial& p, const ContractionBlock& block) {
  for_components(p, [&](std::int64_t at, std::int32_t begin, std::int32_t end, std::int64_t component) HWY_ATTR {
    add_coefficients<0>(p, block, at, begin, end, load(block.components + component));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cpu_simd {

void NestedPolynomial::build(const sdk::SymmetricPolynomial& polynomial) {
  // Per component, its monomials as paths in a tree; a map keeps children together and in order.
  struct Tree {
    std::int64_t row = -1;
    std::map<std::int32_t, Tree> children;
  };
  std::vector<Tree> trees(polynomial.components.size());
  for (std::size_t m = 0; m < polynomial.monomials.size(); ++m) {
    const auto& monomial = polynomial.monomials[m];
    for (std::int64_t r = polynomial.row_begin[m]; r < polynomial.row_begin[m + 1]; ++r) {
      Tree* at = &trees[static_cast<std::size_t>(polynomial.rows[static_cast<std::size_t>(r)].component)];
      for (int i = 0; i < monomial.degree; ++i) at = &at->children[monomial.factors[static_cast<std::size_t>(i)]];
      at->row = r;
    }
  }
  levels = {};
  roots.clear();
  row_of.clear();
  // Coefficients lie in the order in which they are read; children of a node lie next to each other.
  const auto add = [&](const auto& self, const Tree& tree, std::size_t level) -> std::pair<std::int32_t, std::int32_t> {
    if (tree.children.empty()) return {0, 0};
    const auto begin = static_cast<std::int32_t>(levels[level].size());
    for (const auto& [factor, child] : tree.children) levels[level].push_back({factor, 0, 0, 0});
    const auto end = static_cast<std::int32_t>(levels[level].size());
    std::int32_t n = begin;
    for (const auto& [factor, child] : tree.children) {
      const auto place = static_cast<std::int32_t>(row_of.size());
      row_of.push_back(child.row);
      const auto range =
          level + 1 < kDepth ? self(self, child, level + 1) : std::pair<std::int32_t, std::int32_t>{0, 0};
      levels[level][static_cast<std::size_t>(n++)] = {factor, place, range.first, range.second};
    }
    return {begin, end};
  };
  for (const Tree& tree : trees) roots.push_back(add(add, tree, 0));
}

namespace {

template <class T>
class SymmetricContraction final : public CpuKernel<T> {
 public:
  explicit SymmetricContraction(const sdk::SymmetricContractionConfig& config)
      : CpuKernel<T>(config.signature()), config_(config) {}

 private:
  static constexpr std::int64_t kBlock = NestedPolynomial::kBlock, kAtoms = NestedPolynomial::kAtoms,
                                kPair = kAtoms * kBlock;
  static constexpr std::int64_t kMostChunks = 32;

  std::int64_t blocks() const { return (config_.channels + kBlock - 1) / kBlock; }
  std::int64_t channels_of(std::int64_t block) const { return std::min(kBlock, config_.channels - block * kBlock); }
  std::int64_t n_components() const { return static_cast<std::int64_t>(polynomial_.components.size()); }
  double* coefficients(std::int64_t species, std::int64_t block) const {
    return coefficients_.data() + (species * blocks() + block) * nested_.size() * kBlock;
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
    nested_.build(polynomial_);
    coefficients_.resize(config_.n_species * blocks() * nested_.size() * kBlock);
    std::fill_n(coefficients_.data(), config_.n_species * blocks() * nested_.size() * kBlock, 0.0);
    std::vector<double> merged(static_cast<std::size_t>(polynomial_.n_rows() * config_.channels));
    for (std::int64_t z = 0; z < config_.n_species; ++z) {
      polynomial_.merge(weights.data(), z, merged.data());
      for (std::int64_t i = 0; i < nested_.size(); ++i) {
        const std::int64_t row = nested_.row_of[static_cast<std::size_t>(i)];
        for (std::int64_t c = 0; row >= 0 && c < config_.channels; ++c) {
          coefficients(z, c / kBlock)[i * kBlock + c % kBlock] =
              merged[static_cast<std::size_t>(row * config_.channels + c)];
        }
      }
    }
  }

  struct Local {
    double *x, *components, *grad_x, *grad_coefficients, *rows;
  };
  std::vector<Local> locals(sdk::Scratch& scratch, bool backward) const {
    std::vector<Local> result;
    for (std::int64_t i = 0; i < kMostChunks; ++i) {
      Local local{};
      local.x = scratch.take<double>(config_.dim * kPair);
      local.components = scratch.take<double>(n_components() * kPair);
      local.grad_x = scratch.take<double>(backward ? config_.dim * kPair : 0);
      local.grad_coefficients = scratch.take<double>(backward ? nested_.size() * kBlock : 0);
      local.rows = scratch.take<double>(backward ? polynomial_.n_rows() * config_.channels : 0);
      result.push_back(local);
    }
    return result;
  }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    scratch.take<std::int64_t>(extents[sdk::Axis::rows] + 2 * config_.n_species + 1);
    locals(scratch, pass == sdk::Pass::backward);
  }

  /// Rows in the order of their species.
  struct Order {
    std::int64_t n;
    const std::int64_t *row, *begin;
  };
  Order order(const sdk::Run& run, sdk::Scratch& scratch) const {
    const std::int64_t n = run.inputs[0].size(0);
    std::int64_t* row = scratch.take<std::int64_t>(n + 2 * config_.n_species + 1);
    std::int64_t* begin = row + n;
    fastpath_cpu::group_by_species(n, config_.n_species, this->read_indices(run.inputs, 1), row, begin,
                                   begin + config_.n_species + 1);
    return {n, row, begin};
  }

  /// Some rows of x, [channels][dim] each, to [dim][atom][channel]; what is not there is 0.
  void load_x(const T* x, const std::int64_t* row, std::int64_t atoms, std::int64_t block, double* to) const {
    std::fill_n(to, config_.dim * kPair, 0.0);
    for (std::int64_t a = 0; a < atoms; ++a) {
      const T* from = x + (row[a] * config_.channels + block * kBlock) * config_.dim;
      for (std::int64_t c = 0; c < channels_of(block); ++c, from += config_.dim) {
        for (std::int64_t i = 0; i < config_.dim; ++i) to[i * kPair + a * kBlock + c] = static_cast<double>(from[i]);
      }
    }
  }
  void load_components(const T* g, const std::int64_t* row, std::int64_t atoms, std::int64_t block, double* to) const {
    std::fill_n(to, n_components() * kPair, 0.0);
    for (std::int64_t m = 0; m < n_components(); ++m) {
      const auto [offset, stride] = polynomial_.components[static_cast<std::size_t>(m)];
      for (std::int64_t a = 0; a < atoms; ++a) {
        const T* const from = g + row[a] * config_.out_dim() + offset + block * kBlock * stride;
        for (std::int64_t c = 0; c < channels_of(block); ++c) {
          to[m * kPair + a * kBlock + c] = static_cast<double>(from[c * stride]);
        }
      }
    }
  }

  /// Calls body(memory, rows, how many, species, channel block): atoms of one species, up to kAtoms.
  template <class Body>
  void for_each_block(const sdk::Run& run, const std::vector<Local>& all, const Order& order, const Body& body) {
    // Parts of as many rows, cut at whole groups of atoms of each species where the cut depends on nothing but counts.
    const Chunks chunks(order.n, 2 * kAtoms, kMostChunks);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      std::int64_t species = 0;
      for (std::int64_t i = chunks.begin(chunk); i < chunks.end(chunk);) {
        while (order.begin[species + 1] <= i) ++species;
        const std::int64_t atoms = std::min({kAtoms, chunks.end(chunk) - i, order.begin[species + 1] - i});
        for (std::int64_t block = 0; block < blocks(); ++block) {
          body(all[static_cast<std::size_t>(chunk)], order.row + i, atoms, species, block);
        }
        i += atoms;
      }
    });
  }

  void forward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const Order order = this->order(run, scratch);
    const std::vector<Local> all = locals(scratch, false);
    const T* x = this->read(run.inputs, 0);
    T* out = this->write(run.outputs, 0);
    for_each_block(
        run, all, order,
        [&](const Local& local, const std::int64_t* row, std::int64_t atoms, std::int64_t species, std::int64_t block) {
          load_x(x, row, atoms, block, local.x);
          forward_(nested_, {coefficients(species, block), local.x, local.components, nullptr, nullptr});
          for (std::int64_t m = 0; m < n_components(); ++m) {
            const auto [offset, stride] = polynomial_.components[static_cast<std::size_t>(m)];
            for (std::int64_t a = 0; a < atoms; ++a) {
              T* const to = out + row[a] * config_.out_dim() + offset + block * kBlock * stride;
              for (std::int64_t c = 0; c < channels_of(block); ++c) {
                to[c * stride] = static_cast<T>(local.components[m * kPair + a * kBlock + c]);
              }
            }
          }
        });
  }

  void backward(const sdk::Run& run, sdk::Scratch& scratch) override {
    const Order order = this->order(run, scratch);
    const std::vector<Local> all = locals(scratch, true);
    if (run.grad_inputs[0].present()) grad_x(run, all, order);
    std::vector<T*> targets;
    bool any = false;
    for (std::size_t t = 0; t < config_.targets.size(); ++t) {
      for (int nu = 1; nu <= config_.correlation; ++nu) {
        targets.push_back(this->write(run.grad_parameters, config_.w_index(t, nu)));
        any = any || targets.back() != nullptr;
      }
    }
    if (any) grad_weights(run, all, order, targets);
  }

  void grad_x(const sdk::Run& run, const std::vector<Local>& all, const Order& order) {
    const T *x = this->read(run.inputs, 0), *g = this->read(run.grad_outputs, 0);
    T* gx = this->write(run.grad_inputs, 0);
    for_each_block(
        run, all, order,
        [&](const Local& local, const std::int64_t* row, std::int64_t atoms, std::int64_t species, std::int64_t block) {
          load_x(x, row, atoms, block, local.x);
          load_components(g, row, atoms, block, local.components);
          std::fill_n(local.grad_x, config_.dim * kPair, 0.0);
          grad_x_(nested_, {coefficients(species, block), local.x, local.components, local.grad_x, nullptr});
          for (std::int64_t a = 0; a < atoms; ++a) {
            T* to = gx + (row[a] * config_.channels + block * kBlock) * config_.dim;
            for (std::int64_t c = 0; c < channels_of(block); ++c, to += config_.dim) {
              for (std::int64_t i = 0; i < config_.dim; ++i)
                to[i] = static_cast<T>(local.grad_x[i * kPair + a * kBlock + c]);
            }
          }
        });
  }

  /// One task sums one species over all of its rows, so nothing has to be joined.
  void grad_weights(const sdk::Run& run, const std::vector<Local>& all, const Order& order,
                    const std::vector<T*>& targets) {
    const T *x = this->read(run.inputs, 0), *g = this->read(run.grad_outputs, 0);
    this->workers_.run(run.threads, std::min(config_.n_species, kMostChunks), [&](std::int64_t task) {
      const Local& local = all[static_cast<std::size_t>(task)];
      for (std::int64_t z = task; z < config_.n_species; z += kMostChunks) {
        for (std::int64_t block = 0; block < blocks(); ++block) {
          std::fill_n(local.grad_coefficients, nested_.size() * kBlock, 0.0);
          for (std::int64_t i = order.begin[z]; i < order.begin[z + 1]; i += kAtoms) {
            const std::int64_t atoms = std::min(kAtoms, order.begin[z + 1] - i);
            load_x(x, order.row + i, atoms, block, local.x);
            load_components(g, order.row + i, atoms, block, local.components);
            grad_coefficients_(nested_, {nullptr, local.x, local.components, nullptr, local.grad_coefficients});
          }
          for (std::int64_t i = 0; i < nested_.size(); ++i) {
            const std::int64_t row = nested_.row_of[static_cast<std::size_t>(i)];
            if (row < 0) continue;
            std::copy_n(local.grad_coefficients + i * kBlock, channels_of(block),
                        local.rows + row * config_.channels + block * kBlock);
          }
        }
        polynomial_.unmerge(local.rows, z, targets.data());
      }
    });
  }

  sdk::SymmetricContractionConfig config_;
  sdk::SymmetricPolynomial polynomial_;
  NestedPolynomial nested_;
  AlignedArray<double> coefficients_;
  ContractionFunction* forward_ = FASTPATH_FOR_TARGET(ContractionFunction, contraction_forward);
  ContractionFunction* grad_x_ = FASTPATH_FOR_TARGET(ContractionFunction, contraction_grad_x);
  ContractionFunction* grad_coefficients_ = FASTPATH_FOR_TARGET(ContractionFunction, contraction_grad_coefficients);
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
          create<SymmetricContraction, Config>, kPlainPasses};
}

}  // namespace cpu_simd
#endif  // HWY_ONCE
