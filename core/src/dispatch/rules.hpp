#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "fastpath/context.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/measurement.hpp"

/// What speaks for a kernel or for the reference (docs/policy.md), apart from who asks.
namespace fastpath::rules {

/// The sizes for which a decision holds: those that every comparison on the way to it would have answered alike.
struct Sizes {
  std::int64_t min = 0, max = std::numeric_limits<std::int64_t>::max();
  /// size >= threshold, remembered.
  bool at_least(std::int64_t size, std::int64_t threshold) {
    const bool result = size >= threshold;
    if (result) {
      min = std::max(min, threshold);
    } else {
      max = std::min(max, threshold - 1);
    }
    return result;
  }
  void within(std::int64_t first, std::int64_t last) {
    min = std::max(min, first);
    max = std::min(max, last);
  }
};

/// Of the time of what would run otherwise: what takes more than this part of it is not worth the change.
inline constexpr double kNearTie = 0.97;

/// What one rule says.
struct Speech {
  Reason reason;
  bool fast = false;  ///< For the kernel.
  /// False for a record that leaves the question to later rules.
  bool says_something() const {
    return reason.code != ReasonCode::inconclusive && reason.code != ReasonCode::unmeasured;
  }
};

/// What a record says at a size: measured, tie, inconclusive, or unmeasured beyond what was measured. The sentence
/// holds for all of the sizes.
/// @param arm  Who is faster than the reference: a plugin's id, or "use_fast true".
Speech judge(const MeasurementStore::Found& found, const std::string& arm, std::int64_t n_edges, Sizes& sizes);

/// Times of two kernels, each as a part of the reference's. Those two were timed in turns; the records of the kernels
/// were made one after the other, when the machine may have been slower as a whole.
struct Comparison {
  std::int64_t n_edges;
  double a, b;
};
/// At this size, else at the nearest one for which both are known. Nothing if there is none.
std::optional<Comparison> compare(const std::vector<MeasuredPoint>& a, const std::vector<MeasuredPoint>& b,
                                  std::int64_t n_edges);
/// Leaves the sizes around this one for which compare() has the same answer.
void keep_order(const std::vector<MeasuredPoint>& a, const std::vector<MeasuredPoint>& b, std::int64_t n_edges,
                Sizes& sizes);

/// What FASTPATH_OP_<NAME> says for an op: its value; null if nothing.
const std::string* override_of(Context& context, const std::string& op);
/// The variable's name of an op: FASTPATH_OP_CONV_TENSOR_PRODUCT.
std::string override_name(const std::string& op);
/// @throws Error(invalid_argument) for a variable that names no op, and for one that names neither the reference nor a
///   usable plugin of this kind of device, with what is accepted.
void check_overrides(Context& context, const std::vector<NamedFastModule>& modules, DeviceKind kind);

}  // namespace fastpath::rules
