#include "species_sort.hpp"

#include <algorithm>

namespace fastpath_gpu {
namespace {

constexpr std::int64_t kChunk = 256;  // rows

}  // namespace

void SpeciesSort::write_scan(Source& s, const std::string& name, const std::vector<Source::Parameter>& values,
                             const std::string& value) const {
  const std::uint32_t size = std::min(256u, s.target().max_group_size);
  std::vector<Source::Parameter> parameters = values;
  parameters.push_back(Source::out("first", "i64"));
  parameters.push_back(Source::integer("n"));
  s.line("// One group: first[i] = sum of the values before i.");
  s.begin_kernel(name, size, parameters);
  s.shared("sums", size, "i64");
  s.line("const i64 length = (n + ", size - 1, ") / ", size, ";");
  s.line("const i64 begin = FP_LANE * length;");
  s.line("const i64 end = begin + length < n ? begin + length : n;");
  s.line("i64 sum = 0;");
  s.line("for (i64 i = begin; i < end; ++i) sum += ", value, ";");
  s.line("sums[FP_LANE] = sum;");
  s.line("FP_BARRIER();");
  s.line("i64 before = 0;");
  s.line("for (i32 lane = 0; lane < FP_LANE; ++lane) before += sums[lane];");
  s.line("for (i64 i = begin; i < end; ++i) {");
  s.line("first[i] = before;");
  s.line("before += ", value, ";");
  s.line("}");
  s.line("if (FP_LANE == ", size - 1, ") first[n] = before;");
  s.end_kernel();
}

void SpeciesSort::write_kernels(Source& s) const {
  const std::uint32_t size = std::min(64u, s.target().max_group_size);
  for (const bool fill : {false, true}) {
    // The rows of one chunk that are of one species.
    if (fill) {
      s.begin_kernel(prefix_ + "_fill", size,
                     {Source::in("species", "i32"), Source::in("starts", "i64"), Source::out("order", "i64"),
                      Source::integer("n_rows"), Source::integer("n_chunks")});
    } else {
      s.begin_kernel(prefix_ + "_count", size,
                     {Source::in("species", "i32"), Source::out("counts", "i64"), Source::integer("n_rows"),
                      Source::integer("n_chunks")});
    }
    s.item("item", std::to_string(n_species_ + 1) + " * n_chunks");
    s.line("const i64 z = item / n_chunks, begin = item % n_chunks * ", kChunk, ";");
    s.line("const i64 end = begin + ", kChunk, " < n_rows ? begin + ", kChunk, " : n_rows;");
    s.line(fill ? "i64 at = starts[item];" : "i64 count = 0;");
    s.line("for (i64 row = begin; row < end; ++row) {");
    s.line("const i64 own = species[row] >= 0 && species[row] < ", n_species_, " ? species[row] : ", n_species_, ";");
    s.line(fill ? "if (own == z) order[at++] = row;" : "if (own == z) ++count;");
    s.line("}");
    if (!fill) s.line("counts[item] = count;");
    s.end_kernel();
  }
  write_scan(s, prefix_ + "_starts", {Source::in("counts", "i64")}, "counts[i]");
  write_scan(s, prefix_ + "_tiles",
             {Source::in("starts", "i64"), Source::integer("stride"), Source::integer("tile_rows")},
             "(starts[(i + 1) * stride] - starts[i * stride] + tile_rows - 1) / tile_rows");
}

SpeciesSort::Sorted SpeciesSort::plan(Plan& plan, const Buffer& species, std::int64_t n) const {
  const std::int64_t chunks = std::max<std::int64_t>(1, (n + kChunk - 1) / kChunk), total = (n_species_ + 1) * chunks;
  const auto bytes = [](std::int64_t count) { return 8 * static_cast<std::uint64_t>(count); };
  const Buffer counts = plan.scratch(bytes(total));
  const Sorted sorted{plan.scratch(bytes(n)), plan.scratch(bytes(total + 1)), chunks};
  plan.launch_items(prefix_ + "_count", total, {species, counts, n, chunks});
  plan.launch(prefix_ + "_starts", 1, {counts, sorted.starts, total});
  if (n > 0) plan.launch_items(prefix_ + "_fill", total, {species, sorted.starts, sorted.order, n, chunks});
  return sorted;
}

Buffer SpeciesSort::plan_tiles(Plan& plan, const Sorted& sorted, std::int64_t rows) const {
  const Buffer first = plan.scratch(8 * static_cast<std::uint64_t>(n_species_ + 2));
  plan.launch(prefix_ + "_tiles", 1, {sorted.starts, sorted.stride, rows, first, n_species_ + 1});
  return first;
}

}  // namespace fastpath_gpu
