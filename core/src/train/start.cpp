#include "train/start.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "fastpath/error.hpp"
#include "io/file.hpp"
#include "models/evaluate.hpp"
#include "models/mace.hpp"
#include "plugin/sha256.hpp"
#include "train/statistics.hpp"

namespace fastpath::training {
namespace {

constexpr const char* kEnergies = "atomic_energies_fn.atomic_energies";
constexpr const char* kScale = "scale_shift.scale";
constexpr const char* kShift = "scale_shift.shift";

/// Rows and columns of a matrix that is stored flat.
Tensor block(const Tensor& flat, std::int64_t columns, std::int64_t first_row, std::int64_t n_rows,
             std::int64_t first_column, std::int64_t n_columns) {
  return flat.contiguous()
      .view({flat.numel() / columns, columns})
      .narrow(0, first_row, n_rows)
      .narrow(1, first_column, n_columns)
      .contiguous()
      .view({n_rows * n_columns});
}

}  // namespace

std::shared_ptr<Model> with_one_head(const Model& model, const std::string& head, DType stored) {
  models::MaceConfig config = models::MaceConfig::parse(model.config_text(), "model");
  const auto found = std::find(config.heads.begin(), config.heads.end(), head);
  if (found == config.heads.end()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("head '{}' is unknown; the model has {}", head, fmt::join(config.heads, ", ")));
  }
  const std::int64_t n = std::ssize(config.heads), h = found - config.heads.begin();
  const std::int64_t n_species = config.n_species(), width = config.mlp[0].mul;
  config.heads = {head};
  config.dtype = stored;
  StateDict state;
  for (const auto& [name, tensor] : model.state_dict()) {
    const bool readout = name.starts_with("readouts.");
    const std::int64_t channels = config.channels();
    if (name == kEnergies) {
      // One row for all heads, or one for each.
      const std::int64_t row = tensor.numel() > n_species ? h : 0;
      state.add(name, block(tensor, n_species, row, 1, 0, n_species));
    } else if (name == kScale || name == kShift) {
      state.add(name, block(tensor, 1, tensor.numel() > 1 ? h : 0, 1, 0, 1).view({}));
    } else if (readout && name.ends_with(".linear.weight")) {
      state.add(name, block(tensor, n, 0, channels, h, 1));
    } else if (readout && name.ends_with(".linear_1.weight")) {
      state.add(name, block(tensor, n * width, 0, channels, h * width, width));
    } else if (readout && name.ends_with(".linear_2.weight")) {
      const Tensor own = block(tensor, n, h * width, width, h, 1).clone();
      // A linear module divides by the root of the number of its inputs, of which there were n times as many.
      for (double& value : own.span<double>()) value /= std::sqrt(static_cast<double>(n));
      state.add(name, own);
    } else {
      state.add(name, tensor);
    }
  }
  auto result = std::make_shared<models::MaceModel>(std::move(config), &state);
  result->load_state_dict(state);
  return result;
}

std::shared_ptr<Model> starting_model(const TrainingConfig& config) {
  if (config.scale) {
    throw Error(ErrorCode::invalid_argument,
                "a scale is given with a model to start from, whose weights belong to its own scale; expected none");
  }
  const auto loaded = Model::load(config.start_from);
  const std::vector<std::string>& heads = loaded->heads();
  if (config.start_head.empty() && heads.size() > 1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("model '{}': has the heads {}; name the one to go on with (key 'model.head')",
                            config.start_from.string(), fmt::join(heads, ", ")));
  }
  try {
    return with_one_head(*loaded, config.start_head.empty() ? heads.front() : config.start_head,
                         config.start_dtype.value_or(loaded->stored_dtype()));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("model '{}': {}", config.start_from.string(), error.what()));
  }
}

void require_apart(const TrainingConfig& config) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path from = fs::weakly_canonical(config.start_from, error),
                 output = fs::weakly_canonical(config.output, error);
  for (const char* own : {"model", "start"}) {
    const fs::path replaced = output / own;
    const auto end = std::mismatch(replaced.begin(), replaced.end(), from.begin(), from.end()).first;
    if (end != replaced.end()) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("model '{}': lies in {}, which the run replaces; choose another output",
                            config.start_from.string(), (config.output / own).string()));
  }
}

void adjust_constants(Model& model, const std::vector<Frame>& frames, const TrainingConfig& config,
                      const EvaluateOptions& options) {
  const std::vector<std::int32_t>& elements = model.atomic_numbers();
  check_reference_energies(config, elements);
  // What the model gives, of frames with an energy.
  std::vector<double> own(frames.size(), 0);
  if (config.refit_reference_energies || config.refit_shift) {
    EvaluateOptions energies = options;
    energies.forces = energies.stress = false;
    for (std::size_t i = 0; i < frames.size(); ++i) {
      if (!frames[i].energy) continue;
      try {
        own[i] = model.evaluate(frames[i].graph, energies).energy;
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{}: {}", frames[i].name, error.what()));
      }
    }
  }
  const StateDict state = model.state_dict();
  StateDict changed;
  const Tensor references = state.at(kEnergies).contiguous().clone();
  std::vector<double> change(elements.size(), 0);
  if (config.refit_reference_energies) change = fit_energies(frames, elements, own).energies;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    double& energy = references.data<double>()[i];
    if (config.reference_energies) {
      const auto found = config.reference_energies->find(elements[i]);
      if (found != config.reference_energies->end()) change[i] = found->second - energy;
    }
    energy += change[i];
  }
  changed.add(kEnergies, references);
  double shift = state.at(kShift).item();
  if (config.refit_shift) shift += mean_energy(frames, elements, change, own);
  changed.add(kShift, Tensor::scalar(config.shift.value_or(shift)));
  model.load_state_dict(changed, Strictness::lenient);
}

std::string hash_of_model(const std::filesystem::path& folder) {
  std::string sums;
  for (const char* name : {"config.json", "model.safetensors"}) {
    const io::MappedFile file(folder / name);
    sums += plugin::sha256_of(file.bytes());
  }
  return plugin::sha256_of(std::as_bytes(std::span<const char>(sums.data(), sums.size())));
}

std::string hash_of_start(const TrainingConfig& config) {
  if (config.start_from.empty()) return {};
  try {
    return hash_of_model(models::model_folder(config.start_from));
  } catch (const Error& error) {
    if (error.code() == ErrorCode::not_found) return {};
    throw;
  }
}

}  // namespace fastpath::training
