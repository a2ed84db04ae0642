#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "fastpath/error.hpp"
#include "fastpath/train.hpp"
#include "train/checkpoint.hpp"
#include "train/curves.hpp"
#include "train/data.hpp"
#include "train/loss.hpp"
#include "train/model_config.hpp"
#include "train/optimizer.hpp"
#include "train/start.hpp"
#include "train/statistics.hpp"

namespace fastpath::training {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModel =
    R"({"r_max": 3.5, "num_bessel": 3, "polynomial_cutoff_p": 5, "radial_mlp": [4], "l_max": 1, "hidden_irreps": "2x0e",
        "num_interactions": 1, "correlation": 2, "interaction_first": "RealAgnosticInteractionBlock",
        "interaction": "RealAgnosticInteractionBlock"})";

std::string config_text(const std::string& more = "") {
  return std::string(R"({"model": )") + kModel +
         R"(, "data": {"training": "train.xyz", "validation": "validation.xyz"}, "output": "run")" + more + "}";
}

TrainingConfig config_of(const std::string& more = "") {
  return TrainingConfig::parse(config_text(more), "config.json", "/folder");
}

/// What an error of `work` says.
template <class Work>
std::string message_of(ErrorCode code, Work work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

void expect_names(const std::string& text, const std::vector<std::string>& names) {
  for (const std::string& name : names) EXPECT_NE(text.find(name), std::string::npos) << name << " in: " << text;
}

/// Two atoms of silicon in a cube.
std::string frame_text(double x, const std::string& labels, const std::string& element = "Si") {
  return "2\nLattice=\"5 0 0 0 5 0 0 0 5\" Properties=species:S:1:pos:R:3:forces:R:3 " + labels + "\n" + element +
         " 0 0 0 0.1 0.2 0.3\nSi " + std::to_string(x) + " 0.3 0.1 -0.1 -0.2 -0.3\n";
}

const char* const kLabels = "energy=-4 stress=\"0.1 0 0.02 0 0.2 0 0.02 0 0.3\"";

std::vector<Frame> frames_of(const std::string& text,
                             const TrainingConfig& config = config_of(R"(, "loss": {"stress": 1})")) {
  return read_frames(text, "set.xyz", config, 3.5);
}

TEST(TrainingConfig, KeepsWhatItReads) {
  const TrainingConfig config = config_of(
      R"(, "loss": {"energy": 2, "penalty": "huber"}, "optimizer": {"name": "amsgrad", "learning_rate": 0.03},
         "schedule": {"name": "exponential", "factor": 0.9}, "reference_energies": {"Si": -1.5}, "seed": 7,
         "use_fast": "auto", "shift": 0)");
  EXPECT_EQ(config.training, "/folder/train.xyz");
  EXPECT_EQ(config.output, "/folder/run");
  EXPECT_TRUE(config.amsgrad);
  EXPECT_EQ(config.reference_energies->at(14), -1.5);
  EXPECT_EQ(config.shift, 0.0);
  EXPECT_FALSE(config.scale.has_value());
  const TrainingConfig again = TrainingConfig::parse(config.text(), "again", "/elsewhere");
  EXPECT_EQ(again.text(), config.text());
  EXPECT_EQ(again.learning_rate, 0.03);
  EXPECT_EQ(again.use_fast, UseFast::automatic);
}

TEST(TrainingConfig, NamesEveryProblemWithItsKey) {
  const std::string text = message_of(ErrorCode::bad_file, [] {
    (void)TrainingConfig::parse(
        R"({"model": {"r_max": -1, "colour": 1}, "data": {"training": 3, "validaton": "x"}, "epoch": 5, "output": "",
            "loss": {"energy": -1, "frces": 2}, "optimizer": {"beta1": 1}, "batch_size": 0, "use_fast": 1,
            "reference_energies": {"Xx": 1, "Si": "low"}, "scale": 0})",
        "config.json", ".");
  });
  expect_names(text, {"config.json: ", "'r_max' is -1, expected a positive number", "key 'colour' is unknown",
                      "'data.training' is 3, expected text", "'data.validation' is missing",
                      "key 'data.validaton' is unknown, expected check_units, energy_key",
                      "key 'epoch' is unknown, expected batch_size", "'output' is '', expected a folder",
                      "'loss.energy' is -1, expected a number that is not negative", "'loss.frces'",
                      "'optimizer.beta1' is 1, expected a number from 0 to below 1", "'batch_size' is 0",
                      "'use_fast' is 1, expected true, false or \"auto\"", "'Xx'", "'reference_energies.Si'",
                      "'scale' is 0, expected \"data\", or a positive number"});
}

TEST(TrainingConfig, RefusesSeveralHeadsAndALossOfNothing) {
  std::string two = config_text();
  two.insert(two.find("\"r_max\""), R"("heads": ["a", "b"], )");
  expect_names(message_of(ErrorCode::bad_file, [&] { (void)TrainingConfig::parse(two, "c", "."); }), {"'heads' has 2"});
  expect_names(
      message_of(ErrorCode::bad_file, [] { (void)config_of(R"(, "loss": {"energy": 0, "forces": 0, "stress": 0})"); }),
      {"no weight above 0"});
}

TrainingConfig starting_config(const std::string& more = "") {
  return TrainingConfig::parse(
      R"({"model": {"start_from": "old/model"}, "data": {"training": "t", "validation": 0.5}, "output": "run")" + more +
          "}",
      "config.json", "/folder");
}

TEST(TrainingConfig, KeepsWhatItReadsOfAStartingModel) {
  const TrainingConfig kept = starting_config();
  EXPECT_EQ(kept.start_from, "/folder/old/model");
  EXPECT_FALSE(kept.refit_reference_energies || kept.refit_shift);
  for (const std::string more :
       {"", R"(, "reference_energies": "fit", "shift": "data")", R"(, "reference_energies": {"Si": 2}, "shift": 1)",
        R"(, "reference_energies": "model", "scale": "model", "shift": "model")"}) {
    const TrainingConfig config = starting_config(more), again = TrainingConfig::parse(config.text(), "again", "/else");
    EXPECT_EQ(again.text(), config.text());
    EXPECT_EQ(again.refit_reference_energies, more.find("fit") != std::string::npos);
    EXPECT_EQ(again.refit_shift, more.find("data") != std::string::npos);
    EXPECT_EQ(again.shift.has_value(), more.find("1") != std::string::npos);
  }
  // A name that is no folder beside the configuration is one in a hub, which has no path.
  const TrainingConfig hub = TrainingConfig::parse(
      R"({"model": {"start_from": "silicon", "head": "a", "dtype": "float32"}, "data": {"training": "t", "validation": "v"},
          "output": "run"})",
      "config.json", "/folder");
  EXPECT_EQ(hub.start_from, "silicon");
  EXPECT_EQ(hub.start_head, "a");
  EXPECT_EQ(hub.start_dtype, DType::float32);
  EXPECT_EQ(TrainingConfig::parse(hub.text(), "again", "/else").text(), hub.text());
}

TEST(TrainingStart, FitsWhatTheModelLeavesAndKeepsWhatTheDataDoNotTell) {
  const auto model = Model::create(model_config(kModel, {8, 14, 32}, 2.5), 3);
  StateDict constants;
  constants.add("atomic_energies_fn.atomic_energies", Tensor::from<double>({3}, {-5, -6, -7}));
  model->load_state_dict(constants, Strictness::lenient);
  EvaluateOptions options;
  options.use_fast = UseFast::never;
  std::vector<Frame> frames = frames_of(frame_text(2, kLabels) + frame_text(2.1, kLabels, "Ge"));
  // Labels are the model's own energies with other zeros: Si by 1 eV, Ge by 2 eV, and O occurs in no frame.
  frames[0].energy = model->evaluate(frames[0].graph, options).energy + 2;
  frames[1].energy = model->evaluate(frames[1].graph, options).energy + 3;
  TrainingConfig config = starting_config(R"(, "reference_energies": "fit", "shift": "data")");
  adjust_constants(*model, frames, config, options);
  const auto energies = model->state_dict().at("atomic_energies_fn.atomic_energies").span<double>();
  EXPECT_EQ(energies[0], -5);
  EXPECT_NEAR(energies[1], -5, 1e-9);
  EXPECT_NEAR(energies[2], -5, 1e-9);
  EXPECT_NEAR(model->state_dict().at("scale_shift.shift").item(), 0, 1e-9);
  config = starting_config(R"(, "reference_energies": {"Ge": -9})");
  adjust_constants(*model, frames, config, options);
  EXPECT_EQ(energies[0], -5);
  EXPECT_NEAR(energies[1], -5, 1e-9);
  EXPECT_EQ(energies[2], -9);
}

TEST(TrainingData, ReadsLabels) {
  const std::vector<Frame> frames = frames_of(frame_text(2, kLabels));
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].energy, -4.0);
  EXPECT_EQ(frames[0].forces, (std::vector<double>{0.1, 0.2, 0.3, -0.1, -0.2, -0.3}));
  EXPECT_EQ((*frames[0].stress)[2], 0.02);
  const std::vector<Frame> six = frames_of(frame_text(2, "energy=-4 stress=\"1 2 3 4 5 6\""));
  EXPECT_EQ(*six[0].stress, (std::array<double, 9>{1, 6, 5, 6, 2, 4, 5, 4, 3}));
}

TEST(TrainingData, NamesFramesWithoutALabel) {
  const std::string text = frame_text(2, kLabels) + frame_text(2.1, "stress=\"0 0 0 0 0 0\"");
  expect_names(message_of(ErrorCode::bad_file, [&] { (void)frames_of(text); }),
               {"set.xyz", "no energy label 'energy' in frame 2", "loss.energy: 0", "\"skip\""});
  const TrainingConfig skip = TrainingConfig::parse(
      std::string(R"({"model": )") + kModel +
          R"(, "data": {"training": "t", "validation": "v", "missing_labels": "skip"}, "output": "run"})",
      "c", ".");
  EXPECT_FALSE(frames_of(text, skip)[1].energy);
  // A key that no frame has is a misspelling, not a gap.
  TrainingConfig other = skip;
  other.forces_key = "force";
  expect_names(message_of(ErrorCode::bad_file, [&] { (void)frames_of(text, other); }), {"'force' in any frame"});
}

TEST(TrainingData, ReadsWeightsOfFrames) {
  const auto weights = [](const std::string& more) { return frames_of(frame_text(2, kLabels + more)).at(0).weights; };
  EXPECT_EQ(weights("").energy, 1);
  EXPECT_EQ(weights(" config_weight=2").stress, 2);
  const LabelWeights all =
      weights(" config_weight=2 config_energy_weight=0.5 config_forces_weight=3 config_stress_weight=1e-3");
  EXPECT_EQ(all.energy, 1);
  EXPECT_EQ(all.forces, 6);
  EXPECT_EQ(all.stress, 2e-3);
}

TEST(TrainingData, NamesAWeightThatIsNone) {
  const auto refused = [](const std::string& weight) {
    return message_of(ErrorCode::bad_file,
                      [&] { (void)frames_of(frame_text(2, kLabels) + frame_text(2.1, kLabels + (" " + weight))); });
  };
  const std::string expected = "expected a number that is not negative";
  expect_names(refused("config_weight=-1"), {"set.xyz, frame 2", "'config_weight' is -1", expected});
  expect_names(refused("config_energy_weight=-0.5"), {"frame 2", "'config_energy_weight' is -0.5"});
  expect_names(refused("config_forces_weight=high"), {"frame 2", "'config_forces_weight' is not one number", expected});
  expect_names(refused("config_stress_weight=\"1 2\""), {"frame 2", "'config_stress_weight' is not one number"});
  expect_names(refused("config_weight=T"), {"frame 2", "'config_weight' is not one number"});
  for (const char* none : {"nan", "NaN", "inf", "1e999"}) {
    expect_names(refused(std::string("config_weight=") + none), {"set.xyz", "2"});
  }
}

TEST(TrainingData, OfWeightZeroNeedNotBeThere) {
  const std::string without = "stress=\"0 0 0 0 0 0\" config_energy_weight=0";
  const std::vector<Frame> frames = frames_of(frame_text(2, kLabels) + frame_text(2.1, without));
  EXPECT_FALSE(frames[1].energy);
  EXPECT_EQ(frames[1].forces.size(), 6u);
  const std::vector<Frame> nothing = frames_of(frame_text(2, kLabels) + frame_text(2.1, "config_weight=0"));
  EXPECT_TRUE(nothing[1].forces.empty());
  EXPECT_FALSE(nothing[1].stress);
  expect_names(message_of(ErrorCode::bad_file,
                          [] { (void)frames_of(frame_text(2, std::string(kLabels) + " config_weight=0")); }),
               {"set.xyz", "no frame has a label of a weight above 0"});
}

TEST(TrainingData, WantsNoStressWhereADirectionIsNotPeriodic) {
  EXPECT_FALSE(frames_of(frame_text(2, "energy=-4 pbc=\"T T F\""))[0].stress);
}

TEST(TrainingData, RefusesLabelsOfAnotherShape) {
  expect_names(message_of(ErrorCode::bad_file, [] { (void)frames_of(frame_text(2, "energy=\"1 2\"")); }),
               {"set.xyz, frame 1", "'energy' has 2 numbers, expected 1"});
  expect_names(message_of(ErrorCode::bad_file, [] { (void)frames_of(frame_text(2, "energy=low")); }),
               {"not made of numbers"});
  expect_names(
      message_of(ErrorCode::bad_file, [] { (void)frames_of(frame_text(2, "energy=-4 stress=\"1 2 3 4 5 6 7 8 9\"")); }),
      {"'stress' is not symmetric: 2 and 4"});
}

/// The sets of two texts in a folder of their own.
class TrainingSets : public ::testing::Test {
 protected:
  TrainingSets() : folder_(fs::temp_directory_path() / ("fastpath-train-" + std::to_string(::getpid()))) {
    fs::create_directories(folder_);
  }
  ~TrainingSets() override { fs::remove_all(folder_); }

  DataSet read(const std::string& training, const std::string& validation,
               const std::vector<std::int32_t>& elements = {}, bool check_units = true) {
    std::ofstream(folder_ / "train.xyz") << training;
    std::ofstream(folder_ / "validation.xyz") << validation;
    TrainingConfig config = TrainingConfig::parse(config_text(R"(, "loss": {"stress": 1})"), "config.json", folder_);
    config.check_units = check_units;
    return read_data(config, 3.5, elements, [this](const std::string& text) { warnings_ += text + "\n"; });
  }

  fs::path folder_;
  std::string warnings_;
};

TEST_F(TrainingSets, WarnsOfAStructureThatIsThereTwice) {
  const std::string a = frame_text(2, kLabels), b = frame_text(2.1, kLabels), c = frame_text(2.2, kLabels);
  (void)read(a + b + a, c + b);
  expect_names(warnings_,
               {"train.xyz, frame 1 and train.xyz, frame 3", "train.xyz, frame 2 and validation.xyz, frame 2"});
  expect_names(
      message_of(ErrorCode::bad_file, [&] { (void)read(a + frame_text(2, "energy=-5 stress=\"0 0 0 0 0 0\""), c); }),
      {"train.xyz, frame 1 and train.xyz, frame 2", "different labels"});
  // A label that is not read is none.
  warnings_.clear();
  (void)read(a + frame_text(2, "energy=-5 config_energy_weight=0 stress=\"0.1 0 0.02 0 0.2 0 0.02 0 0.3\""), c);
  expect_names(warnings_, {"train.xyz, frame 1 and train.xyz, frame 2"});
}

TEST_F(TrainingSets, NamesASpeciesThatTheModelLacks) {
  const std::string si = frame_text(2, kLabels), ge = frame_text(2.1, kLabels, "Ge");
  expect_names(message_of(ErrorCode::bad_file, [&] { (void)read(ge, si, {14}); }),
               {"train.xyz, frame 1", "Ge", "the model has Si"});
  expect_names(message_of(ErrorCode::bad_file, [&] { (void)read(si, ge); }),
               {"validation.xyz, frame 1", "Ge", "the training set has only Si"});
}

TEST_F(TrainingSets, RefusesValuesThatNoUnitExplains) {
  const std::string good = frame_text(2.1, kLabels);
  const auto refused = [&](const std::string& frame) {
    return message_of(ErrorCode::bad_file, [&] { (void)read(frame + frame_text(2.2, kLabels), good); });
  };
  expect_names(refused(frame_text(2, "energy=-400000 stress=\"0 0 0 0 0 0\"")), {"eV per atom", "not in eV"});
  expect_names(refused(frame_text(2, "energy=-4 stress=\"160 160 160 0 0 0\"")), {"GPa", "data.check_units"});
  expect_names(refused(frame_text(0.2, kLabels)), {"not in angstrom"});
  EXPECT_EQ(read(frame_text(0.2, kLabels), good, {}, false).training.size(), 1u);
}

TEST_F(TrainingSets, TakesAFractionForValidation) {
  std::string text;
  for (int i = 0; i < 10; ++i) text += frame_text(2 + 0.05 * i, kLabels);
  std::ofstream(folder_ / "train.xyz") << text;
  TrainingConfig config = TrainingConfig::parse(config_text(), "config.json", folder_);
  config.validation.clear();
  config.validation_fraction = 0.2;
  const auto ignore = [](const std::string&) {};
  const DataSet data = read_data(config, 3.5, {}, ignore);
  EXPECT_EQ(data.training.size(), 8u);
  EXPECT_EQ(data.validation.size(), 2u);
  EXPECT_EQ(read_data(config, 3.5, {}, ignore).validation[0].name, data.validation[0].name);
  config.validation_fraction = 0.01;
  expect_names(message_of(ErrorCode::bad_file, [&] { (void)read_data(config, 3.5, {}, ignore); }),
               {"of 10 frames takes 0", "at least one for validation"});
}

TEST(TrainingStatistics, FindEnergiesOfElements) {
  const auto frame = [](int n_ge, double energy) {
    std::string text = "3\nenergy=" + std::to_string(energy) + " Properties=species:S:1:pos:R:3:forces:R:3\n";
    for (int i = 0; i < 3; ++i) text += std::string(i < n_ge ? "Ge " : "Si ") + std::to_string(2 * i) + " 0 0 0 0 0\n";
    return text;
  };
  const std::vector<Frame> frames = frames_of(frame(0, -12) + frame(1, -11) + frame(2, -10));
  const EnergyFit fit = fit_energies(frames, {14, 32});
  EXPECT_NEAR(fit.energies[0], -4, 1e-12);
  EXPECT_NEAR(fit.energies[1], -3, 1e-12);
  EXPECT_NEAR(fit.spread, 0, 1e-12);
  // One composition says nothing of the difference: the solution of least norm.
  const std::vector<Frame> alike = frames_of(frame(1, -11));
  const EnergyFit least = fit_energies(alike, {14, 32});
  EXPECT_NEAR(least.energies[0], 2 * least.energies[1], 1e-12);
  EXPECT_NEAR(2 * least.energies[0] + least.energies[1], -11, 1e-12);

  const Statistics statistics =
      statistics_of(frames, {14, 32}, config_of(R"(, "reference_energies": {"Si": -4, "Ge": -4})"));
  EXPECT_NEAR(statistics.shift, 1.0 / 3, 1e-12);
  EXPECT_NEAR(statistics.avg_num_neighbors, 4.0 / 3, 1e-12);
  expect_names(message_of(ErrorCode::bad_file,
                          [&] {
                            (void)statistics_of(frames, {14, 32}, config_of(R"(, "reference_energies": {"Si": -4})"));
                          }),
               {"'reference_energies'", "Ge"});
}

/// The loss of a batch with a tiny model, and its derivative by all parameters.
double batch_loss(Model& model, const std::vector<const Frame*>& frames, const TrainingConfig& config,
                  StateDict* gradient) {
  std::vector<Graph> graphs;
  for (const Frame* frame : frames) graphs.push_back(frame->graph);
  const Graph graph = Graph::join(graphs);
  EvaluateOptions options;
  options.use_fast = UseFast::never;
  const BatchLoss loss = compare(frames, model.evaluate(graph, options), config, gradient != nullptr);
  if (gradient != nullptr) *gradient = model.weighted_gradients(graph, loss.weights, options);
  return loss.penalties.loss(config);
}

TEST(TrainingLoss, GradientMatchesFiniteDifferences) {
  const std::vector<Frame> frames = frames_of(frame_text(2, kLabels) + frame_text(2.3, "energy=-3 pbc=\"T T F\"") +
                                              frame_text(2.6,
                                                         "energy=-5 stress=\"1 2 3 4 5 6\" config_weight=0.5 "
                                                         "config_forces_weight=3"));
  const std::vector<const Frame*> batch{&frames[0], &frames[1], &frames[2]};
  for (const char* penalty : {"squared", "huber"}) {
    // Some residuals are on the curved, some on the straight part.
    const TrainingConfig config =
        config_of(R"(, "loss": {"energy": 3, "forces": 2, "stress": 0.7, "huber_delta": 0.3, "penalty": ")" +
                  std::string(penalty) + "\"}");
    const auto model = Model::create(model_config(kModel, {14}, 2.5), 3);
    StateDict gradient;
    (void)batch_loss(*model, batch, config, &gradient);
    double largest = 0, worst = 0;
    for (const auto& [name, tensor] : model->named_parameters()) {
      for (std::int64_t i = 0; i < std::min<std::int64_t>(3, tensor.numel()); ++i) {
        double& weight = tensor.data<double>()[i];
        const double before = weight, step = 1e-5;
        double values[2];
        for (int side = 0; side < 2; ++side) {
          weight = before + (side == 0 ? -step : step);
          for (const auto& [path, module] : model->named_modules()) module->touch();
          values[side] = batch_loss(*model, batch, config, nullptr);
        }
        weight = before;
        const double expected = (values[1] - values[0]) / (2 * step), got = gradient.at(name).data<double>()[i];
        largest = std::max(largest, std::abs(expected));
        worst = std::max(worst, std::abs(got - expected));
      }
    }
    EXPECT_GT(largest, 0.01);
    EXPECT_LT(worst, 1e-7 * largest) << penalty;  // of central differences
  }
}

TEST(TrainingLoss, CountsFramesByTheirWeights) {
  // Two structures of two atoms, results 0.3 and -0.4 eV, forces 0.1 eV/A off in one component, stress 0.01 off.
  const std::string labels = "energy=0 stress=\"0 0 0 0 0 0\" ";
  const TrainingConfig config = config_of(R"(, "loss": {"energy": 5, "forces": 2, "stress": 3})");
  std::vector<Frame> frames =
      frames_of(frame_text(2, labels + "config_weight=4 config_forces_weight=0.25") +
                    frame_text(2.3, labels + "config_energy_weight=0.5 config_forces_weight=7 config_stress_weight=10"),
                config);
  const std::vector<const Frame*> batch{&frames[0], &frames[1]};
  EvaluationResult result;
  result.graph_energies = Tensor::from<double>({2}, {0.3, -0.4});
  std::vector<double> forces = frames[0].forces;
  forces.insert(forces.end(), frames[1].forces.begin(), frames[1].forces.end());
  forces[0] += 0.1;
  forces[6] -= 0.2;
  result.forces = Tensor::from<double>({4, 3}, forces);
  std::vector<double> stresses(18, 0.0);
  stresses[0] = 0.01;
  stresses[9] = 0.02;
  result.graph_stresses = Tensor::from<double>({2, 3, 3}, stresses);
  const BatchLoss loss = compare(batch, result, config, true);
  const double energy = (4 * 0.15 * 0.15 + 0.5 * 0.2 * 0.2) / 2;
  const double force = (1 * 0.1 * 0.1 + 7 * 0.2 * 0.2) / 12;
  const double stress = (4 * 0.01 * 0.01 + 10 * 0.02 * 0.02) / 18;
  EXPECT_NEAR(loss.penalties.loss(config), 5 * energy + 2 * force + 3 * stress, 1e-15);
  // What is reported has no weights.
  EXPECT_NEAR(*loss.errors.errors().energy, std::sqrt((0.15 * 0.15 + 0.2 * 0.2) / 2), 1e-15);
  EXPECT_NEAR(*loss.errors.errors().forces, std::sqrt((0.1 * 0.1 + 0.2 * 0.2) / 12), 1e-15);
  EXPECT_NEAR(*loss.errors.errors().stress, std::sqrt((0.01 * 0.01 + 0.02 * 0.02) / 18), 1e-15);
  // Derivatives of that sum.
  EXPECT_NEAR(loss.weights.energies.span<double>()[0], 5.0 / 2 * 4 * 2 * 0.15 / 2, 1e-15);
  EXPECT_NEAR(loss.weights.energies.span<double>()[1], 5.0 / 2 * 0.5 * 2 * -0.2 / 2, 1e-15);
  EXPECT_NEAR(loss.weights.forces.span<double>()[6], 2.0 / 12 * 7 * 2 * -0.2, 1e-15);
  EXPECT_NEAR(loss.weights.stresses.span<double>()[0], 3.0 / 18 * 4 * 2 * 0.01, 1e-15);
  EXPECT_NEAR(loss.weights.stresses.span<double>()[9], 3.0 / 18 * 10 * 2 * 0.02, 1e-15);
}

TEST(TrainingLoss, OfASetDoesNotDependOnBatches) {
  const std::vector<Frame> frames = frames_of(frame_text(2, kLabels) + frame_text(2.3, "energy=-3 pbc=\"T T F\""));
  const TrainingConfig config = config_of();
  const auto model = Model::create(model_config(kModel, {14}, 2.5), 3);
  EvaluateOptions options;
  options.use_fast = UseFast::never;
  PenaltySums parts;
  for (const Frame& frame : frames) {
    const std::vector<const Frame*> one{&frame};
    parts.add(compare(one, model->evaluate(frame.graph, options), config, false).penalties);
  }
  const double whole = batch_loss(*model, {&frames[0], &frames[1]}, config, nullptr);
  EXPECT_NEAR(parts.loss(config), whole, 1e-12 * whole);
}

TEST(TrainingOptimizer, StepsByTheLearningRateAtFirst) {
  TrainingConfig config = config_of();
  config.learning_rate = 0.1;
  Optimizer adam(2, config);
  std::vector<double> weights{1, 1};
  adam.step(weights, std::vector<double>{3, -0.001});
  EXPECT_NEAR(weights[0], 0.9, 1e-8);
  EXPECT_NEAR(weights[1], 1.1, 1e-5);
}

TEST(TrainingOptimizer, DecaysWeightsIndependentlyOfTheGradient) {
  TrainingConfig config = config_of();
  config.learning_rate = 0.1;
  config.weight_decay = 0.5;
  Optimizer adam(1, config);
  std::vector<double> weights{2};
  adam.step(weights, std::vector<double>{0});
  EXPECT_NEAR(weights[0], 2 * (1 - 0.1 * 0.5), 1e-15);
}

TEST(TrainingOptimizer, OfAmsgradRemembersLargeGradients) {
  TrainingConfig config = config_of();
  config.beta2 = 0.5;
  config.amsgrad = true;
  Optimizer amsgrad(1, config);
  config.amsgrad = false;
  Optimizer adam(1, config);
  std::vector<double> a{0}, b{0};
  for (int i = 0; i < 20; ++i) {
    amsgrad.step(a, std::vector<double>{i == 0 ? 100.0 : 1.0});
    adam.step(b, std::vector<double>{i == 0 ? 100.0 : 1.0});
  }
  EXPECT_NEAR(amsgrad.largest_square[0], 0.5 * 100 * 100, 1e-9);
  EXPECT_LT(std::abs(a[0]), 0.5 * std::abs(b[0]));
}

TEST(TrainingOptimizer, ClipsLongGradientsAlone) {
  std::vector<double> gradient{3, 4};
  EXPECT_EQ(clip(gradient, 10), 5);
  EXPECT_EQ(gradient[0], 3);
  EXPECT_EQ(clip(gradient, 1), 5);
  EXPECT_NEAR(gradient[0], 0.6, 1e-15);
  EXPECT_EQ(clip(gradient, 0), 1);
}

TEST(TrainingOptimizer, AveragesWeightsMoreSlowlyWithTime) {
  std::vector<double> average{0};
  add_to_average(average, std::vector<double>{1}, 1, 0.99);
  EXPECT_NEAR(average[0], 1 - 2.0 / 11, 1e-15);
  add_to_average(average, std::vector<double>{0}, 100000, 0.99);
  EXPECT_NEAR(average[0], 0.99 * (1 - 2.0 / 11), 1e-15);
  add_to_average(average, std::vector<double>{5}, 1, 0);
  EXPECT_EQ(average[0], 5);
}

TEST(TrainingSchedule, LowersTheRateWhereValidationStands) {
  TrainingConfig config = config_of(R"(, "schedule": {"patience": 1, "smallest_learning_rate": 0.3})");
  Schedule schedule;
  double rate = 1;
  std::vector<double> rates;
  for (const double loss : {5.0, 4.0, 4.5, 4.4, 3.0, 3.5, 3.6, 3.7, 3.8}) {
    rates.push_back(rate = schedule.after(rate, loss, config));
  }
  EXPECT_EQ(rates, (std::vector<double>{1, 1, 1, 0.5, 0.5, 0.5, 0.3, 0.3, 0.3}));
  config.schedule = TrainingConfig::Schedule::exponential;
  EXPECT_EQ(schedule.after(1, 1, config), 0.5);
  config.schedule = TrainingConfig::Schedule::constant;
  EXPECT_EQ(schedule.after(1, 9, config), 1);
}

TEST(TrainingRandom, PermutesEvenly) {
  Random random(7, 1);
  std::array<std::array<int, 3>, 3> counts{};
  constexpr int kTimes = 3000;
  for (int i = 0; i < kTimes; ++i) {
    const std::vector<std::int64_t> order = random.permutation(3);
    for (std::size_t k = 0; k < 3; ++k) ++counts[k][static_cast<std::size_t>(order[k])];
  }
  for (const auto& row : counts) {
    for (const int count : row) EXPECT_NEAR(count, kTimes / 3, 150);  // six standard deviations
  }
  EXPECT_NE(Random(7, 1).next(), Random(7, 2).next());
}

State some_state(const TrainingConfig& config) {
  State state(3, config);
  state.weights = {1, 2, 3};
  state.average = {0.1, -1e-300, 1.0 / 3};
  state.best = {4, 5, 6};
  state.optimizer.mean = {7, 8, 9};
  state.optimizer.square = {10, 11, 12};
  state.optimizer.learning_rate = 0.1 + 0.2;
  state.optimizer.steps = 17;
  state.schedule = {0.7, 3, 4};
  state.random = Random(UINT64_MAX - 5);
  state.order = {2, 0, 1};
  state.batch = 1;
  state.loss_sum = 1.0 / 7;
  state.gradient_norm = 2.5;
  state.seconds = 3.5;
  state.typical_loss = 4.5;
  state.waited = 5;
  state.stopped_early = true;
  state.history.push_back({1, 0.01, 0.5, 0.6, 0.7, {0.1, std::nullopt, 0.3}, true, 1.5});
  return state;
}

TEST_F(TrainingSets, ComeBackFromACheckpointToTheLastBit) {
  const TrainingConfig config = config_of();
  const State state = some_state(config);
  const fs::path file = folder_ / "checkpoint.safetensors", copy = folder_ / "copy.safetensors";
  write_checkpoint(file, state, {config.text(), "a", "b"});
  State again(3, config);
  read_checkpoint(file, {config.text(), "a", "b"}, again);
  EXPECT_EQ(again.average, state.average);
  EXPECT_EQ(again.random.state(), state.random.state());
  EXPECT_EQ(again.order, state.order);
  EXPECT_EQ(log_line(again.history.at(0)), log_line(state.history.at(0)));
  // Written again it is the same file, so nothing was left out on the way back.
  write_checkpoint(copy, again, {config.text(), "a", "b"});
  const auto content = [](const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(in), {});
  };
  EXPECT_EQ(content(file), content(copy));
}

TEST_F(TrainingSets, ACheckpointWithAnyByteChangedIsRefused) {
  const TrainingConfig config = config_of();
  const fs::path file = folder_ / "checkpoint.safetensors";
  write_checkpoint(file, some_state(config), {config.text(), "a", "b"});
  std::string content;
  {
    std::ifstream in(file, std::ios::binary);
    content.assign(std::istreambuf_iterator<char>(in), {});
  }
  const std::size_t data = content.size() - 9 * sizeof(double);  // of weights, averages and more, behind the header
  for (std::size_t at = data; at < content.size(); ++at) {
    std::string changed = content;
    changed[at] = static_cast<char>(changed[at] ^ 1);
    std::ofstream(file, std::ios::binary) << changed;
    State state(3, config);
    expect_names(message_of(ErrorCode::bad_file,
                            [&] {
                              read_checkpoint(file, {config.text(), "a", "b"}, state);
                            }),
                 {"checkpoint.safetensors", "was damaged"});
  }
  const std::size_t waited = content.find("\\\"waited\\\":");
  ASSERT_NE(waited, std::string::npos);
  std::string changed = content;
  char& digit = changed[waited + std::string("\\\"waited\\\":").size()];
  digit = digit == '1' ? '2' : '1';
  std::ofstream(file, std::ios::binary) << changed;
  State state(3, config);
  expect_names(message_of(ErrorCode::bad_file,
                          [&] {
                            read_checkpoint(file, {config.text(), "a", "b"}, state);
                          }),
               {"was damaged"});
}

TEST_F(TrainingSets, OfACheckpointAreThoseOfItsRun) {
  const TrainingConfig config = config_of();
  const fs::path file = folder_ / "checkpoint.safetensors";
  write_checkpoint(file, some_state(config), {config.text(), "a", "b"});
  TrainingConfig other = config_of(R"(, "optimizer": {"learning_rate": 0.02}, "epochs": 7)");
  other.output = "/elsewhere";
  State state(3, other);
  const std::string text = message_of(ErrorCode::invalid_argument, [&] {
    read_checkpoint(file, {other.text(), "x", "b"}, state);
  });
  expect_names(text, {"optimizer.learning_rate is 0.01, here 0.02", "data.training has other content"});
  EXPECT_EQ(text.find("epochs"), std::string::npos) << text;
  EXPECT_EQ(text.find("elsewhere"), std::string::npos) << text;
  State larger(4, config);
  expect_names(message_of(ErrorCode::bad_file,
                          [&] {
                            read_checkpoint(file, {config.text(), "a", "b"}, larger);
                          }),
               {"weights", "4 numbers"});
}

TEST(TrainingCurves, DrawEveryEpoch) {
  std::vector<TrainingEpoch> history;
  EXPECT_NE(curves(history).find("</svg>"), std::string::npos);
  for (int i = 1; i <= 3; ++i) history.push_back({i, 0.01, 1.0 / i, 0.0, 1, {0.1 / i, 0.2 / i, std::nullopt}, true, 1});
  const std::string svg = curves(history);
  std::size_t lines = 0;
  for (std::size_t at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1)) ++lines;
  EXPECT_EQ(lines, 3u);  // a loss of zero has no logarithm, and there is no stress
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

}  // namespace
}  // namespace fastpath::training
