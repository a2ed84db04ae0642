#include "json.hpp"

#include <fmt/format.h>

#include <cmath>

#include "fastpath/error.hpp"
#include "terminal.hpp"

namespace fastpath::cli {

namespace {

Json nested(const double* values, const Shape& shape, std::size_t axis, std::int64_t stride, const std::string& what) {
  if (axis == shape.size()) return json_of(*values, what);
  Json list = Json::array();
  const std::int64_t inner = shape[axis] > 0 ? stride / shape[axis] : 0;
  for (std::int64_t i = 0; i < shape[axis]; ++i)
    list.push_back(nested(values + i * inner, shape, axis + 1, inner, what));
  return list;
}

}  // namespace

Json json_of(double value, const std::string& what) {
  if (!std::isfinite(value))
    throw Error(ErrorCode::numerics, fmt::format("{} is {}, not a finite number", what, value));
  return value;
}

Json json_of(const Tensor& tensor, const std::string& what) {
  if (!tensor.defined()) return nullptr;
  return nested(tensor.data<double>(), tensor.shape(), 0, tensor.numel(), what);
}

Json json_of(const Reason& reason) { return {{"code", std::string(to_string(reason.code))}, {"text", reason.text}}; }

Json json_of(const Decision& decision) {
  Json candidates = Json::array();
  for (const Candidate& candidate : decision.candidates) {
    Json reasons = Json::array();
    for (const Reason& reason : candidate.reasons) reasons.push_back(json_of(reason));
    candidates.push_back({{"plugin", candidate.plugin},
                          {"verdict", std::string(to_string(candidate.verdict))},
                          {"reasons", std::move(reasons)}});
  }
  return {{"module", decision.module},
          {"op", decision.op},
          {"choice", decision.choice},
          {"reason", json_of(decision.reason)},
          {"candidates", std::move(candidates)}};
}

Json json_of(const std::vector<SizeWindow>& windows) {
  Json list = Json::array();
  for (const SizeWindow& window : windows) {
    list.push_back({{"min_edges", window.min_edges},
                    {"max_edges", window.max_edges == 0 ? Json(nullptr) : Json(window.max_edges)},
                    {"min_spread", json_of(window.min_spread, "the spread of a bound")},
                    {"max_spread", json_of(window.max_spread, "the spread of a bound")}});
  }
  return list;
}

Json json_of(const DeviceInfo& device) {
  return {{"name", to_string(device.device)}, {"model", device.name}, {"arch", device.arch}};
}

Json json_of(const PluginInfo& plugin) {
  Json devices = Json::array();
  for (const DeviceInfo& device : plugin.devices) devices.push_back(json_of(device));
  Json kernels = Json::array();
  for (const KernelInfo& kernel : plugin.kernels) {
    Json dtypes = Json::array();
    for (const DType dtype : kernel.dtypes) dtypes.push_back(std::string(to_string(dtype)));
    Json passes = Json::array();
    for (const Pass pass : {Pass::forward, Pass::backward, Pass::forward_tangent, Pass::backward_tangent}) {
      if (kernel.passes.contains(pass)) passes.push_back(to_string(Passes(pass)));
    }
    kernels.push_back({{"op", kernel.op},
                       {"device", std::string(to_string(kernel.device))},
                       {"dtypes", std::move(dtypes)},
                       {"passes", std::move(passes)}});
  }
  return {{"id", plugin.id},
          {"version", plugin.version},
          {"vendor", plugin.vendor},
          {"path", plugin.path.string()},
          {"state", std::string(to_string(plugin.state))},
          {"reason", json_of(plugin.reason)},
          {"devices", std::move(devices)},
          {"kernels", std::move(kernels)}};
}

Json json_of(const FileReport& file) {
  Json json = json_of(file.plugin);
  json["sha256"] = file.sha256;
  json["trust"] = file.trust;
  return json;
}

Json json_of(const SearchDirectory& directory) {
  return {{"directory", directory.path.string()},
          {"source", directory.source},
          {"exists", directory.exists},
          {"reason", json_of(directory.reason)}};
}

void print_json(const Json& json, Layout layout) {
  // Paths may hold any bytes: those that are not UTF-8 are replaced.
  print(json.dump(layout == Layout::indented ? 2 : -1, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace fastpath::cli
