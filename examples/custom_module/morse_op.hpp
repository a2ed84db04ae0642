#pragma once

/// What the host and whoever writes a plugin for it agree on: the op. Nothing here is known to fastpath.
namespace morse {

/// "org.example.morse", version 1: a Morse pair energy with a smooth end, summed at each receiver.
///   node_energies[n] = 1/2 sum over edges e received by n of
///                      depth ((1 - exp(-stiffness (r_e - distance)))^2 - 1) (1 - (r_e / r_max)^2)^2,  0 from r_max on.
///   configuration: r_max, one real, angstrom.
///   graph: yes. inputs: edge_vectors [n_edges, 3], angstrom. outputs: node_energies [n_receivers], eV.
///   parameters, each [1]: depth (eV), stiffness (1/angstrom), distance (angstrom).
///   passes: forward, backward.
inline constexpr const char* kOp = "org.example.morse";
inline constexpr int kVersion = 1;

}  // namespace morse
