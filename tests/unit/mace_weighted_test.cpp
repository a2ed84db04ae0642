// Gradients of weighted sums of energies, forces and stresses, and the joined graphs that they are made for.
#include <gtest/gtest.h>

#include "fastpath/error.hpp"
#include "support/mace_models.hpp"

namespace fastpath::test {
namespace {

constexpr double kRounding = 1e-12;
constexpr double kSecondOrder = 1e-10;  // design.md section 14

Tensor values(Shape shape, std::uint64_t seed) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return Tensor::from<double>(std::move(shape), random_values(count, seed));
}
Tensor stress_weights(const Graph& graph, std::uint64_t seed) {
  const Tensor result = values({graph.n_graphs(), 3, 3}, seed);
  for (std::int64_t g = 0; g < graph.n_graphs(); ++g) {
    if (!graph.volume(g)) result.narrow(0, g, 1).fill_zero();
  }
  return result;
}
GradientWeights all_weights(const Graph& graph, std::uint64_t seed) {
  return {values({graph.n_graphs()}, seed), values({graph.n_nodes(), 3}, seed + 1), stress_weights(graph, seed + 2)};
}

/// The weighted sum itself.
double weighted_sum(const EvaluationResult& result, const GradientWeights& weights) {
  double sum = 0;
  if (weights.energies.defined()) sum += dot(reals(weights.energies), reals(result.graph_energies));
  if (weights.forces.defined()) sum += dot(reals(weights.forces), reals(result.forces));
  if (weights.stresses.defined()) sum += dot(reals(weights.stresses), reals(result.graph_stresses));
  return sum;
}

/// Every number of all gradients, and the largest error relative to the largest entry of each parameter.
void expect_gradients(const StateDict& got, const StateDict& want, double tolerance, double factor = 1.0) {
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [name, tensor] : want) {
    std::vector<double> scaled = reals(tensor);
    for (double& value : scaled) value *= factor;
    EXPECT_LE(relative_error(reals(got.at(name)), scaled), tolerance) << name;
  }
}
StateDict sum_of(const std::vector<StateDict>& parts) {
  StateDict result;
  for (const auto& [name, tensor] : parts.front()) result.add(name, tensor.clone());
  for (std::size_t i = 1; i < parts.size(); ++i) {
    for (const auto& [name, tensor] : parts[i]) {
      const std::vector<double> more = reals(tensor);
      for (std::size_t k = 0; k < more.size(); ++k) result.at(name).span<double>()[k] += more[k];
    }
  }
  return result;
}

/// A crystal, a molecule, nothing, an atom alone, and another crystal.
std::vector<Structure> mixed() {
  Structure atom;
  atom.atomic_numbers = {8};
  atom.positions = {{1, 2, 3}};
  Structure other = transformed(system_b(), strain_matrix(0.07, {{{1, 0.3, 0}, {0.3, -0.5, 0.2}, {0, 0.2, 0.4}}}));
  return {system_b(), system_a(), Structure(), atom, other};
}
std::vector<Graph> graphs_of(const std::vector<Structure>& structures, double r_max) {
  std::vector<Graph> graphs;
  for (const Structure& structure : structures) graphs.push_back(Graph::from_structure(structure, r_max));
  return graphs;
}

/// Weights of graph `g` of joined ones alone.
GradientWeights part_of(const GradientWeights& weights, const Graph& joined, std::int64_t g) {
  const auto ptr = joined.graph_ptr().span<std::int64_t>();
  const std::int64_t first = ptr[static_cast<std::size_t>(g)], last = ptr[static_cast<std::size_t>(g) + 1];
  return {weights.energies.narrow(0, g, 1).clone(), weights.forces.narrow(0, first, last - first).clone(),
          weights.stresses.narrow(0, g, 1).clone()};
}

TEST(WeightedGradients, OfEnergyAndForcesAreThoseOfThePackage) {
  const StateDict want = TestData("refdata/mace_a/paramgrads.safetensors").tensors();
  const Graph graph = Graph::from_structure(mace_a_structure("molecule"), mace_a()->r_max());
  const Tensor one = Tensor::from<double>({1}, {1.0});
  const StateDict energy = mace_a()->weighted_gradients(graph, {one, {}, {}}, reference());
  const StateDict forces = mace_a()->weighted_gradients(graph, {{}, want.at("fv").clone(), {}}, reference());
  const StateDict both = mace_a()->weighted_gradients(graph, {one, want.at("fv").clone(), {}}, reference());
  int checked = 0;
  for (const auto& [name, tensor] : want) {
    if (name.starts_with("dE:")) {
      EXPECT_LE(relative_error(reals(energy.at(name.substr(3))), reals(tensor)), kRounding) << name;
      ++checked;
    } else if (name.starts_with("dFv:")) {
      const std::string parameter = name.substr(4);
      EXPECT_LE(relative_error(reals(forces.at(parameter)), reals(tensor)), kSecondOrder) << name;
      EXPECT_LE(relative_error(reals(both.at(parameter)), moved(reals(tensor), 1.0, reals(energy.at(parameter)))),
                kSecondOrder)
          << name;
      ++checked;
    }
  }
  EXPECT_EQ(checked, 58);
}

TEST(WeightedGradients, HoldEveryParameterInDefinitionOrder) {
  const auto model = filled_model(m2_config());
  const auto expect_all = [&](const Structure& structure) {
    const Graph graph = Graph::from_structure(structure, model->r_max());
    const StateDict got = model->weighted_gradients(graph, {values({1}, 1), {}, {}}, reference());
    const auto parameters = model->named_parameters();
    ASSERT_EQ(got.size(), parameters.size());
    std::size_t i = 0;
    for (const auto& [name, tensor] : got) {
      EXPECT_EQ(name, parameters[i].first);
      EXPECT_EQ(tensor.shape(), parameters[i].second.shape());
      ++i;
    }
  };
  for (const Structure& structure : mixed()) expect_all(structure);
}

class WeightedGradientsOf : public testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<Model> model() const {
    return filled_model(std::string(GetParam()) == "M1" ? m1_config() : m2_config());
  }
};
INSTANTIATE_TEST_SUITE_P(Models, WeightedGradientsOf, testing::Values("M1", "M2"));

TEST_P(WeightedGradientsOf, AreDerivativesByTheParameters) {
  const auto moving = model();
  const std::vector<Structure> structures = mixed();
  const Graph graph = Graph::join(graphs_of(structures, moving->r_max()));
  const GradientWeights weights = all_weights(graph, 7);
  const GradientWeights stress_alone{{}, {}, weights.stresses};
  const StateDict all = moving->weighted_gradients(graph, weights, reference());
  const StateDict stress = moving->weighted_gradients(graph, stress_alone, reference());
  for (const auto& [name, parameter] : moving->named_parameters()) {
    const std::vector<double> base = reals(parameter), way = random_values(parameter.numel(), 3);
    const auto along = [&](const GradientWeights& used) {
      const auto at = [&](double step) {
        set_tensor(*moving, name, moved(base, step, way));
        return weighted_sum(moving->evaluate(graph, reference()), used);
      };
      return derivative(at, 1e-3);
    };
    double size = 0;
    for (const double value : reals(all.at(name))) size += std::abs(value);
    // The rule of five points leaves the fifth derivative times 1e-12, and rounding of M2's sums of order 1e3.
    EXPECT_NEAR(dot(reals(all.at(name)), way), along(weights), 1e-7 * size + 1e-9) << name;
    EXPECT_NEAR(dot(reals(stress.at(name)), way), along(stress_alone), 1e-7 * size + 1e-9) << name;
    set_tensor(*moving, name, base);
  }
}

TEST_P(WeightedGradientsOf, DoNotDependOnWhetherGraphsAreJoinedNorOnTheirOrder) {
  const auto m = model();
  std::vector<Graph> graphs = graphs_of(mixed(), m->r_max());
  const Graph joined = Graph::join(graphs);
  const GradientWeights weights = all_weights(joined, 11);
  std::vector<StateDict> parts;
  for (std::size_t g = 0; g < graphs.size(); ++g) {
    parts.push_back(
        m->weighted_gradients(graphs[g], part_of(weights, joined, static_cast<std::int64_t>(g)), reference()));
  }
  const StateDict all = m->weighted_gradients(joined, weights, reference());
  expect_gradients(all, sum_of(parts), kSecondOrder);

  std::vector<Graph> turned(graphs.rbegin(), graphs.rend());
  std::vector<double> energies, forces, stresses;
  for (std::size_t g = graphs.size(); g-- > 0;) {
    const GradientWeights own = part_of(weights, joined, static_cast<std::int64_t>(g));
    for (const auto& [from, to] :
         {std::pair{&own.energies, &energies}, {&own.forces, &forces}, {&own.stresses, &stresses}}) {
      const std::vector<double> more = reals(*from);
      to->insert(to->end(), more.begin(), more.end());
    }
  }
  const GradientWeights turned_weights{Tensor::from<double>(weights.energies.shape(), energies),
                                       Tensor::from<double>(weights.forces.shape(), forces),
                                       Tensor::from<double>(weights.stresses.shape(), stresses)};
  expect_gradients(m->weighted_gradients(Graph::join(turned), turned_weights, reference()), all, kSecondOrder);
}

TEST_P(WeightedGradientsOf, StandBesideResultsThatTheWeightsDoNotChange) {
  const auto m = model();
  const Graph graph = Graph::join(graphs_of(mixed(), m->r_max()));
  EvaluateOptions options = reference();
  const EvaluationResult plain = m->evaluate(graph, options);
  for (const GradientWeights& weights : {all_weights(graph, 5), GradientWeights{values({5}, 5), {}, {}}}) {
    options.weights = weights;
    const EvaluationResult result = m->evaluate(graph, options);
    EXPECT_LE(relative_error(reals(result.graph_energies), reals(plain.graph_energies)), kRounding);
    EXPECT_LE(relative_error(reals(result.forces), reals(plain.forces)), kRounding);
    EXPECT_LE(relative_error(reals(result.graph_stresses), reals(plain.graph_stresses)), kRounding);
    expect_gradients(result.weighted_gradients, m->weighted_gradients(graph, weights, reference()), kRounding);
  }
}

TEST(WeightedGradients, OfFloat32AreAsCloseAsItsForces) {
  const auto m1 = filled_model(m1_config());
  const Graph graph = Graph::join(graphs_of(mixed(), m1->r_max()));
  const GradientWeights weights = all_weights(graph, 13);
  EvaluateOptions options = reference();
  options.dtype = DType::float32;
  const StateDict got = m1->weighted_gradients(graph, weights, options);
  EXPECT_EQ(got.begin()->second.dtype(), DType::float64);
  expect_gradients(got, m1->weighted_gradients(graph, weights, reference()), 1e-5);
}

TEST(WeightedGradients, RefuseWeightsThatDoNotFitNamingThem) {
  const auto m1 = filled_model(m1_config());
  const Graph graph = Graph::join(graphs_of({system_b(), system_a()}, m1->r_max()));
  const auto refusal = [&](const GradientWeights& weights, const EvaluateOptions& options) {
    try {
      (void)m1->weighted_gradients(graph, weights, options);
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::unsupported);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal({}, reference()), "no weights of a gradient are given");
  EXPECT_EQ(refusal({values({1}, 1), {}, {}}, reference()),
            "weights of energies are float64 [1] on cpu, expected float64 [2] on cpu");
  EXPECT_EQ(refusal({{}, values({5, 3}, 1).to(DType::float32), {}}, reference()),
            "weights of forces are float32 [5, 3] on cpu, expected float64 [5, 3] on cpu");
  EXPECT_EQ(refusal({{}, {}, values({2, 9}, 1)}, reference()),
            "weights of stresses are float64 [2, 9] on cpu, expected float64 [2, 3, 3] on cpu");
  const Tensor stress = Tensor::zeros({2, 3, 3}, DType::float64);
  stress.data<double>()[9] = 0.5;
  EXPECT_EQ(refusal({{}, {}, stress}, reference()),
            "a stress of graph 1 has weight 0.5, but it is not periodic in all three directions: expected 0");
  EvaluateOptions both = reference();
  both.direction = values({5, 3}, 1);
  EXPECT_EQ(refusal({values({2}, 1), {}, {}}, both),
            "both a direction and weights of a gradient are given, expected one");
  EvaluateOptions exchange = reference();
  exchange.exchange = [](ExchangeDirection, std::int64_t, const Tensor&) {};
  EXPECT_EQ(refusal({values({2}, 1), {}, {}}, exchange),
            "gradients of weighted sums are not available under a ghost exchange");
}

TEST(JoinedGraphs, GiveEveryGraphItsOwnResults) {
  for (const Json& config : {m1_config(), m2_config()}) {
    const auto m = filled_model(config);
    const std::vector<Graph> graphs = graphs_of(mixed(), m->r_max());
    const Graph joined = Graph::join(graphs);
    const EvaluationResult together = m->evaluate(joined, reference());
    EXPECT_FALSE(together.stress.has_value());
    double energy = 0;
    std::vector<double> nodes, forces, edges, stresses, virials, energies;
    const auto append = [](std::vector<double>& to, const std::vector<double>& more) {
      to.insert(to.end(), more.begin(), more.end());
    };
    for (const Graph& graph : graphs) {
      const EvaluationResult alone = m->evaluate(graph, reference());
      energy += alone.energy;
      energies.push_back(alone.energy);
      append(nodes, reals(alone.node_energies));
      append(forces, reals(alone.forces));
      append(edges, reals(alone.edge_forces));
      append(stresses, alone.stress ? reals(*alone.stress) : std::vector<double>(9));
      append(virials, reals(alone.virial));
      EXPECT_EQ(reals(alone.graph_energies), std::vector<double>{alone.energy});
      EXPECT_EQ(reals(alone.graph_virials), reals(alone.virial));
      EXPECT_EQ(reals(alone.graph_stresses), alone.stress ? reals(*alone.stress) : std::vector<double>(9));
    }
    EXPECT_NEAR(together.energy, energy, kRounding * std::abs(energy));
    EXPECT_LE(relative_error(reals(together.graph_energies), energies), kRounding);
    EXPECT_LE(relative_error(reals(together.node_energies), nodes), kRounding);
    EXPECT_LE(relative_error(reals(together.forces), forces), kRounding);
    EXPECT_LE(relative_error(reals(together.edge_forces), edges), kRounding);
    EXPECT_LE(relative_error(reals(together.graph_stresses), stresses), kRounding);
    EXPECT_LE(relative_error(reals(together.graph_virials), virials), kRounding);
  }
}

TEST(JoinedGraphs, MayHaveAHeadEach) {
  Json config = small_config();
  config["heads"] = {"first", "second"};
  const auto model = Model::create(config.dump(), 3);
  const std::size_t n_shifts = static_cast<std::size_t>(model->state_dict().at("scale_shift.shift").numel());
  ASSERT_EQ(n_shifts, 2U);
  set_tensor(*model, "scale_shift.shift", {0.5, -0.25});
  set_tensor(*model, "scale_shift.scale", {1.5, 0.75});
  const std::vector<Graph> graphs = graphs_of({system_b(), system_a(), system_b()}, model->r_max());
  const Graph joined = Graph::join(graphs);
  EvaluateOptions options = reference();
  options.heads = {"second", "", "first"};
  const EvaluationResult together = model->evaluate(joined, options);
  options.weights = all_weights(joined, 2);
  const StateDict gradients = model->evaluate(joined, options).weighted_gradients;
  std::vector<StateDict> parts;
  for (std::size_t g = 0; g < graphs.size(); ++g) {
    EvaluateOptions own = reference();
    own.head = options.heads[g];
    const double alone = model->evaluate(graphs[g], own).energy;
    EXPECT_NEAR(reals(together.graph_energies)[g], alone, kRounding * std::abs(alone)) << g;
    parts.push_back(
        model->weighted_gradients(graphs[g], part_of(options.weights, joined, static_cast<std::int64_t>(g)), own));
  }
  expect_gradients(gradients, sum_of(parts), kSecondOrder);
  EXPECT_NE(reals(together.graph_energies)[0], reals(together.graph_energies)[2]);
  options.heads = {"first"};
  EXPECT_THROW((void)model->evaluate(joined, options), Error);
  options.heads = {"first", "third", "first"};
  EXPECT_THROW((void)model->evaluate(joined, options), Error);
}

TEST(JoinedGraphs, NameTheGraphOfAnAtomThatTheModelDoesNotKnow) {
  const auto m1 = filled_model(m1_config());
  Structure iron = system_a();
  iron.atomic_numbers[2] = 26;
  const Graph joined = Graph::join(graphs_of({system_b(), iron}, m1->r_max()));
  try {
    (void)m1->evaluate(joined, reference());
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()), "atom 2 of graph 1 is Fe; the model knows H, O");
  }
}

}  // namespace
}  // namespace fastpath::test
