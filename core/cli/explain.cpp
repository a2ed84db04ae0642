#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "command_line.hpp"
#include "decisions.hpp"
#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
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
      "--edges N, and evaluates nothing.");
  add_model_options(line);
  line.add()("edges", po::value<std::string>()->value_name("N"), "decide for a graph with N edges; default: 10000");
  line.add()("verbose,v", po::bool_switch(), "print every candidate of every module with its reasons");
  line.add()("json", po::bool_switch(), "print everything as JSON");
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
  std::vector<Structure> frames;
  if (!files.empty()) {
    frames = read_extxyz(files[0]);
    if (frames.empty()) throw Error(ErrorCode::bad_file, fmt::format("{}: has no frame", files[0]));
  }

  ModelSetup setup = load_model(line);
  if (!frames.empty()) {
    const Graph graph = Graph::from_structure(frames[0], setup.model->r_max());
    size = ProblemSize(graph.n_edges(), graph.n_nodes());
  }
  const Selection selection = setup.model->explain(size, setup.options);
  // Under `false` no plugin is even looked at, here neither.
  std::vector<PluginInfo> others;
  if (setup.use_fast != UseFast::never) others = missing_help(*setup.context, setup.options.device);

  if (line.get<bool>("json")) {
    Json json = {{"model", line.text("model")},
                 {"device", to_string(setup.options.device)},
                 {"dtype", std::string(to_string(setup.options.dtype))},
                 {"use_fast", std::string(to_string(setup.use_fast))},
                 {"n_edges", size.n_edges},
                 {"decisions", Json::array()},
                 {"unused_plugins", Json::array()}};
    for (const Decision& decision : selection.decisions) json["decisions"].push_back(json_of(decision));
    for (const PluginInfo& plugin : others) json["unused_plugins"].push_back(json_of(plugin));
    print_json(json, Layout::indented);
    return 0;
  }

  print(fmt::format("{} on {} in {}, use_fast {}, {} edges\n\n", one_line(line.text("model")),
                    to_string(setup.options.device), to_string(setup.options.dtype), to_string(setup.use_fast),
                    size.n_edges));
  print_table(selection.decisions);
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
