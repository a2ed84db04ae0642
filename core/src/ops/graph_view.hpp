#pragma once

#include <cstdint>

namespace fastpath::ops {

/// The edges of a neighbour list as ops see them: sorted by receiver, with the sender transpose. Owns nothing.
/// Receivers are the first n_receivers nodes; the other nodes (ghosts) only send.
struct GraphView {
  std::int64_t n_edges = 0;
  std::int64_t n_nodes = 0;
  std::int64_t n_receivers = 0;
  const std::int32_t* sender = nullptr;        ///< [n_edges], in 0..n_nodes-1
  const std::int32_t* receiver = nullptr;      ///< [n_edges], ascending, in 0..n_receivers-1
  const std::int64_t* receiver_ptr = nullptr;  ///< [n_receivers + 1]: edges of receiver r are ptr[r]..ptr[r+1]-1
  const std::int64_t* sender_ptr = nullptr;    ///< [n_nodes + 1]: ranges of sender_edge, per sender
  const std::int64_t* sender_edge = nullptr;   ///< [n_edges]: edges ordered by sender, then edge number
};

}  // namespace fastpath::ops
