#include "fastpath/graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "fastpath/error.hpp"
#include "graph/cell_list.hpp"
#include "graph/frame.hpp"

namespace fastpath {
namespace {

constexpr std::int64_t kMaxNodes = std::numeric_limits<std::int32_t>::max();

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorCode::invalid_argument, text); }

void check_node_count(std::int64_t n_nodes) {
  if (n_nodes > kMaxNodes) refuse(fmt::format("{} nodes, at most {} fit node ids of 32 bits", n_nodes, kMaxNodes));
}

void check_positions(const double* positions, std::int64_t n_nodes) {
  for (std::int64_t i = 0; i < n_nodes; ++i) {
    const double* row = positions + 3 * i;
    if (!std::isfinite(row[0]) || !std::isfinite(row[1]) || !std::isfinite(row[2])) {
      refuse(fmt::format("position of atom {} is ({}, {}, {}), expected finite numbers", i, row[0], row[1], row[2]));
    }
  }
}

double volume_of(const std::array<Vec3, 3>& cell) {
  return std::abs(graph::dot(cell[0], graph::cross(cell[1], cell[2])));
}

/// Checks one tensor of a host's list: present if `required`, on the CPU, of the right rank and leading size.
void check_edge_tensor(const Tensor& tensor, const char* name, const Shape& shape) {
  if (!tensor.device().is_cpu()) {
    refuse(fmt::format("{} of the host's edges is on {}, expected on cpu as the positions are", name,
                       to_string(tensor.device())));
  }
  if (tensor.shape() != shape) {
    refuse(fmt::format("{} of the host's edges has shape {}, expected {}", name, to_string(tensor.shape()),
                       to_string(shape)));
  }
}

/// A contiguous index tensor of 32 or 64 bits, read as 64 bits.
class Indices {
 public:
  Indices(const Tensor& tensor, const char* name, std::int64_t n_edges) : name_(name) {
    check_edge_tensor(tensor, name, {n_edges});
    if (tensor.dtype() != DType::int32 && tensor.dtype() != DType::int64) {
      refuse(fmt::format("{} of the host's edges is {}, expected int32 or int64", name, to_string(tensor.dtype())));
    }
    tensor_ = tensor.contiguous();
    if (tensor_.dtype() == DType::int32) narrow_ = tensor_.data<std::int32_t>();
    if (tensor_.dtype() == DType::int64) wide_ = tensor_.data<std::int64_t>();
  }

  std::int32_t at(std::int64_t edge, std::int64_t n_nodes) const {
    const std::int64_t node = narrow_ != nullptr ? narrow_[edge] : wide_[edge];
    if (node < 0 || node >= n_nodes) {
      refuse(fmt::format("{} of edge {} is {}, expected 0 to {}", name_, edge, node, n_nodes - 1));
    }
    return static_cast<std::int32_t>(node);
  }

 private:
  const char* name_;
  Tensor tensor_;
  const std::int32_t* narrow_ = nullptr;
  const std::int64_t* wide_ = nullptr;
};

/// What sorts the edges of one receiver.
struct Neighbour {
  std::int32_t sender;
  std::int64_t edge;  ///< In the unsorted list.
  Vec3 shift;

  friend bool operator<(const Neighbour& a, const Neighbour& b) {
    return std::tie(a.sender, a.shift, a.edge) < std::tie(b.sender, b.shift, b.edge);
  }
};

/// Turns the counts in pointer[n + 1] into offsets.
void accumulate(std::int64_t* pointer, std::int64_t n_nodes) {
  for (std::int64_t n = 0; n < n_nodes; ++n) pointer[n + 1] += pointer[n];
}

/// Memory that cannot be had is fastpath's error, not the standard library's.
template <class Function>
Graph with_memory_errors(Function function) {
  try {
    return function();
  } catch (const std::bad_alloc&) {
    throw Error(ErrorCode::out_of_memory, "no memory left for the edges of the graph");
  } catch (const std::length_error&) {
    throw Error(ErrorCode::out_of_memory, "no memory left for the edges of the graph");
  }
}

}  // namespace

struct GraphBuilder {
  static Graph with_nodes(const std::int32_t* atomic_numbers, const double* positions, std::int64_t n_nodes) {
    Graph result;
    result.n_nodes_ = n_nodes;
    result.n_local_ = n_nodes;
    result.atomic_numbers_ = Tensor::empty({n_nodes}, DType::int32);
    result.positions_ = Tensor::empty({n_nodes, 3}, DType::float64);
    std::copy_n(atomic_numbers, n_nodes, result.atomic_numbers_.data<std::int32_t>());
    std::copy_n(positions, 3 * n_nodes, result.positions_.data<double>());
    result.graph_ptr_ = Tensor::from<std::int64_t>({2}, {0, n_nodes});
    result.volumes_.resize(1);
    return result;
  }

  static void set_local(Graph& result, std::int64_t n_local) { result.n_local_ = n_local; }
  static void set_volume(Graph& result, double volume) { result.volumes_.front() = volume; }

  /// Sorts edges into canonical order. `position[e]` is the caller's number of edge e; empty means that there is no
  /// caller's list, and the sorted one numbers itself.
  static void set_edges(Graph& result, const graph::EdgeList& edges, const std::vector<std::int64_t>& position) {
    const auto n_edges = static_cast<std::int64_t>(edges.sender.size());
    result.n_edges_ = n_edges;
    result.receiver_ptr_ = Tensor::zeros({result.n_nodes_ + 1}, DType::int64);
    auto* receiver_ptr = result.receiver_ptr_.data<std::int64_t>();
    for (const std::int32_t receiver : edges.receiver) ++receiver_ptr[receiver + 1];
    accumulate(receiver_ptr, result.n_nodes_);

    // Stable, so edges of one receiver stay in the order of the input.
    std::vector<std::int64_t> order(edges.sender.size());
    {
      std::vector<std::int64_t> next(receiver_ptr, receiver_ptr + result.n_nodes_);
      for (std::int64_t e = 0; e < n_edges; ++e) order[next[edges.receiver[e]]++] = e;
    }

    result.sender_ = Tensor::empty({n_edges}, DType::int32);
    result.receiver_ = Tensor::empty({n_edges}, DType::int32);
    result.shift_ = Tensor::empty({n_edges, 3}, DType::float64);
    result.input_position_ = Tensor::empty({n_edges}, DType::int64);
    auto* sender_out = result.sender_.data<std::int32_t>();
    auto* receiver_out = result.receiver_.data<std::int32_t>();
    auto* shift_out = result.shift_.data<double>();
    auto* position_out = result.input_position_.data<std::int64_t>();
    std::vector<Neighbour> neighbours;
    for (std::int64_t n = 0; n < result.n_nodes_; ++n) {
      neighbours.clear();
      for (std::int64_t k = receiver_ptr[n]; k < receiver_ptr[n + 1]; ++k) {
        neighbours.push_back({edges.sender[order[k]], order[k], edges.shift[order[k]]});
      }
      if (!std::is_sorted(neighbours.begin(), neighbours.end())) std::sort(neighbours.begin(), neighbours.end());
      std::int64_t e = receiver_ptr[n];
      for (const Neighbour& neighbour : neighbours) {
        sender_out[e] = neighbour.sender;
        receiver_out[e] = static_cast<std::int32_t>(n);
        // Adding zero drops the sign of a negative zero, so that equal graphs have equal bytes.
        for (std::size_t c = 0; c < 3; ++c) shift_out[3 * e + static_cast<std::int64_t>(c)] = neighbour.shift[c] + 0.0;
        position_out[e] = position.empty() ? e : position[neighbour.edge];
        ++e;
      }
    }
    set_senders(result);
  }

  static Graph join(std::span<const Graph> graphs) {
    Graph result;
    std::int64_t n_joined = 0;
    for (std::size_t g = 0; g < graphs.size(); ++g) {
      const Graph& graph = graphs[g];
      if (graph.n_local_ != graph.n_nodes_) {
        refuse(fmt::format("graph {} of {} has {} ghosts, expected none in graphs to be joined", g, graphs.size(),
                           graph.n_nodes_ - graph.n_local_));
      }
      result.n_nodes_ += graph.n_nodes_;
      result.n_edges_ += graph.n_edges_;
      n_joined += graph.n_graphs();
    }
    check_node_count(result.n_nodes_);
    result.n_local_ = result.n_nodes_;
    result.atomic_numbers_ = Tensor::empty({result.n_nodes_}, DType::int32);
    result.positions_ = Tensor::empty({result.n_nodes_, 3}, DType::float64);
    result.sender_ = Tensor::empty({result.n_edges_}, DType::int32);
    result.receiver_ = Tensor::empty({result.n_edges_}, DType::int32);
    result.shift_ = Tensor::empty({result.n_edges_, 3}, DType::float64);
    result.input_position_ = Tensor::empty({result.n_edges_}, DType::int64);
    result.receiver_ptr_ = Tensor::zeros({result.n_nodes_ + 1}, DType::int64);
    result.sender_ptr_ = Tensor::zeros({result.n_nodes_ + 1}, DType::int64);
    result.sender_edge_ = Tensor::empty({result.n_edges_}, DType::int64);
    result.graph_ptr_ = Tensor::zeros({n_joined + 1}, DType::int64);
    std::int64_t node = 0, edge = 0, count = 0;
    for (const Graph& graph : graphs) {
      // Canonical order is by receiver, so one graph's edges after the other's are in canonical order already.
      append(graph.atomic_numbers_.span<std::int32_t>(), result.atomic_numbers_, node, 0);
      append(graph.positions_.span<double>(), result.positions_, 3 * node, 0);
      append(graph.sender_.span<std::int32_t>(), result.sender_, edge, node);
      append(graph.receiver_.span<std::int32_t>(), result.receiver_, edge, node);
      append(graph.shift_.span<double>(), result.shift_, 3 * edge, 0);
      append(graph.input_position_.span<std::int64_t>(), result.input_position_, edge, 0);
      append(graph.receiver_ptr_.span<std::int64_t>().subspan(1), result.receiver_ptr_, node + 1, edge);
      append(graph.sender_ptr_.span<std::int64_t>().subspan(1), result.sender_ptr_, node + 1, edge);
      append(graph.sender_edge_.span<std::int64_t>(), result.sender_edge_, edge, edge);
      append(graph.graph_ptr_.span<std::int64_t>().subspan(1), result.graph_ptr_, count + 1, node);
      result.volumes_.insert(result.volumes_.end(), graph.volumes_.begin(), graph.volumes_.end());
      node += graph.n_nodes_;
      edge += graph.n_edges_;
      count += graph.n_graphs();
    }
    return result;
  }

 private:
  /// Writes values + offset into elements start, start + 1, ... of a tensor.
  template <class T>
  static void append(std::span<T> values, const Tensor& to, std::int64_t start, std::int64_t offset) {
    const std::span<T> out = to.span<T>().subspan(static_cast<std::size_t>(start), values.size());
    std::transform(values.begin(), values.end(), out.begin(),
                   [offset](T value) { return static_cast<T>(value + static_cast<T>(offset)); });
  }

  static void set_senders(Graph& result) {
    result.sender_ptr_ = Tensor::zeros({result.n_nodes_ + 1}, DType::int64);
    result.sender_edge_ = Tensor::empty({result.n_edges_}, DType::int64);
    auto* sender_ptr = result.sender_ptr_.data<std::int64_t>();
    auto* sender_edge = result.sender_edge_.data<std::int64_t>();
    const auto* sender = result.sender_.data<std::int32_t>();
    for (std::int64_t e = 0; e < result.n_edges_; ++e) ++sender_ptr[sender[e] + 1];
    accumulate(sender_ptr, result.n_nodes_);
    std::vector<std::int64_t> next(sender_ptr, sender_ptr + result.n_nodes_);
    for (std::int64_t e = 0; e < result.n_edges_; ++e) sender_edge[next[sender[e]]++] = e;
  }
};

Graph Graph::from_structure(const Structure& structure, double r_max) {
  if (!std::isfinite(r_max) || !(r_max > 0)) refuse(fmt::format("r_max is {}, expected a positive number", r_max));
  if (structure.atomic_numbers.size() != structure.positions.size()) {
    refuse(fmt::format("structure has {} atomic numbers and {} positions, expected as many",
                       structure.atomic_numbers.size(), structure.positions.size()));
  }
  static_assert(sizeof(Vec3) == 3 * sizeof(double));
  const double* positions = structure.positions.empty() ? nullptr : structure.positions.front().data();
  check_node_count(structure.size());
  check_positions(positions, structure.size());
  return with_memory_errors([&] {
    const graph::EdgeList edges = graph::find_pairs(structure, r_max);
    Graph result = GraphBuilder::with_nodes(structure.atomic_numbers.data(), positions, structure.size());
    GraphBuilder::set_edges(result, edges, {});
    if (structure.pbc[0] && structure.pbc[1] && structure.pbc[2]) {
      GraphBuilder::set_volume(result, volume_of(structure.cell));
    }
    return result;
  });
}

Graph Graph::from_edges(const HostEdges& host) {
  const auto n_nodes = static_cast<std::int64_t>(host.atomic_numbers.size());
  check_node_count(n_nodes);
  if (host.positions.size() != 3 * host.atomic_numbers.size()) {
    refuse(fmt::format("host has {} atomic numbers and {} coordinates, expected three for each",
                       host.atomic_numbers.size(), host.positions.size()));
  }
  if (host.n_local > n_nodes) {
    refuse(fmt::format("n_local is {}, expected at most the number of nodes {}", host.n_local, n_nodes));
  }
  check_positions(host.positions.data(), n_nodes);
  if (!host.sender.defined()) refuse("sender of the host's edges is missing");
  if (!host.receiver.defined()) refuse("receiver of the host's edges is missing");
  const std::int64_t n_input = host.sender.rank() == 1 ? host.sender.size(0) : host.sender.numel();
  const Indices senders(host.sender, "sender", n_input);
  const Indices receivers(host.receiver, "receiver", n_input);

  Tensor shift;
  if (host.shift.defined()) {
    check_edge_tensor(host.shift, "shift", {n_input, 3});
    if (host.shift.dtype() != DType::float64) {
      refuse(fmt::format("shift of the host's edges is {}, expected float64", to_string(host.shift.dtype())));
    }
    shift = host.shift.contiguous();
  }
  Tensor mask;
  if (host.mask.defined()) {
    check_edge_tensor(host.mask, "mask", {n_input});
    if (host.mask.dtype() != DType::boolean && host.mask.dtype() != DType::uint8) {
      refuse(fmt::format("mask of the host's edges is {}, expected bool or uint8", to_string(host.mask.dtype())));
    }
    mask = host.mask.contiguous();
  }
  std::optional<double> volume;
  if (host.cell) {
    volume = volume_of(*host.cell);
    if (!std::isfinite(*volume) || !(*volume > 0)) refuse(fmt::format("volume of the host's cell is {}", *volume));
  }

  return with_memory_errors([&] {
    const double* positions = host.positions.data();
    const double* shifts = shift.defined() ? shift.data<double>() : nullptr;
    const auto* kept = mask.defined() ? static_cast<const std::uint8_t*>(mask.raw()) : nullptr;
    graph::EdgeList edges;
    std::vector<std::int64_t> position;
    edges.sender.reserve(static_cast<std::size_t>(n_input));
    edges.receiver.reserve(static_cast<std::size_t>(n_input));
    edges.shift.reserve(static_cast<std::size_t>(n_input));
    position.reserve(static_cast<std::size_t>(n_input));
    for (std::int64_t e = 0; e < n_input; ++e) {
      if (kept != nullptr && kept[e] == 0) continue;
      const std::int32_t s = senders.at(e, n_nodes);
      const std::int32_t r = receivers.at(e, n_nodes);
      Vec3 offset{};
      Vec3 vector{};
      for (std::size_t c = 0; c < 3; ++c) {
        if (shifts != nullptr) offset[c] = shifts[3 * e + static_cast<std::int64_t>(c)];
        vector[c] = (positions[3 * std::int64_t{r} + static_cast<std::int64_t>(c)] -
                     positions[3 * std::int64_t{s} + static_cast<std::int64_t>(c)]) +
                    offset[c];
      }
      const double distance = graph::length(vector);
      if (!std::isfinite(distance) || distance < kMinDistance) {
        refuse(fmt::format(
            "edge {} from atom {} to atom {} with shift ({}, {}, {}) has length {} angstrom, at least {} is "
            "expected",
            e, s, r, offset[0], offset[1], offset[2], distance, kMinDistance));
      }
      edges.sender.push_back(s);
      edges.receiver.push_back(r);
      edges.shift.push_back(offset);
      position.push_back(e);
    }
    Graph result = GraphBuilder::with_nodes(host.atomic_numbers.data(), positions, n_nodes);
    if (host.n_local >= 0) GraphBuilder::set_local(result, host.n_local);
    if (volume) GraphBuilder::set_volume(result, *volume);
    GraphBuilder::set_edges(result, edges, position);
    return result;
  });
}

Graph Graph::join(std::span<const Graph> graphs) {
  return with_memory_errors([&] { return GraphBuilder::join(graphs); });
}

Tensor Graph::edge_vectors() const {
  Tensor vectors = Tensor::empty({n_edges_, 3}, DType::float64);
  const auto* positions = positions_.data<double>();
  const auto* sender = sender_.data<std::int32_t>();
  const auto* receiver = receiver_.data<std::int32_t>();
  const auto* shift = shift_.data<double>();
  auto* out = vectors.data<double>();
  for (std::int64_t e = 0; e < n_edges_; ++e) {
    const double* to = positions + 3 * std::int64_t{receiver[e]};
    const double* from = positions + 3 * std::int64_t{sender[e]};
    for (std::int64_t c = 0; c < 3; ++c) out[3 * e + c] = (to[c] - from[c]) + shift[3 * e + c];
  }
  return vectors;
}

}  // namespace fastpath
