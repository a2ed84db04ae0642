#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
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
  /// The thresholds are what was measured elsewhere: a measurement of this machine counts more. Otherwise an entry that
  /// matches counts more than any measurement.
  bool thresholds_are_priors = false;
  /// Where nothing was measured here, what vendors and fastpath measured on such devices counts.
  bool use_priors = true;

  /// The entry that counts for a device, if there is one. Pure.
  std::optional<std::int64_t> entry(const DeviceInfo& device, DType dtype) const;
  /// The smallest edge count for which the fast path is wanted on this device. Pure.
  std::int64_t threshold(const DeviceInfo& device, DType dtype) const;
  /// True where the device is not a CPU and num_edges >= threshold(device, dtype). Pure.
  bool decide(const DeviceInfo& device, DType dtype, std::int64_t num_edges) const;

  /// A policy from a JSON file: an object with any of the members above ("min_edges": {"A100": 50000, ...}, in the
  /// order of the file). What it does not name is as in a new AutoPolicy (docs/policy.md).
  /// @throws Error(not_found), Error(io), or Error(bad_file) naming the member, what was found and what was expected.
  static std::shared_ptr<const AutoPolicy> load(const std::filesystem::path& file);

  /// Published thresholds per GPU model (docs/policy.md). Never null.
  static const std::shared_ptr<const AutoPolicy>& builtin();

  friend bool operator==(const AutoPolicy&, const AutoPolicy&) = default;
};

}  // namespace fastpath
