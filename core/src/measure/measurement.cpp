#include "fastpath/measurement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dispatch/module_state.hpp"
#include "fastpath/sdk/attributes.hpp"
#include "plugin/plugin.hpp"

namespace fastpath {
namespace {

class Fnv {
 public:
  void add(std::string_view text) {
    for (const char c : text) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    state_ = (state_ ^ 0xffu) * 0x100000001b3u;  // a byte that no text has: where it ended
  }
  std::string text() const { return fmt::format("{:016x}", state_); }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

double log_of(std::int64_t edges) { return std::log(static_cast<double>(std::max<std::int64_t>(edges, 1))); }

double seconds_of(const MeasuredPoint& point, Arm arm) {
  return arm == Arm::reference ? point.reference_seconds : point.kernel_seconds;
}

}  // namespace

std::string device_class(const DeviceInfo& device) {
  return fmt::format("{} {} {} {}", to_string(device.device.kind), device.name, device.arch, device.units);
}

std::string op_config(const OpSpec& op) { return fmt::format("{:016x}", sdk::Attributes(op.config).hash()); }

std::string model_config(const std::vector<NamedFastModule>& modules) {
  Fnv hash;
  for (const NamedFastModule& named : modules) {
    const OpSpec& op = named.module->op();
    hash.add(op.id);
    hash.add(std::to_string(op.version));
    hash.add(op_config(op));
  }
  return hash.text();
}

MeasurementKey measurement_key(const OpSpec& op, const std::string& plugin, const DeviceInfo& device, DType dtype,
                               Passes passes, int threads) {
  return {op.id,
          op.version,
          op_config(op),
          device_class(device),
          dtype,
          passes.bits(),
          device.device.is_cpu() ? threads : 0,
          plugin};
}

MeasurementKey measurement_key(const std::vector<NamedFastModule>& modules, const DeviceInfo& device, DType dtype,
                               Passes passes, int threads) {
  return {std::string(kModelOp),
          1,
          model_config(modules),
          device_class(device),
          dtype,
          passes.bits(),
          device.device.is_cpu() ? threads : 0,
          std::string(kEveryPlugin)};
}

std::string plugin_build(Context& context, DeviceKind kind, std::string_view plugin) {
  const auto usable = context.registry().impl().usable(kind);
  if (plugin != kEveryPlugin) {
    const auto found =
        std::find_if(usable.begin(), usable.end(), [&](const auto& p) { return p->info().id == plugin; });
    return found == usable.end() ? std::string() : (*found)->build();
  }
  if (usable.empty()) return {};
  Fnv hash;  // in search order, which decides among equals
  for (const auto& p : usable) hash.add(p->build());
  return hash.text();
}

std::int64_t largest_measured(const Measurement& measurement) noexcept {
  std::int64_t largest = 0;
  for (const MeasuredPoint& point : measurement.points) {
    if (point.conclusive) largest = std::max(largest, point.n_edges);
  }
  return largest;
}

std::optional<double> predict_seconds(const std::vector<MeasuredPoint>& points, std::int64_t n_edges, Arm arm) {
  // The two nearest conclusive points: around the size, or the outermost ones.
  const MeasuredPoint* below = nullptr;
  const MeasuredPoint* above = nullptr;
  const MeasuredPoint* before_below = nullptr;
  const MeasuredPoint* after_above = nullptr;
  for (const MeasuredPoint& point : points) {
    if (!point.conclusive) continue;
    if (point.n_edges <= n_edges) {
      before_below = below;
      below = &point;
    } else if (above == nullptr) {
      above = &point;
    } else if (after_above == nullptr) {
      after_above = &point;
    }
  }
  const MeasuredPoint* const nearest = below != nullptr ? below : above;
  if (nearest == nullptr) return std::nullopt;
  if (below == nullptr || above == nullptr) {
    constexpr double kFarthest = 0.6931471805599453 + 1e-12;  // a factor of 2
    if (std::abs(log_of(n_edges) - log_of(nearest->n_edges)) > kFarthest) return std::nullopt;
  }
  const MeasuredPoint* const other = below == nullptr ? after_above : above == nullptr ? before_below : above;
  const double y = std::log(seconds_of(*nearest, arm));
  if (other == nullptr || log_of(other->n_edges) == log_of(nearest->n_edges)) return std::exp(y);
  const double slope = (std::log(seconds_of(*other, arm)) - y) / (log_of(other->n_edges) - log_of(nearest->n_edges));
  return std::exp(y + slope * (log_of(n_edges) - log_of(nearest->n_edges)));
}

std::string_view to_string(MeasurementLayer layer) noexcept {
  switch (layer) {
    case MeasurementLayer::system:
      return "system";
    case MeasurementLayer::user:
      return "user";
    case MeasurementLayer::project:
      return "project";
  }
  return "user";
}

MeasurementSituation MeasurementSituation::of(Context& context, const std::vector<DeviceKind>& kinds) {
  MeasurementSituation situation;
  situation.devices.push_back(cpu_info());
  for (const DeviceKind kind : kinds) {
    for (const auto& plugin : context.registry().impl().usable(kind)) {
      situation.builds[plugin->info().id] = plugin->build();
      for (const DeviceInfo& device : plugin->info().devices) {
        if (!device.device.is_cpu()) situation.devices.push_back(device);
      }
    }
    situation.builds[fmt::format("{} {}", kEveryPlugin, to_string(kind))] = plugin_build(context, kind, kEveryPlugin);
  }
  return situation;
}

}  // namespace fastpath
