#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "dispatch/rules.hpp"
#include "fastpath/measurement.hpp"

/// A fused kernel against the parts of its module one by one, by what was measured of each (docs/policy.md).
namespace fastpath::rules {

/// What a path of a module costs.
struct Cost {
  std::shared_ptr<const Measurement> measurement;
  Arm arm = Arm::kernel;
};

/// What fused modules share, and have done once for all of them that are in parts.
struct SharedPart {
  std::optional<Cost> cost;  ///< Nothing if it was not measured.
  bool needed_anyway = false;
};

/// A fused kernel that would run, and the parts that it does the work of.
struct FusedCost {
  std::size_t module = 0;
  Cost kernel;
  std::vector<Cost> own;
  std::vector<std::size_t> shared;  ///< Of a list of SharedPart, by index.
};

enum class Faster { unknown, in_one_piece, in_parts };

/// Which is faster, for each of them in turn; unknown where a part of it was not measured for about this size, and in
/// one piece unless the parts save more than a near tie.
/// @param sizes  Narrowed to those around this one for which the answer is the same.
std::vector<Faster> compare(const std::vector<FusedCost>& fused, const std::vector<SharedPart>& shared,
                            std::int64_t n_edges, Sizes& sizes);

}  // namespace fastpath::rules
