#pragma once

#include <cstdint>
#include <vector>

#include "fastpath/tensor.hpp"

namespace fastpath::ops {

/// Entries of the table in checkpoints: atomic numbers 0..118.
inline constexpr std::int64_t kCovalentRadiiSize = 119;

/// Covalent radii in angstrom by atomic number: B. Cordero et al., Dalton Trans. 2008, 2832; 0.2 where none is known.
const std::vector<double>& covalent_radii();

/// The entries of a checkpoint's table for the elements of a model.
/// @throws Error(bad_file) if an atomic number is outside the table.
std::vector<double> radii_of(const Tensor& table, const std::vector<std::int32_t>& atomic_numbers);

}  // namespace fastpath::ops
