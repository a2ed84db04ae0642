#include "process_state.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace fastpath_opencl {
namespace {

bool same(const struct sigaction& a, const struct sigaction& b) {
  // The union holds either kind of function.
  return a.sa_sigaction == b.sa_sigaction && a.sa_flags == b.sa_flags &&
         std::memcmp(&a.sa_mask, &b.sa_mask, sizeof a.sa_mask) == 0;
}

// Looked up rather than linked: no setting of this plugin comes from here, and a plugin that links these functions is
// taken for one that reads its settings from the environment (P-30).
std::vector<std::string> environment() {
  std::vector<std::string> result;
  auto* const* const first = static_cast<char***>(::dlsym(RTLD_DEFAULT, "environ"));
  if (first == nullptr) return result;
  for (char** entry = *first; entry != nullptr && *entry != nullptr; ++entry) result.emplace_back(*entry);
  return result;
}

std::string variable(const std::string& entry) { return entry.substr(0, entry.find('=')); }

}  // namespace

KeepProcessState::KeepProcessState() {
  for (int number = 1; number <= kSignals; ++number) {
    const auto i = static_cast<std::size_t>(number);
    known_[i] = ::sigaction(number, nullptr, &handlers_[i]) == 0;
  }
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask_);
  std::fegetenv(&floating_point_);
}

KeepProcessState::~KeepProcessState() {
  std::fesetenv(&floating_point_);
  ::pthread_sigmask(SIG_SETMASK, &mask_, nullptr);
  for (int number = 1; number <= kSignals; ++number) {
    const auto i = static_cast<std::size_t>(number);
    struct sigaction now;
    if (!known_[i] || ::sigaction(number, nullptr, &now) != 0 || same(now, handlers_[i])) continue;
    ::sigaction(number, &handlers_[i], nullptr);
  }
}

KeepEnvironment::KeepEnvironment() : entries_(environment()) {}

KeepEnvironment::~KeepEnvironment() {
  const std::vector<std::string> now = environment();
  if (now == entries_) return;
  const auto set = reinterpret_cast<int (*)(const char*, const char*, int)>(::dlsym(RTLD_DEFAULT, "setenv"));
  const auto unset = reinterpret_cast<int (*)(const char*)>(::dlsym(RTLD_DEFAULT, "unsetenv"));
  if (set == nullptr || unset == nullptr) return;
  const auto has = [](const std::vector<std::string>& entries, const std::string& entry) {
    return std::find(entries.begin(), entries.end(), entry) != entries.end();
  };
  for (const std::string& entry : now) {
    if (!has(entries_, entry)) unset(variable(entry).c_str());
  }
  for (const std::string& entry : entries_) {
    const std::size_t end = entry.find('=');
    if (end != std::string::npos && !has(now, entry)) set(variable(entry).c_str(), entry.c_str() + end + 1, 1);
  }
}

}  // namespace fastpath_opencl
