#pragma once

#include <sys/types.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <vector>

namespace fastpath::probe {

/// Everything of this process that a plugin must leave as it is, and that can be looked at.
class ProcessState {
 public:
  /// As it is now, in the calling thread where it belongs to a thread.
  static ProcessState now();
  /// What is different in `later`: a phrase each, such as "set the floating-point mode to flush to zero".
  std::vector<std::string> changes(const ProcessState& later) const;

 private:
  static constexpr int kSignals = 64;
  struct Stream {
    bool open = false;
    dev_t device = 0;
    ino_t inode = 0;
    bool operator==(const Stream&) const = default;
  };
  std::string locale_, directory_;
  std::vector<std::string> environment_;
  std::array<struct sigaction, kSignals + 1> handlers_{};
  sigset_t mask_{};
  std::array<Stream, 3> streams_{};
  std::uint64_t float_control_ = 0;
  int rounding_ = 0;
  mode_t umask_ = 0;
  std::terminate_handler terminate_ = nullptr;
  std::new_handler new_handler_ = nullptr;
};

/// Number of processes that were started and are still there, running or not, also those whose parent has ended.
std::size_t child_count();
/// Ends them, and what they leave behind, and waits for their end.
void end_children();
/// Threads of this process.
std::size_t thread_count();
/// The most memory that was resident since this program started; 0 where the system does not tell.
std::uint64_t peak_memory();

}  // namespace fastpath::probe
