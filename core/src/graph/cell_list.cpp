#include "graph/cell_list.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include "fastpath/error.hpp"
#include "fastpath/graph.hpp"
#include "graph/frame.hpp"

namespace fastpath::graph {
namespace {

using Index3 = std::array<std::int64_t, 3>;

/// Bytes that an edge needs while a graph is built: 32 in the growing lists, which a copy of them joins, and 32 or more
/// in the graph; a part of the memory is others'. What a model needs per edge on top is several times as much.
constexpr std::size_t kBytesPerEdge = 128;

/// How far an atom may lie outside the cell, in cells: image numbers stay exact, and rounding stays far below a cell.
constexpr double kMaxCells = 0x1p40;

[[noreturn]] void too_many(std::string_view how_many, double r_max, std::size_t most_edges) {
  throw Error(
      ErrorCode::out_of_memory,
      fmt::format("{} pairs of atoms are closer than r_max {} angstrom, at most {} fit into memory; are cell and "
                  "positions in angstrom?",
                  how_many, r_max, most_edges));
}

/// Refuses a lattice much finer than the cutoff before the search, which would take long to find out.
void check_lattice(const Frame& frame, double n_atoms, double r_max, std::size_t most_edges) {
  if (frame.n_periodic == 0) return;
  // Measure of the ball of radius r_max in the space of the lattice over that of its cell: images of one atom.
  double images = r_max / frame.measure;
  if (frame.n_periodic == 1) images *= 2;
  if (frame.n_periodic == 2) images *= std::numbers::pi * r_max;
  if (frame.n_periodic == 3) images *= 4.0 / 3.0 * std::numbers::pi * r_max * r_max;
  if (images < 1e3) return;
  const double edges = n_atoms * images * (frame.n_periodic == 3 ? n_atoms : 1.0);
  if (edges > static_cast<double>(most_edges)) too_many(fmt::format("about {:.3g}", edges), r_max, most_edges);
}

/// Atoms sorted into bins; only bins that hold an atom exist, and a hash table finds them.
class Bins {
 public:
  explicit Bins(const std::vector<Index3>& atom_bins) {
    std::size_t capacity = 16;
    while (capacity < 2 * atom_bins.size()) capacity *= 2;
    table_.assign(capacity, -1);
    std::vector<std::int32_t> bin_of(atom_bins.size());
    for (std::size_t i = 0; i < atom_bins.size(); ++i) {
      std::int32_t& slot = table_[slot_of(atom_bins[i])];
      if (slot < 0) {
        slot = static_cast<std::int32_t>(keys_.size());
        keys_.push_back(atom_bins[i]);
        first_.push_back(0);
      }
      bin_of[i] = slot;
      ++first_[static_cast<std::size_t>(slot)];
    }
    std::int32_t total = 0;
    for (std::int32_t& first : first_) total += std::exchange(first, total);
    first_.push_back(total);
    std::vector<std::int32_t> next(first_.begin(), first_.end() - 1);
    atoms_.resize(atom_bins.size());
    for (std::size_t i = 0; i < atom_bins.size(); ++i) {
      atoms_[static_cast<std::size_t>(next[static_cast<std::size_t>(bin_of[i])]++)] = static_cast<std::int32_t>(i);
    }
  }

  std::size_t size() const { return keys_.size(); }
  const Index3& key(std::size_t bin) const { return keys_[bin]; }
  /// The bin of a key, or -1 if no atom is there.
  std::int32_t find(const Index3& key) const { return table_[slot_of(key)]; }
  /// Atoms of bin b are atoms()[first(b)] .. atoms()[first(b + 1) - 1].
  std::size_t first(std::size_t bin) const { return static_cast<std::size_t>(first_[bin]); }
  const std::vector<std::int32_t>& atoms() const { return atoms_; }

 private:
  /// The slot of a key, or the empty slot where it would go.
  std::size_t slot_of(const Index3& key) const {
    std::uint64_t hash = 0;
    for (const std::int64_t value : key) {
      hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    std::size_t slot = hash & (table_.size() - 1);
    while (table_[slot] >= 0 && keys_[static_cast<std::size_t>(table_[slot])] != key)
      slot = (slot + 1) & (table_.size() - 1);
    return slot;
  }

  std::vector<std::int32_t> table_;
  std::vector<Index3> keys_;
  std::vector<std::int32_t> first_;
  std::vector<std::int32_t> atoms_;
};

/// One search for the pairs of a structure.
class PairSearch {
 public:
  PairSearch(const Structure& structure, double r_max, std::size_t most_edges)
      : structure_(structure),
        r_max_(r_max),
        most_edges_(most_edges),
        frame_(make_frame(structure.cell, structure.pbc)) {
    // Atoms on top of each other are found even if the cutoff is shorter still.
    search_ = std::max(r_max, Graph::kMinDistance);
  }

  EdgeList run() {
    if (structure_.size() == 0) return {};
    check_lattice(frame_, static_cast<double>(structure_.size()), r_max_, most_edges_);
    wrap();
    bound_rounding();
    Bins bins = sort_into_bins(1);
    // Bins smaller than the cutoff waste fewer distances, but pay only if they still hold a few atoms each.
    const double occupation = static_cast<double>(structure_.size()) / static_cast<double>(bins.size());
    if (occupation > 24) bins = sort_into_bins(occupation > 100 ? 3 : 2);
    search_bins(bins);
    return std::move(edges_);
  }

 private:
  /// Moves atoms into the reduced cell along its periodic directions; remembers by how many cells.
  void wrap() {
    const std::size_t n_atoms = structure_.positions.size();
    wrapped_.resize(n_atoms);
    coordinates_.resize(n_atoms);
    cells_.resize(n_atoms);
    lowest_.fill(std::numeric_limits<double>::infinity());
    highest_.fill(-std::numeric_limits<double>::infinity());
    for (std::size_t i = 0; i < n_atoms; ++i) {
      const Vec3& position = structure_.positions[i];
      wrapped_[i] = position;
      for (std::size_t c = 0; c < 3; ++c) {
        if (std::abs(position[c]) > kMaxCoordinate) {
          throw Error(ErrorCode::invalid_argument,
                      fmt::format("atom {} lies at {} = {:g} angstrom, expected at most {:g}", i, "xyz"[c], position[c],
                                  kMaxCoordinate));
        }
        largest_ = std::max(largest_, std::abs(position[c]));
      }
      for (std::size_t d = 0; d < 3; ++d) {
        double coordinate = dot(frame_.dual[d], position);
        if (d < frame_.n_periodic) {
          const double cell = std::floor(coordinate);
          double original = 0;
          for (const std::int64_t k : frame_.image[d]) original += std::abs(cell * static_cast<double>(k));
          if (!(original < kMaxCells)) {
            throw Error(ErrorCode::invalid_argument,
                        fmt::format("atom {} at ({}, {}, {}) lies about {:.3g} cells away from the cell", i,
                                    position[0], position[1], position[2], original));
          }
          coordinate -= cell;
          cells_[i][d] = static_cast<std::int64_t>(cell);
          for (std::size_t c = 0; c < 3; ++c) wrapped_[i][c] -= cell * frame_.row[d][c];
          most_cells_[d] = std::max(most_cells_[d], std::abs(cell));
        }
        coordinates_[i][d] = coordinate;
        lowest_[d] = std::min(lowest_[d], coordinate);
        highest_[d] = std::max(highest_[d], coordinate);
      }
    }
  }

  /// Distances between wrapped atoms differ by rounding from those that decide; this bounds by how much, generously.
  void bound_rounding() {
    double scale = 3 * largest_ + search_;
    for (std::size_t d = 0; d < frame_.n_periodic; ++d) {
      double magnitude = 0;  // of what is added to make one shift by row d
      for (std::size_t k = 0; k < 3; ++k) {
        if (frame_.image[d][k] == 0) continue;
        magnitude += std::abs(static_cast<double>(frame_.image[d][k])) * length(structure_.cell[k]);
      }
      scale += magnitude * (2 * most_cells_[d] + search_ * length(frame_.dual[d]) + 2);
    }
    reach_ = search_ + 64 * std::numeric_limits<double>::epsilon() * scale;
  }

  /// Bins about a `division`-th of the cutoff wide. Sets how many make a cell, and how many to look at on each side.
  Bins sort_into_bins(double division) {
    std::array<double, 3> per_unit{};  // bins per unit of the coordinate
    for (std::size_t d = 0; d < 3; ++d) {
      if (d < frame_.n_periodic) {
        const double height = 1 / length(frame_.dual[d]);
        const double n_bins = std::clamp(std::floor(division * height / reach_), 1.0, 0x1p40);
        per_unit[d] = n_bins;
        n_bins_[d] = static_cast<std::int64_t>(n_bins);
        range_[d] = static_cast<std::int64_t>(std::ceil(reach_ * n_bins / height));
      } else {
        const double width = std::max(reach_ / division, (highest_[d] - lowest_[d]) * 0x1p-40);
        per_unit[d] = 1 / width;
        range_[d] = static_cast<std::int64_t>(std::min(std::ceil(reach_ / width), division));
      }
    }
    std::vector<Index3> atom_bins(coordinates_.size());
    for (std::size_t i = 0; i < coordinates_.size(); ++i) {
      for (std::size_t d = 0; d < 3; ++d) {
        if (d < frame_.n_periodic) {
          const auto bin = static_cast<std::int64_t>(coordinates_[i][d] * per_unit[d]);
          atom_bins[i][d] = std::clamp<std::int64_t>(bin, 0, n_bins_[d] - 1);
        } else {
          atom_bins[i][d] = static_cast<std::int64_t>((coordinates_[i][d] - lowest_[d]) * per_unit[d]);
        }
      }
    }
    return Bins(atom_bins);
  }

  /// Visits each pair of bins once: offsets whose first non-zero component is positive, and the bin itself.
  void search_bins(const Bins& bins) {
    ordered_.resize(wrapped_.size());
    for (std::size_t n = 0; n < wrapped_.size(); ++n) ordered_[n] = wrapped_[static_cast<std::size_t>(bins.atoms()[n])];
    for (std::size_t bin = 0; bin < bins.size(); ++bin) {
      Index3 key{};
      Index3 image{};
      for (std::int64_t x = 0; x <= range_[0]; ++x) {
        locate(bins.key(bin), 0, x, key, image);
        for (std::int64_t y = x == 0 ? 0 : -range_[1]; y <= range_[1]; ++y) {
          locate(bins.key(bin), 1, y, key, image);
          for (std::int64_t z = x == 0 && y == 0 ? 0 : -range_[2]; z <= range_[2]; ++z) {
            locate(bins.key(bin), 2, z, key, image);
            const std::int32_t other = bins.find(key);
            if (other >= 0)
              search_two_bins(bins, bin, static_cast<std::size_t>(other), image, x == 0 && y == 0 && z == 0);
          }
        }
      }
    }
  }

  /// The bin `offset` bins from `from` along direction d, and the image of the cell in which it lies.
  void locate(const Index3& from, std::size_t d, std::int64_t offset, Index3& key, Index3& image) const {
    key[d] = from[d] + offset;
    if (d >= frame_.n_periodic) return;
    image[d] = key[d] / n_bins_[d];
    if (key[d] % n_bins_[d] < 0) --image[d];
    key[d] -= image[d] * n_bins_[d];
  }

  void search_two_bins(const Bins& bins, std::size_t from, std::size_t to, const Index3& image, bool same) {
    Vec3 translation{};
    for (std::size_t d = 0; d < frame_.n_periodic; ++d) {
      for (std::size_t c = 0; c < 3; ++c) translation[c] += static_cast<double>(image[d]) * frame_.row[d][c];
    }
    const double reach_squared = reach_ * reach_;
    for (std::size_t i = bins.first(from); i < bins.first(from + 1); ++i) {
      const Vec3 origin{ordered_[i][0] - translation[0], ordered_[i][1] - translation[1],
                        ordered_[i][2] - translation[2]};
      for (std::size_t j = same ? i + 1 : bins.first(to); j < bins.first(to + 1); ++j) {
        const Vec3 vector{ordered_[j][0] - origin[0], ordered_[j][1] - origin[1], ordered_[j][2] - origin[2]};
        if (dot(vector, vector) <= reach_squared) decide(bins.atoms()[i], bins.atoms()[j], image);
      }
    }
  }

  /// Adds the pair in both directions if its distance, computed as Graph::edge_vectors does, is below the cutoff.
  void decide(std::int32_t sender, std::int32_t receiver, const Index3& image) {
    const auto s = static_cast<std::size_t>(sender);
    const auto r = static_cast<std::size_t>(receiver);
    Index3 count{};
    for (std::size_t d = 0; d < frame_.n_periodic; ++d) {
      const std::int64_t rows = image[d] - cells_[r][d] + cells_[s][d];
      if (rows == 0) continue;
      for (std::size_t k = 0; k < 3; ++k) count[k] += rows * frame_.image[d][k];
    }
    const Vec3 shift = lattice_shift(count, structure_.cell, structure_.pbc);
    const Vec3& to = structure_.positions[r];
    const Vec3& from = structure_.positions[s];
    const double distance =
        length({(to[0] - from[0]) + shift[0], (to[1] - from[1]) + shift[1], (to[2] - from[2]) + shift[2]});
    if (distance < Graph::kMinDistance) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("atoms {} and {} (image {}, {}, {}) are {} angstrom apart, at least {} is expected",
                      std::min(s, r), std::max(s, r), count[0], count[1], count[2], distance, Graph::kMinDistance));
    }
    if (!(distance < r_max_)) return;
    if (edges_.sender.size() + 2 > most_edges_) too_many("too many", r_max_, most_edges_);
    add(sender, receiver, shift);
    add(receiver, sender, {-shift[0], -shift[1], -shift[2]});
  }

  void add(std::int32_t sender, std::int32_t receiver, const Vec3& shift) {
    edges_.sender.push_back(sender);
    edges_.receiver.push_back(receiver);
    edges_.shift.push_back(shift);
  }

  const Structure& structure_;
  double r_max_;
  std::size_t most_edges_;
  double search_ = 0;  ///< Pairs within this distance matter.
  double reach_ = 0;   ///< search_ and what rounding may add to it.
  Frame frame_;
  std::vector<Vec3> wrapped_;      ///< Positions inside the reduced cell.
  std::vector<Vec3> coordinates_;  ///< Of wrapped_ in the frame; along non-periodic directions in angstrom.
  std::vector<Index3> cells_;      ///< Cells between position and wrapped position, per row of the frame.
  std::vector<Vec3> ordered_;      ///< wrapped_ in the order of the bins.
  std::array<double, 3> lowest_{}, highest_{}, most_cells_{};
  double largest_ = 0;
  Index3 n_bins_{1, 1, 1};
  Index3 range_{};
  EdgeList edges_;
};

}  // namespace

std::size_t most_edges_in_memory() {
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page <= 0) return std::numeric_limits<std::size_t>::max();
  return static_cast<std::size_t>(pages) * static_cast<std::size_t>(page) / kBytesPerEdge;
}

EdgeList find_pairs(const Structure& structure, double r_max, std::size_t most_edges) {
  return PairSearch(structure, r_max, most_edges).run();
}

}  // namespace fastpath::graph
