// Speed of single ops on the CPU: the reference and kernels of plugins take turns, next to what this machine can do.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "crystal.hpp"
#include "fastpath/create_op.hpp"
#include "fastpath/error.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/graph.hpp"
#include "fastpath/sdk/ops.hpp"
#include "fastpath/warning.hpp"
#include "harness.hpp"
#include "machine.hpp"
#include "report.hpp"
#include "shapes.hpp"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace {

using namespace fastpath;

constexpr const char* kHelp =
    R"(fastpath_bench_ops [options]: times single ops on the CPU, the reference against kernels of plugins.

  --op NAME,NAME      spherical_harmonics, radial_basis, radial_mlp, conv_tensor_product, message_step, irreps_linear,
                      species_linear, symmetric_contraction (all)
  --layer NAME,NAME   mace_small, mace_medium, mace_large (128 channels to degree 0, 1, 2), mace_off_small (96 to 0),
                      mace_off_medium, mace_off_large (192 to 2), nequip_l2 (128/64/32), nequip_l3 (128/64/32/32) (all)
  --edges N,N         about so many; below 2000 those of a molecule, else of a crystal with 49 neighbours an atom (20000)
  --dtype NAME,NAME   float32, float64 (both)
  --threads N,N       CPU threads of a kernel; the reference has one (1,2)
  --arms NAME,..      reference and plugin ids (reference,cpu_ref,cpu_simd)
  --seconds S         for the counted runs of one line's pass, all arms together; three rounds at
                      least; of an arm whose first run takes 5 times as long that one counts, without another (2)
  --plugins DIR       where the plugins are (those of the build)
  --rates-only        measure the machine, and nothing else
  --json FILE         also write everything as JSON
  --help

F is forward, FB forward and the gradients of the inputs; times are medians of runs that take turns, +- the median
distance from them. GFLOP/s and GB/s count what docs/operators.md, section 5, counts; "of roof" is the time that this
takes at the measured rates of as many threads, over the time that it took. MiB is the memory that the first call took,
inputs and outputs apart. Layers whose op is the same are measured once, under the first name.
Exit status: 0, 1 if an arm disagrees with the reference or fails, 2 for wrong options.
)";

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> result{""};
  for (const char c : text) {
    if (c == ',') {
      result.emplace_back();
    } else {
      result.back().push_back(c);
    }
  }
  return result;
}
[[noreturn]] void refuse(const std::string& text) {
  std::fprintf(stderr, "fastpath_bench_ops: %s; --help lists the options\n", text.c_str());
  std::exit(2);
}

struct Options {
  std::vector<std::string> ops{bench::op_names().begin(), bench::op_names().end()}, layers,
      dtypes{"float32", "float64"}, arms{"reference", "cpu_ref", "cpu_simd"};
  std::vector<std::int64_t> edges{20000};
  std::vector<int> threads{1, 2};
  double seconds = 2;
  bool rates_only = false;
  std::string plugins = BENCH_TREE_PLUGINS, json, command = "fastpath_bench_ops";
};

double number(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !(value > 0)) refuse(name + " is '" + text + "', expected a number > 0");
  return value;
}
template <class T>
std::vector<T> whole_numbers(const std::string& name, const std::string& text) {
  std::vector<T> result;
  for (const std::string& part : split(text)) {
    const double value = number(name, part);
    if (value != std::floor(value) || value > 1e9) refuse(name + " is '" + part + "', expected a whole number");
    result.push_back(static_cast<T>(value));
  }
  return result;
}
template <class Names>
std::vector<std::string> words(const std::string& name, const std::string& text, const Names& known) {
  const std::vector<std::string> result = split(text);
  for (const std::string& word : result) {
    if (std::find(std::begin(known), std::end(known), word) == std::end(known)) {
      refuse(name + ": '" + word + "' is unknown");
    }
  }
  return result;
}
std::vector<std::string> layer_names() {
  std::vector<std::string> names;
  for (const bench::LayerShape& shape : bench::layer_shapes()) names.emplace_back(shape.name);
  return names;
}
Options parse(int argc, char** argv) {
  Options options;
  options.layers = layer_names();
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    options.command += " " + name;
    if (name == "--help") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    }
    if (name == "--rates-only") {
      options.rates_only = true;
      continue;
    }
    if (i + 1 == argc) refuse(name + " is unknown, or lacks a value");
    const std::string value = argv[++i];
    options.command += " " + value;
    if (name == "--op") {
      options.ops = words(name, value, bench::op_names());
    } else if (name == "--layer") {
      options.layers = words(name, value, layer_names());
    } else if (name == "--dtype") {
      options.dtypes = words(name, value, std::vector<std::string>{"float32", "float64"});
    } else if (name == "--arms") {
      options.arms = split(value);
    } else if (name == "--edges") {
      options.edges = whole_numbers<std::int64_t>(name, value);
    } else if (name == "--threads") {
      options.threads = whole_numbers<int>(name, value);
    } else if (name == "--seconds") {
      options.seconds = number(name, value);
    } else if (name == "--plugins") {
      options.plugins = value;
    } else if (name == "--json") {
      options.json = value;
    } else {
      refuse(name + " is unknown");
    }
  }
  return options;
}

/// A graph of about so many edges.
Graph graph_of(std::int64_t edges) {
  constexpr double kRadius = 5.0;
  if (edges >= 2000) {
    const auto side = static_cast<std::int64_t>(std::llround(std::cbrt(static_cast<double>(edges) / 49)));
    return Graph::from_structure(bench::crystal(side * side * side), kRadius);
  }
  for (std::int64_t atoms = 2;; ++atoms) {
    Graph graph = Graph::from_structure(bench::cluster(atoms), kRadius);
    if (graph.n_edges() >= edges) return graph;
  }
}

/// What all arms of one op read and write.
struct Problem {
  std::vector<Tensor> inputs, outputs, grad_outputs, grad_inputs;

  /// @param rows  How many rows an op without a graph has.
  Problem(const sdk::Signature& signature, const Graph& graph, const OpGraph& op_graph, std::int64_t rows,
          DType dtype) {
    const Tensor vectors = graph.edge_vectors();
    std::mt19937_64 random(2);
    const auto filled = [&](const sdk::Argument& argument) {
      if (!argument.real) return op_graph.species;
      Shape shape;
      if (argument.axis == sdk::Axis::edges) shape = {graph.n_edges()};
      if (argument.axis == sdk::Axis::rows) shape = {rows};
      if (argument.axis == sdk::Axis::nodes || argument.axis == sdk::Axis::receivers) shape = {graph.n_nodes()};
      shape.insert(shape.end(), argument.trailing.begin(), argument.trailing.end());
      const Tensor values = Tensor::empty(shape, DType::float64);
      double* const to = values.data<double>();
      const double* const v = vectors.data<double>();
      for (std::int64_t i = 0; i < values.numel(); ++i) {
        to[i] = argument.name == "vectors"   ? v[i]
                : argument.name == "lengths" ? std::hypot(v[3 * i], v[3 * i + 1], v[3 * i + 2])
                                             : static_cast<double>(random() % 2001) / 1000 - 1;
      }
      return values.to(dtype);
    };
    for (const sdk::Argument& argument : signature.inputs) {
      inputs.push_back(filled(argument));
      grad_inputs.push_back(argument.real && argument.differentiable ? inputs.back().clone() : Tensor());
    }
    for (const sdk::Argument& argument : signature.outputs) {
      if (argument.optional) {
        outputs.emplace_back(), grad_outputs.emplace_back();
        continue;
      }
      grad_outputs.push_back(filled(argument));
      outputs.push_back(grad_outputs.back().clone());
    }
  }

  OpCall call(Pass pass, const OpGraph& graph, int threads) const {
    OpCall call;
    call.pass = pass;
    call.graph = &graph;
    call.inputs = inputs;
    call.threads = threads;
    if (pass == Pass::forward) {
      call.outputs = outputs;
    } else {
      call.grad_outputs = grad_outputs;
      call.grad_inputs = grad_inputs;
    }
    return call;
  }

  /// Bytes of the tensors that a pass touches.
  double footprint(bool both) const {
    double sum = 0;
    const auto add = [&](const std::vector<Tensor>& tensors) {
      for (const Tensor& tensor : tensors) sum += tensor.defined() ? static_cast<double>(tensor.bytes()) : 0;
    };
    add(inputs), add(outputs);
    if (both) add(grad_outputs), add(grad_inputs);
    return sum;
  }

  /// Up to a million results of each tensor, to compare arms by.
  std::vector<std::vector<double>> sample(bool both) const {
    std::vector<std::vector<double>> result;
    for (const Tensor& tensor : both ? grad_inputs : outputs) {
      result.emplace_back();
      if (!tensor.defined()) continue;
      const std::int64_t step = tensor.numel() / 1000000 + 1;
      for (std::int64_t i = 0; i < tensor.numel(); i += step) {
        result.back().push_back(tensor.dtype() == DType::float32 ? static_cast<double>(tensor.data<float>()[i])
                                                                 : tensor.data<double>()[i]);
      }
    }
    return result;
  }
};

/// The largest max|a - b| / max|b| of all tensors; NaN where a result is none.
double difference(const std::vector<std::vector<double>>& a, const std::vector<std::vector<double>>& b) {
  double worst = 0;
  for (std::size_t t = 0; t < a.size(); ++t) {
    double most = 0, largest = 0;
    for (std::size_t i = 0; i < a[t].size(); ++i) {
      if (!std::isfinite(a[t][i])) return NAN;
      most = std::max(most, std::abs(a[t][i] - b[t][i]));
      largest = std::max(largest, std::abs(b[t][i]));
    }
    worst = std::max(worst, largest > 0 ? most / largest : most);
  }
  return worst;
}

/// One way to run the op.
struct Subject {
  std::string name;
  std::unique_ptr<Context> context;  // null for the reference
  std::shared_ptr<FastPathModule> module;
};

/// One line: an arm with so many threads.
struct Line {
  Subject* subject = nullptr;
  int threads = 1;
  std::uint64_t memory = 0;
  std::uint64_t kept = 0;  // resident memory that its earlier first calls have not given back
  double first_seconds = 0;
};

/// Runs a line for the first time: how long it takes, and how much memory.
void first_run(Line& line, const std::function<void()>& run) {
  bench::reset_peak_memory();
  const std::uint64_t before = bench::current_memory().value_or(0);
  const double start = bench::now();
  run();
  line.first_seconds = bench::now() - start;
  const std::uint64_t peak = bench::peak_memory().value_or(0), after = bench::current_memory().value_or(0);
  line.memory = std::max(peak, before) - before + line.kept;
  line.kept += std::max(after, before) - before;
}

std::string or_dash(double value, int digits) { return std::isfinite(value) ? bench::fixed(value, digits) : "-"; }

/// Where the table's columns are.
std::string table_line(const std::vector<std::string>& cells) {
  constexpr int kWidths[] = {-22, -16, -8, -5, 7, -10, 2, 11, 10, 8, 7, 8, 8, 7};
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const auto width = static_cast<std::size_t>(std::abs(kWidths[i]));
    const std::string padding(width > cells[i].size() ? width - cells[i].size() : 0, ' ');
    line += (i > 0 ? " " : "") + (kWidths[i] < 0 ? cells[i] + padding : padding + cells[i]);
  }
  return line + "\n";
}

class Bench {
 public:
  explicit Bench(const Options& options) : options_(options) {}

  int run() {
    json_.begin_object().put("bench", "ops").put("format_version", 2);
    bench::put_identity(json_);
    std::printf("%s", bench::identity_text().c_str());
    for (const int threads : options_.threads) rates_.push_back(bench::measure_rates(threads));
    std::printf("%s\n", bench::rates_text(rates_).c_str());
    std::fflush(stdout);
    bench::put_rates(json_, rates_);
    json_.end();
    json_.begin_object("settings").put("command", options_.command).put("seconds", options_.seconds).end();
    json_.begin_array("results");
    if (!options_.rates_only) {
      std::printf("%s", table_line({"op", "layer", "dtype", "pass", "edges", "arm", "th", "time", "+-", "GFLOP/s",
                                    "GB/s", "of roof", "MiB", "x ref"})
                            .c_str());
      for (const std::int64_t edges : options_.edges) size(edges);
    }
    json_.end();
    findings_.put(json_);
    json_.end();
    if (!options_.rates_only) std::printf("%s", findings_.text().c_str());
    if (!options_.json.empty()) {
      std::ofstream file(options_.json);
      file << json_.text();
      if (!file.flush()) {
        std::fprintf(stderr, "fastpath_bench_ops: %s cannot be written\n", options_.json.c_str());
        return 1;
      }
    }
    return good_ ? 0 : 1;
  }

 private:
  /// An arm without a kernel is no news where the plugin lacks the op. Anything else is a gap in the table to be told.
  void tell_why(const Selection& chosen, const std::string& where) {
    for (const Decision& decision : chosen.decisions) {
      for (const Candidate& candidate : decision.candidates) {
        for (const Reason& reason : candidate.reasons) {
          if (reason.code == ReasonCode::op) continue;
          std::fprintf(stderr, "fastpath_bench_ops: %s: %s does not run it: %s: %s\n", where.c_str(),
                       candidate.plugin.c_str(), std::string(to_string(reason.code)).c_str(), reason.text.c_str());
          good_ = good_ && reason.code != ReasonCode::not_verified;
        }
      }
    }
  }

  void size(std::int64_t edges) {
    const Graph graph = graph_of(edges);
    // Four species, whatever the layer has.
    const Tensor species = Tensor::empty({graph.n_nodes()}, DType::int32);
    for (std::int64_t i = 0; i < graph.n_nodes(); ++i) {
      const std::int32_t element = graph.atomic_numbers().data<std::int32_t>()[i];
      species.data<std::int32_t>()[i] = element == 1 ? 0 : element == 6 ? 1 : element == 8 ? 2 : 3;
    }
    std::set<std::string> done;
    for (const std::string& op : options_.ops) {
      for (const std::string& layer : options_.layers) {
        const auto shape = std::find_if(bench::layer_shapes().begin(), bench::layer_shapes().end(),
                                        [&](const bench::LayerShape& known) { return layer == known.name; });
        const std::optional<OpSpec> spec = bench::op_of(op, *shape);
        if (!spec) continue;
        const auto bytes = sdk::Attributes(spec->config).hash();
        if (!done.insert(op + std::to_string(bytes)).second) continue;
        for (const std::string& dtype : options_.dtypes) {
          problem(*spec, *shape, graph, species, dtype == "float32" ? DType::float32 : DType::float64);
        }
      }
    }
  }

  void problem(const OpSpec& spec, const bench::LayerShape& shape, const Graph& graph, const Tensor& species,
               DType dtype) {
#ifdef __GLIBC__
    malloc_trim(0);  // or what earlier problems left behind would hide what this one needs
#endif
    std::vector<Subject> subjects;
    for (const std::string& arm : options_.arms) {
      Subject subject{arm, nullptr, create_op(spec, 1)};
      if (arm != "reference") {
        subject.context = std::make_unique<Context>(
            ContextOptions{.registry = {.search_paths = {options_.plugins}, .default_paths = false, .enable = {arm}}});
        const Selection chosen =
            select({{spec.id, subject.module.get()}}, UseFast::always, nullptr, Device::cpu(), dtype,
                   {graph.n_edges(), graph.n_nodes()}, kPassesForces, subject.context.get());
        if (!chosen.any_fast()) {
          tell_why(chosen, fmt::format("{} {} {}, {} edges", spec.id, shape.name, to_string(dtype), graph.n_edges()));
          continue;
        }
      }
      subjects.push_back(std::move(subject));
    }
    const std::int64_t n_species = std::max<std::int64_t>(shape.n_species, 4);
    const OpGraph op_graph = OpGraph::from(graph, species, n_species, graph.n_nodes());
    const sdk::Signature signature = sdk::signature_of(spec.id, spec.version, sdk::Attributes(spec.config)).value();
    const bool by_node =
        spec.id == "irreps_linear" || spec.id == "species_linear" || spec.id == "symmetric_contraction";
    const Problem problem(signature, graph, op_graph, by_node ? graph.n_nodes() : graph.n_edges(), dtype);
    std::vector<Line> lines;
    for (Subject& subject : subjects) {
      if (subject.name == "reference") {
        lines.push_back({&subject, 1});
        continue;
      }
      for (const int threads : options_.threads) lines.push_back({&subject, threads});
    }
    for (const bool both : {false, true}) measure(spec, shape, graph, op_graph, problem, dtype, both, lines);
  }

  void measure(const OpSpec& spec, const bench::LayerShape& shape, const Graph& graph, const OpGraph& op_graph,
               const Problem& problem, DType dtype, bool both, std::vector<Line>& lines) {
    const auto call = [&](const Line& line) {
      line.subject->module->run(problem.call(Pass::forward, op_graph, line.threads));
      if (both) line.subject->module->run(problem.call(Pass::backward, op_graph, line.threads));
    };
    const int element = dtype == DType::float32 ? 4 : 8;
    const char* const pass = both ? "FB" : "F";
    const std::string where =
        fmt::format("{} {} {} {}, {} edges", spec.id, shape.name, to_string(dtype), pass, graph.n_edges());
    std::vector<bench::Arm> arms;
    std::vector<std::vector<double>> expected;
    for (Line& line : lines) {
      first_run(line, [&] { call(line); });
      if (line.subject->module->last_failure()) {
        std::fprintf(stderr, "fastpath_bench_ops: %s: %s failed: %s\n", where.c_str(), line.subject->name.c_str(),
                     line.subject->module->last_failure()->text.c_str());
        good_ = false;
      }
      if (expected.empty()) {
        expected = problem.sample(both);
      } else {
        const double found = difference(problem.sample(both), expected), most = element == 4 ? 1e-5 : 1e-12;
        if (!(found <= most)) {
          std::fprintf(stderr, "fastpath_bench_ops: %s: %s differs from %s by %.1e, at most %.0e\n", where.c_str(),
                       line.subject->name.c_str(), lines.front().subject->name.c_str(), found, most);
          good_ = false;
        }
      }
      // Many calls a run where one is too short for the clock.
      const int repeats = static_cast<int>(std::clamp(50e-6 / std::max(line.first_seconds, 1e-7), 1.0, 100.0));
      arms.push_back(
          {line.subject->name,
           [&call, &line, repeats] {
             const double start = bench::now();
             for (int i = 0; i < repeats; ++i) call(line);
             return (bench::now() - start) / repeats;
           },
           line.threads,
           line.first_seconds > bench::kTooSlow * options_.seconds ? std::optional(line.first_seconds) : std::nullopt});
    }
    bench::Budget budget;
    budget.seconds = options_.seconds;
    budget.warm_up = 0;  // the first runs
    const std::vector<bench::Timing> timings = bench::measure(arms, budget);

    const bench::Sizes sizes{graph.n_edges(), graph.n_nodes(), 4};
    bench::Work work = bench::forward_work(spec, sizes, element);
    if (both) {
      const bench::Work back = bench::backward_work(spec, sizes, element);
      work.bytes += back.bytes;
      if (work.flops && back.flops) *work.flops += *back.flops;
    }
    const double flops = work.flops.value_or(NAN), footprint = problem.footprint(both);
    json_.begin_object().put("op", spec.id).put("layer", shape.name).put("features", shape.features);
    json_.put("dtype", to_string(dtype)).put("pass", both ? "forward_backward" : "forward");
    json_.put("edges", graph.n_edges()).put("nodes", graph.n_nodes()).put("flops", flops).put("bytes", work.bytes);
    json_.put("footprint_bytes", footprint).begin_array("arms");
    const double reference = timings.empty() || timings.front().name != "reference" ? NAN : timings.front().median();
    for (std::size_t i = 0; i < timings.size(); ++i) {
      const bench::Timing& timing = timings[i];
      const double seconds = timing.median();
      const auto rates = std::find_if(rates_.begin(), rates_.end(),
                                      [&](const bench::Rates& each) { return each.threads == timing.threads; });
      double roof = NAN;
      bool compute_bound = false;
      if (rates != rates_.end()) {
        const double by_bytes = work.bytes / rates->bandwidth(footprint),
                     by_flops = std::isnan(flops) ? 0 : flops / rates->flops(element);
        roof = std::max(by_bytes, by_flops);
        compute_bound = by_flops > by_bytes;
      }
      json_.begin_object();
      bench::put_timing(json_, timing);
      json_.put("first_seconds", lines[i].first_seconds).put("memory_bytes", lines[i].memory);
      json_.put("flops_per_second", flops / seconds).put("bytes_per_second", work.bytes / seconds);
      json_.put("roof_seconds", roof).put("roof", std::isnan(roof) ? "" : compute_bound ? "compute" : "bandwidth");
      json_.put("of_roof", roof / seconds).put("ratio", reference / seconds).end();
      std::printf(
          "%s",
          table_line(
              {spec.id, shape.name, std::string(to_string(dtype)), pass, std::to_string(graph.n_edges()), timing.name,
               std::to_string(timing.threads), bench::time_text(seconds), bench::time_text(timing.mad()),
               or_dash(flops / seconds / 1e9, 1), or_dash(work.bytes / seconds / 1e9, 1), or_dash(roof / seconds, 2),
               bench::fixed(static_cast<double>(lines[i].memory) / (1 << 20), 1), or_dash(reference / seconds, 1)})
              .c_str());
    }
    json_.end().end();
    findings_.add(where, timings);
    std::fflush(stdout);
  }

  const Options& options_;
  std::vector<bench::Rates> rates_;
  bench::JsonWriter json_;
  bench::Findings findings_;
  bool good_ = true;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  set_warning_handler([](const FastPathPrecisionWarning&) {});
  try {
    return Bench(options).run();
  } catch (const Error& error) {
    std::fprintf(stderr, "fastpath_bench_ops: %s\n", error.what());
    return 1;
  }
}
