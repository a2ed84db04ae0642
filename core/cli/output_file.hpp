#pragma once

#include <filesystem>
#include <string>

#include "command_line.hpp"

namespace fastpath::cli {

/// Finds out before the work, not after it, that a file cannot be written.
/// @param option  "--output", for messages.
/// @throws Error(invalid_argument) if it is a directory, Error(not_found) without its folder, Error(io) if that cannot
/// be written to.
void check_output(const std::filesystem::path& output, const std::string& option, const CommandLine& line);

/// Refuses a file that is read by the same command, by whatever name: what it holds would be lost.
/// @throws Error(invalid_argument) naming the file.
void check_apart(const std::filesystem::path& output, const std::string& option,
                 const std::vector<std::filesystem::path>& inputs, const CommandLine& line);

}  // namespace fastpath::cli
