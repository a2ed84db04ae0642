#pragma once

#include <cstdint>
#include <string>

#include "fastpath/model.hpp"

/// What evaluations of one structure, of several, and of derivatives share.
namespace fastpath::models {

/// The head that a structure is evaluated with: that of the options, else the frame's `head=`, else empty.
/// @throws Error(invalid_argument) if `head=` is not one name.
std::string head_of(const Structure& structure, const EvaluateOptions& options);

/// Bytes that an evaluation may need: the options', else the memory of the machine; 0 if that is unknown.
std::uint64_t memory_limit(const EvaluateOptions& options);

}  // namespace fastpath::models
