#include "tune/search.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "fastpath/error.hpp"

namespace fastpath::tuning {
namespace {

double quantile(const std::vector<double>& sorted, double part) {
  const double at = part * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<std::size_t>(at);
  const std::size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

/// Relative half width of the central half.
double spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (quantile(values, 0.75) - quantile(values, 0.25)) / 2 / quantile(values, 0.5);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, 0.5);
}

/// How far from each end of `n` sorted samples the bounds lie between which the true median is in 98 of 100 cases or
/// more: order statistics, so nothing is assumed of the noise.
std::size_t trim(std::size_t n) {
  double chance = std::pow(0.5, static_cast<double>(n)), sum = 0;
  std::size_t k = 0;
  for (; k < n / 2; ++k) {
    sum += chance;
    if (2 * sum > 0.02) break;
    chance *= static_cast<double>(n - k) / static_cast<double>(k + 1);
  }
  return k == 0 ? 0 : k - 1;
}

/// A size, and what the rounds say of the ratio of its arms.
struct Size {
  MeasuredPoint point;
  double log_ratio = 0;      // of the kernel's time to the reference's, the median of the rounds
  double low = 0, high = 0;  // its bounds
  // -1: the kernel is faster, +1: the reference is; 0: as fast as each other, or nothing is known.
  int sign() const {
    constexpr double kLeast = 0.02;  // less is no difference that anybody would notice, and may be luck
    if (!point.conclusive || std::abs(log_ratio) < kLeast) return 0;
    return high < 0 ? -1 : low > 0 ? 1 : 0;
  }
};

class Search {
 public:
  Search(Bench& bench, const SearchOptions& options)
      : bench_(bench), options_(options), end_(bench.now() + options.budget) {}

  Searched run() {
    coarse();
    refine();
    Searched result = assess();
    result.stopped = stopped_;
    result.out_of_time = out_of_time_;
    return result;
  }

 private:
  bool may_go_on() {
    if (!stopped_ && options_.stop && options_.stop()) stopped_ = true;
    if (bench_.now() >= end_) out_of_time_ = true;
    return !stopped_ && !out_of_time_;
  }

  void coarse() {
    constexpr double kStep = 4;
    double size = static_cast<double>(std::max<std::int64_t>(options_.min_edges, 1));
    const auto most = static_cast<double>(options_.max_edges);
    while (may_go_on()) {
      const auto edges = static_cast<std::int64_t>(std::llround(std::min(size, most)));
      // A size that would take most of what is left, going by the last one, ends it: the rest is needed for the bounds.
      if (!sizes_.empty()) {
        const double growth = static_cast<double>(edges) / static_cast<double>(sizes_.rbegin()->first);
        const double cost = last_cost_ * cost_factor(sizes_.rbegin()->second.point, growth);
        if (cost > 0.35 * (end_ - bench_.now()) && sizes_.size() >= 3) break;
      }
      if (!measure(edges)) break;
      if (size >= most) break;
      size *= kStep;
    }
  }

  /// How many times as long a size takes that is so many times as large: blocks of short evaluations take as long.
  double cost_factor(const MeasuredPoint& last, double growth) const {
    if (!last.conclusive) return growth;
    const auto blocks = [&](double times) {
      return std::max(options_.min_block, last.reference_seconds * times) +
             std::max(options_.min_block, last.kernel_seconds * times);
    };
    return blocks(growth) / blocks(1);
  }

  void refine() {
    while (may_go_on()) {
      const std::optional<std::int64_t> next = next_size();
      if (!next) return;
      if (!measure(*next)) return;
    }
  }

  /// The size that tells most: the middle of a change of sign that is not known well enough, or of the gap in which a
  /// change may hide.
  std::optional<std::int64_t> next_size() const {
    double best = 0;
    std::optional<std::int64_t> result;
    const auto offer = [&](std::int64_t a, std::int64_t b, double worth) {
      const auto middle = static_cast<std::int64_t>(
          std::llround(std::sqrt(static_cast<double>(std::max<std::int64_t>(a, 1)) * static_cast<double>(b))));
      if (middle <= a || middle >= b || asked_.contains(middle) || worth <= best) return;
      best = worth;
      result = middle;
    };
    // Around changes first. What lies between two decided sizes and is not decided itself ends a bracket only where
    // the arms are as fast as each other there.
    const Size* before = nullptr;
    for (const auto& [edges, size] : sizes_) {
      if (!size.point.conclusive || size.sign() == 0) continue;
      if (before != nullptr && before->sign() != size.sign()) {
        auto inside = sizes_.upper_bound(before->point.n_edges);
        std::int64_t from = before->point.n_edges;
        const double whole = ratio(from, edges);
        if (whole > options_.resolution) {
          for (; inside != sizes_.end(); ++inside) {
            const double gap = ratio(from, inside->first);
            // Where the arms are as fast as each other over a wide range, only its ends matter.
            const bool end = sizes_.at(from).sign() != 0 || inside->second.sign() != 0;
            if (gap > options_.resolution && end) offer(from, inside->first, 1e6 * gap);
            from = inside->first;
            if (inside->first == edges) break;
          }
        }
      }
      before = &size;
    }
    if (result) return result;
    const Size* last = nullptr;
    for (const auto& [edges, size] : sizes_) {
      if (last != nullptr) {
        const double gap = ratio(last->point.n_edges, edges);
        const double nearest = std::min(std::abs(last->log_ratio), std::abs(size.log_ratio));
        if (gap > options_.closest * options_.closest) {
          offer(last->point.n_edges, edges, std::log(gap) / (0.05 + nearest));
        }
      }
      last = &size;
    }
    return result;
  }

  static double ratio(std::int64_t a, std::int64_t b) {
    return static_cast<double>(b) / static_cast<double>(std::max<std::int64_t>(a, 1));
  }

  /// False where there is no more memory for such sizes: larger ones are then not asked for.
  bool measure(std::int64_t edges) {
    asked_[edges] = true;
    const double start = bench_.now();
    try {
      measure_at(edges);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::out_of_memory || sizes_.empty()) throw;
      return false;
    }
    last_cost_ = bench_.now() - start;
    return true;
  }

  void measure_at(std::int64_t edges) {
    const ProblemSize actual = bench_.prepare(edges);
    asked_[actual.n_edges] = true;
    if (sizes_.contains(actual.n_edges)) return;
    Size size = time(actual);
    if (stopped_) return;  // in the middle of it
    const auto place = sizes_.emplace(actual.n_edges, std::move(size)).first;
    if (options_.on_point) options_.on_point(place->second.point, assess().windows);
  }

  int repeats_for(Arm arm) {
    // The first run touches memory for the first time, the second one counts.
    const double first = bench_.run(arm, 1).seconds;
    const double one = first >= options_.min_block ? first : std::min(first, bench_.run(arm, 1).seconds);
    constexpr double kMost = 100000;
    return static_cast<int>(std::clamp(std::ceil(options_.min_block / std::max(one, 1e-9)), 1.0, kMost));
  }

  Size time(const ProblemSize& actual) {
    Size size;
    size.point.n_edges = actual.n_edges;
    size.point.n_nodes = actual.n_nodes;
    const int reference_repeats = repeats_for(Arm::reference), kernel_repeats = repeats_for(Arm::kernel);
    std::vector<double> reference, kernel, ratios;
    bool clear = false;
    for (int round = 0; round < options_.max_tries && !clear; ++round) {
      Bench::Block blocks[2];
      for (int i = 0; i < 2; ++i) {
        const bool second = (i == 1) != (round % 2 == 1);
        blocks[second ? 1 : 0] =
            bench_.run(second ? Arm::kernel : Arm::reference, second ? kernel_repeats : reference_repeats);
      }
      // A round counts as a whole: what disturbs one arm would turn the ratio.
      if (!blocks[0].disturbed && !blocks[1].disturbed) {
        reference.push_back(blocks[0].seconds / reference_repeats);
        kernel.push_back(blocks[1].seconds / kernel_repeats);
        ratios.push_back(std::log(kernel.back() / reference.back()));
        const auto n = static_cast<int>(ratios.size());
        if (n >= options_.min_rounds && n % 2 == 1) clear = judge(size, ratios) || n >= options_.max_rounds;
      } else if (round >= 8 && static_cast<std::size_t>(round) > 8 * (ratios.size() + 1)) {
        break;  // whoever disturbs stays
      }
      if (stopped_ || (options_.stop && options_.stop())) {
        stopped_ = true;
        break;
      }
    }
    if (static_cast<int>(ratios.size()) < options_.min_rounds) return size;
    judge(size, ratios);
    const double reference_spread = spread(reference), kernel_spread = spread(kernel);
    const bool decided = size.high < 0 || size.low > 0;
    const bool as_fast = size.high < options_.close && size.low > -options_.close;
    const bool drifts = !decided && drift(ratios) > options_.close;
    const bool noisy = std::max(reference_spread, kernel_spread) > options_.max_spread;
    if ((!decided && (!as_fast || noisy)) || drifts) return {size.point, 0, 0, 0};
    size.point.conclusive = true;
    size.point.reference_seconds = median(reference);
    size.point.kernel_seconds = median(kernel);
    size.point.reference_spread = reference_spread;
    size.point.kernel_spread = kernel_spread;
    size.point.repeats = static_cast<int>(ratios.size());
    return size;
  }

  /// True if it is clear which arm is faster, or that they are as fast as each other.
  bool judge(Size& size, std::vector<double> ratios) const {
    std::sort(ratios.begin(), ratios.end());
    const std::size_t k = trim(ratios.size());
    size.log_ratio = quantile(ratios, 0.5);
    size.low = ratios[k];
    size.high = ratios[ratios.size() - 1 - k];
    return size.high < 0 || size.low > 0 || size.high - size.low < options_.close / 4;
  }

  static double drift(const std::vector<double>& ratios) {
    const auto half = static_cast<std::ptrdiff_t>(ratios.size() / 2);
    return std::abs(median({ratios.begin(), ratios.begin() + half}) - median({ratios.begin() + half, ratios.end()}));
  }

  struct Bound {
    double edges = 0, spread = 0;
    bool known = true;  // no size between the two says nothing
  };
  /// Between two sizes of which different arms are faster: where the straight line through the ratios is 0. It lies
  /// somewhere between them; that is its spread.
  Bound bound(const Size& a, const Size& b) const {
    const double x0 = std::log(static_cast<double>(std::max<std::int64_t>(a.point.n_edges, 1))),
                 x1 = std::log(static_cast<double>(b.point.n_edges));
    const double x = x0 + a.log_ratio / (a.log_ratio - b.log_ratio) * (x1 - x0);
    Bound result{std::exp(x), std::expm1(std::max(x - x0, x1 - x))};
    for (auto inside = sizes_.upper_bound(a.point.n_edges); inside->first < b.point.n_edges; ++inside) {
      result.known = result.known && inside->second.point.conclusive;
    }
    return result;
  }

  Searched assess() const {
    Searched result;
    std::size_t unknown = 0;
    std::vector<const Size*> decided;
    for (const auto& [edges, size] : sizes_) {
      result.points.push_back(size.point);
      unknown += size.point.conclusive ? 0 : 1;
      if (size.sign() != 0) decided.push_back(&size);
    }
    if (sizes_.empty() || unknown * 2 > sizes_.size()) {
      result.inconclusive = true;
      return result;
    }
    std::optional<SizeWindow> open;
    for (std::size_t i = 0; i < decided.size(); ++i) {
      const int sign = decided[i]->sign();
      if (i == 0 && sign < 0) open = SizeWindow{};
      if (i == 0 || decided[i - 1]->sign() == sign) continue;
      const Bound at = bound(*decided[i - 1], *decided[i]);
      // Not known to a factor of two, and not because the arms are as fast as each other in between: it is none.
      const bool tie = at.known && std::next(sizes_.find(decided[i - 1]->point.n_edges))->second.sign() == 0;
      if (at.spread > 1 && !tie) {
        result.inconclusive = true;
        result.windows.clear();
        return result;
      }
      if (sign < 0) {
        open = SizeWindow{static_cast<std::int64_t>(std::ceil(at.edges)), 0, at.spread, 0};
      } else if (open) {
        open->max_edges = std::max<std::int64_t>(static_cast<std::int64_t>(std::floor(at.edges)), open->min_edges);
        open->max_spread = at.spread;
        result.windows.push_back(*open);
        open.reset();
      }
    }
    if (open) result.windows.push_back(*open);
    // Windows of a few edges may touch.
    for (std::size_t i = 1; i < result.windows.size();) {
      if (result.windows[i].min_edges > result.windows[i - 1].max_edges) {
        ++i;
        continue;
      }
      result.windows[i - 1].max_edges = result.windows[i].max_edges;
      result.windows[i - 1].max_spread = result.windows[i].max_spread;
      result.windows.erase(result.windows.begin() + static_cast<std::ptrdiff_t>(i));
    }
    return result;
  }

  Bench& bench_;
  const SearchOptions& options_;
  const double end_;
  std::map<std::int64_t, Size> sizes_;
  std::map<std::int64_t, bool> asked_;
  double last_cost_ = 0;
  bool stopped_ = false, out_of_time_ = false;
};

}  // namespace

Searched search(Bench& bench, const SearchOptions& options) { return Search(bench, options).run(); }

}  // namespace fastpath::tuning
