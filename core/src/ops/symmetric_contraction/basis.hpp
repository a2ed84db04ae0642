#pragma once

#include <cstdint>
#include <vector>

namespace fastpath::ops {

/// The basis U of a new symmetric contraction, operators.md 2.8: couplings of nu copies of the irreps l = 0..l_max with
/// natural parity to degree target_l with natural parity, one after the other from the left. A checkpoint brings its
/// own U, which may be another basis of the same space.
/// @param nu       1..4. For nu = 4 only intermediate irreps of natural parity and degree at most 11 are kept.
/// @param n_paths  Out: K, how many couplings there are.
/// @returns [2 target_l + 1, ((l_max+1)^2)^nu, K], row-major.
/// @throws fastpath::Error(invalid_argument) for a degree below 0 or nu out of range.
std::vector<double> u_matrix(int l_max, int target_l, int nu, std::int64_t* n_paths);

/// K of u_matrix(), without making it: for a large l_max the basis does not fit into any memory.
double count_paths(int l_max, int target_l, int nu);

}  // namespace fastpath::ops
