// Many structures in one call.
#include <gtest/gtest.h>

#include <utility>

#include "fastpath/error.hpp"
#include "support/mace_models.hpp"

namespace fastpath::test {
namespace {

constexpr double kRounding = 1e-12;

std::shared_ptr<Model> m1() {
  static const auto model = filled_model(m1_config());
  return model;
}
/// Crystals and molecules in turn, each a little different, and an empty structure.
std::vector<Structure> many(int n) {
  std::vector<Structure> structures;
  for (int i = 0; i < n; ++i) {
    Structure s = i % 3 == 0 ? system_b() : system_a();
    const auto seed = static_cast<std::uint64_t>(i + 1);
    structures.push_back(displaced(s, 0.05, random_values(3 * s.size(), seed)));
  }
  structures.insert(structures.begin() + n / 2, Structure());
  return structures;
}

void expect_same(const EvaluationResult& got, const EvaluationResult& want) {
  EXPECT_NEAR(got.energy, want.energy, kRounding * std::abs(want.energy));
  EXPECT_LE(relative_error(reals(got.node_energies), reals(want.node_energies)), kRounding);
  ASSERT_EQ(got.forces.defined(), want.forces.defined());
  if (want.forces.defined()) {
    EXPECT_LE(relative_error(reals(got.forces), reals(want.forces)), kRounding);
  }
  ASSERT_EQ(got.edge_forces.defined(), want.edge_forces.defined());
  if (want.edge_forces.defined()) {
    EXPECT_LE(relative_error(reals(got.edge_forces), reals(want.edge_forces)), kRounding);
    EXPECT_LE(relative_error(reals(got.virial), reals(want.virial)), kRounding);
  }
  ASSERT_EQ(got.stress.has_value(), want.stress.has_value());
  if (want.stress) {
    EXPECT_LE(relative_error(reals(*got.stress), reals(*want.stress)), kRounding);
  }
  EXPECT_EQ(got.n_atoms, want.n_atoms);
  EXPECT_EQ(got.n_edges, want.n_edges);
  EXPECT_EQ(got.selection.decisions.size(), want.selection.decisions.size());
}

TEST(ManyStructures, GiveWhatEachGivesAloneInTheirOrder) {
  const std::vector<Structure> structures = many(12);
  for (const bool forces : {true, false}) {
    EvaluateOptions options = reference();
    options.forces = options.stress = forces;
    std::vector<std::size_t> told;
    const std::vector<EvaluationResult> results =
        m1()->evaluate(structures, options, [&](std::size_t i, EvaluationResult&) { told.push_back(i); });
    ASSERT_EQ(results.size(), structures.size());
    for (std::size_t i = 0; i < structures.size(); ++i) {
      SCOPED_TRACE(i);
      EXPECT_EQ(told.at(i), i);
      EXPECT_EQ(results[i].n_joined, static_cast<std::int64_t>(structures.size()));
      EXPECT_GE(results[i].seconds, 0);
      expect_same(results[i], m1()->evaluate(structures[i], options));
    }
  }
  EXPECT_TRUE(m1()->evaluate(std::vector<Structure>(), reference()).empty());
}

TEST(ManyStructures, AreJoinedOnlyAsFarAsMemoryGoes) {
  const std::vector<Structure> structures = many(12);
  EvaluateOptions options = reference();
  // What three crystals need.
  const Graph crystal = Graph::from_structure(system_b(), m1()->r_max());
  const std::uint64_t need =
      m1()->memory_estimate(ProblemSize{3 * crystal.n_edges(), 3 * crystal.n_nodes()}, options).workspace_bytes;
  for (const bool by_limit : {false, true}) {
    options.batch_memory = by_limit ? 0 : need;
    options.memory_limit = by_limit ? need : 0;
    const std::vector<EvaluationResult> results = m1()->evaluate(structures, options);
    std::int64_t most = 0;
    for (std::size_t i = 0; i < results.size();) {
      std::int64_t n_edges = 0, n_nodes = 0;
      const auto n_joined = static_cast<std::size_t>(results[i].n_joined);
      for (std::size_t k = i; k < i + n_joined; ++k) {
        EXPECT_EQ(static_cast<std::size_t>(results.at(k).n_joined), n_joined);
        n_edges += results[k].n_edges;
        n_nodes += results[k].n_atoms;
      }
      EXPECT_LE(m1()->memory_estimate(ProblemSize{n_edges, n_nodes}, options).workspace_bytes, need);
      most = std::max(most, results[i].n_joined);
      i += n_joined;
    }
    EXPECT_GT(most, 1);
    EXPECT_LT(most, static_cast<std::int64_t>(structures.size()));
    for (std::size_t i = 0; i < structures.size(); ++i) {
      expect_same(results[i], m1()->evaluate(structures[i], reference()));
    }
  }
  options.batch_memory = 1;
  for (const EvaluationResult& result : m1()->evaluate(structures, options)) EXPECT_EQ(result.n_joined, 1);
}

TEST(ManyStructures, HaveTheHeadsOfTheirFrames) {
  Json config = small_config();
  config["heads"] = {"first", "second"};
  const auto model = Model::create(config.dump(), 3);
  set_tensor(*model, "scale_shift.shift", {0.5, -0.25});
  std::vector<Structure> structures = many(4);
  structures[1].set_info("head", std::vector<std::string>{"second"});
  const std::vector<EvaluationResult> results = model->evaluate(structures, reference());
  EXPECT_EQ(results[0].n_joined, 5);
  for (std::size_t i = 0; i < structures.size(); ++i) {
    expect_same(results[i], model->evaluate(structures[i], reference()));
  }
  EvaluateOptions second = reference();
  second.head = "second";
  expect_same(model->evaluate(structures, second)[0], model->evaluate(structures[0], second));
}

class WrongStructure : public testing::Test {
 protected:
  /// The error of evaluating a list in which structure 4 is wrong.
  void expect_error(const Structure& wrong, ErrorCode code, const std::string& cause,
                    const EvaluateOptions& options = reference()) {
    std::vector<Structure> structures = many(8);
    structures[4] = wrong;
    std::size_t n_told = 0;
    try {
      (void)m1()->evaluate(structures, options, [&](std::size_t, EvaluationResult&) { ++n_told; });
      ADD_FAILURE() << "accepted";
    } catch (const StructureError& error) {
      EXPECT_EQ(error.structure(), 4U);
      EXPECT_EQ(error.code(), code);
      EXPECT_EQ(error.cause().substr(0, cause.size()), cause);
      EXPECT_EQ(std::string(error.what()), "structure 4: " + error.cause());
    }
  }
};

TEST_F(WrongStructure, IsNamedWhereItsNeighboursAreNotThereYet) {
  Structure touching = system_a();
  touching.positions[1] = touching.positions[0];
  expect_error(touching, ErrorCode::invalid_argument, "atom");
  Structure heads = system_a();
  heads.set_info("head", std::vector<double>{0.5});
  expect_error(heads, ErrorCode::invalid_argument, "head= of the structure is not one name");
}

TEST_F(WrongStructure, IsNamedWhereItIsFoundInAJoinedGraph) {
  Structure iron = system_a();
  iron.atomic_numbers[2] = 26;
  expect_error(iron, ErrorCode::invalid_argument, "atom 2 is Fe; the model knows H, O");
  Structure head = system_a();
  head.set_info("head", std::vector<std::string>{"other"});
  expect_error(head, ErrorCode::invalid_argument, "head 'other' is unknown");
}

TEST_F(WrongStructure, ThatIsTooLargeIsNamed) {
  EvaluateOptions options = reference();
  const Graph crystal = Graph::from_structure(system_b(), m1()->r_max());
  options.memory_limit =
      m1()->memory_estimate(ProblemSize{2 * crystal.n_edges(), 2 * crystal.n_nodes()}, options).workspace_bytes;
  expect_error(repeated(system_b(), 3, 3, 3), ErrorCode::out_of_memory, "54 atoms with 756 edges need", options);
}

TEST(ManyStructures, RefuseOptionsThatMeanOne) {
  const auto expect_refused = [](const EvaluateOptions& options, const std::string& word) {
    try {
      (void)m1()->evaluate(many(2), options);
      ADD_FAILURE() << "accepted " << word;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  };
  EvaluateOptions options = reference();
  options.direction = Tensor::zeros({2, 3}, DType::float64);
  expect_refused(options, "a direction");
  options = reference();
  options.weights.energies = Tensor::zeros({2}, DType::float64);
  expect_refused(options, "weights");
  options = reference();
  options.parameter_gradients = true;
  expect_refused(options, "gradients by parameters");
  options = reference();
  options.heads = {"default"};
  expect_refused(options, "heads");
  options = reference();
  options.exchange = [](ExchangeDirection, std::int64_t, const Tensor&) {};
  expect_refused(options, "exchange");
}

}  // namespace
}  // namespace fastpath::test
