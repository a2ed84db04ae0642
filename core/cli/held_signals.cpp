#include "held_signals.hpp"

namespace fastpath::cli {

namespace {

volatile std::sig_atomic_t held_signal = 0;

void hold(int signal) { held_signal = signal; }

}  // namespace

HeldSignals::HeldSignals() {
  held_signal = 0;
  struct sigaction action {};
  action.sa_handler = hold;
  sigemptyset(&action.sa_mask);
  // Once, and without restarting a call that waits: opening a pipe that nobody reads can still be ended.
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    // A signal that is ignored, as under nohup, stays so.
    if (before_[i].sa_handler == SIG_DFL) ::sigaction(kSignals[i], &action, nullptr);
  }
}

HeldSignals::~HeldSignals() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  if (held_signal != 0) ::raise(held_signal);
}

bool HeldSignals::pending() noexcept { return held_signal != 0; }

}  // namespace fastpath::cli
