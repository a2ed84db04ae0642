// What must hold for any weights: symmetry, conservation, and derivatives that are derivatives of the energy.
#include <gtest/gtest.h>

#include <numeric>

#include "fastpath/error.hpp"
#include "support/mace_models.hpp"
#include "support/mace_variants.hpp"

namespace fastpath::test {
namespace {

// A rotated or permuted structure has other rounding errors, in positions as in sums: ten times those of one
// evaluation.
constexpr double kInvariance = 1e-11;
// Five-point differences of energies: eps * |E| / step, with |E| / |F| up to a few thousand for total energies.
constexpr double kDifferences = 1e-7;

/// Energy without the constant part of the species, which would drown small differences in its rounding.
double interaction_energy(Model& model, const Structure& structure) {
  EvaluateOptions options = reference();
  options.forces = options.stress = false;
  (void)model.evaluate(structure, options);
  const std::vector<double> nodes = reals(dynamic_cast<models::MaceModel&>(model).last_value("interaction_energy"));
  return reals(model.state_dict().at("scale_shift.scale"))[0] * std::accumulate(nodes.begin(), nodes.end(), 0.0);
}

/// -dE/dx and dE/d(strain)/V, each along a few directions, against differences of energies.
void expect_forces_are_derivatives(Model& model, const Structure& structure) {
  const EvaluationResult result = model.evaluate(structure, reference());
  const std::vector<double> forces = reals(result.forces);
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    const std::vector<double> direction = random_values(3 * structure.size(), seed);
    const double slope =
        derivative([&](double step) { return interaction_energy(model, displaced(structure, step, direction)); }, 1e-3);
    double scale = 0;
    for (std::size_t i = 0; i < forces.size(); ++i) scale += std::abs(forces[i] * direction[i]);
    EXPECT_NEAR(slope, -dot(forces, direction), kDifferences * scale) << "direction " << seed;
  }
}
void expect_stress_is_a_derivative(Model& model, const Structure& structure) {
  const EvaluationResult result = model.evaluate(structure, reference());
  ASSERT_TRUE(result.stress.has_value());
  const Matrix3& c = structure.cell;
  const double volume =
      std::abs(c[0][0] * (c[1][1] * c[2][2] - c[1][2] * c[2][1]) - c[0][1] * (c[1][0] * c[2][2] - c[1][2] * c[2][0]) +
               c[0][2] * (c[1][0] * c[2][1] - c[1][1] * c[2][0]));
  std::vector<double> found, want;
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      Matrix3 strain{};
      strain[i][j] += 0.5, strain[j][i] += 0.5;
      found.push_back(derivative(
                          [&](double step) {
                            return interaction_energy(model, transformed(structure, strain_matrix(step, strain)));
                          },
                          1e-3) /
                      volume);
      want.push_back((*result.stress)[i][j]);
      EXPECT_EQ((*result.stress)[i][j], (*result.stress)[j][i]);
    }
  }
  EXPECT_LE(relative_error(found, want), kDifferences);
}
void expect_no_net_force(const EvaluationResult& result) {
  const std::vector<double> forces = reals(result.forces);
  Vec3 total{};
  double scale = 0;
  for (std::size_t i = 0; i < forces.size(); ++i) total[i % 3] += forces[i], scale += std::abs(forces[i]);
  for (const double component : total) EXPECT_LE(std::abs(component), 1e-13 * scale);
}

/// Rotation, or inversion: `m` acts on row vectors.
void expect_covariant(Model& model, const Structure& structure, const Matrix3& m) {
  const EvaluationResult before = model.evaluate(structure, reference()),
                         after = model.evaluate(transformed(structure, m), reference());
  EXPECT_EQ(after.n_edges, before.n_edges);
  EXPECT_NEAR(after.energy, before.energy, kInvariance * std::abs(before.energy));
  EXPECT_LE(relative_error(reals(after.node_energies), reals(before.node_energies)), kInvariance);
  EXPECT_LE(relative_error(reals(after.forces), transformed_rows(reals(before.forces), m)), kInvariance);
  ASSERT_EQ(after.stress.has_value(), before.stress.has_value());
  if (before.stress) {
    EXPECT_LE(relative_error(reals(*after.stress), reals(transformed_tensor(*before.stress, m))), kInvariance);
  }
}
constexpr Matrix3 kInversion{{{-1, 0, 0}, {0, -1, 0}, {0, 0, -1}}};

class MaceInvariance : public testing::TestWithParam<const char*> {
 protected:
  Structure structure_ = mace_a_structure(GetParam());
  Model& model_ = *mace_a();
  EvaluationResult before_ = model_.evaluate(structure_, reference());

  void expect_same(const Structure& other) {
    const EvaluationResult after = model_.evaluate(other, reference());
    EXPECT_EQ(after.n_edges, before_.n_edges);
    EXPECT_NEAR(after.energy, before_.energy, kInvariance * std::abs(before_.energy));
    EXPECT_LE(relative_error(reals(after.forces), reals(before_.forces)), kInvariance);
    if (before_.stress) {
      EXPECT_LE(relative_error(reals(after.stress.value()), reals(*before_.stress)), kInvariance);
    }
  }
};

TEST_P(MaceInvariance, ForcesAndStressRotateWithTheStructure) {
  for (std::uint64_t seed = 11; seed <= 13; ++seed) expect_covariant(model_, structure_, random_rotation(seed));
}
TEST_P(MaceInvariance, ForcesChangeSignUnderInversion) { expect_covariant(model_, structure_, kInversion); }

TEST_P(MaceInvariance, TranslationChangesNothing) {
  Structure moved = structure_;
  for (Vec3& x : moved.positions) x[0] += 0.731, x[1] -= 12.377, x[2] += 5.193;
  expect_same(moved);
}

TEST_P(MaceInvariance, AtomsMayLieInAnyImageOfTheCell) {
  Structure moved = structure_;
  for (std::size_t n = 0; n < moved.positions.size(); ++n) {
    for (std::size_t axis = 0; axis < 3; ++axis) {
      if (!structure_.pbc[axis]) continue;
      const double images = static_cast<double>((n * 7 + axis * 3) % 5) - 2;
      for (std::size_t k = 0; k < 3; ++k) moved.positions[n][k] += images * structure_.cell[axis][k];
    }
  }
  expect_same(moved);
}

TEST_P(MaceInvariance, ForcesFollowAPermutationOfTheAtoms) {
  const auto n = static_cast<std::size_t>(structure_.size());
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937_64(5));
  Structure permuted = structure_;
  for (std::size_t i = 0; i < n; ++i) {
    permuted.positions[i] = structure_.positions[order[i]];
    permuted.atomic_numbers[i] = structure_.atomic_numbers[order[i]];
  }
  const EvaluationResult after = model_.evaluate(permuted, reference());
  const std::vector<double> forces = reals(after.forces), energies = reals(after.node_energies);
  std::vector<double> forces_back(3 * n), energies_back(n);
  for (std::size_t i = 0; i < n; ++i) {
    energies_back[order[i]] = energies[i];
    for (std::size_t k = 0; k < 3; ++k) forces_back[3 * order[i] + k] = forces[3 * i + k];
  }
  EXPECT_EQ(after.n_edges, before_.n_edges);
  EXPECT_NEAR(after.energy, before_.energy, kInvariance * std::abs(before_.energy));
  EXPECT_LE(relative_error(energies_back, reals(before_.node_energies)), kInvariance);
  EXPECT_LE(relative_error(forces_back, reals(before_.forces)), kInvariance);
  if (before_.stress) {
    EXPECT_LE(relative_error(reals(*after.stress), reals(*before_.stress)), kInvariance);
  }
}

TEST_P(MaceInvariance, ForcesAreDerivativesOfTheEnergy) {
  expect_forces_are_derivatives(model_, structure_);
  expect_no_net_force(before_);
}
TEST_P(MaceInvariance, StressIsADerivativeOfTheEnergy) {
  if (!before_.stress) {
    EXPECT_FALSE(structure_.pbc[0] && structure_.pbc[1] && structure_.pbc[2]);
    return;
  }
  expect_stress_is_a_derivative(model_, structure_);
}

INSTANTIATE_TEST_SUITE_P(Structures, MaceInvariance,
                         testing::Values("molecule", "triclinic", "water8", "slab", "sparse"),
                         [](const auto& structure) { return std::string(structure.param); });

class MaceVariant : public testing::TestWithParam<Variant> {
 protected:
  std::shared_ptr<Model> model_ = variant_model(GetParam());
  Structure structure_ = variant_structure();
};

TEST_P(MaceVariant, ForcesAndStressAreDerivativesOfTheEnergy) {
  expect_forces_are_derivatives(*model_, structure_);
  expect_stress_is_a_derivative(*model_, structure_);
  expect_no_net_force(model_->evaluate(structure_, reference()));
}

TEST_P(MaceVariant, ForcesRotateWithTheStructure) {
  expect_covariant(*model_, structure_, random_rotation(4));
  expect_covariant(*model_, structure_, kInversion);
}

TEST_P(MaceVariant, Float32AgreesWithFloat64) {
  EvaluateOptions options = reference();
  options.dtype = DType::float32;
  const EvaluationResult single = model_->evaluate(structure_, options),
                         full = model_->evaluate(structure_, reference());
  // The precision contract (docs/conventions.md). Node energies of random weights are not much larger than what they
  // cancel from.
  EXPECT_NEAR(single.energy, full.energy, 1e-6 * std::max(1.0, std::abs(full.energy)));
  EXPECT_LE(relative_error(reals(single.forces), reals(full.forces)), 1e-5);
  EXPECT_LE(relative_error(reals(*single.stress), reals(*full.stress)), 1e-5);
}

TEST_P(MaceVariant, TangentsAreDerivativesAlongTheDirection) {
  const std::vector<double> direction = random_values(3 * structure_.size(), 8);
  EvaluateOptions options = reference();
  options.parameter_gradients = true;
  const auto at = [&](double step) { return model_->evaluate(displaced(structure_, step, direction), options); };
  EvaluateOptions along = options;
  along.direction = Tensor::from<double>({structure_.size(), 3}, direction);
  const EvaluationResult result = model_->evaluate(structure_, along), here = at(0);
  // A tangent changes no value.
  EXPECT_LE(relative_error(reals(result.forces), reals(here.forces)), 1e-13);

  const double h = 1e-3;
  const EvaluationResult far_up = at(h), far_down = at(-h), up = at(h / 2), down = at(-h / 2);
  const auto slope = [&](const Tensor& a, const Tensor& b, const Tensor& c, const Tensor& d) {
    const std::vector<double> up2 = reals(a), down2 = reals(b), up1 = reals(c), down1 = reals(d);
    std::vector<double> result_values;
    for (std::size_t i = 0; i < up2.size(); ++i) {
      result_values.push_back((8 * (up1[i] - down1[i]) - (up2[i] - down2[i])) / (6 * h));
    }
    return result_values;
  };
  EXPECT_LE(relative_error(reals(result.forces_tangent), slope(far_up.forces, far_down.forces, up.forces, down.forces)),
            kDifferences);
  EXPECT_EQ(result.parameter_gradients.size(), model_->named_parameters().size());
  for (const auto& [tensor_name, tangent] : result.parameter_gradients_tangent) {
    const std::string& name = tensor_name;
    const auto of = [&](const EvaluationResult& r) -> const Tensor& { return r.parameter_gradients.at(name); };
    EXPECT_LE(relative_error(reals(of(result)), reals(of(here))), 1e-12) << name;
    const std::vector<double> want = slope(of(far_up), of(far_down), of(up), of(down));
    // Some weights meet no cutoff-dependent quantity and have differences that are rounding of their gradient.
    double largest = 0;
    for (const double g : reals(of(here))) largest = std::max(largest, std::abs(g));
    for (const double w : want) largest = std::max(largest, std::abs(w));
    const std::vector<double> found = reals(tangent);
    for (std::size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(found[i], want[i], kDifferences * largest) << name << '[' << i << ']';
    }
  }
}

TEST_P(MaceVariant, ParameterGradientsAreDerivativesOfTheEnergy) {
  EvaluateOptions options = reference();
  options.parameter_gradients = true;
  const EvaluationResult result = model_->evaluate(structure_, options);
  for (const auto& [name, tensor] : model_->named_parameters()) {
    ASSERT_TRUE(result.parameter_gradients.contains(name)) << name;
    const std::vector<double> gradient = reals(result.parameter_gradients.at(name)), base = reals(tensor),
                              direction = random_values(tensor.numel(), 3);
    double scale = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) scale += std::abs(gradient[i] * direction[i]);
    const double slope = derivative(
        [&, tensor_name = name](double step) {
          set_tensor(*model_, tensor_name, moved(base, step, direction));
          return interaction_energy(*model_, structure_);
        },
        1e-3);
    set_tensor(*model_, name, base);
    EXPECT_NEAR(slope, dot(gradient, direction), std::max(kDifferences * scale, 1e-10)) << name;
  }
}

TEST_P(MaceVariant, ComesBackFromAFileTheSame) {
  const auto again = Model::create(model_->config_text(), 1);
  again->load_state_dict(model_->state_dict());
  const EvaluationResult first = model_->evaluate(structure_, reference()),
                         second = again->evaluate(structure_, reference());
  EXPECT_EQ(first.energy, second.energy);
  EXPECT_EQ(reals(first.forces), reals(second.forces));
}

INSTANTIATE_TEST_SUITE_P(Configurations, MaceVariant, testing::ValuesIn(variants()),
                         [](const auto& variant) { return std::string(variant.param.name); });

TEST(MaceHeads, EachHeadIsAModelOfItsOwn) {
  // Head h of a two-headed model against a model of one head with that head's weights.
  Json config = small_config();
  config["heads"] = {"first", "second"};
  const auto both = Model::create(config.dump(), 3);
  set_tensor(*both, "atomic_energies_fn.atomic_energies", {-1, -2, -3, -4});
  set_tensor(*both, "scale_shift.scale", {0.5, 2});
  set_tensor(*both, "scale_shift.shift", {0.1, -0.1});
  const std::int64_t channels = 3, hidden = 4;
  Structure structure = variant_structure();
  for (std::size_t head = 0; head < 2; ++head) {
    const auto one = Model::create(small_config().dump(), 9);
    StateDict state;
    for (const auto& [name, tensor] : both->state_dict()) {
      const std::vector<double> values = is_floating(tensor.dtype()) ? reals(tensor) : std::vector<double>{};
      std::vector<double> own;
      const auto pick = [&](std::int64_t rows, std::int64_t columns, std::int64_t low, std::int64_t high) {
        for (std::int64_t i = 0; i < rows; ++i) {
          for (std::int64_t j = low; j < high; ++j) own.push_back(values[static_cast<std::size_t>(i * columns + j)]);
        }
      };
      const auto h = static_cast<std::int64_t>(head);
      double factor = 1;
      if (name == "readouts.0.linear.weight") {
        pick(channels, 2, h, h + 1);
      } else if (name == "readouts.1.linear_1.weight") {
        pick(channels, 2 * hidden, h * hidden, (h + 1) * hidden);
      } else if (name == "readouts.1.linear_2.weight") {
        // Row = hidden unit, column = head; normalised by all hidden units instead of this head's.
        for (std::int64_t i = 0; i < hidden; ++i) {
          own.push_back(values[static_cast<std::size_t>(((h * hidden) + i) * 2 + h)]);
        }
        factor = std::sqrt(0.5);
      } else if (name == "atomic_energies_fn.atomic_energies") {
        own = {values[2 * head], values[2 * head + 1]};
      } else if (name.starts_with("scale_shift.")) {
        own = {values[head]};
      } else {
        state.add(name, tensor);
        continue;
      }
      for (double& value : own) value *= factor;
      state.add(name, Tensor::from<double>(one->state_dict().at(name).shape(), own));
    }
    one->load_state_dict(state);
    EvaluateOptions options = reference();
    options.head = head == 0 ? "first" : "second";
    const EvaluationResult want = one->evaluate(structure, reference()), found = both->evaluate(structure, options);
    EXPECT_NEAR(found.energy, want.energy, 1e-13 * std::abs(want.energy));
    EXPECT_LE(relative_error(reals(found.forces), reals(want.forces)), 1e-12);

    // The frame may name it as well; the option is stronger.
    Structure named = structure;
    named.set_info("head", std::vector<std::string>{options.head});
    EXPECT_EQ(both->evaluate(named, reference()).energy, found.energy);
    named.set_info("head", std::vector<std::string>{"first"});
    EXPECT_EQ(both->evaluate(named, options).energy, found.energy);
  }
  EvaluateOptions first = reference();
  first.head = "first";
  EXPECT_EQ(both->evaluate(structure, reference()).energy, both->evaluate(structure, first).energy);
}

TEST(MaceHeads, AnUnknownHeadIsAnErrorThatNamesTheHeads) {
  Json config = small_config();
  config["heads"] = {"pbe", "r2scan"};
  const auto model = Model::create(config.dump(), 3);
  Structure structure = variant_structure();
  structure.set_info("head", std::vector<std::string>{"pbe0"});
  try {
    (void)model->evaluate(structure, reference());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    for (const char* word : {"pbe0", "pbe", "r2scan"}) {
      EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    }
  }
}

TEST(MaceConvolutions, AnExplicitListInAnotherOrderGivesTheSameModel) {
  // Reversing the instructions, and moving the radial weights and linear rows along, changes only the order of sums.
  const auto derived = Model::create(small_config().dump(), 21);
  const Json written = Json::parse(derived->config_text());
  Json config = small_config();
  config["convolutions"] = written["convolutions"];
  const auto same = Model::create(config.dump(), 21);
  EXPECT_EQ(same->evaluate(variant_structure(), reference()).energy,
            derived->evaluate(variant_structure(), reference()).energy);

  Json& instructions = config["convolutions"][1]["instructions"];
  std::reverse(instructions.begin(), instructions.end());
  const auto reversed = Model::create(config.dump(), 21);
  StateDict state;
  const std::int64_t paths = static_cast<std::int64_t>(instructions.size()), channels = 3;
  for (const auto& [name, tensor] : derived->state_dict()) {
    if (name != "interactions.1.conv_tp_weights.layer1.weight") {
      state.add(name, tensor);
      continue;
    }
    const std::vector<double> values = reals(tensor);
    std::vector<double> moved_values(values.size());
    ASSERT_EQ(tensor.size(1), paths * channels);
    for (std::int64_t row = 0; row < tensor.size(0); ++row) {
      for (std::int64_t path = 0; path < paths; ++path) {
        for (std::int64_t u = 0; u < channels; ++u) {
          moved_values[static_cast<std::size_t>((row * paths + path) * channels + u)] =
              values[static_cast<std::size_t>((row * paths + paths - 1 - path) * channels + u)];
        }
      }
    }
    state.add(name, Tensor::from<double>(tensor.shape(), moved_values));
  }
  reversed->load_state_dict(state);
  const EvaluationResult want = derived->evaluate(variant_structure(), reference()),
                         found = reversed->evaluate(variant_structure(), reference());
  EXPECT_NEAR(found.energy, want.energy, 1e-13 * std::max(1.0, std::abs(want.energy)));
  EXPECT_LE(relative_error(reals(found.forces), reals(want.forces)), 1e-12);
}

}  // namespace
}  // namespace fastpath::test
