#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cpu_simd {

/// The instruction sets that there is code for, whichever of them this build has.
enum class Target { sse4, avx2, avx3, neon };
inline constexpr std::size_t kTargets = 4;

/// As in FASTPATH_CPU_SIMD_TARGET. avx3 is AVX-512 with its F, BW, DQ and VL parts.
std::string_view name_of(Target target);

/// Those that this build has code for and this CPU can run, the best first.
std::vector<Target> available_targets();

/// Names of what this CPU can run, for a message: "avx3, avx2 or sse4", or "none of sse4, avx2, avx3".
std::string available_text();

/// Chooses the instruction set of all kernels, for good: called once, before any kernel is made.
/// @param wanted  A name, or nothing: the best one.
/// @return Why there is none to run, or nothing.
std::optional<std::string> choose_target(const std::optional<std::string>& wanted);

/// What was chosen. Only after choose_target() has returned nothing.
Target chosen_target();

/// Of one function per instruction set, null where this build has none, the one that was chosen.
template <class F>
F* for_chosen(const std::array<F*, kTargets>& functions) {
  return functions[static_cast<std::size_t>(chosen_target())];
}

}  // namespace cpu_simd

/// The function that was compiled for the chosen instruction set: FASTPATH_FOR_TARGET(Type, function) where `function`
/// stands in HWY_NAMESPACE of the namespace that this is used in. Only after highway.h, in the part under HWY_ONCE.
#define FASTPATH_FOR_TARGET(type, function) \
  ::cpu_simd::for_chosen<type>(             \
      {HWY_CHOOSE_SSE4(function), HWY_CHOOSE_AVX2(function), HWY_CHOOSE_AVX3(function), HWY_CHOOSE_NEON(function)})
