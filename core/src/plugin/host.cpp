#include "host.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "abi.hpp"

namespace fastpath::plugin {
namespace {

constexpr std::size_t kMaxLogText = 4096;
constexpr std::string_view kVersion = FASTPATH_VERSION;

struct HostState {
  std::mutex mutex;
  std::shared_ptr<const LogSink> sink;
  std::map<std::string, const std::string*, std::less<>> configuration;
  std::deque<std::string> values;  // every value ever set: pointers into them were handed out
  std::atomic<std::int32_t> threads{0};
};

/// Never destroyed: a plugin may call in from a thread of its own while the process ends.
HostState& state() {
  static HostState* const instance = new HostState;
  return *instance;
}

std::atomic<std::uint64_t> forks{0};

thread_local LogCapture* innermost_capture = nullptr;

// A null text with a size is a mistake of the plugin that must not become a fault of the host.
std::string_view view(const char* text, std::uint64_t size) noexcept {
  return text == nullptr ? std::string_view() : std::string_view(text, static_cast<std::size_t>(size));
}

/// What the environment says where the host set nothing; null if that is nothing. Read once.
const std::string* from_environment(std::string_view key) {
  if (key != "cpu_simd.target") return nullptr;
  static const std::string target = [] {
    const char* const text = ::secure_getenv("FASTPATH_CPU_SIMD_TARGET");  // null in a process with elevated rights
    return std::string(text == nullptr ? "" : text);
  }();
  return target.empty() ? nullptr : &target;
}

extern "C" {

void host_log(void*, std::int32_t level, const char* text, std::uint64_t size) {
  try {
    const std::string clean = clean_text(view(text, std::min<std::uint64_t>(size, kMaxLogText)), kMaxLogText);
    if (innermost_capture != nullptr) innermost_capture->add(level, clean);
    std::shared_ptr<const LogSink> sink;
    {
      const std::lock_guard lock(state().mutex);
      sink = state().sink;
    }
    if (sink && *sink) (*sink)(level, clean);
  } catch (...) {  // a line that cannot be logged is lost; nothing may be thrown through a plugin
  }
}

void* host_allocate(void*, std::uint64_t bytes, std::uint64_t alignment) {
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 62;
  if (alignment == 0) alignment = alignof(std::max_align_t);
  if (!std::has_single_bit(alignment) || alignment > kMaxBytes || bytes > kMaxBytes - alignment) return nullptr;
  alignment = std::max<std::uint64_t>(alignment, sizeof(void*));
  // aligned_alloc wants a multiple of the alignment, and a plugin that asks for nothing wants an address it can
  // release.
  const std::uint64_t padded = (std::max<std::uint64_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  return std::aligned_alloc(alignment, padded);
}

void host_release(void*, void* memory) { std::free(memory); }

std::int32_t host_thread_budget(void*) { return thread_budget(); }

std::int32_t host_lookup(void*, const char* key, std::uint64_t key_size, const char** value,
                         std::uint64_t* value_size) {
  if (key == nullptr || value == nullptr || value_size == nullptr) return 0;
  const std::string_view name = view(key, key_size);
  const std::lock_guard lock(state().mutex);
  const auto found = state().configuration.find(name);
  const std::string* text = found == state().configuration.end() ? from_environment(name) : found->second;
  if (text == nullptr) return 0;
  *value = text->data();
  *value_size = text->size();
  return 1;
}

}  // extern "C"

}  // namespace

const fp_host& host_table() noexcept {
  static const fp_host table{
      FP_SIZE_HOST,  kHostAbiMin,  kHostAbiMax,        0,           nullptr, kVersion.data(), kVersion.size(), host_log,
      host_allocate, host_release, host_thread_budget, host_lookup, nullptr};
  return table;
}

void set_log_sink(LogSink sink) {
  auto shared = std::make_shared<const LogSink>(std::move(sink));
  const std::lock_guard lock(state().mutex);
  state().sink = std::move(shared);
}

void set_thread_budget(std::int32_t threads) noexcept { state().threads = std::max(threads, 0); }

std::int32_t thread_budget() noexcept {
  const std::int32_t set = state().threads;
  if (set > 0) return set;
  return std::max(1, static_cast<std::int32_t>(std::thread::hardware_concurrency()));
}

void set_configuration(std::string_view key, std::optional<std::string> value) {
  const std::lock_guard lock(state().mutex);
  if (!value) {
    const auto found = state().configuration.find(key);
    if (found != state().configuration.end()) state().configuration.erase(found);
    return;
  }
  const std::string*& kept = state().configuration[std::string(key)];
  if (kept != nullptr && *kept == *value) return;  // values stay for good: not one more for every context
  kept = &state().values.emplace_back(std::move(*value));
}

std::uint64_t fork_generation() noexcept {
  // A handler rather than a look at getpid(), which is a system call: this is asked in every evaluation.
  static const int registered = pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(registered);
  return forks.load(std::memory_order_relaxed);
}

LogCapture::LogCapture() : outer_(innermost_capture) { innermost_capture = this; }
LogCapture::~LogCapture() { innermost_capture = outer_; }

void LogCapture::add(std::int32_t level, std::string_view text) {
  if (level < FP_LOG_WARNING || text.empty() || text_.size() + text.size() > kMaxLogText) return;
  if (!text_.empty()) text_ += "; ";
  text_ += text;
}

}  // namespace fastpath::plugin
