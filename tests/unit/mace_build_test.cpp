// From config text and folders to models: sizes, round trips, and what is wrong with a bad one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <limits>

#include "fastpath/error.hpp"
#include "support/mace_models.hpp"

namespace fastpath::test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

struct Size {
  const char* name;
  int n_species, channels, degree, n_bessel;
  const char* first;
  std::int64_t parameters;
};
void PrintTo(const Size& size, std::ostream* out) { *out << size.name; }
class MaceSize : public testing::TestWithParam<Size> {};

// operators.md 4: published, or computed from its section 3.
TEST_P(MaceSize, NumberOfParametersIsThatOfTheRealModel) {
  const Size& size = GetParam();
  Json config = m1_config();
  std::vector<int> elements;
  for (int z = 1; z <= size.n_species; ++z) elements.push_back(z);
  std::string hidden;
  for (int l = 0; l <= size.degree; ++l) {
    hidden += (l > 0 ? "+" : "") + std::to_string(size.channels) + "x" + std::to_string(l) + (l % 2 == 0 ? "e" : "o");
  }
  const std::string first = size.first;
  config.update({{"atomic_numbers", elements},
                 {"r_max", 6.0},
                 {"num_bessel", size.n_bessel},
                 {"radial_mlp", {64, 64, 64}},
                 {"hidden_irreps", hidden},
                 {"mlp_irreps", "16x0e"},
                 {"interaction_first", "RealAgnostic" + first + "InteractionBlock"},
                 {"interaction", first == "Density" ? "RealAgnosticDensityResidualInteractionBlock"
                                                    : "RealAgnosticResidualInteractionBlock"}});
  EXPECT_EQ(Model::create(config.dump(), 0)->parameter_count(), size.parameters);
}
INSTANTIATE_TEST_SUITE_P(Published, MaceSize,
                         testing::Values(Size{"Mp0aSmall", 89, 128, 0, 10, "Residual", 3'847'696},
                                         Size{"Mp0aMedium", 89, 128, 1, 10, "Residual", 4'688'656},
                                         Size{"Mp0aLarge", 89, 128, 2, 10, "Residual", 5'725'072},
                                         Size{"EarlyMp256Channels", 89, 256, 1, 8, "Residual", 15'847'440},
                                         Size{"Mp0bSmall", 89, 128, 0, 8, "", 8'221'968},
                                         Size{"Mp0bMedium", 89, 128, 1, 8, "", 9'062'928},
                                         Size{"Mp0b2Small", 89, 128, 0, 8, "Density", 8'221'984},
                                         Size{"Mp0b2Medium", 89, 128, 1, 8, "Density", 9'062'944},
                                         Size{"Mp0b2Large", 89, 128, 2, 8, "Density", 10'099'360},
                                         Size{"Mpa0", 89, 128, 1, 10, "Density", 9'063'204},
                                         Size{"Off23Small", 10, 96, 0, 8, "", 694'320},
                                         Size{"Off23Medium", 10, 128, 1, 8, "", 1'428'368},
                                         Size{"Off23Large", 10, 192, 2, 8, "", 3'551'952}),
                         [](const auto& size) { return std::string(size.param.name); });

/// A folder of this test's own, removed at its end.
class MaceFolder : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = fs::temp_directory_path() / ("fastpath-mace-" + std::to_string(getpid()) + "-" +
                                              testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(directory_);
    fs::create_directories(directory_);
  }
  void TearDown() override { fs::remove_all(directory_); }

  void write(const fs::path& folder, const std::string& config, const StateDict& state) const {
    fs::create_directories(folder);
    std::ofstream(folder / "config.json") << config;
    write_safetensors(folder / "model.safetensors", state, {});
  }
  std::size_t entries() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(directory_), fs::directory_iterator()));
  }
  static StateDict copy(const Model& model) {
    StateDict state;
    for (const auto& [name, tensor] : model.state_dict()) state.add(name, tensor);
    return state;
  }

  fs::path directory_;
};

/// Text and code of the error a call throws.
template <class Function>
std::string failure(ErrorCode code, Function function) {
  try {
    function();
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}
std::string config_failure(const std::string& config) {
  return failure(ErrorCode::bad_file, [&] { (void)Model::create(config, 0); });
}
std::string config_failure(const Json& changes) {
  Json config = small_config();
  config.update(changes);
  return config_failure(config.dump());
}

TEST_F(MaceFolder, ASavedModelComesBackTheSame) {
  const auto model = Model::create(small_config().dump(), 77);
  set_tensor(*model, "atomic_energies_fn.atomic_energies", {-13.6, -2041.8});
  model->save(directory_ / "deep" / "model");
  const auto again = Model::load(directory_ / "deep" / "model");
  EXPECT_EQ(again->config_text(), model->config_text());
  EXPECT_EQ(again->stored_dtype(), DType::float64);
  EXPECT_EQ(again->evaluate(system_b(), reference()).energy, model->evaluate(system_b(), reference()).energy);
  const StateDict want = model->state_dict(), found = again->state_dict();
  EXPECT_EQ(found.size(), want.size());
  for (const auto& [name, tensor] : want) {
    EXPECT_EQ(found.at(name).dtype(), tensor.dtype()) << name;
    EXPECT_EQ(found.at(name).shape(), tensor.shape()) << name;
    EXPECT_EQ(reals(found.at(name)), reals(tensor)) << name;
  }
}

TEST_F(MaceFolder, Float32StorageRoundsParametersOnceAndKeepsReferenceEnergies) {
  Json config = small_config();
  config["dtype"] = "float32";
  const auto model = Model::create(config.dump(), 77);
  EXPECT_EQ(model->stored_dtype(), DType::float32);
  set_tensor(*model, "atomic_energies_fn.atomic_energies", {-13.6, -2041.8000000001});
  model->save(directory_ / "first");
  const auto again = Model::load(directory_ / "first");
  EXPECT_EQ(again->stored_dtype(), DType::float32);
  EXPECT_EQ(reals(again->state_dict().at("atomic_energies_fn.atomic_energies"))[1], -2041.8000000001);
  const double energy = again->evaluate(system_b(), reference()).energy;
  EXPECT_NEAR(energy, model->evaluate(system_b(), reference()).energy, 1e-6 * std::abs(energy));
  again->save(directory_ / "second");  // rounding a second time changes nothing
  EXPECT_EQ(Model::load(directory_ / "second")->evaluate(system_b(), reference()).energy, energy);
  for (const auto& [name, tensor] : read_safetensors(directory_ / "second" / "model.safetensors").tensors) {
    const bool kept = name == "atomic_energies_fn.atomic_energies" || !is_floating(tensor.dtype());
    if (!kept) {
      EXPECT_EQ(tensor.dtype(), DType::float32) << name;
    }
  }
}

TEST_F(MaceFolder, SavingOverSomethingIsRefusedAndLeavesItAlone) {
  const auto model = Model::create(small_config().dump(), 1);
  fs::create_directories(directory_ / "taken");
  std::ofstream(directory_ / "taken" / "notes.txt") << "mine";
  std::ofstream(directory_ / "file") << "mine";
  EXPECT_THAT(failure(ErrorCode::io, [&] { model->save(directory_ / "taken"); }), HasSubstr("taken"));
  EXPECT_THAT(failure(ErrorCode::io, [&] { model->save(directory_ / "file"); }), HasSubstr("file"));
  // A parent that is a file.
  EXPECT_THAT(failure(ErrorCode::io, [&] { model->save(directory_ / "file" / "model"); }), HasSubstr("file"));
  EXPECT_EQ(entries(), 2u);
  EXPECT_TRUE(fs::exists(directory_ / "taken" / "notes.txt"));
  // An empty folder is fine, and so is a trailing slash.
  fs::create_directories(directory_ / "empty");
  model->save(directory_ / "empty" / "");
  EXPECT_NO_THROW((void)Model::load(directory_ / "empty"));
  EXPECT_EQ(entries(), 3u);
}

TEST_F(MaceFolder, AFailedSaveLeavesNothingBehind) {
  const auto model = Model::create(small_config().dump(), 1);
  // A name too long for the file system fails after the checks.
  const fs::path target = directory_ / "new" / std::string(300, 'x');
  EXPECT_THAT(failure(ErrorCode::io, [&] { model->save(target); }), HasSubstr("xxx"));
  EXPECT_EQ(entries(), 0u);
}

TEST_F(MaceFolder, ALoadedFolderWithoutAFileIsNamed) {
  const auto load = [&](const fs::path& path) {
    return failure(ErrorCode::not_found, [&] { (void)Model::load(path); });
  };
  EXPECT_THAT(load(directory_ / "nowhere"), HasSubstr("nowhere"));
  EXPECT_THAT(load("a-model-nobody-has"), HasSubstr("a-model-nobody-has"));
  std::ofstream(directory_ / "file") << "x";
  EXPECT_THAT(load(directory_ / "file"), HasSubstr("file"));
  const auto model = Model::create(small_config().dump(), 1);
  for (const char* missing : {"config.json", "model.safetensors"}) {
    const fs::path folder = directory_ / missing;
    model->save(folder);
    fs::remove(folder / missing);
    EXPECT_THAT(load(folder), AllOf(HasSubstr(folder.string()), HasSubstr(std::string("no ") + missing)));
  }
}

TEST_F(MaceFolder, ATruncatedFileIsABadFile) {
  const auto model = Model::create(small_config().dump(), 1);
  const fs::path folder = directory_ / "model";
  model->save(folder);
  fs::resize_file(folder / "model.safetensors", fs::file_size(folder / "model.safetensors") / 2);
  EXPECT_THAT(failure(ErrorCode::bad_file, [&] { (void)Model::load(folder); }), HasSubstr("model.safetensors"));
  fs::resize_file(folder / "config.json", 40);
  EXPECT_THAT(failure(ErrorCode::bad_file, [&] { (void)Model::load(folder); }), HasSubstr("config.json"));
}

TEST_F(MaceFolder, AHubNameFindsAModel) {
  const auto model = Model::create(small_config().dump(), 1);
  model->save(directory_ / "little");
  const char* before = std::getenv("FASTPATH_HUB");
  const std::string kept = before != nullptr ? before : "";
  ASSERT_EQ(setenv("FASTPATH_HUB", directory_.c_str(), 1), 0);
  EXPECT_EQ(Model::load("little")->config_text(), model->config_text());
  EXPECT_THAT(failure(ErrorCode::not_found, [&] { (void)Model::load("large"); }),
              AllOf(HasSubstr("large"), HasSubstr(directory_.string())));
  before != nullptr ? setenv("FASTPATH_HUB", kept.c_str(), 1) : unsetenv("FASTPATH_HUB");
}

TEST_F(MaceFolder, EveryWrongTensorIsListed) {
  const auto model = Model::create(small_config().dump(), 1);
  StateDict state;
  for (const auto& [name, tensor] : copy(*model)) {
    if (name == "readouts.0.linear.weight" || name == "products.1.linear.weight") continue;
    state.add(name, name == "interactions.0.linear_up.weight" ? Tensor::zeros({5}, DType::float64) : tensor);
  }
  state.add("interactions.7.linear.weight", Tensor::zeros({2}, DType::float64));
  write(directory_ / "bad", model->config_text(), state);
  EXPECT_THAT(failure(ErrorCode::bad_file, [&] { (void)Model::load(directory_ / "bad"); }),
              AllOf(HasSubstr("readouts.0.linear.weight"), HasSubstr("products.1.linear.weight"),
                    HasSubstr("interactions.0.linear_up.weight"), HasSubstr("interactions.7.linear.weight"),
                    HasSubstr("model.safetensors")));
}

TEST_F(MaceFolder, TensorsOfAnotherDtypeAreListed) {
  const auto model = Model::create(small_config().dump(), 1);
  StateDict state;
  for (const auto& [name, tensor] : copy(*model)) {
    state.add(name, name.starts_with("readouts.") ? tensor.to(DType::float32) : tensor);
  }
  write(directory_ / "bad", model->config_text(), state);
  EXPECT_THAT(failure(ErrorCode::bad_file, [&] { (void)Model::load(directory_ / "bad"); }),
              AllOf(HasSubstr("readouts.0.linear.weight is float32"),
                    HasSubstr("readouts.1.linear_2.weight is float32"), HasSubstr("float64")));
}

TEST_F(MaceFolder, FilesThatContradictEachOtherAreRefused) {
  const auto model = Model::create(small_config().dump(), 1);
  model->save(directory_ / "good");
  Json config = Json::parse(model->config_text());
  config["r_max"] = 4.5;
  config["atomic_numbers"] = {1, 6};
  write(directory_ / "bad", config.dump(), copy(*model));
  EXPECT_THAT(
      failure(ErrorCode::bad_file, [&] { (void)Model::load(directory_ / "bad"); }),
      AllOf(HasSubstr("r_max is 4, config.json says 4.5"), HasSubstr("atomic_numbers[1] is 8, config.json says 6")));
}

TEST_F(MaceFolder, TensorsWithoutMeaningForAnEvaluationAreIgnored) {
  const auto model = Model::create(small_config().dump(), 1);
  StateDict state = copy(*model);
  state.add("interactions.0.linear.bias", Tensor::zeros({0}, DType::float32));
  state.add("interactions.0.linear.output_mask", Tensor::zeros({4}, DType::float32));
  state.add("interactions.0.conv_tp.weight", Tensor::zeros({0}, DType::float32));
  state.add("interactions.0.conv_tp._compiled_main_left_right._w3j_1_1_0", Tensor::zeros({3, 3, 1}, DType::float32));
  state.add("products.0.symmetric_contractions.contractions.0.weights_0_zeroed", Tensor::zeros({}, DType::boolean));
  write(directory_ / "converted", model->config_text(), state);
  EXPECT_EQ(Model::load(directory_ / "converted")->evaluate(system_b(), reference()).energy,
            model->evaluate(system_b(), reference()).energy);
  // A bias that is there is not without meaning.
  state.add("interactions.1.linear.bias", Tensor::zeros({3}, DType::float64));
  write(directory_ / "biased", model->config_text(), state);
  EXPECT_THAT(failure(ErrorCode::bad_file, [&] { (void)Model::load(directory_ / "biased"); }),
              HasSubstr("interactions.1.linear.bias"));
}

TEST(MaceConfigText, UnknownKeysAreNamed) {
  EXPECT_THAT(config_failure(Json{{"r_maks", 5}, {"gates", "silu"}}), AllOf(HasSubstr("r_maks"), HasSubstr("gates")));
}

TEST(MaceConfigText, EveryRequiredKeyIsMissed) {
  const std::vector<std::string> required{"format",        "format_version",      "architecture",     "dtype",
                                          "r_max",         "atomic_numbers",      "num_bessel",       "l_max",
                                          "hidden_irreps", "polynomial_cutoff_p", "num_interactions", "correlation",
                                          "interaction",   "interaction_first",   "avg_num_neighbors"};
  for (const std::string& key : required) {
    Json config = small_config();
    config.erase(key);
    EXPECT_THAT(config_failure(config.dump()), HasSubstr("'" + key + "'")) << key;
  }
  // All at once, in one error.
  const std::string everything = config_failure(std::string("{}"));
  for (const std::string& key : required) EXPECT_THAT(everything, HasSubstr("'" + key + "'"));
}

TEST(MaceConfigText, WrongValuesAreNamedWithWhatWasExpected) {
  const std::vector<std::pair<const char*, std::vector<Json>>> wrong{
      {"format", {"mace", 1, nullptr}},
      {"format_version", {2, 0, "1", 1.5}},
      {"architecture", {"nequip", 3}},
      {"dtype", {"float16", 64}},
      {"atomic_numbers", {Json::array(), 8, {1, 1}, {0, 8}, {1, 119}, {1, "O"}, {1.0, 8.0}}},
      {"r_max", {0, -4, "4", nullptr, Json::array({4})}},
      {"num_bessel", {0, 4.5, "8", -1, 1e30}},
      {"polynomial_cutoff_p", {0, 5.5, true}},
      {"radial_type", {"gaussian", 1}},
      {"distance_transform", {"Agnesi", 0, true}},
      {"apply_cutoff", {"true", 1}},
      {"pair_repulsion", {"false", 0}},
      {"radial_mlp", {64, {64, 0}, {"64"}}},
      {"l_max", {-1, 12, 2.5, "2"}},
      {"hidden_irreps",
       {"", "nonsense", "3x0e+", "3x1o", "3x0e+4x1o", "3x0e+3x1e", "3x0e+3x2e", "0x0e", 3, "3x0e+3x0e"}},
      {"num_interactions", {0, 2.5, "2", 65}},
      {"correlation", {0, 5, "3", {3}, {3, 3, 3}, {3, "3"}, 2.5}},
      {"interaction_first", {"RealAgnosticAttResidualInteractionBlock", "", 1}},
      {"interaction", {"RealAgnosticResidualNonLinearInteractionBlock", nullptr}},
      {"mlp_irreps", {"16x1o", "nonsense", 16, "", "0x0e", "8x0e+8x0e"}},
      {"gate", {"relu", nullptr}},
      {"activation_constant", {0, "1.68"}},
      {"avg_num_neighbors", {0, -3, "14", {14}, {14, 0}, {14, 14, 14}}},
      {"heads", {Json::array(), "default", {"a", "a"}, {1}}},
      {"reduced_cg", {"no", 0}},
      {"keep_last_layer_irreps", {"no", 0}},
      {"convolutions", {1, Json::array(), {1, 2}}},
  };
  for (const auto& [key, values] : wrong) {
    for (const Json& value : values) {
      EXPECT_THAT(config_failure(Json{{key, value}}), HasSubstr(key)) << key << ": " << value.dump();
    }
  }
}

TEST(MaceConfigText, SeveralProblemsAreListedTogether) {
  EXPECT_THAT(config_failure(Json{{"r_max", -1}, {"l_max", 2.5}, {"interaction", "Foo"}, {"extra", 1}}),
              AllOf(HasSubstr("r_max"), HasSubstr("l_max"), HasSubstr("Foo"), HasSubstr("extra"),
                    HasSubstr("RealAgnosticResidualInteractionBlock")));
}

TEST(MaceConfigText, TextThatIsNoObjectIsRefused) {
  for (const char* text : {"", "[]", "3", "null", "{\"format\": ", "{} {}", "{\"r_max\": NaN}"}) {
    EXPECT_THAT(config_failure(std::string(text)), HasSubstr("config")) << text;
  }
  EXPECT_THAT(config_failure(std::string("{\"r_max\": 1, \"r_max\": 2}")), HasSubstr("twice"));
}

TEST(MaceConfigText, ConvolutionsMustFitTheModel) {
  const Json good = Json::parse(Model::create(small_config().dump(), 0)->config_text())["convolutions"];
  const auto with = [&](const char* key, const Json& value) {
    Json changed = good;
    changed[1][key] = value;
    return config_failure(Json{{"convolutions", changed}});
  };
  EXPECT_THAT(with("irreps_in", "5x0e"), HasSubstr("convolutions[1]"));
  EXPECT_THAT(with("irreps_edge", "1x0e"), HasSubstr("convolutions[1]"));
  EXPECT_THAT(with("irreps_out", "3x0e"), HasSubstr("convolutions[1]"));
  EXPECT_THAT(with("irreps_out", 3), HasSubstr("convolutions[1]"));
  EXPECT_THAT(with("instructions", Json{{0, 0}}), HasSubstr("convolutions[1]"));
  EXPECT_THAT(with("instructions", Json{{0, 99, 0}}), HasSubstr("convolutions[1]"));
  EXPECT_THAT(with("instructions", Json{{0, 0, 2}}), HasSubstr("convolutions[1]"));  // 0e x 0e is no vector
  EXPECT_THAT(with("path_weight", 1), HasSubstr("path_weight"));
}

TEST(MaceConfigText, ReadsBackWhatItWrites) {
  Json config = m2_config();
  config.update({{"heads", {"a", "b"}},
                 {"apply_cutoff", false},
                 {"keep_last_layer_irreps", true},
                 {"dtype", "float32"},
                 {"avg_num_neighbors", {3.25, 1.0 / 3.0}},
                 {"correlation", {2, 1}},
                 {"activation_constant", 1.6791767923989418}});
  const std::string text = models::MaceConfig::parse(config.dump(), "config").text();
  EXPECT_EQ(models::MaceConfig::parse(text, "config").text(), text);
  const Json written = Json::parse(text);
  for (const auto& [key, value] : config.items()) EXPECT_EQ(written[key], value) << key;
}

TEST(MaceSeed, TheSameSeedGivesTheSameWeightsAndAnotherSeedOthers) {
  const auto energy = [](std::uint64_t seed) {
    return Model::create(small_config().dump(), seed)->evaluate(system_b(), reference()).energy;
  };
  EXPECT_EQ(energy(1), energy(1));
  EXPECT_NE(energy(1), energy(2));
}

/// A host's wrapper that hides its model from children().
class Wrapper : public Module {
 public:
  explicit Wrapper(std::shared_ptr<Model> model) : model_(std::move(model)) {}
  void for_each_model(const std::function<void(Model&)>& visit) override { model_->for_each_model(visit); }

 private:
  std::shared_ptr<Model> model_;
};

TEST(MaceUseFast, IsSetThroughWrappers) {
  const auto model = Model::create(small_config().dump(), 1), hidden = Model::create(small_config().dump(), 2);
  Module parent;
  parent.register_child("inner", model);
  parent.register_child("wrapper", std::make_shared<Wrapper>(hidden));
  EXPECT_EQ(&set_use_fast(parent, "off"), &parent);
  EXPECT_EQ(model->use_fast(), UseFast::never);
  EXPECT_EQ(hidden->use_fast(), UseFast::never);
  set_use_fast(parent, true);
  EXPECT_EQ(model->use_fast(), UseFast::always);
  EXPECT_EQ(hidden->use_fast(), UseFast::always);
  EXPECT_THROW(set_use_fast(parent, "perhaps"), Error);
  EXPECT_EQ(model->use_fast(), UseFast::always);
  EXPECT_EQ(model->replica()->use_fast(), UseFast::always);
}

TEST(MaceInput, AMemoryLimitRefusesWithBothNumbers) {
  const auto model = mace_a();
  const Structure water = repeated(mace_a_structure("water8"), 2, 2, 2);
  EvaluateOptions options = reference();
  const MemoryEstimate need = model->memory_estimate(water, options);
  ASSERT_GT(need.workspace_bytes, std::uint64_t{4} << 20);
  options.memory_limit = std::uint64_t{3} << 20;
  EXPECT_THAT(failure(ErrorCode::out_of_memory, [&] { (void)model->evaluate(water, options); }),
              AllOf(HasSubstr(std::to_string(need.workspace_bytes >> 20)), HasSubstr("3 MiB"), HasSubstr("192 atoms")));
  options.memory_limit = need.workspace_bytes;
  EXPECT_NO_THROW((void)model->evaluate(water, options));
  // Float32 needs half, energies alone less, tangents more.
  EvaluateOptions single = reference(), energy = reference(), tangent = reference();
  single.dtype = DType::float32;
  energy.forces = energy.stress = false;
  tangent.direction = Tensor::zeros({water.size(), 3}, DType::float64);
  EXPECT_LT(model->memory_estimate(water, single).workspace_bytes, need.workspace_bytes * 6 / 10);
  EXPECT_LT(model->memory_estimate(water, energy).workspace_bytes, need.workspace_bytes);
  EXPECT_GT(model->memory_estimate(water, tangent).workspace_bytes, need.workspace_bytes);
}

TEST(MaceInput, NoAtomsHaveNoEnergy) {
  for (const auto& model : {mace_a(), Model::create(m2_config().dump(), 1)}) {
    const EvaluationResult nothing = model->evaluate(Structure{}, reference());
    EXPECT_EQ(nothing.energy, 0);
    EXPECT_EQ(nothing.n_atoms, 0);
    EXPECT_EQ(nothing.forces.shape(), (Shape{0, 3}));
    EXPECT_EQ(nothing.node_energies.shape(), (Shape{0}));
    EvaluateOptions everything = reference();
    everything.parameter_gradients = true;
    everything.direction = Tensor::zeros({0, 3}, DType::float64);
    const EvaluationResult gradients = model->evaluate(Structure{}, everything);
    for (const auto& [name, tensor] : gradients.parameter_gradients) {
      for (const double value : reals(tensor)) ASSERT_EQ(value, 0) << name;
    }
  }
}

TEST(MaceInput, AnAtomWithoutNeighboursHasNoForceAndNoStress) {
  Structure lonely;
  lonely.atomic_numbers = {8};
  lonely.positions = {{1, 2, 3}};
  lonely.cell = {{{30, 0, 0}, {0, 30, 0}, {0, 0, 30}}};
  lonely.pbc = {true, true, true};
  for (const auto& model : {mace_a(), Model::create(m2_config().dump(), 1)}) {
    for (const DType dtype : {DType::float64, DType::float32}) {
      EvaluateOptions options = reference();
      options.dtype = dtype;
      options.parameter_gradients = true;
      const EvaluationResult result = model->evaluate(lonely, options);
      EXPECT_EQ(result.n_edges, 0);
      EXPECT_EQ(reals(result.forces), (std::vector<double>{0, 0, 0}));
      EXPECT_EQ(reals(result.stress.value()), std::vector<double>(9, 0.0));
      EXPECT_EQ(result.energy, reals(result.node_energies)[0]);
    }
  }
}

TEST(MaceInput, AnUnknownSpeciesIsNamedWithItsAtom) {
  Structure structure = system_a();
  structure.atomic_numbers[2] = 26;
  EXPECT_THAT(failure(ErrorCode::invalid_argument, [&] { (void)mace_a()->evaluate(structure, reference()); }),
              AllOf(HasSubstr("atom 2"), HasSubstr("Fe"), HasSubstr("H, C, O")));
  structure.atomic_numbers[2] = 0;
  EXPECT_THAT(failure(ErrorCode::invalid_argument, [&] { (void)mace_a()->evaluate(structure, reference()); }),
              HasSubstr("atom 2"));
}

TEST(MaceInput, NonFiniteNumbersAreRefused) {
  for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    Structure structure = system_a();
    structure.positions[1][2] = bad;
    EXPECT_THAT(failure(ErrorCode::invalid_argument, [&] { (void)mace_a()->evaluate(structure, reference()); }),
                HasSubstr("atom 1"));
    const auto model = Model::create(small_config().dump(), 1);
    set_tensor(*model, "scale_shift.shift", {bad});
    EXPECT_THAT(failure(ErrorCode::numerics, [&] { (void)model->evaluate(system_a(), reference()); }),
                HasSubstr("atom 0"));
  }
}

TEST(MaceInput, ADirectionOfTheWrongShapeIsRefused) {
  EvaluateOptions options = reference();
  for (const Tensor& wrong : {Tensor::zeros({2, 3}, DType::float64), Tensor::zeros({3, 3}, DType::float32),
                              Tensor::zeros({9}, DType::float64)}) {
    options.direction = wrong;
    EXPECT_THAT(failure(ErrorCode::invalid_argument, [&] { (void)mace_a()->evaluate(system_a(), options); }),
                AllOf(HasSubstr("direction"), HasSubstr("[3, 3]")));
  }
}

TEST(MaceInput, OnlyWhatIsAskedForIsReturned) {
  EvaluateOptions options = reference();
  options.forces = options.stress = false;
  const EvaluationResult energy = mace_a()->evaluate(system_b(), options);
  EXPECT_FALSE(energy.forces.defined());
  EXPECT_FALSE(energy.stress.has_value());
  EXPECT_EQ(energy.parameter_gradients.size(), 0u);
  const EvaluationResult all = mace_a()->evaluate(system_b(), reference());
  EXPECT_EQ(energy.energy, all.energy);
  options.stress = true;
  const EvaluationResult stress = mace_a()->evaluate(system_b(), options);
  EXPECT_FALSE(stress.forces.defined());
  EXPECT_EQ(reals(stress.stress.value()), reals(all.stress.value()));
}

TEST(MaceInput, ResultsOfOneEvaluationOutliveTheNext) {
  const auto model = Model::create(small_config().dump(), 1);
  const EvaluationResult first = model->evaluate(system_b(), reference());
  const std::vector<double> forces = reals(first.forces), edges = reals(first.edge_forces),
                            energies = reals(first.node_energies);
  EvaluateOptions options = reference();
  options.parameter_gradients = true;
  (void)model->evaluate(system_a(), options);
  (void)model->evaluate(repeated(system_b(), 2, 1, 1), reference());
  EXPECT_EQ(reals(first.forces), forces);
  EXPECT_EQ(reals(first.edge_forces), edges);
  EXPECT_EQ(reals(first.node_energies), energies);
}

}  // namespace
}  // namespace fastpath::test
