// fastpath_bench: whole-model evaluations by the reference and by kernels, over sizes. README.md says how to read it.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "crystal.hpp"
#include "fastpath/context.hpp"
#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/graph.hpp"
#include "fastpath/model.hpp"
#include "fastpath/version.hpp"
#include "fastpath/warning.hpp"
#include "harness.hpp"
#include "report.hpp"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace {

constexpr const char* kHelp =
    R"(fastpath_bench [options]: times evaluations of a model, the reference against kernels, over sizes.

  --model DIR         model folder or hub name (examples/models/demo)
  --structure FILE    extended XYZ; its first frame is replicated to the sizes (examples/structures/water.xyz);
                      `crystal`: a shaken crystal of H, C, O, Si with 50 neighbours an atom, of exactly these sizes
  --sizes N,N,...     wanted numbers of atoms; each becomes the nearest whole number of cells (96,500,1000,5000)
  --dtype NAME,NAME   float64, float32 (float64)
  --device NAME       of all arms but the reference, which runs on the CPU (cpu)
  --threads N,N       CPU threads of an evaluation, 0: all; the reference uses one thread whatever it may use (0)
  --passes NAME,NAME  forces (energy, forces, stress), energy, training: a step of training without the optimiser's part,
                      that is forces, and then the gradient by every parameter of a loss of energy, forces and stress;
                      joined: forces of 64 copies of the structure in one call, one_by_one: in 64 calls, neighbour
                      lists included (forces)
  --arms NAME,...     reference; fast: the kernels that fastpath chooses; auto: what it knows to be faster here; the id
                      of a plugin: its kernels, and those of cpu_ref for ops that it lacks (reference,fast)
  --plugins DIR       where the plugins of arms named by id are (those of the build)
  --budget SECONDS    of the counted runs of one size, all arms together; of an arm whose first run takes 5
                      times as long that one counts, without another (10)
  --min-rounds N      rounds per size, also when the budget is used up (3)
  --json FILE         also write everything as JSON; - is standard output, then without the table
  --help

Exit status: 0, 1 if the arms disagree or an evaluation fails, 2 for wrong options.
)";

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What an arm does once.
enum class Work { energy, forces, training, joined, one_by_one };
constexpr std::array<std::pair<const char*, Work>, 5> kWork{{{"energy", Work::energy},
                                                             {"forces", Work::forces},
                                                             {"training", Work::training},
                                                             {"joined", Work::joined},
                                                             {"one_by_one", Work::one_by_one}}};
constexpr std::size_t kCopies = 64;  // of a structure that is evaluated many times
const char* to_string(Work work) { return kWork[static_cast<std::size_t>(work)].first; }

struct Settings {
  std::string model = "examples/models/demo";
  std::string structure = "examples/structures/water.xyz";
  std::vector<int> sizes{96, 500, 1000, 5000};
  std::vector<fastpath::DType> dtypes{fastpath::DType::float64};
  fastpath::Device device;
  std::vector<int> threads{0};
  std::vector<Work> passes{Work::forces};
  std::vector<std::string> arms{"reference", "fast"};
  bench::Budget budget{.seconds = 10, .warm_up = 0, .min_rounds = 3, .max_rounds = 1000};
  std::string plugins = BENCH_TREE_PLUGINS;
  std::string json;
  std::string command = "fastpath_bench";
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
         settings.dtypes.clear();
         for (const std::string& part : split(value)) {
           settings.dtypes.push_back(fastpath::parse_dtype(part));
           if (!fastpath::is_floating(settings.dtypes.back())) throw UsageError("--dtype: float64 or float32");
         }
       }},
      {"--device", [&](auto&, auto& value) { settings.device = fastpath::parse_device(value); }},
      {"--threads",
       [&](auto& name, auto& value) {
         settings.threads.clear();
         for (const std::string& part : split(value)) settings.threads.push_back(number(name, part, 0));
       }},
      {"--passes",
       [&](auto&, auto& value) {
         settings.passes.clear();
         for (const std::string& part : split(value)) {
           const auto known =
               std::find_if(kWork.begin(), kWork.end(), [&](const auto& each) { return part == each.first; });
           if (known == kWork.end()) throw UsageError("--passes: '" + part + "' is none of them; see --help");
           settings.passes.push_back(known->second);
         }
       }},
      {"--arms", [&](auto&, auto& value) { settings.arms = split(value); }},
      {"--plugins", [&](auto&, auto& value) { settings.plugins = value; }},
      {"--budget", [&](auto& name, auto& value) { settings.budget.seconds = number(name, value, 0.0); }},
      {"--min-rounds", [&](auto& name, auto& value) { settings.budget.min_rounds = number(name, value, 1); }},
      {"--json", [&](auto&, auto& value) { settings.json = value; }}};
  for (std::size_t i = 0; i < arguments.size(); i += 2) {
    const auto option = options.find(arguments[i]);
    if (option == options.end()) throw UsageError("unknown option '" + arguments[i] + "'; see --help");
    if (i + 1 == arguments.size()) throw UsageError(arguments[i] + ": a value is missing");
    option->second(arguments[i], arguments[i + 1]);
    settings.command += " " + arguments[i] + " " + arguments[i + 1];
  }
  for (int& threads : settings.threads) {
    if (threads == 0) threads = fastpath::Context::process().threads();
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
  fastpath::Tensor forces;
  fastpath::StateDict gradients;     // of training
  double gradient_difference = NAN;  // from the first arm's, of the largest entry of each parameter
  int modules = 0, modules_fast = 0;
  std::set<std::string> plugins;
  std::string failure;  // why it did not run: out of memory
};

struct SizeResult {
  fastpath::DType dtype = fastpath::DType::float64;
  Work work = Work::forces;
  std::int64_t n_atoms = 0, n_edges = 0;
  double seconds_graph = 0;
  std::vector<ArmResult> arms;

  const ArmResult* find(const std::string& name, int threads = 0) const {
    for (const ArmResult& arm : arms) {
      if (arm.timing.name == name && (threads == 0 || arm.timing.threads == threads)) return &arm;
    }
    return nullptr;
  }
  /// Reference over arm; NaN where one of them is missing.
  double ratio(const ArmResult& arm) const {
    const ArmResult* const reference = find("reference");
    return reference == nullptr ? NAN : reference->timing.median() / arm.timing.median();
  }
};

/// The plugins of an arm that is named after one: that one, and cpu_ref for what it lacks.
fastpath::Context& context_of(const std::string& plugin, const Settings& settings) {
  static std::map<std::string, std::unique_ptr<fastpath::Context>> contexts;
  std::unique_ptr<fastpath::Context>& context = contexts[plugin];
  if (context != nullptr) return *context;
  context = std::make_unique<fastpath::Context>(fastpath::ContextOptions{
      .registry = {.search_paths = {settings.plugins}, .default_paths = false, .enable = {plugin, "cpu_ref"}}});
  const auto known = context->registry().plugins();
  if (std::none_of(known.begin(), known.end(), [&](const fastpath::PluginInfo& each) {
        return each.id == plugin && each.state == fastpath::PluginState::usable;
      })) {
    throw UsageError("--arms: '" + plugin + "' is none of reference, fast and auto, nor a usable plugin in " +
                     settings.plugins);
  }
  return *context;
}

/// What is evaluated.
struct Subject {
  std::vector<fastpath::Structure> structures;  // one, or equal ones
  fastpath::Graph graph;                        // of one
  double seconds_graph = 0;
};

struct Outcome {
  fastpath::EvaluationResult result;
  fastpath::StateDict gradients;
};

/// Does the work once. The loss of training is energy / number of atoms + sum of squares of forces and stresses: its
/// gradient costs what that of any other loss does.
Outcome once(fastpath::Model& model, const Subject& subject, const fastpath::EvaluateOptions& options, Work work) {
  if (work == Work::joined || work == Work::one_by_one) {
    std::vector<fastpath::EvaluationResult> results;
    if (work == Work::joined) {
      results = model.evaluate(subject.structures, options);
    } else {
      for (const fastpath::Structure& each : subject.structures) results.push_back(model.evaluate(each, options));
    }
    double seconds = 0;
    for (const fastpath::EvaluationResult& result : results) seconds += result.seconds;
    Outcome outcome{std::move(results.back()), {}};
    outcome.result.seconds = seconds;
    return outcome;
  }
  const fastpath::Graph& graph = subject.graph;
  Outcome outcome{model.evaluate(graph, options), {}};
  if (work != Work::training) return outcome;
  const auto twice = [](const fastpath::Tensor& tensor) {
    fastpath::Tensor result = tensor.clone();
    for (double& value : result.span<double>()) value *= 2;
    return result;
  };
  fastpath::EvaluateOptions derived = options;
  derived.forces = derived.stress = false;
  derived.weights.energies = fastpath::Tensor::from<double>({1}, {1.0 / static_cast<double>(graph.n_nodes())});
  derived.weights.forces = twice(outcome.result.forces);
  derived.weights.stresses = twice(outcome.result.graph_stresses);
  fastpath::EvaluationResult second = model.evaluate(graph, derived);
  outcome.gradients = std::move(second.weighted_gradients);
  outcome.result.selection = second.selection;  // of the two passes the one with more to ask of kernels
  outcome.result.seconds += second.seconds;
  return outcome;
}

SizeResult measure_size(const fastpath::Model& model, const Subject& subject, fastpath::DType dtype, Work work,
                        const Settings& settings) {
  SizeResult size;
  size.dtype = dtype;
  size.work = work;
  size.seconds_graph = subject.seconds_graph;
  size.n_atoms = subject.graph.n_nodes() * static_cast<std::int64_t>(subject.structures.size());
  size.n_edges = subject.graph.n_edges() * static_cast<std::int64_t>(subject.structures.size());

  std::vector<bench::Arm> arms;
  std::vector<std::size_t> which;                        // place of each of `arms` in size.arms
  std::vector<std::shared_ptr<fastpath::Model>> models;  // one an arm, so that none finds the other's buffers
  for (const std::string& name : settings.arms) {
    for (const int threads : settings.threads) {
      if (name == "reference" && threads != settings.threads.front()) continue;
      fastpath::EvaluateOptions options;
      options.dtype = dtype;
      options.threads = name == "reference" ? 1 : threads;
      options.forces = options.stress = work != Work::energy;
      options.use_fast = name == "reference" ? fastpath::UseFast::never
                         : name == "auto"    ? fastpath::UseFast::automatic
                                             : fastpath::UseFast::always;
      if (name != "reference") options.device = settings.device;
      models.push_back(model.replica());
      if (name != "reference" && name != "fast" && name != "auto") {
        options.context = &context_of(name, settings);
        auto policy = std::make_shared<fastpath::AutoPolicy>();
        policy->preference = {name};
        models.back()->set_policy(std::move(policy));
      }

      ArmResult result;
      result.timing.name = name;
      result.timing.threads = options.threads;
#ifdef __GLIBC__
      malloc_trim(0);  // or what earlier evaluations left behind would hide what this one needs
#endif
      bench::reset_peak_memory();
      result.memory_before = bench::current_memory().value_or(0);
      const double start = bench::now();
      try {
        Outcome outcome = once(*models.back(), subject, options, work);
        const fastpath::EvaluationResult& first = outcome.result;
        result.first_seconds = bench::now() - start;
        result.memory_peak = bench::peak_memory().value_or(0);
        result.energy = first.energy;
        result.forces = first.forces;
        result.gradients = std::move(outcome.gradients);
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
        which.push_back(size.arms.size());
        arms.push_back(
            {name,
             [&subject, options, work, mine = models.back()] {
               const double begin = bench::now();
               (void)once(*mine, subject, options, work);
               return bench::now() - begin;
             },
             options.threads,
             first.seconds > bench::kTooSlow * settings.budget.seconds ? std::optional(first.seconds) : std::nullopt});
      } catch (const fastpath::Error& error) {
        if (error.code() != fastpath::ErrorCode::out_of_memory) throw;
        result.failure = error.what();
      }
      size.arms.push_back(std::move(result));
    }
  }
  const std::vector<bench::Timing> timings = bench::measure(arms, settings.budget);
  for (std::size_t i = 0; i < timings.size(); ++i) size.arms[which[i]].timing = timings[i];
  return size;
}

/// How a quantity grows with the number of atoms: the exponent between two sizes.
double exponent(double small, double large, std::int64_t n_small, std::int64_t n_large) {
  return std::log(large / small) / std::log(static_cast<double>(n_large) / static_cast<double>(n_small));
}

double mebibytes(std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

void print_table(const std::vector<SizeResult>& sizes, const Settings& settings) {
  bench::Table table({"pass", "dtype", "atoms", "edges", "graph", "arm", "threads", "time", "+-", "us/atom", "us/edge",
                      "MiB", "x ref"});
  for (const SizeResult& size : sizes) {
    for (const ArmResult& arm : size.arms) {
      const double seconds = arm.timing.median(), ratio = size.ratio(arm);
      table.add({to_string(size.work), std::string(to_string(size.dtype)), std::to_string(size.n_atoms),
                 std::to_string(size.n_edges), bench::time_text(size.seconds_graph), arm.timing.name,
                 std::to_string(arm.timing.threads), arm.failure.empty() ? bench::time_text(seconds) : "out of memory",
                 bench::time_text(arm.timing.mad()), bench::fixed(1e6 * seconds / static_cast<double>(size.n_atoms), 1),
                 bench::fixed(1e6 * seconds / static_cast<double>(size.n_edges), 2),
                 bench::fixed(mebibytes(arm.memory_peak - std::min(arm.memory_before, arm.memory_peak)), 1),
                 std::isnan(ratio) ? "-" : bench::fixed(ratio, 2)});
    }
  }
  std::printf("\n%s\n", table.text().c_str());
  for (const ArmResult& arm : sizes.empty() ? std::vector<ArmResult>() : sizes.front().arms) {
    if (arm.timing.name == "reference" || arm.timing.threads != settings.threads.front()) continue;
    std::string plugins;
    for (const std::string& plugin : arm.plugins) plugins += (plugins.empty() ? "" : ", ") + plugin;
    std::printf("%s: %d of %d modules by %s\n", arm.timing.name.c_str(), arm.modules_fast, arm.modules,
                plugins.empty() ? "kernels; no plugin served any" : plugins.c_str());
  }
  for (const SizeResult& size : sizes) {
    for (const ArmResult& arm : size.arms) {
      if (std::isnan(arm.gradient_difference)) continue;
      std::printf("%s, %lld atoms, %s with %d thread%s: gradients differ from those of %s by at most %.1e\n",
                  std::string(to_string(size.dtype)).c_str(), static_cast<long long>(size.n_atoms),
                  arm.timing.name.c_str(), arm.timing.threads, arm.timing.threads == 1 ? "" : "s",
                  size.arms.front().timing.name.c_str(), arm.gradient_difference);
    }
  }
  // Small systems are ruled by fixed costs, so growth is told from the first size of 200 atoms or more.
  const auto from =
      std::find_if(sizes.begin(), sizes.end(), [](const SizeResult& size) { return size.n_atoms >= 200; });
  if (from == sizes.end()) return;
  const auto to = std::find_if(sizes.rbegin(), sizes.rend(), [&](const SizeResult& size) {
    return size.dtype == from->dtype && size.work == from->work;
  });
  if (to->n_atoms <= from->n_atoms) return;
  for (std::size_t i = 0; i < from->arms.size(); ++i) {
    const ArmResult &small = from->arms[i], &large = to->arms[i];
    if (!small.failure.empty() || !large.failure.empty()) continue;
    std::printf("%s, %d thread%s: from %lld to %lld atoms time grows as n^%.2f (%s)\n", small.timing.name.c_str(),
                small.timing.threads, small.timing.threads == 1 ? "" : "s", static_cast<long long>(from->n_atoms),
                static_cast<long long>(to->n_atoms),
                exponent(small.timing.median(), large.timing.median(), from->n_atoms, to->n_atoms),
                std::string(to_string(from->dtype)).c_str());
  }
}

std::string to_json(const std::vector<SizeResult>& sizes, const bench::Findings& findings, const Settings& settings,
                    fastpath::Model& model) {
  const ModelFacts facts = facts_of(model);
  bench::JsonWriter json;
  json.begin_object().put("bench", "whole_model").put("format_version", 2);
  bench::put_identity(json);
  json.end();
  json.begin_object("settings").put("command", settings.command).put("device", to_string(settings.device));
  json.put("structure", settings.structure).put("budget_seconds", settings.budget.seconds);
  json.put("min_rounds", settings.budget.min_rounds).end();
  json.begin_object("model").put("path", settings.model);
  json.put("name", std::filesystem::path(settings.model).filename().string());
  json.put("architecture", model.architecture());
  json.put("r_max", model.r_max()).put("layers", model.num_interactions()).put("l_max", facts.l_max);
  json.put("channels", facts.channels).put("parameters", model.parameter_count()).end();
  json.begin_array("results");
  for (const SizeResult& size : sizes) {
    json.begin_object().put("dtype", to_string(size.dtype)).put("pass", to_string(size.work));
    json.put("atoms", size.n_atoms).put("edges", size.n_edges).put("seconds_graph", size.seconds_graph);
    json.begin_array("arms");
    for (const ArmResult& arm : size.arms) {
      json.begin_object();
      bench::put_timing(json, arm.timing);
      json.put("seconds_per_atom", arm.timing.median() / static_cast<double>(size.n_atoms));
      json.put("seconds_per_edge", arm.timing.median() / static_cast<double>(size.n_edges));
      json.put("first_seconds", arm.first_seconds).put("memory_before_bytes", arm.memory_before);
      json.put("memory_peak_bytes", arm.memory_peak);
      json.put("memory_bytes", arm.memory_peak - std::min(arm.memory_before, arm.memory_peak));
      json.put("energy", arm.energy).put("modules", arm.modules).put("modules_fast", arm.modules_fast);
      json.put("gradient_difference", arm.gradient_difference);
      json.put("ratio", size.ratio(arm)).put("failure", arm.failure);
      json.begin_array("plugins");
      for (const std::string& plugin : arm.plugins) json.put("", plugin);
      json.end().begin_array("seconds");
      for (const double seconds : arm.timing.seconds) json.put("", seconds);
      json.end().end();
    }
    json.end().end();
  }
  json.end();
  findings.put(json);
  json.end();
  return json.text();
}

/// The largest difference, of the largest entry of `b`; infinite where one is not a number.
double difference(const fastpath::Tensor& a, const fastpath::Tensor& b) {
  double most = 0, largest = 0;
  for (std::int64_t i = 0; i < b.numel(); ++i) {
    const double x = a.data<double>()[i], y = b.data<double>()[i];
    most = std::isnan(x) || std::isnan(y) ? INFINITY : std::max(most, std::abs(x - y));
    largest = std::max(largest, std::abs(y));
  }
  return largest > 0 ? most / largest : most;
}

/// Speeds of different results mean nothing.
bool agree(SizeResult& size) {
  const bool exact = size.dtype == fastpath::DType::float64;
  ArmResult* first = nullptr;
  bool good = true;
  const auto check = [&](const char* what, const ArmResult& arm, double difference, double limit) {
    if (difference <= limit) return;
    std::fprintf(stderr, "fastpath_bench: %lld atoms, %s: %s of %s and %s differ by %.1e, at most %.0e\n",
                 static_cast<long long>(size.n_atoms), std::string(to_string(size.dtype)).c_str(), what,
                 first->timing.name.c_str(), arm.timing.name.c_str(), difference, limit);
    good = false;
  };
  for (ArmResult& arm : size.arms) {
    if (!arm.failure.empty()) continue;
    if (first == nullptr) {
      first = &arm;
      continue;
    }
    check("energies", arm, std::abs(arm.energy - first->energy) / std::abs(first->energy), exact ? 1e-12 : 1e-5);
    if (size.work == Work::energy) continue;
    check("forces", arm, difference(arm.forces, first->forces), exact ? 1e-11 : 1e-4);
    if (size.work != Work::training) continue;
    arm.gradient_difference = 0;
    for (const auto& [name, gradient] : first->gradients) {
      arm.gradient_difference = std::max(arm.gradient_difference, difference(arm.gradients.at(name), gradient));
    }
    check("gradients", arm, arm.gradient_difference, exact ? 1e-10 : 1e-3);
  }
  return good;
}

int run(const Settings& settings) {
  const bool table = settings.json != "-";
  const auto model = fastpath::Model::load(settings.model);
  std::optional<fastpath::Structure> unit;
  if (settings.structure != "crystal") unit = fastpath::read_extxyz(settings.structure).front();
  const ModelFacts facts = facts_of(*model);
  if (table) {
    std::printf("%s%s: %d layers, l_max %lld, %lld channels\n", bench::identity_text().c_str(), settings.model.c_str(),
                model->num_interactions(), static_cast<long long>(facts.l_max), static_cast<long long>(facts.channels));
  }
  std::vector<SizeResult> sizes;
  bench::Findings findings;
  bool good = true;
  for (const Work work : settings.passes) {
    for (const fastpath::DType dtype : settings.dtypes) {
      for (const int wanted : settings.sizes) {
        const fastpath::Structure structure = unit ? replicate(*unit, wanted) : bench::crystal(wanted);
        std::vector<double> graph_seconds;
        Subject subject{{}, fastpath::Graph::from_structure(structure, model->r_max())};
        for (int i = 0; i < 3; ++i) {
          const double start = bench::now();
          subject.graph = fastpath::Graph::from_structure(structure, model->r_max());
          graph_seconds.push_back(bench::now() - start);
        }
        subject.seconds_graph = bench::median(graph_seconds);
        subject.structures.assign(work == Work::joined || work == Work::one_by_one ? kCopies : 1, structure);
        sizes.push_back(measure_size(*model, subject, dtype, work, settings));
        SizeResult& size = sizes.back();
        good &= agree(size);
        std::vector<bench::Timing> timings;
        for (const ArmResult& arm : size.arms) timings.push_back(arm.timing);
        findings.add(settings.model + " " + std::string(to_string(dtype)) + " " + to_string(work) + ", " +
                         std::to_string(size.n_atoms) + " atoms",
                     timings);
        for (ArmResult& arm : sizes.back().arms) {
          arm.forces = {};
          arm.gradients = {};
        }
        if (table) {
          std::printf("%s %s, %lld atoms done\n", to_string(work), std::string(to_string(dtype)).c_str(),
                      static_cast<long long>(size.n_atoms));
          std::fflush(stdout);
        }
      }
    }
  }
  if (table) {
    print_table(sizes, settings);
    std::printf("%s", findings.text().c_str());
  }
  if (settings.json.empty()) return good ? 0 : 1;
  const std::string text = to_json(sizes, findings, settings, *model);
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
