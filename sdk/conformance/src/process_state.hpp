#pragma once

#include <csignal>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

namespace fastpath::conformance {

/// What of the process a plugin has to leave as it is (P-31).
class ProcessState {
 public:
  static ProcessState take();
  /// What differs from `before`: "the locale is de_DE, was C".
  std::vector<std::string> differences(const ProcessState& before) const;
  /// Makes it so again, so that one fault is not found again after every later call.
  void restore() const;

 private:
  std::string locale_, directory_;
  std::uint64_t floating_point_ = 0;  ///< Rounding, traps, denormals; without the flags that every operation sets.
  std::uint64_t environment_ = 0;     ///< A hash of every variable.
  std::uint64_t mask_ = 0;            ///< Blocked signals, as bits.
  sigset_t blocked_{};
  std::terminate_handler terminate_ = nullptr;
  struct Handler {
    std::uintptr_t function = 0;
    struct sigaction action {};
  };
  std::vector<Handler> handlers_;
};

/// Threads of this process; 0 where that cannot be told.
int thread_count();
/// Bytes that malloc has handed out, or the sanitizer; negative where that cannot be told.
std::int64_t heap_bytes();
/// Resident memory of this process in bytes; 0 where that cannot be told.
std::int64_t resident_bytes();

}  // namespace fastpath::conformance
