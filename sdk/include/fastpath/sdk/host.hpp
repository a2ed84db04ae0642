#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fastpath/plugin.h"
#include "fastpath/sdk/abi.hpp"

namespace fastpath::sdk {

/// The host's services. Every function may be called from any thread; what an older host lacks does nothing.
class Host {
 public:
  Host() = default;
  explicit Host(const fp_host* host) : host_(known(host)) {}

  std::uint32_t abi_min() const noexcept { return host_.abi_min; }
  std::uint32_t abi_max() const noexcept { return host_.abi_max; }
  std::string_view version() const noexcept { return text_view(host_.version, host_.version_size); }
  /// @param level FP_LOG_*
  void log(std::int32_t level, std::string_view text) const noexcept {
    if (host_.log != nullptr) host_.log(host_.context, level, text.data(), text.size());
  }
  /// CPU threads of the whole process; a call may be given fewer.
  int thread_budget() const noexcept {
    return host_.thread_budget == nullptr ? 1 : std::max(1, host_.thread_budget(host_.context));
  }
  /// Text of a configuration key, or nothing.
  std::optional<std::string> lookup(std::string_view key) const {
    const char* value = nullptr;
    std::uint64_t size = 0;
    if (host_.lookup == nullptr || host_.lookup(host_.context, key.data(), key.size(), &value, &size) == 0) {
      return std::nullopt;
    }
    return std::string(text_view(value, size));
  }
  /// Host memory that counts against the host's limits; null if there is none. `release` takes it back.
  void* allocate(std::uint64_t bytes, std::uint64_t alignment) const noexcept {
    return host_.allocate == nullptr ? nullptr : host_.allocate(host_.context, bytes, alignment);
  }
  void release(void* memory) const noexcept {
    if (host_.release != nullptr) host_.release(host_.context, memory);
  }

 private:
  fp_host host_{};
};

}  // namespace fastpath::sdk
