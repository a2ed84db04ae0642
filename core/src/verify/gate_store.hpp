#pragma once

#include <condition_variable>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "verify/gate_archive.hpp"

namespace fastpath::verify {

/// What came of trying a kernel.
struct GateResult {
  bool passed = false;
  bool lasting = true;  ///< False where it may be different next time: no memory was left.
  std::string text;     ///< What was wrong: a sentence.
};

/// Results by a text that says everything they depend on (gate_key()). Thread-safe; holds no lock while kernels run.
class GateStore {
 public:
  /// @param cache  Where passed gates are kept between processes; empty: nowhere.
  explicit GateStore(std::filesystem::path cache = {}) : archive_(std::move(cache)) {}

  /// The known result, or that of `make`, called once however many threads ask at the same time: the others wait.
  /// What `make` throws reaches its caller, and the next one tries again.
  /// @param keep  The key says what the file of the plugin holds, so that what passed counts in other processes too.
  GateResult result(const std::string& key, bool keep, const std::function<GateResult()>& make);
  std::optional<GateResult> find(const std::string& key) const;
  void put(const std::string& key, GateResult result);
  GateArchive& archive() noexcept { return archive_; }

 private:
  struct Entry {
    bool running = false;
    std::optional<GateResult> result;
  };
  GateArchive archive_;
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::map<std::string, Entry> entries_;
};

}  // namespace fastpath::verify
