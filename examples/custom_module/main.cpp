// A host brings an op that fastpath does not know, and a plugin brings a kernel for it. The program runs it by the
// reference and by the kernel, compares energies and gradients, and shows what is said when the plugin is missing.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fastpath/context.hpp"
#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/graph.hpp"
#include "fastpath/warning.hpp"
#include "morse_energy.hpp"

namespace {

using fastpath::Device;
using fastpath::DType;
using fastpath::Tensor;
using fastpath::UseFast;

constexpr double kRMax = 5.0;

int failures = 0;

void check(const char* what, bool good) {
  std::printf("  %-66s %s\n", what, good ? "ok" : "WRONG");
  if (!good) ++failures;
}

/// max|a - b| / max|b|; NaN stays NaN and fails every comparison.
double difference(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(DType::float64), y = b.to(DType::float64);
  double error = 0, size = 0;
  for (std::int64_t i = 0; i < y.numel(); ++i) {
    error =
        std::isnan(x.data<double>()[i]) ? NAN : std::max(error, std::abs(x.data<double>()[i] - y.data<double>()[i]));
    size = std::max(size, std::abs(y.data<double>()[i]));
  }
  return error / size;
}

struct Answer {
  Tensor node_energies;
  Tensor grad_vectors;  // [n_edges, 3]: dE/d(edge vector)
  std::vector<Tensor> grad_parameters;
};

/// Forward and backward by whatever path the last select() chose.
Answer run(morse::MorseEnergy& module, const fastpath::OpGraph& graph, const Tensor& vectors) {
  const DType dtype = vectors.dtype();
  Answer answer;
  answer.node_energies = Tensor::empty({graph.n_receivers}, dtype);
  answer.grad_vectors = Tensor::empty(vectors.shape(), dtype);
  for (int i = 0; i < 3; ++i) answer.grad_parameters.push_back(Tensor::empty({1}, dtype));
  const Tensor ones = Tensor::empty({graph.n_receivers}, dtype);
  ones.copy_from(
      Tensor::from({graph.n_receivers}, std::vector<double>(static_cast<std::size_t>(graph.n_receivers), 1)));

  fastpath::OpCall call;
  call.graph = &graph;
  call.inputs = {&vectors, 1};
  call.outputs = {&answer.node_energies, 1};
  if (const std::uint64_t bytes = module.saved_bytes(call); bytes > 0) {
    call.saved = Tensor::empty({static_cast<std::int64_t>(bytes)}, DType::uint8);
  }
  module.run(call);

  call.pass = fastpath::Pass::backward;
  call.grad_outputs = {&ones, 1};
  call.grad_inputs = {&answer.grad_vectors, 1};
  call.grad_parameters = answer.grad_parameters;
  module.run(call);
  return answer;
}

double total(const Tensor& node_energies) {
  double sum = 0;
  for (const double energy : node_energies.to(DType::float64).span<double>()) sum += energy;
  return sum;
}

void print(const fastpath::Selection& selection) {
  for (const fastpath::Decision& decision : selection.decisions) {
    std::printf("  %s (%s): %s, %s: %s\n", decision.module.c_str(), decision.op.c_str(), decision.choice.c_str(),
                std::string(to_string(decision.reason.code)).c_str(), decision.reason.text.c_str());
    for (const fastpath::Candidate& candidate : decision.candidates) {
      for (const fastpath::Reason& reason : candidate.reasons) {
        std::printf("    %s %s: %s: %s\n", candidate.plugin.c_str(), std::string(to_string(candidate.verdict)).c_str(),
                    std::string(to_string(reason.code)).c_str(), reason.text.c_str());
      }
    }
  }
}

int demonstrate(const std::filesystem::path& plugins, const std::string& structure_file) {
  // Modules form trees; a decision names a module by its place.
  fastpath::Module potential;
  const auto module = std::make_shared<morse::MorseEnergy>(0.2, 1.3, 2.1, kRMax);
  potential.register_child("morse", module);
  const std::vector<fastpath::NamedFastModule> modules = fastpath::fast_modules(potential);

  const fastpath::Structure structure = fastpath::read_extxyz(structure_file).front();
  const auto graph_of = [](const fastpath::Structure& s) { return fastpath::Graph::from_structure(s, kRMax); };
  const fastpath::Graph graph = graph_of(structure);
  const fastpath::OpGraph op_graph = fastpath::OpGraph::from(graph, {}, 0, graph.n_local());
  const fastpath::ProblemSize size{graph.n_edges(), graph.n_nodes()};
  std::printf("%lld atoms, %lld edges\n", static_cast<long long>(graph.n_nodes()),
              static_cast<long long>(graph.n_edges()));

  const auto select = [&](UseFast use_fast, DType dtype, fastpath::Context* context) {
    return fastpath::select(modules, use_fast, nullptr, Device::cpu(), dtype, size, fastpath::kPassesForces, context);
  };

  // A context of a host that has no plugin, and one that looks into one directory more.
  fastpath::ContextOptions without_plugins;
  without_plugins.registry.default_paths = false;
  fastpath::Context bare(without_plugins);
  fastpath::ContextOptions with_morse = without_plugins;
  with_morse.registry.search_paths = {std::filesystem::absolute(plugins)};
  fastpath::Context context(with_morse);

  std::printf("without the plugin\n");
  const fastpath::Selection alone = select(UseFast::always, DType::float64, &bare);
  print(alone);
  check("the reference runs, and the decision says that no kernel is there",
        !alone && alone.decisions.at(0).reason.code == fastpath::ReasonCode::no_kernel &&
            !alone.decisions[0].reason.text.empty());
  const Answer reference = run(*module, op_graph, graph.edge_vectors());
  const double energy = total(reference.node_energies);
  std::printf("  energy %.9f eV\n", energy);

  // The reference must be right by itself: the energy is linear in depth, and gradients are slopes of the energy.
  check("depth times its gradient is the energy",
        std::abs(0.2 * reference.grad_parameters[0].item() - energy) <= 1e-13 * std::abs(energy));
  double force = 0;  // on atom 0, along x: edges pull at both of their ends
  for (std::int64_t e = 0; e < graph.n_edges(); ++e) {
    const double g = reference.grad_vectors.data<double>()[3 * e];
    if (graph.sender().data<std::int32_t>()[e] == 0) force += g;
    if (graph.receiver().data<std::int32_t>()[e] == 0) force -= g;
  }
  const double h = 1e-4;
  double slope = 0;
  for (const double sign : {1.0, -1.0}) {
    fastpath::Structure moved = structure;
    moved.positions[0][0] += sign * h;
    const fastpath::Graph moved_graph = graph_of(moved);
    const fastpath::OpGraph moved_op_graph = fastpath::OpGraph::from(moved_graph, {}, 0, moved_graph.n_local());
    slope += sign * total(run(*module, moved_op_graph, moved_graph.edge_vectors()).node_energies) / (2 * h);
  }
  std::printf("  force on atom 0: %.9f eV/A, from energies %.9f\n", force, -slope);
  check("the force is minus the slope of the energy", std::abs(force + slope) <= 1e-6 * std::max(1.0, std::abs(force)));

  std::printf("with the plugin of %s\n", plugins.c_str());
  // float64: the precision contract of sums of this length; float32: that of float32.
  for (const auto& [dtype, tolerance] : {std::pair(DType::float64, 5e-14), std::pair(DType::float32, 1e-6)}) {
    const Tensor vectors = graph.edge_vectors().to(dtype);
    select(UseFast::never, dtype, &context);
    const Answer slow = run(*module, op_graph, vectors);
    const fastpath::Selection selection = select(UseFast::always, dtype, &context);
    print(selection);
    check("the plugin's kernel runs",
          selection.any_fast() && module->fast_active() && selection.decisions[0].choice == "morse");
    const Answer fast = run(*module, op_graph, vectors);
    check("it has not been given up on the way", module->fast_active());
    const double energies = difference(fast.node_energies, slow.node_energies);
    const double vectors_back = difference(fast.grad_vectors, slow.grad_vectors);
    std::printf("  %s, fast against reference: energies %.1e, gradients of vectors %.1e, of parameters",
                std::string(to_string(dtype)).c_str(), energies, vectors_back);
    bool agree = energies <= tolerance && vectors_back <= tolerance;
    for (std::size_t i = 0; i < 3; ++i) {
      const double parameter = difference(fast.grad_parameters[i], slow.grad_parameters[i]);
      std::printf(" %.1e", parameter);
      agree &= parameter <= tolerance;
    }
    std::printf("; at most %.0e\n", tolerance);
    check("energies and all gradients agree with the reference", agree);
  }

  const fastpath::Support training =
      module->fast_supported(Device::cpu(), DType::float64, fastpath::kPassesTraining, &context);
  for (const fastpath::Reason& reason : training.reasons()) {
    std::printf("  no kernel for training: %s: %s\n", std::string(to_string(reason.code)).c_str(), reason.text.c_str());
  }
  check("a pass the kernel lacks is refused with that reason",
        !training && training.reasons()[0].code == fastpath::ReasonCode::pass);

  fastpath::deactivate(potential);
  check("deactivate() goes back to the reference", !module->fast_active());

  // The end of the plugins: after the last evaluation that wants them, and before the process ends.
  for (const fastpath::PluginInfo& plugin : context.registry().shutdown()) {
    std::printf("  %s was shut down%s\n", plugin.id.c_str(), (" " + plugin.reason.text).c_str());
  }
  const fastpath::Selection afterwards = select(UseFast::always, DType::float64, &context);
  check("after a shutdown the reference runs, and the decision says why",
        !afterwards && afterwards.decisions[0].reason.code == fastpath::ReasonCode::shut_down);
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  fastpath::set_warning_handler([](const fastpath::FastPathPrecisionWarning&) {});  // it compares float32 on purpose
  try {
    return demonstrate(argc > 1 ? argv[1] : DEFAULT_PLUGINS, argc > 2 ? argv[2] : DEFAULT_STRUCTURE);
  } catch (const fastpath::Error& error) {
    std::fprintf(stderr, "%s: %s\n", std::string(to_string(error.code())).c_str(), error.what());
    return 1;
  }
}
