#pragma once

#include <array>
#include <csignal>

namespace fastpath::cli {

/// While an object lives, the signals by which a user or a system ends the program wait, so that a file that is being
/// written is there whole or not at all, with no temporary file beside it. The one that came is raised again at the
/// end; a second one is not held, so that writing to what does not answer can be ended. One object at a time.
class HeldSignals {
 public:
  HeldSignals();
  ~HeldSignals();
  HeldSignals(const HeldSignals&) = delete;
  HeldSignals& operator=(const HeldSignals&) = delete;

  /// Whether one came since the object was made: for long work that then ends by itself.
  static bool pending() noexcept;

 private:
  static constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP};
  std::array<struct sigaction, kSignals.size()> before_{};
};

}  // namespace fastpath::cli
