#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <utility>
#include <vector>

#include "fastpath/sdk/ops.hpp"
#include "ops/accumulator.hpp"

/// The loops that irreps_linear and species_linear share: the former is the latter with one species.
namespace fastpath::ops {

using LinearPath = sdk::IrrepsLinearConfig::Path;

/// The block matrices of a linear map: per path (mul_in, n_species, mul_out) row-major.
struct BlockLinear {
  sdk::Irreps in, out;
  std::vector<LinearPath> paths;
  std::int64_t n_species = 1;

  std::int64_t species_of(const std::int32_t* species, std::int64_t row) const {
    const std::int64_t z = species == nullptr ? 0 : species[row];
    assert(z >= 0 && z < n_species);
    return z;
  }
};

/// y[n, out block, w, m] = sum over paths of factor * sum_u weight[u, species(n), w] x[n, in block, u, m].
/// Fan-ins of a thousand channels occur, so float sums in double.
template <class S>
void block_linear(const BlockLinear& map, std::int64_t n, const S* x, const std::int32_t* species, const S* weight,
                  S* y) {
  using A = Accumulator<S>;
  std::vector<A> y_row(static_cast<std::size_t>(map.out.dim()));
  std::vector<A> sum;  // [m][w], so that the inner loop runs over contiguous channels
  for (std::int64_t row = 0; row < n; ++row) {
    const std::int64_t z = map.species_of(species, row);
    std::fill(y_row.begin(), y_row.end(), A(0));
    for (const LinearPath& path : map.paths) {
      const std::int64_t mul_in = map.in[path.in].mul, mul_out = map.out[path.out].mul, dim = map.in[path.in].ir.dim();
      const S* x_block = x + row * map.in.dim() + map.in.offset(path.in);
      A* y_block = y_row.data() + map.out.offset(path.out);
      sum.assign(static_cast<std::size_t>(dim * mul_out), A(0));
      for (std::int64_t u = 0; u < mul_in; ++u) {
        const S* w_row = weight + path.weight_offset + (u * map.n_species + z) * mul_out;
        for (std::int64_t m = 0; m < dim; ++m) {
          const A value = static_cast<A>(x_block[u * dim + m]);
          A* target = sum.data() + m * mul_out;
          for (std::int64_t w = 0; w < mul_out; ++w) target[w] += value * static_cast<A>(w_row[w]);
        }
      }
      const A factor = static_cast<A>(path.factor);
      for (std::int64_t w = 0; w < mul_out; ++w) {
        for (std::int64_t m = 0; m < dim; ++m) y_block[w * dim + m] += factor * sum[m * mul_out + w];
      }
    }
    for (std::size_t i = 0; i < y_row.size(); ++i) {
      y[row * map.out.dim() + static_cast<std::int64_t>(i)] = static_cast<S>(y_row[i]);
    }
  }
}

/// grad_x[n, u, m] = sum over paths of factor * sum_w weight[u, species(n), w] grad_y[n, w, m]: the transposed map.
template <class S>
void block_linear_grad_x(const BlockLinear& map, std::int64_t n, const std::int32_t* species, const S* weight,
                         const S* grad_y, S* grad_x) {
  BlockLinear transposed{map.out, map.in, map.paths, map.n_species};
  std::int64_t numel = 0;
  for (LinearPath& path : transposed.paths) {
    std::swap(path.in, path.out);
    numel += map.in[path.out].mul * map.n_species * map.out[path.in].mul;
  }
  std::vector<S> weight_t(static_cast<std::size_t>(numel));
  for (const LinearPath& path : map.paths) {
    const std::int64_t mul_in = map.in[path.in].mul, mul_out = map.out[path.out].mul;
    const S* source = weight + path.weight_offset;
    S* target = weight_t.data() + path.weight_offset;
    for (std::int64_t u = 0; u < mul_in; ++u) {
      for (std::int64_t z = 0; z < map.n_species; ++z) {
        for (std::int64_t w = 0; w < mul_out; ++w) {
          target[(w * map.n_species + z) * mul_in + u] = source[(u * map.n_species + z) * mul_out + w];
        }
      }
    }
  }
  block_linear(transposed, n, grad_y, species, weight_t.data(), grad_x);
}

/// grad_weight[u, z, w] = factor * sum over rows n of species z and m of x[n, u, m] grad_y[n, w, m].
template <class S>
void block_linear_grad_weight(const BlockLinear& map, std::int64_t n, const S* x, const std::int32_t* species,
                              const S* grad_y, S* grad_weight) {
  using A = Accumulator<S>;
  std::vector<A> sum, g;
  for (const LinearPath& path : map.paths) {
    const std::int64_t mul_in = map.in[path.in].mul, mul_out = map.out[path.out].mul, dim = map.in[path.in].ir.dim();
    sum.assign(static_cast<std::size_t>(mul_in * map.n_species * mul_out), A(0));
    g.resize(static_cast<std::size_t>(dim * mul_out));
    for (std::int64_t row = 0; row < n; ++row) {
      const std::int64_t z = map.species_of(species, row);
      const S* x_block = x + row * map.in.dim() + map.in.offset(path.in);
      const S* g_block = grad_y + row * map.out.dim() + map.out.offset(path.out);
      for (std::int64_t w = 0; w < mul_out; ++w) {
        for (std::int64_t m = 0; m < dim; ++m) g[m * mul_out + w] = static_cast<A>(g_block[w * dim + m]);
      }
      for (std::int64_t u = 0; u < mul_in; ++u) {
        A* target = sum.data() + (u * map.n_species + z) * mul_out;
        for (std::int64_t m = 0; m < dim; ++m) {
          const A value = static_cast<A>(x_block[u * dim + m]);
          const A* g_row = g.data() + m * mul_out;
          for (std::int64_t w = 0; w < mul_out; ++w) target[w] += value * g_row[w];
        }
      }
    }
    const A factor = static_cast<A>(path.factor);
    S* target = grad_weight + path.weight_offset;
    for (std::size_t i = 0; i < sum.size(); ++i) target[i] = static_cast<S>(factor * sum[i]);
  }
}

}  // namespace fastpath::ops
