#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "command_line.hpp"
#include "fastpath/hub.hpp"
#include "hub.hpp"
#include "json.hpp"
#include "table.hpp"

namespace fastpath::cli {

namespace {

constexpr const char* kAboutHubs =
    "A hub is a directory of model folders. FASTPATH_HUB names one or several,\n"
    "separated by ':'; without it there is $XDG_DATA_HOME/fastpath/models, or\n"
    "~/.local/share/fastpath/models. Wherever a model folder is expected, a name\n"
    "means the first folder of this name.";

std::string size_of(std::uint64_t bytes) {
  return bytes < 100000 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} MB", static_cast<double>(bytes) * 1e-6);
}

Style style_of(const HubModel& model) {
  if (model.state == HubModel::State::broken) return Style::bad;
  return model.shadowed || model.state == HubModel::State::no_checksums ? Style::dim : Style::good;
}

Json json_of(const HubModel& model) {
  return {{"name", model.name},
          {"directory", model.directory.string()},
          {"state", to_string(model.state)},
          {"problem", model.problem},
          {"bytes", model.bytes},
          {"shadowed", model.shadowed}};
}

void print_models(const std::vector<HubModel>& models) {
  Table table;
  table.column("name");
  table.column("state");
  table.column("size", Table::Align::right);
  table.column("folder", Table::Align::left, 24);
  for (const HubModel& model : models) {
    std::string where = model.directory.string();
    if (model.shadowed) where += "; shadowed by one of the same name before it";
    if (!model.problem.empty()) where += ": " + model.problem;
    table.row({one_line(model.name),
               {std::string(to_string(model.state)), style_of(model)},
               size_of(model.bytes),
               one_line(where)});
  }
  print(table.text());
}

}  // namespace

int run_hub_list(const Arguments& arguments) {
  CommandLine line("fastpath hub list", "", "the models that can be named");
  line.describe(std::string(kAboutHubs) +
                "\n\nOne from which a file is missing is 'broken' and cannot be used by its name;\n"
                "what files hold is compared by `fastpath hub verify`, and whenever a model is\n"
                "used.");
  line.add()("json", po::bool_switch(), "print everything as JSON");
  line.example("fastpath hub list --json");
  if (!line.parse(arguments)) return 0;

  const std::vector<HubModel> models = hub_models(false);
  const std::vector<std::filesystem::path> hubs = hub_directories();
  if (line.get<bool>("json")) {
    Json json = {{"hubs", Json::array()}, {"models", Json::array()}};
    for (const auto& hub : hubs) {
      std::error_code ignored;
      json["hubs"].push_back({{"directory", hub.string()}, {"exists", std::filesystem::is_directory(hub, ignored)}});
    }
    for (const HubModel& model : models) json["models"].push_back(json_of(model));
    print_json(json, Layout::indented);
    return 0;
  }
  print("Hubs, first match wins:\n");
  for (const auto& hub : hubs) {
    std::error_code ignored;
    const bool exists = std::filesystem::is_directory(hub, ignored);
    const bool other = !exists && std::filesystem::exists(hub, ignored);
    print(fmt::format("  {}{}\n", one_line(hub.string()),
                      exists  ? ""
                      : other ? " (is no directory)"
                              : " (does not exist)"));
  }
  if (hubs.empty()) {
    const char* const variable = std::getenv("FASTPATH_HUB");
    print(variable != nullptr && *variable != '\0'
              ? fmt::format("  none: FASTPATH_HUB is '{}', which names no directory\n", one_line(variable))
              : "  none: FASTPATH_HUB, XDG_DATA_HOME and HOME are not set\n");
  }
  print("\n");
  if (models.empty()) {
    print("There is no model yet. `fastpath hub add DIR` copies a model folder here.\n");
  } else {
    print_models(models);
  }
  return 0;
}

int run_hub_verify(const Arguments& arguments) {
  CommandLine line("fastpath hub verify", "[NAME...]", "compares models with their checksums");
  line.describe(
      "Reads every file of the named models, or of all models in all hubs, and compares\n"
      "it with SHA256SUMS. The exit status is 1 if a model is broken. One without\n"
      "checksums, put there by hand, cannot be compared and counts as good.");
  line.add()("json", po::bool_switch(), "print everything as JSON");
  line.operands("name", -1);
  line.example("fastpath hub verify silicon");
  if (!line.parse(arguments)) return 0;

  std::vector<HubModel> models;
  for (const std::string& name : line.list("name")) models.push_back(find_hub_model(name, true));
  if (line.list("name").empty()) models = hub_models(true);
  const bool broken = std::any_of(models.begin(), models.end(),
                                  [](const HubModel& model) { return model.state == HubModel::State::broken; });
  if (line.get<bool>("json")) {
    Json json = {{"models", Json::array()}, {"broken", broken}};
    for (const HubModel& model : models) json["models"].push_back(json_of(model));
    print_json(json, Layout::indented);
  } else if (models.empty()) {
    print("There is no model in any hub.\n");
  } else {
    print_models(models);
  }
  return broken ? 1 : 0;
}

}  // namespace fastpath::cli
