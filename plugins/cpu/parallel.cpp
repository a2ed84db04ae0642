#include "cpu/parallel.hpp"

#ifdef FASTPATH_PARALLEL_STD_THREAD
#include <exception>
#include <mutex>
#include <thread>
#include <vector>
#else
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#endif

namespace fastpath_cpu {

#ifdef FASTPATH_PARALLEL_STD_THREAD

struct Workers::Arena {};
Workers::~Workers() = default;

void Workers::run_parallel(int threads, std::int64_t n, void (*call)(const void*, std::int64_t), const void* context) {
  std::atomic<std::int64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    try {
      for (std::int64_t i = next++; i < n; i = next++) call(context, i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      error = std::current_exception();
    }
  };
  std::vector<std::jthread> others;
  for (std::int64_t t = 1; t < std::min<std::int64_t>(threads, n); ++t) others.emplace_back(work);
  work();
  others.clear();
  if (error != nullptr) std::rethrow_exception(error);
}

#else

struct Workers::Arena {
  explicit Arena(int n_threads) : threads(n_threads), arena(n_threads) {}
  int threads;
  tbb::task_arena arena;
  Arena* next = nullptr;
};

Workers::~Workers() {
  for (Arena* arena = arenas_; arena != nullptr;) {
    Arena* next = arena->next;
    delete arena;
    arena = next;
  }
}

void Workers::run_parallel(int threads, std::int64_t n, void (*call)(const void*, std::int64_t), const void* context) {
  threads = std::min(threads, tbb::info::default_concurrency());  // oneTBB prints a warning when asked for more
  Arena* arena = arenas_.load();
  while (arena != nullptr && arena->threads != threads) arena = arena->next;
  if (arena == nullptr) {  // two threads may both add one; that costs memory, no more
    arena = new Arena(threads);
    arena->next = arenas_.load();
    while (!arenas_.compare_exchange_weak(arena->next, arena)) {
    }
  }
  arena->arena.execute([&] {
    tbb::parallel_for(
        std::int64_t{0}, n, [&](std::int64_t i) { call(context, i); }, tbb::simple_partitioner());
  });
}

#endif

}  // namespace fastpath_cpu
