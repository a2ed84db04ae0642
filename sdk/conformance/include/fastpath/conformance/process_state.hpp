#pragma once

#include <sys/types.h>

#include <array>
#include <cfenv>
#include <csignal>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <vector>

namespace fastpath::conformance {

/// Everything of this process that a plugin must leave as it is (P-31), and that can be looked at.
class ProcessState {
 public:
  /// As it is now, in the calling thread where it belongs to a thread.
  static ProcessState take();
  /// What is different from `before`: a phrase each, such as "changed the locale from C to de_DE".
  std::vector<std::string> changes_since(const ProcessState& before) const;
  /// Makes it so again, as far as that can be done, so that one fault is not found again after every later call. The
  /// environment and the standard streams stay as they are.
  void restore() const;

 private:
  static constexpr int kSignals = 64;
  struct Stream {
    bool open = false;
    dev_t device = 0;
    ino_t inode = 0;
    bool operator==(const Stream&) const = default;
  };
  std::string locale_, directory_;
  std::vector<std::string> environment_;  // sorted
  std::array<struct sigaction, kSignals + 1> handlers_{};
  sigset_t mask_{};
  std::array<Stream, 3> streams_{};
  std::fenv_t floating_point_{};
  std::uint64_t float_control_ = 0;
  int rounding_ = 0;
  mode_t umask_ = 0;
  std::terminate_handler terminate_ = nullptr;
  std::new_handler new_handler_ = nullptr;
};

/// Threads of this process; 0 where that cannot be told.
int thread_count();
/// Bytes that malloc has handed out, or the sanitizer; negative where that cannot be told.
std::int64_t heap_bytes();
/// Resident memory of this process in bytes; 0 where that cannot be told.
std::int64_t resident_bytes();

}  // namespace fastpath::conformance
