#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <filesystem>
#include <functional>
#include <set>

#include "command_line.hpp"
#include "fastpath/context.hpp"
#include "fastpath/error.hpp"
#include "fastpath/measurement.hpp"
#include "json.hpp"
#include "model_options.hpp"
#include "table.hpp"

namespace fastpath::cli {

namespace {

constexpr std::array kActions{"list", "export", "import", "merge", "forget"};

MeasurementLayer layer_of(const CommandLine& line) {
  const std::string name = line.text("layer");
  if (name == "user") return MeasurementLayer::user;
  if (name == "project") return MeasurementLayer::project;
  line.fail(fmt::format("--layer: '{}', expected user or project", name));
}

std::filesystem::path directory_of(const MeasurementDirectories& directories, MeasurementLayer layer) {
  return layer == MeasurementLayer::user ? directories.user : directories.project;
}

/// Every kind of device of which there may be records here.
MeasurementSituation situation_of(Context& context) {
  return MeasurementSituation::of(context, {DeviceKind::cpu, DeviceKind::cuda, DeviceKind::hip, DeviceKind::opencl});
}

std::string day(std::int64_t unix_time) {
  const auto time = static_cast<std::time_t>(unix_time);
  std::tm utc{};
  return ::gmtime_r(&time, &utc) != nullptr ? fmt::format("{:%Y-%m-%d}", utc) : std::string("?");
}

std::string state_of(const MeasurementRecord& record) {
  if (!record.reasons.empty()) return std::string(to_string(record.reasons.front().code));
  return record.counts ? "counts" : "";
}

Json json_of(const MeasurementRecord& record) {
  const Measurement& m = record.measurement;
  Json reasons = Json::array();
  for (const Reason& reason : record.reasons) reasons.push_back(cli::json_of(reason));
  Json points = Json::array();
  for (const MeasuredPoint& point : m.points) {
    Json json = {{"edges", point.n_edges}, {"nodes", point.n_nodes}, {"conclusive", point.conclusive}};
    if (point.conclusive) {
      json["reference_seconds"] = cli::json_of(point.reference_seconds, "a time");
      json["kernel_seconds"] = cli::json_of(point.kernel_seconds, "a time");
      json["reference_spread"] = cli::json_of(point.reference_spread, "a spread");
      json["kernel_spread"] = cli::json_of(point.kernel_spread, "a spread");
    }
    points.push_back(std::move(json));
  }
  const bool read = !m.key.op.empty();
  return {{"layer", std::string(to_string(record.layer))},
          {"file", record.file.string()},
          {"line", record.line},
          {"counts", record.counts},
          {"reasons", std::move(reasons)},
          {"op", m.key.op},
          {"config", m.key.config},
          {"device", m.key.device},
          {"dtype", read ? std::string(to_string(m.key.dtype)) : std::string()},
          {"passes", m.key.passes},
          {"threads", m.key.threads},
          {"plugin", m.key.plugin},
          {"plugin_build", m.plugin_build},
          {"library_version", m.library_version},
          {"driver", m.driver},
          {"host", m.host},
          {"unix_time", m.unix_time},
          {"inconclusive", m.inconclusive},
          {"windows", cli::json_of(m.windows)},
          {"points", std::move(points)}};
}

void print_problems(const MeasurementStore& store) {
  for (const Reason& problem : store.problems()) print_error("warning", problem.text);
}

int list(const MeasurementStore& store, Context& context, bool as_json,
         const std::function<bool(const Measurement&)>& wanted) {
  std::vector<MeasurementRecord> records = store.records(situation_of(context));
  // Lines that are no records belong to nothing that could be asked for; they are always shown.
  std::erase_if(records, [&](const MeasurementRecord& record) {
    return !record.measurement.key.op.empty() && wanted && !wanted(record.measurement);
  });
  print_problems(store);
  const MeasurementDirectories& directories = store.directories();
  if (as_json) {
    Json system = Json::array();
    for (const std::filesystem::path& directory : directories.system) system.push_back(directory.string());
    Json json = {{"directories",
                  {{"system", std::move(system)},
                   {"user", directories.user.string()},
                   {"project", directories.project.string()}}},
                 {"records", Json::array()}};
    for (const MeasurementRecord& record : records) json["records"].push_back(json_of(record));
    print_json(json, Layout::indented);
    return 0;
  }
  if (records.empty()) {
    print(fmt::format("Nothing was measured; measurements of this machine go to {}\n", directories.user.string()));
    return 0;
  }
  Table table;
  for (const char* title : {"op", "plugin", "device", "dtype", "made", "state"}) table.column(title);
  std::set<std::string> why;
  for (const MeasurementRecord& record : records) {
    const Measurement& m = record.measurement;
    const bool read = !m.key.op.empty();
    table.row({read ? m.key.op : fmt::format("{}:{}", record.file.filename().string(), record.line),
               m.key.plugin,
               m.key.device.substr(0, m.key.device.find(' ')),
               read ? std::string(to_string(m.key.dtype)) : "",
               read ? day(m.unix_time) : "",
               {state_of(record), record.counts ? Style::good : Style::dim}});
    for (const Reason& reason : record.reasons) why.insert(fmt::format("{}: {}", to_string(reason.code), reason.text));
  }
  print(table.text());
  if (!why.empty()) print("\n");
  for (const std::string& text : why) {
    for (const std::string& part : wrap(one_line(text), static_cast<std::size_t>(terminal_width()))) print(part + "\n");
  }
  return 0;
}

void tell_skipped(const MeasurementChange& change) {
  for (const Reason& reason : change.skipped) print_error("warning", "skipped: " + reason.text);
}

}  // namespace

int run_tune_store(const Arguments& arguments) {
  CommandLine line("fastpath tune", "", "what was measured on this machine");
  line.describe(
      "With one of --list, --export, --import, --merge and --forget nothing is measured;\n"
      "these look after the records of earlier runs (docs/policy.md).");
  line.add()("list", po::bool_switch(), "print every record, and why one does not count");
  line.add()("export", po::value<std::string>()->value_name("FILE"), "write the records of all layers to one file");
  line.add()("import", po::value<std::string>()->value_name("FILE"),
             "add the records of such a file, or of a directory");
  line.add()("merge", po::bool_switch(), "make one file of a layer, without what newer records say better");
  line.add()("forget", po::bool_switch(), "remove records: those of --op and --plugin, --stale ones, or --all");
  line.add()("layer", po::value<std::string>()->value_name("NAME")->default_value("user"),
             "user or project: what is changed");
  line.add()("op", po::value<std::string>()->value_name("GLOB"),
             "only records of these ops; 'model': whole evaluations");
  line.add()("plugin", po::value<std::string>()->value_name("GLOB"), "only records of these plugins");
  line.add()("stale", po::bool_switch(), "with --forget: only records that do not count any more, or are stale");
  line.add()("all", po::bool_switch(), "with --forget: every record of the layer");
  line.add()("json", po::bool_switch(), "print everything as JSON");
  add_plugin_options(line);
  line.example("fastpath tune --list");
  line.example("fastpath tune --export measured.jsonl --plugin 'cpu_*'");
  line.example("fastpath tune --forget --stale");
  if (!line.parse(arguments)) return 0;

  const auto asked = [&](const std::string& action) {
    return action == "export" || action == "import" ? line.given(action) : line.get<bool>(action);
  };
  const auto number = std::count_if(kActions.begin(), kActions.end(), asked);
  if (number != 1) line.fail("expected one of --list, --export, --import, --merge and --forget");
  const MeasurementLayer layer = layer_of(line);
  const bool filtered = line.given("op") || line.given("plugin");
  const auto wanted = [op = line.text("op"), plugin = line.text("plugin")](const Measurement& m) {
    return (op.empty() || ::fnmatch(op.c_str(), m.key.op.c_str(), 0) == 0) &&
           (plugin.empty() || ::fnmatch(plugin.c_str(), m.key.plugin.c_str(), 0) == 0);
  };
  if (filtered && (asked("import") || asked("merge"))) line.fail("--op and --plugin: not with --import or --merge");
  if (!asked("forget") && (line.get<bool>("stale") || line.get<bool>("all"))) {
    line.fail("--stale and --all: only with --forget");
  }

  MeasurementStore store(MeasurementDirectories::defaults());
  ContextOptions options;
  options.registry = registry_options(line);
  Context context(std::move(options));
  if (asked("list")) {
    const int status = list(store, context, line.get<bool>("json"), wanted);
    (void)context.registry().shutdown();
    return status;
  }

  MeasurementChange change;
  Json json;
  std::string text;
  const std::string where = directory_of(store.directories(), layer).string();
  if (asked("export")) {
    const std::string file = line.text("export");
    if (file.empty()) line.fail("--export: the file's name is empty");
    change = store.export_file(file, wanted);
    text = fmt::format("{} records written to {}\n", change.kept, file);
  } else if (asked("import")) {
    change = store.import_file(line.text("import"), layer);
    text = fmt::format("{} records added to {}, {} were there\n", change.added, where, change.known);
  } else if (asked("merge")) {
    change = store.merge(layer);
    text = fmt::format("{} records kept in {}, {} removed, {} lines were no records\n", change.kept, where,
                       change.removed, change.skipped.size());
  } else {
    const bool stale = line.get<bool>("stale"), all = line.get<bool>("all");
    if (!filtered && !stale && !all) line.fail("--forget: expected --op, --plugin, --stale or --all to say what");
    if (all && (filtered || stale)) line.fail("--forget --all: together with --op, --plugin or --stale");
    std::vector<Measurement> gone;
    if (stale) {
      for (const MeasurementRecord& record : store.records(situation_of(context))) {
        if (!record.reasons.empty() && record.layer == layer) gone.push_back(record.measurement);
      }
      (void)context.registry().shutdown();
    }
    change = store.forget(
        [&](const Measurement& m) {
          return wanted(m) && (!stale || std::find(gone.begin(), gone.end(), m) != gone.end());
        },
        layer);
    text = fmt::format("{} records removed from {}, {} are left\n", change.removed, where, change.kept);
  }
  tell_skipped(change);
  print_problems(store);
  if (line.get<bool>("json")) {
    Json skipped = Json::array();
    for (const Reason& reason : change.skipped) skipped.push_back(cli::json_of(reason));
    json = {{"kept", change.kept},
            {"removed", change.removed},
            {"added", change.added},
            {"known", change.known},
            {"skipped", std::move(skipped)}};
    print_json(json, Layout::indented);
  } else {
    print(text);
  }
  return 0;
}

}  // namespace fastpath::cli
