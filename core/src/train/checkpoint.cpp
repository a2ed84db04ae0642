#include "train/checkpoint.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "fastpath/error.hpp"
#include "fastpath/safetensors.hpp"
#include "io/json_reader.hpp"
#include "plugin/sha256.hpp"

namespace fastpath::training {
namespace {

using io::Json;

constexpr const char* kFormat = "fastpath-training-checkpoint";
constexpr const char* kVersion = "1";

Json json_of(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

std::optional<double> optional_number(const Json& json) {
  if (json.is_null()) return std::nullopt;
  return json.get<double>();
}

Json json_of(const TrainingEpoch& epoch) {
  return {{"epoch", epoch.epoch},
          {"learning_rate", epoch.learning_rate},
          {"training_loss", epoch.epoch > 0 ? Json(epoch.training_loss) : Json(nullptr)},
          {"validation_loss", epoch.validation_loss},
          {"energy_rmse", json_of(epoch.errors.energy)},
          {"forces_rmse", json_of(epoch.errors.forces)},
          {"stress_rmse", json_of(epoch.errors.stress)},
          {"gradient_norm", epoch.gradient_norm},
          {"best", epoch.best},
          {"seconds", epoch.seconds}};
}

TrainingEpoch epoch_of(const Json& json) {
  TrainingEpoch epoch;
  epoch.epoch = json.at("epoch").get<std::int64_t>();
  epoch.learning_rate = json.at("learning_rate").get<double>();
  epoch.training_loss = optional_number(json.at("training_loss")).value_or(std::nan(""));
  epoch.validation_loss = json.at("validation_loss").get<double>();
  epoch.errors = {optional_number(json.at("energy_rmse")), optional_number(json.at("forces_rmse")),
                  optional_number(json.at("stress_rmse"))};
  epoch.gradient_norm = json.at("gradient_norm").get<double>();
  epoch.best = json.at("best").get<bool>();
  epoch.seconds = json.at("seconds").get<double>();
  return epoch;
}

Json scalars_of(const State& state) {
  Json history = Json::array();
  for (const TrainingEpoch& epoch : state.history) history.push_back(json_of(epoch));
  return {{"learning_rate", state.optimizer.learning_rate},
          {"steps", state.optimizer.steps},
          {"schedule_best", state.schedule.best},
          {"schedule_waited", state.schedule.waited},
          {"schedule_epochs", state.schedule.epochs},
          {"random", state.random.state()},
          {"batch", state.batch},
          {"loss_sum", state.loss_sum},
          {"gradient_norm", state.gradient_norm},
          {"seconds", state.seconds},
          {"typical_loss", state.typical_loss},
          {"waited", state.waited},
          {"stopped_early", state.stopped_early},
          {"stopped_of", state.stopped_of},
          {"start", state.start ? json_of(*state.start) : Json(nullptr)},
          {"history", std::move(history)}};
}

void set_scalars(const Json& json, State& state) {
  state.optimizer.learning_rate = json.at("learning_rate").get<double>();
  state.optimizer.steps = json.at("steps").get<std::int64_t>();
  state.schedule.best = json.at("schedule_best").get<double>();
  state.schedule.waited = json.at("schedule_waited").get<std::int64_t>();
  state.schedule.epochs = json.at("schedule_epochs").get<std::int64_t>();
  state.random = Random(json.at("random").get<std::uint64_t>());
  state.batch = json.at("batch").get<std::int64_t>();
  state.loss_sum = json.at("loss_sum").get<double>();
  state.gradient_norm = json.at("gradient_norm").get<double>();
  state.seconds = json.at("seconds").get<double>();
  state.typical_loss = json.at("typical_loss").get<double>();
  state.waited = json.at("waited").get<std::int64_t>();
  state.stopped_early = json.at("stopped_early").get<bool>();
  state.stopped_of = json.value("stopped_of", std::int64_t{0});
  state.start.reset();
  if (const auto start = json.find("start"); start != json.end() && !start->is_null()) state.start = epoch_of(*start);
  state.history.clear();
  for (const Json& epoch : json.at("history")) state.history.push_back(epoch_of(epoch));
}

/// Every vector of a state with its name in the file.
template <class StateType, class Visit>
void for_each_vector(StateType& state, Visit visit) {
  visit("weights", state.weights);
  visit("average", state.average);
  visit("best", state.best);
  visit("optimizer.mean", state.optimizer.mean);
  visit("optimizer.square", state.optimizer.square);
  visit("optimizer.largest_square", state.optimizer.largest_square);
}

void flatten(const Json& json, const std::string& name, std::map<std::string, Json>& settings) {
  if (!json.is_object() || json.empty()) {
    settings[name] = json;
    return;
  }
  for (const auto& [key, value] : json.items()) flatten(value, name.empty() ? key : name + "." + key, settings);
}

std::map<std::string, Json> comparable_settings(const std::string& config) {
  Json json = Json::parse(config);
  for (const char* key : {"output", "checkpoint_seconds", "epochs"}) json.erase(key);
  json["data"].erase("training");
  if (json["data"]["validation"].is_string()) json["data"].erase("validation");
  if (json["model"].contains("start_from")) json["model"]["start_from"] = "a model";
  std::map<std::string, Json> settings;
  flatten(json, "", settings);
  return settings;
}

}  // namespace

std::vector<TrainingEpoch> State::everything() const {
  std::vector<TrainingEpoch> epochs;
  if (start) epochs.push_back(*start);
  epochs.insert(epochs.end(), history.begin(), history.end());
  return epochs;
}

std::string log_line(const TrainingEpoch& epoch) { return json_of(epoch).dump(); }

std::vector<std::string> differences(const std::string& there, const std::string& here) {
  const auto before = comparable_settings(there), now = comparable_settings(here);
  std::vector<std::string> result;
  for (const auto& [key, value] : before) {
    const auto found = now.find(key);
    if (found == now.end()) result.push_back(fmt::format("{} is {}, here it is not given", key, io::shown(value)));
    if (found != now.end() && found->second != value) {
      result.push_back(fmt::format("{} is {}, here {}", key, io::shown(value), io::shown(found->second)));
    }
  }
  for (const auto& [key, value] : now) {
    if (!before.contains(key)) result.push_back(fmt::format("{} is not given, here it is {}", key, io::shown(value)));
  }
  return result;
}

namespace {

/// Of everything that a run goes on from: a disk that lost a bit must not change a model unseen.
std::string sum_of(const State& state, const std::string& scalars) {
  plugin::Sha256 sum;
  const auto add = [&](const void* data, std::size_t bytes) { sum.add({static_cast<const std::byte*>(data), bytes}); };
  for_each_vector(state, [&](const char*, const std::vector<double>& values) {
    add(values.data(), values.size() * sizeof(double));
  });
  add(state.order.data(), state.order.size() * sizeof(std::int64_t));
  add(scalars.data(), scalars.size());
  return sum.finish();
}

}  // namespace

void write_checkpoint(const std::filesystem::path& file, const State& state, const RunIdentity& identity) {
  StateDict tensors;
  for_each_vector(state, [&](const char* name, const std::vector<double>& values) {
    tensors.add(name, Tensor::from<double>({static_cast<std::int64_t>(values.size())}, values));
  });
  tensors.add("order", Tensor::from<std::int64_t>({static_cast<std::int64_t>(state.order.size())}, state.order));
  const std::string scalars = scalars_of(state).dump();
  write_safetensors(file, tensors,
                    {{"format", kFormat},
                     {"version", kVersion},
                     {"config", identity.config},
                     {"training_hash", identity.training_hash},
                     {"validation_hash", identity.validation_hash},
                     {"start_hash", identity.start_hash},
                     {"copy_hash", identity.copy_hash},
                     {"state", scalars},
                     {"sum", sum_of(state, scalars)}});
}

std::string read_checkpoint(const std::filesystem::path& file, const RunIdentity& identity, State& state) {
  const SafetensorsFile content = read_safetensors(file);
  const auto fail = [&](const std::string& text) {
    throw Error(ErrorCode::bad_file, fmt::format("{}: {}", file.string(), text));
  };
  const auto entry = [&](const char* key) {
    const auto found = content.metadata.find(key);
    if (found == content.metadata.end()) fail(fmt::format("is no checkpoint of a training: it has no '{}'", key));
    return found->second;
  };
  if (const std::string format = entry("format"); format != kFormat) {
    fail(fmt::format("is a file of format '{}', expected '{}'", format, kFormat));
  }
  if (const std::string version = entry("version"); version != kVersion) {
    fail(fmt::format("is a checkpoint of version {}, this program reads {}", version, kVersion));
  }
  // Earlier checkpoints lack some.
  const auto optional_entry = [&](const char* key) {
    return content.metadata.contains(key) ? content.metadata.at(key) : std::string();
  };
  const std::string start_hash = optional_entry("start_hash");
  try {
    std::vector<std::string> different = differences(entry("config"), identity.config);
    if (entry("training_hash") != identity.training_hash) different.emplace_back("data.training has other content");
    if (entry("validation_hash") != identity.validation_hash) {
      different.emplace_back("data.validation has other content");
    }
    if (!start_hash.empty() && !identity.start_hash.empty() && start_hash != identity.start_hash) {
      different.emplace_back("model.start_from has other content");
    }
    if (!different.empty()) {
      throw Error(ErrorCode::invalid_argument, fmt::format("{}: is of a run of another configuration, where {}",
                                                           file.string(), fmt::join(different, "; ")));
    }
    if (optional_entry("copy_hash") != identity.copy_hash) {
      fail("the folder 'start' beside it is not the copy of the starting model that it goes with");
    }
    for_each_vector(state, [&](const char* name, std::vector<double>& values) {
      const Tensor* found = content.tensors.find(name);
      if (found == nullptr || found->dtype() != DType::float64 || found->numel() != std::ssize(values)) {
        fail(fmt::format("{} is missing or has not {} numbers", name, values.size()));
      }
      const auto span = found->span<double>();
      values.assign(span.begin(), span.end());
    });
    const auto order = content.tensors.at("order").span<std::int64_t>();
    state.order.assign(order.begin(), order.end());
    if (const std::string sum = optional_entry("sum"); !sum.empty() && sum != sum_of(state, entry("state"))) {
      fail("was damaged: its checksum is another one");
    }
    set_scalars(Json::parse(entry("state")), state);
  } catch (const Json::exception& error) {
    fail(fmt::format("its state cannot be read: {}", error.what()));
  }
  return start_hash;
}

}  // namespace fastpath::training
