// fastpath_bench: whole-model evaluations by the reference and by kernels, over sizes. README.md says how to read it.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "fastpath/context.hpp"
#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/graph.hpp"
#include "fastpath/model.hpp"
#include "fastpath/version.hpp"
#include "fastpath/warning.hpp"
#include "harness.hpp"

namespace {

constexpr const char* kHelp =
    R"(fastpath_bench [options]: times evaluations of a model, reference against kernels, over sizes.

  --model DIR         model folder or hub name (examples/models/demo)
  --structure FILE    extended XYZ; its first frame is replicated to the sizes (examples/structures/water.xyz)
  --sizes N,N,...     wanted numbers of atoms; each becomes the nearest whole number of cells (96,500,1000,5000)
  --dtype NAME        float64 or float32 (float64)
  --device NAME       of the fast arm; the reference runs on the CPU (cpu)
  --threads N         CPU threads of an evaluation; 0: all (0)
  --passes NAME       forces (energy, forces, stress) or energy (forces)
  --arms NAME,NAME    reference and fast, or one of them (reference,fast)
  --budget SECONDS    of counted runs per size, both arms together (10)
  --min-rounds N      rounds per size, also when the budget is used up (3)
  --json FILE         also write everything as JSON; - is standard output, then without the table
  --help

Exit status: 0, 1 if the arms disagree or an evaluation fails, 2 for wrong options.
)";

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Settings {
  std::string model = "examples/models/demo";
  std::string structure = "examples/structures/water.xyz";
  std::vector<int> sizes{96, 500, 1000, 5000};
  fastpath::DType dtype = fastpath::DType::float64;
  fastpath::Device device;
  int threads = 0;
  bool forces = true;
  std::vector<std::string> arms{"reference", "fast"};
  bench::Budget budget{.seconds = 10, .warm_up = 0, .min_rounds = 3, .max_rounds = 1000};
  std::string json;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

template <class T>
T number(const std::string& option, const std::string& text, T lowest) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= lowest)) {
    throw UsageError(option + ": '" + text + "' is not a number of at least " + std::to_string(lowest));
  }
  return value;
}

Settings parse(const std::vector<std::string>& arguments) {
  Settings settings;
  const std::map<std::string, std::function<void(const std::string&, const std::string&)>> options{
      {"--model", [&](auto&, auto& value) { settings.model = value; }},
      {"--structure", [&](auto&, auto& value) { settings.structure = value; }},
      {"--sizes",
       [&](auto& name, auto& value) {
         settings.sizes.clear();
         for (const std::string& part : split(value)) settings.sizes.push_back(number(name, part, 1));
       }},
      {"--dtype",
       [&](auto&, auto& value) {
         settings.dtype = fastpath::parse_dtype(value);
         if (!fastpath::is_floating(settings.dtype)) throw UsageError("--dtype: float64 or float32");
       }},
      {"--device", [&](auto&, auto& value) { settings.device = fastpath::parse_device(value); }},
      {"--threads", [&](auto& name, auto& value) { settings.threads = number(name, value, 0); }},
      {"--passes",
       [&](auto&, auto& value) {
         if (value != "forces" && value != "energy") throw UsageError("--passes: '" + value + "'; forces or energy");
         settings.forces = value == "forces";
       }},
      {"--arms",
       [&](auto&, auto& value) {
         settings.arms = split(value);
         for (const std::string& arm : settings.arms) {
           if (arm != "reference" && arm != "fast") throw UsageError("--arms: '" + arm + "'; reference and fast");
         }
       }},
      {"--budget", [&](auto& name, auto& value) { settings.budget.seconds = number(name, value, 0.0); }},
      {"--min-rounds", [&](auto& name, auto& value) { settings.budget.min_rounds = number(name, value, 1); }},
      {"--json", [&](auto&, auto& value) { settings.json = value; }}};
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    const auto option = options.find(arguments[i]);
    if (option == options.end()) throw UsageError("unknown option '" + arguments[i] + "'; see --help");
    if (i + 1 == arguments.size()) throw UsageError(arguments[i] + ": a value is missing");
    option->second(arguments[i], arguments[i + 1]);
  }
  return settings;
}

/// The structure repeated to about so many atoms, in a box as near to a cube as that number of cells allows.
fastpath::Structure replicate(const fastpath::Structure& unit, int wanted) {
  const int copies =
      std::max(1, static_cast<int>(std::lround(static_cast<double>(wanted) /
                                               static_cast<double>(std::max<std::int64_t>(unit.size(), 1)))));
  if (copies > 1 && !(unit.pbc[0] && unit.pbc[1] && unit.pbc[2])) {
    throw UsageError("--sizes: only a structure that is periodic in three directions can be replicated");
  }
  std::array<int, 3> counts{copies, 1, 1};
  for (int a = 1; a <= copies; ++a) {
    if (copies % a != 0) continue;
    for (int b = 1; b <= copies / a; ++b) {
      const std::array<int, 3> found{copies / a / b, b, a};
      if (copies / a % b == 0 &&
          *std::max_element(found.begin(), found.end()) - *std::min_element(found.begin(), found.end()) <
              *std::max_element(counts.begin(), counts.end()) - *std::min_element(counts.begin(), counts.end())) {
        counts = found;
      }
    }
  }
  fastpath::Structure result;
  result.pbc = unit.pbc;
  for (std::size_t axis = 0; axis < 3; ++axis) {
    for (std::size_t k = 0; k < 3; ++k) result.cell[axis][k] = unit.cell[axis][k] * counts[axis];
  }
  for (int i = 0; i < counts[0]; ++i) {
    for (int j = 0; j < counts[1]; ++j) {
      for (int l = 0; l < counts[2]; ++l) {
        for (std::size_t n = 0; n < unit.positions.size(); ++n) {
          fastpath::Vec3 position = unit.positions[n];
          for (std::size_t k = 0; k < 3; ++k) {
            position[k] += i * unit.cell[0][k] + j * unit.cell[1][k] + l * unit.cell[2][k];
          }
          result.positions.push_back(position);
          result.atomic_numbers.push_back(unit.atomic_numbers[n]);
        }
      }
    }
  }
  return result;
}

/// Facts about the model that decide its cost.
struct ModelFacts {
  std::int64_t l_max = 0;     // of the edge harmonics
  std::int64_t channels = 0;  // of the largest symmetric contraction
};

ModelFacts facts_of(fastpath::Model& model) {
  ModelFacts facts;
  const auto largest = [](const fastpath::OpConfig& config, const char* name, std::int64_t& value) {
    const auto found = config.find(name);
    if (found == config.end()) return;
    if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&found->second)) {
      for (const std::int64_t integer : *integers) value = std::max(value, integer);
    }
  };
  for (const fastpath::NamedFastModule& named : fastpath::fast_modules(model)) {
    const fastpath::OpSpec& op = named.module->op();
    if (op.id == "spherical_harmonics") largest(op.config, "l_max", facts.l_max);
    if (op.id == "symmetric_contraction") largest(op.config, "channels", facts.channels);
  }
  return facts;
}

struct ArmResult {
  bench::Timing timing;
  double first_seconds = 0;  // of the run that loads plugins, makes kernels, converts parameters
  std::uint64_t memory_before = 0, memory_peak = 0;
  double energy = 0;
  int modules = 0, modules_fast = 0;
  std::set<std::string> plugins;
};

struct SizeResult {
  std::int64_t n_atoms = 0, n_edges = 0;
  double seconds_graph = 0;
  std::vector<ArmResult> arms;

  const ArmResult* find(const std::string& name) const {
    for (const ArmResult& arm : arms) {
      if (arm.timing.name == name) return &arm;
    }
    return nullptr;
  }
};

SizeResult measure_size(const fastpath::Model& model, const fastpath::Structure& structure, const Settings& settings) {
  SizeResult size;
  std::vector<double> graph_seconds;
  for (int i = 0; i < 3; ++i) {
    const double start = bench::now();
    const fastpath::Graph graph = fastpath::Graph::from_structure(structure, model.r_max());
    graph_seconds.push_back(bench::now() - start);
  }
  size.seconds_graph = bench::median(graph_seconds);
  const fastpath::Graph graph = fastpath::Graph::from_structure(structure, model.r_max());
  size.n_atoms = graph.n_nodes();
  size.n_edges = graph.n_edges();

  std::vector<bench::Arm> arms;
  std::vector<std::shared_ptr<fastpath::Model>> models;  // one an arm, so that none finds the other's buffers
  for (const std::string& name : settings.arms) {
    fastpath::EvaluateOptions options;
    options.dtype = settings.dtype;
    options.threads = settings.threads;
    options.forces = options.stress = settings.forces;
    options.use_fast = name == "fast" ? fastpath::UseFast::always : fastpath::UseFast::never;
    if (name == "fast") options.device = settings.device;
    models.push_back(model.replica());

    ArmResult result;
    bench::reset_peak_memory();
    result.memory_before = bench::current_memory().value_or(0);
    const double start = bench::now();
    const fastpath::EvaluationResult first = models.back()->evaluate(graph, options);
    result.first_seconds = bench::now() - start;
    result.memory_peak = bench::peak_memory().value_or(0);
    result.energy = first.energy;
    for (const fastpath::Decision& decision : first.selection.decisions) {
      // Work that a fused module does, or the parts of one, is counted there.
      using fastpath::ReasonCode;
      const ReasonCode code = decision.reason.code;
      if (code == ReasonCode::covered_by_parent || code == ReasonCode::in_parts) continue;
      ++result.modules;
      if (!decision.fast()) continue;
      ++result.modules_fast;
      result.plugins.insert(decision.choice);
    }
    result.timing.name = name;
    size.arms.push_back(std::move(result));
    arms.push_back({name, [&graph, options, mine = models.back()] {
                      const double begin = bench::now();
                      mine->evaluate(graph, options);
                      return bench::now() - begin;
                    }});
  }
  const std::vector<bench::Timing> timings = bench::measure(arms, settings.budget);
  for (std::size_t i = 0; i < timings.size(); ++i) size.arms[i].timing = timings[i];
  return size;
}

/// How a quantity grows with the number of atoms: the exponent between two sizes.
double exponent(double small, double large, std::int64_t n_small, std::int64_t n_large) {
  return std::log(large / small) / std::log(static_cast<double>(n_large) / static_cast<double>(n_small));
}

double mebibytes(std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void print_table(const std::vector<SizeResult>& sizes, const Settings& settings) {
  std::vector<std::string> header{"atoms", "edges", "graph, ms"};
  for (const std::string& arm : settings.arms) {
    for (const char* column : {" ms", " +-", " us/atom", " MiB"}) header.push_back(arm + column);
  }
  header.push_back("reference/fast");
  bench::Table table(header);
  for (const SizeResult& size : sizes) {
    std::vector<std::string> row{std::to_string(size.n_atoms), std::to_string(size.n_edges),
                                 bench::fixed(1e3 * size.seconds_graph, 2)};
    for (const ArmResult& arm : size.arms) {
      row.push_back(bench::fixed(1e3 * arm.timing.median(), 2));
      row.push_back(bench::fixed(1e3 * arm.timing.mad(), 2));
      row.push_back(bench::fixed(1e6 * arm.timing.median() / static_cast<double>(size.n_atoms), 1));
      row.push_back(bench::fixed(mebibytes(arm.memory_peak - std::min(arm.memory_before, arm.memory_peak)), 1));
    }
    const ArmResult *reference = size.find("reference"), *fast = size.find("fast");
    row.push_back(reference != nullptr && fast != nullptr
                      ? bench::fixed(reference->timing.median() / fast->timing.median(), 2)
                      : "-");
    table.add(row);
  }
  std::printf("\n%s\n", table.text().c_str());
  if (const ArmResult* fast = sizes.empty() ? nullptr : sizes.front().find("fast")) {
    std::string plugins;
    for (const std::string& plugin : fast->plugins) plugins += (plugins.empty() ? "" : ", ") + plugin;
    std::printf("fast: %d of %d modules by %s\n", fast->modules_fast, fast->modules,
                plugins.empty() ? "kernels; no plugin served any" : plugins.c_str());
  }
  // Small systems are ruled by fixed costs, so growth is told from the first size of 200 atoms or more.
  const auto from =
      std::find_if(sizes.begin(), sizes.end(), [](const SizeResult& size) { return size.n_atoms >= 200; });
  if (from == sizes.end() || sizes.back().n_atoms <= from->n_atoms) return;
  for (std::size_t i = 0; i < settings.arms.size(); ++i) {
    const ArmResult &small = from->arms[i], &large = sizes.back().arms[i];
    std::printf("%s: from %lld to %lld atoms time grows as n^%.2f\n", settings.arms[i].c_str(),
                static_cast<long long>(from->n_atoms), static_cast<long long>(sizes.back().n_atoms),
                exponent(small.timing.median(), large.timing.median(), from->n_atoms, sizes.back().n_atoms));
  }
}

std::string to_json(const std::vector<SizeResult>& sizes, const Settings& settings, fastpath::Model& model) {
  const fastpath::BuildInfo& build = fastpath::build_info();
  const fastpath::DeviceInfo& cpu = fastpath::cpu_info();
  const ModelFacts facts = facts_of(model);
  bench::JsonWriter json;
  json.begin_object().put("bench", "whole_model").put("format_version", 1);
  json.begin_object("machine").put("cpu", cpu.name).put("arch", cpu.arch).put("units", static_cast<int>(cpu.units));
  json.put("memory_bytes", cpu.memory_bytes).put("system", build.system).end();
  json.begin_object("build").put("version", build.version).put("compiler", build.compiler);
  json.put("build_type", build.build_type).put("sanitizer", build.sanitizer).end();
  json.begin_object("settings").put("dtype", to_string(settings.dtype)).put("device", to_string(settings.device));
  json.put("threads", settings.threads > 0 ? settings.threads : fastpath::Context::process().threads());
  json.put("passes", settings.forces ? "forces" : "energy").put("structure", settings.structure);
  json.put("budget_seconds", settings.budget.seconds).put("min_rounds", settings.budget.min_rounds).end();
  json.begin_object("model").put("path", settings.model).put("architecture", model.architecture());
  json.put("r_max", model.r_max()).put("layers", model.num_interactions()).put("l_max", facts.l_max);
  json.put("channels", facts.channels).put("parameters", model.parameter_count()).end();
  json.begin_array("sizes");
  for (const SizeResult& size : sizes) {
    json.begin_object().put("atoms", size.n_atoms).put("edges", size.n_edges).put("seconds_graph", size.seconds_graph);
    json.begin_array("arms");
    for (const ArmResult& arm : size.arms) {
      json.begin_object().put("name", arm.timing.name).put("median_seconds", arm.timing.median());
      json.put("mad_seconds", arm.timing.mad()).put("min_seconds", arm.timing.minimum());
      json.put("seconds_per_atom", arm.timing.median() / static_cast<double>(size.n_atoms));
      json.put("first_seconds", arm.first_seconds).put("memory_before_bytes", arm.memory_before);
      json.put("memory_peak_bytes", arm.memory_peak).put("energy", arm.energy);
      json.put("modules", arm.modules).put("modules_fast", arm.modules_fast);
      json.begin_array("plugins");
      for (const std::string& plugin : arm.plugins) json.put("", plugin);
      json.end().begin_array("seconds");
      for (const double seconds : arm.timing.seconds) json.put("", seconds);
      json.end().end();
    }
    json.end();
    const ArmResult *reference = size.find("reference"), *fast = size.find("fast");
    if (reference != nullptr && fast != nullptr) {
      json.put("ratio", reference->timing.median() / fast->timing.median());
    } else {
      json.put_null("ratio");
    }
    json.end();
  }
  json.end().end();
  return json.text();
}

/// Speeds of different results mean nothing.
bool agree(const SizeResult& size, fastpath::DType dtype) {
  const ArmResult *reference = size.find("reference"), *fast = size.find("fast");
  if (reference == nullptr || fast == nullptr) return true;
  const double limit = dtype == fastpath::DType::float64 ? 1e-12 : 1e-5;
  const double difference = std::abs(fast->energy - reference->energy) / std::abs(reference->energy);
  if (difference <= limit) return true;
  std::fprintf(stderr, "fastpath_bench: %lld atoms: energies of the arms differ by %.1e, at most %.0e\n",
               static_cast<long long>(size.n_atoms), difference, limit);
  return false;
}

int run(const Settings& settings) {
  const bool table = settings.json != "-";
  const auto model = fastpath::Model::load(settings.model);
  const fastpath::Structure unit = fastpath::read_extxyz(settings.structure).front();
  const ModelFacts facts = facts_of(*model);
  const fastpath::BuildInfo& build = fastpath::build_info();
  if (table) {
    std::printf("%s, %u units; fastpath %s, %s, %s\n", fastpath::cpu_info().name.c_str(), fastpath::cpu_info().units,
                build.version.c_str(), build.compiler.c_str(), build.build_type.c_str());
    std::printf("%s: %d layers, l_max %lld, %lld channels; %s, %d threads, %s\n", settings.model.c_str(),
                model->num_interactions(), static_cast<long long>(facts.l_max), static_cast<long long>(facts.channels),
                std::string(to_string(settings.dtype)).c_str(),
                settings.threads > 0 ? settings.threads : fastpath::Context::process().threads(),
                settings.forces ? "energy, forces, stress" : "energy");
    if (build.build_type != "Release") std::printf("NOT a release build: these times say nothing\n");
  }
  std::vector<SizeResult> sizes;
  bool good = true;
  for (const int wanted : settings.sizes) {
    sizes.push_back(measure_size(*model, replicate(unit, wanted), settings));
    good &= agree(sizes.back(), settings.dtype);
    if (table) {
      std::printf("%lld atoms done\n", static_cast<long long>(sizes.back().n_atoms));
      std::fflush(stdout);
    }
  }
  if (table) print_table(sizes, settings);
  if (settings.json.empty()) return good ? 0 : 1;
  const std::string text = to_json(sizes, settings, *model);
  if (!table) {
    std::fputs(text.c_str(), stdout);
    return good ? 0 : 1;
  }
  std::ofstream file(settings.json);
  file << text;
  file.close();
  if (!file) {
    std::fprintf(stderr, "fastpath_bench: %s cannot be written\n", settings.json.c_str());
    return 1;
  }
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  fastpath::set_warning_handler([](const fastpath::FastPathPrecisionWarning&) {});
  try {
    return run(parse(arguments));
  } catch (const UsageError& error) {
    std::fprintf(stderr, "fastpath_bench: %s\n", error.what());
    return 2;
  } catch (const fastpath::Error& error) {
    std::fprintf(stderr, "fastpath_bench: %s\n", error.what());
    return error.code() == fastpath::ErrorCode::invalid_argument ? 2 : 1;
  }
}
