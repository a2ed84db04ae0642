#include "conv_paths.hpp"

#include <algorithm>

#include "fastpath/sdk/coupling.hpp"

namespace fastpath_gpu {
namespace {

std::string number(std::int64_t n) { return std::to_string(n); }

}  // namespace

std::vector<ConvPath> conv_paths(const sdk::ConvTensorProductConfig& config) {
  std::vector<ConvPath> paths;
  std::int64_t w = 0;
  for (const auto& instruction : config.instructions) {
    const sdk::IrrepsBlock in = config.in[instruction.in], out = config.out[instruction.out];
    ConvPath path{static_cast<std::int64_t>(in.mul),
                  instruction.in,
                  instruction.out,
                  in.ir.l,
                  config.edge[instruction.edge].ir.l,
                  out.ir.l,
                  config.edge.offset(instruction.edge),
                  w,
                  {}};
    for (const auto& [i, j, k, value] : sdk::coupling(path.l1, path.l2, path.l3).nonzero) {
      path.entries.push_back({i, j, k, instruction.factor * value});
    }
    w += path.mul;
    if (path.mul > 0) paths.push_back(std::move(path));
  }
  std::stable_sort(paths.begin(), paths.end(), [](const ConvPath& a, const ConvPath& b) { return a.mul > b.mul; });
  return paths;
}

std::vector<std::size_t> blocks_of(const std::vector<const ConvPath*>& paths, std::size_t ConvPath::*block) {
  std::vector<std::size_t> result;
  for (const ConvPath* path : paths) {
    if (std::find(result.begin(), result.end(), path->*block) == result.end()) result.push_back(path->*block);
  }
  return result;
}

std::vector<std::int64_t> y_components(const std::vector<const ConvPath*>& paths) {
  std::vector<std::int64_t> result;
  for (const ConvPath* path : paths) {
    for (const ConvPath::Entry& entry : path->entries) result.push_back(path->y + entry.j);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

std::string conv_element(const char* array, const sdk::Irreps& irreps, std::size_t block, const std::string& row,
                         int c) {
  const int dim = 2 * irreps[block].ir.l + 1;
  return std::string(array) + "[" + row + " * " + number(irreps.dim()) + " + " + number(irreps.offset(block) + c) +
         " + " + (dim == 1 ? "u" : number(dim) + " * u") + "]";
}
std::string conv_variable(const char* name, std::size_t block, int c) {
  return std::string(name) + std::to_string(block) + "_" + std::to_string(c);
}
void load_conv_block(Source& s, const char* name, const char* array, const sdk::Irreps& irreps, std::size_t block,
                     const std::string& row) {
  for (int c = 0; c <= 2 * irreps[block].ir.l; ++c) {
    s.line("const real ", conv_variable(name, block, c), " = ", conv_element(array, irreps, block, row, c), ";");
  }
}
void begin_conv_sums(Source& s, const std::vector<std::size_t>& blocks, const sdk::Irreps& irreps, const char* name) {
  for (const std::size_t b : blocks) {
    for (int c = 0; c <= 2 * irreps[b].ir.l; ++c) s.line("real ", conv_variable(name, b, c), " = ", s.real(0.0), ";");
  }
}

std::map<std::pair<int, int>, std::string> conv_factors(const Source& s, const ConvPath& path) {
  std::map<std::pair<int, int>, std::string> result;
  for (const ConvPath::Entry& entry : path.entries) {
    std::string& sum = result[{entry.i, entry.k}];
    sum += (sum.empty() ? "" : " + ") + s.real(entry.value) + " * y" + number(path.y + entry.j);
  }
  return result;
}

void add_conv_forward(Source& s, const ConvPath& path) {
  for (int i = 0; i <= 2 * path.l1; ++i) {
    s.line("const real t", i, " = weight * ", conv_variable("x", path.in, i), ";");
  }
  for (const auto& [pair, sum] : conv_factors(s, path)) {
    s.line(conv_variable("sum", path.out, pair.second), " += (", sum, ") * t", pair.first, ";");
  }
}
void add_conv_grad_x(Source& s, const ConvPath& path) {
  std::vector<std::string> sums(static_cast<std::size_t>(2 * path.l1 + 1));
  for (const auto& [pair, sum] : conv_factors(s, path)) {
    std::string& to = sums[static_cast<std::size_t>(pair.first)];
    to += (to.empty() ? "(" : " + (") + sum + ") * " + conv_variable("g", path.out, pair.second);
  }
  for (int i = 0; i <= 2 * path.l1; ++i) {
    if (sums[static_cast<std::size_t>(i)].empty()) continue;
    s.line(conv_variable("sum", path.in, i), " += weight * (", sums[static_cast<std::size_t>(i)], ");");
  }
}

std::vector<int> write_conv_terms(Source& s, const ConvPath& path) {
  std::map<std::pair<int, int>, std::string> products;
  std::map<int, std::string> sums;
  for (const ConvPath::Entry& entry : path.entries) {
    std::string& product = products[{entry.i, entry.k}];
    if (product.empty()) {
      product = "q" + number(entry.i) + "_" + number(entry.k);
      s.line("const real ", product, " = ", conv_variable("x", path.in, entry.i), " * ",
             conv_variable("g", path.out, entry.k), ";");
    }
    std::string& sum = sums[entry.j];
    sum += (sum.empty() ? "" : " + ") + s.real(entry.value) + " * " + product;
  }
  std::vector<int> terms;
  for (const auto& [j, sum] : sums) {
    s.line("const real t", j, " = ", sum, ";");
    terms.push_back(j);
  }
  return terms;
}
std::string conv_weight_gradient(const Source& s, const ConvPath& path, const std::vector<int>& terms) {
  std::string result;
  for (const int j : terms) result += (result.empty() ? "t" : " + t") + number(j) + " * y" + number(path.y + j);
  return result.empty() ? s.real(0.0) : result;
}

void comment_conv_path(Source& s, const sdk::ConvTensorProductConfig& config, const ConvPath& path) {
  s.line("// ", config.in[path.in].ir.text(), " of block ", path.in, " with degree ", path.l2, " to ",
         config.out[path.out].ir.text(), " of block ", path.out);
}

}  // namespace fastpath_gpu
