// A host's own graph: its edge lists, its ghosts, and its ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "fastpath/error.hpp"
#include "fastpath/plugin.h"
#include "fastpath/warning.hpp"
#include "support/domains.hpp"
#include "support/lying_plugin.hpp"

namespace fastpath::test {
namespace {

// Sums over edges in another order, and positions of images formed in another way.
constexpr double kRounding = 1e-12;

/// Four layers of everything that travels between atoms.
std::shared_ptr<Model> deep_model() {
  Json config = small_config();
  config.update({{"num_interactions", 4},
                 {"r_max", 2.6},
                 {"avg_num_neighbors", 5.0},
                 {"interaction_first", "RealAgnosticDensityResidualInteractionBlock"},
                 {"interaction", "RealAgnosticDensityResidualInteractionBlock"},
                 {"pair_repulsion", true}});
  return Model::create(config.dump(), 7);
}
Structure crystal() { return repeated(system_b(), 3, 2, 1); }

std::vector<int> alternating(const Structure& structure, int n_ranks) {
  std::vector<int> ranks;
  for (std::int64_t n = 0; n < structure.size(); ++n) ranks.push_back(static_cast<int>(n % n_ranks));
  return ranks;
}
/// By planes of constant first coordinate, as a host would.
std::vector<int> slabs(const Structure& structure, int n_ranks) {
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t n = 0; n < structure.positions.size(); ++n) order.emplace_back(structure.positions[n][0], n);
  std::sort(order.begin(), order.end());
  std::vector<int> ranks(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    ranks[order[i].second] = static_cast<int>(i * static_cast<std::size_t>(n_ranks) / order.size());
  }
  return ranks;
}

void expect_same(const Reduced& found, const EvaluationResult& want, double tolerance = kRounding) {
  EXPECT_NEAR(found.energy, want.energy, tolerance * std::abs(want.energy));
  EXPECT_LE(relative_error(found.node_energies, reals(want.node_energies)), tolerance);
  EXPECT_LE(relative_error(found.forces, reals(want.forces)), tolerance);
  EXPECT_LE(relative_error(found.virial, reals(want.virial)), tolerance);
}

TEST(MaceHostEdges, AnUnsortedListOfEitherIntegerTypeGivesTheSame) {
  const Structure structure = mace_a_structure("triclinic");
  const Graph own = Graph::from_structure(structure, mace_a()->r_max());
  const EvaluationResult want = mace_a()->evaluate(own, reference());
  std::vector<std::int64_t> order(static_cast<std::size_t>(own.n_edges()));
  for (std::size_t e = 0; e < order.size(); ++e) order[e] = static_cast<std::int64_t>(e);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(2));
  std::vector<std::int64_t> sender, receiver;
  std::vector<double> shift;
  for (const std::int64_t e : order) {
    sender.push_back(own.sender().data<std::int32_t>()[e]);
    receiver.push_back(own.receiver().data<std::int32_t>()[e]);
    for (std::int64_t k = 0; k < 3; ++k) shift.push_back(own.shift().data<double>()[3 * e + k]);
  }
  HostEdges host;
  host.atomic_numbers = structure.atomic_numbers;
  host.positions = {structure.positions[0].data(), structure.positions.size() * 3};
  host.shift = Tensor::from<double>({own.n_edges(), 3}, shift);
  host.cell = structure.cell;
  for (const DType dtype : {DType::int32, DType::int64}) {
    host.sender = Tensor::from<std::int64_t>({own.n_edges()}, sender).to(dtype);
    host.receiver = Tensor::from<std::int64_t>({own.n_edges()}, receiver).to(dtype);
    const EvaluationResult found = mace_a()->evaluate(Graph::from_edges(host), reference());
    // The canonical order makes the sums the same, to the bit.
    EXPECT_EQ(found.energy, want.energy);
    EXPECT_EQ(reals(found.forces), reals(want.forces));
    EXPECT_EQ(reals(found.edge_forces), reals(want.edge_forces));
    EXPECT_EQ(reals(found.stress.value()), reals(want.stress.value()));
  }
}

TEST(MaceExchange, TwoRanksGiveTheResultOfOne) {
  for (const char* name : {"water8", "triclinic", "molecule"}) {
    SCOPED_TRACE(name);
    const Structure structure = mace_a_structure(name);
    const Graph whole = Graph::from_structure(structure, mace_a()->r_max());
    const EvaluationResult want = mace_a()->evaluate(whole, reference());
    for (const std::vector<int>& rank_of : {alternating(structure, 2), slabs(structure, 2)}) {
      const std::vector<Domain> split = domains(structure, whole, rank_of, 2);
      Ranks ranks(split, static_cast<std::size_t>(structure.size()));
      expect_same(ranks.evaluate(*mace_a(), reference()), want);
      // One exchange: features into the second layer, gradients back.
      using testing::ElementsAre;
      using testing::Pair;
      for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
        EXPECT_THAT(ranks.calls(rank),
                    ElementsAre(Pair(ExchangeDirection::forward, 1), Pair(ExchangeDirection::backward, 1)));
      }
    }
  }
}

TEST(MaceExchange, FourLayersOverThreeRanksGiveTheResultOfOne) {
  const auto model = deep_model();
  const Structure structure = crystal();
  const Graph whole = Graph::from_structure(structure, model->r_max());
  const std::vector<Domain> split = domains(structure, whole, slabs(structure, 3), 3);
  Ranks ranks(split, static_cast<std::size_t>(structure.size()));
  expect_same(ranks.evaluate(*model, reference()), model->evaluate(whole, reference()));
  EXPECT_EQ(ranks.calls(0).size(), 6u);
}

TEST(MaceExchange, WorksInFloat32) {
  const Structure structure = mace_a_structure("water8");
  const Graph whole = Graph::from_structure(structure, mace_a()->r_max());
  EvaluateOptions options = reference();
  options.dtype = DType::float32;
  const std::vector<Domain> split = domains(structure, whole, slabs(structure, 2), 2);
  Ranks ranks(split, static_cast<std::size_t>(structure.size()));
  const Reduced found = ranks.evaluate(*mace_a(), options);
  expect_same(found, mace_a()->evaluate(whole, options), 1e-5);
}

TEST(MaceExchange, ARankWithoutAtomsOfItsOwnTakesPart) {
  const Structure structure = mace_a_structure("water8");
  const Graph whole = Graph::from_structure(structure, mace_a()->r_max());
  const std::vector<int> rank_of(static_cast<std::size_t>(structure.size()), 1);  // all on the second rank
  const std::vector<Domain> split = domains(structure, whole, rank_of, 3);
  ASSERT_EQ(split[0].n_local, 0);
  Ranks ranks(split, static_cast<std::size_t>(structure.size()));
  expect_same(ranks.evaluate(*mace_a(), reference()), mace_a()->evaluate(whole, reference()));
  EXPECT_EQ(ranks.calls(0), ranks.calls(1));
}

TEST(MaceExchange, ARankOfIsolatedAtomsTakesPart) {
  Structure structure = mace_a_structure("molecule");
  structure.atomic_numbers.push_back(8);
  structure.positions.push_back({100, 0, 0});
  const Graph whole = Graph::from_structure(structure, mace_a()->r_max());
  std::vector<int> rank_of(structure.positions.size(), 0);
  rank_of.back() = 1;
  const std::vector<Domain> split = domains(structure, whole, rank_of, 2);
  Ranks ranks(split, structure.positions.size());
  expect_same(ranks.evaluate(*mace_a(), reference()), mace_a()->evaluate(whole, reference()));
  EXPECT_EQ(ranks.calls(0), ranks.calls(1));
}

TEST(MaceExchange, WithoutItAHaloOfAllLayersGivesTheSame) {
  const auto check = [](Model& model, const Structure& structure) {
    const Graph whole = Graph::from_structure(structure, model.r_max());
    const double halo = model.r_max() * model.num_interactions();
    const std::vector<Domain> split = domains_with_halo(structure, model.r_max(), halo, slabs(structure, 2), 2);
    Reduced total;
    total.node_energies.resize(structure.positions.size());
    total.forces.resize(3 * structure.positions.size());
    for (const Domain& domain : split) reduce(domain, model.evaluate(domain.graph(), reference()), total);
    expect_same(total, model.evaluate(whole, reference()));
  };
  check(*mace_a(), mace_a_structure("triclinic"));
  Json config = small_config();
  config["r_max"] = 2.6;
  check(*Model::create(config.dump(), 4), crystal());
}

TEST(MaceExchange, AnEdgeIntoAGhostIsRefused) {
  Domain domain;
  domain.atomic_numbers = {8, 1};
  domain.positions = {{0, 0, 0}, {1, 0, 0}};
  domain.n_local = 1;
  domain.owner = {0, 1};
  domain.sender = {0, 1};
  domain.receiver = {1, 0};
  EvaluateOptions options = reference();
  options.exchange = [](ExchangeDirection, std::int64_t, const Tensor&) {};
  try {
    (void)mace_a()->replica()->evaluate(domain.graph(), options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), testing::HasSubstr("receiver 1"));
  }
}

TEST(MaceExchange, DerivativesAlongADirectionAreRefused) {
  EvaluateOptions options = reference();
  options.direction = Tensor::zeros({3, 3}, DType::float64);
  options.exchange = [](ExchangeDirection, std::int64_t, const Tensor&) {};
  try {
    (void)mace_a()->replica()->evaluate(system_a(), options);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
  }
}

TEST(MaceExchange, AnErrorOfTheCallbackReachesTheHostAndLeavesTheModelUsable) {
  const Structure structure = mace_a_structure("molecule");
  const Graph whole = Graph::from_structure(structure, mace_a()->r_max());
  const std::vector<Domain> split = domains(structure, whole, alternating(structure, 2), 2);
  const auto model = mace_a()->replica();
  EvaluateOptions options = reference();
  struct Lost {};
  options.exchange = [](ExchangeDirection, std::int64_t, const Tensor&) { throw Lost(); };
  EXPECT_THROW((void)model->evaluate(split[0].graph(), options), Lost);
  EXPECT_EQ(model->evaluate(whole, reference()).energy, mace_a()->evaluate(whole, reference()).energy);
}

// ---- A kernel that fails while other ranks wait

struct HalfWay {
  const char* name;
  Lie lie;
  Pass pass;
  const char* op;
  int later;  // fails in this call of the op, not in the first
  bool on_device;
  std::int32_t status;
};

class MaceExchangeFailing : public testing::TestWithParam<HalfWay> {
 protected:
  MaceExchangeFailing() {
    set_kernel_warning_handler([](const FastPathKernelWarning&) {});
  }
  ~MaceExchangeFailing() override { set_kernel_warning_handler({}); }
};

TEST_P(MaceExchangeFailing, TheReferenceDoesTheStepAndNoExchangeIsMissedOrRepeated) {
  const HalfWay& c = GetParam();
  Liar liar{.lie = c.lie, .status = c.status, .failing_pass = c.pass, .only_op = c.op, .from_run = 1 << 30};
  const auto inner = c.on_device ? real_plugin(FASTPATH_TEST_PLUGINS, "fake_device", DeviceKind::extension)
                                 : real_plugin(FASTPATH_PLUGIN_DIRECTORY, "cpu_ref");
  const Device device = c.on_device ? Device{DeviceKind::extension, 0} : Device::cpu();
  Context context(
      {.shared_registry = std::make_shared<PluginRegistry>(std::make_unique<GivenPlugins>(
           std::vector<std::shared_ptr<plugin::LoadedPlugin>>{std::make_shared<LyingPlugin>(inner, liar)}))});
  const Structure structure = mace_a_structure("water8");
  const Graph whole = Graph::from_structure(structure, mace_a()->r_max());
  EvaluateOptions options = reference();
  options.parameter_gradients = true;
  const EvaluationResult want = mace_a()->evaluate(whole, options);
  const std::vector<Domain> split = domains(structure, whole, slabs(structure, 2), 2);
  Ranks ranks(split, static_cast<std::size_t>(structure.size()));
  // The first rank has the kernel that fails, the other one runs the reference.
  const auto evaluate = [&] {
    return ranks.evaluate(*mace_a(), options, [&](std::size_t rank, EvaluateOptions& used) {
      if (rank != 0) return;
      used.use_fast = UseFast::always;
      used.context = &context;
      used.device = device;
    });
  };
  expect_same(evaluate(), want);
  ASSERT_TRUE(ranks.result(0).selection);
  std::map<std::string, Tensor> gradients;
  for (const auto& [name, tensor] : ranks.result(0).parameter_gradients) gradients[name] = tensor.clone();
  const auto of_op = [&](const Decision& decision) { return decision.op == c.op; };

  liar.from_run = liar.runs + c.later;
  expect_same(evaluate(), want);
  int failed = 0;
  for (const Decision& decision : ranks.result(0).selection.decisions) {
    if (decision.reason.code == ReasonCode::fallback) {
      ++failed;
      EXPECT_TRUE(of_op(decision)) << decision.module;
      EXPECT_EQ(decision.choice, "reference");
      EXPECT_EQ(decision.candidates[0].verdict, Candidate::Verdict::refused);
    } else if (!of_op(decision) && decision.op != "message_step" && !(c.on_device && decision.op == "species_linear")) {
      EXPECT_TRUE(decision.fast()) << decision.module;  // the rest goes on
    }
  }
  EXPECT_GE(failed, 1);
  for (const auto& [name, tensor] : ranks.result(0).parameter_gradients) {
    EXPECT_LE(relative_error(reals(tensor), reals(gradients.at(name))), kRounding) << name;
  }
  using testing::ElementsAre;
  using testing::Pair;
  for (const std::size_t rank : {std::size_t{0}, std::size_t{1}}) {
    EXPECT_THAT(ranks.calls(rank),
                ElementsAre(Pair(ExchangeDirection::forward, 1), Pair(ExchangeDirection::backward, 1)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Points, MaceExchangeFailing,
    testing::Values(
        HalfWay{"FirstLayer", Lie::fails, Pass::forward, "conv_tensor_product", 0, false, FP_E_BUSY},
        HalfWay{"AfterTheExchange", Lie::fails, Pass::forward, "conv_tensor_product", 1, false, FP_E_OUT_OF_MEMORY},
        HalfWay{"Backward", Lie::fails, Pass::backward, "conv_tensor_product", 0, false, FP_E_UNSUPPORTED},
        HalfWay{"BackwardAfterTheExchange", Lie::fails, Pass::backward, "conv_tensor_product", 3, false, FP_E_BUSY},
        HalfWay{"HalfWritten", Lie::zeros_when_busy, Pass::forward, "symmetric_contraction", 0, false, FP_E_BUSY},
        HalfWay{"HalfWrittenGradients", Lie::zeros_when_busy, Pass::backward, "irreps_linear", 0, false, FP_E_BUSY},
        HalfWay{"ForwardOnADevice", Lie::fails, Pass::forward, "conv_tensor_product", 1, true, FP_E_BUSY},
        HalfWay{"BackwardOnADevice", Lie::fails, Pass::backward, "conv_tensor_product", 0, true, FP_E_OUT_OF_MEMORY},
        HalfWay{"LinearBackwardOnADevice", Lie::fails, Pass::backward, "irreps_linear", 0, true, FP_E_BUSY},
        // One that adds gradients, when the step whose gradients they are has been done.
        HalfWay{"SumOfGradientsOnADevice", Lie::fails, Pass::forward, "sum", 1, true, FP_E_OUT_OF_MEMORY}),
    [](const auto& point) { return std::string(point.param.name); });

TEST(MaceReplica, ThreadsOnReplicasGetIdenticalResults) {
  const std::vector<std::string> names{"molecule", "triclinic", "water8", "slab", "sparse"};
  std::vector<EvaluationResult> want;
  for (const std::string& name : names) want.push_back(mace_a()->evaluate(mace_a_structure(name), reference()));
  std::vector<std::vector<EvaluationResult>> found(2);
  {
    std::vector<std::jthread> threads;
    for (auto& results : found) {
      threads.emplace_back([&results, &names, model = mace_a()->replica()] {
        for (const std::string& name : names) results.push_back(model->evaluate(mace_a_structure(name), reference()));
      });
    }
  }
  for (const auto& results : found) {
    ASSERT_EQ(results.size(), names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(results[i].energy, want[i].energy);
      EXPECT_EQ(reals(results[i].forces), reals(want[i].forces));
    }
  }
}

TEST(MaceReplica, IsMadeInAnyThreadWhileTheModelIsEvaluated) {
  const auto model = Model::create(small_config().dump(), 6);
  std::vector<double> energies(3);
  {
    std::latch start(static_cast<std::ptrdiff_t>(energies.size()) + 1);
    std::vector<std::jthread> threads;
    for (double& energy : energies) {
      threads.emplace_back([&energy, &model, &start] {
        start.arrive_and_wait();
        energy = model->replica()->evaluate(system_b(), reference()).energy;
      });
    }
    start.arrive_and_wait();
    (void)model->evaluate(system_b(), reference());
    threads.clear();
  }
  for (const double energy : energies) EXPECT_EQ(energy, model->evaluate(system_b(), reference()).energy);
}

TEST(MaceReplica, TheNumberOfThreadsChangesNoBit) {
  EvaluateOptions one = reference(), many = reference();
  one.threads = 1;
  many.threads = 5;
  for (const DType dtype : {DType::float64, DType::float32}) {
    one.dtype = many.dtype = dtype;
    const EvaluationResult a = mace_a()->evaluate(mace_a_structure("slab"), one),
                           b = mace_a()->evaluate(mace_a_structure("slab"), many);
    EXPECT_EQ(a.energy, b.energy);
    EXPECT_EQ(reals(a.forces), reals(b.forces));
  }
}

TEST(MaceReplica, SharesParametersAndSeesTheirChange) {
  const auto model = Model::create(small_config().dump(), 5);
  const auto copy = model->replica();
  EXPECT_EQ(model->state_dict().at("interactions.0.linear.weight").raw(),
            copy->state_dict().at("interactions.0.linear.weight").raw());
  const double before = copy->evaluate(system_b(), reference()).energy;
  set_tensor(*model, "interactions.0.linear.weight",
             random_values(model->state_dict().at("interactions.0.linear.weight").numel(), 2));
  const double after = model->evaluate(system_b(), reference()).energy;
  EXPECT_NE(after, before);
  EXPECT_EQ(copy->evaluate(system_b(), reference()).energy, after);
}

TEST(MaceReplica, SeesOtherConstantsAndOtherParametersOfWhatIsNoOpInEveryDtype) {
  const auto model = Model::create(m2_config().dump(), 5);
  const auto copy = model->replica();
  Structure close = system_a();  // enough for pairs to repel each other
  for (Vec3& position : close.positions) {
    for (double& x : position) x *= 0.4;
  }
  EvaluateOptions in_float32 = reference();
  in_float32.dtype = DType::float32;
  for (const char* name :
       {"node_embedding.linear.weight", "interactions.0.density_fn.layer0.weight",
        "radial_embedding.bessel_fn.prefactor", "radial_embedding.bessel_fn.bessel_weights",
        "products.0.symmetric_contractions.contractions.0.U_matrix_2", "pair_repulsion_fn.a_prefactor"}) {
    SCOPED_TRACE(name);
    for (const EvaluateOptions& options : {reference(), in_float32}) {
      const double before = copy->evaluate(close, options).energy;
      StateDict changed;
      const Tensor values = model->state_dict().at(name).clone();
      for (double& value : values.span<double>()) value *= 1.25;
      changed.add(name, values);
      model->load_state_dict(changed, Strictness::lenient);
      const double after = model->evaluate(close, options).energy;
      EXPECT_NE(after, before);
      EXPECT_EQ(copy->evaluate(close, options).energy, after);
    }
  }
}

}  // namespace
}  // namespace fastpath::test
