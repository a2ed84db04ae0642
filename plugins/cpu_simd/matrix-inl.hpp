// The matrix product of small matrices, register-blocked. Compiled per instruction set.
#if defined(FASTPATH_CPU_SIMD_MATRIX_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FASTPATH_CPU_SIMD_MATRIX_INL
#undef FASTPATH_CPU_SIMD_MATRIX_INL
#else
#define FASTPATH_CPU_SIMD_MATRIX_INL
#endif

#include <algorithm>
#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"

#ifndef FASTPATH_UNROLL
#if HWY_COMPILER_CLANG
#define FASTPATH_UNROLL _Pragma("clang loop unroll(full)")
#else
#define FASTPATH_UNROLL _Pragma("GCC unroll 16")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Vectors of a panel of b, and rows of a: with them the accumulators fill the registers.
constexpr int kProductVectors = 2;
constexpr int kProductRows = HWY_CAP_GE512 ? 12 : HWY_CAP_GE256 ? 6 : HWY_TARGET == HWY_NEON ? 8 : 4;

/// Terms that are added one after the other. A longer sum is one of such sums, so that its rounding hardly grows with
/// it.
constexpr std::int64_t kProductRun = 64;

/// Columns of a panel of a packed matrix.
template <class T>
constexpr std::int64_t panel_width() {
  return kProductVectors * static_cast<std::int64_t>(hn::MaxLanes(hn::ScalableTag<T>()));
}

/// b[k, n] in panels of panel_width() columns, each [k][panel_width()], the last one filled up with zeros. To p:
/// [k, n rounded up]. Element (i, j) of b is b[i * row + j * column], times factor.
template <class T>
void pack(std::int64_t k, std::int64_t n, const T* HWY_RESTRICT b, std::int64_t row, std::int64_t column, T factor,
          T* HWY_RESTRICT p) {
  constexpr std::int64_t kWidth = panel_width<T>();
  for (std::int64_t first = 0; first < n; first += kWidth) {
    const std::int64_t width = HWY_MIN(kWidth, n - first);
    for (std::int64_t i = 0; i < k; ++i, p += kWidth) {
      const T* from = b + i * row + first * column;
      for (std::int64_t j = 0; j < width; ++j) p[j] = factor * from[j * column];
      for (std::int64_t j = width; j < kWidth; ++j) p[j] = T(0);
    }
  }
}

/// kRows rows of c for one panel.
template <int kRows, class T>
HWY_INLINE void product_tile(std::int64_t k, const T* HWY_RESTRICT a, std::int64_t a_row, std::int64_t a_column,
                             const T* HWY_RESTRICT b, std::int64_t width, T* HWY_RESTRICT c, std::int64_t c_row,
                             bool past_caches) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(d));
  V low[kRows], high[kRows];
  const auto sum_run = [&](std::int64_t begin, std::int64_t end) HWY_ATTR {
    FASTPATH_UNROLL
    for (int r = 0; r < kRows; ++r) low[r] = high[r] = hn::Zero(d);
    for (std::int64_t p = begin; p < end; ++p, b += 2 * kLanes) {
      const V b0 = hn::LoadU(d, b), b1 = hn::LoadU(d, b + kLanes);
      FASTPATH_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const V factor = hn::Set(d, a[r * a_row + p * a_column]);
        low[r] = hn::MulAdd(factor, b0, low[r]);
        high[r] = hn::MulAdd(factor, b1, high[r]);
      }
    }
  };
  const bool one_run = sizeof(T) > 4 || k <= kProductRun;
  sum_run(0, one_run ? k : kProductRun);
  if (!one_run) {
    T sums[kRows * 2 * kLanes];
    const auto add_run = [&](bool first) HWY_ATTR {
      FASTPATH_UNROLL
      for (int r = 0; r < kRows; ++r) {
        T* const place = sums + r * 2 * kLanes;
        if (!first) {
          low[r] = hn::Add(hn::LoadU(d, place), low[r]);
          high[r] = hn::Add(hn::LoadU(d, place + kLanes), high[r]);
        }
        hn::StoreU(low[r], d, place);
        hn::StoreU(high[r], d, place + kLanes);
      }
    };
    add_run(true);
    for (std::int64_t begin = kProductRun; begin < k; begin += kProductRun) {
      sum_run(begin, HWY_MIN(k, begin + kProductRun));
      add_run(false);
    }
  }
  if (width == 2 * kLanes && past_caches) {
    FASTPATH_UNROLL
    for (int r = 0; r < kRows; ++r) {
      hn::Stream(low[r], d, c + r * c_row);
      hn::Stream(high[r], d, c + r * c_row + kLanes);
    }
    return;
  }
  if (width == 2 * kLanes) {
    FASTPATH_UNROLL
    for (int r = 0; r < kRows; ++r) {
      hn::StoreU(low[r], d, c + r * c_row);
      hn::StoreU(high[r], d, c + r * c_row + kLanes);
    }
    return;
  }
  FASTPATH_UNROLL
  for (int r = 0; r < kRows; ++r) {
    T whole[2 * kLanes];
    hn::StoreU(low[r], d, whole);
    hn::StoreU(high[r], d, whole + kLanes);
    std::copy_n(whole, width, c + r * c_row);
  }
}

/// c[m, n] = a[m, k] b[k, n] with b packed by pack(). Element (i, p) of a is a[i * a_row + p * a_column]; rows of c are
/// contiguous. @param past_caches  c is on whole cache lines and not read soon; call hwy::FlushStream() in the end.
/// Every element is summed by itself, in an order that depends on k alone, so that results do not depend on m.
template <class T>
HWY_NOINLINE void product(std::int64_t m, std::int64_t n, std::int64_t k, const T* HWY_RESTRICT a, std::int64_t a_row,
                          std::int64_t a_column, const T* HWY_RESTRICT b, T* HWY_RESTRICT c, std::int64_t c_row,
                          bool past_caches = false) {
  constexpr std::int64_t kWidth = panel_width<T>();
  for (std::int64_t j = 0; j < n; j += kWidth, b += k * kWidth) {
    const std::int64_t width = HWY_MIN(kWidth, n - j);
    std::int64_t i = 0;
    for (; i + kProductRows <= m; i += kProductRows) {
      product_tile<kProductRows>(k, a + i * a_row, a_row, a_column, b, width, c + i * c_row + j, c_row, past_caches);
    }
    if constexpr (kProductRows > 4) {
      for (; i + 4 <= m; i += 4) {
        product_tile<4>(k, a + i * a_row, a_row, a_column, b, width, c + i * c_row + j, c_row, past_caches);
      }
    }
    for (; i < m; ++i)
      product_tile<1>(k, a + i * a_row, a_row, a_column, b, width, c + i * c_row + j, c_row, past_caches);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#endif  // per target
