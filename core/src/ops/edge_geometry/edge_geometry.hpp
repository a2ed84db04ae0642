#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "ops/accumulator.hpp"
#include "ops/dual.hpp"

/// Lengths of edge vectors, and forces and virial from the gradient of the energy by edge vectors, operators.md 2.1 and
/// 2.12. For S = float (computed in double), double or Dual<double>.
namespace fastpath::ops {

/// Euclidean length without spurious tangents: the length of the zero vector is 0 with tangent 0.
template <class A>
A length_of(const A& x, const A& y, const A& z) {
  using std::sqrt;
  const A square = x * x + y * y + z * z;
  return primal(square) > 0 ? sqrt(square) : A(0);
}

/// @param vectors  [n, 3].
/// @param lengths  Out: [n].
template <class S>
void edge_lengths_forward(std::int64_t n, const S* vectors, S* lengths) {
  using A = Accumulator<S>;
  for (std::int64_t e = 0; e < n; ++e) {
    lengths[e] = static_cast<S>(length_of(A(vectors[3 * e]), A(vectors[3 * e + 1]), A(vectors[3 * e + 2])));
  }
}

/// @param grad_lengths  [n].
/// @param grad_vectors  Out: [n, 3]; 0 for a zero vector.
template <class S>
void edge_lengths_backward(std::int64_t n, const S* vectors, const S* grad_lengths, S* grad_vectors) {
  using A = Accumulator<S>;
  for (std::int64_t e = 0; e < n; ++e) {
    const S* const v = vectors + 3 * e;
    const A length = length_of(A(v[0]), A(v[1]), A(v[2]));
    const A factor = primal(length) > 0 ? A(grad_lengths[e]) / length : A(0);
    for (std::size_t k = 0; k < 3; ++k) grad_vectors[3 * e + k] = static_cast<S>(factor * A(v[k]));
  }
}

/// Forces from g = dE/dv with v = position of the receiver - position of the sender: F_n = sum over the edges that n
/// sends of g - sum over those that it receives.
/// @param sender,receiver  [n_edges] indices < n_nodes.
/// @param grad_vectors     [n_edges, 3], eV/angstrom.
/// @param forces           Out: [n_nodes, 3], eV/angstrom, double for S = float.
template <class S>
void accumulate_forces(std::int64_t n_nodes, std::int64_t n_edges, const std::int32_t* sender,
                       const std::int32_t* receiver, const S* grad_vectors, Accumulator<S>* forces) {
  using A = Accumulator<S>;
  std::fill(forces, forces + 3 * n_nodes, A(0));
  for (std::int64_t e = 0; e < n_edges; ++e) {
    A* const from = forces + 3 * std::int64_t{sender[e]};
    A* const to = forces + 3 * std::int64_t{receiver[e]};
    for (std::size_t k = 0; k < 3; ++k) {
      const A g(grad_vectors[3 * e + k]);
      from[k] += g;
      to[k] -= g;
    }
  }
}

/// W = -sum over edges of (v g^T + g v^T) / 2, eV, row-major and symmetric. Stress is -W / volume.
/// @param vectors,grad_vectors  [n_edges, 3].
template <class S>
std::array<Accumulator<S>, 9> accumulate_virial(std::int64_t n_edges, const S* vectors, const S* grad_vectors) {
  using A = Accumulator<S>;
  std::array<A, 9> sum{};
  for (std::int64_t e = 0; e < n_edges; ++e) {
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 3; ++j) sum[3 * i + j] -= A(vectors[3 * e + i]) * A(grad_vectors[3 * e + j]);
    }
  }
  std::array<A, 9> virial;
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) virial[3 * i + j] = A(0.5) * (sum[3 * i + j] + sum[3 * j + i]);
  }
  return virial;
}

}  // namespace fastpath::ops
