#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fastpath/sdk/ops.hpp"
#include "source.hpp"

/// The paths of a tensor product of features and edges (operators.md 2.7), and the lines that every kernel of one
/// writes for a channel `u`. Names in the source: NAMEb_c is component c of block b, yj component j of a row of y.
namespace fastpath_gpu {

struct ConvPath {
  struct Entry {
    int i, j, k;
    double value;  ///< factor * C[i, j, k]
  };
  std::int64_t mul;
  std::size_t in, out;  ///< Blocks.
  int l1, l2, l3;
  std::int64_t y, w;  ///< Where its block of y and its weights start in a row.
  std::vector<Entry> entries;
};
/// Those that have channels, by multiplicity, descending.
std::vector<ConvPath> conv_paths(const sdk::ConvTensorProductConfig& config);

/// Distinct values of a member, in order of appearance.
std::vector<std::size_t> blocks_of(const std::vector<const ConvPath*>& paths, std::size_t ConvPath::*block);
/// Components of y that some path of the list reads: position in a row, ascending.
std::vector<std::int64_t> y_components(const std::vector<const ConvPath*>& paths);

/// An element of row `row` (an expression) of an array with these irreps: channel u, component c of a block.
std::string conv_element(const char* array, const sdk::Irreps& irreps, std::size_t block, const std::string& row,
                         int c);
/// NAMEblock_component.
std::string conv_variable(const char* name, std::size_t block, int c);
/// Reads every component of a block into its variable.
void load_conv_block(Source& s, const char* name, const char* array, const sdk::Irreps& irreps, std::size_t block,
                     const std::string& row);
/// Sums of zero for every component of these blocks.
void begin_conv_sums(Source& s, const std::vector<std::size_t>& blocks, const sdk::Irreps& irreps, const char* name);
/// sum_j value * y[j] of each pair (i, k), as an expression.
std::map<std::pair<int, int>, std::string> conv_factors(const Source& s, const ConvPath& path);
/// `sums += ..` of a path for an edge: into the variables sum of its block of `out`, with `weight` and those of x.
void add_conv_forward(Source& s, const ConvPath& path);
/// The same into the sums of its block of `in`, with `weight` and those of g.
void add_conv_grad_x(Source& s, const ConvPath& path);
/// Writes tj = sum_ik C[i,j,k] x_i g_k for every j of the path, and returns these j.
std::vector<int> write_conv_terms(Source& s, const ConvPath& path);
/// The gradient of the weight, sum_j t_j y_j, from what write_conv_terms() returned.
std::string conv_weight_gradient(const Source& s, const ConvPath& path, const std::vector<int>& terms);
/// A comment that says which path follows.
void comment_conv_path(Source& s, const sdk::ConvTensorProductConfig& config, const ConvPath& path);

}  // namespace fastpath_gpu
