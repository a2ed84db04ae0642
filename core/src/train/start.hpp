#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fastpath/model.hpp"
#include "train/data.hpp"

namespace fastpath::training {

/// A model of one head that gives what `model` gives for that head: the others' weights and constants are left out.
/// @throws Error(invalid_argument) listing the heads if there is none of this name.
std::shared_ptr<Model> with_one_head(const Model& model, const std::string& head, DType stored);

/// What a configuration starts from, with its own constants still.
/// @throws as Model::load(); Error(invalid_argument) where it has several heads and the configuration names none.
std::shared_ptr<Model> starting_model(const TrainingConfig& config);
/// @throws Error(invalid_argument) if it lies in a folder that the run replaces.
void require_apart(const TrainingConfig& config);

/// Changes the reference energies and the shift of a model of one head as the configuration asks for. Both fits are to
/// what the model's own energies leave of the labels, so that elements and combinations of them of which the frames
/// say nothing keep their values. @throws as Model::evaluate(), naming frames.
void adjust_constants(Model& model, const std::vector<Frame>& frames, const TrainingConfig& config,
                      const EvaluateOptions& options);

/// A checksum of config.json and model.safetensors in a folder. @throws Error(not_found), Error(io).
std::string hash_of_model(const std::filesystem::path& folder);
/// That of the folder or hub model that a configuration starts from; empty if there is none, or no longer.
std::string hash_of_start(const TrainingConfig& config);

}  // namespace fastpath::training
