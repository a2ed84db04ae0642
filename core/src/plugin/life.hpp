#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fastpath::plugin {

class Lease;

/// The time in which a plugin may be called: from its loading to its shutdown. It ends once, and only after everybody
/// who holds a Lease on it has let go.
class Life {
 public:
  Life() = default;
  Life(const Life&) = delete;
  Life& operator=(const Life&) = delete;

  /// True once its end has begun: nobody gets a lease any more.
  bool ending() const noexcept { return (state_.load(std::memory_order_acquire) & kEnding) != 0; }
  /// From now on nobody gets a lease.
  void begin_end() noexcept;
  /// Waits until the last lease is let go. Not for a thread that holds one.
  void await_end() const noexcept;

 private:
  friend class Lease;
  static constexpr std::uint64_t kEnding = std::uint64_t{1} << 63;
  bool enter() noexcept;
  void leave() noexcept;
  std::atomic<std::uint64_t> state_{0};  // leases, and whether the end has begun
};

/// Keeps plugins from being shut down while it lives, in the thread that made it: for one call, or for an evaluation.
/// A thread that holds one on a plugin gets further ones, even if the end has begun, and they cost nothing.
class Lease {
 public:
  Lease() noexcept;
  explicit Lease(Life& life) : Lease() { add(life); }
  ~Lease();
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  /// False if the plugin was shut down, or is about to be.
  bool add(Life& life);
  /// Whether every add() so far succeeded.
  explicit operator bool() const noexcept { return good_; }
  /// Whether this thread holds any.
  static bool held() noexcept;
  /// Lets go of all of them.
  void clear() noexcept;

 private:
  bool covers(const Life& life) const noexcept;
  Lease* const outer_;
  std::array<Life*, 4> few_{};
  std::size_t count_ = 0;
  std::vector<Life*> more_;
  bool good_ = true;
};

/// How often a plugin began to be shut down in this process: selections made before may have to be others.
std::uint64_t shutdown_generation() noexcept;

}  // namespace fastpath::plugin
