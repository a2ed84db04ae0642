#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "command_line.hpp"
#include "fastpath/error.hpp"
#include "terminal.hpp"

extern char** environ;

namespace fastpath::cli {

namespace {

namespace fs = std::filesystem;

/// Where the programs that measure are: beside this one, else in PATH. A build has them; an installation need not.
fs::path find_program(const std::string& name) {
  std::error_code error;
  const fs::path own = fs::read_symlink("/proc/self/exe", error);
  if (!error && ::access((own.parent_path() / name).c_str(), X_OK) == 0) return own.parent_path() / name;
  const char* const path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (!folder.empty() && ::access((fs::path(folder) / name).c_str(), X_OK) == 0) return fs::path(folder) / name;
  }
  throw Error(ErrorCode::unavailable, fmt::format("{} is neither in {} nor in PATH; a build of fastpath has it there",
                                                  name, own.parent_path().string()));
}

/// The script that compares, of the source tree that this program was built in, else in PATH.
fs::path find_script() {
  std::error_code error;
  fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (int up = 0; up < 5 && folder.has_relative_path(); ++up, folder = folder.parent_path()) {
    if (fs::exists(folder / "bench" / "compare_runs", error)) return folder / "bench" / "compare_runs";
  }
  return find_program("compare_runs");
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> result;
  for (std::string& word : words) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

/// Becomes the program.
[[noreturn]] void become(std::vector<std::string> words) {
  ::execv(words.front().c_str(), pointers(words).data());
  throw Error(ErrorCode::io, fmt::format("{}: cannot be run: {}", words.front(), std::strerror(errno)));
}

/// Runs a program to its end, its output into a file. @return Its exit status; 128 and the signal that ended it.
int run(std::vector<std::string> words, const fs::path& output) {
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  pid_t child = -1;
  const int code = ::posix_spawn(&child, words.front().c_str(), &actions, nullptr, pointers(words).data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (code != 0) throw Error(ErrorCode::io, fmt::format("{}: cannot be run: {}", words.front(), std::strerror(code)));
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) throw Error(ErrorCode::io, fmt::format("{}: {}", words.front(), std::strerror(errno)));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string content_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Measures a baseline again, at most twice, and prints what differs. @return 0, 1 if something is slower or gone, 2 if
/// that cannot be told.
int compare(const std::string& baseline, const fs::path& folder) {
  std::string name = baseline;
  for (char& c : name) c = c == '/' ? '-' : c;
  name = fs::path(name).stem().string();
  const std::string script = find_script().string();
  const fs::path said = folder / (name + ".txt");
  if (const int status = run({script, "--command", baseline}, said); status != 0) return 2;
  std::vector<std::string> command;
  std::istringstream words(content_of(said));
  for (std::string word; words >> word;) command.push_back(word);
  if (command.empty()) throw Error(ErrorCode::bad_file, fmt::format("{}: does not say how it was measured", baseline));
  command.front() = find_program(command.front()).string();
  std::vector<std::string> judge{script, "--json", (folder / (name + ".findings.json")).string(), baseline};
  int status = 1;
  for (int turn = 1; turn <= 2 && status == 1; ++turn) {
    const std::string now = (folder / fmt::format("{}-{}.json", name, turn)).string();
    std::vector<std::string> measure = command;
    measure.insert(measure.end(), {"--json", now});
    if (run(measure, folder / fmt::format("{}-{}.txt", name, turn)) != 0) return 2;
    judge.push_back(now);
    status = run(judge, said);
  }
  print(content_of(said));
  return status;
}

}  // namespace

int run_bench(const Arguments& arguments) {
  const std::string first = arguments.empty() ? std::string() : arguments.front();
  if (first == "model" || first == "ops") {
    std::vector<std::string> words(arguments.begin(), arguments.end());
    words.front() = find_program(first == "model" ? "fastpath_bench" : "fastpath_bench_ops").string();
    become(std::move(words));
  }
  CommandLine line("fastpath bench", "model|ops ARG... | --compare FILE...",
                   "how fast models, ops and kernels are here");
  line.describe(
      "'fastpath bench model ARG...' measures whole evaluations, 'fastpath bench ops\n"
      "ARG...' single ops: the reference and kernels of plugins take turns. 'model\n"
      "--help' and 'ops --help' show their options; --json FILE keeps the results.\n\n"
      "--compare measures again what such files hold, after an upgrade of fastpath, a\n"
      "plugin, a driver or the system, and tells what is slower by more than the\n"
      "spread, or is no longer there. What seems to be slower is measured once more.\n"
      "Exit status 1 if something is, 2 if that cannot be told: another CPU, another\n"
      "kind of build, a file that is none. Needs Python 3.");
  line.add()("compare", po::bool_switch(), "compare with these files of --json");
  line.add()("output,o", po::value<std::string>()->value_name("DIR")->default_value("."),
             "where the files of the new measurements go");
  line.operands("file", -1);
  line.example("fastpath bench model --model examples/models/demo --structure crystal --json before.json");
  line.example("fastpath bench --compare before.json --output /tmp");
  if (!line.parse(arguments)) return 0;
  const std::vector<std::string> files = line.list("file");
  if (!line.get<bool>("compare")) {
    line.fail(files.empty()
                  ? "nothing to do was named: expected model, ops or --compare"
                  : fmt::format("'{}' is unknown: expected model, ops or --compare", one_line(files.front())));
  }
  if (files.empty()) line.fail("--compare: expected files that --json wrote");
  const fs::path folder = line.text("output");
  std::error_code error;
  if (!fs::is_directory(folder, error)) {
    throw Error(ErrorCode::not_found, fmt::format("--output: there is no directory {}", folder.string()));
  }
  for (const std::string& file : files) {
    if (::access(file.c_str(), R_OK) != 0) {
      throw Error(ErrorCode::not_found, fmt::format("{}: cannot be read: {}", file, std::strerror(errno)));
    }
  }
  int worst = 0;
  for (const std::string& file : files) worst = std::max(worst, compare(file, folder));
  return worst;
}

}  // namespace fastpath::cli
