#include "ops/symmetric_contraction/basis.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>
#include <utility>

#include "fastpath/error.hpp"
#include "fastpath/sdk/coupling.hpp"

namespace fastpath::ops {

namespace {

/// A coupling of the first few inputs: element (m, index) of a [2l+1, dim^inputs] tensor, non-zeros only.
struct Intermediate {
  sdk::Irrep ir;
  struct Element {
    int m;
    std::int64_t index;
    double value;
  };
  std::vector<Element> elements;
};

int natural_parity(int l) { return l % 2 == 0 ? 1 : -1; }

/// Couples an intermediate with one more input of degree l, whose components start at l^2, to degree l_out.
Intermediate couple(const Intermediate& left, int l, int l_out, std::int64_t dim, std::int64_t left_volume) {
  const sdk::CouplingTensor& c = sdk::coupling(l_out, left.ir.l, l);
  const double norm = std::sqrt(2.0 * l_out + 1.0);
  const std::int64_t volume = left_volume * dim;
  std::vector<double> dense(static_cast<std::size_t>((2 * l_out + 1) * volume), 0.0);
  for (const auto& entry : c.nonzero) {
    for (const Intermediate::Element& element : left.elements) {
      if (element.m != entry.j) continue;
      const std::int64_t index = element.index * dim + l * l + entry.k;
      dense[static_cast<std::size_t>(entry.i * volume + index)] += norm * entry.value * element.value;
    }
  }
  Intermediate result{{l_out, left.ir.parity * natural_parity(l)}, {}};
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(dense.size()); ++i) {
    const double value = dense[static_cast<std::size_t>(i)];
    if (value != 0.0) result.elements.push_back({static_cast<int>(i / volume), i % volume, value});
  }
  return result;
}

/// True if an irrep that `step` of `nu` inputs couple to is kept on the way to the target.
bool is_kept(sdk::Irrep ir, sdk::Irrep target, int l_max, int nu, int step) {
  if (nu == 4 && (ir.parity != natural_parity(ir.l) || ir.l > 11)) return false;
  if (std::abs(ir.l - target.l) > (nu - step) * l_max) return false;  // cannot reach the target any more
  return step < nu || ir.parity == target.parity;
}

}  // namespace

double count_paths(int l_max, int target_l, int nu) {
  const sdk::Irrep target{target_l, natural_parity(target_l)};
  std::map<sdk::Irrep, double> ways;
  for (int l = 0; l <= l_max; ++l) ways[{l, natural_parity(l)}] = 1;
  for (int step = 2; step <= nu; ++step) {
    std::map<sdk::Irrep, double> next;
    for (const auto& [ir, count] : ways) {
      for (int l = 0; l <= l_max; ++l) {
        for (int l_out = std::abs(ir.l - l); l_out <= ir.l + l; ++l_out) {
          const sdk::Irrep out{l_out, ir.parity * natural_parity(l)};
          if (is_kept(out, target, l_max, nu, step)) next[out] += count;
        }
      }
    }
    ways = std::move(next);
  }
  return ways.count(target) > 0 ? ways.at(target) : 0.0;
}

std::vector<double> u_matrix(int l_max, int target_l, int nu, std::int64_t* n_paths) {
  if (l_max < 0 || target_l < 0 || nu < 1 || nu > 4) {
    throw Error(ErrorCode::invalid_argument, "symmetric contraction basis: l_max " + std::to_string(l_max) +
                                                 ", target degree " + std::to_string(target_l) + ", nu " +
                                                 std::to_string(nu) + ", expected degrees >= 0 and nu 1..4");
  }
  const sdk::Irrep target{target_l, natural_parity(target_l)};
  const std::int64_t dim = std::int64_t{l_max + 1} * (l_max + 1);

  std::vector<Intermediate> list;
  for (int l = 0; l <= l_max; ++l) {
    list.push_back({{l, natural_parity(l)}, {}});
    for (int m = 0; m <= 2 * l; ++m) list.back().elements.push_back({m, l * l + m, 1.0});
  }
  std::int64_t volume = dim;  // dim^step
  for (int step = 2; step <= nu; ++step, volume *= dim) {
    std::vector<Intermediate> next;
    for (const Intermediate& left : list) {
      for (int l = 0; l <= l_max; ++l) {
        for (int l_out = std::abs(left.ir.l - l); l_out <= left.ir.l + l; ++l_out) {
          const int parity = left.ir.parity * natural_parity(l);
          if (!is_kept({l_out, parity}, target, l_max, nu, step)) continue;
          next.push_back(couple(left, l, l_out, dim, volume));
        }
      }
    }
    std::stable_sort(next.begin(), next.end(), [](const auto& a, const auto& b) { return a.ir < b.ir; });
    list = std::move(next);
  }

  std::erase_if(list, [&](const Intermediate& item) { return !(item.ir == target); });
  const auto k = static_cast<std::int64_t>(list.size());
  std::vector<double> u(static_cast<std::size_t>((2 * target_l + 1) * volume * k), 0.0);
  for (std::int64_t path = 0; path < k; ++path) {
    for (const auto& element : list[static_cast<std::size_t>(path)].elements) {
      u[static_cast<std::size_t>((element.m * volume + element.index) * k + path)] = element.value;
    }
  }
  *n_paths = k;
  return u;
}

}  // namespace fastpath::ops
