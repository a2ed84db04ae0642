#include "target.hpp"

#include <atomic>

#include "hwy/highway.h"
#include "hwy/targets.h"

namespace cpu_simd {
namespace {

struct Known {
  Target target;
  std::int64_t bit;
  std::string_view name;
};
// The best first.
constexpr std::array<Known, kTargets> kKnown{{{Target::avx3, HWY_AVX3, "avx3"},
                                              {Target::avx2, HWY_AVX2, "avx2"},
                                              {Target::sse4, HWY_SSE4, "sse4"},
                                              {Target::neon, HWY_NEON, "neon"}}};

std::atomic<Target> target{Target::sse4};

std::string list(const std::vector<std::string_view>& names, std::string_view last) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    text += i == 0 ? "" : i + 1 == names.size() ? last : ", ";
    text += names[i];
  }
  return text;
}

}  // namespace

std::string_view name_of(Target wanted) {
  for (const Known& known : kKnown) {
    if (known.target == wanted) return known.name;
  }
  return "?";
}

std::vector<Target> available_targets() {
  const std::int64_t here = hwy::SupportedTargets() & HWY_TARGETS;
  std::vector<Target> result;
  for (const Known& known : kKnown) {
    if ((here & known.bit) != 0) result.push_back(known.target);
  }
  return result;
}

std::string available_text() {
  std::vector<std::string_view> names;
  for (const Target candidate : available_targets()) names.push_back(name_of(candidate));
  if (!names.empty()) return list(names, " or ");
  for (const Known& known : kKnown) {
    if ((HWY_TARGETS & known.bit) != 0) names.push_back(known.name);
  }
  return "none of " + list(names, ", ");
}

std::optional<std::string> choose_target(const std::optional<std::string>& wanted) {
  const std::vector<Target> available = available_targets();
  if (wanted && !wanted->empty()) {
    for (const Target candidate : available) {
      if (name_of(candidate) != *wanted) continue;
      target = candidate;
      return std::nullopt;
    }
    return "FASTPATH_CPU_SIMD_TARGET is '" + *wanted + "', but this CPU can run " + available_text();
  }
  if (available.empty()) return "this CPU can run " + available_text();
  target = available.front();
  return std::nullopt;
}

Target chosen_target() { return target; }

}  // namespace cpu_simd
