#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// The conformance kit: checks of what a plugin owes its host, each with the obligation of docs/plugin-contract.md that
/// it holds. Needs nothing but the SDK and dlopen. What compares numbers with the definition of an op needs the
/// library; the program `fastpath verify` adds those checks.
///
/// Each check runs in a process of its own, because what it looks for may crash, hang or exit: run_all() starts
/// `worker` once per check, and that program calls run_worker().
namespace fastpath::conformance {

struct Options {
  std::string plugin;                  ///< Path of the file.
  std::uint64_t seed = 1;              ///< Of all random configurations and values.
  bool quick = false;                  ///< Fewer configurations.
  bool large = false;                  ///< Also what needs many GiB of memory.
  std::string against = {};            ///< Path of an earlier version of the plugin; empty: there is none.
  double timeout = 120;                ///< Seconds that one step of a check may take: what hangs takes no further step.
  int jobs = 1;                        ///< Checks that run side by side.
  std::vector<std::string> only = {};  ///< Globs of check names; empty: all.
};

/// One thing that was found wrong.
struct Failure {
  std::string obligation;  ///< "P-23".
  std::string step;        ///< What was being done.
  std::string found, expected;
};

enum class Verdict { passed, failed, skipped };

struct Result {
  std::string check;       ///< "calls.bad_arguments".
  std::string obligation;  ///< The one it is there for.
  std::string statement;   ///< What it checks, in words.
  Verdict verdict = Verdict::passed;
  std::vector<Failure> failures = {};
  std::string note = {};  ///< Why it was skipped, or what it could not see.
  double seconds = 0;
};

struct CheckInfo {
  std::string name, obligation, statement;
};

/// Where a check that somebody adds reports; each member may be called any number of times, from any thread.
struct Report {
  std::function<void(const std::string& text)> step;  ///< What is being done now; a crash names it.
  /// Something is wrong.
  std::function<void(const std::string& obligation, const std::string& found, const std::string& expected)> fail;
  std::function<void(const std::string& text)> note;  ///< Something that could not be looked at.
  std::function<void(const std::string& text)> skip;  ///< There is nothing to look at, for this reason; then return.
};
/// Adds a check behind those of the kit: in the program that calls run_all() and in the worker. Not thread-safe; before
/// any other function of the kit. @param run  Called in the worker.
void add_check(CheckInfo info, std::function<void(const Options&, Report&)> run);
/// Every check, in the order in which they run.
std::vector<CheckInfo> all_checks();
/// Those that `options.only` chooses.
std::vector<CheckInfo> chosen_checks(const Options& options);

/// How to start the program that calls run_worker(): its path and arguments, to which the name of a check is added.
using WorkerCommand = std::vector<std::string>;

/// Runs the chosen checks, each in a process of its own, `options.jobs` of them at a time. Results are in the order of
/// the checks.
/// @param on_result  Called after each, in the order in which they end, never twice at a time; may be empty.
/// @throws std::runtime_error if a process cannot be started at all.
std::vector<Result> run_all(const Options& options, const WorkerCommand& worker,
                            const std::function<void(const Result&)>& on_result = {});

/// The worker's side: runs one check in this process and reports on file descriptor 3. Returns its exit status.
int run_worker(const Options& options, const std::string& check);

/// A whole program, for vendors who use the kit without the library: `PLUGIN.so [--only GLOB] [--seed N] [--quick]
/// [--large] [--list]`. Prints a table; 0 if no check failed, 1 if one did, 2 for wrong usage.
int main(int argc, char** argv);

}  // namespace fastpath::conformance
