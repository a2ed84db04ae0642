// The whole model through a plugin: the same numbers, and decisions that say who computed them.
#include <gtest/gtest.h>

#include <cmath>

#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/model.hpp"
#include "fastpath/warning.hpp"

namespace fastpath {
namespace {

const std::string kData = FASTPATH_TEST_DATA "/refdata/mace_a/";

double tensor_error(const Tensor& a, const Tensor& b) {
  const auto x = a.span<double>(), y = b.span<double>();
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) || std::isnan(y[i])) return NAN;
    difference = std::max(difference, std::abs(x[i] - y[i]));
    largest = std::max(largest, std::abs(y[i]));
  }
  return largest > 0 ? difference / largest : difference;
}

class Fast : public testing::TestWithParam<const char*> {
 protected:
  Fast() {
    set_warning_handler([](const FastPathPrecisionWarning&) {});
  }
  ~Fast() override { set_warning_handler({}); }
  static Context& context() {
    static Context instance(
        {.registry = {.search_paths = {FASTPATH_PLUGIN_DIRECTORY}, .default_paths = false, .enable = {"cpu_ref"}}});
    return instance;
  }
  static Model& model() {
    static const auto instance = Model::load(kData + "model");
    return *instance;
  }
  static EvaluateOptions options(UseFast use_fast, DType dtype = DType::float64) {
    EvaluateOptions result;
    result.use_fast = use_fast;
    result.dtype = dtype;
    result.context = &context();
    return result;
  }
  Structure structure() const { return read_extxyz(kData + GetParam() + ".xyz").front(); }
};

TEST_P(Fast, EveryModuleRunsOnThePluginAndAgreesWithTheReference) {
  const EvaluationResult reference = model().evaluate(structure(), options(UseFast::never));
  EvaluateOptions strict = options(UseFast::always);
  strict.require_fast = true;
  const EvaluationResult fast = model().evaluate(structure(), strict);
  for (const Decision& decision : fast.selection.decisions) {
    EXPECT_EQ(decision.choice, decision.op == "message_step" ? "reference" : "cpu_ref") << decision.module;
  }
  EXPECT_EQ(fast.selection.decisions.size(), 21u);
  EXPECT_NEAR(fast.energy, reference.energy, 1e-13 * std::abs(reference.energy));
  EXPECT_LE(tensor_error(fast.forces, reference.forces), 1e-13);
  EXPECT_LE(tensor_error(fast.node_energies, reference.node_energies), 1e-13);
  ASSERT_EQ(fast.stress.has_value(), reference.stress.has_value());
  if (fast.stress) {
    double difference = 0, largest = 0;
    for (std::size_t i = 0; i < 9; ++i) {
      difference = std::max(difference, std::abs((*fast.stress)[i / 3][i % 3] - (*reference.stress)[i / 3][i % 3]));
      largest = std::max(largest, std::abs((*reference.stress)[i / 3][i % 3]));
    }
    EXPECT_LE(difference, 1e-13 * largest);
  }
}

TEST_P(Fast, Float32AgreesWithTheFloat64Reference) {
  const EvaluationResult reference = model().evaluate(structure(), options(UseFast::never));
  const EvaluationResult fast = model().evaluate(structure(), options(UseFast::always, DType::float32));
  EXPECT_TRUE(fast.selection);
  EXPECT_NEAR(fast.energy, reference.energy, 1e-6 * std::abs(reference.energy));
  EXPECT_LE(tensor_error(fast.forces, reference.forces), 1e-5);
}

TEST_P(Fast, AnyNumberOfThreadsGivesTheSameBits) {
  EvaluateOptions one = options(UseFast::always);
  one.threads = 1;
  const EvaluationResult first = model().evaluate(structure(), one);
  for (const int threads : {2, 3}) {
    EvaluateOptions more = options(UseFast::always);
    more.threads = threads;
    const EvaluationResult result = model().evaluate(structure(), more);
    EXPECT_EQ(result.energy, first.energy);
    EXPECT_EQ(tensor_error(result.forces, first.forces), 0.0);
  }
}

INSTANTIATE_TEST_SUITE_P(Structures, Fast, testing::Values("molecule", "triclinic", "water8", "slab", "sparse"),
                         [](const auto& structure) { return std::string(structure.param); });

// A device whose memory no host pointer reaches, and which has no kernel for species_linear: every tensor that crosses
// must be copied explicitly.
TEST_P(Fast, ADeviceWithMemoryOfItsOwnGivesTheSameResults) {
  Context device_context(
      {.registry = {.search_paths = {FASTPATH_TEST_PLUGINS}, .default_paths = false, .enable = {"fake_device"}}});
  const EvaluationResult reference = model().evaluate(structure(), options(UseFast::never));
  for (const DType dtype : {DType::float64, DType::float32}) {
    EvaluateOptions on_device = options(UseFast::always, dtype);
    on_device.context = &device_context;
    on_device.device = {DeviceKind::extension, 0};
    on_device.parameter_gradients = true;
    // Twice: the second evaluation reuses kernels and parameters on the device.
    for (int time = 0; time < 2; ++time) {
      const EvaluationResult result = model().evaluate(structure(), on_device);
      for (const Decision& decision : result.selection.decisions) {
        const bool none = decision.op == "species_linear" || decision.op == "message_step";
        EXPECT_EQ(decision.choice, none ? "reference" : "fake_device") << decision.module;
      }
      EXPECT_NEAR(result.energy, reference.energy,
                  (dtype == DType::float64 ? 1e-13 : 1e-6) * std::abs(reference.energy));
      EXPECT_LE(tensor_error(result.forces, reference.forces), dtype == DType::float64 ? 1e-13 : 1e-5);
      EXPECT_EQ(result.parameter_gradients.size(), 29u);
    }
  }
  // auto follows the policy on a device: below the threshold everything runs the reference.
  EvaluateOptions automatic = options(UseFast::automatic);
  automatic.context = &device_context;
  automatic.device = {DeviceKind::extension, 0};
  const EvaluationResult result = model().evaluate(structure(), automatic);
  EXPECT_FALSE(result.selection);
  EXPECT_EQ(result.selection.decisions[0].reason.code, ReasonCode::policy_default);
  EXPECT_EQ(result.energy, reference.energy);
}

class FastModel : public Fast {};
INSTANTIATE_TEST_SUITE_P(Structures, FastModel, testing::Values("molecule"),
                         [](const auto& structure) { return std::string(structure.param); });

TEST_P(FastModel, ParameterGradientsAgreeWithTheReference) {
  EvaluateOptions fast = options(UseFast::always), reference = options(UseFast::never);
  fast.parameter_gradients = reference.parameter_gradients = true;
  const EvaluationResult a = model().evaluate(structure(), fast), b = model().evaluate(structure(), reference);
  EXPECT_TRUE(a.selection);
  EXPECT_EQ(a.parameter_gradients.size(), 29u);
  for (const auto& [name, tensor] : b.parameter_gradients) {
    EXPECT_LE(tensor_error(a.parameter_gradients.at(name), tensor), 1e-12) << name;
  }
}

TEST_P(FastModel, DerivativesAlongADirectionRunTheReferenceAndSayWhichPassIsMissing) {
  Context without(
      {.registry = {.search_paths = {FASTPATH_TEST_PLUGINS}, .default_paths = false, .enable = {"fake_device"}}});
  EvaluateOptions along = options(UseFast::always);
  along.context = &without;
  along.device = {DeviceKind::extension, 0};
  along.direction = Tensor::zeros({structure().size(), 3}, DType::float64);
  along.direction.data<double>()[0] = 1.0;
  const EvaluationResult result = model().evaluate(structure(), along);
  EXPECT_FALSE(result.selection);
  ASSERT_FALSE(result.selection.decisions[0].candidates.empty());
  EXPECT_EQ(result.selection.decisions[0].candidates[0].reasons[0].code, ReasonCode::pass);
}

TEST_P(FastModel, GradientsOfForcesRunTheReferenceWhereAPassIsMissingAndThoseOfEnergiesDoNot) {
  Context without(
      {.registry = {.search_paths = {FASTPATH_TEST_PLUGINS}, .default_paths = false, .enable = {"fake_device"}}});
  EvaluateOptions weighted = options(UseFast::always);
  weighted.context = &without;
  weighted.device = {DeviceKind::extension, 0};
  weighted.forces = weighted.stress = false;
  const Graph graph = Graph::from_structure(structure(), model().r_max());
  const Tensor energy = Tensor::from<double>({1}, {1.5}), forces = Tensor::zeros({graph.n_nodes(), 3}, DType::float64);
  double value = 0.3;
  for (double& component : forces.span<double>()) component = value = std::sin(7 * value + 1);
  for (const bool of_forces : {true, false}) {
    weighted.weights = {energy, of_forces ? forces : Tensor(), {}};
    const EvaluationResult result = model().evaluate(graph, weighted);
    EXPECT_EQ(result.selection.any_fast(), !of_forces);
    if (of_forces) {
      for (const Decision& decision : result.selection.decisions) {
        for (const Candidate& candidate : decision.candidates) {
          ASSERT_FALSE(candidate.reasons.empty()) << decision.module;
          EXPECT_EQ(candidate.reasons[0].code, ReasonCode::pass) << decision.module;
        }
      }
    }
    const StateDict want = model().weighted_gradients(graph, weighted.weights, options(UseFast::never));
    ASSERT_EQ(result.weighted_gradients.size(), want.size());
    for (const auto& [name, tensor] : want) {
      EXPECT_LE(tensor_error(result.weighted_gradients.at(name), tensor), 1e-11) << name;
    }
  }
}

/// Asks for parameter gradients and for derivatives of everything along a direction of the positions.
void ask_for_tangents(EvaluateOptions& options, const Structure& structure) {
  options.parameter_gradients = true;
  options.direction = Tensor::zeros({structure.size(), 3}, DType::float64);
  double value = 0.3;
  for (double& component : options.direction.span<double>()) component = value = std::sin(7 * value + 1);
}
void expect_tangents_agree(const EvaluationResult& a, const EvaluationResult& b, double tolerance) {
  EXPECT_LE(tensor_error(a.forces, b.forces), tolerance);
  EXPECT_LE(tensor_error(a.forces_tangent, b.forces_tangent), tolerance);
  ASSERT_EQ(a.parameter_gradients.size(), b.parameter_gradients.size());
  ASSERT_EQ(a.parameter_gradients_tangent.size(), b.parameter_gradients_tangent.size());
  for (const auto& [name, tensor] : b.parameter_gradients) {
    EXPECT_LE(tensor_error(a.parameter_gradients.at(name).to(DType::float64), tensor), tolerance) << name;
  }
  for (const auto& [name, tensor] : b.parameter_gradients_tangent) {
    EXPECT_LE(tensor_error(a.parameter_gradients_tangent.at(name).to(DType::float64), tensor), tolerance) << name;
  }
}

// The plugin refuses what another pass of forward has saved. Steps before the first interaction depend on species only:
// they have no tangent in forward, and one in backward.
TEST_P(FastModel, EveryPassOfBackwardGetsWhatItsOwnForwardHasSaved) {
  Context tangents({.registry = {.search_paths = {FASTPATH_TANGENTS}, .default_paths = false}});
  for (const DType dtype : {DType::float64, DType::float32}) {
    EvaluateOptions fast = options(UseFast::always, dtype), reference = options(UseFast::never);
    fast.context = &tangents;
    for (EvaluateOptions* along : {&fast, &reference}) ask_for_tangents(*along, structure());
    const EvaluationResult a = model().evaluate(structure(), fast), b = model().evaluate(structure(), reference);
    for (const Decision& decision : a.selection.decisions) {
      EXPECT_EQ(decision.choice, decision.op == "irreps_linear" ? "tangents" : "reference") << decision.module;
    }
    expect_tangents_agree(a, b, dtype == DType::float64 ? 1e-12 : 2e-5);
  }
}

// Minus a Hessian times a vector, and what a force loss gives the parameters, by kernels alone.
TEST_P(FastModel, DerivativesAlongADirectionComeFromThePluginToo) {
  for (const DType dtype : {DType::float64, DType::float32}) {
    EvaluateOptions fast = options(UseFast::always, dtype), reference = options(UseFast::never);
    fast.require_fast = true;
    for (EvaluateOptions* along : {&fast, &reference}) ask_for_tangents(*along, structure());
    const EvaluationResult a = model().evaluate(structure(), fast), b = model().evaluate(structure(), reference);
    for (const Decision& decision : a.selection.decisions) {
      EXPECT_EQ(decision.choice, decision.op == "message_step" ? "reference" : "cpu_ref") << decision.module;
    }
    expect_tangents_agree(a, b, dtype == DType::float64 ? 1e-12 : 2e-5);
  }
}

TEST_P(FastModel, StrictModeWithoutPluginsListsEveryModule) {
  Context empty({.registry = {.search_paths = {}, .default_paths = false}});
  EvaluateOptions strict = options(UseFast::always);
  strict.context = &empty;
  strict.require_fast = true;
  try {
    (void)model().evaluate(structure(), strict);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::strict_violation);
    EXPECT_NE(std::string(error.what()).find("products.1.symmetric_contractions"), std::string::npos);
  }
}

TEST_P(FastModel, TheCpuOfAPluginIsTheOneOfTheMachine) {
  std::vector<PluginInfo> plugins = context().registry().plugins();
  std::erase_if(plugins, [](const PluginInfo& plugin) { return plugin.id != "cpu_ref"; });
  ASSERT_EQ(plugins.size(), 1u);
  ASSERT_EQ(plugins[0].devices.size(), 1u);
  EXPECT_EQ(plugins[0].devices[0].name, cpu_info().name);
  EXPECT_EQ(plugins[0].devices[0].arch, cpu_info().arch);
}

TEST_P(FastModel, AMissingDeviceIsNamedWithWhatIsThere) {
  EvaluateOptions elsewhere = options(UseFast::always);
  elsewhere.device = {DeviceKind::cuda, 3};
  try {
    (void)model().evaluate(structure(), elsewhere);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_NE(std::string(error.what()).find("cuda:3"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("cpu"), std::string::npos);
  }
  elsewhere.use_fast = UseFast::never;
  try {
    (void)model().evaluate(structure(), elsewhere);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  }
}

}  // namespace
}  // namespace fastpath
