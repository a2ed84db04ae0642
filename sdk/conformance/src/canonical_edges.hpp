#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace fastpath::conformance {

/// Fills in the arrays of fp_graph that follow from its edges: sender, receiver, receiver_ptr, sender_ptr, sender_edge.
/// @param graph  A struct with vectors of these names and n_nodes, which is known.
/// @param edges  (receiver, sender), any order, duplicates allowed.
template <class Graph>
void fill_edges(Graph& graph, std::vector<std::pair<std::int32_t, std::int32_t>> edges) {
  std::stable_sort(edges.begin(), edges.end());
  graph.receiver_ptr.assign(static_cast<std::size_t>(graph.n_nodes + 1), 0);
  graph.sender_ptr = graph.receiver_ptr;
  for (const auto& [receiver, sender] : edges) {
    graph.receiver.push_back(receiver);
    graph.sender.push_back(sender);
    ++graph.receiver_ptr[static_cast<std::size_t>(receiver) + 1];
    ++graph.sender_ptr[static_cast<std::size_t>(sender) + 1];
  }
  for (std::size_t n = 1; n < graph.receiver_ptr.size(); ++n) {
    graph.receiver_ptr[n] += graph.receiver_ptr[n - 1];
    graph.sender_ptr[n] += graph.sender_ptr[n - 1];
  }
  std::vector<std::int64_t> next = graph.sender_ptr;
  graph.sender_edge.resize(edges.size());
  for (std::size_t e = 0; e < edges.size(); ++e) {
    graph.sender_edge[static_cast<std::size_t>(next[static_cast<std::size_t>(graph.sender[e])]++)] =
        static_cast<std::int64_t>(e);
  }
}

}  // namespace fastpath::conformance
