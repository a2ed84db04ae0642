#pragma once

#include "fastpath/error.hpp"

namespace fastpath::cli {

/// The exit status of the program for each kind of fault. docs/cli.md has the same table.
int exit_code(ErrorCode code) noexcept;

/// A command that examines something found something wrong.
inline constexpr int kFindings = 1;

/// What a shell reports for a program whose reader went away: 128 + SIGPIPE.
inline constexpr int kBrokenPipe = 141;

}  // namespace fastpath::cli
