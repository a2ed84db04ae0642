#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "command_line.hpp"
#include "fastpath/create_op.hpp"
#include "fastpath/error.hpp"
#include "fastpath/tune.hpp"
#include "held_signals.hpp"
#include "json.hpp"
#include "model_options.hpp"
#include "output_file.hpp"
#include "table.hpp"

namespace fastpath::cli {
namespace {

constexpr int kFewDigits = 8;

std::string short_config(const std::string& config) { return config.substr(0, kFewDigits); }

std::string windows_text(const Measurement& measurement) {
  if (measurement.inconclusive) return "inconclusive";
  if (measurement.windows.empty()) return fmt::format("not up to {}", largest_measured(measurement));
  std::string text;
  for (const SizeWindow& window : measurement.windows) {
    if (!text.empty()) text += ", ";
    if (window.min_edges == 0 && window.max_edges == 0) {
      text += "always";
    } else if (window.max_edges == 0) {
      text += fmt::format("from {}", window.min_edges);
    } else if (window.min_edges == 0) {
      text += fmt::format("up to {}", window.max_edges);
    } else {
      text += fmt::format("{} to {}", window.min_edges, window.max_edges);
    }
  }
  return text;
}

std::string spread_text(const Measurement& measurement) {
  double most = 0;
  for (const SizeWindow& window : measurement.windows) {
    most = std::max(
        {most, window.min_edges > 0 ? window.min_spread : 0.0, window.max_edges > 0 ? window.max_spread : 0.0});
  }
  return most > 0 ? fmt::format("{:.0f} %", std::ceil(100 * most)) : "-";
}

/// How many times as fast as the reference a kernel is at the largest size that says something.
std::string factor_text(const Measurement& measurement) {
  for (auto point = measurement.points.rbegin(); point != measurement.points.rend(); ++point) {
    if (point->conclusive) {
      return fmt::format("{:.2f} at {}", point->reference_seconds / point->kernel_seconds, point->n_edges);
    }
  }
  return "-";
}

Json json_of(const Measurement& measurement) {
  Json points = Json::array(), windows = Json::array();
  for (const MeasuredPoint& point : measurement.points) {
    Json json = {{"n_edges", point.n_edges}, {"n_nodes", point.n_nodes}, {"conclusive", point.conclusive}};
    if (point.conclusive) {
      json["reference_seconds"] = cli::json_of(point.reference_seconds, "reference_seconds");
      json["kernel_seconds"] = cli::json_of(point.kernel_seconds, "kernel_seconds");
      json["reference_spread"] = cli::json_of(point.reference_spread, "reference_spread");
      json["kernel_spread"] = cli::json_of(point.kernel_spread, "kernel_spread");
      json["repeats"] = point.repeats;
    }
    points.push_back(std::move(json));
  }
  for (const SizeWindow& window : measurement.windows) {
    windows.push_back({{"min_edges", window.min_edges},
                       {"max_edges", window.max_edges == 0 ? Json(nullptr) : Json(window.max_edges)},
                       {"min_spread", cli::json_of(window.min_spread, "min_spread")},
                       {"max_spread", cli::json_of(window.max_spread, "max_spread")}});
  }
  return {{"op", measurement.key.op},
          {"op_version", measurement.key.op_version},
          {"config", measurement.key.config},
          {"device", one_line(measurement.key.device)},
          {"dtype", std::string(to_string(measurement.key.dtype))},
          {"passes", to_string(Passes::from_bits(measurement.key.passes))},
          {"threads", measurement.key.threads},
          {"plugin", measurement.key.plugin},
          {"plugin_version", measurement.plugin_version},
          {"inconclusive", measurement.inconclusive},
          {"windows", std::move(windows)},
          {"points", std::move(points)}};
}

/// An op's configuration: {"l_max": 3, "irreps_in": "16x0e", "path_weights": [1.0, 0.5]}. Whole numbers are integers,
/// numbers with a point or an exponent are reals; a list holds one kind.
OpConfig read_config(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw Error(ErrorCode::not_found, fmt::format("--config: {}: cannot be read", file));
  // Deeper than any attribute: what visits a value visits every level of it.
  constexpr int kDeepest = 4;
  const auto shallow = [&](int depth, Json::parse_event_t, const Json&) {
    if (depth > kDeepest) {
      throw Error(ErrorCode::bad_file,
                  fmt::format("--config: {}: values are nested more than {} deep", file, kDeepest));
    }
    return true;
  };
  const Json json = Json::parse(in, shallow, false);
  if (!json.is_object()) {
    throw Error(ErrorCode::bad_file, fmt::format("--config: {}: not a JSON object", file));
  }
  OpConfig config;
  for (const auto& [name, value] : json.items()) {
    const Json list = value.is_array() ? value : Json::array({value});
    const auto all = [&](auto is) { return std::all_of(list.begin(), list.end(), is); };
    if (value.is_string()) {
      config[name] = value.get<std::string>();
    } else if (all([](const Json& each) { return each.is_number_integer(); })) {
      config[name] = list.get<std::vector<std::int64_t>>();
    } else if (all([](const Json& each) { return each.is_number(); })) {
      config[name] = list.get<std::vector<double>>();
    } else {
      throw Error(ErrorCode::bad_file,
                  fmt::format("--config: {}: '{}' is {}, expected a text, a number or a list of numbers", file,
                              one_line(name), one_line(value.dump())));
    }
  }
  return config;
}

/// "90", "90s", "2m". @throws Error(invalid_argument) for anything else.
double parse_seconds(const CommandLine& line, const std::string& option) {
  const std::string text = line.text(option);
  std::size_t end = 0;
  double value = 0;
  try {
    value = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  const std::string unit = text.substr(end);
  if (unit == "m" || unit == "min") value *= 60;
  const bool known = unit.empty() || unit == "s" || unit == "m" || unit == "min";
  constexpr double kDay = 86400;
  if (end == 0 || !known || !(value > 0) || value > kDay) {
    line.fail(fmt::format("--{}: '{}' is no time, expected seconds such as 60 or 60s, or minutes such as 5m", option,
                          one_line(text)));
  }
  return value;
}

std::string status_text(const TuneProgress& progress) {
  Measurement so_far;
  so_far.windows = progress.windows;
  // What is cut on a narrow terminal is the end.
  return fmt::format("{}/{}, {:.0f} s left: {} {} by {}, {} sizes, faster {}", progress.done + 1, progress.total,
                     progress.seconds_left, progress.op, short_config(progress.config), progress.plugin, progress.sizes,
                     windows_text(so_far));
}

void print_result(const TuneResult& result) {
  if (!result.measurements.empty()) {
    Table table;
    constexpr std::size_t kLongestOp = 21;
    table.column("op", Table::Align::left, kLongestOp);
    for (const char* title : {"config", "kernel", "faster at edges"}) table.column(title);
    table.column("spread", Table::Align::right);
    table.column("times as fast", Table::Align::right);
    for (const Measurement& measurement : result.measurements) {
      const Style style = measurement.inconclusive      ? Style::bad
                          : measurement.windows.empty() ? Style::plain
                                                        : Style::good;
      table.row({measurement.key.op,
                 short_config(measurement.key.config),
                 measurement.key.plugin,
                 {windows_text(measurement), style},
                 spread_text(measurement),
                 factor_text(measurement)});
    }
    print(table.text());
  }
  if (!result.not_tuned.empty()) print("\nNot measured:\n");
  for (const NotTuned& each : result.not_tuned) {
    print(fmt::format("  {} {}{}: {}: {}\n", each.op, short_config(each.config),
                      each.plugin.empty() ? "" : " by " + each.plugin, to_string(each.reason.code),
                      one_line(each.reason.text)));
  }
  if (result.stopped) {
    print("\nStopped: what was complete is kept.\n");
  } else if (result.out_of_time) {
    print("\nThe budget ended before every size that would tell more was measured; --budget gives more time.\n");
  }
}

Json json_of(const TuneResult& result) {
  Json measurements = Json::array(), not_tuned = Json::array();
  for (const Measurement& measurement : result.measurements) measurements.push_back(json_of(measurement));
  for (const NotTuned& each : result.not_tuned) {
    not_tuned.push_back({{"op", each.op},
                         {"config", each.config},
                         {"plugin", each.plugin.empty() ? Json(nullptr) : Json(each.plugin)},
                         {"reason", cli::json_of(each.reason)}});
  }
  return {{"measurements", std::move(measurements)},
          {"not_measured", std::move(not_tuned)},
          {"out_of_time", result.out_of_time},
          {"stopped", result.stopped}};
}

TuneOptions read_options(const CommandLine& line) {
  TuneOptions options;
  options.budget_seconds = parse_seconds(line, "budget");
  options.passes = passes_option(line);
  try {
    options.device = parse_device(line.text("device"));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("--device: {}", error.what()));
  }
  try {
    options.dtype = parse_dtype(line.text("dtype"));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("--dtype: {}", error.what()));
  }
  if (!is_floating(options.dtype)) {
    line.fail(fmt::format("--dtype: kernels are measured in float64 or float32, not in {}", to_string(options.dtype)));
  }
  const auto size = [&](const char* option) {
    const std::uint64_t value = line.number(option);
    constexpr std::uint64_t kMost = 1000000000;
    if (value < 1 || value > kMost) line.fail(fmt::format("--{}: {} is not between 1 and {}", option, value, kMost));
    return static_cast<std::int64_t>(value);
  };
  options.min_edges = size("min-edges");
  options.max_edges = size("max-edges");
  if (options.max_edges < options.min_edges) {
    line.fail(fmt::format("--min-edges {} is more than --max-edges {}", options.min_edges, options.max_edges));
  }
  if (line.given("threads")) {
    const std::uint64_t threads = line.number("threads");
    constexpr std::uint64_t kMost = 4096;
    if (threads < 1 || threads > kMost) line.fail(fmt::format("--threads: {} is not between 1 and {}", threads, kMost));
    options.threads = static_cast<int>(threads);
  }
  return options;
}

/// What the context's store knows and uses here.
std::vector<Measurement> known_measurements(Context& context) {
  std::vector<DeviceKind> kinds;
  for (const DeviceInfo& device : context.registry().devices()) {
    if (std::find(kinds.begin(), kinds.end(), device.device.kind) == kinds.end()) kinds.push_back(device.device.kind);
  }
  std::vector<Measurement> result;
  for (MeasurementRecord& record : context.measurements().records(MeasurementSituation::of(context, kinds))) {
    if (record.counts) result.push_back(std::move(record.measurement));
  }
  return result;
}

}  // namespace

int run_tune(const Arguments& arguments) {
  // Store commands have options of their own.
  static constexpr std::array<std::string_view, 5> kStore{"--list", "--export", "--import", "--merge", "--forget"};
  for (const std::string& argument : arguments) {
    const std::string_view name = std::string_view(argument).substr(0, argument.find('='));
    if (std::find(kStore.begin(), kStore.end(), name) != kStore.end()) return run_tune_store(arguments);
  }
  CommandLine line("fastpath tune", "", "when kernels are faster than the reference on this machine");
  line.describe(
      "Measures both at sizes that it chooses, and keeps what it finds as each kernel\n"
      "is done. Leave the machine alone meanwhile: what others disturb is measured\n"
      "again, and is inconclusive where that does not help. Ctrl-C keeps what is\n"
      "complete.\n\n"
      "--list, --export, --import, --merge and --forget look after the records instead:\n"
      "see 'fastpath tune --list --help'.");
  const auto one = [](const char* name) { return po::value<std::string>()->value_name(name); };
  line.add()("model,m", one("DIR"), "measure the ops of this model, and whole evaluations");
  line.add()("op", one("NAME"), "measure one op instead, with --config");
  line.add()("config", one("FILE"), "JSON object of the op's attributes");
  line.add()("device", one("NAME")->default_value("cpu"), "cpu, cuda:0, hip:0, opencl:0");
  line.add()("dtype", one("NAME")->default_value("float64"), "float64 or float32");
  add_passes_option(line);
  line.add()("budget", one("TIME")->default_value("60s"), "for everything together: 90s, 5m");
  line.add()("threads", one("N"), "CPU threads; default: all");
  line.add()("min-edges", one("N")->default_value("8"), "the smallest size");
  line.add()("max-edges", one("N")->default_value("200000"), "the largest size, if memory and budget allow it");
  line.add()("report", one("FILE"), "write a page of HTML with plots; alone: of everything that is known here");
  line.add()("json", po::bool_switch(), "print the results as JSON");
  add_plugin_options(line);
  line.example("fastpath tune --model examples/models/demo --budget 60s");
  line.example("fastpath tune --op spherical_harmonics --config config.json --dtype float32");
  line.example("fastpath tune --report tuned.html");
  line.example("fastpath tune --list");
  if (std::find(arguments.begin(), arguments.end(), "--deterministic") != arguments.end()) {
    line.fail("--deterministic: choices that follow no measurement need none, so nothing is measured");
  }
  if (!line.parse(arguments)) return 0;

  if (line.given("model") && line.given("op")) line.fail("expected either --model DIR or --op NAME, found both");
  if (line.given("op") != line.given("config")) line.fail("--op and --config are given together");
  const bool measure = line.given("model") || line.given("op");
  if (!measure && !line.given("report"))
    line.fail("expected --model DIR, --op NAME with --config FILE, or --report FILE");
  if (!measure && line.get<bool>("json")) line.fail("--json: nothing is measured without --model or --op");
  if (line.given("report") && line.text("report").empty()) line.fail("--report: the file's name is empty");
  if (line.given("report")) check_output(line.text("report"), "--report", line);  // before the time is spent
  TuneOptions options = read_options(line);
  ModelSetup setup;  // shuts plugins down at its end
  ContextOptions context;
  context.registry = registry_options(line);
  context.threads = options.threads;
  setup.context = std::make_unique<Context>(std::move(context));
  options.context = setup.context.get();
  const auto report = [&](const std::vector<Measurement>& measurements) {
    if (line.given("report")) write_tuning_report(line.text("report"), measurements);
  };
  if (!measure) {
    const HeldSignals held;
    const std::vector<Measurement> known = known_measurements(*setup.context);
    report(known);
    print(fmt::format("{} measurement{} that count here\n", known.size(), known.size() == 1 ? "" : "s"));
    return 0;
  }

  const HeldSignals signals;  // its end raises the one that stopped it
  options.stop = [] { return HeldSignals::pending(); };
  TuneResult result;
  {
    StatusLine status;
    options.on_progress = [&](const TuneProgress& progress) { status.show(status_text(progress)); };
    if (line.given("model")) {
      setup.model = Model::load(line.text("model"));
      result = tune(*setup.model, options);
    } else {
      const std::shared_ptr<FastPathModule> module =
          create_op({line.text("op"), 1, read_config(line.text("config"))}, 1);
      result = tune(*module, options);
    }
  }
  if (line.get<bool>("json")) {
    print_json(json_of(result), Layout::indented);
  } else {
    print_result(result);
  }
  report(result.measurements);  // last: what was measured is told, also if the page cannot be written
  finish_output();
  return 0;
}

}  // namespace fastpath::cli
