#include "process_state.hpp"

#include <dirent.h>
#include <malloc.h>
#include <unistd.h>

#include <cfenv>
#include <clocale>
#include <cstdio>
#include <cstring>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

extern char** environ;
extern "C" std::size_t __sanitizer_get_current_allocated_bytes() __attribute__((weak));

namespace fastpath::conformance {
namespace {

constexpr int kSignals = 65;

std::uintptr_t function_of(const struct sigaction& action) {
  std::uintptr_t function = 0;
  if ((action.sa_flags & SA_SIGINFO) != 0) {
    std::memcpy(&function, &action.sa_sigaction, sizeof function);
  } else {
    std::memcpy(&function, &action.sa_handler, sizeof function);
  }
  return function;
}

std::uint64_t floating_point() {
  std::uint64_t state = static_cast<std::uint64_t>(std::fegetround());
#if defined(__GLIBC__)
  state |= static_cast<std::uint64_t>(fegetexcept()) << 16;
#endif
#if defined(__SSE__)
  constexpr unsigned kFlags = 0x3f;
  state |= static_cast<std::uint64_t>(_mm_getcsr() & ~kFlags) << 32;
#endif
  return state;
}

void set_floating_point(std::uint64_t state) {
  std::fesetround(static_cast<int>(state & 0xffff));
#if defined(__GLIBC__)
  fedisableexcept(FE_ALL_EXCEPT);
  feenableexcept(static_cast<int>((state >> 16) & 0xffff));
#endif
#if defined(__SSE__)
  _mm_setcsr(static_cast<unsigned>(state >> 32));
#endif
}

}  // namespace

ProcessState ProcessState::take() {
  ProcessState state;
  state.floating_point_ = floating_point();
  if (const char* name = std::setlocale(LC_ALL, nullptr)) state.locale_ = name;
  char buffer[4096];
  if (::getcwd(buffer, sizeof buffer) != nullptr) state.directory_ = buffer;
  std::uint64_t hash = 14695981039346656037ull;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    for (const char* c = *entry;; ++c) {
      hash = (hash ^ static_cast<unsigned char>(*c)) * 1099511628211ull;
      if (*c == '\0') break;
    }
  }
  state.environment_ = hash;
  state.terminate_ = std::get_terminate();
  ::pthread_sigmask(SIG_SETMASK, nullptr, &state.blocked_);
  state.handlers_.resize(kSignals);
  for (int signal = 1; signal < kSignals; ++signal) {
    if (signal < 64 && ::sigismember(&state.blocked_, signal) == 1) state.mask_ |= std::uint64_t{1} << signal;
    Handler& handler = state.handlers_[static_cast<std::size_t>(signal)];
    if (::sigaction(signal, nullptr, &handler.action) == 0) handler.function = function_of(handler.action);
  }
  return state;
}

std::vector<std::string> ProcessState::differences(const ProcessState& before) const {
  std::vector<std::string> found;
  if (locale_ != before.locale_) found.push_back("the locale is " + locale_ + ", was " + before.locale_);
  if (directory_ != before.directory_) {
    found.push_back("the current directory is " + directory_ + ", was " + before.directory_);
  }
  if (floating_point_ != before.floating_point_) {
    char text[120];
    std::snprintf(text, sizeof text, "the floating-point mode is %#llx, was %#llx",
                  static_cast<unsigned long long>(floating_point_),
                  static_cast<unsigned long long>(before.floating_point_));
    found.emplace_back(text);
  }
  if (environment_ != before.environment_) found.emplace_back("the environment differs");
  if (mask_ != before.mask_) found.emplace_back("the mask of blocked signals differs");
  if (terminate_ != before.terminate_) found.emplace_back("the terminate handler differs");
  for (std::size_t signal = 1; signal < handlers_.size() && signal < before.handlers_.size(); ++signal) {
    if (handlers_[signal].function != before.handlers_[signal].function) {
      found.push_back("there is another handler of signal " + std::to_string(signal));
    }
  }
  return found;
}

void ProcessState::restore() const {
  set_floating_point(floating_point_);
  std::setlocale(LC_ALL, locale_.c_str());
  if (!directory_.empty() && ::chdir(directory_.c_str()) != 0) return;
  ::pthread_sigmask(SIG_SETMASK, &blocked_, nullptr);
  std::set_terminate(terminate_);
  for (std::size_t signal = 1; signal < handlers_.size(); ++signal) {
    struct sigaction now {};
    if (::sigaction(static_cast<int>(signal), nullptr, &now) == 0 && function_of(now) != handlers_[signal].function) {
      ::sigaction(static_cast<int>(signal), &handlers_[signal].action, nullptr);
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
