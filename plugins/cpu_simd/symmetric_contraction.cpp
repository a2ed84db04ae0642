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
struct ContractionArrays {
  const double* coefficients;  ///< [size()][kBlock]
  const double* x;             ///< [dim][kAtoms][kBlock]
  double* components;          ///< [components][kAtoms][kBlock]: written by forward, gradients for the others.
  double* grad_x;              ///< [dim][kAtoms][kBlock], zero at first.
  double* grad_coefficients;   ///< [size()][kBlock], added to.
};
struct ContractionBlock {
  ContractionArrays value, tangent;  ///< Tangents only for passes with them; coefficients without one are null.
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
HWY_INLINE Atoms load_atoms(const double* from) {
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
HWY_INLINE void store_atoms(const Atoms& x, double* to) {
  const Doubles d;
  for (int a = 0; a < Atoms::kCount; ++a) hn::StoreU(x.v[a], d, to + a * NestedPolynomial::kBlock);
}
/// Adds the sum over atoms.
HWY_INLINE void add_atoms(const Atoms& x, double* to) {
  const Doubles d;
  auto sum = hn::LoadU(d, to);
  for (int a = 0; a < Atoms::kCount; ++a) sum = hn::Add(sum, x.v[a]);
  hn::StoreU(sum, d, to);
}

/// Values with tangents.
struct DualAtoms {
  Atoms value, tangent;
};
HWY_INLINE DualAtoms multiply(const DualAtoms& x, const DualAtoms& y) {
  DualAtoms result{multiply(x.value, y.value), multiply(x.value, y.tangent)};
  multiply_add(x.tangent, y.value, result.tangent);
  return result;
}
HWY_INLINE void multiply_add(const DualAtoms& x, const DualAtoms& y, DualAtoms& sum) {
  multiply_add(x.value, y.value, sum.value);
  multiply_add(x.tangent, y.value, sum.tangent);
  multiply_add(x.value, y.tangent, sum.tangent);
}

/// Access to the arrays of a block as numbers N: Atoms, or DualAtoms.
template <class N>
struct Access;
template <>
struct Access<Atoms> {
  static HWY_INLINE Atoms zero() { return broadcast(hn::Zero(Doubles())); }
  static HWY_INLINE Atoms coefficient(const ContractionBlock& block, std::int64_t at) {
    return broadcast(hn::LoadU(Doubles(), block.value.coefficients + at));
  }
  static HWY_INLINE Atoms x(const ContractionBlock& block, std::int64_t at) { return load_atoms(block.value.x + at); }
  static HWY_INLINE Atoms component(const ContractionBlock& block, std::int64_t at) {
    return load_atoms(block.value.components + at);
  }
  static HWY_INLINE void set_component(const ContractionBlock& block, std::int64_t at, const Atoms& sum) {
    store_atoms(sum, block.value.components + at);
  }
  static HWY_INLINE void add_grad_x(const ContractionBlock& block, std::int64_t at, const Atoms& a, const Atoms& b) {
    Atoms sum = load_atoms(block.value.grad_x + at);
    multiply_add(a, b, sum);
    store_atoms(sum, block.value.grad_x + at);
  }
  static HWY_INLINE void add_grad_coefficient(const ContractionBlock& block, std::int64_t at, const Atoms& term) {
    add_atoms(term, block.value.grad_coefficients + at);
  }
};
template <>
struct Access<DualAtoms> {
  static HWY_INLINE DualAtoms zero() { return {Access<Atoms>::zero(), Access<Atoms>::zero()}; }
  static HWY_INLINE DualAtoms coefficient(const ContractionBlock& block, std::int64_t at) {
    const Doubles d;
    const double* const tangent = block.tangent.coefficients;
    return {broadcast(hn::LoadU(d, block.value.coefficients + at)),
            broadcast(tangent == nullptr ? hn::Zero(d) : hn::LoadU(d, tangent + at))};
  }
  static HWY_INLINE DualAtoms x(const ContractionBlock& block, std::int64_t at) {
    return {load_atoms(block.value.x + at), load_atoms(block.tangent.x + at)};
  }
  static HWY_INLINE DualAtoms component(const ContractionBlock& block, std::int64_t at) {
    return {load_atoms(block.value.components + at), load_atoms(block.tangent.components + at)};
  }
  static HWY_INLINE void set_component(const ContractionBlock& block, std::int64_t at, const DualAtoms& sum) {
    store_atoms(sum.value, block.value.components + at);
    store_atoms(sum.tangent, block.tangent.components + at);
  }
  static HWY_INLINE void add_grad_x(const ContractionBlock& block, std::int64_t at, const DualAtoms& a,
                                    const DualAtoms& b) {
    DualAtoms sum{load_atoms(block.value.grad_x + at), load_atoms(block.tangent.grad_x + at)};
    multiply_add(a, b, sum);
    store_atoms(sum.value, block.value.grad_x + at);
    store_atoms(sum.tangent, block.tangent.grad_x + at);
  }
  static HWY_INLINE void add_grad_coefficient(const ContractionBlock& block, std::int64_t at, const DualAtoms& term) {
    add_atoms(term.value, block.value.grad_coefficients + at);
    add_atoms(term.tangent, block.tangent.grad_coefficients + at);
  }
};

constexpr std::int64_t kStride = NestedPolynomial::kAtoms * NestedPolynomial::kBlock;

/// Adds the sum over nodes begin..end-1 of a level of x_factor times what is nested in them.
template <int kLevel, class N>
HWY_INLINE void add_nested(const NestedPolynomial& p, const ContractionBlock& block, std::int64_t at,
                           std::int32_t begin, std::int32_t end, N& sum) {
  for (std::int32_t n = begin; n < end; ++n) {
    const NestedPolynomial::Node& node = p.levels[kLevel][static_cast<std::size_t>(n)];
    N inner = Access<N>::coefficient(block, node.coefficient * NestedPolynomial::kBlock + at);
    if constexpr (kLevel + 1 < NestedPolynomial::kDepth) {
      add_nested<kLevel + 1>(p, block, at, node.begin, node.end, inner);
    }
    multiply_add(Access<N>::x(block, node.factor * kStride + at), inner, sum);
  }
}

/// Adds to the gradient of x: `gradient` is that of the sum that add_nested() adds to.
template <int kLevel, class N>
HWY_INLINE void add_gradients(const NestedPolynomial& p, const ContractionBlock& block, std::int64_t at,
                              std::int32_t begin, std::int32_t end, const N& gradient) {
  for (std::int32_t n = begin; n < end; ++n) {
    const NestedPolynomial::Node& node = p.levels[kLevel][static_cast<std::size_t>(n)];
    N inner = Access<N>::coefficient(block, node.coefficient * NestedPolynomial::kBlock + at);
    if constexpr (kLevel + 1 < NestedPolynomial::kDepth) {
      if (node.begin < node.end) {
        add_nested<kLevel + 1>(p, block, at, node.begin, node.end, inner);
        add_gradients<kLevel + 1>(p, block, at, node.begin, node.end,
                                  multiply(gradient, Access<N>::x(block, node.factor * kStride + at)));
      }
    }
    Access<N>::add_grad_x(block, node.factor * kStride + at, gradient, inner);
  }
}

/// Adds to the gradients of the coefficients: `product` is the gradient of the output times the factors so far.
template <int kLevel, class N>
HWY_INLINE void add_coefficients(const NestedPolynomial& p, const ContractionBlock& block, std::int64_t at,
                                 std::int32_t begin, std::int32_t end, const N& product) {
  for (std::int32_t n = begin; n < end; ++n) {
    const NestedPolynomial::Node& node = p.levels[kLevel][static_cast<std::size_t>(n)];
    const N here = multiply(product, Access<N>::x(block, node.factor * kStride + at));
    Access<N>::add_grad_coefficient(block, node.coefficient * NestedPolynomial::kBlock + at, here);
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

template <class N>
void contraction_forward_of(const NestedPolynomial& p, const ContractionBlock& block) {
  for_components(p, [&](std::int64_t at, std::int32_t begin, std::int32_t end, std::int64_t component) HWY_ATTR {
    N sum = Access<N>::zero();
    add_nested<0>(p, block, at, begin, end, sum);
    Access<N>::set_component(block, component, sum);
  });
}
template <class N>
void contraction_grad_x_of(const NestedPolynomial& p, const ContractionBlock& block) {
  for_components(p, [&](std::int64_t at, std::int32_t begin, std::int32_t end, std::int64_t component) HWY_ATTR {
    add_gradients<0>(p, block, at, begin, end, Access<N>::component(block, component));
  });
}
template <class N>
void contraction_grad_coefficients_of(const NestedPolynomial& p, const ContractionBlock& block) {
  for_components(p, [&](std::int64_t at, std::int32_t begin, std::int32_t end, std::int64_t component) HWY_ATTR {
    add_coefficients<0>(p, block, at, begin, end, Access<N>::component(block, component));
  });
}

inline void contraction_forward(const NestedPolynomial& p, const ContractionBlock& block) {
  contraction_forward_of<Atoms>(p, block);
}
inline void contraction_grad_x(const NestedPolynomial& p, const ContractionBlock& block) {
  contraction_grad_x_of<Atoms>(p, block);
}
inline void contraction_grad_coefficients(const NestedPolynomial& p, const ContractionBlock& block) {
  contraction_grad_coefficients_of<Atoms>(p, block);
}
inline void contraction_forward_tangent(const NestedPolynomial& p, const ContractionBlock& block) {
  contraction_forward_of<DualAtoms>(p, block);
}
inline void contraction_grad_x_tangent(const NestedPolynomial& p, const ContractionBlock& block) {
  contraction_grad_x_of<DualAtoms>(p, block);
}
inline void contraction_grad_coefficients_tangent(const NestedPolynomial& p, const ContractionBlock& block) {
  contraction_grad_coefficients_of<DualAtoms>(p, block);
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
  /// Where those of a species and channel block start.
  std::int64_t first_coefficient(std::int64_t species, std::int64_t block) const {
    return (species * blocks() + block) * nested_.size() * kBlock;
  }

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
    nested_.build(polynomial_);
    merge(weights, coefficients_);
  }
  void merge(const Pointers& weights, AlignedArray<double>& coefficients) const {
    const std::int64_t size = first_coefficient(config_.n_species, 0);
    coefficients.resize(size);
    std::fill_n(coefficients.data(), size, 0.0);
    std::vector<double> merged(static_cast<std::size_t>(polynomial_.n_rows() * config_.channels));
    for (std::int64_t z = 0; z < config_.n_species; ++z) {
      polynomial_.merge(weights.data(), z, merged.data());
      for (std::int64_t i = 0; i < nested_.size(); ++i) {
        const std::int64_t row = nested_.row_of[static_cast<std::size_t>(i)];
        for (std::int64_t c = 0; row >= 0 && c < config_.channels; ++c) {
          coefficients.data()[first_coefficient(z, c / kBlock) + i * kBlock + c % kBlock] =
              merged[static_cast<std::size_t>(row * config_.channels + c)];
        }
      }
    }
  }
  /// Merges the tangents of the weights, if there are any.
  void merge_tangents(const sdk::Run& run, AlignedArray<double>& coefficients) const {
    Pointers weights;
    std::int64_t longest = 0;
    for (std::size_t t = 0; t < config_.targets.size(); ++t) {
      for (int nu = 1; nu <= config_.correlation; ++nu) {
        weights.push_back(this->read(run.parameters_t, config_.w_index(t, nu)));
        longest = std::max(longest, config_.n_paths[t][static_cast<std::size_t>(nu - 1)]);
      }
    }
    if (std::all_of(weights.begin(), weights.end(), [](const T* w) { return w == nullptr; })) return;
    const std::vector<T> zeros(static_cast<std::size_t>(config_.n_species * longest * config_.channels), T(0));
    std::replace(weights.begin(), weights.end(), static_cast<const T*>(nullptr), zeros.data());
    merge(weights, coefficients);
  }

  /// Memory of one thread; with tangents two of them.
  struct Arrays {
    double *x, *components, *grad_x, *grad_coefficients, *rows;
  };
  struct Local {
    Arrays value{}, tangent{};
  };
  Arrays arrays(sdk::Scratch& scratch, bool backward) const {
    Arrays result{};
    result.x = scratch.take<double>(config_.dim * kPair);
    result.components = scratch.take<double>(n_components() * kPair);
    result.grad_x = scratch.take<double>(backward ? config_.dim * kPair : 0);
    result.grad_coefficients = scratch.take<double>(backward ? nested_.size() * kBlock : 0);
    result.rows = scratch.take<double>(backward ? polynomial_.n_rows() * config_.channels : 0);
    return result;
  }
  std::vector<Local> locals(sdk::Scratch& scratch, bool backward, bool tangents) const {
    std::vector<Local> result;
    for (std::int64_t i = 0; i < kMostChunks; ++i) {
      Local local;
      local.value = arrays(scratch, backward);
      if (tangents) local.tangent = arrays(scratch, backward);
      result.push_back(local);
    }
    return result;
  }
  void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    scratch.take<std::int64_t>(extents[sdk::Axis::rows] + 2 * config_.n_species + 1);
    locals(scratch, pass == sdk::Pass::backward, false);
  }
  void plan_tangent(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    scratch.take<std::int64_t>(extents[sdk::Axis::rows] + 2 * config_.n_species + 1);
    locals(scratch, pass == sdk::Pass::backward_tangent, true);
  }
  /// What the loops get, with the coefficients of a species and channel block.
  ContractionBlock block_of(const Local& local, std::int64_t at, const AlignedArray<double>& tangents) const {
    const auto of = [&](const Arrays& arrays, const double* coefficients) -> ContractionArrays {
      return {coefficients == nullptr ? nullptr : coefficients + at, arrays.x, arrays.components, arrays.grad_x,
              arrays.grad_coefficients};
    };
    return {of(local.value, coefficients_.data()), of(local.tangent, tangents.data())};
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
    for (std::int64_t a = 0; a < atoms && x != nullptr; ++a) {
      const T* from = x + (row[a] * config_.channels + block * kBlock) * config_.dim;
      for (std::int64_t c = 0; c < channels_of(block); ++c, from += config_.dim) {
        for (std::int64_t i = 0; i < config_.dim; ++i) to[i * kPair + a * kBlock + c] = static_cast<double>(from[i]);
      }
    }
  }
  void store_x(const double* from, const std::int64_t* row, std::int64_t atoms, std::int64_t block, T* x) const {
    for (std::int64_t a = 0; a < atoms && x != nullptr; ++a) {
      T* to = x + (row[a] * config_.channels + block * kBlock) * config_.dim;
      for (std::int64_t c = 0; c < channels_of(block); ++c, to += config_.dim) {
        for (std::int64_t i = 0; i < config_.dim; ++i) to[i] = static_cast<T>(from[i * kPair + a * kBlock + c]);
      }
    }
  }
  /// Calls f(place in the output, place among the components of the atoms) for some rows.
  template <class F>
  void for_each_output(const std::int64_t* row, std::int64_t atoms, std::int64_t block, const F& f) const {
    for (std::int64_t m = 0; m < n_components(); ++m) {
      const auto [offset, stride] = polynomial_.components[static_cast<std::size_t>(m)];
      for (std::int64_t a = 0; a < atoms; ++a) {
        const std::int64_t first = row[a] * config_.out_dim() + offset + block * kBlock * stride;
        for (std::int64_t c = 0; c < channels_of(block); ++c) f(first + c * stride, m * kPair + a * kBlock + c);
      }
    }
  }
  void load_components(const T* g, const std::int64_t* row, std::int64_t atoms, std::int64_t block, double* to) const {
    std::fill_n(to, n_components() * kPair, 0.0);
    if (g == nullptr) return;
    for_each_output(row, atoms, block, [&](auto place, auto at) { to[at] = static_cast<double>(g[place]); });
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

  void forward(const sdk::Run& run, sdk::Scratch& scratch) override { evaluate(run, scratch, false); }
  void forward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override { evaluate(run, scratch, true); }
  void backward(const sdk::Run& run, sdk::Scratch& scratch) override { gradients(run, scratch, false); }
  void backward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override { gradients(run, scratch, true); }

  void evaluate(const sdk::Run& run, sdk::Scratch& scratch, bool tangents) {
    const Order order = this->order(run, scratch);
    const std::vector<Local> all = locals(scratch, false, tangents);
    AlignedArray<double> coefficients_t;
    if (tangents) merge_tangents(run, coefficients_t);
    const ReadPair<T> x = this->read(run.inputs, run.inputs_t, 0);
    const WritePair<T> out = this->write(run.outputs, run.outputs_t, 0);
    for_each_block(
        run, all, order,
        [&](const Local& local, const std::int64_t* row, std::int64_t atoms, std::int64_t species, std::int64_t block) {
          load_x(x.value, row, atoms, block, local.value.x);
          if (tangents) load_x(x.tangent, row, atoms, block, local.tangent.x);
          (tangents ? forward_tangent_ : forward_)(nested_,
                                                   block_of(local, first_coefficient(species, block), coefficients_t));
          const auto store = [&](const double* components, T* target) {
            if (target == nullptr) return;
            for_each_output(row, atoms, block,
                            [&](auto place, auto at) { target[place] = static_cast<T>(components[at]); });
          };
          store(local.value.components, out.value);
          store(local.tangent.components, out.tangent);
        });
  }

  void gradients(const sdk::Run& run, sdk::Scratch& scratch, bool tangents) {
    const Order order = this->order(run, scratch);
    const std::vector<Local> all = locals(scratch, true, tangents);
    if (this->write(run.grad_inputs, run.grad_inputs_t, 0)) grad_x(run, all, order, tangents);
    std::vector<T*> targets, targets_t;
    bool any = false;
    for (std::size_t t = 0; t < config_.targets.size(); ++t) {
      for (int nu = 1; nu <= config_.correlation; ++nu) {
        targets.push_back(this->write(run.grad_parameters, config_.w_index(t, nu)));
        targets_t.push_back(this->write(run.grad_parameters_t, config_.w_index(t, nu)));
        any = any || targets.back() != nullptr || targets_t.back() != nullptr;
      }
    }
    if (any) grad_weights(run, all, order, targets, targets_t, tangents);
  }

  void grad_x(const sdk::Run& run, const std::vector<Local>& all, const Order& order, bool tangents) {
    const ReadPair<T> x = this->read(run.inputs, run.inputs_t, 0),
                      g = this->read(run.grad_outputs, run.grad_outputs_t, 0);
    const WritePair<T> gx = this->write(run.grad_inputs, run.grad_inputs_t, 0);
    AlignedArray<double> coefficients_t;
    if (tangents) merge_tangents(run, coefficients_t);
    for_each_block(
        run, all, order,
        [&](const Local& local, const std::int64_t* row, std::int64_t atoms, std::int64_t species, std::int64_t block) {
          const auto load = [&](const Arrays& arrays, const T* from, const T* gradient) {
            load_x(from, row, atoms, block, arrays.x);
            load_components(gradient, row, atoms, block, arrays.components);
            std::fill_n(arrays.grad_x, config_.dim * kPair, 0.0);
          };
          load(local.value, x.value, g.value);
          if (tangents) load(local.tangent, x.tangent, g.tangent);
          (tangents ? grad_x_tangent_ : grad_x_)(nested_,
                                                 block_of(local, first_coefficient(species, block), coefficients_t));
          store_x(local.value.grad_x, row, atoms, block, gx.value);
          store_x(local.tangent.grad_x, row, atoms, block, gx.tangent);
        });
  }

  /// One task sums one species over all of its rows, so nothing has to be joined.
  void grad_weights(const sdk::Run& run, const std::vector<Local>& all, const Order& order,
                    const std::vector<T*>& targets, const std::vector<T*>& targets_t, bool tangents) {
    const ReadPair<T> x = this->read(run.inputs, run.inputs_t, 0),
                      g = this->read(run.grad_outputs, run.grad_outputs_t, 0);
    this->workers_.run(run.threads, std::min(config_.n_species, kMostChunks), [&](std::int64_t task) {
      const Local& local = all[static_cast<std::size_t>(task)];
      for (std::int64_t z = task; z < config_.n_species; z += kMostChunks) {
        for (std::int64_t block = 0; block < blocks(); ++block) {
          std::fill_n(local.value.grad_coefficients, nested_.size() * kBlock, 0.0);
          if (tangents) std::fill_n(local.tangent.grad_coefficients, nested_.size() * kBlock, 0.0);
          for (std::int64_t i = order.begin[z]; i < order.begin[z + 1]; i += kAtoms) {
            const std::int64_t atoms = std::min(kAtoms, order.begin[z + 1] - i);
            const auto load = [&](const Arrays& arrays, const T* from, const T* gradient) {
              load_x(from, order.row + i, atoms, block, arrays.x);
              load_components(gradient, order.row + i, atoms, block, arrays.components);
            };
            load(local.value, x.value, g.value);
            if (tangents) load(local.tangent, x.tangent, g.tangent);
            (tangents ? grad_coefficients_tangent_ : grad_coefficients_)(nested_, block_of(local, 0, {}));
          }
          gather(local.value, block);
          if (tangents) gather(local.tangent, block);
        }
        polynomial_.unmerge(local.value.rows, z, targets.data());
        if (tangents) polynomial_.unmerge(local.tangent.rows, z, targets_t.data());
      }
    });
  }
  /// Gradients of a block's coefficients to the rows of the polynomial.
  void gather(const Arrays& arrays, std::int64_t block) const {
    for (std::int64_t i = 0; i < nested_.size(); ++i) {
      const std::int64_t row = nested_.row_of[static_cast<std::size_t>(i)];
      if (row < 0) continue;
      std::copy_n(arrays.grad_coefficients + i * kBlock, channels_of(block),
                  arrays.rows + row * config_.channels + block * kBlock);
    }
  }

  sdk::SymmetricContractionConfig config_;
  sdk::SymmetricPolynomial polynomial_;
  NestedPolynomial nested_;
  AlignedArray<double> coefficients_;
  ContractionFunction* forward_ = FASTPATH_FOR_TARGET(ContractionFunction, contraction_forward);
  ContractionFunction* grad_x_ = FASTPATH_FOR_TARGET(ContractionFunction, contraction_grad_x);
  ContractionFunction* grad_coefficients_ = FASTPATH_FOR_TARGET(ContractionFunction, contraction_grad_coefficients);
  ContractionFunction* forward_tangent_ = FASTPATH_FOR_TARGET(ContractionFunction, contraction_forward_tangent);
  ContractionFunction* grad_x_tangent_ = FASTPATH_FOR_TARGET(ContractionFunction, contraction_grad_x_tangent);
  ContractionFunction* grad_coefficients_tangent_ =
      FASTPATH_FOR_TARGET(ContractionFunction, contraction_grad_coefficients_tangent);
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

}  // namespace cpu_simd
#endif  // HWY_ONCE
