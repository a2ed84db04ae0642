#pragma once

#include <array>
#include <cfenv>
#include <csignal>
#include <string>
#include <vector>

namespace fastpath_opencl {

/// What a driver may change in the process while it is initialised or compiles, put back at the end of the scope:
/// signal handlers, the calling thread's signal mask and floating-point mode. Drivers that bring a compiler with them
/// (PoCL) set handlers for crashes of that compiler; the host's must stay.
class KeepProcessState {
 public:
  KeepProcessState();
  KeepProcessState(const KeepProcessState&) = delete;
  KeepProcessState& operator=(const KeepProcessState&) = delete;
  ~KeepProcessState();

 private:
  static constexpr int kSignals = 64;
  std::array<struct sigaction, kSignals + 1> handlers_;
  std::array<bool, kSignals + 1> known_{};
  sigset_t mask_;
  fenv_t floating_point_;
};

/// The same for environment variables, around calls that initialise a driver: PoCL sets one of its own.
class KeepEnvironment {
 public:
  KeepEnvironment();
  KeepEnvironment(const KeepEnvironment&) = delete;
  KeepEnvironment& operator=(const KeepEnvironment&) = delete;
  ~KeepEnvironment();

 private:
  std::vector<std::string> entries_;
};

}  // namespace fastpath_opencl
