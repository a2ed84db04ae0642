#pragma once

#include <cstdint>
#include <string>

#include "source.hpp"

namespace fastpath_gpu {

/// Lists rows by species on the device, ascending within each, without atomics: chunks of rows are counted, the counts
/// summed up, and each chunk writes its rows to their places. Rows whose species is out of range come last, as those of
/// species n_species.
class SpeciesSort {
 public:
  static constexpr std::int64_t kMostSpecies = 4096;  // every species reads all of them

  /// @param prefix  Of the names of the kernels.
  SpeciesSort(std::string prefix, std::int64_t n_species) : prefix_(std::move(prefix)), n_species_(n_species) {}

  void write_kernels(Source& s) const;

  /// Positions of species z in `order` are starts[z * stride] .. starts[(z + 1) * stride] - 1; both hold i64.
  struct Sorted {
    Buffer order, starts;
    std::int64_t stride = 1;
  };
  Sorted plan(Plan& plan, const Buffer& species, std::int64_t n) const;

  /// first[z] for z = 0..n_species + 1: the number of tiles of so many rows in all species before z.
  Buffer plan_tiles(Plan& plan, const Sorted& sorted, std::int64_t rows) const;
  /// No more tiles than this.
  std::int64_t most_tiles(std::int64_t n, std::int64_t rows) const { return n / rows + n_species_ + 1; }

 private:
  void write_scan(Source& s, const std::string& name, const std::vector<Source::Parameter>& values,
                  const std::string& value) const;

  std::string prefix_;
  std::int64_t n_species_;
};

}  // namespace fastpath_gpu
