#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>

#include "fastpath/error.hpp"
#include "fastpath/structure.hpp"
#include "fastpath/train.hpp"
#include "io/file.hpp"
#include "io/json_reader.hpp"
#include "io/printable.hpp"
#include "models/config.hpp"
#include "train/model_config.hpp"

namespace fastpath {
namespace {

namespace fs = std::filesystem;
using io::Json;
using io::JsonReader;

constexpr double kHuge = std::numeric_limits<double>::max();
constexpr double kNextToOne = 1 - 1e-12;
constexpr std::size_t kLargestFile = std::size_t{16} << 20;
constexpr const char* kNotNegative = "a number that is not negative";
constexpr const char* kFraction = "a number from 0 to below 1";

/// A path of the file system, relative ones from `directory`.
fs::path path_of(const std::string& text, const fs::path& directory) {
  const fs::path path(text);
  return path.is_absolute() ? path.lexically_normal() : (directory / path).lexically_normal();
}

void read_data(JsonReader& data, TrainingConfig& config, const fs::path& directory) {
  std::string file;
  if (data.text("training", file, true)) config.training = path_of(file, directory);
  if (const Json* found = data.find("validation", true)) {
    const double fraction = found->is_number() ? found->get<double>() : 0;
    if (found->is_string()) {
      config.validation = path_of(found->get<std::string>(), directory);
    } else if (fraction > 0 && fraction < 1) {
      config.validation_fraction = fraction;
    } else {
      data.wrong("validation", *found, "a file, or a fraction of the training set, between 0 and 1");
    }
  }
  for (auto [key, target] : {std::pair{"energy_key", &config.energy_key}, std::pair{"forces_key", &config.forces_key},
                             std::pair{"stress_key", &config.stress_key}}) {
    if (data.text(key, *target, false) && target->empty()) data.wrong(key, Json(""), "the name of a label");
  }
  std::string missing = "error";
  data.choice("missing_labels", missing, {"error", "skip"}, false);
  config.skip_missing_labels = missing == "skip";
  data.boolean("check_units", config.check_units);
}

/// A model to start from, in place of the architecture of a new one.
void read_start(JsonReader& model, TrainingConfig& config, const fs::path& directory) {
  std::string name;
  if (model.text("start_from", name, true)) {
    if (name.empty()) model.wrong("start_from", Json(""), "a model folder, or a name in a hub");
    // A name that is no folder beside the configuration is one in a hub.
    const fs::path path = path_of(name, directory);
    std::error_code error;
    const bool in_hub = name.find('/') == std::string::npos && !fs::is_directory(path, error);
    config.start_from = in_hub ? fs::path(name) : path;
  }
  if (model.text("head", config.start_head, false) && config.start_head.empty()) {
    model.wrong("head", Json(""), "the name of a head of the model");
  }
  std::string dtype;
  model.choice("dtype", dtype, {"float64", "float32"}, false);
  if (!dtype.empty()) config.start_dtype = parse_dtype(dtype);
}

void read_reference_energies(JsonReader& reader, TrainingConfig& config) {
  const char* const key = "reference_energies";
  const bool starts = !config.start_from.empty();
  const Json* found = reader.raw(key);
  config.refit_reference_energies = starts && found != nullptr && *found == "fit";
  if (found == nullptr || *found == "fit" || (starts && *found == "model")) return;
  const char* const expected = starts ? "\"model\", \"fit\", or an object of energies in eV such as {\"Si\": -0.1}"
                                      : "\"fit\", or an object of energies in eV such as {\"Si\": -0.1}";
  if (!found->is_object() || found->empty()) return reader.wrong(key, *found, expected);
  config.reference_energies.emplace();
  for (const auto& [symbol, value] : found->items()) {
    std::int32_t number = 0;
    try {
      number = atomic_number(symbol);
    } catch (const Error&) {
    }
    if (number == 0) {
      reader.problem(fmt::format("key '{}' has {}, expected symbols of elements", key, io::printable(symbol)));
    } else if (!value.is_number() || !std::isfinite(value.get<double>())) {
      reader.problem(fmt::format("key '{}.{}' is {}, expected an energy in eV", key, symbol, io::shown(value)));
    } else {
      (*config.reference_energies)[number] = value.get<double>();
    }
  }
}

void read_scale(JsonReader& reader, TrainingConfig& config) {
  const Json* found = reader.raw("scale");
  if (found == nullptr) return;
  if (!config.start_from.empty()) {
    if (*found != "model")
      reader.wrong("scale", *found, "\"model\", as the starting model's weights belong to its scale");
    return;
  }
  if (*found == "data") return;
  const double read = found->is_number() ? found->get<double>() : std::nan("");
  if (!std::isfinite(read) || read <= 0) return reader.wrong("scale", *found, "\"data\", or a positive number");
  config.scale = read;
}

void read_shift(JsonReader& reader, TrainingConfig& config) {
  const bool starts = !config.start_from.empty();
  const Json* found = reader.raw("shift");
  config.refit_shift = starts && found != nullptr && *found == "data";
  if (found == nullptr || *found == "data" || (starts && *found == "model")) return;
  const double read = found->is_number() ? found->get<double>() : std::nan("");
  if (!std::isfinite(read)) {
    return reader.wrong("shift", *found, starts ? "\"model\", \"data\", or a number" : "\"data\", or a number");
  }
  config.shift = read;
}

void read_loss(JsonReader& loss, TrainingConfig& config) {
  loss.number_in("energy", config.energy_weight, 0, kHuge, kNotNegative);
  loss.number_in("forces", config.forces_weight, 0, kHuge, kNotNegative);
  loss.number_in("stress", config.stress_weight, 0, kHuge, kNotNegative);
  std::string penalty = "squared";
  loss.choice("penalty", penalty, {"squared", "huber"}, false);
  config.penalty = penalty == "huber" ? TrainingConfig::Penalty::huber : TrainingConfig::Penalty::squared;
  loss.number("huber_delta", config.huber_delta, false);
  if (!(config.energy_weight + config.forces_weight + config.stress_weight > 0)) {
    loss.problem("key 'loss' has no weight above 0, so there is nothing to fit");
  }
}

void read_optimizer(JsonReader& optimizer, TrainingConfig& config) {
  std::string name = "adam";
  optimizer.choice("name", name, {"adam", "amsgrad"}, false);
  config.amsgrad = name == "amsgrad";
  optimizer.number("learning_rate", config.learning_rate, false);
  optimizer.number_in("beta1", config.beta1, 0, kNextToOne, kFraction);
  optimizer.number_in("beta2", config.beta2, 0, kNextToOne, kFraction);
  optimizer.number("epsilon", config.epsilon, false);
  optimizer.number_in("weight_decay", config.weight_decay, 0, kHuge, kNotNegative);
  optimizer.number_in("clip_norm", config.clip_norm, 0, kHuge, kNotNegative);
  optimizer.number_in("average_decay", config.average_decay, 0, kNextToOne, kFraction);
}

void read_schedule(JsonReader& schedule, TrainingConfig& config) {
  std::string name = "plateau";
  schedule.choice("name", name, {"constant", "exponential", "plateau"}, false);
  config.schedule = name == "constant"      ? TrainingConfig::Schedule::constant
                    : name == "exponential" ? TrainingConfig::Schedule::exponential
                                            : TrainingConfig::Schedule::plateau;
  schedule.number_in("factor", config.schedule_factor, 1e-12, 1, "a number above 0, at most 1");
  schedule.integer("patience", config.schedule_patience, 0, 1000000, false);
  schedule.number_in("smallest_learning_rate", config.smallest_learning_rate, 0, kHuge, kNotNegative);
}

}  // namespace

TrainingConfig TrainingConfig::parse(const std::string& text, const std::string& name, const fs::path& directory) {
  const Json json = io::parse_json(text, name);
  if (!json.is_object()) throw Error(ErrorCode::bad_file, fmt::format("{}: not a JSON object", name));
  JsonReader reader(json, name);
  TrainingConfig config;
  const Json* model = reader.find("model", true);
  if (model != nullptr && !model->is_object()) {
    reader.wrong("model", *model, "an object, a config.json of a model or a model to start from");
  }
  if (model != nullptr && model->is_object() && model->contains("start_from")) {
    reader.section("model", true, [&](JsonReader& section) { read_start(section, config, directory); });
  } else if (model != nullptr && model->is_object()) {
    config.model = model->dump();
    try {
      // With something in place of what follows from the data.
      const auto parsed = models::MaceConfig::parse(training::model_config(config.model, {1}, 1.0), "key 'model'");
      if (parsed.heads.size() > 1) {
        reader.problem(fmt::format("key 'model': key 'heads' has {} names, a model that is trained has one head",
                                   parsed.heads.size()));
      }
    } catch (const Error& error) {
      reader.problem(error.what());
    }
  }
  reader.section("data", true, [&](JsonReader& data) { read_data(data, config, directory); });
  read_reference_energies(reader, config);
  read_scale(reader, config);
  read_shift(reader, config);
  reader.section("loss", false, [&](JsonReader& loss) { read_loss(loss, config); });
  reader.section("optimizer", false, [&](JsonReader& optimizer) { read_optimizer(optimizer, config); });
  reader.section("schedule", false, [&](JsonReader& section) { read_schedule(section, config); });
  reader.integer("batch_size", config.batch_size, 1, 1000000, false);
  reader.integer("epochs", config.epochs, 1, 100000000, false);
  reader.integer("early_stopping", config.early_stopping, 0, 100000000, false);
  reader.integer("seed", config.seed, 0, INT64_MAX, false);
  reader.number_in("explosion", config.explosion, 0, kHuge, kNotNegative);
  if (const Json* found = reader.raw("use_fast")) {
    try {
      config.use_fast = found->is_boolean() ? resolve_use_fast(found->get<bool>())
                                            : resolve_use_fast(std::string_view(found->get<std::string>()));
    } catch (const std::exception&) {
      reader.wrong("use_fast", *found, "true, false or \"auto\"");
    }
  }
  reader.number_in("checkpoint_seconds", config.checkpoint_seconds, 0, kHuge, kNotNegative);
  std::string output;
  if (reader.text("output", output, true)) {
    if (output.empty()) reader.wrong("output", Json(""), "a folder");
    config.output = path_of(output, directory);
  }
  reader.finish(true);
  return config;
}

TrainingConfig TrainingConfig::read(const fs::path& file) {
  const std::string text = io::read_small_file(file, kLargestFile);
  return parse(text, file.string(), file.has_parent_path() ? file.parent_path() : fs::path("."));
}

std::string TrainingConfig::text() const {
  Json json;
  const bool starts = !start_from.empty();
  if (starts) {
    json["model"] = {{"start_from", start_from.string()}};
    if (!start_head.empty()) json["model"]["head"] = start_head;
    if (start_dtype) json["model"]["dtype"] = std::string(to_string(*start_dtype));
  } else {
    json["model"] = Json::parse(model);
  }
  Json& data = json["data"];
  data["training"] = training.string();
  data["validation"] = validation.empty() ? Json(validation_fraction) : Json(validation.string());
  data["energy_key"] = energy_key;
  data["forces_key"] = forces_key;
  data["stress_key"] = stress_key;
  data["missing_labels"] = skip_missing_labels ? "skip" : "error";
  data["check_units"] = check_units;
  json["reference_energies"] = starts && !refit_reference_energies ? "model" : "fit";
  if (reference_energies) {
    Json energies = Json::object();
    for (const auto& [number, energy] : *reference_energies) energies[chemical_symbol(number)] = energy;
    json["reference_energies"] = energies;
  }
  json["scale"] = scale ? Json(*scale) : Json(starts ? "model" : "data");
  json["shift"] = shift ? Json(*shift) : Json(starts && !refit_shift ? "model" : "data");
  json["loss"] = {{"energy", energy_weight},
                  {"forces", forces_weight},
                  {"stress", stress_weight},
                  {"penalty", penalty == Penalty::huber ? "huber" : "squared"},
                  {"huber_delta", huber_delta}};
  json["optimizer"] = {{"name", amsgrad ? "amsgrad" : "adam"},
                       {"learning_rate", learning_rate},
                       {"beta1", beta1},
                       {"beta2", beta2},
                       {"epsilon", epsilon},
                       {"weight_decay", weight_decay},
                       {"clip_norm", clip_norm},
                       {"average_decay", average_decay}};
  json["schedule"] = {{"name", schedule == Schedule::constant      ? "constant"
                               : schedule == Schedule::exponential ? "exponential"
                                                                   : "plateau"},
                      {"factor", schedule_factor},
                      {"patience", schedule_patience},
                      {"smallest_learning_rate", smallest_learning_rate}};
  json["batch_size"] = batch_size;
  json["epochs"] = epochs;
  json["early_stopping"] = early_stopping;
  json["seed"] = seed;
  json["explosion"] = explosion;
  json["use_fast"] = std::string(to_string(use_fast));
  json["checkpoint_seconds"] = checkpoint_seconds;
  json["output"] = output.string();
  return json.dump(1) + "\n";
}

}  // namespace fastpath

namespace fastpath::training {

std::string model_config(const std::string& text, const std::vector<std::int32_t>& atomic_numbers,
                         double avg_num_neighbors) {
  Json given = Json::parse(text), json = {{"format", "fastpath-model"},       {"format_version", 1},
                                          {"architecture", "mace"},           {"dtype", "float64"},
                                          {"atomic_numbers", atomic_numbers}, {"avg_num_neighbors", avg_num_neighbors}};
  for (const auto& [key, value] : given.items()) json[key] = value;
  return json.dump();
}

}  // namespace fastpath::training
