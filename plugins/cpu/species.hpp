#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "fastpath/sdk/error.hpp"

namespace fastpath_cpu {

/// Counts rows by species and lists them in that order. @throws InvalidArgument naming a species out of range.
/// @param order  Out: [n]. @param begin  Out: [n_species + 1]. @param next  [n_species], for the function's own use.
inline void group_by_species(std::int64_t n, std::int64_t n_species, const std::int32_t* species, std::int64_t* order,
                             std::int64_t* begin, std::int64_t* next) {
  std::fill_n(begin, n_species + 1, std::int64_t{0});
  for (std::int64_t i = 0; i < n; ++i) {
    if (species[i] < 0 || species[i] >= n_species) {
      throw fastpath::sdk::InvalidArgument("species " + std::to_string(species[i]) + " of row " + std::to_string(i) +
                                           ", expected 0.." + std::to_string(n_species - 1));
    }
    ++begin[species[i] + 1];
  }
  for (std::int64_t z = 0; z < n_species; ++z) begin[z + 1] += begin[z];
  std::copy_n(begin, n_species, next);
  for (std::int64_t i = 0; i < n; ++i) order[next[species[i]]++] = i;
}

}  // namespace fastpath_cpu
