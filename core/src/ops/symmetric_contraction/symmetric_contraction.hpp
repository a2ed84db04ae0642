#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <vector>

#include "fastpath/sdk/symmetric.hpp"
#include "ops/accumulator.hpp"

namespace fastpath::ops {

namespace symmetric_detail {

/// Row numbers grouped by species, ascending in each group: rows of species z are order[begin[z]]..order[begin[z+1]-1].
struct SpeciesGroups {
  std::vector<std::int64_t> begin, order;

  SpeciesGroups(std::int64_t n_species, std::int64_t n_rows, const std::int32_t* species)
      : begin(static_cast<std::size_t>(n_species + 1), 0), order(static_cast<std::size_t>(n_rows)) {
    for (std::int64_t row = 0; row < n_rows; ++row) {
      assert(species[row] >= 0 && species[row] < n_species);
      ++begin[static_cast<std::size_t>(species[row]) + 1];
    }
    for (std::size_t z = 1; z < begin.size(); ++z) begin[z] += begin[z - 1];
    std::vector<std::int64_t> next(begin);
    for (std::int64_t row = 0; row < n_rows; ++row) {
      order[static_cast<std::size_t>(next[static_cast<std::size_t>(species[row])]++)] = row;
    }
  }
};

/// [channels][dim] to [dim][channels].
template <class S, class A>
void channels_last(std::int64_t channels, std::int64_t dim, const S* x, A* x_t) {
  for (std::int64_t c = 0; c < channels; ++c) {
    for (std::int64_t i = 0; i < dim; ++i) x_t[i * channels + c] = A(x[c * dim + i]);
  }
}

/// product[c] *= x_t[factor][c] for all factors of a monomial but the one at position `skip` (-1: none).
template <class A>
void multiply_factors(const sdk::SymmetricPolynomial::Monomial& monomial, int skip, std::int64_t channels, const A* x_t,
                      A* product) {
  for (int position = 0; position < monomial.degree; ++position) {
    if (position == skip) continue;
    const A* factor = x_t + monomial.factors[static_cast<std::size_t>(position)] * channels;
    for (std::int64_t c = 0; c < channels; ++c) product[c] *= factor[c];
  }
}

}  // namespace symmetric_detail

/// out[n, target, c, M] = P_M(x[n, c]; weights of species(n)); see SymmetricContractionConfig for shapes.
/// @param polynomial  Of the same configuration and its U matrices.
/// @param species     [n_rows], each in 0..n_species-1.
/// @param weights     Target-major, nu-minor: [n_species, K, channels] each.
/// Nothing aliases out.
template <class S>
void symmetric_contraction_forward(const sdk::SymmetricContractionConfig& config,
                                   const sdk::SymmetricPolynomial& polynomial, std::int64_t n_rows, const S* x,
                                   const std::int32_t* species, const S* const* weights, S* out) {
  using A = Accumulator<S>;
  const std::int64_t channels = config.channels, dim = config.dim, out_dim = config.out_dim();
  const symmetric_detail::SpeciesGroups groups(config.n_species, n_rows, species);
  const auto size = [&](auto count) { return static_cast<std::size_t>(static_cast<std::int64_t>(count) * channels); };
  std::vector<A> a(size(polynomial.rows.size())), x_t(size(dim)), product(size(1));
  std::vector<A> sums(size(polynomial.components.size()));

  for (std::int64_t z = 0; z < config.n_species; ++z) {
    const std::int64_t first = groups.begin[static_cast<std::size_t>(z)];
    const std::int64_t last = groups.begin[static_cast<std::size_t>(z) + 1];
    if (first == last) continue;
    polynomial.merge(weights, z, a.data());
    for (std::int64_t position = first; position < last; ++position) {
      const std::int64_t n = groups.order[static_cast<std::size_t>(position)];
      symmetric_detail::channels_last(channels, dim, x + n * channels * dim, x_t.data());
      std::fill(sums.begin(), sums.end(), A(0));
      for (std::size_t i = 0; i < polynomial.monomials.size(); ++i) {
        std::fill(product.begin(), product.end(), A(1));
        symmetric_detail::multiply_factors(polynomial.monomials[i], -1, channels, x_t.data(), product.data());
        for (std::int64_t row = polynomial.row_begin[i]; row < polynomial.row_begin[i + 1]; ++row) {
          const A* a_row = a.data() + row * channels;
          A* sum = sums.data() + polynomial.rows[static_cast<std::size_t>(row)].component * channels;
          for (std::int64_t c = 0; c < channels; ++c) sum[c] += a_row[c] * product[c];
        }
      }
      for (std::size_t m = 0; m < polynomial.components.size(); ++m) {
        const auto [offset, stride] = polynomial.components[m];
        const A* sum = sums.data() + static_cast<std::int64_t>(m) * channels;
        for (std::int64_t c = 0; c < channels; ++c) out[n * out_dim + offset + c * stride] = static_cast<S>(sum[c]);
      }
    }
  }
}

/// Gradients of sum(out * grad_out). Overwrites those that are not null: grad_x [n_rows, channels, dim], and the
/// tensors of grad_weights (null, or one pointer per weight tensor, some of them null). Weights of species that are
/// absent get zeros. Nothing aliases a gradient.
template <class S>
void symmetric_contraction_backward(const sdk::SymmetricContractionConfig& config,
                                    const sdk::SymmetricPolynomial& polynomial, std::int64_t n_rows, const S* x,
                                    const std::int32_t* species, const S* const* weights, const S* grad_out, S* grad_x,
                                    S* const* grad_weights) {
  using A = Accumulator<S>;
  const std::int64_t channels = config.channels, dim = config.dim, out_dim = config.out_dim();
  const symmetric_detail::SpeciesGroups groups(config.n_species, n_rows, species);
  const auto size = [&](auto count) { return static_cast<std::size_t>(static_cast<std::int64_t>(count) * channels); };
  std::vector<A> a(size(polynomial.rows.size())), x_t(size(dim)), g_t(size(polynomial.components.size()));
  std::vector<A> gx_t(size(dim)), head(size(1)), product(size(1));
  std::vector<A> grad_a(grad_weights == nullptr ? 0 : a.size());

  for (std::int64_t z = 0; z < config.n_species; ++z) {
    const std::int64_t first = groups.begin[static_cast<std::size_t>(z)];
    const std::int64_t last = groups.begin[static_cast<std::size_t>(z) + 1];
    if (grad_x != nullptr && first != last) polynomial.merge(weights, z, a.data());
    std::fill(grad_a.begin(), grad_a.end(), A(0));
    for (std::int64_t position = first; position < last; ++position) {
      const std::int64_t n = groups.order[static_cast<std::size_t>(position)];
      symmetric_detail::channels_last(channels, dim, x + n * channels * dim, x_t.data());
      for (std::size_t m = 0; m < polynomial.components.size(); ++m) {
        const auto [offset, stride] = polynomial.components[m];
        A* g = g_t.data() + static_cast<std::int64_t>(m) * channels;
        for (std::int64_t c = 0; c < channels; ++c) g[c] = A(grad_out[n * out_dim + offset + c * stride]);
      }
      std::fill(gx_t.begin(), gx_t.end(), A(0));
      for (std::size_t i = 0; i < polynomial.monomials.size(); ++i) {
        const auto& monomial = polynomial.monomials[i];
        if (grad_weights != nullptr) {
          std::fill(product.begin(), product.end(), A(1));
          symmetric_detail::multiply_factors(monomial, -1, channels, x_t.data(), product.data());
        }
        std::fill(head.begin(), head.end(), A(0));  // the gradient with respect to the monomial's value
        for (std::int64_t row = polynomial.row_begin[i]; row < polynomial.row_begin[i + 1]; ++row) {
          const A* g = g_t.data() + polynomial.rows[static_cast<std::size_t>(row)].component * channels;
          if (grad_weights != nullptr) {
            A* target = grad_a.data() + row * channels;
            for (std::int64_t c = 0; c < channels; ++c) target[c] += product[c] * g[c];
          }
          if (grad_x != nullptr) {
            const A* a_row = a.data() + row * channels;
            for (std::int64_t c = 0; c < channels; ++c) head[c] += a_row[c] * g[c];
          }
        }
        if (grad_x == nullptr) continue;
        for (int skip = 0; skip < monomial.degree; ++skip) {
          std::copy(head.begin(), head.end(), product.begin());
          symmetric_detail::multiply_factors(monomial, skip, channels, x_t.data(), product.data());
          A* target = gx_t.data() + monomial.factors[static_cast<std::size_t>(skip)] * channels;
          for (std::int64_t c = 0; c < channels; ++c) target[c] += product[c];
        }
      }
      if (grad_x != nullptr) {
        S* gx = grad_x + n * channels * dim;
        for (std::int64_t c = 0; c < channels; ++c) {
          for (std::int64_t i = 0; i < dim; ++i) gx[c * dim + i] = static_cast<S>(gx_t[i * channels + c]);
        }
      }
    }
    if (grad_weights != nullptr) polynomial.unmerge(grad_a.data(), z, grad_weights);
  }
}

}  // namespace fastpath::ops
