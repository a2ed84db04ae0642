#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace fastpath_cpu {

/// Cuts 0..n-1 into at most `most` ranges of at least `least` items. The cut depends on nothing else, so what is summed
/// per range and then in range order has the same bits for any number of threads.
struct Chunks {
  std::int64_t n = 0;
  std::int64_t count = 0;

  Chunks(std::int64_t items, std::int64_t least, std::int64_t most = 64)
      : n(items), count(std::min(most, (items + least - 1) / least)) {}
  std::int64_t begin(std::int64_t chunk) const { return n / count * chunk + std::min(chunk, n % count); }
  std::int64_t end(std::int64_t chunk) const { return begin(chunk + 1); }
};

/// The threads of a kernel. Keeps what is costly to set up between calls. Safe to use from several threads at once.
class Workers {
 public:
  Workers() = default;
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Calls body(0) .. body(n - 1), in any order, on at most `threads` threads; one thread means here and in order.
  /// What body throws leaves this function once nothing runs any more.
  template <class Body>
  void run(int threads, std::int64_t n, const Body& body) {
    if (threads <= 1 || n <= 1) {
      for (std::int64_t i = 0; i < n; ++i) body(i);
    } else {
      run_parallel(
          threads, n, [](const void* context, std::int64_t i) { (*static_cast<const Body*>(context))(i); }, &body);
    }
  }

 private:
  struct Arena;
  void run_parallel(int threads, std::int64_t n, void (*call)(const void*, std::int64_t), const void* context);
  std::atomic<Arena*> arenas_{nullptr};  // one per number of threads that was asked for
};

}  // namespace fastpath_cpu
