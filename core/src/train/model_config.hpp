#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fastpath::training {

/// The config.json of a model, from the object that a training configuration has for it: with `format`,
/// `format_version`, `architecture`, `dtype`, and with what follows from the data where the object does not say.
std::string model_config(const std::string& text, const std::vector<std::int32_t>& atomic_numbers,
                         double avg_num_neighbors);

}  // namespace fastpath::training
