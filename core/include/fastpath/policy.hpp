#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fastpath/export.hpp"
#include "fastpath/registry.hpp"
#include "fastpath/types.hpp"

namespace fastpath {

/// From how many edges on a fast path is worth it, per device model. A plain value; safe to share once built.
struct FASTPATH_EXPORT AutoPolicy {
  /// Ordered: the first entry whose text occurs in the device's name (DeviceInfo::name, any case) counts.
  using Table = std::vector<std::pair<std::string, std::int64_t>>;

  Table min_edges;                     ///< For every dtype but float64.
  Table min_edges_float64;             ///< For float64.
  std::int64_t default_min_edges = 0;  ///< Where no entry of min_edges matches.
  std::int64_t default_min_edges_float64 = 0;
  std::vector<std::string> preference;  ///< Globs of plugin ids: between usable kernels an earlier match wins.

  /// The smallest edge count for which the fast path is wanted on this device. Pure.
  std::int64_t threshold(const DeviceInfo& device, DType dtype) const;
  /// True where the device is not a CPU and num_edges >= threshold(device, dtype). Pure.
  bool decide(const DeviceInfo& device, DType dtype, std::int64_t num_edges) const;

  /// Published thresholds per GPU model (docs/policy.md). Never null.
  static const std::shared_ptr<const AutoPolicy>& builtin();
};

}  // namespace fastpath
