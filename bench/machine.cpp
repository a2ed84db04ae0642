#include "machine.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "harness.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bench {
namespace {

/// Keeps a value from being optimised away.
volatile double sink = 0;

constexpr std::int64_t kSteps = 100000;
// Enough sums that none waits for the one before: a fused multiply-add takes 4 or 5 cycles, and two begin in each.
constexpr std::size_t kSums = 12;

#if defined(__x86_64__)
enum class Vectors { plain, avx2, avx512 };
Vectors vectors() {
  if (__builtin_cpu_supports("avx512f")) return Vectors::avx512;
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? Vectors::avx2 : Vectors::plain;
}

// Intrinsics by name, for all types and widths. The barrier keeps the compiler from joining the steps of the loop.
#define BENCH_FMA_LOOP(name, isa, type, width, set, fma, first)                      \
  __attribute__((target(isa))) double name() {                                       \
    type sums[kSums], factor = set(0.5f), term = set(0.25f);                         \
    for (type & sum : sums) sum = set(1);                                            \
    for (std::int64_t step = 0; step < kSteps; ++step) {                             \
      for (type & sum : sums) sum = fma(sum, factor, term);                          \
      __asm__ volatile("" : "+x"(factor));                                           \
    }                                                                                \
    double total = 0;                                                                \
    for (const type& sum : sums) total += static_cast<double>(first(sum));           \
    sink = total;                                                                    \
    return 2.0 * (width) * static_cast<double>(kSums) * static_cast<double>(kSteps); \
  }
#define BENCH_FIRST_512(sum) _mm512_cvtss_f32(sum)
#define BENCH_FIRST_512D(sum) _mm512_cvtsd_f64(sum)
#define BENCH_FIRST_256(sum) _mm256_cvtss_f32(sum)
#define BENCH_FIRST_256D(sum) _mm256_cvtsd_f64(sum)
BENCH_FMA_LOOP(avx512_float, "avx512f", __m512, 16, _mm512_set1_ps, _mm512_fmadd_ps, BENCH_FIRST_512)
BENCH_FMA_LOOP(avx512_double, "avx512f", __m512d, 8, _mm512_set1_pd, _mm512_fmadd_pd, BENCH_FIRST_512D)
BENCH_FMA_LOOP(avx2_float, "avx2,fma", __m256, 8, _mm256_set1_ps, _mm256_fmadd_ps, BENCH_FIRST_256)
BENCH_FMA_LOOP(avx2_double, "avx2,fma", __m256d, 4, _mm256_set1_pd, _mm256_fmadd_pd, BENCH_FIRST_256D)

__attribute__((target("avx512f"))) double read_avx512(const double* values, std::size_t n) {
  __m512d sums[8];
  for (__m512d& sum : sums) sum = _mm512_setzero_pd();
  for (std::size_t i = 0; i + 64 <= n; i += 64) {
    for (std::size_t k = 0; k < 8; ++k) sums[k] = _mm512_add_pd(sums[k], _mm512_loadu_pd(values + i + 8 * k));
  }
  for (std::size_t k = 1; k < 8; ++k) sums[0] = _mm512_add_pd(sums[0], sums[k]);
  return _mm512_cvtsd_f64(sums[0]);
}
#endif

template <class T>
double plain_flops() {
  T sums[kSums];
  for (T& sum : sums) sum = 1;
  T factor = T(0.5);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    for (T& sum : sums) sum = sum * factor + T(0.25);
  }
  double total = 0;
  for (const T sum : sums) total += static_cast<double>(sum);
  sink = total;
  return 2.0 * static_cast<double>(kSums) * static_cast<double>(kSteps);
}

double read_plain(const double* values, std::size_t n) {
  double sums[8] = {};
  for (std::size_t i = 0; i + 8 <= n; i += 8) {
    for (std::size_t k = 0; k < 8; ++k) sums[k] += values[i + k];
  }
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

/// The best rate of runs that each return how much they did: what disturbs only makes it slower.
template <class Run>
double best_rate(double seconds, const Run& run) {
  double best = 0;
  const double end = now() + seconds;
  do {
    const double start = now();
    const double work = run();
    best = std::max(best, work / std::max(now() - start, std::numeric_limits<double>::min()));
  } while (now() < end);
  return best;
}

}  // namespace

double peak_flops(int bytes, double seconds) {
  return best_rate(seconds, [&] {
#if defined(__x86_64__)
    if (vectors() == Vectors::avx512) return bytes == 4 ? avx512_float() : avx512_double();
    if (vectors() == Vectors::avx2) return bytes == 4 ? avx2_float() : avx2_double();
#endif
    return bytes == 4 ? plain_flops<float>() : plain_flops<double>();
  });
}

double read_bandwidth(std::uint64_t bytes, double seconds) {
  const std::vector<double> values(std::max<std::size_t>(bytes / sizeof(double), 64), 1.0);
  // Small arrays many times, or the clock would be what is measured.
  const std::size_t times = std::max<std::size_t>(1, (std::size_t{1} << 22) / (values.size() * sizeof(double)));
  return best_rate(seconds, [&] {
    for (std::size_t i = 0; i < times; ++i) {
#if defined(__x86_64__)
      if (vectors() == Vectors::avx512) {
        sink = read_avx512(values.data(), values.size());
        continue;
      }
#endif
      sink = read_plain(values.data(), values.size());
    }
    return static_cast<double>(times * values.size() * sizeof(double));
  });
}

const char* vector_name() {
#if defined(__x86_64__)
  if (vectors() == Vectors::avx512) return "AVX-512";
  if (vectors() == Vectors::avx2) return "AVX2 with FMA";
#endif
  return "plain C++";
}

}  // namespace bench
