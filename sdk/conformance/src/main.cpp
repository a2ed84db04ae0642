#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "fastpath/conformance/conformance.hpp"

namespace fastpath::conformance {
namespace {

constexpr const char* kUsage =
    "Usage: %s PLUGIN.so [--only GLOB]... [--seed N] [--timeout SECONDS] [--quick] [--large] [--list]\n";

std::string own_path() {
  std::array<char, 4096> buffer{};
  const ssize_t n = ::readlink("/proc/self/exe", buffer.data(), buffer.size() - 1);
  return n <= 0 ? std::string() : std::string(buffer.data(), static_cast<std::size_t>(n));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string worker;
  bool list = false;
  const std::string program = argc > 0 ? argv[0] : "conformance";
  std::vector<std::string> own_arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool takes = word == "--only" || word == "--seed" || word == "--timeout" || word == "--worker";
    const std::string value = takes && i + 1 < argc ? argv[i + 1] : "";
    if (takes && ++i >= argc) {
      std::fprintf(stderr, kUsage, program.c_str());
      return 2;
    }
    if (word == "--only")
      options.only.push_back(value);
    else if (word == "--seed")
      options.seed = std::strtoull(value.c_str(), nullptr, 10);
    else if (word == "--timeout")
      options.timeout = std::strtod(value.c_str(), nullptr);
    else if (word == "--worker")
      worker = value;
    else if (word == "--quick")
      options.quick = true;
    else if (word == "--large")
      options.large = true;
    else if (word == "--list")
      list = true;
    else if (options.plugin.empty() && word.rfind("--", 0) != 0)
      options.plugin = word;
    else {
      std::fprintf(stderr, kUsage, program.c_str());
      return 2;
    }
  }
  if (list) {
    for (const CheckInfo& check : all_checks()) {
      std::printf("%-32s %s  %s\n", check.name.c_str(), check.obligation.c_str(), check.statement.c_str());
    }
    return 0;
  }
  if (options.plugin.empty()) {
    std::fprintf(stderr, kUsage, program.c_str());
    return 2;
  }
  if (!worker.empty()) return run_worker(options, worker);
  WorkerCommand command{own_path(), options.plugin, "--seed", std::to_string(options.seed)};
  if (options.quick) command.emplace_back("--quick");
  if (options.large) command.emplace_back("--large");
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
    std::printf("%d passed, %d failed, %d skipped\n", counts[0], counts[1], counts[2]);
    return counts[1] == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", program.c_str(), error.what());
    return 2;
  }
}

}  // namespace fastpath::conformance
