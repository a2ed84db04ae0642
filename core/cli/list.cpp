#include <fmt/format.h>

#include <algorithm>

#include "command_line.hpp"
#include "fastpath/registry.hpp"
#include "json.hpp"
#include "model_options.hpp"
#include "table.hpp"

namespace fastpath::cli {

namespace {

Style style_of(PluginState state) {
  switch (state) {
    case PluginState::usable:
      return Style::good;
    case PluginState::rejected:
    case PluginState::quarantined:
      return Style::bad;
    case PluginState::idle:
    case PluginState::disabled:
    case PluginState::shadowed:
      break;
  }
  return Style::dim;
}

std::string devices_of(const PluginInfo& plugin) {
  std::string result;
  for (const DeviceInfo& device : plugin.devices) {
    result += fmt::format("{}{}", result.empty() ? "" : ", ", to_string(device.device));
  }
  if (!result.empty()) return result;
  for (const DeviceKind kind : plugin.device_kinds) {
    result += fmt::format("{}{}", result.empty() ? "no " : ", ", to_string(kind));
  }
  return result;
}

void print_table(const ScanReport& report) {
  print("Search path, first match wins:\n");
  for (const SearchDirectory& directory : report.directories) {
    const bool searched = directory.reason.code == ReasonCode::usable;
    print(fmt::format("  {} ({}{}{})\n", one_line(directory.path.string()), directory.source, searched ? "" : "; ",
                      searched ? "" : one_line(directory.reason.text)));
  }
  print("\n");
  if (report.files.empty()) {
    print(
        "No plugin was found: models run their reference.\n"
        "A plugin is a file fastpath_*.so in one of the directories above.\n");
    return;
  }
  Table table;
  for (const char* title : {"id", "version", "vendor", "state", "devices"}) table.column(title);
  const bool with_trust = std::any_of(report.files.begin(), report.files.end(),
                                      [](const FileReport& file) { return file.trust != "unchecked"; });
  if (with_trust) table.column("trust", Table::Align::left, 10);
  table.column("reason", Table::Align::left, 32);
  for (const FileReport& file : report.files) {
    const PluginInfo& plugin = file.plugin;
    const std::string state(to_string(plugin.state));
    std::string reason = plugin.reason.text;
    if (plugin.reason.code != ReasonCode::usable) {
      reason = fmt::format("{}: {}", to_string(plugin.reason.code), reason);
    } else if (reason.empty()) {
      reason = fmt::format("{} kernels", plugin.kernels.size());
    }
    std::vector<Cell> row{
        plugin.id, plugin.version, plugin.vendor, {state, style_of(plugin.state)}, devices_of(plugin)};
    if (with_trust) row.emplace_back(file.trust, file.trust == "trusted" ? Style::good : Style::plain);
    row.emplace_back(reason);
    table.row(std::move(row));
  }
  print(table.text());
}

}  // namespace

int run_list(const Arguments& arguments) {
  CommandLine line("fastpath list", "", "the plugins of this machine, and why one is not used");
  line.describe(
      "Looks at every file fastpath_*.so of the search path. A file that cannot be used\n"
      "is listed with its reason; docs/reasons.md says what to do. No GPU is opened.");
  line.add()("json", po::bool_switch(), "print everything as JSON");
  add_plugin_options(line);
  line.example("fastpath list --plugin-path build/release/lib/fastpath/plugins");
  if (!line.parse(arguments)) return 0;

  PluginRegistry registry(registry_options(line));
  const ScanReport report = registry.scan_report();
  if (!line.get<bool>("json")) {
    print_table(report);
    return 0;
  }
  Json json = {{"search_path", Json::array()}, {"plugins", Json::array()}};
  for (const SearchDirectory& directory : report.directories) json["search_path"].push_back(json_of(directory));
  for (const FileReport& file : report.files) json["plugins"].push_back(json_of(file));
  print_json(json, Layout::indented);
  return 0;
}

}  // namespace fastpath::cli
