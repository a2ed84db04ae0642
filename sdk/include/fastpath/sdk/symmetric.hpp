#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "fastpath/sdk/ops.hpp"

namespace fastpath::sdk {

/// The sparse form of a symmetric contraction. The output is a polynomial of the components x[0..dim-1] of a channel,
///
///   out[component] = sum over rows of this component of a[species, row, channel] * product of the row's monomial,
///   a[species, row, channel] = sum over the row's terms of coefficient * w_tensor[species, path, channel],
///
/// where the coefficient of a monomial x[i1]..x[i_nu], i1 <= .. <= i_nu, is the sum of U over the distinct permutations
/// of its indices. Build it once per model, merge weights once per species and weight version, and evaluate:
///
///   for each monomial:  p[channels] = product of x[factor][channels]
///     for each of its rows:  out[row.component][channels] += a[row][channels] * p[channels]
///
/// so with x as [dim][channels] every inner loop is contiguous over channels, and a is read once, front to back.
/// Monomials ascend by degree, then by factors; the rows of a monomial ascend by component.
struct SymmetricPolynomial {
  static constexpr int kMaxDegree = 4;

  struct Monomial {
    int degree = 0;
    std::array<std::int32_t, kMaxDegree> factors{};  ///< The first `degree` hold component indices, ascending.
  };
  struct Row {
    std::int32_t component;  ///< Index into `components`.
    std::int32_t tensor;     ///< target * correlation + nu - 1: which weight tensor merges into it.
  };
  struct Term {
    std::int32_t path;  ///< k of w[species, k, channel].
    double coefficient;
  };
  /// Output component M of a target: channel c of a row of `out` is at offset + c * stride.
  struct Component {
    std::int64_t offset, stride;
  };

  std::int64_t channels = 0, dim = 0, n_species = 0;
  std::vector<std::int64_t> n_paths;  ///< K per weight tensor, target-major, nu-minor.
  std::vector<Component> components;  ///< All M of the first target, then of the second, ...
  std::vector<Monomial> monomials;
  std::vector<std::int64_t> row_begin;  ///< Rows of monomial i: row_begin[i]..row_begin[i+1]-1.
  std::vector<Row> rows;
  std::vector<std::int64_t> term_begin;  ///< Terms of row i: term_begin[i]..term_begin[i+1]-1.
  std::vector<Term> terms;

  /// @param u  Per target, then per nu = 1..correlation: U as [2L+1, dim^nu, K], row-major.
  /// A coefficient that is only rounding, below 1e-14 of the largest element of its U, counts as zero and is dropped.
  /// @throws ConfigError for a correlation above kMaxDegree.
  template <class T>
  static SymmetricPolynomial build(const SymmetricContractionConfig& config, const T* const* u);

  std::int64_t n_rows() const { return static_cast<std::int64_t>(rows.size()); }

  /// a[row][channel] of one species. @param weights  Per tensor: [n_species, K, channels]. @param a  [n_rows,
  /// channels].
  template <class A, class S>
  void merge(const S* const* weights, std::int64_t species, A* a) const;

  /// The transpose of merge: grad_weight[species, path, channel] from the gradient with respect to a, for one species.
  /// Overwrites that species' slice of each tensor that is not null.
  template <class A, class S>
  void unmerge(const A* grad_a, std::int64_t species, S* const* grad_weights) const;
};

// ---------------------------------------------------------------------------------------------------------------------

template <class T>
SymmetricPolynomial SymmetricPolynomial::build(const SymmetricContractionConfig& config, const T* const* u) {
  detail::require(config.correlation <= kMaxDegree, "symmetric_contraction: correlation " +
                                                        std::to_string(config.correlation) + ", at most " +
                                                        std::to_string(kMaxDegree));
  SymmetricPolynomial p;
  p.channels = config.channels;
  p.dim = config.dim;
  p.n_species = config.n_species;
  const auto n_nu = static_cast<std::size_t>(config.correlation);
  std::vector<std::int32_t> first_component;
  std::int64_t offset = 0;
  for (std::size_t t = 0; t < config.targets.size(); ++t) {
    first_component.push_back(static_cast<std::int32_t>(p.components.size()));
    const std::int64_t stride = 2 * config.targets[t] + 1;
    for (std::int64_t m = 0; m < stride; ++m) p.components.push_back({offset + m, stride});
    offset += stride * config.channels;
    p.n_paths.insert(p.n_paths.end(), config.n_paths[t].begin(), config.n_paths[t].end());
  }

  p.row_begin.push_back(0);
  p.term_begin.push_back(0);
  std::vector<double> sum;
  std::int64_t volume = 1;  // dim^nu
  for (std::size_t nu = 1; nu <= n_nu; ++nu) {
    volume *= config.dim;
    std::vector<double> noise;  // per target
    for (std::size_t t = 0; t < config.targets.size(); ++t) {
      const T* data = u[t * n_nu + nu - 1];
      const std::int64_t size = (2 * config.targets[t] + 1) * volume * p.n_paths[t * n_nu + nu - 1];
      double largest = 0;
      for (std::int64_t i = 0; i < size; ++i) largest = std::max(largest, std::abs(static_cast<double>(data[i])));
      noise.push_back(1e-14 * largest);
    }

    Monomial monomial{static_cast<int>(nu), {}};
    const auto begin = monomial.factors.begin(), end = begin + static_cast<std::ptrdiff_t>(nu);
    while (true) {
      std::vector<std::int64_t> positions;  // in U, of the distinct permutations
      auto indices = monomial.factors;
      const auto indices_end = indices.begin() + static_cast<std::ptrdiff_t>(nu);
      do {
        std::int64_t position = 0;
        for (auto i = indices.begin(); i != indices_end; ++i) position = position * config.dim + *i;
        positions.push_back(position);
      } while (std::next_permutation(indices.begin(), indices_end));

      for (std::size_t t = 0; t < config.targets.size(); ++t) {
        const std::size_t tensor = t * n_nu + nu - 1;
        const std::int64_t k = p.n_paths[tensor];
        for (std::int32_t m = 0; m <= 2 * config.targets[t]; ++m) {
          sum.assign(static_cast<std::size_t>(k), 0.0);
          for (const std::int64_t position : positions) {
            const T* source = u[tensor] + (m * volume + position) * k;
            for (std::int64_t path = 0; path < k; ++path) sum[path] += static_cast<double>(source[path]);
          }
          for (std::int64_t path = 0; path < k; ++path) {
            if (std::abs(sum[path]) > noise[t]) p.terms.push_back({static_cast<std::int32_t>(path), sum[path]});
          }
          if (static_cast<std::int64_t>(p.terms.size()) == p.term_begin.back()) continue;
          p.rows.push_back({first_component[t] + m, static_cast<std::int32_t>(tensor)});
          p.term_begin.push_back(static_cast<std::int64_t>(p.terms.size()));
        }
      }
      if (p.n_rows() != p.row_begin.back()) {
        p.monomials.push_back(monomial);
        p.row_begin.push_back(p.n_rows());
      }

      // Next ascending tuple: raise the last index that can be, and all after it to the same value.
      auto last = end;
      while (last != begin && *(last - 1) == config.dim - 1) --last;
      if (last == begin) break;
      std::fill(last - 1, end, *(last - 1) + 1);
    }
  }
  return p;
}

template <class A, class S>
void SymmetricPolynomial::merge(const S* const* weights, std::int64_t species, A* a) const {
  for (std::size_t row = 0; row < rows.size(); ++row, a += channels) {
    std::fill_n(a, channels, A(0));
    const auto tensor = static_cast<std::size_t>(rows[row].tensor);
    for (std::int64_t i = term_begin[row]; i < term_begin[row + 1]; ++i) {
      const Term& term = terms[static_cast<std::size_t>(i)];
      const A coefficient = static_cast<A>(term.coefficient);
      const S* w = weights[tensor] + (species * n_paths[tensor] + term.path) * channels;
      for (std::int64_t c = 0; c < channels; ++c) a[c] += coefficient * static_cast<A>(w[c]);
    }
  }
}

template <class A, class S>
void SymmetricPolynomial::unmerge(const A* grad_a, std::int64_t species, S* const* grad_weights) const {
  std::vector<A> sum;
  for (std::size_t tensor = 0; tensor < n_paths.size(); ++tensor) {
    if (grad_weights[tensor] == nullptr) continue;
    sum.assign(static_cast<std::size_t>(n_paths[tensor] * channels), A(0));
    for (std::size_t row = 0; row < rows.size(); ++row) {
      if (static_cast<std::size_t>(rows[row].tensor) != tensor) continue;
      const A* source = grad_a + static_cast<std::int64_t>(row) * channels;
      for (std::int64_t i = term_begin[row]; i < term_begin[row + 1]; ++i) {
        const Term& term = terms[static_cast<std::size_t>(i)];
        const A coefficient = static_cast<A>(term.coefficient);
        A* target = sum.data() + term.path * channels;
        for (std::int64_t c = 0; c < channels; ++c) target[c] += coefficient * source[c];
      }
    }
    S* target = grad_weights[tensor] + species * n_paths[tensor] * channels;
    for (std::size_t i = 0; i < sum.size(); ++i) target[i] = static_cast<S>(sum[i]);
  }
}

}  // namespace fastpath::sdk
