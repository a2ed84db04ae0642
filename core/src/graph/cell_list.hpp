#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "fastpath/structure.hpp"

namespace fastpath::graph {

/// Directed edges in no particular order.
struct EdgeList {
  std::vector<std::int32_t> sender;
  std::vector<std::int32_t> receiver;
  std::vector<Vec3> shift;  ///< angstrom
};

/// Largest magnitude of a coordinate, angstrom. Beyond it doubles no longer resolve distances between atoms.
inline constexpr double kMaxCoordinate = 1e12;

/// How many edges this machine can hold at most while a graph is built.
std::size_t most_edges_in_memory();

/// Both directions of every pair closer than `r_max`; see Graph::from_structure for what counts and what is refused.
/// Positions must be finite and the structure's sizes equal. Time and memory are linear in atoms plus edges for a
/// bounded density, whatever the extent of the structure: only occupied bins are stored.
/// @param most_edges  More than these are refused as Error(out_of_memory): a structure in the wrong unit, say, would
///                    otherwise end in the operating system's killer. Default: what surely does not fit this machine.
EdgeList find_pairs(const Structure& structure, double r_max, std::size_t most_edges = most_edges_in_memory());

}  // namespace fastpath::graph
