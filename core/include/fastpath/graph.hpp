#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "fastpath/export.hpp"
#include "fastpath/structure.hpp"
#include "fastpath/tensor.hpp"

namespace fastpath {

/// A neighbour list that a host brings along. Every pair must be present in both directions.
/// Edge e goes from `sender[e]` to `receiver[e]`; its vector is positions[receiver] - positions[sender] + shift.
struct HostEdges {
  std::span<const std::int32_t> atomic_numbers;  ///< [n_total]
  std::span<const double> positions;             ///< [n_total, 3], angstrom
  std::int64_t n_local = -1;                     ///< Atoms of the host's own; the rest are ghosts. Negative: all.
  Tensor sender;                                 ///< [n_edges], int32 or int64, any order
  Tensor receiver;                               ///< [n_edges], int32 or int64
  Tensor shift;                                  ///< [n_edges, 3] float64, angstrom; undefined means zero
  Tensor mask;                                   ///< [n_edges] bool or uint8; false drops the edge; undefined keeps all
  std::optional<std::array<Vec3, 3>> cell;       ///< Rows a, b, c; needed for a stress only
};

/// The edges of a structure in canonical order, with what kernels need to run without atomics. Immutable.
/// Canonical order: by receiver, then sender, then shift (x, y, z), then position in the input.
class FASTPATH_EXPORT Graph {
 public:
  /// All directed pairs closer than `r_max` (strictly), by a cell list, O(n_atoms) for a bounded density.
  /// Periodic self-images stay; an atom is not its own neighbour under shift zero. Non-periodic axes never wrap.
  /// @throws Error(invalid_argument) naming the atom, pair or axis: non-finite positions, atoms closer than
  ///   kMinDistance, a periodic axis with a degenerate cell vector, r_max not positive and finite, sizes that differ,
  ///   coordinates beyond 1e12 angstrom; Error(out_of_memory) naming the expected number of pairs if they cannot fit.
  static Graph from_structure(const Structure& structure, double r_max);

  /// Sorts a host's own list. Edges at or beyond `r_max` are kept: they contribute nothing, and the host sees its
  /// count.
  /// @throws Error(invalid_argument) naming the edge and the index: out of range, more than 2^31 - 1 nodes, length
  ///   below kMinDistance or not finite, wrong dtype or shape.
  static Graph from_edges(const HostEdges& edges);

  /// Graphs side by side in one, without edges between them, to be evaluated in one go: nodes and edges one graph after
  /// the other. Graphs may be empty, without edges, or joined ones themselves.
  /// @throws Error(invalid_argument) naming the graph if one has ghosts, or for more than 2^31 - 1 nodes in all;
  ///   Error(out_of_memory).
  static Graph join(std::span<const Graph> graphs);

  std::int64_t n_nodes() const noexcept { return n_nodes_; }  ///< With ghosts.
  std::int64_t n_local() const noexcept { return n_local_; }  ///< Without ghosts: nodes 0..n_local-1.
  std::int64_t n_edges() const noexcept { return n_edges_; }
  const Tensor& atomic_numbers() const noexcept { return atomic_numbers_; }  ///< [n_nodes] int32
  const Tensor& positions() const noexcept { return positions_; }            ///< [n_nodes, 3] float64, angstrom
  const Tensor& sender() const noexcept { return sender_; }                  ///< [n_edges] int32
  const Tensor& receiver() const noexcept { return receiver_; }              ///< [n_edges] int32, ascending
  const Tensor& shift() const noexcept { return shift_; }                    ///< [n_edges, 3] float64, angstrom
  /// [n_nodes + 1] int64: edges receiver_ptr[n] .. receiver_ptr[n+1]-1 have receiver n.
  const Tensor& receiver_ptr() const noexcept { return receiver_ptr_; }
  /// [n_nodes + 1] int64 and [n_edges] int64: edges sender_edge[sender_ptr[n] .. sender_ptr[n+1]-1] have sender n,
  /// ascending.
  const Tensor& sender_ptr() const noexcept { return sender_ptr_; }
  const Tensor& sender_edge() const noexcept { return sender_edge_; }
  /// [n_edges] int64: position in the caller's list of edge e; for from_structure the identity; for join what it was in
  /// the edge's own graph.
  const Tensor& input_position() const noexcept { return input_position_; }
  std::int64_t n_graphs() const noexcept { return static_cast<std::int64_t>(volumes_.size()); }  ///< 1 unless joined.
  /// [n_graphs + 1] int64: nodes graph_ptr[g] .. graph_ptr[g+1]-1 are those of graph g.
  const Tensor& graph_ptr() const noexcept { return graph_ptr_; }
  /// Volume in cubic angstrom if the structure is periodic in all three directions (or a host gave a cell). Of joined
  /// graphs each has its own, and all together have none.
  std::optional<double> volume() const noexcept { return n_graphs() == 1 ? volumes_.front() : std::nullopt; }
  /// The volume of one graph, 0 <= graph < n_graphs.
  std::optional<double> volume(std::int64_t graph) const { return volumes_.at(static_cast<std::size_t>(graph)); }
  /// Edge vectors [n_edges, 3] float64: positions[receiver] - positions[sender] + shift.
  Tensor edge_vectors() const;

  /// Shortest pair accepted, angstrom.
  static constexpr double kMinDistance = 1e-6;

 private:
  Graph() = default;
  friend struct GraphBuilder;

  std::int64_t n_nodes_ = 0;
  std::int64_t n_local_ = 0;
  std::int64_t n_edges_ = 0;
  Tensor atomic_numbers_, positions_, sender_, receiver_, shift_, receiver_ptr_, sender_ptr_, sender_edge_,
      input_position_, graph_ptr_;
  std::vector<std::optional<double>> volumes_;  // of every graph
};

/// Direction of a ghost exchange: features from owners to their ghosts, or gradients from ghosts back to their owners.
enum class ExchangeDirection { forward, backward };

/// Fills ghost rows (forward), or adds the gradient of ghost rows to the rows of their owners (backward).
/// `features` is [n_total, width] in the evaluation dtype on the CPU. Forward: rows 0..n_local-1 are valid on entry,
/// all rows must be on return. Backward: all rows are valid on entry; on return rows 0..n_local-1 hold own plus
/// received gradients.
using ExchangeCallback = std::function<void(ExchangeDirection direction, std::int64_t layer, const Tensor& features)>;

}  // namespace fastpath
