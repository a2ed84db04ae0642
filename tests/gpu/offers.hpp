#pragma once

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "fastpath/sdk/host.hpp"

/// What a plugin gets from a host, kept for tests: lines that were logged, and values to look up.
class Offers {
 public:
  fastpath::sdk::Host host() {
    table_ = fastpath::sdk::abi_struct<fp_host>();
    table_.context = this;
    table_.log = [](void* context, std::int32_t level, const char* text, std::uint64_t size) {
      auto& self = *static_cast<Offers*>(context);
      const std::lock_guard lock(self.mutex_);
      self.lines.push_back(std::to_string(level) + " " + std::string(text, size));
    };
    table_.lookup = [](void* context, const char* key, std::uint64_t key_size, const char** value,
                       std::uint64_t* value_size) -> std::int32_t {
      const auto& known = static_cast<const Offers*>(context)->values;
      const auto found = known.find(std::string(key, key_size));
      if (found == known.end()) return 0;
      *value = found->second.data();
      *value_size = found->second.size();
      return 1;
    };
    return fastpath::sdk::Host(&table_);
  }

  std::vector<std::string> lines;
  std::map<std::string, std::string> values;

 private:
  fp_host table_{};
  std::mutex mutex_;
};
