#include "verify/op_problem.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "fastpath/error.hpp"
#include "fastpath/sdk/attributes.hpp"

namespace fastpath::verify {
namespace {

Tensor normal(Random& random, Shape shape, double scale) {
  Tensor result = Tensor::empty(std::move(shape), DType::float64);
  for (double& value : result.span<double>()) value = scale * random.normal();
  return result;
}

OpGraph make_graph(Random& random, const TrialShape& shape, std::int64_t n_species) {
  std::vector<std::int32_t> sender, receiver, numbers;
  std::vector<double> shift, positions;
  const std::int64_t nodes = shape.n_nodes, receivers = shape.n_receivers;
  const std::int64_t first_sender = shape.isolated && nodes > 1 ? 1 : 0;
  const std::int64_t last_receiver = shape.isolated && receivers > 1 ? receivers - 1 : receivers;
  for (std::int64_t n = 0; n < nodes; ++n) {
    numbers.push_back(static_cast<std::int32_t>(1 + random.below(n_species)));
    for (int axis = 0; axis < 3; ++axis) positions.push_back(random.uniform(0, 6));
  }
  for (std::int64_t e = 0; e < shape.n_edges; ++e) {
    if (shape.duplicates && e % 5 == 4) {
      sender.push_back(sender.back());
      receiver.push_back(receiver.back());
      shift.insert(shift.end(), {shift[shift.size() - 3], shift[shift.size() - 2], shift[shift.size() - 1]});
      continue;
    }
    // Most graphs have every edge both ways, and kernels may do what both have in common only once.
    const bool turned = e % 5 == 2 && sender.back() < last_receiver && receiver.back() >= first_sender;
    if (turned) {
      const std::int32_t from = receiver.back();
      receiver.push_back(sender.back());
      sender.push_back(from);
      for (int axis = 0; axis < 3; ++axis) shift.push_back(-shift[shift.size() - 3]);
      continue;
    }
    sender.push_back(static_cast<std::int32_t>(first_sender + random.below(nodes - first_sender)));
    receiver.push_back(static_cast<std::int32_t>(random.below(last_receiver)));
    // An atom is its own neighbour only through a periodic image.
    for (int axis = 0; axis < 3; ++axis) shift.push_back(sender.back() == receiver.back() ? 4.0 + axis : 0.0);
  }
  HostEdges edges;
  edges.atomic_numbers = numbers;
  edges.positions = positions;
  edges.n_local = receivers;
  edges.sender = Tensor::from<std::int32_t>({shape.n_edges}, sender);
  edges.receiver = Tensor::from<std::int32_t>({shape.n_edges}, receiver);
  edges.shift = Tensor::from<double>({shape.n_edges, 3}, shift);
  const Tensor species = Tensor::empty({nodes}, DType::int32);
  for (std::size_t n = 0; n < numbers.size(); ++n) species.data<std::int32_t>()[n] = numbers[n] - 1;
  return OpGraph::from(Graph::from_edges(edges), species, n_species, receivers);
}

/// Edges that run both ways between the same two nodes, each in one pair at most.
std::vector<std::pair<std::size_t, std::size_t>> both_ways(const OpGraph& graph) {
  std::vector<std::pair<std::size_t, std::size_t>> result;
  const auto senders = graph.sender.span<std::int32_t>(), receivers = graph.receiver.span<std::int32_t>();
  const auto first_of = graph.receiver_ptr.span<std::int64_t>();
  std::vector<bool> taken(senders.size());
  for (std::size_t e = 0; e < senders.size(); ++e) {
    const auto from = static_cast<std::size_t>(senders[e]);
    const auto begin = std::max(static_cast<std::size_t>(first_of[from]), e + 1),
               end = static_cast<std::size_t>(first_of[from + 1]);
    for (std::size_t other = begin; other < end && !taken[e]; ++other) {
      if (senders[other] != receivers[e] || taken[other]) continue;
      result.emplace_back(e, other);
      taken[e] = taken[other] = true;
    }
  }
  return result;
}

/// Terms of the longest sum into one element of any tensor of an op, roughly and not too few.
double longest_sum(const OpSpec& spec, const TrialShape& shape) {
  const sdk::Attributes attributes(spec.config);
  const auto rows = static_cast<double>(shape.n_rows), edges = static_cast<double>(shape.n_edges);
  const auto net = [](const sdk::RadialMlpConfig& config, double terms) {
    for (const std::int64_t width : config.widths) terms = std::max(terms, static_cast<double>(width));
    return terms;
  };
  if (spec.id == sdk::RadialMlpConfig::kOp) return net(sdk::RadialMlpConfig::from(attributes), rows);
  if (spec.id == sdk::IrrepsLinearConfig::kOp) {
    const auto config = sdk::IrrepsLinearConfig::from(attributes);
    return std::max({rows, static_cast<double>(config.in.dim()), static_cast<double>(config.out.dim())});
  }
  if (spec.id == sdk::SpeciesLinearConfig::kOp) {
    const auto config = sdk::SpeciesLinearConfig::from(attributes);
    return std::max({rows, static_cast<double>(config.in.dim()), static_cast<double>(config.out.dim())});
  }
  const auto product = [&](const sdk::ConvTensorProductConfig& config) {
    std::map<std::size_t, double> into_out, from_in, from_edge;
    double most = 0;
    for (const auto& path : config.instructions) {
      const double a = 2 * config.in[path.in].ir.l + 1, b = 2 * config.edge[path.edge].ir.l + 1,
                   c = 2 * config.out[path.out].ir.l + 1, channels = static_cast<double>(config.in[path.in].mul);
      into_out[path.out] += 2 * edges * std::min(a, b);
      from_in[path.in] += 2 * edges * std::min(b, c);
      from_edge[path.edge] += 2 * channels * std::min(a, c);
      most = std::max(most, a * b);
    }
    for (const auto* sums : {&into_out, &from_in, &from_edge}) {
      for (const auto& [block, terms] : *sums) most = std::max(most, terms);
    }
    return most;
  };
  if (spec.id == sdk::ConvTensorProductConfig::kOp) return product(sdk::ConvTensorProductConfig::from(attributes));
  if (spec.id == sdk::MessageStepConfig::kOp) {
    const auto config = sdk::MessageStepConfig::from(attributes);
    return std::max(net(config.mlp, edges), product(config.conv));
  }
  if (spec.id == sdk::SymmetricContractionConfig::kOp) {
    const auto config = sdk::SymmetricContractionConfig::from(attributes);
    double monomials = 0, count = 1, components = 0;
    for (int nu = 1; nu <= config.correlation; ++nu) {
      count *= static_cast<double>(config.dim + nu - 1) / nu;
      monomials += count;
    }
    for (const int l : config.targets) components += 2 * l + 1;
    return std::max(monomials * components, rows);
  }
  return edges;
}

std::int64_t rows_of(const TrialShape& shape, sdk::Axis axis) {
  switch (axis) {
    case sdk::Axis::edges:
      return shape.n_edges;
    case sdk::Axis::nodes:
      return shape.n_nodes;
    case sdk::Axis::receivers:
      return shape.n_receivers;
    case sdk::Axis::rows:
      return shape.n_rows;
    case sdk::Axis::none:
      break;
  }
  return -1;
}

}  // namespace

Shape Problem::shape_of(const sdk::Argument& argument) const {
  Shape result;
  if (argument.axis != sdk::Axis::none) result.push_back(rows_of(shape, argument.axis));
  result.insert(result.end(), argument.trailing.begin(), argument.trailing.end());
  return result;
}

Problem draw_problem(FastPathModule& module, DType dtype, const TrialShape& shape, std::uint64_t seed) {
  const OpSpec& spec = module.op();
  Problem problem;
  problem.shape = shape;
  if (shape.n_nodes < 0 || shape.n_receivers < 0 || shape.n_receivers > shape.n_nodes || shape.n_edges < 0 ||
      shape.n_rows < 0 || (shape.n_edges > 0 && shape.n_receivers == 0) || !is_floating(dtype)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a trial of {} nodes, {} receivers, {} edges and {} rows in {}", shape.n_nodes,
                            shape.n_receivers, shape.n_edges, shape.n_rows, fastpath::to_string(dtype)));
  }
  const sdk::Attributes attributes(spec.config);
  std::optional<sdk::Signature> found;
  try {
    found = sdk::signature_of(spec.id, spec.version, attributes);
  } catch (const sdk::ConfigError& error) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: {}", spec.id, error.what()));
  }
  if (!found) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("op '{}' version {} has no schema to draw inputs from", spec.id, spec.version));
  }
  problem.signature = std::move(*found);
  problem.terms = longest_sum(spec, shape);
  Random random(seed);
  std::int64_t n_species = 3;
  std::optional<sdk::RadialBasisConfig> radial;
  if (attributes.has("n_species")) n_species = attributes.integer("n_species");
  if (spec.id == sdk::RadialBasisConfig::kOp) radial = sdk::RadialBasisConfig::from(attributes);
  if (spec.id == sdk::MessageStepConfig::kOp) radial = sdk::MessageStepConfig::from(attributes).radial;
  if (radial && !radial->species_radii.empty()) n_species = static_cast<std::int64_t>(radial->species_radii.size());
  // Graphs have species by atomic number.
  problem.graph = make_graph(random, shape, std::min<std::int64_t>(n_species, 118));
  Side side;
  for (const sdk::Argument& argument : problem.signature.inputs) {
    const Shape sizes = problem.shape_of(argument);
    if (!argument.real) {
      Tensor indices = Tensor::empty(sizes, DType::int32);
      if (argument.axis == sdk::Axis::nodes) {
        indices = problem.graph.species;
      } else {
        for (auto& value : indices.span<std::int32_t>()) value = static_cast<std::int32_t>(random.below(n_species));
      }
      side.inputs.push_back(indices);
      side.inputs_t.emplace_back();
      continue;
    }
    Tensor values = normal(random, sizes, shape.scale);
    const auto elements = values.span<double>();
    if (radial && argument.name == "lengths") {
      for (double& length : elements) length = radial->r_max * random.uniform(0.08, 0.99);
      // A host's list may have edges beyond the cutoff: they contribute nothing.
      if (elements.size() > 4) elements[3] = 1.02 * radial->r_max;
    }
    if (argument.name == "vectors") {
      for (std::size_t i = 0; i + 3 <= elements.size(); i += 3) {
        const double norm = std::hypot(elements[i], elements[i + 1], elements[i + 2]);
        const double length = shape.scale * random.uniform(0.5, 3.0);
        for (std::size_t k = 0; k < 3; ++k) elements[i + k] *= length / norm;
      }
    }
    if (argument.axis == sdk::Axis::edges && (argument.name == "vectors" || argument.name == "lengths")) {
      // All but every fourth pair has opposite vectors and one length, as in a structure.
      const double factor = argument.name == "vectors" ? -1 : 1;
      const std::size_t width = elements.size() / std::max<std::size_t>(1, static_cast<std::size_t>(shape.n_edges));
      std::size_t pair = 0;
      for (const auto& [first, second] : both_ways(problem.graph)) {
        if (pair++ % 4 == 3) continue;
        for (std::size_t k = 0; k < width; ++k) elements[second * width + k] = factor * elements[first * width + k];
      }
    }
    side.inputs.push_back(values);
    side.inputs_t.push_back(argument.differentiable ? normal(random, sizes, 1) : Tensor());
  }
  const std::vector<Tensor>& own = module.op_parameters(dtype);
  for (std::size_t i = 0; i < problem.signature.parameters.size(); ++i) {
    const sdk::Argument& argument = problem.signature.parameters[i];
    if (i >= own.size() || !own[i].defined()) {
      side.parameters.emplace_back(), side.parameters_t.emplace_back();
      continue;
    }
    if (!argument.differentiable) {
      side.parameters.push_back(own[i].to(DType::float64));
      side.parameters_t.emplace_back();
      continue;
    }
    Tensor values = normal(random, problem.shape_of(argument), 1);
    if (spec.id == sdk::RadialBasisConfig::kOp) {
      // The same numbers as in the configuration: a kernel may read either.
      std::size_t n = 0;
      for (double& weight : values.span<double>()) {
        const double plain = static_cast<double>(n + 1) * M_PI / radial->r_max * (1 + 0.01 * weight);
        weight = radial->frequencies.empty() ? plain : radial->frequencies[n];
        ++n;
      }
    }
    side.parameters.push_back(values);
    side.parameters_t.push_back(normal(random, problem.shape_of(argument), 1));
  }
  for (const sdk::Argument& argument : problem.signature.outputs) {
    side.grad_outputs.push_back(normal(random, problem.shape_of(argument), 1));
    side.grad_outputs_t.push_back(normal(random, problem.shape_of(argument), 1));
  }
  problem.given = side.to(dtype);
  problem.exact = problem.given.to(DType::float64);
  return problem;
}

}  // namespace fastpath::verify
