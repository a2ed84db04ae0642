#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "fastpath/conformance/conformance.hpp"

namespace fastpath::conformance {

/// Ends a check early: what it needs is not there, and why has been said.
struct Stop {};

/// One check while it runs in its worker process. What is said here goes to the parent at once, so that it is known
/// even if the process ends in the next instruction. Thread-safe.
class Trial {
 public:
  /// @param output  File descriptor of the parent; negative: nowhere.
  Trial(const Options& options_, CheckInfo info, int output);

  const Options options;
  const CheckInfo info;
  std::mt19937_64 random;

  /// What is being done now; a crash names it.
  void step(const std::string& text);
  void fail(const std::string& obligation, const std::string& found, const std::string& expected);
  void expect(bool holds, const std::string& obligation, const std::string& found, const std::string& expected) {
    if (!holds) fail(obligation, found, expected);
  }
  /// Something that could not be looked at, though the check goes on.
  void note(const std::string& text);
  [[noreturn]] void skip(const std::string& reason);
  [[noreturn]] void stop() { throw Stop{}; }
  bool failed() const noexcept { return n_failures_ > 0; }

 private:
  void send(char kind, const std::vector<std::string>& fields);

  int output_;
  std::mutex mutex_;
  std::string step_;
  std::set<std::string> seen_;
  int n_failures_ = 0;
};

/// A check as it is written down.
struct Check {
  CheckInfo info;
  /// The obligation that is broken if the process ends meanwhile; empty: P-20 (or P-21 if it hangs).
  std::string if_it_crashes;
  std::function<void(Trial&)> run;
};
std::vector<Check>& check_list();

// Each file of checks adds its own, in this order.
void add_file_checks(std::vector<Check>& list);
void add_version_checks(std::vector<Check>& list);
void add_call_checks(std::vector<Check>& list);
void add_process_checks(std::vector<Check>& list);
void add_device_checks(std::vector<Check>& list);
void add_query_checks(std::vector<Check>& list);
void add_kernel_checks(std::vector<Check>& list);
void add_derivative_checks(std::vector<Check>& list);

/// Lines of the protocol between worker and parent: a letter and fields.
inline constexpr int kReportDescriptor = 3;
std::string encode_line(char kind, const std::vector<std::string>& fields);
bool decode_line(const std::string& line, char& kind, std::vector<std::string>& fields);

}  // namespace fastpath::conformance
