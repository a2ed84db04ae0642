#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <exception>
#include <string>
#include <thread>

#include "fastpath/conformance/conformance.hpp"

namespace fastpath::conformance {
namespace {

constexpr const char* kHelp = R"(Usage: fastpath-conformance PLUGIN.so [OPTIONS]
Checks that a plugin keeps its contract (plugin-contract.md), each check in a process of its own.

  --only GLOB        only checks whose name or obligation matches; may be repeated
  --list             print name, obligation and statement of every check
  --seed N           of everything that is drawn, 0 to 2^64 - 1; repeats a failure
  --timeout SECONDS  that one step of a check may take
  --jobs N           checks side by side; default: one a hardware thread
  --quick            fewer cases
  --large            with the check that needs 12 GiB of memory
  --against FILE     an earlier version of the plugin: results that differ need another numerics_version

Example: fastpath-conformance build/fastpath_acme.so --only 'kernels.*'
Exit status: 0 if no check failed, 1 if one did, 2 for wrong usage or no such file.
)";

int misused(const std::string& what) {
  std::fprintf(stderr, "fastpath-conformance: error: %s; --help shows what there is\n", what.c_str());
  return 2;
}

/// A number that is all of the text.
template <class T>
bool read_number(const std::string& text, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::string own_path() {
  std::array<char, 4096> buffer{};
  const ssize_t n = ::readlink("/proc/self/exe", buffer.data(), buffer.size() - 1);
  return n <= 0 ? std::string() : std::string(buffer.data(), static_cast<std::size_t>(n));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.jobs = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::string worker;
  bool list = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool takes = word == "--only" || word == "--seed" || word == "--timeout" || word == "--jobs" ||
                       word == "--worker" || word == "--against";
    const std::string value = takes && i + 1 < argc ? argv[i + 1] : "";
    if (takes && ++i >= argc) return misused(word + " needs a value");
    if (word == "--help" || word == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    } else if (word == "--only") {
      options.only.push_back(value);
    } else if (word == "--seed") {
      if (!read_number(value, options.seed)) return misused("--seed: '" + value + "' is not a whole number");
    } else if (word == "--timeout") {
      if (!read_number(value, options.timeout) || !(options.timeout > 0)) {
        return misused("--timeout: '" + value + "' is not a number of seconds above 0");
      }
    } else if (word == "--jobs") {
      if (!read_number(value, options.jobs) || options.jobs < 1) {
        return misused("--jobs: '" + value + "' is not a number of checks above 0");
      }
    } else if (word == "--worker") {
      worker = value;
    } else if (word == "--against") {
      options.against = value;
    } else if (word == "--quick") {
      options.quick = true;
    } else if (word == "--large") {
      options.large = true;
    } else if (word == "--list") {
      list = true;
    } else if (word.rfind("-", 0) == 0) {
      return misused("there is no option '" + word + "'");
    } else if (options.plugin.empty()) {
      options.plugin = word;
    } else {
      return misused("one plugin at a time: '" + options.plugin + "' and '" + word + "'");
    }
  }
  if (list) {
    for (const CheckInfo& check : all_checks()) {
      std::printf("%-32s %s  %s\n", check.name.c_str(), check.obligation.c_str(), check.statement.c_str());
    }
    return 0;
  }
  if (options.plugin.empty()) return misused("no plugin is named");
  if (::access(options.plugin.c_str(), F_OK) != 0) return misused(options.plugin + ": there is no such file");
  if (!options.against.empty() && ::access(options.against.c_str(), F_OK) != 0) {
    return misused("--against: " + options.against + ": there is no such file");
  }
  if (!worker.empty()) return run_worker(options, worker);
  WorkerCommand command{own_path(), options.plugin, "--seed", std::to_string(options.seed)};
  if (options.quick) command.emplace_back("--quick");
  if (options.large) command.emplace_back("--large");
  if (!options.against.empty()) command.insert(command.end(), {"--against", options.against});
  command.emplace_back("--worker");
  try {
    int counts[3] = {0, 0, 0};
    run_all(options, command, [&](const Result& result) {
      constexpr const char* kVerdicts[] = {"passed", "FAILED", "skipped"};
      ++counts[static_cast<int>(result.verdict)];
      std::printf("%s  %-32s %s  %s\n", kVerdicts[static_cast<int>(result.verdict)], result.check.c_str(),
                  result.obligation.c_str(), result.note.c_str());
      for (const Failure& failure : result.failures) {
        std::printf("    %s in: %s\n      found: %s\n      expected: %s\n      seed: %llu\n",
                    failure.obligation.c_str(), failure.step.c_str(), failure.found.c_str(), failure.expected.c_str(),
                    static_cast<unsigned long long>(options.seed));
      }
      std::fflush(stdout);
    });
    if (counts[0] + counts[1] + counts[2] == 0) return misused("--only: no check of that name");
    std::printf("%d passed, %d failed, %d skipped\n", counts[0], counts[1], counts[2]);
    return counts[1] == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fastpath-conformance: error: %s\n", error.what());
    return 2;
  }
}

}  // namespace fastpath::conformance
