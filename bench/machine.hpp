#pragma once

#include <cstdint>

/// What this machine can do, measured: what results are compared with.
namespace bench {

/// Fused multiply-adds of one thread, in FLOP/s (two a multiply-add), by the widest vectors that the CPU has.
/// @param bytes  4 for float32, 8 for float64.
double peak_flops(int bytes, double seconds = 0.2);

/// Bytes a second that one thread reads from an array of this size, again and again.
double read_bandwidth(std::uint64_t bytes, double seconds = 0.2);

/// "AVX-512", "AVX2 with FMA", or what the compiler makes of plain C++.
const char* vector_name();

}  // namespace bench
