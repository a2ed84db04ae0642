#pragma once

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

/// Both directions of every pair closer than `r_max`; see Graph::from_structure for what counts and what is refused.
/// Positions must be finite and the structure's sizes equal. Time and memory are linear in atoms plus edges for a
/// bounded density, whatever the extent of the structure: only occupied bins are stored.
EdgeList find_pairs(const Structure& structure, double r_max);

}  // namespace fastpath::graph
