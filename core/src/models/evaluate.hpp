#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "fastpath/model.hpp"

/// What evaluations of one structure, of several, and of derivatives share.
namespace fastpath::models {

/// The head that a structure is evaluated with: that of the options, else the frame's `head=`, else empty.
/// @throws Error(invalid_argument) if `head=` is not one name.
std::string head_of(const Structure& structure, const EvaluateOptions& options);

/// The folder that a path or the name of a model in a hub means.
/// @throws Error(not_found); Error(bad_file) if the one in the hub is not whole.
std::filesystem::path model_folder(const std::filesystem::path& name);

/// Bytes that an evaluation may need: the options', else the memory of the machine; 0 if that is unknown.
std::uint64_t memory_limit(const EvaluateOptions& options);

}  // namespace fastpath::models
