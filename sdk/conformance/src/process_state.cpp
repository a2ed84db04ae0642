#include "fastpath/conformance/process_state.hpp"

#include <dirent.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cstdio>
#include <cstring>
#include <iterator>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

extern char** environ;
extern "C" std::size_t __sanitizer_get_current_allocated_bytes() __attribute__((weak));

namespace fastpath::conformance {
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
  return name == nullptr ? "signal " + std::to_string(number) : std::string("SIG") + name;
}

std::string mode_text(mode_t mode) {
  char text[16];
  std::snprintf(text, sizeof text, "%03o", static_cast<unsigned>(mode));
  return text;
}

}  // namespace

ProcessState ProcessState::take() {
  ProcessState state;
  std::fegetenv(&state.floating_point_);
  state.float_control_ = float_control();
  state.rounding_ = std::fegetround();
  if (const char* name = std::setlocale(LC_ALL, nullptr)) state.locale_ = name;
  char buffer[4096];
  if (::getcwd(buffer, sizeof buffer) != nullptr) state.directory_ = buffer;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) state.environment_.emplace_back(*entry);
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
  state.umask_ = ::umask(0);
  ::umask(state.umask_);
  state.terminate_ = std::get_terminate();
  state.new_handler_ = std::get_new_handler();
  return state;
}

std::vector<std::string> ProcessState::changes_since(const ProcessState& before) const {
  std::vector<std::string> found;
  if (locale_ != before.locale_) found.push_back("changed the locale from " + before.locale_ + " to " + locale_);
  if (directory_ != before.directory_) found.push_back("changed the current directory to '" + directory_ + "'");
  if (umask_ != before.umask_) {
    found.push_back("changed the mask of file modes from " + mode_text(before.umask_) + " to " + mode_text(umask_));
  }
  std::vector<std::string> changed;
  std::set_symmetric_difference(before.environment_.begin(), before.environment_.end(), environment_.begin(),
                                environment_.end(), std::back_inserter(changed));
  for (std::string& entry : changed) entry.resize(std::min(entry.find('='), entry.size()));
  changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
  for (const std::string& name : changed) found.push_back("changed the environment variable " + name);
  for (int number = 1; number <= kSignals; ++number) {
    const auto& was = before.handlers_[static_cast<std::size_t>(number)];
    const auto& is = handlers_[static_cast<std::size_t>(number)];
    // The union holds either kind of function.
    if (was.sa_sigaction != is.sa_sigaction) found.push_back("changed the handler of " + signal_name(number));
    if (::sigismember(&before.mask_, number) != ::sigismember(&mask_, number)) {
      found.push_back("changed whether " + signal_name(number) + " is blocked");
    }
  }
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i] == before.streams_[i]) continue;
    constexpr std::array kNames{"input", "output", "error"};
    found.push_back(std::string(streams_[i].open ? "replaced" : "closed") + " the standard " + kNames[i]);
  }
  const std::uint64_t mode = float_control_ ^ before.float_control_;
  if ((mode & kFlushToZero) != 0) found.emplace_back("changed the floating-point mode: flush to zero");
  if ((mode & kDenormalsAreZero) != 0) found.emplace_back("changed the floating-point mode: denormals are zero");
  if (rounding_ != before.rounding_) found.emplace_back("changed the floating-point mode: rounding");
  if ((mode & ~(kFlushToZero | kDenormalsAreZero)) != 0 && rounding_ == before.rounding_) {
    found.emplace_back("changed the floating-point mode: exceptions that trap, or precision");
  }
  if (terminate_ != before.terminate_) found.emplace_back("set a terminate handler");
  if (new_handler_ != before.new_handler_) found.emplace_back("set a new handler");
  return found;
}

void ProcessState::restore() const {
  std::fesetenv(&floating_point_);
  std::setlocale(LC_ALL, locale_.c_str());
  if (!directory_.empty() && ::chdir(directory_.c_str()) != 0) return;
  ::umask(umask_);
  ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  std::set_terminate(terminate_);
  std::set_new_handler(new_handler_);
  for (int number = 1; number <= kSignals; ++number) {
    const auto& was = handlers_[static_cast<std::size_t>(number)];
    struct sigaction now {};
    if (::sigaction(number, nullptr, &now) == 0 && now.sa_sigaction != was.sa_sigaction) {
      ::sigaction(number, &was, nullptr);
    }
  }
}

int thread_count() {
  DIR* tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) return 0;
  int count = 0;
  while (const dirent* entry = ::readdir(tasks)) count += entry->d_name[0] != '.' ? 1 : 0;
  ::closedir(tasks);
  return count;
}

std::int64_t heap_bytes() {
  if (__sanitizer_get_current_allocated_bytes != nullptr) {
    return static_cast<std::int64_t>(__sanitizer_get_current_allocated_bytes());
  }
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 33)
  const struct mallinfo2 info = ::mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
#else
  return -1;
#endif
}

std::int64_t resident_bytes() {
  std::FILE* file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  long long total = 0, resident = 0;
  const int n = std::fscanf(file, "%lld %lld", &total, &resident);
  std::fclose(file);
  return n == 2 ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace fastpath::conformance
