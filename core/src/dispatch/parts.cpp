#include "dispatch/parts.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace fastpath::rules {
namespace {

constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();
// Sums of curves may cross anywhere, and more than once. So all sizes of a step, an eighth of a doubling, have the
// answer of the first of them: it does not depend on which was asked for.
constexpr int kSteps = 8, kLast = 8 * 53;

std::int64_t first_of(int step) {
  if (step <= 0) return step < 0 ? 0 : 1;
  return step > kLast ? kEnd : static_cast<std::int64_t>(std::ceil(std::exp2(static_cast<double>(step) / kSteps)));
}

/// The step of a size, from -1 for none at all.
int step_of(std::int64_t n_edges) {
  if (n_edges < 1) return -1;
  int step = std::clamp(static_cast<int>(kSteps * std::log2(static_cast<double>(n_edges))), 0, kLast);
  while (step > 0 && first_of(step) > n_edges) --step;
  while (step < kLast && first_of(step + 1) <= n_edges) ++step;
  return step;
}

std::optional<double> seconds(const Cost& cost, std::int64_t n_edges) {
  return predict_seconds(cost.measurement->points, n_edges, cost.arm);
}

std::vector<Faster> answer_at(const std::vector<FusedCost>& fused, const std::vector<SharedPart>& shared,
                              std::int64_t n_edges) {
  std::vector<Faster> result(fused.size(), Faster::unknown);
  std::vector<std::size_t> cheaper;  // without what they share
  double in_one_piece = 0, in_parts = 0;
  for (std::size_t i = 0; i < fused.size(); ++i) {
    const std::optional<double> kernel = seconds(fused[i].kernel, n_edges);
    double own = 0;
    bool known = kernel.has_value();
    for (const Cost& part : fused[i].own) {
      const std::optional<double> alone = known ? seconds(part, n_edges) : std::nullopt;
      known = alone.has_value();
      own += alone.value_or(0);
    }
    if (!known) continue;
    result[i] = Faster::in_one_piece;
    if (own >= *kernel) continue;
    cheaper.push_back(i);
    in_one_piece += *kernel;
    in_parts += own;
  }
  std::set<std::size_t> once;
  bool known = true;
  for (const std::size_t i : cheaper) once.insert(fused[i].shared.begin(), fused[i].shared.end());
  for (const std::size_t i : once) {
    if (shared[i].needed_anyway) continue;
    const std::optional<double> alone = shared[i].cost ? seconds(*shared[i].cost, n_edges) : std::nullopt;
    known = known && alone.has_value();
    in_parts += alone.value_or(0);
  }
  const bool better = in_parts <= kNearTie * in_one_piece;
  for (const std::size_t i : cheaper) {
    result[i] = !known ? Faster::unknown : better ? Faster::in_parts : Faster::in_one_piece;
  }
  return result;
}

/// In parts where that is faster at half and at twice the size, too. The times are of records that were made one after
/// the other: a machine that had other work during one of them makes a size of it slower, not a range.
std::vector<Faster> answer(const std::vector<FusedCost>& fused, const std::vector<SharedPart>& shared, int step) {
  std::vector<Faster> result = answer_at(fused, shared, first_of(step));
  if (std::find(result.begin(), result.end(), Faster::in_parts) == result.end()) return result;
  for (const int other : {step - kSteps, step + kSteps}) {
    const std::vector<Faster> nearby = answer_at(fused, shared, first_of(other));
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (result[i] == Faster::in_parts && nearby[i] == Faster::in_one_piece) result[i] = Faster::in_one_piece;
    }
  }
  return result;
}

}  // namespace

std::vector<Faster> compare(const std::vector<FusedCost>& fused, const std::vector<SharedPart>& shared,
                            std::int64_t n_edges, Sizes& sizes) {
  if (fused.empty()) return {};
  const int step = step_of(n_edges);
  const std::vector<Faster> result = answer(fused, shared, step);
  const auto same = [&](int other) { return answer(fused, shared, other) == result; };
  int low = step, high = step;
  while (low >= 0 && first_of(low) > sizes.min && same(low - 1)) --low;
  while (high < kLast && first_of(high + 1) <= sizes.max && same(high + 1)) ++high;
  sizes.within(low < 0 ? 0 : first_of(low), high == kLast ? kEnd : first_of(high + 1) - 1);
  return result;
}

}  // namespace fastpath::rules
