#include "problem.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "canonical_edges.hpp"

namespace fastpath::conformance {

double uniform(Random& random, double low, double high) {
  return low + (high - low) * (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
}
double normal(Random& random) {
  constexpr double kPi = 3.14159265358979323846;
  const double radius = std::sqrt(-2 * std::log(uniform(random, 0, 1)));
  return radius * std::cos(2 * kPi * uniform(random, 0, 1));
}

GraphData make_graph(std::string name, std::int64_t n_nodes, std::int64_t n_receivers,
                     std::vector<std::pair<std::int32_t, std::int32_t>> edges, std::int64_t n_species, Random& random) {
  GraphData g;
  g.name = std::move(name);
  g.n_nodes = n_nodes;
  g.n_receivers = n_receivers;
  g.n_species = n_species;
  fill_edges(g, std::move(edges));
  if (n_species > 0) {
    g.species_ptr.assign(static_cast<std::size_t>(n_species + 1), 0);
    for (std::int64_t n = 0; n < n_nodes; ++n) {
      g.species.push_back(static_cast<std::int32_t>(cases::between(random, 0, n_species - 1)));
      ++g.species_ptr[static_cast<std::size_t>(g.species.back()) + 1];
    }
    for (std::size_t s = 1; s < g.species_ptr.size(); ++s) g.species_ptr[s] += g.species_ptr[s - 1];
    std::vector<std::int64_t> to = g.species_ptr;
    g.species_node.resize(static_cast<std::size_t>(n_nodes));
    for (std::int64_t n = 0; n < n_nodes; ++n) {
      const auto s = static_cast<std::size_t>(g.species[static_cast<std::size_t>(n)]);
      g.species_node[static_cast<std::size_t>(to[s]++)] = static_cast<std::int32_t>(n);
    }
  }
  return g;
}

GraphData ordinary_graph(std::int64_t n_species, Random& random) {
  constexpr std::int64_t kNodes = 9, kReceivers = 7, kEdges = 37;
  std::vector<std::pair<std::int32_t, std::int32_t>> edges;
  for (std::int64_t e = 0; e < kEdges; ++e) {
    // Node 6 receives nothing, node 1 sends nothing; 7 and 8 are ghosts. Node 0 receives and sends for sure.
    const auto receiver = static_cast<std::int32_t>(e == 0 ? 0 : cases::between(random, 0, 5));
    auto sender = static_cast<std::int32_t>(e == 1 ? 0 : cases::between(random, 0, kNodes - 1));
    if (sender == 1) sender = 8;
    edges.emplace_back(receiver, sender);
    if (e % 6 == 5) edges.push_back(edges.back());
  }
  return make_graph("ghosts, isolated nodes, edges twice", kNodes, kReceivers, std::move(edges), n_species, random);
}

std::vector<GraphData> odd_graphs(std::int64_t n_species, Random& random) {
  std::vector<std::pair<std::int32_t, std::int32_t>> star;
  for (int i = 0; i < 70; ++i) star.emplace_back(0, i % 5);
  return {make_graph("no nodes", 0, 0, {}, n_species, random),
          make_graph("no edges", 3, 3, {}, n_species, random),
          make_graph("one edge", 2, 2, {{1, 0}}, n_species, random),
          make_graph("one node that is its own neighbour", 1, 1, {{0, 0}}, n_species, random),
          make_graph("all edges at one node", 5, 5, std::move(star), n_species, random),
          make_graph("edges into ghosts", 4, 2, {{0, 1}, {1, 3}, {2, 0}, {3, 1}}, n_species, random)};
}

namespace {

std::int64_t n_species_of(const OpCase& op) {
  if (op.config.has("n_species")) return op.config.integer("n_species");
  for (const char* name : {"species_radii", "radial.species_radii"}) {
    if (op.config.has(name)) return static_cast<std::int64_t>(op.config.reals(name).size());
  }
  return 0;
}

}  // namespace

Problem::Problem(const OpCase& op_, sdk::DType dtype_, GraphData graph_, std::int64_t n_rows, Random& random)
    : op(op_), dtype(dtype_), graph(std::move(graph_)), n_rows_(n_rows) {
  for (const sdk::Argument& argument : op.signature.inputs) inputs.push_back(make(argument, random));
  for (const sdk::Argument& argument : op.signature.parameters) parameters.push_back(make(argument, random));
  for (const sdk::Argument& argument : op.signature.outputs) cotangents.push_back(make(argument, random));
  const auto tangents = [&](const std::vector<sdk::Argument>& arguments, const std::vector<Array>& values) {
    std::vector<Array> result;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool has = arguments[i].real && arguments[i].differentiable && values[i].present;
      result.push_back(has ? values[i] : Array::absent());
      for (std::int64_t k = 0; has && k < result.back().numel(); ++k) result.back().set(k, normal(random));
    }
    return result;
  };
  inputs_t = tangents(op.signature.inputs, inputs);
  parameters_t = tangents(op.signature.parameters, parameters);
  cotangents_t = tangents(op.signature.outputs, cotangents);
}

std::int64_t Problem::rows(sdk::Axis axis) const {
  if (axis == sdk::Axis::rows || !op.signature.needs_graph) return n_rows_;
  if (axis == sdk::Axis::edges) return graph.n_edges();
  return axis == sdk::Axis::nodes ? graph.n_nodes : graph.n_receivers;
}

Array Problem::make(const sdk::Argument& argument, Random& random) const {
  if (argument.optional && !argument.real) return Array::absent();
  std::int64_t size = 1;
  for (const std::int64_t trailing : argument.trailing) size *= trailing;
  if (argument.optional && size == 0) return Array::absent();
  std::vector<std::int64_t> shape = argument.trailing;
  if (argument.axis != sdk::Axis::none) shape.insert(shape.begin(), rows(argument.axis));
  Array array = Array::zeros(std::move(shape), argument.real ? dtype : sdk::kInt32);
  const std::int64_t n = array.numel();
  if (!argument.real) {
    const std::int64_t species = std::max<std::int64_t>(n_species_of(op), 1);
    for (std::int64_t i = 0; i < n; ++i) {
      array.data<std::int32_t>()[i] = argument.axis == sdk::Axis::nodes && !graph.species.empty()
                                          ? graph.species[static_cast<std::size_t>(i)]
                                          : static_cast<std::int32_t>(cases::between(random, 0, species - 1));
    }
    return array;
  }
  constexpr double kPi = 3.14159265358979323846;
  double r_max = 0;
  for (const char* name : {"r_max", "radial.r_max"}) {
    if (op.config.has(name)) r_max = op.config.real(name);
  }
  for (std::int64_t i = 0; i < n; ++i) {
    double value = normal(random);
    if (argument.name == "lengths") value = uniform(random, 0.15, 0.9) * r_max;
    if (argument.name == "bessel_weights") value = static_cast<double>(i + 1) * kPi / r_max;
    // A direction has a length: no component near zero in all three.
    if (argument.name == "vectors" && i % 3 == 0) value += value < 0 ? -0.5 : 0.5;
    array.set(i, value);
  }
  return array;
}

Evaluation Problem::forward(unsigned char poison) const {
  Evaluation evaluation;
  evaluation.pass = FP_PASS_FORWARD;
  evaluation.graph = op.signature.needs_graph ? &graph : nullptr;
  evaluation.inputs = inputs;
  evaluation.n_rows = inputs.empty() || !inputs[0].present || inputs[0].shape.empty() ? 0 : inputs[0].shape[0];
  for (const Array& cotangent : cotangents) {
    evaluation.outputs.push_back(cotangent);
    if (cotangent.present) evaluation.outputs.back().fill_bytes(poison);
  }
  return evaluation;
}

Evaluation Problem::backward(unsigned char poison) const {
  Evaluation evaluation = forward();
  evaluation.pass = FP_PASS_BACKWARD;
  evaluation.outputs.clear();
  evaluation.grad_outputs = cotangents;
  const auto gradients = [&](const std::vector<sdk::Argument>& arguments, const std::vector<Array>& values) {
    std::vector<Array> result;
    for (std::size_t i = 0; i < values.size(); ++i) {
      result.push_back(arguments[i].differentiable ? values[i] : Array::absent());
      if (result.back().present) result.back().fill_bytes(poison);
    }
    return result;
  };
  evaluation.grad_inputs = gradients(op.signature.inputs, inputs);
  evaluation.grad_parameters = gradients(op.signature.parameters, parameters);
  return evaluation;
}

Evaluation Problem::of(std::uint32_t pass, unsigned char poison) const {
  if (pass == FP_PASS_FORWARD) return forward(poison);
  if (pass == FP_PASS_BACKWARD) return backward(poison);
  Evaluation evaluation = pass == FP_PASS_FORWARD_TANGENT ? forward(poison) : backward(poison);
  evaluation.pass = pass;
  evaluation.inputs_t = inputs_t;
  evaluation.parameters_t = parameters_t;
  evaluation.outputs_t = evaluation.outputs;
  if (pass == FP_PASS_FORWARD_TANGENT) return evaluation;
  evaluation.grad_outputs_t = cotangents_t;
  evaluation.grad_inputs_t = evaluation.grad_inputs;
  evaluation.grad_parameters_t = evaluation.grad_parameters;
  return evaluation;
}

std::vector<Array*> results_of(Evaluation& evaluation) {
  std::vector<Array*> results;
  const auto add = [&](std::vector<Array>& list) {
    for (Array& array : list) {
      if (array.present) results.push_back(&array);
    }
  };
  const bool backward = (evaluation.pass & (FP_PASS_BACKWARD | FP_PASS_BACKWARD_TANGENT)) != 0;
  if (backward) {
    add(evaluation.grad_inputs), add(evaluation.grad_parameters);
    add(evaluation.grad_inputs_t), add(evaluation.grad_parameters_t);
  } else {
    add(evaluation.outputs), add(evaluation.outputs_t);
  }
  return results;
}
std::vector<const Array*> results_of(const Evaluation& evaluation) {
  const std::vector<Array*> results = results_of(const_cast<Evaluation&>(evaluation));
  return {results.begin(), results.end()};
}

double largest(const Array& array) {
  double result = 0;
  for (std::int64_t i = 0; i < array.numel(); ++i) {
    const double value = std::abs(array.at(i));
    if (!(value <= std::numeric_limits<double>::max())) return std::numeric_limits<double>::infinity();
    result = std::max(result, value);
  }
  return result;
}

double difference(const Array& a, const Array& b) {
  double error = 0, scale = 0;
  for (std::int64_t i = 0; i < b.numel(); ++i) {
    const double x = a.at(i), y = b.at(i);
    if (std::isfinite(x) != std::isfinite(y)) return std::numeric_limits<double>::infinity();
    if (!std::isfinite(x)) continue;
    error = std::max(error, std::abs(x - y));
    scale = std::max(scale, std::abs(y));
  }
  return error == 0 ? 0 : error / scale;
}

bool same_bits(const Evaluation& a, const Evaluation& b) {
  const std::vector<const Array*> left = results_of(a), right = results_of(b);
  if (left.size() != right.size()) return false;
  for (std::size_t i = 0; i < left.size(); ++i) {
    if (left[i]->bytes() != right[i]->bytes() || std::memcmp(left[i]->raw(), right[i]->raw(), left[i]->bytes()) != 0) {
      return false;
    }
  }
  return true;
}

double tolerance_of(sdk::DType dtype, double promised) {
  const double contract = dtype == sdk::kFloat32 ? 1e-6 : 1e-14;
  return promised > 0 && promised < 1 ? std::max(promised, contract) : contract;
}

std::string pass_name(std::uint32_t pass) {
  switch (pass) {
    case FP_PASS_FORWARD:
      return "forward";
    case FP_PASS_BACKWARD:
      return "backward";
    case FP_PASS_FORWARD_TANGENT:
      return "forward_tangent";
    case FP_PASS_BACKWARD_TANGENT:
      return "backward_tangent";
    default:
      return "pass " + std::to_string(pass);
  }
}

namespace {
constexpr std::uint32_t kAllPasses =
    FP_PASS_FORWARD | FP_PASS_BACKWARD | FP_PASS_FORWARD_TANGENT | FP_PASS_BACKWARD_TANGENT;
}

std::vector<std::uint32_t> passes_of(const Subject& subject) {
  std::vector<std::uint32_t> result;
  for (std::uint32_t pass = FP_PASS_FORWARD; pass <= FP_PASS_BACKWARD_TANGENT; pass <<= 1) {
    if ((subject.passes & pass) != 0) result.push_back(pass);
  }
  return result;
}

std::vector<Subject> subjects(Session& session) {
  std::vector<Subject> result;
  bool foreign = false;
  std::set<std::int32_t> kinds;
  for (const fp_device_info& device : session.devices()) {
    if (!kinds.insert(device.type).second) continue;  // one device of each kind
    for (const Claim& claim : session.claims()) {
      if (claim.device_type != device.type) continue;
      const auto& known = known_ops();
      if (std::find(known.begin(), known.end(), claim.op) == known.end()) {
        foreign = true;
        continue;
      }
      for (const auto& [bit, dtype] : {std::pair{FP_DTYPE_BIT_F32, sdk::kFloat32}, {FP_DTYPE_BIT_F64, sdk::kFloat64}}) {
        if ((claim.dtypes & bit) == 0) continue;
        // The first configuration that it takes, with all passes where it can.
        std::vector<OpCase> candidates = corner_cases(claim.op);
        candidates.insert(candidates.begin(), small_case(claim.op));
        bool found = false;
        for (const std::uint32_t mask : {kAllPasses, std::uint32_t{FP_PASS_FORWARD | FP_PASS_BACKWARD}}) {
          const std::uint32_t passes = claim.passes & mask;
          for (const OpCase& op : candidates) {
            if (found || passes == 0 || op.version != claim.version) continue;
            Answer answer = ask(session, {&op, dtype, passes}, device);
            if (!answer.yes()) continue;
            result.push_back({op, dtype, passes, device, std::move(answer)});
            found = true;
          }
        }
      }
    }
  }
  if (result.empty()) {
    session.trial.skip(foreign ? "the plugin's ops are not those that fastpath defines, whose arguments the kit knows"
                               : "the plugin offers no kernel for a device of this machine");
  }
  return result;
}

bool prepare(Session& session, Kernel& kernel, const Problem& problem, std::uint64_t version) {
  if (!kernel) {
    session.trial.fail("P-48", "create failed: " + kernel.created().shown(), "a kernel, as query said yes");
    return false;
  }
  if (problem.parameters.empty()) return true;
  const Outcome bound = kernel.bind(problem.parameters, version);
  if (!bound.ok()) session.trial.fail("P-48", "bind failed: " + bound.shown(), "parameters that are taken");
  return bound.ok();
}

bool run_well(Session& session, Kernel& kernel, Evaluation& evaluation, const RunOptions& options,
              const char* obligation) {
  const Outcome outcome = kernel.run(evaluation, options);
  if (!outcome.ok()) {
    session.trial.fail(obligation, pass_name(evaluation.pass) + " failed: " + outcome.shown(), "that it runs");
  }
  return outcome.ok();
}

}  // namespace fastpath::conformance
