// Hessians and gradients of weighted sums by the reference and by the kernels of plugins.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "fastpath/error.hpp"
#include "support/mace_models.hpp"

namespace fastpath::test {
namespace {

constexpr double kSecondOrder = 1e-10;  // design.md section 14

/// Options under which one plugin does all it can; "reference" means none.
EvaluateOptions options_of(const std::string& plugin) {
  if (plugin == "reference") return reference();
  static std::map<std::string, std::unique_ptr<Context>> contexts;
  std::unique_ptr<Context>& context = contexts[plugin];
  if (context == nullptr) {
    context = std::make_unique<Context>(ContextOptions{
        .registry = {.search_paths = {FASTPATH_PLUGIN_DIRECTORY}, .default_paths = false, .enable = {plugin}}});
  }
  EvaluateOptions options;
  options.use_fast = UseFast::always;
  options.context = context.get();
  // Strict mode accepts that the parts of a fused step run instead of it.
  options.require_fast = true;
  options.threads = 2;
  return options;
}

class Derivatives : public testing::TestWithParam<std::string> {};

std::vector<std::string> paths() {
  std::vector<std::string> result{"reference", "cpu_ref"};
#ifdef FASTPATH_HAS_CPU_SIMD
  result.emplace_back("cpu_simd");
#endif
  return result;
}
INSTANTIATE_TEST_SUITE_P(Paths, Derivatives, testing::ValuesIn(paths()), [](const auto& p) { return p.param; });

TEST_P(Derivatives, HessianIsThatOfThePackage) {
  const Tensor want = TestData("refdata/mace_a/data.safetensors").tensors().at("molecule:hessian");
  const Structure molecule = mace_a_structure("molecule");
  const Tensor got = mace_a()->hessian(molecule, options_of(GetParam()));
  ASSERT_EQ(got.shape(), (Shape{27, 27}));
  EXPECT_LE(relative_error(reals(got), reals(want)), kSecondOrder);
}

TEST_P(Derivatives, GradientsOfEnergyAndForcesAreThoseOfThePackage) {
  const StateDict want = TestData("refdata/mace_a/paramgrads.safetensors").tensors();
  const Graph graph = Graph::from_structure(mace_a_structure("molecule"), mace_a()->r_max());
  const Tensor one = Tensor::from<double>({1}, {1.0});
  const StateDict energy = mace_a()->weighted_gradients(graph, {one, {}, {}}, options_of(GetParam()));
  EvaluateOptions options = options_of(GetParam());
  options.weights.forces = want.at("fv").clone();
  const EvaluationResult forces = mace_a()->evaluate(graph, options);
  int checked = 0;
  for (const auto& [name, tensor] : want) {
    if (name.starts_with("dE:")) {
      EXPECT_LE(relative_error(reals(energy.at(name.substr(3))), reals(tensor)), 1e-11) << name;
      ++checked;
    } else if (name.starts_with("dFv:")) {
      EXPECT_LE(relative_error(reals(forces.weighted_gradients.at(name.substr(4))), reals(tensor)), kSecondOrder)
          << name;
      ++checked;
    }
  }
  EXPECT_EQ(checked, 58);
  // Whatever the plugin divides its work into, all of it is done there.
  for (const Decision& decision : forces.selection.decisions) {
    const ReasonCode code = decision.reason.code;
    if (code == ReasonCode::covered_by_parent || code == ReasonCode::in_parts) continue;
    EXPECT_EQ(decision.choice, GetParam()) << decision.module;
  }
}

TEST_P(Derivatives, OfStressesAreThoseOfTheReference) {
  const auto model = filled_model(m2_config());
  const std::vector<Graph> graphs{Graph::from_structure(system_b(), 4.0), Graph::from_structure(system_a(), 4.0)};
  const Graph joined = Graph::join(graphs);
  GradientWeights weights{Tensor::from<double>({2}, random_values(2, 1)),
                          Tensor::from<double>({5, 3}, random_values(15, 2)), Tensor::zeros({2, 3, 3}, DType::float64)};
  const std::vector<double> stress = random_values(9, 3);
  std::copy(stress.begin(), stress.end(), weights.stresses.data<double>());
  const StateDict want = model->weighted_gradients(joined, weights, reference());
  const StateDict got = model->weighted_gradients(joined, weights, options_of(GetParam()));
  for (const auto& [name, tensor] : want) {
    EXPECT_LE(relative_error(reals(got.at(name)), reals(tensor)), 1e-11) << name;
  }
}

TEST_P(Derivatives, ProductsWithAHessianAreThoseOfItsColumns) {
  const Structure crystal = repeated(system_b(), 2, 1, 1);
  const auto model = filled_model(m1_config());
  const Tensor hessian = model->hessian(crystal, options_of(GetParam()));
  const Graph graph = Graph::from_structure(crystal, model->r_max());
  const Tensor directions = Tensor::from<double>({5, 4, 3}, random_values(60, 4));
  const Tensor got = model->hessian_products(graph, directions, options_of(GetParam()));
  ASSERT_EQ(got.shape(), directions.shape());
  std::vector<double> want(60);
  for (std::size_t d = 0; d < 5; ++d) {
    for (std::size_t i = 0; i < 12; ++i) {
      for (std::size_t j = 0; j < 12; ++j) {
        want[12 * d + i] += hessian.data<double>()[12 * i + j] * directions.data<double>()[12 * d + j];
      }
    }
  }
  EXPECT_LE(relative_error(reals(got), want), 1e-11);
}

TEST_P(Derivatives, OfSecondOrderHaveTheSameBitsForAnyNumberOfThreads) {
  const Structure molecule = mace_a_structure("sparse");
  EvaluateOptions options = options_of(GetParam());
  std::vector<std::vector<double>> found;
  for (const int threads : {1, 2, 5, 64}) {
    options.threads = threads;
    found.push_back(reals(mace_a()->hessian(molecule, options)));
  }
  for (const std::vector<double>& each : found) EXPECT_EQ(each, found.front());
}

TEST(Hessian, IsSymmetricAndVanishesForTranslations) {
  const auto model = filled_model(m2_config());
  const Tensor hessian = model->hessian(system_b(), reference());
  const double* h = hessian.data<double>();
  double largest = 0;
  for (std::size_t i = 0; i < 36; ++i) largest = std::max(largest, std::abs(h[i]));
  for (std::size_t i = 0; i < 6; ++i) {
    for (std::size_t k = 0; k < 3; ++k) EXPECT_NEAR(h[6 * i + k] + h[6 * i + 3 + k], 0, 1e-12 * largest);
    for (std::size_t j = 0; j < 6; ++j) EXPECT_NEAR(h[6 * i + j], h[6 * j + i], 1e-12 * largest);
  }
}

TEST(Hessian, TellsOfEveryDirection) {
  const auto model = mace_a();
  const Structure molecule = mace_a_structure("molecule");
  EvaluateOptions options = reference();
  options.threads = 2;
  std::vector<std::int64_t> told;
  options.on_direction = [&](std::int64_t done, std::int64_t of) {
    EXPECT_EQ(of, 3 * molecule.size());
    told.push_back(done);
  };
  (void)model->hessian(molecule, options);
  ASSERT_EQ(std::ssize(told), 3 * molecule.size());
  for (std::size_t i = 0; i < told.size(); ++i) EXPECT_EQ(told[i], static_cast<std::int64_t>(i) + 1);
  options.on_direction = [](std::int64_t done, std::int64_t) {
    if (done == 2) throw Error(ErrorCode::invalid_argument, "no further");
  };
  EXPECT_THROW((void)model->hessian(molecule, options), Error);
}

TEST(Hessian, HasTheHeadOfTheFrame) {
  Json config = small_config();
  config["heads"] = {"first", "second"};
  const auto model = Model::create(config.dump(), 3);
  set_tensor(*model, "scale_shift.scale", {1.0, 2.0});
  Structure frame = system_a();
  EvaluateOptions options = reference();
  options.head = "second";
  const std::vector<double> want = reals(model->hessian(frame, options));
  frame.set_info("head", std::vector<std::string>{"second"});
  EXPECT_EQ(reals(model->hessian(frame, reference())), want);
  options.head = "first";
  EXPECT_NE(reals(model->hessian(frame, options)), want);
}

TEST(Hessian, OfNothingIsEmptyAndNoDirectionsGiveNoProducts) {
  const auto model = filled_model(m1_config());
  EXPECT_EQ(model->hessian(Structure(), reference()).shape(), (Shape{0, 0}));
  const Graph graph = Graph::from_structure(system_a(), model->r_max());
  EXPECT_EQ(model->hessian_products(graph, Tensor::zeros({0, 3, 3}, DType::float64), reference()).shape(),
            (Shape{0, 3, 3}));
}

TEST(Hessian, RefusesWhatItCannotBeMadeFrom) {
  const auto model = filled_model(m1_config());
  const Graph graph = Graph::from_structure(system_a(), model->r_max());
  const auto refusal = [&](const Tensor& directions, const EvaluateOptions& options) {
    try {
      (void)model->hessian_products(graph, directions, options);
    } catch (const Error& error) {
      return std::string(to_string(error.code())) + ": " + error.what();
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal(Tensor::zeros({3, 3}, DType::float64), reference()),
            "invalid_argument: directions are float64 [3, 3] on cpu, expected float64 [n_directions, 3, 3] on cpu");
  EXPECT_EQ(refusal(Tensor::zeros({1, 3, 3}, DType::float32), reference()),
            "invalid_argument: directions are float32 [1, 3, 3] on cpu, expected float64 [n_directions, 3, 3] on cpu");
  const Tensor good = Tensor::zeros({6, 3, 3}, DType::float64);
  EvaluateOptions options = reference();
  options.parameter_gradients = true;
  EXPECT_EQ(refusal(good, options),
            "invalid_argument: a direction, weights or gradients by parameters beside a Hessian: expected none");
  good.data<double>()[9 * 4 + 2] = std::numeric_limits<double>::infinity();
  options = reference();
  options.threads = 3;
  const std::string text = refusal(good, options);
  EXPECT_NE(text.find("numerics: the derivative of the force of atom 0 along direction 4 is not finite"),
            std::string::npos)
      << text;
  options = reference();
  options.memory_limit = 8 * 81 - 1;
  try {
    (void)model->hessian(system_a(), options);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
    EXPECT_NE(std::string(error.what()).find("the Hessian of 3 atoms"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace fastpath::test
