#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "command_line.hpp"
#include "decisions.hpp"
#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/measurement.hpp"
#include "json.hpp"
#include "model_options.hpp"
#include "table.hpp"

namespace fastpath::cli {

namespace {

constexpr std::int64_t kDefaultEdges = 10000;

/// Plugins that are not used but, from what is known of them, might serve this device.
std::vector<PluginInfo> missing_help(Context& context, const Device& device) {
  std::vector<PluginInfo> result;
  for (PluginInfo& plugin : context.registry().plugins()) {
    const auto& kinds = plugin.device_kinds;
    const bool fits = kinds.empty() || std::find(kinds.begin(), kinds.end(), device.kind) != kinds.end();
    if (plugin.state != PluginState::usable && fits) result.push_back(std::move(plugin));
  }
  return result;
}

std::string indented(const std::string& text, std::size_t indent) {
  std::string result;
  for (const std::string& line : wrap(one_line(text), static_cast<std::size_t>(terminal_width()) - indent)) {
    result += std::string(indent, ' ') + line + "\n";
  }
  return result;
}

/// The device that a selection is for, as the plugins know it.
std::optional<DeviceInfo> find_info(const ModelSetup& setup) {
  const Device& device = setup.options.device;
  if (device.is_cpu()) return cpu_info();
  for (DeviceInfo& known : setup.context->registry().devices()) {
    if (known.device == device) return std::move(known);
  }
  return std::nullopt;
}

/// The key of whole evaluations.
MeasurementKey key_of_model(const ModelSetup& setup, const Selection& selection, const DeviceInfo& info, int threads) {
  std::vector<NamedFastModule> modules = fast_modules(*setup.model);
  if (!info.device.is_cpu()) {
    const std::vector<NamedFastModule>& small = setup.model->small_ops();
    modules.insert(modules.end(), small.begin(), small.end());
  }
  return measurement_key(modules, info, selection.dtype, selection.passes, threads);
}

int threads_of(const ModelSetup& setup) {
  return setup.options.threads > 0 ? setup.options.threads : setup.context->threads();
}

/// Records that might have decided something here, but do not count.
struct NotCounting {
  Reason reason;  ///< Of the first of them.
  std::size_t records = 0;
};

/// One for each reason's code.
std::vector<NotCounting> not_counting(ModelSetup& setup, const Selection& selection) {
  std::vector<NotCounting> result;
  Context& context = *setup.context;
  const std::optional<DeviceInfo> info = find_info(setup);
  if (context.deterministic() || !info) return result;
  const MeasurementStore& store = context.measurements();
  if (store.records({}).empty()) return result;
  const int threads = info->device.is_cpu() ? threads_of(setup) : 0;
  const MeasurementKey model = key_of_model(setup, selection, *info, threads_of(setup));
  const auto asked = [&](const MeasurementKey& key) {
    if (key.dtype != selection.dtype || key.passes != selection.passes.bits() || key.threads != threads) return false;
    if (key.op == model.op && key.config == model.config) return true;
    return std::any_of(selection.decisions.begin(), selection.decisions.end(), [&](const Decision& decision) {
      return key.op == decision.op && key.op_version == decision.op_version && key.config == decision.config;
    });
  };
  for (const MeasurementRecord& record : store.records(MeasurementSituation::of(context, {info->device.kind}))) {
    if (record.counts || record.reasons.empty()) continue;
    const Reason& reason = record.reasons.front();
    // A line that cannot be read might be of anything. One of another kind of device decides nothing here.
    const std::string& device = record.measurement.key.device;
    const bool same_kind = device.substr(0, device.find(' ')) == to_string(info->device.kind);
    if (reason.code == ReasonCode::superseded || (!device.empty() && !(same_kind && asked(record.measurement.key))))
      continue;
    const auto known = std::find_if(result.begin(), result.end(),
                                    [&](const NotCounting& other) { return other.reason.code == reason.code; });
    if (known == result.end()) {
      result.push_back({reason, 1});
    } else {
      ++known->records;
    }
  }
  return result;
}

/// What was measured of a kernel, or of whole evaluations, that a decision here may follow.
struct Cost {
  std::string module;  ///< Empty for whole evaluations.
  std::string op, config, plugin;
  std::optional<MeasurementStore::Found> found;
  std::optional<double> reference_seconds, kernel_seconds;  ///< Of this size, as far as sizes nearby were measured.
};

std::vector<Cost> costs(ModelSetup& setup, const Selection& selection, std::int64_t n_edges) {
  std::vector<Cost> result;
  Context& context = *setup.context;
  if (context.deterministic() || context.measurements().empty()) return result;
  const Device& device = setup.options.device;
  const std::optional<DeviceInfo> info = find_info(setup);
  if (!info) return result;
  const int threads = threads_of(setup);
  const auto add = [&](std::string module, const MeasurementKey& key) {
    Cost cost{std::move(module), key.op, key.config, key.plugin, {}, {}, {}};
    cost.found = context.measurements().find(key, plugin_build(context, device.kind, key.plugin), info->driver);
    if (!cost.found) return;
    const std::vector<MeasuredPoint>& points = cost.found->measurement->points;
    cost.reference_seconds = predict_seconds(points, n_edges, Arm::reference);
    cost.kernel_seconds = predict_seconds(points, n_edges, Arm::kernel);
    result.push_back(std::move(cost));
  };
  add("", key_of_model(setup, selection, *info, threads));
  std::vector<std::string> plugins;  // that were asked about any module: for a part of a fused one that runs none was
  for (const Decision& decision : selection.decisions) {
    for (const Candidate& candidate : decision.candidates) {
      if (std::find(plugins.begin(), plugins.end(), candidate.plugin) == plugins.end())
        plugins.push_back(candidate.plugin);
    }
  }
  for (const Decision& decision : selection.decisions) {
    for (const std::string& plugin : plugins) {
      add(decision.module, {decision.op, decision.op_version, decision.config, device_class(*info), selection.dtype,
                            selection.passes.bits(), device.is_cpu() ? threads : 0, plugin});
    }
  }
  return result;
}

std::string duration(const std::optional<double>& seconds) {
  if (!seconds) return "-";
  if (*seconds < 1e-3) return fmt::format("{:.3g} us", *seconds * 1e6);
  return *seconds < 1 ? fmt::format("{:.3g} ms", *seconds * 1e3) : fmt::format("{:.3g} s", *seconds);
}

std::string bound(std::int64_t edges, double spread) {
  return spread > 0 ? fmt::format("{} (+-{:.0f} %)", edges, 100 * spread) : fmt::format("{}", edges);
}

/// For how many edges the kernel is the faster one.
std::string faster_for(const Measurement& m) {
  if (m.inconclusive) return "inconclusive";
  std::string text;
  for (const SizeWindow& window : m.windows) {
    if (!text.empty()) text += ", ";
    const std::string first = bound(window.min_edges, window.min_spread),
                      last = bound(window.max_edges, window.max_spread);
    if (window.min_edges == 0) {
      text += window.max_edges == 0 ? "always" : "up to " + last;
    } else {
      text += "from " + first + (window.max_edges == 0 ? "" : " to " + last);
    }
  }
  return text.empty() ? fmt::format("not up to {}", largest_measured(m)) : text;
}

void print_costs(const std::vector<Cost>& costs, std::int64_t n_edges) {
  if (costs.empty()) return;
  print(fmt::format("\nMeasured, and what that makes for {} edges:\n", n_edges));
  Table table;
  for (const char* title : {"what", "plugin"}) table.column(title);
  for (const char* title : {"reference", "kernel"}) table.column(title, Table::Align::right);
  table.column("kernel is faster");
  // Modules of the same op and configuration share what was measured.
  std::map<std::string, std::size_t> seen;
  for (const Cost& cost : costs) ++seen[cost.op + cost.config + cost.plugin];
  for (const Cost& cost : costs) {
    std::size_t& alike = seen[cost.op + cost.config + cost.plugin];
    if (alike == 0) continue;
    std::string what = cost.module.empty() ? "whole evaluation" : cost.op;
    if (!cost.module.empty())
      what += fmt::format(" ({}{})", cost.module, alike > 1 ? fmt::format(" and {} like it", alike - 1) : "");
    alike = 0;
    table.row({what, cost.plugin, duration(cost.reference_seconds), duration(cost.kernel_seconds),
               faster_for(*cost.found->measurement)});
  }
  print(table.text());
  for (const Cost& cost : costs) {
    if (!cost.found->stale) continue;
    print(
        indented(fmt::format("Some of it is stale ({}); 'fastpath tune' measures again.", cost.found->stale->text), 0));
    break;
  }
}

Json json_of(const Cost& cost) {
  const auto seconds = [](const std::optional<double>& value) {
    return value ? cli::json_of(*value, "a predicted time") : Json(nullptr);
  };
  const Measurement& m = *cost.found->measurement;
  return {{"module", cost.module.empty() ? Json(nullptr) : Json(cost.module)},
          {"op", cost.op},
          {"config", cost.config},
          {"plugin", cost.plugin},
          {"reference_seconds", seconds(cost.reference_seconds)},
          {"kernel_seconds", seconds(cost.kernel_seconds)},
          {"inconclusive", m.inconclusive},
          {"windows", cli::json_of(m.windows)},
          {"layer", std::string(to_string(cost.found->layer))},
          {"stale", cost.found->stale ? Json(cost.found->stale->text) : Json(nullptr)}};
}

void print_not_counting(const std::vector<NotCounting>& records) {
  if (records.empty()) return;
  print("\nMeasured, but not counted here ('fastpath tune --list' shows each):\n");
  for (const NotCounting& each : records) {
    print(indented(fmt::format("{}: {} record{}, {}{}", to_string(each.reason.code), each.records,
                               each.records == 1 ? "" : "s", each.records == 1 ? "" : "the first ", each.reason.text),
                   2));
  }
}

void print_details(const std::vector<Decision>& decisions) {
  for (const Decision& decision : decisions) {
    print(fmt::format("\n{} ({}): {}\n", styled(decision.module, Style::bold), decision.op, decision.choice));
    print(indented(fmt::format("{}: {}", to_string(decision.reason.code), decision.reason.text), 2));
    for (const Candidate& candidate : decision.candidates) {
      print(fmt::format("  {} is {}\n", candidate.plugin, to_string(candidate.verdict)));
      for (const Reason& reason : candidate.reasons) {
        print(indented(fmt::format("{}: {}", to_string(reason.code), reason.text), 4));
      }
    }
  }
}

void print_table(const std::vector<Decision>& decisions) {
  Table table;
  for (const char* title : {"module", "op", "choice", "reason"}) table.column(title);
  std::map<std::string, std::size_t> counts;
  std::size_t within = 0;
  for (const Decision& decision : decisions) {
    table.row({decision.module,
               decision.op,
               {decision.choice, decision.fast() ? Style::good : Style::plain},
               std::string(to_string(decision.reason.code))});
    if (has_own_work(decision)) {
      ++counts[decision.choice];
    } else {
      ++within;
    }
  }
  print(table.text());
  std::string summary;
  for (const auto& [choice, count] : counts) {
    summary += fmt::format("{}{} by {}", summary.empty() ? "" : ", ", count, choice);
  }
  if (within > 0) summary += fmt::format("{}{} within others", summary.empty() ? "" : ", ", within);
  print(fmt::format("\n{} modules with a fast path: {}\n", decisions.size(), summary.empty() ? "none" : summary));
}

}  // namespace

int run_explain(const Arguments& arguments) {
  CommandLine line("fastpath explain", "[FILE]", "which path each module of a model would take, and why");
  line.describe(
      "Decides as an evaluation would, for the size of the first frame of FILE or for\n"
      "--edges N, and evaluates nothing. Shows what 'fastpath tune' measured, and what\n"
      "follows from it for this size.");
  add_model_options(line);
  line.add()("edges", po::value<std::string>()->value_name("N"), "decide for a graph with N edges; default: 10000");
  add_passes_option(line);
  line.add()("verbose,v", po::bool_switch(), "print every candidate of every module with its reasons");
  line.add()("json", po::bool_switch(), "print everything as JSON");
  add_selection_options(line);
  add_plugin_options(line);
  line.operands("file", 1);
  line.example("fastpath explain --model examples/models/demo --use-fast true examples/structures/water.xyz");
  line.example("fastpath explain --model examples/models/demo --edges 200000 --verbose");
  if (!line.parse(arguments)) return 0;

  const std::vector<std::string> files = line.list("file");
  if (line.given("edges") && !files.empty()) line.fail("a file and --edges were given: one of them says the size");
  ProblemSize size(kDefaultEdges);
  if (line.given("edges")) {
    const std::uint64_t edges = line.number("edges");
    if (edges > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      line.fail(fmt::format("--edges: {} is too large", edges));
    }
    size = ProblemSize(static_cast<std::int64_t>(edges));
  }
  const Passes passes = passes_option(line);
  std::vector<Structure> frames;
  if (!files.empty()) {
    frames = read_extxyz(files[0]);
    if (frames.empty()) throw Error(ErrorCode::bad_file, fmt::format("{}: has no frame", files[0]));
  }

  ModelSetup setup = load_model(line);
  setup.options.forces = setup.options.stress = passes.contains(Pass::backward);
  // What a step of training asks for; its values do not matter.
  if (passes == kPassesTraining) setup.options.weights.forces = Tensor::zeros({1, 3}, DType::float64);
  if (!frames.empty()) {
    const Graph graph = Graph::from_structure(frames[0], setup.model->r_max());
    size = ProblemSize(graph.n_edges(), graph.n_nodes());
  }
  const Selection selection = setup.model->explain(size, setup.options);
  const std::vector<Cost> measured =
      setup.use_fast == UseFast::never ? std::vector<Cost>() : costs(setup, selection, size.n_edges);
  // Under `false` no plugin is even looked at, here neither.
  std::vector<PluginInfo> others;
  std::vector<NotCounting> unused;
  if (setup.use_fast != UseFast::never) {
    others = missing_help(*setup.context, setup.options.device);
    unused = not_counting(setup, selection);
  }

  if (line.get<bool>("json")) {
    Json json = {{"model", line.text("model")},
                 {"device", to_string(setup.options.device)},
                 {"dtype", std::string(to_string(setup.options.dtype))},
                 {"use_fast", std::string(to_string(setup.use_fast))},
                 {"passes", to_string(selection.passes)},
                 {"n_edges", size.n_edges},
                 {"decisions", Json::array()},
                 {"measured", Json::array()},
                 {"not_counting", Json::array()},
                 {"unused_plugins", Json::array()}};
    for (const Decision& decision : selection.decisions) json["decisions"].push_back(cli::json_of(decision));
    for (const Cost& cost : measured) json["measured"].push_back(json_of(cost));
    for (const NotCounting& each : unused) {
      Json record = cli::json_of(each.reason);
      record["records"] = each.records;
      json["not_counting"].push_back(std::move(record));
    }
    for (const PluginInfo& plugin : others) json["unused_plugins"].push_back(cli::json_of(plugin));
    print_json(json, Layout::indented);
    return 0;
  }

  print(fmt::format("{} on {} in {}, use_fast {}, {}, {} edges\n\n", one_line(line.text("model")),
                    to_string(setup.options.device), to_string(setup.options.dtype), to_string(setup.use_fast),
                    line.text("passes"), size.n_edges));
  print_table(selection.decisions);
  print_costs(measured, size.n_edges);
  print_not_counting(unused);
  if (line.get<bool>("verbose")) print_details(selection.decisions);
  if (!others.empty()) {
    print("\nPlugins that are not used:\n");
    for (const PluginInfo& plugin : others) {
      print(indented(fmt::format("{} ({}): {}: {}", plugin.id, to_string(plugin.state), to_string(plugin.reason.code),
                                 plugin.reason.text),
                     2));
    }
  }
  return 0;
}

}  // namespace fastpath::cli
