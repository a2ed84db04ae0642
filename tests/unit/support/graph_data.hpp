#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "ops/graph_view.hpp"

namespace fastpath::test {

/// Edges given in any order, sorted stably by receiver, with both CSR forms.
class CsrGraph {
 public:
  template <class I>
  CsrGraph(const std::vector<I>& senders, const std::vector<I>& receivers, std::int64_t n_nodes,
           std::int64_t n_receivers)
      : order(senders.size()), n_nodes_(n_nodes), n_receivers_(n_receivers), sender_edge_(senders.size()) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return receivers[a] < receivers[b]; });
    for (const std::size_t e : order) {
      sender_.push_back(static_cast<std::int32_t>(senders[e]));
      receiver_.push_back(static_cast<std::int32_t>(receivers[e]));
    }
    receiver_ptr_ = pointers(receiver_, n_receivers);
    sender_ptr_ = pointers(sender_, n_nodes);
    std::iota(sender_edge_.begin(), sender_edge_.end(), std::int64_t{0});
    std::stable_sort(sender_edge_.begin(), sender_edge_.end(), [&](auto a, auto b) {
      return sender_[static_cast<std::size_t>(a)] < sender_[static_cast<std::size_t>(b)];
    });
  }

  /// Points into this object.
  ops::GraphView view() const {
    return {static_cast<std::int64_t>(order.size()),
            n_nodes_,
            n_receivers_,
            sender_.data(),
            receiver_.data(),
            receiver_ptr_.data(),
            sender_ptr_.data(),
            sender_edge_.data()};
  }

  /// Rows of an edge array, from the given to the sorted order, and back.
  template <class T>
  std::vector<T> sorted(const std::vector<T>& rows) const {
    std::vector<T> result(rows.size());
    for (std::size_t e = 0; e < order.size(); ++e) copy_row(rows, order[e], result, e);
    return result;
  }
  template <class T>
  std::vector<T> unsorted(const std::vector<T>& rows) const {
    std::vector<T> result(rows.size());
    for (std::size_t e = 0; e < order.size(); ++e) copy_row(rows, e, result, order[e]);
    return result;
  }

  std::vector<std::size_t> order;  ///< order[e] is the given position of sorted edge e.

 private:
  template <class T>
  void copy_row(const std::vector<T>& source, std::size_t from, std::vector<T>& target, std::size_t to) const {
    const auto width = static_cast<std::ptrdiff_t>(source.size() / order.size());
    std::copy_n(source.begin() + static_cast<std::ptrdiff_t>(from) * width, width,
                target.begin() + static_cast<std::ptrdiff_t>(to) * width);
  }
  static std::vector<std::int64_t> pointers(const std::vector<std::int32_t>& keys, std::int64_t count) {
    std::vector<std::int64_t> ptr(static_cast<std::size_t>(count + 1), 0);
    for (const std::int32_t key : keys) ++ptr[static_cast<std::size_t>(key) + 1];
    std::partial_sum(ptr.begin(), ptr.end(), ptr.begin());
    return ptr;
  }

  std::int64_t n_nodes_, n_receivers_;
  std::vector<std::int32_t> sender_, receiver_;
  std::vector<std::int64_t> receiver_ptr_, sender_ptr_, sender_edge_;
};

}  // namespace fastpath::test
