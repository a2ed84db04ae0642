// The whole model against published values and against results of the packages that define it.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/model.hpp"
#include "fastpath/safetensors.hpp"

namespace fastpath {
namespace {

const std::string kData = FASTPATH_TEST_DATA "/refdata/mace_a/";

/// max|a-b| / max|b|; NaN where anything is not a number.
double error(const double* a, const double* b, std::int64_t n) {
  double difference = 0, largest = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    if (std::isnan(a[i]) || std::isnan(b[i])) return NAN;
    difference = std::max(difference, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return largest > 0 ? difference / largest : difference;
}
double error(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.numel(), b.numel());
  const Tensor left = a.to(DType::float64).contiguous(), right = b.to(DType::float64).contiguous();
  return error(left.data<double>(), right.data<double>(), std::min(a.numel(), b.numel()));
}
double error(const Tensor& a, const std::vector<double>& b) {
  EXPECT_EQ(a.numel(), static_cast<std::int64_t>(b.size()));
  return error(a.data<double>(), b.data(), a.numel());
}
std::vector<double> flat(const nlohmann::json& rows) {
  std::vector<double> values;
  for (const auto& row : rows) {
    for (const auto& value : row) values.push_back(value.get<double>());
  }
  return values;
}

EvaluateOptions reference() {
  EvaluateOptions options;
  options.use_fast = UseFast::never;
  return options;
}

std::shared_ptr<Model> mace_a() {
  static const auto model = Model::load(kData + "model");
  return model;
}

class MaceA : public testing::TestWithParam<const char*> {
 protected:
  Structure structure() const { return read_extxyz(kData + GetParam() + ".xyz").front(); }
  nlohmann::json expected() const {
    std::ifstream file(kData + "expected.json");
    return nlohmann::json::parse(file)[GetParam()];
  }
};

TEST_P(MaceA, EnergyForcesAndStressAgreeWithThePackage) {
  const EvaluationResult result = mace_a()->evaluate(structure(), reference());
  const nlohmann::json want = expected();
  EXPECT_EQ(result.n_edges, want["n_edges"].get<std::int64_t>());
  const double energy = want["energy"].get<double>();
  EXPECT_NEAR(result.energy, energy, 1e-12 * std::abs(energy));
  EXPECT_LE(error(result.node_energies, want["node_energies"].get<std::vector<double>>()), 1e-12);
  EXPECT_LE(error(result.forces, flat(want["forces"])), 1e-12);
  const bool periodic = want.contains("stress") && !want["stress"].is_null();
  ASSERT_EQ(result.stress.has_value(), periodic);
  if (periodic) {
    EXPECT_LE(error(&(*result.stress)[0][0], flat(want["stress"]).data(), 9), 1e-12);
  }
}

TEST_P(MaceA, Float32AgreesWithFloat64) {
  EvaluateOptions options = reference();
  options.dtype = DType::float32;
  const EvaluationResult result = mace_a()->evaluate(structure(), options);
  const nlohmann::json want = expected();
  const double energy = want["energy"].get<double>();
  EXPECT_NEAR(result.energy, energy, 1e-6 * std::abs(energy));
  EXPECT_LE(error(result.forces, flat(want["forces"])), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Structures, MaceA, testing::Values("molecule", "triclinic", "water8", "slab", "sparse"),
                         [](const auto& structure) { return std::string(structure.param); });

TEST(MaceA, EdgeGradientsAndNodeFeaturesAreThoseOfThePackage) {
  const StateDict data = read_safetensors(kData + "data.safetensors").tensors;
  const Structure molecule = read_extxyz(kData + "molecule.xyz").front();
  // The package's own edge list, in its order.
  HostEdges host;
  host.atomic_numbers = molecule.atomic_numbers;
  host.positions = {&molecule.positions[0][0], molecule.positions.size() * 3};
  const Tensor index = data.at("molecule:edge_index");
  host.sender = index.narrow(0, 0, 1).view({index.size(1)});
  host.receiver = index.narrow(0, 1, 1).view({index.size(1)});
  host.shift = data.at("molecule:shifts");
  const Graph graph = Graph::from_edges(host);
  const EvaluationResult result = mace_a()->evaluate(graph, reference());
  const double* want = data.at("molecule:edge_forces").data<double>();
  double largest = 0, difference = 0;
  for (std::int64_t e = 0; e < graph.n_edges(); ++e) {
    const std::int64_t from = graph.input_position().data<std::int64_t>()[e];
    for (std::int64_t k = 0; k < 3; ++k) {
      largest = std::max(largest, std::abs(want[3 * from + k]));
      difference = std::max(difference, std::abs(want[3 * from + k] - result.edge_forces.data<double>()[3 * e + k]));
    }
  }
  EXPECT_LE(difference, 1e-12 * largest);
}

TEST(MaceA, HessianFromTangentsIsThatOfThePackage) {
  const StateDict data = read_safetensors(kData + "data.safetensors").tensors;
  const Structure molecule = read_extxyz(kData + "molecule.xyz").front();
  const Tensor want = data.at("molecule:hessian");
  const std::int64_t n = 3 * molecule.size();
  const Tensor hessian = Tensor::empty({n, n}, DType::float64);
  for (std::int64_t column = 0; column < n; ++column) {
    EvaluateOptions options = reference();
    options.direction = Tensor::zeros({molecule.size(), 3}, DType::float64);
    options.direction.data<double>()[column] = 1.0;
    const EvaluationResult result = mace_a()->evaluate(molecule, options);
    for (std::int64_t row = 0; row < n; ++row)
      hessian.data<double>()[row * n + column] = -result.forces_tangent.data<double>()[row];
  }
  EXPECT_LE(error(hessian, want), 1e-10);
}

TEST(MaceA, ParameterGradientsOfEnergyAndForcesAreThoseOfThePackage) {
  const StateDict want = read_safetensors(kData + "paramgrads.safetensors").tensors;
  const Structure molecule = read_extxyz(kData + "molecule.xyz").front();
  EvaluateOptions options = reference();
  options.parameter_gradients = true;
  options.direction = want.at("fv").clone();
  const EvaluationResult result = mace_a()->evaluate(molecule, options);
  int checked = 0;
  for (const auto& [name, tensor] : want) {
    if (name.starts_with("dE:")) {
      EXPECT_LE(error(result.parameter_gradients.at(name.substr(3)), tensor), 1e-12) << name;
      ++checked;
    } else if (name.starts_with("dFv:")) {
      // Forces are minus the gradient.
      Tensor minus = tensor.clone();
      for (double& value : minus.span<double>()) value = -value;
      EXPECT_LE(error(result.parameter_gradients_tangent.at(name.substr(4)), minus), 1e-10) << name;
      ++checked;
    }
  }
  EXPECT_EQ(checked, 58);
}

TEST(MaceFiles, ScalarsMayHaveOneElementAndTheSteepnessOfTheSoftTransformIsObeyedOrFour) {
  const auto model = Model::create(R"({"format": "fastpath-model", "format_version": 1, "architecture": "mace",
    "dtype": "float64", "atomic_numbers": [1, 8], "r_max": 4.0, "num_bessel": 4, "polynomial_cutoff_p": 5,
    "distance_transform": "soft", "radial_mlp": [8], "l_max": 1, "hidden_irreps": "2x0e+2x1o", "num_interactions": 2,
    "correlation": 2, "interaction_first": "RealAgnosticResidualInteractionBlock",
    "interaction": "RealAgnosticResidualInteractionBlock", "avg_num_neighbors": 3.0})",
                                   1);
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "fastpath_soft";
  std::filesystem::remove_all(folder);
  model->save(folder);
  const char* const name = "radial_embedding.distance_transform.alpha";
  const auto rewrite = [&](std::optional<double> steepness) {
    StateDict changed;
    for (const auto& [own, tensor] : model->state_dict()) {
      if (own != name) changed.add(own, tensor.rank() == 0 ? tensor.view({1}) : tensor);
    }
    if (steepness) changed.add(name, Tensor::from<double>({1}, {*steepness}));
    write_safetensors(folder / "model.safetensors", changed);
  };
  const Structure molecule{{8, 1}, {{0, 0, 0}, {0.9, 0.1, 0}}, {}, {}, {}, {}};
  const double energy = model->evaluate(molecule, reference()).energy;
  rewrite(4.0);
  EXPECT_EQ(Model::load(folder)->evaluate(molecule, reference()).energy, energy);
  rewrite({});
  EXPECT_EQ(Model::load(folder)->evaluate(molecule, reference()).energy, energy);
  rewrite(3.0);
  const auto softer = Model::load(folder);
  EXPECT_GT(std::abs(softer->evaluate(molecule, reference()).energy - energy), 1e-6);
  EXPECT_EQ(softer->state_dict().at(name).item(), 3.0);
  std::filesystem::remove_all(folder);
}

TEST(MaceFiles, ADegreeOfThePairRepulsionThatIsNoneIsRefused) {
  const auto model = Model::create(R"({"format": "fastpath-model", "format_version": 1, "architecture": "mace",
    "dtype": "float64", "atomic_numbers": [1, 8], "r_max": 4.0, "num_bessel": 4, "polynomial_cutoff_p": 5,
    "pair_repulsion": true, "radial_mlp": [8], "l_max": 1, "hidden_irreps": "2x0e", "num_interactions": 1,
    "correlation": 1, "interaction_first": "RealAgnosticInteractionBlock",
    "interaction": "RealAgnosticInteractionBlock", "avg_num_neighbors": 3.0})",
                                   1);
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "fastpath_zbl";
  std::filesystem::remove_all(folder);
  model->save(folder);
  const auto load_with = [&](std::int32_t p) {
    StateDict changed;
    for (const auto& [name, tensor] : model->state_dict()) {
      changed.add(name, name == "pair_repulsion_fn.p" ? Tensor::scalar<std::int32_t>(p) : tensor);
    }
    write_safetensors(folder / "model.safetensors", changed);
    return Model::load(folder);
  };
  for (const std::int32_t p : {2, 4, 64}) EXPECT_NO_THROW(load_with(p)) << p;
  for (const std::int32_t p : {-3, 0, 1, 65, 1000}) {
    try {
      load_with(p);
      ADD_FAILURE() << "accepted " << p;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_file);
      EXPECT_NE(std::string(error.what()).find("pair_repulsion_fn.p is " + std::to_string(p)), std::string::npos)
          << error.what();
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace fastpath
