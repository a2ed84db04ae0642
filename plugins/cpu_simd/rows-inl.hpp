// Between rows of a few components and vectors of one component each. Compiled per instruction set.
#if defined(FASTPATH_CPU_SIMD_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FASTPATH_CPU_SIMD_ROWS_INL
#undef FASTPATH_CPU_SIMD_ROWS_INL
#else
#define FASTPATH_CPU_SIMD_ROWS_INL
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cpu_simd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Stores the 16-byte blocks of a vector at p, p + stride, p + 2 * stride, ...
template <class D, class V, class T = hn::TFromD<D>>
HWY_INLINE void store_blocks(D d, V v, T* HWY_RESTRICT p, std::int64_t stride) {
  if constexpr (hn::MaxLanes(d) * sizeof(T) == 16) {
    hn::StoreU(v, d, p);
  } else {
    const hn::Half<D> half;
    constexpr std::int64_t kBlocks = hn::MaxLanes(half) * sizeof(T) / 16;
    store_blocks(half, hn::LowerHalf(half, v), p, stride);
    store_blocks(half, hn::UpperHalf(half, v), p + kBlocks * stride, stride);
  }
}
/// A vector of 16-byte blocks from p, p + stride, p + 2 * stride, ...
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_blocks(D d, const T* HWY_RESTRICT p, std::int64_t stride) {
  if constexpr (hn::MaxLanes(d) * sizeof(T) == 16) {
    return hn::LoadU(d, p);
  } else {
    const hn::Half<D> half;
    constexpr std::int64_t kBlocks = hn::MaxLanes(half) * sizeof(T) / 16;
    return hn::Combine(d, load_blocks(half, p + kBlocks * stride, stride), load_blocks(half, p, stride));
  }
}

/// Transposes squares of 16-byte blocks: of 4 float vectors or 2 double vectors. Its own inverse.
template <class D, class V>
HWY_INLINE void transpose_blocks(D d, V* HWY_RESTRICT v) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    const V v0 = v[0], v1 = v[1];
    v[0] = hn::InterleaveLower(d, v0, v1);
    v[1] = hn::InterleaveUpper(d, v0, v1);
  } else {
    const V a = hn::InterleaveLower(d, v[0], v[2]), b = hn::InterleaveLower(d, v[1], v[3]);
    const V e = hn::InterleaveUpper(d, v[0], v[2]), f = hn::InterleaveUpper(d, v[1], v[3]);
    v[0] = hn::InterleaveLower(d, a, b);
    v[1] = hn::InterleaveUpper(d, a, b);
    v[2] = hn::InterleaveLower(d, e, f);
    v[3] = hn::InterleaveUpper(d, e, f);
  }
}

/// Writes one row per lane: component c of row i from lane i of v[c]. Rows are `stride` elements apart.
/// @param n  Components, at least those of a 16-byte block: 4 floats or 2 doubles.
template <class D, class V, class T = hn::TFromD<D>>
HWY_INLINE void store_rows(D d, const V* HWY_RESTRICT v, std::int64_t n, T* HWY_RESTRICT p, std::int64_t stride) {
  constexpr std::int64_t kSide = 16 / sizeof(T);
  for (std::int64_t first = 0; first < n; first += kSide) {
    const std::int64_t c = HWY_MIN(first, n - kSide);  // the last block overlaps the one before
    V square[kSide];
    for (std::int64_t i = 0; i < kSide; ++i) square[i] = v[c + i];
    transpose_blocks(d, square);
    for (std::int64_t i = 0; i < kSide; ++i) store_blocks(d, square[i], p + i * stride + c, kSide * stride);
  }
}
/// Reads what store_rows writes.
template <class D, class V, class T = hn::TFromD<D>>
HWY_INLINE void load_rows(D d, const T* HWY_RESTRICT p, std::int64_t stride, std::int64_t n, V* HWY_RESTRICT v) {
  constexpr std::int64_t kSide = 16 / sizeof(T);
  for (std::int64_t first = 0; first < n; first += kSide) {
    const std::int64_t c = HWY_MIN(first, n - kSide);
    V square[kSide];
    for (std::int64_t i = 0; i < kSide; ++i) square[i] = load_blocks(d, p + i * stride + c, kSide * stride);
    transpose_blocks(d, square);
    for (std::int64_t i = 0; i < kSide; ++i) v[c + i] = square[i];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace cpu_simd
HWY_AFTER_NAMESPACE();

#endif  // per target
