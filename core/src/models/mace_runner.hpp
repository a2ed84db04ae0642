#pragma once

#include <memory>
#include <string>

#include "models/mace.hpp"

namespace fastpath::models {

/// A child by dotted path. The tree is our own: a missing one is a bug.
Module& child(Module& root, const std::string& path);

/// True if a density is made of the radial basis, which is then evaluated in any case.
bool has_density(const MaceConfig& config);

/// A program and what runs it; one for plain evaluations, one for those with a ghost exchange.
struct MaceModel::Runner {
  Program program;
  SlotId vectors = 0, species_nodes = 0, species_receivers = 0, head = 0, result = 0;
  std::unique_ptr<Executor> executor;
};

}  // namespace fastpath::models
