#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "cpu/in_turn.hpp"
#include "product.hpp"

/// Who works on which edges. All cuts depend on the graph alone, so results have the same bits for any number of
/// threads.
namespace cpu_simd {

/// Sets of buffers, one for each thread that is at work. Which one it gets changes no result.
class Slots {
 public:
  static constexpr int kMost = 32;
  /// A set for as long as the object lives; there are never more than `kMost` threads at work.
  class Lease {
   public:
    explicit Lease(Slots& slots) : slots_(slots), slot_(slots.acquire()) {}
    ~Lease() { slots_.used_.fetch_and(~(1u << slot_), std::memory_order_release); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    int slot() const { return slot_; }

   private:
    Slots& slots_;
    int slot_;
  };

 private:
  int acquire() {
    std::uint32_t used = used_.load(std::memory_order_relaxed);
    for (;;) {
      int slot = 0;
      while ((used >> slot & 1u) != 0) ++slot;
      if (used_.compare_exchange_weak(used, used | 1u << slot, std::memory_order_acquire)) return slot;
    }
  }
  std::atomic<std::uint32_t> used_{0};
};

/// Work on the edges of a graph, for a kernel whose Job has: Plan (with a member `product`), Buffers(plan, scratch,
/// backward), Call (a ProductCall with more), and per instruction set forward, backward and add (see below).
template <class T, class Job>
class EdgeWork {
 public:
  using Plan = typename Job::Plan;
  using Buffers = typename Job::Buffers;
  using Call = typename Job::Call;

  /// Memory of a call.
  EdgeWork(const Plan& plan, sdk::Scratch& scratch, const sdk::Extents& extents, bool backward)
      : plan_(plan), n_edges_(extents[sdk::Axis::edges]), n_nodes_(extents[sdk::Axis::nodes]) {
    const std::int64_t n_receivers = extents[sdk::Axis::receivers];
    const FeatureRows<T>& in = plan.product.in;
    // A part ends with a tile that is not full. Few parts would leave threads without work.
    n_parts_ = std::clamp<std::int64_t>(n_edges_ / (2 * kTile), n_edges_ > 2 * kTile ? 2 : 1, 64);
    most_tiles_ = n_edges_ / kTile + n_receivers / kTileReceivers + 1;
    x_ = scratch.take<T>(n_nodes_ * in.size);
    for (int i = 0; i < std::min<std::int64_t>(backward ? most_tiles_ : n_parts_, Slots::kMost); ++i) {
      buffers_.emplace_back(plan, scratch, backward);
    }
    if (!backward) return;
    tiles_ = scratch.take<std::int64_t>(most_tiles_ + 1);
    group_ = std::min(kGroup, most_tiles_);
    to_senders_ = scratch.take<T>(group_ * kTile * in.size);
    grad_x_ = scratch.take<T>(n_nodes_ * in.size);
  }

  void forward(Workers& workers, int threads, const T* x, Call& call) {
    pack(workers, threads, x, call);
    const auto& graph = call.graph;
    const std::int64_t n = graph.receiver_ptr[graph.n_receivers];
    // Parts end where a receiver does, and have equal numbers of edges otherwise.
    const auto start = [&](std::int64_t part) -> std::int64_t {
      if (part == 0) return 0;
      if (part == n_parts_) return graph.n_receivers;
      return std::lower_bound(graph.receiver_ptr, graph.receiver_ptr + graph.n_receivers, n / n_parts_ * part) -
             graph.receiver_ptr;
    };
    Slots slots;
    workers.run(limit(threads), n_parts_, [&](std::int64_t part) {
      const std::int64_t first = start(part), last = start(part + 1);
      if (first >= last) return;
      const Slots::Lease lease(slots);
      functions_.forward(plan_, call, buffers_[static_cast<std::size_t>(lease.slot())], first, last);
    });
  }

  /// @param grad_x   Out: [n_nodes, in.dim]. May be null.
  /// @param stripes  The job sums something over all edges: tiles then say which of kStripes sums they add to. Those of
  ///   one sum come one after the other.
  void backward(Workers& workers, int threads, const T* x, Call& call, T* grad_x, bool stripes) {
    const auto& graph = call.graph;
    const std::int64_t n = graph.receiver_ptr[graph.n_receivers];
    std::int64_t n_tiles = 0;
    for (std::int64_t e = 0; e < n; e = tiles_[n_tiles]) {
      tiles_[n_tiles++] = e;
      tiles_[n_tiles] = e + Tile(graph.receiver, e, n).n;
    }
    // Tiles are added in the order of the edges, or one of every stripe after the other. A stripe has one place, so
    // that its tiles wait for each other.
    const std::int64_t n_stripes = stripes ? std::min(kStripes, n_tiles) : 1;
    const std::int64_t length = stripes && n_tiles > 0 ? (n_tiles + n_stripes - 1) / n_stripes : 1;
    const std::int64_t places = stripes ? std::max<std::int64_t>(n_stripes, 1) : threads <= 1 ? 1 : 4 * threads;
    const auto tile_of = [&](std::int64_t item) {  // or n_tiles
      if (!stripes) return item;
      const std::int64_t stripe = item % n_stripes, tile = stripe * length + item / n_stripes;
      return tile < std::min((stripe + 1) * length, n_tiles) ? tile : n_tiles;
    };
    backward_in_turn(
        workers, threads, x, call, grad_x, stripes ? (n_tiles > 0 ? n_stripes * length : 0) : n_tiles, n_tiles, places,
        [&](std::int64_t item, std::int64_t place, Buffers& buffers, T* to_senders) {
          const std::int64_t t = tile_of(item);
          if (t == n_tiles) return;
          functions_.backward(plan_, call, buffers, Tile(graph.receiver, tiles_[t], tiles_[t + 1]), to_senders,
                              stripes ? place : -1);
        },
        [&](std::int64_t item, const auto& add) {
          const std::int64_t t = tile_of(item);
          if (t < n_tiles) add(tiles_[t + 1] - tiles_[t], graph.sender + tiles_[t]);
        });
  }

  static constexpr std::int64_t kStripes = 16;

 protected:
  /// Items are done side by side, and what they add to senders is added in order.
  /// @param make     make(item, place, buffers, to_senders) fills to_senders: [kTile] packed rows.
  /// @param senders  senders(item, add) calls add(n, sender) for the n rows that the item has filled, unless it has
  /// none.
  template <class Make, class Senders>
  void backward_in_turn(Workers& workers, int threads, const T* x, Call& call, T* grad_x, std::int64_t items,
                        std::int64_t n_tiles, std::int64_t places, const Make& make, const Senders& senders) {
    pack(workers, threads, x, call);
    const FeatureRows<T>& in = plan_.product.in;
    std::fill_n(grad_x_, n_nodes_ * in.size, T(0));
    Slots slots;
    constexpr std::int64_t kLine = 64 / sizeof(T);
    const std::int64_t lines = in.size / kLine;
    fastpath_cpu::InTurn turns(items, std::min(places, group_),
                               static_cast<int>(std::min<std::int64_t>(limit(threads), lines)));
    const auto add = [&](std::int64_t item, std::int64_t place, int slice) {
      if (grad_x == nullptr) return;
      senders(item, [&](std::int64_t n, const std::int32_t* sender) {
        functions_.add(n, sender, to_senders_ + place * kTile * in.size, in.size,
                       lines * slice / turns.slices() * kLine, lines * (slice + 1) / turns.slices() * kLine, grad_x_);
      });
    };
    const std::int64_t at_work = std::min({std::int64_t{limit(threads)}, n_tiles, std::ssize(buffers_)});
    workers.run(limit(threads), at_work, [&](std::int64_t) {
      const Slots::Lease lease(slots);
      turns.work(
          [&](std::int64_t item, std::int64_t place) {
            make(item, place, buffers_[static_cast<std::size_t>(lease.slot())], to_senders_ + place * kTile * in.size);
          },
          add);
    });
    turns.finish(add);
    if (grad_x == nullptr) return;
    const Chunks chunks(n_nodes_, nodes_to_copy());
    workers.run(threads, chunks.count, [&](std::int64_t chunk) {
      for (std::int64_t i = chunks.begin(chunk); i < chunks.end(chunk); ++i) {
        in.unpack(grad_x_ + i * in.size, grad_x + i * in.dim);
      }
    });
  }

  const Plan& plan_;

 private:
  static constexpr std::int64_t kGroup = fastpath_cpu::InTurn::kMostPlaces;

  /// Nodes whose rows are worth waking a thread for: it takes as long as copying some ten kilobytes.
  std::int64_t nodes_to_copy() const {
    constexpr std::int64_t kBytes = 64 * 1024;
    return std::max<std::int64_t>(8, kBytes / (plan_.product.in.size * std::int64_t{sizeof(T)} + 1));
  }
  static int limit(int threads) { return std::min(threads, Slots::kMost); }
  void pack(Workers& workers, int threads, const T* x, Call& call) {
    const FeatureRows<T>& in = plan_.product.in;
    const Chunks chunks(n_nodes_, nodes_to_copy());
    workers.run(threads, chunks.count, [&](std::int64_t chunk) {
      for (std::int64_t i = chunks.begin(chunk); i < chunks.end(chunk); ++i) in.pack(x + i * in.dim, x_ + i * in.size);
    });
    call.x = x_;
  }

  std::int64_t n_edges_, n_nodes_, n_parts_ = 1, most_tiles_ = 0, group_ = 1;
  T *x_ = nullptr, *to_senders_ = nullptr, *grad_x_ = nullptr;
  std::int64_t* tiles_ = nullptr;
  std::vector<Buffers> buffers_;
  typename Job::Functions functions_ = Job::functions();
};

}  // namespace cpu_simd
