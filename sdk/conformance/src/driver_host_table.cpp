#include "driver.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace fastpath::conformance {

struct HostTable::State {
  explicit State(Trial& t) : trial(t) {}
  Trial& trial;
  std::mutex mutex;
  std::map<void*, std::uint64_t> blocks;
  std::int64_t allocations = 0, fail_at = 0;
  bool failed = false;
  std::string log, forbidden;
  std::map<std::string, std::string, std::less<>> settings;  // none is changed or removed
  void called(const char* what) {
    if (!forbidden.empty()) trial.fail("P-29", std::string("it called ") + what + " of the host", forbidden);
  }
};

HostTable::State& HostTable::state(void* context) { return *static_cast<State*>(context); }

HostTable::HostTable(Trial& trial, const Dialect& dialect) : dialect_(dialect), structs_(dialect_) {
  // Never destroyed: a plugin may call until the process ends.
  static auto* const kept = new std::vector<std::shared_ptr<State>>;
  state_ = std::make_shared<State>(trial);
  kept->push_back(state_);
  // As the library's host does, so that a plugin can be tried with each instruction set.
  if (const char* const target = ::secure_getenv("FASTPATH_CPU_SIMD_TARGET"); target != nullptr && *target != '\0') {
    state_->settings.emplace("cpu_simd.target", target);
  }
  fp_host host = sdk::abi_struct<fp_host>();
  host.abi_min = dialect.abi_min;
  host.abi_max = dialect.abi_max;
  host.reserved = dialect.reserved;
  host.context = state_.get();
  static constexpr std::string_view kVersion = "0.0-conformance";
  host.version = kVersion.data();
  host.version_size = kVersion.size();
  host.log = [](void* context, std::int32_t, const char* text, std::uint64_t size) {
    State& s = state(context);
    const std::lock_guard lock(s.mutex);
    s.called("log");
    constexpr std::size_t kMost = 65536;
    if (text != nullptr && s.log.size() < kMost)
      s.log.append(text, static_cast<std::size_t>(std::min<std::uint64_t>(size, kMost)));
  };
  host.allocate = [](void* context, std::uint64_t bytes, std::uint64_t alignment) -> void* {
    State& s = state(context);
    const std::lock_guard lock(s.mutex);
    s.called("allocate");
    ++s.allocations;
    if (s.fail_at > 0 && --s.fail_at == 0) {
      s.failed = true;
      return nullptr;
    }
    if (bytes > (std::uint64_t{1} << 40)) return nullptr;
    alignment = std::max<std::uint64_t>(alignment, 64);
    constexpr std::uint64_t kGuard = 64;
    void* memory = std::aligned_alloc(alignment, (bytes + kGuard + alignment - 1) / alignment * alignment);
    if (memory == nullptr) return nullptr;
    std::memset(memory, 0xFF, bytes);
    std::memset(static_cast<char*>(memory) + bytes, 0xA5, kGuard);
    s.blocks[memory] = bytes;
    return memory;
  };
  host.release = [](void* context, void* memory) {
    State& s = state(context);
    const std::lock_guard lock(s.mutex);
    s.called("release");
    if (memory == nullptr) return;
    const auto found = s.blocks.find(memory);
    if (found == s.blocks.end()) {
      s.trial.fail("P-28", "it released memory that the host had not given, or twice", "each block once");
      return;
    }
    for (std::uint64_t i = 0; i < 64; ++i) {
      if (static_cast<unsigned char*>(memory)[found->second + i] != 0xA5) {
        s.trial.fail("P-57", "it wrote past the end of a block of " + std::to_string(found->second) + " bytes",
                     "nothing written past the end of memory");
        break;
      }
    }
    s.blocks.erase(found);
    std::free(memory);
  };
  host.thread_budget = [](void*) -> std::int32_t { return 2; };
  host.lookup = [](void* context, const char* key, std::uint64_t key_size, const char** value,
                   std::uint64_t* value_size) -> std::int32_t {
    State& s = state(context);
    const std::lock_guard lock(s.mutex);
    s.called("lookup");
    if (key == nullptr || value == nullptr || value_size == nullptr) return 0;
    const auto found = s.settings.find(std::string_view(key, static_cast<std::size_t>(key_size)));
    if (found == s.settings.end()) return 0;
    *value = found->second.data();
    *value_size = found->second.size();
    return 1;
  };
  host.extensions = dialect.extensions;
  host_ = structs_.put(host, FP_END_OF(fp_host, thread_budget));
}

HostTable::Counts HostTable::counts() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->allocations, static_cast<std::int64_t>(state_->blocks.size())};
}
void HostTable::fail_allocation(std::int64_t k) {
  const std::lock_guard lock(state_->mutex);
  state_->fail_at = k;
  state_->failed = false;
}
bool HostTable::allocation_failed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failed;
}
std::string HostTable::log() const {
  const std::lock_guard lock(state_->mutex);
  return state_->log;
}
void HostTable::clear_log() {
  const std::lock_guard lock(state_->mutex);
  state_->log.clear();
}
void HostTable::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(state_->mutex);
  state_->settings.emplace(key, value);
}
void HostTable::forbid(const std::string& why) {
  const std::lock_guard lock(state_->mutex);
  state_->forbidden = why;
}

}  // namespace fastpath::conformance
