// Many structures in one call: joined into one graph, as many as memory allows, and taken apart again.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "dispatch/context_impl.hpp"
#include "fastpath/error.hpp"
#include "models/evaluate.hpp"

namespace fastpath {
namespace {

/// Structures that follow each other in the list.
struct Group {
  std::size_t first = 0;
  std::vector<Graph> graphs;
  std::vector<std::string> heads;
  std::vector<double> seconds_graph;
  ProblemSize size{0, 0};

  void clear(std::size_t next) {
    first = next;
    graphs.clear();
    heads.clear();
    seconds_graph.clear();
    size = {0, 0};
  }
};

/// Runs a function for one structure, whose number every error then has.
template <class Function>
auto of_structure(std::size_t structure, const Function& function) {
  try {
    return function();
  } catch (const StructureError&) {
    throw;
  } catch (const Error& error) {
    throw StructureError(structure, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    throw StructureError(structure, ErrorCode::out_of_memory, "out of memory");
  }
}

/// Rows start..end-1 with memory of their own, so that one result does not keep those of all.
Tensor rows(const Tensor& tensor, std::int64_t start, std::int64_t end) {
  return tensor.defined() ? tensor.narrow(0, start, end - start).clone() : Tensor();
}

/// The part of graph `g` in the result of joined graphs.
EvaluationResult part_of(const EvaluationResult& all, const Graph& joined, std::size_t g, std::int64_t first_edge,
                         std::int64_t n_edges) {
  const auto ptr = joined.graph_ptr().span<std::int64_t>();
  const std::int64_t begin = ptr[g], end = ptr[g + 1];
  const auto index = static_cast<std::int64_t>(g);
  EvaluationResult result;
  result.graph_energies = rows(all.graph_energies, index, index + 1);
  result.graph_virials = rows(all.graph_virials, index, index + 1);
  result.graph_stresses = rows(all.graph_stresses, index, index + 1);
  result.energy = result.graph_energies.item();
  result.node_energies = rows(all.node_energies, begin, end);
  result.forces = rows(all.forces, begin, end);
  result.edge_forces = rows(all.edge_forces, first_edge, first_edge + n_edges);
  for (std::size_t i = 0; i < 9; ++i) {
    if (result.graph_virials.defined()) result.virial[i / 3][i % 3] = result.graph_virials.data<double>()[i];
    if (!result.graph_stresses.defined() || !joined.volume(index)) continue;
    if (!result.stress) result.stress.emplace();
    (*result.stress)[i / 3][i % 3] = result.graph_stresses.data<double>()[i];
  }
  result.n_edges = n_edges;
  result.n_atoms = end - begin;
  result.n_joined = joined.n_graphs();
  result.selection = all.selection;
  const double share = static_cast<double>(result.n_atoms + n_edges) /
                       static_cast<double>(std::max<std::int64_t>(joined.n_nodes() + joined.n_edges(), 1));
  result.seconds = share * all.seconds;
  result.copied_bytes = static_cast<std::uint64_t>(share * static_cast<double>(all.copied_bytes));
  result.synchronizations = all.synchronizations;  // one cannot wait for a part
  if (g == 0) result.seconds_first_use = all.seconds_first_use;
  return result;
}

/// True for an error that one of several structures may be to blame for.
bool may_be_of_one(ErrorCode code) {
  return code == ErrorCode::invalid_argument || code == ErrorCode::numerics || code == ErrorCode::out_of_memory;
}

void check_options(const EvaluateOptions& options) {
  const auto refuse = [](const char* what) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} of several structures at once: expected none; evaluate one, or a joined graph", what));
  };
  if (options.direction.defined()) refuse("a direction");
  if (options.weights.defined()) refuse("weights of a gradient");
  if (options.parameter_gradients) refuse("gradients by parameters");
  if (!options.heads.empty()) refuse("heads of graphs");
  if (options.exchange) refuse("a ghost exchange");
}

/// Chooses kernels for the estimates of groups; what a selection chooses hardly changes with the size. A lock that is
/// replayed holds the sizes of groups, so not always that of one structure: then it is asked for a size that it has.
void choose_for_estimates(Model& model, ProblemSize size, const EvaluateOptions& options) {
  Context& context = options.context != nullptr ? *options.context : Context::process();
  const SelectionLock* const replay = context.impl().replay.get();
  try {
    model.explain(size, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable || replay == nullptr || replay->choices().empty()) throw;
    model.explain({replay->choices().front().min_edges, size.n_nodes}, options);
  }
}

}  // namespace

StructureError::StructureError(std::size_t structure, ErrorCode code, const std::string& cause)
    : Error(code, fmt::format("structure {}: {}", structure, cause)), structure_(structure), cause_(cause) {}
StructureError::~StructureError() = default;

std::vector<EvaluationResult> Model::evaluate(std::span<const Structure> structures, const EvaluateOptions& options,
                                              const ResultCallback& on_result) {
  check_options(options);
  std::vector<EvaluationResult> results(structures.size());
  std::uint64_t budget = options.batch_memory > 0 ? options.batch_memory : EvaluateOptions::kBatchMemory;
  if (const std::uint64_t limit = models::memory_limit(options); limit > 0) budget = std::min(budget, limit);

  Group group;
  const auto deliver = [&](std::size_t g, EvaluationResult result) {
    const std::size_t structure = group.first + g;
    result.seconds_graph = group.seconds_graph[g];
    results[structure] = std::move(result);
    if (on_result) on_result(structure, results[structure]);
  };
  const auto one_by_one = [&] {
    for (std::size_t g = 0; g < group.graphs.size(); ++g) {
      EvaluateOptions used = options;
      used.head = group.heads[g];
      deliver(g, of_structure(group.first + g, [&] { return evaluate(group.graphs[g], used); }));
    }
  };
  /// False if one of the structures may be at fault.
  const auto together = [&] {
    EvaluateOptions used = options;
    used.heads = group.heads;
    Graph joined = group.graphs.front();
    EvaluationResult all;
    try {
      joined = Graph::join(group.graphs);
      all = evaluate(joined, used);
    } catch (const Error& error) {
      if (may_be_of_one(error.code())) return false;
      throw StructureError(group.first, error.code(), error.what());
    } catch (const std::bad_alloc&) {
      return false;
    }
    std::int64_t edge = 0;
    for (std::size_t g = 0; g < group.graphs.size(); ++g) {
      const std::int64_t n_edges = group.graphs[g].n_edges();
      deliver(g, part_of(all, joined, g, edge, n_edges));
      edge += n_edges;
    }
    return true;
  };
  const auto flush = [&] {
    if (group.graphs.empty()) return;
    if (group.graphs.size() == 1 || !together()) one_by_one();
  };

  bool estimated = false;
  for (std::size_t i = 0; i < structures.size(); ++i) {
    const auto start = std::chrono::steady_clock::now();
    Graph graph = of_structure(i, [&] { return Graph::from_structure(structures[i], r_max()); });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::string head = of_structure(i, [&] { return models::head_of(structures[i], options); });
    const ProblemSize size{group.size.n_edges + graph.n_edges(), group.size.n_nodes + graph.n_nodes()};
    if (!group.graphs.empty()) {
      // With the kernels of the group before, or of the first structure.
      if (!estimated) of_structure(group.first, [&] { choose_for_estimates(*this, group.size, options); });
      estimated = true;
      if (estimate(size, options).workspace_bytes > budget) {
        flush();
        group.clear(i);
      }
    }
    group.size = {group.size.n_edges + graph.n_edges(), group.size.n_nodes + graph.n_nodes()};
    group.graphs.push_back(std::move(graph));
    group.heads.push_back(std::move(head));
    group.seconds_graph.push_back(seconds);
  }
  flush();
  return results;
}

}  // namespace fastpath
