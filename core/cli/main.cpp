#include <fmt/format.h>

#include <array>
#include <csignal>
#include <exception>
#include <new>

#include "command.hpp"
#include "exit_code.hpp"
#include "fastpath/warning.hpp"
#include "nearest.hpp"
#include "terminal.hpp"

namespace fastpath::cli {

namespace {

constexpr std::array kCommands{
    Command{"list", "the plugins of this machine, and why one is not used", run_list},
    Command{"doctor", "what is right and wrong here: every plugin, every step, what to do", run_doctor},
    Command{"explain", "which path each module of a model would take, and why", run_explain},
    Command{"eval", "energies, forces and stress of structures", run_eval},
    Command{"train", "fit a model to energies, forces and stresses", run_train},
    Command{"verify", "whether a plugin keeps its contract, or a model its physics", run_verify},
    Command{"tune", "when kernels are faster than the reference on this machine", run_tune},
    Command{"bench", "how fast models, ops and kernels are here, and what an upgrade made slower", run_bench},
    Command{"compile", "make a model's kernels for devices that need not be here", run_compile},
    Command{"export", "write a model in a form that other programs load", run_export},
    Command{"hub", "models by name: make, add, list, verify and remove them", run_hub},
    Command{"cache", "what is kept between runs, and where", run_cache},
};

constexpr std::string_view kIntroduction =
    "fastpath runs equivariant interatomic-potential models (MACE) on structures.\n"
    "Each part of a model has reference code that runs anywhere; a plugin may bring a\n"
    "faster kernel for it. Which one runs is decided per evaluation, and can always be\n"
    "explained.\n";

constexpr std::string_view kExamples =
    "Examples:\n"
    "  fastpath list\n"
    "  fastpath eval --model examples/models/demo examples/structures/water.xyz\n"
    "  fastpath explain --model examples/models/demo examples/structures/water.xyz\n";

std::string overview(std::span<const Command> commands, const std::string& program) {
  const bool root = program == "fastpath";
  std::string text = root ? std::string(kIntroduction) + "\n" : std::string();
  text += fmt::format("Usage: {} COMMAND [OPTION...]\n\nCommands:\n", program);
  for (const Command& command : commands) text += fmt::format("  {:<10}{}\n", command.name, command.summary);
  text += fmt::format("\n'{} COMMAND --help' shows the options of a command and an example.\n", program);
  if (root) {
    text += "'fastpath --version' prints the version, with --json all build facts.\n\n";
    text += kExamples;
    text += "\nExit codes, environment variables and directories: docs/cli.md.\n";
  }
  return text;
}

}  // namespace

Error usage_error(const std::string& program, const std::string& text) {
  return {ErrorCode::invalid_argument,
          fmt::format("{}{} '{} --help' shows what there is", text, text.ends_with('?') ? "" : ";", program)};
}

int dispatch(std::span<const Command> commands, const std::string& program, const Arguments& arguments) {
  if (arguments.empty()) throw usage_error(program, "no command was given");
  const std::string& word = arguments[0];
  const Arguments rest(arguments.begin() + 1, arguments.end());
  if (word == "--help" || word == "-h" || (word == "help" && rest.empty())) {
    print(overview(commands, program));
    return 0;
  }
  std::vector<std::string> known;
  for (const Command& command : commands) {
    if (command.name == word) return command.run(rest);
    known.emplace_back(command.name);
  }
  if (word == "help") {
    Arguments help = rest;
    help.emplace_back("--help");
    return dispatch(commands, program, help);
  }
  const bool option = word.starts_with('-');
  if (option) known = {"--help", "--version"};
  throw usage_error(program,
                    fmt::format("unknown {} '{}'{}", option ? "option" : "command", word, did_you_mean(word, known)));
}

namespace {

int run(const Arguments& arguments) {
  // A reader that goes away, and a limit on the size of files, are errors of a write, not signals: what is being
  // written is then finished, or taken away.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  // As the library would print them, and in a line of their own where a status line is shown.
  set_warning_handler([](const FastPathPrecisionWarning& warning) { print_error("warning", warning.text); });
  set_kernel_warning_handler([](const FastPathKernelWarning& warning) { print_error("warning", warning.text); });
  try {
    int status = 0;
    if (!arguments.empty() && arguments[0] == "--version") {
      status = run_version(Arguments(arguments.begin() + 1, arguments.end()));
    } else {
      status = dispatch(kCommands, "fastpath", arguments);
    }
    finish_output();
    return status;
  } catch (const BrokenPipe&) {
    return kBrokenPipe;
  } catch (const Error& error) {
    print_error("error", error.what());
    return exit_code(error.code());
  } catch (const std::bad_alloc&) {
    print_error("error", "out of memory");
    return exit_code(ErrorCode::out_of_memory);
  } catch (const std::exception& error) {
    print_error("error", fmt::format("this is a bug of fastpath, please report it: {}", error.what()));
    return exit_code(ErrorCode::internal);
  }
}

}  // namespace

}  // namespace fastpath::cli

int main(int argc, char** argv) {
  return fastpath::cli::run(fastpath::cli::Arguments(argv + (argc > 0 ? 1 : 0), argv + argc));
}
