#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "fastpath/error.hpp"
#include "plugin.hpp"

namespace fastpath::plugin {
namespace {

/// One shutdown at a time. No lock is held while plugins are called. Never destroyed, as the plugins are not.
class Turn {
 public:
  Turn() {
    refuse_shutdown_from_within();
    std::unique_lock lock(state().mutex);
    state().changed.wait(lock, [] { return !state().running; });
    state().running = running_here = true;
  }
  ~Turn() {
    const std::lock_guard lock(state().mutex);
    state().running = running_here = false;
    state().changed.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  static bool here() noexcept { return running_here; }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool running = false;
  };
  static State& state() {
    static State* const instance = new State;
    return *instance;
  }
  static thread_local bool running_here;
};
thread_local bool Turn::running_here = false;

}  // namespace

void refuse_shutdown_from_within() {
  if (!Lease::held() && !Turn::here()) return;
  throw Error(ErrorCode::invalid_argument,
              "plugins cannot be shut down from within an evaluation, or from a call of a plugin");
}

std::vector<Ended> shut_down(std::vector<std::shared_ptr<LoadedPlugin>> plugins) {
  const Turn turn;
  std::erase_if(plugins, [](const auto& plugin) { return plugin->ending() == nullptr; });
  // Who brings only kernels works on the memory of others, so it goes before them.
  std::sort(plugins.begin(), plugins.end(), [](const auto& a, const auto& b) {
    if (a->ending()->owns_memory() != b->ending()->owns_memory()) return b->ending()->owns_memory();
    return a->ending()->order() > b->ending()->order();
  });
  for (const auto& plugin : plugins) plugin->ending()->life().begin_end();
  // What other threads held in the parent nobody lets go of here.
  std::erase_if(plugins, [](const auto& plugin) { return plugin->ending()->forked(); });
  for (const auto& plugin : plugins) plugin->ending()->life().await_end();
  for (const auto& plugin : plugins) plugin->ending()->destroy_kernels();
  for (const auto& plugin : plugins) plugin->ending()->close_devices();
  std::vector<Ended> result;
  for (const auto& plugin : plugins) {
    std::string text;
    if (plugin->ending()->call_shutdown(text)) result.push_back({plugin, std::move(text)});
  }
  return result;
}

Reason shut_down_reason() { return {ReasonCode::shut_down, "plugins were shut down in this process"}; }

}  // namespace fastpath::plugin
