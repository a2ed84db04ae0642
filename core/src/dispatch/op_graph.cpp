#include <fmt/format.h>

#include "fastpath/error.hpp"
#include "fastpath/op.hpp"

namespace fastpath {

OpGraph OpGraph::from(const Graph& graph, const Tensor& species, std::int64_t n_species, std::int64_t n_receivers) {
  OpGraph result;
  result.n_edges = graph.n_edges();
  result.n_nodes = graph.n_nodes();
  result.n_receivers = n_receivers;
  result.sender = graph.sender();
  result.receiver = graph.receiver();
  result.receiver_ptr = graph.receiver_ptr();
  result.sender_ptr = graph.sender_ptr();
  result.sender_edge = graph.sender_edge();
  if (!species.defined()) return result;

  const auto index = species.span<std::int32_t>();
  if (species.numel() != graph.n_nodes()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("species of {} nodes for a graph of {}", species.numel(), graph.n_nodes()));
  }
  result.n_species = n_species;
  result.species = species;
  result.species_ptr = Tensor::zeros({n_species + 1}, DType::int64);
  result.species_node = Tensor::empty({graph.n_nodes()}, DType::int32);
  const auto ptr = result.species_ptr.span<std::int64_t>();
  for (const std::int32_t s : index) {
    if (s < 0 || s >= n_species) {
      throw Error(ErrorCode::invalid_argument, fmt::format("species index {} of {} species", s, n_species));
    }
    ++ptr[static_cast<std::size_t>(s) + 1];
  }
  for (std::size_t s = 1; s < ptr.size(); ++s) ptr[s] += ptr[s - 1];
  std::vector<std::int64_t> next(ptr.begin(), ptr.end());
  const auto node = result.species_node.span<std::int32_t>();
  for (std::size_t n = 0; n < index.size(); ++n) {
    node[static_cast<std::size_t>(next[static_cast<std::size_t>(index[n])]++)] = static_cast<std::int32_t>(n);
  }
  return result;
}

}  // namespace fastpath
