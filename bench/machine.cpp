#include "machine.hpp"

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <memory>
#include <new>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bench {
namespace {

/// Keeps a value from being optimised away.
thread_local volatile double sink = 0;

constexpr std::int64_t kSteps = 500000;
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

#define BENCH_READ_LOOP(name, isa, type, width, zero, add, load, first)                         \
  __attribute__((target(isa))) double name(const double* values, std::size_t n) {               \
    type sums[8];                                                                               \
    for (type & sum : sums) sum = zero();                                                       \
    for (std::size_t i = 0; i + 8 * (width) <= n; i += 8 * (width)) {                           \
      for (std::size_t k = 0; k < 8; ++k) sums[k] = add(sums[k], load(values + i + (width)*k)); \
    }                                                                                           \
    for (std::size_t k = 1; k < 8; ++k) sums[0] = add(sums[0], sums[k]);                        \
    return first(sums[0]);                                                                      \
  }
BENCH_READ_LOOP(read_avx512, "avx512f", __m512d, 8, _mm512_setzero_pd, _mm512_add_pd, _mm512_load_pd, BENCH_FIRST_512D)
BENCH_READ_LOOP(read_avx2, "avx2", __m256d, 4, _mm256_setzero_pd, _mm256_add_pd, _mm256_load_pd, BENCH_FIRST_256D)
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

double read(const double* values, std::size_t n) {
#if defined(__x86_64__)
  if (vectors() == Vectors::avx512) return read_avx512(values, n);
  if (vectors() == Vectors::avx2) return read_avx2(values, n);
#endif
  return read_plain(values, n);
}

double fused_multiply_adds(int bytes) {
#if defined(__x86_64__)
  if (vectors() == Vectors::avx512) return bytes == 4 ? avx512_float() : avx512_double();
  if (vectors() == Vectors::avx2) return bytes == 4 ? avx2_float() : avx2_double();
#endif
  return bytes == 4 ? plain_flops<float>() : plain_flops<double>();
}

/// The best rate of several threads that each do what `make_run(thread)` gives, over and over, all starting at once.
/// A run returns how much it did. What disturbs only makes it slower, so the best counts.
template <class MakeRun>
double best_rate(int threads, double seconds, const MakeRun& make_run) {
  std::barrier<> barrier(threads);
  std::vector<double> done(static_cast<std::size_t>(threads));
  double best = 0;
  bool more = true;  // written by thread 0 between barriers
  const auto work = [&](int thread) {
    const auto run = make_run(thread);
    const double end = now() + seconds;
    while (true) {
      barrier.arrive_and_wait();
      if (!more) break;
      const double start = now();
      done[static_cast<std::size_t>(thread)] = run();
      barrier.arrive_and_wait();
      if (thread != 0) continue;
      double total = 0;
      for (const double each : done) total += each;
      best = std::max(best, total / std::max(now() - start, std::numeric_limits<double>::min()));
      more = now() < end;
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work, i);
  work(0);
  for (std::thread& other : others) other.join();
  return best;
}

double read_rate(int threads, std::uint64_t bytes, double seconds) {
  struct Free {
    void operator()(double* memory) const { std::free(memory); }
  };
  const std::size_t n = std::max<std::size_t>(bytes / sizeof(double) / 64 * 64, 64);
  return best_rate(threads, seconds, [&](int) {
    std::shared_ptr<double> values(static_cast<double*>(std::aligned_alloc(64, n * sizeof(double))), Free());
    if (values == nullptr) throw std::bad_alloc();
    std::fill_n(values.get(), n, 1.0);
    // Small arrays many times, or the clock would be what is measured.
    const std::size_t times = std::max<std::size_t>(1, (std::size_t{1} << 26) / (n * sizeof(double)));
    return [values, n, times] {
      for (std::size_t i = 0; i < times; ++i) sink = read(values.get(), n);
      return static_cast<double>(times * n * sizeof(double));
    };
  });
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

}  // namespace

std::vector<Cache> caches() {
  std::vector<Cache> result;
  for (int i = 0; i < 8; ++i) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    const std::string type = first_line(folder + "type"), level = first_line(folder + "level"),
                      size = first_line(folder + "size");
    if (level.empty() || type == "Instruction") continue;
    const std::uint64_t unit = size.ends_with('M') ? 1 << 20 : size.ends_with('K') ? 1 << 10 : 1;
    result.push_back({"L" + level, std::strtoull(size.c_str(), nullptr, 10) * unit});
  }
  std::erase_if(result, [](const Cache& cache) { return cache.bytes == 0; });
  if (result.empty()) result = {{"L1", 32 << 10}, {"L2", 1 << 20}, {"L3", 32 << 20}};
  std::sort(result.begin(), result.end(), [](const Cache& a, const Cache& b) { return a.bytes < b.bytes; });
  return result;
}

double Rates::bandwidth(double bytes) const {
  const double x = std::log(bytes / threads);
  const auto at = [](const ReadRate& rate) { return std::log(static_cast<double>(rate.bytes)); };
  if (x <= at(reads.front())) return reads.front().bytes_per_second;
  for (std::size_t i = 1; i < reads.size(); ++i) {
    if (x > at(reads[i])) continue;
    const double part = (x - at(reads[i - 1])) / (at(reads[i]) - at(reads[i - 1]));
    return reads[i - 1].bytes_per_second * std::pow(reads[i].bytes_per_second / reads[i - 1].bytes_per_second, part);
  }
  return reads.back().bytes_per_second;
}

Rates measure_rates(int threads, double seconds) {
  Rates rates;
  rates.threads = threads;
  rates.float32_flops = best_rate(threads, seconds, [](int) { return [] { return fused_multiply_adds(4); }; });
  rates.float64_flops = best_rate(threads, seconds, [](int) { return [] { return fused_multiply_adds(8); }; });
  // Half of a private cache. The last level may be shared with others, so a few times the cache before it; a size on
  // the way to memory; and twice the last level, shared by the threads, for memory.
  const std::vector<Cache> known = caches();
  const std::uint64_t last = known.back().bytes;
  for (std::size_t i = 0; i < known.size(); ++i) {
    const bool shared = i > 0 && i + 1 == known.size();
    const std::uint64_t bytes = shared ? std::min(last / 2, 8 * known[i - 1].bytes) : known[i].bytes / 2;
    rates.reads.push_back({known[i].level, bytes, 0});
  }
  const std::uint64_t between = last / 2 / static_cast<unsigned>(threads);
  if (between > rates.reads.back().bytes) rates.reads.push_back({"", between, 0});
  rates.reads.push_back(
      {"memory", std::max(std::uint64_t{2} * last, std::uint64_t{64} << 20) / static_cast<unsigned>(threads), 0});
  for (ReadRate& rate : rates.reads) rate.bytes_per_second = read_rate(threads, rate.bytes, seconds);
  return rates;
}

const char* vector_name() {
#if defined(__x86_64__)
  if (vectors() == Vectors::avx512) return "AVX-512";
  if (vectors() == Vectors::avx2) return "AVX2 with FMA";
#endif
  return "plain C++";
}

void put_rates(JsonWriter& json, const std::vector<Rates>& rates) {
  json.put("vectors", vector_name()).begin_array("caches");
  for (const Cache& cache : caches()) json.begin_object().put("level", cache.level).put("bytes", cache.bytes).end();
  json.end().begin_array("rates");
  for (const Rates& rate : rates) {
    json.begin_object().put("threads", rate.threads).put("float32_flops", rate.float32_flops);
    json.put("float64_flops", rate.float64_flops).begin_array("reads");
    for (const ReadRate& read : rate.reads) {
      json.begin_object().put("level", read.level).put("bytes", read.bytes);
      json.put("bytes_per_second", read.bytes_per_second).end();
    }
    json.end().end();
  }
  json.end();
}

std::string rates_text(const std::vector<Rates>& rates) {
  std::string text;
  for (const Rates& rate : rates) {
    text += std::to_string(rate.threads) + (rate.threads == 1 ? " thread, " : " threads, ") + vector_name() + ": " +
            fixed(rate.float32_flops / 1e9, 1) + " GFLOP/s float32, " + fixed(rate.float64_flops / 1e9, 1) +
            " float64; reads";
    for (const ReadRate& read : rate.reads) {
      if (read.level.empty()) continue;
      text += " " + read.level + " " + fixed(read.bytes_per_second / 1e9, 1) + (read.level == "memory" ? " GB/s" : ",");
    }
    text += "\n";
  }
  return text;
}

}  // namespace bench
