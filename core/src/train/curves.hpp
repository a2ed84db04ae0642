#pragma once

#include <string>
#include <vector>

#include "fastpath/train.hpp"

namespace fastpath::training {

/// Learning curves as the text of an SVG image: losses and errors against the epoch, on logarithmic axes. The epochs
/// follow each other.
std::string curves(const std::vector<TrainingEpoch>& history);

}  // namespace fastpath::training
