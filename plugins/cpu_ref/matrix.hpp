#pragma once

#include <cstdint>

namespace cpu_ref {

/// A matrix inside an array: element (i, j) is data[i * row + j * column].
template <class T>
struct Matrix {
  T* data;
  std::int64_t row;
  std::int64_t column = 1;
};

/// c[m, n] += a[m, k] b[k, n]. Rows of b and c are contiguous. Sums over k go four terms at a time into C, which may be
/// wider than T.
template <class T, class C>
void add_product(std::int64_t m, std::int64_t n, std::int64_t k, Matrix<const T> a, Matrix<const T> b, Matrix<C> c) {
  for (std::int64_t i = 0; i < m; ++i) {
    C* const out = c.data + i * c.row;
    std::int64_t p = 0;
    for (; p + 4 <= k; p += 4) {
      const T* from = a.data + i * a.row + p * a.column;
      const T a0 = from[0], a1 = from[a.column], a2 = from[2 * a.column], a3 = from[3 * a.column];
      const T *b0 = b.data + p * b.row, *b1 = b0 + b.row, *b2 = b1 + b.row, *b3 = b2 + b.row;
      for (std::int64_t j = 0; j < n; ++j)
        out[j] += static_cast<C>((a0 * b0[j] + a1 * b1[j]) + (a2 * b2[j] + a3 * b3[j]));
    }
    for (; p < k; ++p) {
      const T a0 = a.data[i * a.row + p * a.column];
      const T* b0 = b.data + p * b.row;
      for (std::int64_t j = 0; j < n; ++j) out[j] += static_cast<C>(a0 * b0[j]);
    }
  }
}

/// to[j][i] = from[i][j] for i < rows, j < columns.
template <class A, class B>
void transpose(std::int64_t rows, std::int64_t columns, const A* from, B* to) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) to[j * rows + i] = static_cast<B>(from[i * columns + j]);
  }
}

}  // namespace cpu_ref
