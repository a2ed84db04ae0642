// Speed of single ops on the CPU: the reference and kernels of plugins take turns, next to what this machine can do.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fastpath/error.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/sdk/ops.hpp"
#include "fastpath/warning.hpp"
#include "harness.hpp"
#include "machine.hpp"
#include "ops/make_op_module.hpp"
#include "verify/op_problem.hpp"

namespace {

using namespace fastpath;

constexpr const char* kHelp = R"(fastpath_bench_ops [options]: times single ops on the CPU, reference against kernels.

  --op NAME,NAME      spherical_harmonics, conv_tensor_product, message_step (all)
  --layer NAME,NAME   small, medium, large: MACE layers of 128 channels; nequip: 32 channels to l = 2 (medium)
  --edges N           edges; a fiftieth of it are nodes (20000)
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
  const char* in;
  int l_out, l_edge;
  double flops_forward, flops_backward, bytes_forward, bytes_backward;
};
constexpr Layer kLayers[] = {{"small", "128x0e", 3, 3, 8.2e3, 10.8e3, 2632, 5256},
                             {"medium", "128x0e+128x1o", 3, 3, 29.9e3, 53.3e3, 7240, 14472},
                             {"large", "128x0e+128x1o+128x2e", 3, 3, 66.5e3, 133.1e3, 13384, 26760},
                             {"nequip", "32x0e+32x1o+32x2e", 2, 2, 7.5e3, 16.0e3, 2604, 5200}};

sdk::ConvTensorProductConfig convolution(const Layer& layer) {
  sdk::ConvTensorProductConfig config;
  config.in = sdk::Irreps::parse(layer.in);
  std::vector<sdk::IrrepsBlock> edge, out;
  for (int l = 0; l <= layer.l_edge; ++l) edge.push_back({1, {l, l % 2 == 0 ? 1 : -1}});
  config.edge = sdk::Irreps(edge);
  for (std::size_t i = 0; i < config.in.size(); ++i) {
    for (std::size_t j = 0; j < config.edge.size(); ++j) {
      const sdk::Irrep a = config.in[i].ir, b = config.edge[j].ir;
      for (int l = std::abs(a.l - b.l); l <= std::min(a.l + b.l, layer.l_out); ++l) {
        if ((a.l + b.l + l) % 2 != 0) continue;
        config.instructions.push_back({i, j, out.size(), std::sqrt(2.0 * l + 1)});
        out.push_back({config.in[i].mul, {l, a.parity * b.parity}});
      }
    }
  }
  config.out = sdk::Irreps(out);
  return config;
}

struct Work {
  OpSpec spec;
  double flops[2] = {}, bytes[2] = {};  ///< Forward and backward, per edge; bytes in float32.
};

template <class Config>
OpSpec spec_of(const Config& config) {
  return {std::string(Config::kOp), Config::kVersion, config.attributes().values()};
}

Work work_of(const std::string& op, const Layer& layer) {
  if (op == "spherical_harmonics") {
    const double dim = (layer.l_edge + 1) * (layer.l_edge + 1);
    return {spec_of(sdk::SphericalHarmonicsConfig{.l_max = layer.l_edge}), {0, 0}, {4 * (3 + dim), 4 * (3 + dim + 3)}};
  }
  const sdk::ConvTensorProductConfig conv = convolution(layer);
  if (op == "conv_tensor_product") {
    return {spec_of(conv), {layer.flops_forward, layer.flops_backward}, {layer.bytes_forward, layer.bytes_backward}};
  }
  if (op != "message_step") refuse("--op '" + op + "' is unknown");
  sdk::MessageStepConfig step;
  step.harmonics.l_max = layer.l_edge;
  step.radial.n_basis = 8;
  step.radial.r_max = 5;
  step.radial.prefactor = std::sqrt(2.0 / 5);
  for (int n = 1; n <= 8; ++n) step.radial.frequencies.push_back(n * M_PI / 5);
  step.mlp.widths = {8, 64, 64, 64, conv.weight_numel()};
  double net = 0;
  for (std::size_t i = 0; i + 1 < step.mlp.widths.size(); ++i) {
    step.mlp.scales.push_back(1 / std::sqrt(static_cast<double>(step.mlp.widths[i])));
    net += 2.0 * static_cast<double>(step.mlp.widths[i] * step.mlp.widths[i + 1]);
  }
  step.conv = conv;
  // Weights and messages are nobody's input: what must be read is geometry and features. Backward needs the net once
  // more, and once the other way.
  const double features = 4.0 * static_cast<double>(conv.in.dim());
  return {spec_of(step),
          {layer.flops_forward + net, layer.flops_backward + 2 * net},
          {features + 4 * 4 + 8, 2 * features + 2 * 4 * 4 + 8}};
}

/// One way to run the op, with tensors that all ways share.
struct Subject {
  std::string name;
  std::unique_ptr<Context> context;  // null for the reference
  std::unique_ptr<ops::OpModule> module;
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
  std::printf("%lld edges, %lld nodes, %d thread%s; F forward, FB forward and backward with all gradients\n\n",
              static_cast<long long>(options.edges),
              static_cast<long long>(std::max<std::int64_t>(options.edges / 50, 1)), options.threads,
              options.threads == 1 ? "" : "s");
  std::printf("%-20s %-7s %-8s %-4s", "op", "layer", "dtype", "pass");
  for (const std::string& arm : options.arms) std::printf(" %11s", arm.c_str());
  std::printf(" %9s %8s %7s %8s\n", "first/last", "GFLOP/s", "GB/s", "of limit");
  json.put("edges", options.edges).put("threads", options.threads).begin_array("rows");

  for (const std::string& op : options.ops) {
    for (const std::string& layer_name : options.layers) {
      const auto layer = std::find_if(std::begin(kLayers), std::end(kLayers),
                                      [&](const Layer& known) { return layer_name == known.name; });
      if (layer == std::end(kLayers)) refuse("--layer '" + layer_name + "' is unknown");
      const Work work = work_of(op, *layer);
      for (const std::string& dtype_name : options.dtypes) {
        if (dtype_name != "float32" && dtype_name != "float64") refuse("--dtype '" + dtype_name + "' is unknown");
        const bool single = dtype_name == "float32";
        const DType dtype = single ? DType::float32 : DType::float64;
        verify::TrialShape shape;
        shape.n_edges = shape.n_rows = options.edges;
        shape.n_nodes = shape.n_receivers = std::max<std::int64_t>(options.edges / 50, 1);
        const auto drawn_for = ops::make_op_module(work.spec);
        const verify::Problem problem = verify::draw_problem(*drawn_for, dtype, shape, 1);
        const verify::Side& given = problem.given;
        const auto like = [&](const std::vector<Tensor>& list) {
          std::vector<Tensor> result;
          for (const Tensor& tensor : list) {
            result.push_back(tensor.defined() && is_floating(tensor.dtype()) ? tensor.clone() : Tensor());
          }
          return result;
        };
        const std::vector<Tensor> outputs = like(given.grad_outputs), grad_inputs = like(given.inputs);
        const auto call_of = [&](Pass pass) {
          OpCall call;
          call.pass = pass;
          call.graph = &problem.graph;
          call.inputs = given.inputs;
          call.threads = options.threads;
          if (pass == Pass::forward) {
            call.outputs = outputs;
          } else {
            call.grad_outputs = given.grad_outputs;
            call.grad_inputs = grad_inputs;
          }
          return call;
        };
        std::vector<Subject> subjects;
        for (const std::string& arm : options.arms) {
          Subject subject{arm, nullptr, ops::make_op_module(work.spec)};
          if (arm != "reference") {
            subject.context = std::make_unique<Context>(ContextOptions{
                .registry = {.search_paths = {options.plugins}, .default_paths = false, .enable = {arm}}});
            const Selection chosen =
                select({{op, subject.module.get()}}, UseFast::always, nullptr, Device::cpu(), dtype,
                       {options.edges, shape.n_nodes}, kPassesForces, subject.context.get());
            if (!chosen.any_fast()) subject.name.clear();  // has no kernel
          }
          subjects.push_back(std::move(subject));
        }
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
          const double n = static_cast<double>(options.edges);
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
