#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

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
  /// The known result, or that of `make`, called once however many threads ask at the same time: the others wait.
  /// What `make` throws reaches its caller, and the next one tries again.
  GateResult result(const std::string& key, const std::function<GateResult()>& make);
  std::optional<GateResult> find(const std::string& key) const;
  void put(const std::string& key, GateResult result);

 private:
  struct Entry {
    bool running = false;
    std::optional<GateResult> result;
  };
  mutable std::mutex mutex_;
  std::condition_variable done_;
  std::map<std::string, Entry> entries_;
};

}  // namespace fastpath::verify
