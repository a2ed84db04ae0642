#include <fmt/format.h>

#include <array>
#include <cstddef>

#include "fastpath/error.hpp"
#include "fastpath/registry.hpp"

namespace fastpath {

std::string_view to_string(PluginState state) noexcept {
  switch (state) {
    case PluginState::usable:
      return "usable";
    case PluginState::idle:
      return "idle";
    case PluginState::disabled:
      return "disabled";
    case PluginState::shadowed:
      return "shadowed";
    case PluginState::rejected:
      return "rejected";
    case PluginState::quarantined:
      return "quarantined";
  }
  return "rejected";
}

std::string_view to_string(Stage stage) noexcept {
  constexpr std::array<std::string_view, 11> kNames{"directory", "file", "object",    "metadata", "trust",  "cache",
                                                    "probe",     "load", "negotiate", "devices",  "kernels"};
  const auto index = static_cast<std::size_t>(stage);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string_view to_string(ProbeMode mode) noexcept {
  switch (mode) {
    case ProbeMode::automatic:
      return "automatic";
    case ProbeMode::helper:
      return "helper";
    case ProbeMode::in_process:
      return "in_process";
  }
  return "automatic";
}

ProbeMode parse_probe_mode(std::string_view text) {
  for (const ProbeMode mode : {ProbeMode::automatic, ProbeMode::helper, ProbeMode::in_process}) {
    if (text == to_string(mode)) return mode;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("'{}' is no way of trying plugins; there are automatic, helper and in_process", text));
}

std::string_view to_string(StageReport::Verdict verdict) noexcept {
  switch (verdict) {
    case StageReport::Verdict::passed:
      return "passed";
    case StageReport::Verdict::failed:
      return "failed";
    case StageReport::Verdict::skipped:
      return "skipped";
  }
  return "unknown";
}

}  // namespace fastpath
