#include "fastpath/policy.hpp"

#include <algorithm>
#include <cctype>

namespace fastpath {
namespace {

std::string lower(const std::string& text) {
  std::string result = text;
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

}  // namespace

std::int64_t AutoPolicy::threshold(const DeviceInfo& device, DType dtype) const {
  const Table& table = dtype == DType::float64 ? min_edges_float64 : min_edges;
  const std::string name = lower(device.name);
  for (const auto& [part, edges] : table) {
    if (name.find(lower(part)) != std::string::npos) return edges;
  }
  return dtype == DType::float64 ? default_min_edges_float64 : default_min_edges;
}

bool AutoPolicy::decide(const DeviceInfo& device, DType dtype, std::int64_t num_edges) const {
  return !device.device.is_cpu() && num_edges >= threshold(device, dtype);
}

const std::shared_ptr<const AutoPolicy>& AutoPolicy::builtin() {
  static const auto* policy = new std::shared_ptr<const AutoPolicy>(std::make_shared<const AutoPolicy>(
      AutoPolicy{.min_edges = {{"A100", 50'000}, {"H100", 60'000}, {"H200", 60'000}, {"L40S", 30'000}},
                 .min_edges_float64 = {{"A100", 25'000}, {"H100", 30'000}, {"H200", 30'000}, {"L40S", 0}},
                 .default_min_edges = 50'000,
                 .default_min_edges_float64 = 25'000,
                 .preference = {}}));
  return *policy;
}

}  // namespace fastpath
