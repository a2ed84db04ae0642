#include "reduction.hpp"

#include <algorithm>

namespace fastpath_gpu {

std::int64_t pieces_of(std::int64_t n, std::int64_t size, std::uint32_t real_bytes) {
  constexpr std::int64_t kRows = 256, kMost = 64, kMostBytes = 64 << 20;
  const std::int64_t fitting = kMostBytes / std::max<std::int64_t>(1, size * real_bytes);
  return std::clamp<std::int64_t>(std::min(n / kRows, fitting), 1, kMost);
}

void write_sum_of_pieces(Source& s, const std::string& name) {
  s.begin_kernel(name, std::min(256u, s.target().max_group_size),
                 {Source::in("pieces"), Source::out("total"), Source::integer("size"), Source::integer("n_pieces")});
  s.item("i", "size");
  s.line("real sum = ", s.real(0), ", carry = ", s.real(0), ";");
  s.line("for (i64 p = 0; p < n_pieces; ++p) fp_add(&sum, &carry, pieces[p * size + i]);");
  s.line("total[i] = sum;");
  s.end_kernel();
}

PiecewiseSum::PiecewiseSum(Plan& plan, std::int64_t pieces, std::int64_t size, std::uint32_t real_bytes)
    : size_(size), pieces_(pieces) {
  if (pieces_ > 1) scratch_ = plan.scratch(static_cast<std::uint64_t>(pieces_ * size) * real_bytes);
}

void PiecewiseSum::join(Plan& plan, const std::string& kernel, const Buffer& target) const {
  if (pieces_ > 1) plan.launch_items(kernel, size_, {scratch_, target, size_, pieces_});
}

}  // namespace fastpath_gpu
