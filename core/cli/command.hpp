#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fastpath/error.hpp"

namespace fastpath::cli {

using Arguments = std::vector<std::string>;

/// One word after `fastpath`, or after a group such as `fastpath hub`.
struct Command {
  std::string_view name;
  std::string_view summary;                ///< One line of the help text.
  int (*run)(const Arguments& arguments);  ///< Arguments after the name; the exit status. Throws fastpath::Error.
};

int run_list(const Arguments& arguments);
int run_doctor(const Arguments& arguments);
int run_explain(const Arguments& arguments);
int run_eval(const Arguments& arguments);
int run_train(const Arguments& arguments);
int run_verify(const Arguments& arguments);
int run_tune(const Arguments& arguments);
int run_bench(const Arguments& arguments);
int run_cache(const Arguments& arguments);
int run_compile(const Arguments& arguments);
int run_export(const Arguments& arguments);
int run_hub(const Arguments& arguments);
int run_hub_create(const Arguments& arguments);
/// What there is of `fastpath tune` where one of --list, --export, --import, --merge and --forget is given.
int run_tune_store(const Arguments& arguments);
int run_version(const Arguments& arguments);

/// An invalid_argument whose text ends by pointing to a help text. @param program  "fastpath eval".
Error usage_error(const std::string& program, const std::string& text);

/// Runs the command that `arguments` begins with.
/// @param program  What was typed before, for messages: "fastpath" or "fastpath hub".
/// @throws Error(invalid_argument) naming an unknown word and the nearest command.
int dispatch(std::span<const Command> commands, const std::string& program, const Arguments& arguments);

}  // namespace fastpath::cli
