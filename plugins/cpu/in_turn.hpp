#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <thread>

namespace fastpath_cpu {

/// Items 0, 1, .. that are made by whoever is free and added one after the other: an item's place of `places` is given
/// to a later one once it was added. What is added is cut into slices, each with a turn of its own. No thread waits for
/// one that has not begun.
class InTurn {
 public:
  static constexpr int kMostSlices = 32;

  InTurn(std::int64_t items, std::int64_t places, int slices)
      : items_(items), places_(places), slices_(std::clamp(slices, 1, kMostSlices)) {}

  int slices() const { return slices_; }
  /// The work of one thread. make(item, place) writes to a place, add(item, place, slice) reads it; the adds of a slice
  /// come in the order of the items, never two at once. Neither may throw: others would wait for what was not made.
  template <class Make, class Add>
  void work(const Make& make, const Add& add) {
    for (;;) {
      const std::int64_t item = next_.fetch_add(1, std::memory_order_relaxed);
      if (item >= items_) return;
      while (added() + places_ <= item) {
        if (!add_made(add)) std::this_thread::yield();
      }
      make(item, item % places_);
      made_[item % places_].store(item + 1, std::memory_order_release);
      add_made(add);
    }
  }
  /// What is left when all work() have returned.
  template <class Add>
  void finish(const Add& add) {
    add_made(add);
  }

  static constexpr std::int64_t kMostPlaces = 32;

 private:
  /// Adds what is made and not being added by another thread. False if that was nothing.
  template <class Add>
  bool add_made(const Add& add) {
    bool any = false;
    for (int i = 0; i < slices_; ++i) {
      Turn& turn = turns_[static_cast<std::size_t>(i)];
      while (is_made(turn.next.load(std::memory_order_relaxed)) &&
             !turn.taken.test_and_set(std::memory_order_acquire)) {
        std::int64_t item = turn.next.load(std::memory_order_relaxed);
        for (; is_made(item); turn.next.store(++item, std::memory_order_release)) {
          add(item, item % places_, i);
          any = true;
        }
        turn.taken.clear(std::memory_order_release);
      }
    }
    return any;
  }
  bool is_made(std::int64_t item) const {
    return item < items_ && made_[item % places_].load(std::memory_order_acquire) == item + 1;
  }
  std::int64_t added() const {
    std::int64_t least = items_;
    for (int i = 0; i < slices_; ++i) {
      least = std::min(least, turns_[static_cast<std::size_t>(i)].next.load(std::memory_order_acquire));
    }
    return least;
  }

  struct alignas(64) Turn {
    std::atomic<std::int64_t> next{0};
    std::atomic_flag taken = ATOMIC_FLAG_INIT;
  };
  std::int64_t items_, places_;
  int slices_;
  std::array<Turn, kMostSlices> turns_;
  std::array<std::atomic<std::int64_t>, kMostPlaces> made_{};  // the item of a place, counted from 1
  std::atomic<std::int64_t> next_{0};
};

}  // namespace fastpath_cpu
