#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "models/mace_runner.hpp"
#include "ops/edge_geometry/edge_geometry.hpp"

// An evaluation of a MACE model: selection, inputs, the way back, totals, forces and virials.
namespace fastpath::models {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The decisions of an evaluation that was repeated without kernels because one of them gave way.
Selection repeated_by_reference(Selection selection, const KernelGaveWay& failure) {
  for (Decision& decision : selection.decisions.edit()) {
    if (!decision.fast() && decision.reason.code != ReasonCode::covered_by_parent &&
        decision.reason.code != ReasonCode::in_parts) {
      continue;
    }
    Reason reason = failure.reason;
    if (decision.module != failure.module) {
      reason = {ReasonCode::fallback, fmt::format("the evaluation was repeated by the reference because of {}: {}",
                                                  failure.module, failure.reason.text)};
    }
    for (Candidate& candidate : decision.candidates) {
      if (candidate.plugin != decision.choice) continue;
      if (decision.module == failure.module) {
        candidate.verdict = Candidate::Verdict::refused;
        candidate.reasons.push_back(reason);
      } else {
        candidate.verdict = Candidate::Verdict::not_chosen;
        candidate.reasons = {reason};
      }
    }
    decision.choice = "reference";
    decision.reason = std::move(reason);
  }
  return selection;
}

/// The first edge of a graph and the one after its last.
std::pair<std::int64_t, std::int64_t> edges_of(const Graph& graph, std::int64_t g) {
  const auto nodes = graph.graph_ptr().span<std::int64_t>(), edges = graph.receiver_ptr().span<std::int64_t>();
  const auto at = [&](std::int64_t i) { return edges[static_cast<std::size_t>(nodes[static_cast<std::size_t>(i)])]; };
  return {at(g), at(g + 1)};
}

/// How fast edge vectors [n_edges, 3] move where nodes move along `nodes` [n_nodes, 3], and every graph is strained by
/// the symmetric part of its `strains` [n_graphs, 3, 3] / volume. Either may be undefined.
Tensor moved_vectors(const Graph& graph, const Tensor& nodes, const Tensor& strains, const Tensor& vectors) {
  const Tensor result = Tensor::zeros({graph.n_edges(), 3}, DType::float64);
  double* const out = result.data<double>();
  const auto* sender = graph.sender().data<std::int32_t>();
  const auto* receiver = graph.receiver().data<std::int32_t>();
  if (nodes.defined()) {
    const Tensor packed = nodes.contiguous();
    const double* d = packed.data<double>();
    for (std::int64_t e = 0; e < graph.n_edges(); ++e) {
      for (std::int64_t k = 0; k < 3; ++k) {
        out[3 * e + k] = d[3 * std::int64_t{receiver[e]} + k] - d[3 * std::int64_t{sender[e]} + k];
      }
    }
  }
  if (!strains.defined()) return result;
  const Tensor packed = strains.contiguous();
  const double* v = vectors.data<double>();
  for (std::int64_t g = 0; g < graph.n_graphs(); ++g) {
    if (!graph.volume(g)) continue;
    const double* s = packed.data<double>() + 9 * g;
    const auto [begin, end] = edges_of(graph, g);
    for (std::int64_t e = begin; e < end; ++e) {
      for (std::int64_t i = 0; i < 3; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < 3; ++j) sum += 0.5 * (s[3 * i + j] + s[3 * j + i]) * v[3 * e + j];
        out[3 * e + i] += sum / *graph.volume(g);
      }
    }
  }
  return result;
}

Tensor negated(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  Tensor result = tensor.clone();
  for (double& value : result.span<double>()) value = -value;
  return result;
}

/// Virials and stresses of a result from its edge forces.
void set_virials(const Graph& graph, const Tensor& vectors, bool stress, EvaluationResult& result) {
  const std::int64_t n_graphs = graph.n_graphs();
  result.graph_virials = Tensor::zeros({n_graphs, 3, 3}, DType::float64);
  if (stress) result.graph_stresses = Tensor::zeros({n_graphs, 3, 3}, DType::float64);
  for (std::int64_t g = 0; g < n_graphs; ++g) {
    const auto [begin, end] = edges_of(graph, g);
    const std::array<double, 9> virial = ops::accumulate_virial(end - begin, vectors.data<double>() + 3 * begin,
                                                                result.edge_forces.data<double>() + 3 * begin);
    for (std::size_t i = 0; i < 9; ++i) {
      result.virial[i / 3][i % 3] += virial[i];
      result.graph_virials.data<double>()[9 * g + static_cast<std::int64_t>(i)] = virial[i];
      if (!stress || !graph.volume(g)) continue;
      const double value = -virial[i] / *graph.volume(g);
      result.graph_stresses.data<double>()[9 * g + static_cast<std::int64_t>(i)] = value;
      if (n_graphs > 1) continue;
      if (!result.stress) result.stress.emplace();
      (*result.stress)[i / 3][i % 3] = value;
    }
  }
}

}  // namespace

EvaluationResult MaceModel::run(const Graph& graph, const EvaluateOptions& options) {
  const bool exchange = static_cast<bool>(options.exchange);
  const std::int64_t n_nodes = graph.n_nodes(), n_local = graph.n_local();
  Context& context = options.context != nullptr ? *options.context : Context::process();

  if (exchange && graph.n_edges() > 0 && graph.receiver().data<std::int32_t>()[graph.n_edges() - 1] >= n_local) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("an edge has receiver {}, a ghost (of {} local atoms): under an exchange ghosts only send",
                            graph.receiver().data<std::int32_t>()[graph.n_edges() - 1], n_local));
  }
  EvaluationResult result;
  result.n_edges = graph.n_edges();
  result.n_atoms = n_local;
  // What is wrong with the input is told before plugins are loaded for it.
  (void)species_of(graph);
  (void)heads_of(graph, options);

  const auto first_use = std::chrono::steady_clock::now();
  plugin::Lease lease;  // no plugin of the selection is shut down meanwhile
  do {
    lease.clear();
    result.selection = explain({graph.n_edges(), n_nodes}, options);
  } while (!hold_plugins(fast_list(), lease) || !hold_plugins(small_ops(), lease));
  require_memory({graph.n_edges(), n_nodes}, options);
  for (const NamedFastModule& named : fast_list()) (void)named.module->op_parameters(options.dtype);
  result.seconds_first_use = seconds_since(first_use);

  const auto start = std::chrono::steady_clock::now();
  try {
    compute(graph, options, context, result);
  } catch (const KernelGaveWay& failure) {
    // Results that are partly those of a kernel which then failed are nobody's: all of it again, by the reference.
    deactivate(*this);
    for (const NamedFastModule& op : small_ops()) op.module->state().active = nullptr;
    EvaluationResult again;
    again.n_edges = result.n_edges;
    again.n_atoms = result.n_atoms;
    again.seconds_first_use = result.seconds_first_use;
    again.selection = repeated_by_reference(result.selection, failure);
    result = std::move(again);
    compute(graph, options, context, result);
  } catch (...) {
    // What is under way on a device ends before anybody may shut its plugin down.
    if (const auto& runner = runners_[exchange ? 1 : 0]) runner->executor->end();
    throw;
  }
  result.seconds = seconds_since(start);
  return result;
}

void MaceModel::compute(const Graph& graph, const EvaluateOptions& options, Context& context,
                        EvaluationResult& result) {
  const MaceConfig& c = config_;
  const bool exchange = static_cast<bool>(options.exchange);
  const GradientWeights& weights = options.weights;
  const bool tangent = carries_tangents(options), backward = goes_back(options);
  const std::int64_t n_nodes = graph.n_nodes(), n_local = graph.n_local();
  const std::int64_t n_receivers = exchange ? n_local : n_nodes;
  const Tensor species = species_of(graph);
  const Tensor species_receivers = species.narrow(0, 0, n_receivers);
  const std::vector<std::int32_t> heads = heads_of(graph, options);
  const auto graph_ptr = graph.graph_ptr().span<std::int64_t>();
  const OpGraph op_graph = OpGraph::from(graph, species, c.n_species(), n_receivers);
  Runner& r = runner(exchange);
  Executor& executor = *r.executor;
  RunSettings settings;
  settings.dtype = options.dtype;
  settings.tangent = tangent;
  settings.parameter_gradients = options.parameter_gradients || weights.defined();
  settings.threads = options.threads > 0 ? options.threads : context.threads();
  settings.graph = &op_graph;
  settings.exchange = exchange ? &options.exchange : nullptr;
  settings.require_fast = options.require_fast;
  // Under an exchange others wait for this domain, which therefore cannot begin anew.
  settings.repeat = !exchange;
  settings.selection = &result.selection;
  executor.begin(settings);

  const Tensor vectors = graph.edge_vectors();
  const auto sender = graph.sender().span<std::int32_t>(), receiver = graph.receiver().span<std::int32_t>();
  Tensor vectors_t;
  if (options.direction.defined()) {
    if (options.direction.shape() != Shape{n_nodes, 3} || options.direction.dtype() != DType::float64) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("direction is {} {}, expected float64 {}", to_string(options.direction.dtype()),
                              to_string(options.direction.shape()), to_string(Shape{n_nodes, 3})));
    }
    vectors_t = moved_vectors(graph, options.direction, {}, vectors);
  } else if (weights.forces.defined() || weights.stresses.defined()) {
    vectors_t = moved_vectors(graph, negated(weights.forces), weights.stresses, vectors);
  }
  executor.set_input(r.vectors, vectors, vectors_t);
  executor.set_input(r.species_nodes, species);
  executor.set_input(r.species_receivers, species_receivers);
  const Tensor head_of = Tensor::empty({n_receivers}, DType::int32);
  // Of every graph; empty ones and ghosts included.
  std::vector<const double*> e0;
  std::vector<double> scale, shift;
  for (std::size_t g = 0; g < heads.size(); ++g) {
    const auto pick = [&](const char* child_name, const char* name, std::int64_t width) {
      const Tensor values = child(*this, child_name).buffer(name);
      return values.data<double>() + (values.numel() > width ? heads[g] * width : 0);
    };
    e0.push_back(pick("atomic_energies_fn", "atomic_energies", c.n_species()));
    scale.push_back(*pick("scale_shift", "scale", 1));
    shift.push_back(*pick("scale_shift", "shift", 1));
    const std::int64_t end = std::min(graph_ptr[g + 1], n_receivers);
    for (std::int64_t n = graph_ptr[g]; n < end; ++n) head_of.data<std::int32_t>()[n] = heads[g];
  }
  executor.set_input(r.head, head_of);

  executor.forward();
  if (backward) {
    const Tensor seed = Tensor::zeros({n_receivers}, DType::float64);
    Tensor seed_t;
    Tensor energy_weights;
    if (weights.energies.defined()) {
      energy_weights = weights.energies.contiguous();
      if (tangent) seed_t = Tensor::zeros({n_receivers}, DType::float64);
    }
    for (std::size_t g = 0; g < heads.size(); ++g) {
      const double weight = energy_weights.defined() ? energy_weights.data<double>()[g] : 0;
      for (std::int64_t n = graph_ptr[g]; n < std::min(graph_ptr[g + 1], n_local); ++n) {
        // Without tangents nothing but the weighted sum is asked for.
        seed.data<double>()[n] = scale[g] * (energy_weights.defined() && !tangent ? weight : 1.0);
        if (seed_t.defined()) seed_t.data<double>()[n] = scale[g] * weight;
      }
    }
    executor.seed(r.result, seed, seed_t);
    executor.backward();
  }
  executor.finish_forward();

  // Totals in float64 whatever the dtype: reference energies are large.
  const Tensor interaction = executor.value(r.result);
  result.node_energies = Tensor::empty({n_local}, DType::float64);
  result.graph_energies = Tensor::zeros({graph.n_graphs()}, DType::float64);
  for (std::size_t g = 0; g < heads.size(); ++g) {
    double& total = result.graph_energies.data<double>()[g];
    for (std::int64_t n = graph_ptr[g]; n < std::min(graph_ptr[g + 1], n_local); ++n) {
      const double energy =
          e0[g][species.data<std::int32_t>()[n]] + (scale[g] * interaction.data<double>()[n] + shift[g]);
      result.node_energies.data<double>()[n] = energy;
      total += energy;
    }
    result.energy += total;
  }

  if (backward) {
    const auto forces_from = [&](const Tensor& gradient) {
      const Tensor forces = Tensor::empty({n_nodes, 3}, DType::float64);
      ops::accumulate_forces(n_nodes, graph.n_edges(), sender.data(), receiver.data(), gradient.data<double>(),
                             forces.data<double>());
      return forces;
    };
    const bool plain_gradient = tangent || !weights.defined();
    if (plain_gradient) {
      // A model that no edge reaches has no gradient at all.
      const Tensor gradient = executor.gradient(r.vectors);
      result.edge_forces = gradient.defined() ? gradient.clone() : Tensor::zeros({graph.n_edges(), 3}, DType::float64);
      if (options.forces) result.forces = forces_from(result.edge_forces);
      set_virials(graph, vectors, options.stress, result);
    }
    if (options.parameter_gradients) result.parameter_gradients = executor.parameter_gradients(false);
    if (options.direction.defined()) {
      const Tensor along = executor.gradient_tangent(r.vectors);
      result.forces_tangent =
          forces_from(along.defined() ? along : Tensor::zeros({graph.n_edges(), 3}, DType::float64));
      if (options.parameter_gradients) result.parameter_gradients_tangent = executor.parameter_gradients(true);
    }
    if (weights.defined()) {
      const StateDict reached = executor.parameter_gradients(tangent);
      for (const auto& [name, tensor] : named_parameters()) {
        const Tensor* gradient = reached.find(name);
        result.weighted_gradients.add(
            name, gradient != nullptr ? gradient->to(DType::float64) : Tensor::zeros(tensor.shape(), DType::float64));
      }
    }
  }
  result.copied_bytes = executor.copied_bytes();
  result.synchronizations = executor.synchronizations();
}

}  // namespace fastpath::models
