#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "command_line.hpp"
#include "exit_code.hpp"
#include "fastpath/context.hpp"
#include "fastpath/measurement.hpp"
#include "fastpath/registry.hpp"
#include "fastpath/version.hpp"
#include "json.hpp"
#include "model_options.hpp"
#include "nearest.hpp"
#include "table.hpp"

namespace fastpath::cli {

namespace {

namespace fs = std::filesystem;

// As docs/cli.md lists them; a test compares.
const std::vector<std::string> kVariables{
    "FASTPATH_ALLOW_GROUP_WRITABLE", "FASTPATH_ALLOW_LIST", "FASTPATH_CACHE_DIR",    "FASTPATH_CHECK_OWNER",
    "FASTPATH_CPU_SIMD_TARGET",      "FASTPATH_HUB",        "FASTPATH_MEASUREMENTS", "FASTPATH_PLUGIN_ONLY_PATH",
    "FASTPATH_PLUGIN_PATH",          "FASTPATH_PROBE",      "FASTPATH_SHADOW",       "FASTPATH_STRICT",
    "FASTPATH_SYSTEM_MEASUREMENTS",  "FASTPATH_TRUST",
};
// What an elevated process listens to all the same: no code comes from there.
// One for each op: FASTPATH_OP_CONV_TENSOR_PRODUCT. Whether there is such an op, a selection says.
constexpr std::string_view kOpVariable = "FASTPATH_OP_";
constexpr std::array<std::string_view, 3> kAlways{"FASTPATH_HUB", "FASTPATH_SHADOW", "FASTPATH_STRICT"};

/// A variable FASTPATH_* that is set.
struct Variable {
  std::string name, value;
  bool known = false;
  std::string note;
};

std::vector<Variable> variables(bool elevated) {
  std::vector<Variable> result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::size_t equals = text.find('=');
    if (!text.starts_with("FASTPATH_") || equals == std::string_view::npos) continue;
    Variable variable{std::string(text.substr(0, equals)), std::string(text.substr(equals + 1)), false, {}};
    variable.known = std::find(kVariables.begin(), kVariables.end(), variable.name) != kVariables.end() ||
                     variable.name.starts_with(kOpVariable);
    if (!variable.known) {
      variable.note = "not a variable of fastpath" + did_you_mean(variable.name, kVariables);
    } else if (elevated && std::find(kAlways.begin(), kAlways.end(), variable.name) == kAlways.end()) {
      variable.note = "ignored, because this process has elevated rights";
    }
    result.push_back(std::move(variable));
  }
  std::sort(result.begin(), result.end(), [](const Variable& a, const Variable& b) { return a.name < b.name; });
  return result;
}

/// The file of the library that runs.
std::string library_path() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&build_info), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const fs::path path = fs::canonical(info.dli_fname, error);
  return error ? info.dli_fname : path.string();
}

bool is_wrong(PluginState state) { return state == PluginState::rejected || state == PluginState::quarantined; }

/// Default directories need not exist; one that somebody named should.
bool is_wrong(const SearchDirectory& directory) {
  switch (directory.reason.code) {
    case ReasonCode::usable:
    case ReasonCode::ignored_elevated:
      return false;
    case ReasonCode::no_directory:
      return directory.source == "api" || directory.source.starts_with("FASTPATH_");
    default:
      return true;
  }
}

/// What was measured on this machine, and whether it still counts.
struct Measured {
  std::size_t records = 0, counting = 0, stale = 0;
  std::vector<Reason> reasons;   ///< Why some do not count, or are stale; each once.
  std::vector<Reason> problems;  ///< Files and directories that cannot be read.
};

Measured measured(const RegistryOptions& options) {
  Measured result;
  const MeasurementStore store(MeasurementDirectories::defaults());
  // Plugins are looked at again only where there is something to compare them with.
  if (!store.records({}).empty() || !store.problems().empty()) {  // lines that cannot be read, too
    ContextOptions context_options;
    context_options.registry = options;
    Context context(std::move(context_options));
    const MeasurementSituation situation =
        MeasurementSituation::of(context, {DeviceKind::cpu, DeviceKind::cuda, DeviceKind::hip, DeviceKind::opencl});
    for (const MeasurementRecord& record : store.records(situation)) {
      ++result.records;
      if (record.counts) ++result.counting;
      for (const Reason& reason : record.reasons) {
        if (reason.code == ReasonCode::stale) ++result.stale;
        const bool known = std::any_of(result.reasons.begin(), result.reasons.end(), [&](const Reason& other) {
          return other.code == reason.code && other.text == reason.text;
        });
        if (!known && reason.code != ReasonCode::superseded) result.reasons.push_back(reason);
      }
    }
    (void)context.registry().shutdown();
  }
  result.problems = store.problems();
  return result;
}

struct Findings {
  std::vector<std::pair<PluginState, std::size_t>>
      states;  ///< How many files are in each; those with none are left out.
  std::size_t files = 0, wrong_files = 0, wrong_directories = 0;
  bool any() const { return wrong_files + wrong_directories > 0; }
};

Findings count(const ScanReport& report) {
  Findings result;
  for (const PluginState state : {PluginState::usable, PluginState::idle, PluginState::disabled, PluginState::shadowed,
                                  PluginState::rejected, PluginState::quarantined}) {
    const auto in_state = [&](const FileReport& file) { return file.plugin.state == state; };
    const auto n = static_cast<std::size_t>(std::count_if(report.files.begin(), report.files.end(), in_state));
    if (n > 0) result.states.emplace_back(state, n);
    if (is_wrong(state)) result.wrong_files += n;
  }
  result.files = report.files.size();
  const auto wrong = [](const SearchDirectory& directory) { return is_wrong(directory); };
  result.wrong_directories =
      static_cast<std::size_t>(std::count_if(report.directories.begin(), report.directories.end(), wrong));
  return result;
}

/// What is known about a file that is fine, in a few words.
std::string cause(const FileReport& file) {
  const PluginInfo& plugin = file.plugin;
  if (!plugin.reason.text.empty()) return plugin.reason.text;
  std::string devices;
  for (const DeviceInfo& device : plugin.devices) {
    devices += fmt::format("{}{}", devices.empty() ? "" : ", ", to_string(device.device));
  }
  return fmt::format("{} kernels on {}", plugin.kernels.size(), devices.empty() ? "no device" : devices);
}

// ---- As text ----

constexpr std::size_t kLabel = 11;

/// A label and a text beside it, wrapped to the terminal.
void field(std::size_t indent, const std::string& label, const std::string& text, Style style = Style::plain) {
  const std::size_t left = indent + kLabel;
  const std::size_t width = static_cast<std::size_t>(terminal_width()) - left;
  std::string start = std::string(indent, ' ') + fmt::format("{:<{}}", label, kLabel);
  for (const std::string& line : wrap(one_line(text), width)) {
    print(start + styled(line, style) + "\n");
    start = std::string(left, ' ');
  }
}

void print_machine(const ScanReport& report, const std::vector<Variable>& set) {
  const BuildInfo& build = build_info();
  field(0, "fastpath",
        fmt::format("{}, plugin ABI {}.{}, {}, {}, {}", build.version, build.abi_major, build.abi_minor, build.compiler,
                    build.build_type, build.system));
  field(0, "library", library_path());
  const DeviceInfo& cpu = cpu_info();
  field(0, "cpu",
        fmt::format("{}, {} threads, {:.1f} GiB", cpu.name, cpu.units,
                    static_cast<double>(cpu.memory_bytes) / (1u << 30)));
  field(0, "user",
        report.elevated ? "with elevated rights: what the environment says about plugins is ignored"
                        : fmt::format("{}", ::geteuid()));
  const std::string cache = report.cache_directory.string();
  field(0, "cache",
        report.cache.code == ReasonCode::usable ? cache + " (can be read and written)"
                                                : (cache.empty() ? "none: " : cache + ": ") + report.cache.text);
  field(0, "probe",
        report.probe.code == ReasonCode::usable ? report.probe_program.string()
                                                : "no helper process: " + report.probe.text);
  std::string owner = "checked";
  if (report.options.allow_group_writable) owner = "checked, but a group may write";
  if (!report.options.check_owner) owner = "not checked: plugins are loaded whoever could have written them";
  field(0, "owners", owner);
  field(0, "trust",
        report.options.trust == TrustMode::off
            ? "off: no list of allowed plugins"
            : fmt::format("{}, list {}", to_string(report.options.trust), report.options.allow_list.string()));
  std::string label = "variables";
  for (const Variable& variable : set) {
    field(0, label,
          fmt::format("{}={}{}{}", variable.name, variable.value, variable.note.empty() ? "" : " : ", variable.note));
    label.clear();
  }
  if (set.empty()) field(0, label, "no FASTPATH_* is set");
}

void print_measured(const Measured& found) {
  std::string text = "nothing was measured: 'fastpath tune' does";
  if (found.records > 0) {
    text = fmt::format("{} {}, {} of them count", found.records, found.records == 1 ? "record" : "records",
                       found.counting);
    if (found.stale > 0) text += fmt::format(", {} of these are stale: tune again ('fastpath tune')", found.stale);
  }
  field(0, "measured", text, found.stale > 0 ? Style::bad : Style::plain);
  for (const std::vector<Reason>* reasons : {&found.problems, &found.reasons}) {
    for (const Reason& reason : *reasons) {
      field(0, "", fmt::format("{}: {}", to_string(reason.code), reason.text), Style::dim);
    }
  }
}

void print_directories(const std::vector<SearchDirectory>& directories) {
  print("\nSearch path, first match wins:\n");
  for (const SearchDirectory& directory : directories) {
    const bool searched = directory.reason.code == ReasonCode::usable;
    const bool wrong = is_wrong(directory);
    for (const std::string& line : wrap(one_line(fmt::format("{} ({})", directory.path.string(), directory.source)),
                                        static_cast<std::size_t>(terminal_width()) - 2)) {
      print("  " + line + "\n");
    }
    if (searched) continue;
    field(4, "reason", fmt::format("{}: {}", to_string(directory.reason.code), directory.reason.text),
          wrong ? Style::bad : Style::dim);
    if (wrong) field(4, "to do", std::string(advice(directory.reason.code)));
  }
}

void print_file(const FileReport& file, bool verbose) {
  const PluginInfo& plugin = file.plugin;
  const bool wrong = is_wrong(plugin.state);
  print("\n");
  for (const std::string& line : wrap(one_line(plugin.path.string()), static_cast<std::size_t>(terminal_width()))) {
    print(styled(line, Style::bold) + "\n");
  }
  if (!plugin.version.empty()) {
    field(2, "plugin",
          fmt::format("{} {}, {}{}", plugin.id, plugin.version, plugin.vendor,
                      plugin.build_tag.empty() ? "" : fmt::format(", build {}", plugin.build_tag)));
  }
  const Style style = wrong ? Style::bad : plugin.state == PluginState::usable ? Style::good : Style::dim;
  field(2, "state", std::string(to_string(plugin.state)), style);
  field(2, "stage", std::string(to_string(file.stage)));
  field(2, "reason", std::string(to_string(plugin.reason.code)));
  field(2, "cause", cause(file));
  field(2, "to do", std::string(advice(plugin.reason.code)));
  if (file.trust != "unchecked") field(2, "trust", file.trust);
  if (!verbose) return;
  if (!file.sha256.empty()) field(2, "sha256", file.sha256);
  field(2, "stages", "");
  for (const StageReport& stage : file.stages) {
    std::string text(to_string(stage.verdict));
    if (stage.reason.code != ReasonCode::usable) text += fmt::format(", {}", to_string(stage.reason.code));
    if (!stage.reason.text.empty()) text += ": " + stage.reason.text;
    field(4, std::string(to_string(stage.stage)), text,
          stage.verdict == StageReport::Verdict::failed ? Style::bad : Style::plain);
  }
}

void print_summary(const Findings& findings) {
  std::string text;
  for (const auto& [state, n] : findings.states) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", n, to_string(state));
  }
  print("\n");
  if (findings.files == 0) {
    text = "No plugin was found: models run their reference.";
  } else {
    text = fmt::format("{} {}: {}.", findings.files, findings.files == 1 ? "file" : "files", text);
  }
  if (!findings.any()) text += " Nothing is wrong.";
  if (findings.wrong_directories > 0) {
    text += fmt::format(
        " {} of the search path {} wrong.",
        findings.wrong_directories == 1 ? "One directory" : fmt::format("{} directories", findings.wrong_directories),
        findings.wrong_directories == 1 ? "is" : "are");
  }
  for (const std::string& line : wrap(text, static_cast<std::size_t>(terminal_width()))) print(line + "\n");
}

// ---- As JSON ----

Json json_with_advice(const SearchDirectory& directory) {
  Json json = json_of(directory);
  json["advice"] = std::string(advice(directory.reason.code));
  return json;
}

Json json_with_steps(const FileReport& file) {
  Json json = json_of(file);
  json["stage"] = std::string(to_string(file.stage));
  json["cause"] = cause(file);
  json["advice"] = std::string(advice(file.plugin.reason.code));
  json["stages"] = Json::array();
  for (const StageReport& stage : file.stages) {
    json["stages"].push_back({{"stage", std::string(to_string(stage.stage))},
                              {"verdict", std::string(to_string(stage.verdict))},
                              {"reason", json_of(stage.reason)}});
  }
  return json;
}

Json json_of_report(const ScanReport& report, const std::vector<Variable>& set, const Findings& findings,
                    const Measured& found) {
  const BuildInfo& build = build_info();
  const DeviceInfo& cpu = cpu_info();
  Json json = {{"version", build.version},
               {"plugin_abi", fmt::format("{}.{}", build.abi_major, build.abi_minor)},
               {"compiler", build.compiler},
               {"build_type", build.build_type},
               {"system", build.system},
               {"library", library_path()},
               {"cpu", {{"model", cpu.name}, {"threads", cpu.units}, {"memory_bytes", cpu.memory_bytes}}},
               {"user", ::geteuid()},
               {"elevated", report.elevated},
               {"check_owner", report.options.check_owner},
               {"allow_group_writable", report.options.allow_group_writable},
               {"trust", std::string(to_string(report.options.trust))},
               {"allow_list", report.options.allow_list.string()},
               {"cache", {{"directory", report.cache_directory.string()}, {"reason", json_of(report.cache)}}},
               {"probe", {{"program", report.probe_program.string()}, {"reason", json_of(report.probe)}}}};
  json["variables"] = Json::array();
  for (const Variable& variable : set) {
    json["variables"].push_back(
        {{"name", variable.name}, {"value", variable.value}, {"known", variable.known}, {"note", variable.note}});
  }
  Json reasons = Json::array();
  for (const Reason& reason : found.problems) reasons.push_back(json_of(reason));
  for (const Reason& reason : found.reasons) reasons.push_back(json_of(reason));
  json["measured"] = {{"records", found.records},
                      {"counting", found.counting},
                      {"stale", found.stale},
                      {"reasons", std::move(reasons)}};
  json["search_path"] = Json::array();
  for (const SearchDirectory& directory : report.directories)
    json["search_path"].push_back(json_with_advice(directory));
  json["files"] = Json::array();
  for (const FileReport& file : report.files) json["files"].push_back(json_with_steps(file));
  Json states = Json::object();
  for (const auto& [state, n] : findings.states) states[std::string(to_string(state))] = n;
  json["summary"] = {{"files", findings.files},
                     {"states", std::move(states)},
                     {"wrong_files", findings.wrong_files},
                     {"wrong_directories", findings.wrong_directories}};
  return json;
}

}  // namespace

int run_doctor(const Arguments& arguments) {
  CommandLine line("fastpath doctor", "[FILE...]", "what is right and wrong here, and what can be done about it");
  line.describe(
      "Says what fastpath finds on this machine, then looks at every plugin file of the\n"
      "search path: how far it came, why no further, and what to do. With FILE, looks\n"
      "at these files alone, whatever they are called. No GPU is opened.\n\n"
      "Ends with 0 if nothing is wrong, and with 1 if a file is rejected or quarantined\n"
      "or a directory that is named cannot be searched. docs/reasons.md lists reasons,\n"
      "docs/security.md says who may own what.");
  line.add()("json", po::bool_switch(), "print everything as JSON");
  line.add()("verbose", po::bool_switch(), "print every step of every file");
  add_plugin_options(line);
  line.operands("file", -1);
  line.example("fastpath doctor");
  line.example("fastpath doctor --verbose build/release/lib/fastpath/plugins/fastpath_cpu_ref.so");
  if (!line.parse(arguments)) return 0;

  const std::vector<Variable> set = variables(::getauxval(AT_SECURE) != 0);
  RegistryOptions options = registry_options(line);
  for (const std::string& file : line.list("file")) {
    const fs::path path = absolute_path(file, "FILE");
    std::error_code error;
    if (!fs::exists(fs::symlink_status(path, error))) {
      throw Error(ErrorCode::not_found, fmt::format("{}: there is no such file", file));
    }
    options.files.push_back(path);
  }
  if (!options.files.empty()) {
    options.search_paths.clear();
    options.default_paths = false;
  }
  const ScanReport report = PluginRegistry(options).scan_report();
  // Single files say nothing about the plugins that measurements belong to.
  const Measured found = options.files.empty() ? measured(options) : Measured();
  const Findings findings = count(report);
  if (line.get<bool>("json")) {
    print_json(json_of_report(report, set, findings, found), Layout::indented);
  } else {
    print_machine(report, set);
    if (line.list("file").empty()) print_measured(found);
    if (!report.directories.empty()) print_directories(report.directories);
    for (const FileReport& file : report.files) print_file(file, line.get<bool>("verbose"));
    print_summary(findings);
  }
  return findings.any() ? kFindings : 0;
}

}  // namespace fastpath::cli
