#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness.hpp"

/// What this machine can do, measured: what results are compared with.
namespace bench {

/// A cache of the first processor.
struct Cache {
  std::string level;  ///< "L1", "L2", "L3".
  std::uint64_t bytes = 0;
};
/// Data caches as the system describes them, the smallest first; usual sizes where it does not.
std::vector<Cache> caches();

/// Reading arrays again and again, one array a thread.
struct ReadRate {
  std::string level;            ///< Which memory it shows: "L1", "L2", "L3", "memory"; empty: a size between.
  std::uint64_t bytes = 0;      ///< Of the array of each thread.
  double bytes_per_second = 0;  ///< Of all threads together.
};

/// The best rates of so many threads at once.
struct Rates {
  int threads = 1;
  double float32_flops = 0, float64_flops = 0;  ///< Fused multiply-adds, two FLOPs each, by the widest vectors.
  std::vector<ReadRate> reads;                  ///< By size.

  double flops(int element_bytes) const { return element_bytes == 4 ? float32_flops : float64_flops; }
  /// Bytes a second from an array of so many bytes, a part of it a thread; between measured sizes by power laws.
  double bandwidth(double bytes) const;
};

/// @param seconds  For each of the measurements (seven).
Rates measure_rates(int threads, double seconds = 0.2);

/// "AVX-512", "AVX2 with FMA", or what the compiler makes of plain C++.
const char* vector_name();

/// Members "vectors", "caches" and "rates" of an object that is open.
void put_rates(JsonWriter& json, const std::vector<Rates>& rates);
/// The same as lines of text.
std::string rates_text(const std::vector<Rates>& rates);

}  // namespace bench
