// Speed of single ops on the CPU: the reference and kernels of plugins take turns, next to what this machine can do.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "fastpath/error.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/graph.hpp"
#include "fastpath/model.hpp"
#include "fastpath/sdk/ops.hpp"
#include "fastpath/warning.hpp"
#include "harness.hpp"
#include "machine.hpp"

namespace {

using namespace fastpath;

constexpr const char* kHelp = R"(fastpath_bench_ops [options]: times single ops on the CPU, reference against kernels.

  --op NAME,NAME      spherical_harmonics, radial_basis, radial_mlp, conv_tensor_product, message_step, irreps_linear
                      (spherical_harmonics,conv_tensor_product,message_step)
  --layer NAME,NAME   small, medium, large: MACE layers of 128 channels; nequip: 32 channels to l = 2 (medium)
  --edges N           about so many edges, in a cubic crystal of 49 neighbours an atom (20000)
  --dtype NAME,NAME   float32, float64 (both)
  --threads N         CPU threads of a call (1)
  --arms NAME,..      reference and plugin ids (reference,cpu_ref,cpu_simd)
  --seconds S         for counted runs of one row, all arms together (4)
  --plugins DIR       where the plugins are (beside this program)
  --json FILE         also write everything as JSON
  --help

Times are medians of runs that take turns. "of limit": the time that the counts of docs/operators.md, section 5, take at
this machine's measured rates, over the time of the last arm. Exit status: 0, 2 for wrong options.
)";

struct Options {
  std::vector<std::string> ops{"spherical_harmonics", "conv_tensor_product", "message_step"}, layers{"medium"},
      dtypes{"float32", "float64"}, arms{"reference", "cpu_ref", "cpu_simd"};
  std::int64_t edges = 20000;
  int threads = 1;
  double seconds = 4;
  std::string plugins = BENCH_TREE_PLUGINS, json;
};

[[noreturn]] void refuse(const std::string& text) {
  std::fprintf(stderr, "fastpath_bench_ops: %s; --help lists the options\n", text.c_str());
  std::exit(2);
}
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
double number(const std::string& name, const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !(value > 0)) refuse(name + " is '" + text + "', expected a number > 0");
  return value;
}
Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--help") {
      std::fputs(kHelp, stdout);
      std::exit(0);
    }
    if (i + 1 == argc) refuse(name + " is unknown, or lacks a value");
    const std::string value = argv[++i];
    if (name == "--op") {
      options.ops = split(value);
    } else if (name == "--layer") {
      options.layers = split(value);
    } else if (name == "--dtype") {
      options.dtypes = split(value);
    } else if (name == "--arms") {
      options.arms = split(value);
    } else if (name == "--edges") {
      options.edges = static_cast<std::int64_t>(number(name, value));
    } else if (name == "--threads") {
      options.threads = static_cast<int>(number(name, value));
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

/// Counts of docs/operators.md 5.1 of one edge: shared-y FLOPs, and bytes in float32 of what is read and written once.
struct Layer {
  const char* name;
  int channels, l_hidden, l_max;
  double flops_forward, flops_backward, bytes_forward, bytes_backward;
};
constexpr Layer kLayers[] = {{"small", 128, 0, 3, 8.2e3, 10.8e3, 2632, 5256},
                             {"medium", 128, 1, 3, 29.9e3, 53.3e3, 7240, 14472},
                             {"large", 128, 2, 3, 66.5e3, 133.1e3, 13384, 26760},
                             {"nequip", 32, 2, 2, 7.5e3, 16.0e3, 2604, 5200}};

std::string irreps(int channels, int l_max) {
  std::string text;
  for (int l = 0; l <= l_max; ++l) {
    text += fmt::format("{}{}x{}{}", l > 0 ? "+" : "", channels, l, l % 2 == 0 ? "e" : "o");
  }
  return text;
}

/// One layer's "convolutions" of a config.json: every path of natural parity, outputs by degree.
std::string convolution(const Layer& layer, int l_in) {
  struct Path {
    int in, edge, out;
  };
  std::vector<Path> paths;
  for (int l = 0; l <= layer.l_max; ++l) {
    for (int a = 0; a <= l_in; ++a) {
      for (int b = 0; b <= layer.l_max; ++b) {
        if (l >= std::abs(a - b) && l <= a + b && (l + a + b) % 2 == 0) paths.push_back({a, b, l});
      }
    }
  }
  std::string out, instructions;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const Path& path = paths[i];
    const char* comma = i > 0 ? ", " : "";
    out += fmt::format("{}{}x{}{}", i > 0 ? "+" : "", layer.channels, path.out, path.out % 2 == 0 ? "e" : "o");
    instructions += fmt::format("{}[{}, {}, {}]", comma, path.in, path.edge, i);
  }
  return fmt::format(R"({{"irreps_in": "{}", "irreps_edge": "{}", "irreps_out": "{}", "instructions": [{}]}})",
                     irreps(layer.channels, l_in), irreps(1, layer.l_max), out, instructions);
}

/// A model whose second layer is the one that is timed.
std::shared_ptr<Model> model_of(const Layer& layer) {
  return Model::create(fmt::format(R"({{
 "format": "fastpath-model", "format_version": 1, "architecture": "mace", "dtype": "float64", "atomic_numbers": [14],
 "r_max": 5.0, "radial_type": "bessel", "num_bessel": 8, "polynomial_cutoff_p": 5, "distance_transform": "none",
 "apply_cutoff": true, "pair_repulsion": false, "radial_mlp": [64, 64, 64], "l_max": {}, "hidden_irreps": "{}",
 "num_interactions": 2, "correlation": [1, 1], "interaction_first": "RealAgnosticResidualInteractionBlock",
 "interaction": "RealAgnosticResidualInteractionBlock", "mlp_irreps": "16x0e", "gate": "silu",
 "activation_constant": 1.6791767923989418, "avg_num_neighbors": [50.0, 50.0], "heads": ["default"],
 "reduced_cg": false, "keep_last_layer_irreps": false, "convolutions": [{}, {}]}})",
                                   layer.l_max, irreps(layer.channels, layer.l_hidden), convolution(layer, 0),
                                   convolution(layer, layer.l_hidden)),
                       1);
}

struct Op {
  const char* name;
  const char* module;
};
constexpr Op kOps[] = {{"spherical_harmonics", "spherical_harmonics"},
                       {"radial_basis", "radial_embedding"},
                       {"radial_mlp", "interactions.1.conv_tp_weights"},
                       {"conv_tensor_product", "interactions.1.conv_tp"},
                       {"message_step", "interactions.1"},
                       {"irreps_linear", "interactions.1.linear"}};

/// Forward and backward, per row of the op; bytes in float32.
struct Work {
  double flops[2] = {}, bytes[2] = {};
};

double net_flops(const sdk::RadialMlpConfig& net) {
  double sum = 0;
  for (std::size_t i = 0; i + 1 < net.widths.size(); ++i) {
    sum += 2.0 * static_cast<double>(net.widths[i]) * static_cast<double>(net.widths[i + 1]);
  }
  return sum;
}
double dim(const sdk::Irreps& of) { return static_cast<double>(of.dim()); }

Work work_of(const OpSpec& op, const Layer& layer) {
  const sdk::Attributes config(op.config);
  if (op.id == "spherical_harmonics") {
    const double width = (layer.l_max + 1) * (layer.l_max + 1);
    return {{0, 0}, {4 * (3 + width), 4 * (3 + width + 3)}};
  }
  if (op.id == "radial_basis") return {{0, 0}, {4 * 9, 4 * 10}};
  if (op.id == "radial_mlp") {
    const auto net = sdk::RadialMlpConfig::from(config);
    const double ends = 4.0 * static_cast<double>(net.widths.front() + net.widths.back());
    return {{net_flops(net), net_flops(net)}, {ends, ends + 4.0 * static_cast<double>(net.widths.front())}};
  }
  if (op.id == "irreps_linear") {
    const auto linear = sdk::IrrepsLinearConfig::from(config);
    double flops = 0;
    for (const auto& path : linear.paths()) {
      flops +=
          2.0 * static_cast<double>(linear.in[path.in].mul * linear.out[path.out].mul * linear.in[path.in].ir.dim());
    }
    const double ends = 4 * (dim(linear.in) + dim(linear.out));
    return {{flops, flops}, {ends, ends}};
  }
  if (op.id == "conv_tensor_product") {
    return {{layer.flops_forward, layer.flops_backward}, {layer.bytes_forward, layer.bytes_backward}};
  }
  // Weights and messages are nobody's input: what must be read is geometry and features. Backward needs the net once
  // more, and once the other way.
  const auto step = sdk::MessageStepConfig::from(config);
  const double net = net_flops(step.mlp), features = 4 * dim(step.conv.in);
  return {{layer.flops_forward + net, layer.flops_backward + 2 * net},
          {features + 4 * 4 + 8, 2 * features + 2 * 4 * 4 + 8}};
}

/// Atoms of a simple cubic crystal that is shaken, with about 49 neighbours each and about so many edges.
Structure crystal(std::int64_t edges) {
  constexpr double kSpacing = 2.2;
  const auto side = std::max<std::int64_t>(std::llround(std::cbrt(static_cast<double>(edges) / 49)), 1);
  Structure structure;
  std::mt19937_64 random(1);
  const auto shake = [&] { return 0.1 * (static_cast<double>(random() % 2001) / 1000 - 1); };
  for (std::int64_t i = 0; i < side * side * side; ++i) {
    structure.atomic_numbers.push_back(14);
    structure.positions.push_back({kSpacing * static_cast<double>(i % side) + shake(),
                                   kSpacing * static_cast<double>(i / side % side) + shake(),
                                   kSpacing * static_cast<double>(i / side / side) + shake()});
  }
  const double length = kSpacing * static_cast<double>(side);
  structure.cell = {Vec3{length, 0, 0}, Vec3{0, length, 0}, Vec3{0, 0, length}};
  structure.pbc = {true, true, true};
  return structure;
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
      for (std::int64_t i = 0; i < values.numel(); ++i) {
        const double* const v = vectors.data<double>();
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
};

/// One way to run the op, with tensors that all ways share.
struct Subject {
  std::string name;
  std::unique_ptr<Context> context;  // null for the reference
  std::shared_ptr<Model> model;
  FastPathModule* module = nullptr;
};

std::string time_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.1f} us", 1e6 * seconds)
         : seconds < 1  ? fmt::format("{:.2f} ms", 1e3 * seconds)
                        : fmt::format("{:.2f} s", seconds);
}

int run(const Options& options) {
  bench::JsonWriter json;
  json.begin_object();
  const double peak[2] = {bench::peak_flops(4), bench::peak_flops(8)};
  std::printf("one thread, %s: %.1f GFLOP/s float32, %.1f float64; reads", bench::vector_name(), peak[0] / 1e9,
              peak[1] / 1e9);
  json.begin_object("machine").put("vectors", bench::vector_name());
  json.put("float32_flops", peak[0]).put("float64_flops", peak[1]).begin_array("read_bandwidth");
  for (const std::uint64_t kib : {16, 512, 16384, 262144}) {
    const double rate = bench::read_bandwidth(kib << 10);
    std::printf(" %.1f GB/s of %llu KiB%s", rate / 1e9, static_cast<unsigned long long>(kib),
                kib == 262144 ? "\n" : ",");
    json.begin_object().put("bytes", kib << 10).put("bytes_per_second", rate).end();
  }
  json.end().end();
  const Graph graph = Graph::from_structure(crystal(options.edges), 5.0);
  const Tensor species = Tensor::zeros({graph.n_nodes()}, DType::int32);
  const OpGraph op_graph = OpGraph::from(graph, species, 1, graph.n_nodes());
  std::printf("%lld edges, %lld nodes, %d thread%s; F forward, FB forward and backward to the inputs\n\n",
              static_cast<long long>(graph.n_edges()), static_cast<long long>(graph.n_nodes()), options.threads,
              options.threads == 1 ? "" : "s");
  std::printf("%-20s %-7s %-8s %-4s", "op", "layer", "dtype", "pass");
  for (const std::string& arm : options.arms) std::printf(" %11s", arm.c_str());
  std::printf(" %9s %8s %7s %8s\n", "first/last", "GFLOP/s", "GB/s", "of limit");
  json.put("edges", graph.n_edges()).put("nodes", graph.n_nodes()).put("threads", options.threads).begin_array("rows");

  for (const std::string& op : options.ops) {
    const auto known_op =
        std::find_if(std::begin(kOps), std::end(kOps), [&](const Op& known) { return op == known.name; });
    if (known_op == std::end(kOps)) refuse("--op '" + op + "' is unknown");
    for (const std::string& layer_name : options.layers) {
      const auto layer = std::find_if(std::begin(kLayers), std::end(kLayers),
                                      [&](const Layer& known) { return layer_name == known.name; });
      if (layer == std::end(kLayers)) refuse("--layer '" + layer_name + "' is unknown");
      for (const std::string& dtype_name : options.dtypes) {
        if (dtype_name != "float32" && dtype_name != "float64") refuse("--dtype '" + dtype_name + "' is unknown");
        const bool single = dtype_name == "float32";
        const DType dtype = single ? DType::float32 : DType::float64;
        std::vector<Subject> subjects;
        for (const std::string& arm : options.arms) {
          Subject subject{arm, nullptr, model_of(*layer)};
          for (const NamedFastModule& named : fast_modules(*subject.model)) {
            if (named.name == known_op->module) subject.module = named.module;
          }
          if (arm != "reference") {
            subject.context = std::make_unique<Context>(ContextOptions{
                .registry = {.search_paths = {options.plugins}, .default_paths = false, .enable = {arm}}});
            const Selection chosen = select({{op, subject.module}}, UseFast::always, nullptr, Device::cpu(), dtype,
                                            {graph.n_edges(), graph.n_nodes()}, kPassesForces, subject.context.get());
            if (!chosen.any_fast()) subject.name.clear();  // has no kernel
          }
          subjects.push_back(std::move(subject));
        }
        const OpSpec spec = subjects.front().module->op();
        const Work work = work_of(spec, *layer);
        const std::int64_t rows = op == "irreps_linear" ? graph.n_nodes() : graph.n_edges();
        const Problem problem(sdk::signature_of(spec.id, spec.version, sdk::Attributes(spec.config)).value(), graph,
                              op_graph, rows, dtype);
        const auto call_of = [&](Pass pass) {
          OpCall call;
          call.pass = pass;
          call.graph = &op_graph;
          call.inputs = problem.inputs;
          call.threads = options.threads;
          if (pass == Pass::forward) {
            call.outputs = problem.outputs;
          } else {
            call.grad_outputs = problem.grad_outputs;
            call.grad_inputs = problem.grad_inputs;
          }
          return call;
        };
        for (const bool both : {false, true}) {
          std::vector<bench::Arm> arms;
          for (Subject& subject : subjects) {
            if (subject.name.empty()) continue;
            arms.push_back({subject.name, [&subject, &call_of, both] {
                              const double start = bench::now();
                              subject.module->run(call_of(Pass::forward));
                              if (both) subject.module->run(call_of(Pass::backward));
                              return bench::now() - start;
                            }});
          }
          bench::Budget budget;
          budget.seconds = options.seconds;
          const std::vector<bench::Timing> timings = bench::measure(arms, budget);
          const auto n = static_cast<double>(rows);
          const double flops = n * (work.flops[0] + (both ? work.flops[1] : 0)),
                       bytes = n * (work.bytes[0] + (both ? work.bytes[1] : 0)) * (single ? 1 : 2);
          const double bandwidth = bench::read_bandwidth(static_cast<std::uint64_t>(std::max(bytes, 4096.0)), 0.1);
          const double limit = std::max(flops / peak[single ? 0 : 1], bytes / bandwidth) / options.threads;
          std::printf("%-20s %-7s %-8s %-4s", op.c_str(), layer->name, dtype_name.c_str(), both ? "FB" : "F");
          json.begin_object().put("op", op).put("layer", layer->name).put("dtype", dtype_name);
          json.put("pass", both ? "forward_backward" : "forward").put("flops", flops).put("bytes", bytes);
          json.put("limit_seconds", limit).begin_object("seconds");
          double first = NAN, last = NAN;
          for (const Subject& subject : subjects) {
            const auto timing = std::find_if(timings.begin(), timings.end(),
                                             [&](const bench::Timing& each) { return each.name == subject.name; });
            if (timing == timings.end()) {
              std::printf(" %11s", "-");
              continue;
            }
            last = timing->median();
            if (std::isnan(first)) first = last;
            json.put(subject.name, last);
            std::printf(" %11s", time_text(last).c_str());
          }
          json.end().end();
          std::printf(" %9.1f %8.1f %7.1f %8.2f\n", first / last, flops / last / 1e9, bytes / last / 1e9, limit / last);
          std::fflush(stdout);
        }
      }
    }
  }
  json.end().end();
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << json.text() << '\n';
    if (!file.flush()) {
      std::fprintf(stderr, "fastpath_bench_ops: %s cannot be written\n", options.json.c_str());
      return 1;
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  set_warning_handler([](const FastPathPrecisionWarning&) {});
  try {
    return run(options);
  } catch (const Error& error) {
    std::fprintf(stderr, "fastpath_bench_ops: %s\n", error.what());
    return 1;
  }
}
