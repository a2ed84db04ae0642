#pragma once

#include <string>
#include <utility>
#include <vector>

#include "models/mace.hpp"

namespace fastpath::torchscript {

/// The code of a module that computes what a model's reference does.
struct Script {
  std::string text;  ///< Methods, `forward` among them. Tensors are attributes by the names of the state dict.
  std::vector<std::pair<std::string, std::vector<double>>> constants;  ///< Entries of the attribute `constants`.
};

/// Writes out the steps of this model, block by block: operators.md 3. Inputs and outputs: docs/export.md.
/// @throws Error(unsupported) naming a part of the model that cannot be written.
Script mace_script(models::MaceModel& model);

}  // namespace fastpath::torchscript
