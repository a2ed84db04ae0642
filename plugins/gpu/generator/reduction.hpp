#pragma once

#include <cstdint>
#include <string>

#include "source.hpp"

/// Sums over rows in a fixed order: pieces of the rows are summed by groups of their own, each into its slice of
/// scratch memory, then the slices are added first to last. The pieces depend on sizes alone, so every run of every
/// device adds in the same order.
namespace fastpath_gpu {

/// How many pieces n rows are cut into for a sum of `size` elements.
std::int64_t pieces_of(std::int64_t n, std::int64_t size, std::uint32_t real_bytes);

/// Kernel NAME(pieces, total, size, n_pieces): total[i] = sum over p of pieces[p * size + i]. Needs
/// write_compensated_add().
void write_sum_of_pieces(Source& s, const std::string& name);

/// Where the pieces of a sum are written: the result itself if there is one piece only. Ask for it in every plan; give
/// the target in those that want the sum.
class PiecewiseSum {
 public:
  PiecewiseSum(Plan& plan, std::int64_t pieces, std::int64_t size, std::uint32_t real_bytes);
  std::int64_t pieces() const { return pieces_; }
  Buffer partial(const Buffer& target) const { return pieces_ == 1 ? target : scratch_; }
  /// Adds the launch that joins them.
  void join(Plan& plan, const std::string& kernel, const Buffer& target) const;

 private:
  std::int64_t size_, pieces_;
  Buffer scratch_;
};

}  // namespace fastpath_gpu
