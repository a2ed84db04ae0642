#include "process_state.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cfenv>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace fastpath::probe {
namespace {

constexpr std::uint64_t kFlushToZero = 1;
constexpr std::uint64_t kDenormalsAreZero = 2;

/// Control bits of the floating-point unit, without its status flags. The two named bits stand for the same on every
/// CPU; the rest is the CPU's own, moved up.
std::uint64_t float_control() {
#if defined(__x86_64__)
  constexpr std::uint32_t kControl = 0xffc0, kFtz = 0x8000, kDaz = 0x0040;
  const std::uint32_t sse = _mm_getcsr() & kControl;
  std::uint16_t x87 = 0;
  __asm__ volatile("fnstcw %0" : "=m"(x87));
  const std::uint64_t named = ((sse & kFtz) != 0 ? kFlushToZero : 0) | ((sse & kDaz) != 0 ? kDenormalsAreZero : 0);
  return named | std::uint64_t{sse & ~(kFtz | kDaz)} << 2 | std::uint64_t{x87} << 32;
#elif defined(__aarch64__)
  std::uint64_t fpcr = 0;
  __asm__ volatile("mrs %0, fpcr" : "=r"(fpcr));
  constexpr std::uint64_t kFz = std::uint64_t{1} << 24;
  return ((fpcr & kFz) != 0 ? kFlushToZero | kDenormalsAreZero : 0) | (fpcr & ~kFz) << 2;
#else
  return 0;
#endif
}

std::string signal_name(int number) {
  const char* name = ::sigabbrev_np(number);
  return name == nullptr ? fmt::format("signal {}", number) : fmt::format("SIG{}", name);
}

/// The entries of /proc/self/task/*/children: those that this process has to wait for.
std::vector<pid_t> listed_children() {
  std::vector<pid_t> result;
  std::error_code error;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
    std::ifstream file(task.path() / "children");
    for (pid_t pid = 0; file >> pid;) result.push_back(pid);
  }
  return result;
}

}  // namespace

ProcessState ProcessState::now() {
  ProcessState state;
  const char* const locale = std::setlocale(LC_ALL, nullptr);
  if (locale != nullptr) state.locale_ = locale;
  std::error_code error;
  state.directory_ = std::filesystem::current_path(error).string();
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry)
    state.environment_.emplace_back(*entry);
  std::sort(state.environment_.begin(), state.environment_.end());
  for (int number = 1; number <= kSignals; ++number) {
    ::sigaction(number, nullptr, &state.handlers_[static_cast<std::size_t>(number)]);
  }
  ::pthread_sigmask(SIG_BLOCK, nullptr, &state.mask_);
  for (int descriptor = 0; descriptor < 3; ++descriptor) {
    struct stat status {};
    if (::fstat(descriptor, &status) == 0) {
      state.streams_[static_cast<std::size_t>(descriptor)] = {true, status.st_dev, status.st_ino};
    }
  }
  state.float_control_ = float_control();
  state.rounding_ = std::fegetround();
  state.umask_ = ::umask(0);
  ::umask(state.umask_);
  state.terminate_ = std::get_terminate();
  state.new_handler_ = std::get_new_handler();
  return state;
}

std::vector<std::string> ProcessState::changes(const ProcessState& later) const {
  std::vector<std::string> result;
  if (locale_ != later.locale_)
    result.push_back(fmt::format("changed the locale from {} to {}", locale_, later.locale_));
  if (directory_ != later.directory_) {
    result.push_back(fmt::format("changed the current directory to '{}'", later.directory_));
  }
  if (umask_ != later.umask_) {
    result.push_back(fmt::format("changed the mask of file modes from {:03o} to {:03o}", umask_, later.umask_));
  }
  std::vector<std::string> changed;
  std::set_symmetric_difference(environment_.begin(), environment_.end(), later.environment_.begin(),
                                later.environment_.end(), std::back_inserter(changed));
  for (std::string& entry : changed) entry.resize(std::min(entry.find('='), entry.size()));
  changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
  for (const std::string& name : changed) result.push_back(fmt::format("changed the environment variable {}", name));
  for (int number = 1; number <= kSignals; ++number) {
    const auto& before = handlers_[static_cast<std::size_t>(number)];
    const auto& after = later.handlers_[static_cast<std::size_t>(number)];
    // The union holds either kind of function.
    if (before.sa_sigaction != after.sa_sigaction) {
      result.push_back(fmt::format("changed the handler of {}", signal_name(number)));
    }
    if (::sigismember(&mask_, number) != ::sigismember(&later.mask_, number)) {
      result.push_back(fmt::format("changed whether {} is blocked", signal_name(number)));
    }
  }
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i] == later.streams_[i]) continue;
    constexpr std::array kNames{"input", "output", "error"};
    result.push_back(fmt::format("{} the standard {}", later.streams_[i].open ? "replaced" : "closed", kNames[i]));
  }
  const std::uint64_t mode = float_control_ ^ later.float_control_;
  if ((mode & kFlushToZero) != 0) result.emplace_back("changed the floating-point mode: flush to zero");
  if ((mode & kDenormalsAreZero) != 0) result.emplace_back("changed the floating-point mode: denormals are zero");
  if (rounding_ != later.rounding_) result.emplace_back("changed the floating-point mode: rounding");
  if ((mode & ~(kFlushToZero | kDenormalsAreZero)) != 0 && rounding_ == later.rounding_) {
    result.emplace_back("changed the floating-point mode: exceptions that trap, or precision");
  }
  if (terminate_ != later.terminate_) result.emplace_back("set a terminate handler");
  if (new_handler_ != later.new_handler_) result.emplace_back("set a new handler");
  return result;
}

std::size_t child_count() {
  const std::size_t listed = listed_children().size();
  if (listed > 0) return listed;
  siginfo_t info{};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 ? 1 : 0;  // fails where there are none
}

void end_children() {
  // A child that ends hands its own children to this process, which is their subreaper.
  constexpr int kRounds = 1000;
  for (int round = 0; round < kRounds; ++round) {
    const std::vector<pid_t> left = listed_children();
    if (left.empty()) return;
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    for (const pid_t pid : left) {
      while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }
}

std::size_t thread_count() {
  std::error_code error;
  const std::filesystem::directory_iterator tasks("/proc/self/task", error);
  return error ? 1 : static_cast<std::size_t>(std::distance(begin(tasks), end(tasks)));
}

std::uint64_t peak_memory() {
  // Not getrusage(): its peak includes what the process that started this one had.
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    std::uint64_t kibibytes = 0;
    if (std::sscanf(line.c_str(), "VmHWM: %lu kB", &kibibytes) == 1) return kibibytes << 10;
  }
  return 0;
}

}  // namespace fastpath::probe
