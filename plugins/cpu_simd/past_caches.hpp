#pragma once

#include <cstdint>

namespace cpu_simd {

/// Whether rows are better written past the caches: there are so many that they would push everything else out, and
/// each starts on a cache line, so that lines are written whole.
template <class T>
bool past_caches(const T* rows, std::int64_t stride, std::int64_t n_rows) {
  constexpr std::uintptr_t kLine = 64;
  constexpr std::int64_t kMuch = 4 << 20;  // bytes
  return n_rows * stride * static_cast<std::int64_t>(sizeof(T)) > kMuch &&
         reinterpret_cast<std::uintptr_t>(rows) % kLine == 0 &&
         static_cast<std::uintptr_t>(stride) * sizeof(T) % kLine == 0;
}

}  // namespace cpu_simd
