// Small products of matrices from a register-blocked kernel. Compiled per instruction set.
#if defined(FASTPATH_CPU_SIMD_GEMM_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FASTPATH_CPU_SIMD_GEMM_INL
#undef FASTPATH_CPU_SIMD_GEMM_INL
#else
#define FASTPATH_CPU_SIMD_GEMM_INL
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Rows of one block; callers give multiples of it.
inline constexpr std::int64_t kBlockRows = 6;
/// Vectors of one block: as many as the registers hold sums of kBlockRows rows of.
inline constexpr std::int64_t kBlockVectors = HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON ? 4 : 2;

/// c[kBlockRows, kVectors vectors] (+)= a b with a(m, p) = a[m * step_m + p * step_p] and rows of b `ldb` apart.
template <int kVectors, class D, class T>
HWY_INLINE void multiply_block(D d, std::int64_t k, const T* HWY_RESTRICT a, std::int64_t step_m, std::int64_t step_p,
                               const T* HWY_RESTRICT b, std::int64_t ldb, T* HWY_RESTRICT c, std::int64_t ldc,
                               bool add) {
  using V = hn::Vec<D>;
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  V sum[kBlockRows][kVectors];
  for (int m = 0; m < kBlockRows; ++m) {
    for (int j = 0; j < kVectors; ++j) sum[m][j] = hn::Zero(d);
  }
  for (std::int64_t p = 0; p < k; ++p) {
    V row[kVectors];
    for (int j = 0; j < kVectors; ++j) row[j] = hn::LoadU(d, b + p * ldb + j * kLanes);
    for (int m = 0; m < kBlockRows; ++m) {
      const V factor = hn::Set(d, a[m * step_m + p * step_p]);
      for (int j = 0; j < kVectors; ++j) sum[m][j] = hn::MulAdd(factor, row[j], sum[m][j]);
    }
  }
  // What is there is added in the end: sums of sums round less than one long sum.
  for (int m = 0; m < kBlockRows; ++m) {
    for (int j = 0; j < kVectors; ++j) {
      T* const place = c + m * ldc + j * kLanes;
      hn::StoreU(add ? hn::Add(hn::LoadU(d, place), sum[m][j]) : sum[m][j], d, place);
    }
  }
}

/// Calls body(kVectors, first) for the panels that `vectors` vectors are cut into, with kVectors as a constant.
template <class Body>
HWY_INLINE void for_panels(std::int64_t vectors, const Body& body) {
  std::int64_t v = 0;
  for (; v + kBlockVectors <= vectors; v += kBlockVectors) {
    body(std::integral_constant<int, static_cast<int>(kBlockVectors)>(), v);
  }
  for (; v + 2 <= vectors; v += 2) body(std::integral_constant<int, 2>(), v);
  for (; v < vectors; ++v) body(std::integral_constant<int, 1>(), v);
}

/// The matrix b[k, n], scaled, in the order in which multiply() reads it; columns from n to `padded` are zero.
/// b(p, j) = b[p * step_p + j * step_j].
template <class T>
void pack_panels(std::int64_t k, std::int64_t n, std::int64_t padded, const T* b, std::int64_t step_p,
                 std::int64_t step_j, double scale, T* to) {
  constexpr std::int64_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  for_panels(padded / kLanes, [&](auto vectors, std::int64_t first) {
    for (std::int64_t p = 0; p < k; ++p) {
      for (std::int64_t j = first * kLanes; j < (first + vectors) * kLanes; ++j) {
        *to++ = j < n ? static_cast<T>(scale * static_cast<double>(b[p * step_p + j * step_j])) : T(0);
      }
    }
  });
}

/// c[m, padded] (+)= a[m, k] packed[k, padded]. m is a multiple of kBlockRows, `padded` of the lanes.
template <class D, class T>
HWY_NOINLINE void multiply(D d, std::int64_t m, std::int64_t padded, std::int64_t k, const T* a, std::int64_t lda,
                           const T* packed, T* c, std::int64_t ldc, bool add) {
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  for_panels(padded / kLanes, [&](auto vectors, std::int64_t first) {
    for (std::int64_t row = 0; row < m; row += kBlockRows) {
      multiply_block<vectors>(d, k, a + row * lda, lda, 1, packed + first * kLanes * k, vectors * kLanes,
                              c + row * ldc + first * kLanes, ldc, add);
    }
  });
}

/// c[m, padded] = a^T b with a[k, m] and b[k, padded], rows lda and ldb apart: what a net's weights get. m is a
/// multiple of kBlockRows; columns of a from the true m on are read, and must be there.
template <class D, class T>
HWY_NOINLINE void multiply_transposed(D d, std::int64_t m, std::int64_t padded, std::int64_t k, const T* a,
                                      std::int64_t lda, const T* b, std::int64_t ldb, T* c, std::int64_t ldc) {
  constexpr std::int64_t kLanes = hn::MaxLanes(D());
  for_panels(padded / kLanes, [&](auto vectors, std::int64_t first) {
    for (std::int64_t row = 0; row < m; row += kBlockRows) {
      multiply_block<vectors>(d, k, a + row, 1, lda, b + first * kLanes, ldb, c + row * ldc + first * kLanes, ldc,
                              false);
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#endif  // per target
