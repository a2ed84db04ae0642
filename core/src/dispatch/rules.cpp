#include "dispatch/rules.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>

#include "dispatch/context_impl.hpp"
#include "fastpath/error.hpp"
#include "fastpath/sdk/ops.hpp"
#include "plugin/plugin.hpp"

namespace fastpath::rules {
namespace {

constexpr std::int64_t kEnd = std::numeric_limits<std::int64_t>::max();

/// A part of all sizes, both bounds included.
struct Interval {
  std::int64_t min, max;
  ReasonCode code;
  bool fast;
};

/// Where the line through measured points has a corner, begins, or has ended: between two of these in a row it is
/// straight, or is not there at all.
std::set<std::int64_t> corners(const std::vector<MeasuredPoint>& points) {
  std::set<std::int64_t> result;
  std::int64_t last = 0;
  for (const MeasuredPoint& point : points) {
    if (!point.conclusive) continue;
    if (result.empty()) result.insert((point.n_edges + 1) / 2);
    result.insert(point.n_edges);
    last = point.n_edges;
  }
  if (!result.empty() && last < kEnd / 2) result.insert(2 * last + 1);
  return result;
}

/// The first size in (first, last] for which `what` is not what it is for `first`; last + 1 if there is none. It
/// changes once at most.
template <class What>
std::int64_t first_change(std::int64_t first, std::int64_t last, const What& what) {
  const auto begin = what(first);
  if (what(last) == begin) return last + 1;
  while (last - first > 1) {
    const std::int64_t middle = first + (last - first) / 2;
    (what(middle) == begin ? first : last) = middle;
  }
  return last;
}

bool near_tie(const Measurement& m, std::int64_t n_edges) {
  const std::optional<double> kernel = predict_seconds(m.points, n_edges, Arm::kernel),
                              reference = predict_seconds(m.points, n_edges, Arm::reference);
  return kernel && reference && *kernel > kNearTie * *reference;
}

void add(std::vector<Interval>& all, const Interval& next) {
  if (next.max < next.min) return;
  if (!all.empty() && all.back().code == next.code && all.back().fast == next.fast) {
    all.back().max = next.max;
  } else {
    all.push_back(next);
  }
}

/// A window, without the sizes at which the times differ too little.
void add_window(std::vector<Interval>& all, const Measurement& m, std::int64_t first, std::int64_t last) {
  std::set<std::int64_t> bounds = corners(m.points);
  bounds.insert(first);
  if (last < kEnd) bounds.insert(last + 1);
  for (auto at = bounds.lower_bound(first); at != bounds.end() && *at <= last; ++at) {
    const auto next = std::next(at);
    const std::int64_t end = next == bounds.end() ? last : std::min(last, *next - 1);
    // An end that nobody knows is beyond what was measured, where nothing changes.
    const std::int64_t change =
        end == kEnd ? kEnd : first_change(*at, end, [&](std::int64_t n) { return near_tie(m, n); });
    const auto piece = [&](std::int64_t from, std::int64_t to) {
      const bool tie = near_tie(m, from);
      add(all, {from, to, tie ? ReasonCode::tie : ReasonCode::measured, !tie});
    };
    if (end == kEnd) {
      piece(*at, kEnd);
    } else {
      piece(*at, change - 1);
      if (change <= end) piece(change, end);
    }
  }
}

/// The sizes from there on in no window: what was not measured says nothing of them.
void add_rest(std::vector<Interval>& all, const Measurement& m, std::int64_t first) {
  const std::set<std::int64_t> known = corners(m.points);
  if (known.empty()) return;  // a conclusive record has a point
  const std::int64_t unknown = std::max(first, *known.rbegin());
  add(all, {first, unknown - 1, ReasonCode::measured, false});
  add(all, {unknown, kEnd, ReasonCode::unmeasured, false});
}

/// All sizes, in order.
std::vector<Interval> intervals(const Measurement& m) {
  std::vector<Interval> all;
  std::int64_t next = 0;
  for (const SizeWindow& window : m.windows) {
    add(all, {next, window.min_edges - 1, ReasonCode::measured, false});
    const std::int64_t last = window.max_edges == 0 ? kEnd : window.max_edges;
    add_window(all, m, window.min_edges, last);
    if (last == kEnd) return all;
    next = last + 1;
  }
  add_rest(all, m, next);
  return all;
}

std::string text_of(const Interval& interval) {
  if (interval.min == 0)
    return interval.max == kEnd ? "for any number of edges" : fmt::format("up to {} edges", interval.max);
  if (interval.max == kEnd) return fmt::format("from {} edges on", interval.min);
  return fmt::format("from {} to {} edges", interval.min, interval.max);
}

/// Every op that fastpath has a schema of.
constexpr std::string_view kOps[] = {sdk::SphericalHarmonicsConfig::kOp, sdk::RadialBasisConfig::kOp,
                                     sdk::RadialMlpConfig::kOp,          sdk::IrrepsLinearConfig::kOp,
                                     sdk::SpeciesLinearConfig::kOp,      sdk::ConvTensorProductConfig::kOp,
                                     sdk::MessageStepConfig::kOp,        sdk::SymmetricContractionConfig::kOp,
                                     sdk::RegroupChannelsConfig::kOp,    sdk::SumConfig::kOp,
                                     sdk::ScaledSiluConfig::kOp};

/// The part of the variable's name that an op decides.
std::string upper(std::string_view op) {
  std::string name(op);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return std::isalnum(c) != 0 ? static_cast<char>(std::toupper(c)) : '_'; });
  return name;
}

constexpr std::string_view kPrefix = "FASTPATH_OP_";

}  // namespace

Speech judge(const MeasurementStore::Found& found, const std::string& arm, std::int64_t n_edges, Sizes& sizes) {
  const Measurement& m = *found.measurement;
  const std::string stale =
      found.stale ? fmt::format(" ({}: {})", to_string(found.stale->code), found.stale->text) : "";
  if (m.inconclusive)
    return {{ReasonCode::inconclusive, fmt::format("{} was measured without a result{}", arm, stale)}, false};
  for (const Interval& interval : intervals(m)) {
    if (n_edges > interval.max) continue;
    sizes.within(interval.min, interval.max);
    const std::string where = text_of(interval);
    if (interval.code == ReasonCode::unmeasured) {
      return {{ReasonCode::unmeasured,
               fmt::format("{} was measured up to {} edges only{}", arm, *corners(m.points).rbegin() / 2, stale)},
              false};
    }
    if (interval.code == ReasonCode::tie) {
      return {{ReasonCode::tie,
               fmt::format("{} was measured to be faster than the reference by less than 3 % {}{}", arm, where, stale)},
              false};
    }
    return {{ReasonCode::measured,
             interval.fast ? fmt::format("{} was measured to be faster than the reference {}{}", arm, where, stale)
                           : fmt::format("the reference was measured to be faster than {} {}{}", arm, where, stale)},
            interval.fast};
  }
  return {{ReasonCode::inconclusive, fmt::format("{} was measured without a result{}", arm, stale)}, false};
}

std::optional<Comparison> compare(const std::vector<MeasuredPoint>& a, const std::vector<MeasuredPoint>& b,
                                  std::int64_t n_edges) {
  const std::set<std::int64_t> of_a = corners(a), of_b = corners(b);
  if (of_a.empty() || of_b.empty()) return std::nullopt;
  const std::int64_t first = std::max(*of_a.begin(), *of_b.begin()),
                     last = std::min(*of_a.rbegin(), *of_b.rbegin()) - 1;
  if (first > last) return std::nullopt;
  const std::int64_t at = std::clamp(n_edges, first, last);
  const std::optional<double> time_a = predict_seconds(a, at, Arm::kernel),
                              time_b = predict_seconds(b, at, Arm::kernel),
                              reference_a = predict_seconds(a, at, Arm::reference),
                              reference_b = predict_seconds(b, at, Arm::reference);
  if (!time_a || !time_b || !reference_a || !reference_b) return std::nullopt;
  return Comparison{at, *time_a / *reference_a, *time_b / *reference_b};
}

void keep_order(const std::vector<MeasuredPoint>& a, const std::vector<MeasuredPoint>& b, std::int64_t n_edges,
                Sizes& sizes) {
  std::set<std::int64_t> bounds = corners(a);
  bounds.merge(corners(b));
  const auto after = bounds.upper_bound(n_edges);
  const std::int64_t first = after == bounds.begin() ? 0 : *std::prev(after),
                     last = after == bounds.end() ? kEnd : *after - 1;
  const auto less = [&](std::int64_t n) {
    const std::optional<Comparison> both = compare(a, b, n);
    return both && both->a < both->b;
  };
  // Before the first and after the last of them one curve or both are not there: always the same size is compared.
  if (last == kEnd || after == bounds.begin()) {
    sizes.within(first, last);
    return;
  }
  const std::int64_t change = first_change(first, last, less);
  if (n_edges < change) {
    sizes.within(first, change - 1);
  } else {
    sizes.within(change, last);
  }
}

std::string override_name(const std::string& op) { return std::string(kPrefix) + upper(op); }

const std::string* override_of(Context& context, const std::string& op) {
  const std::map<std::string, std::string>& overrides = context.impl().overrides;
  if (overrides.empty()) return nullptr;
  const auto found = overrides.find(upper(op));
  return found == overrides.end() ? nullptr : &found->second;
}

void check_overrides(Context& context, const std::vector<NamedFastModule>& modules, DeviceKind kind) {
  const std::map<std::string, std::string>& overrides = context.impl().overrides;
  if (overrides.empty()) return;
  std::set<std::string> ops, values{"reference"};
  for (const std::string_view op : kOps) ops.insert(upper(op));
  for (const NamedFastModule& named : modules) ops.insert(upper(named.module->op().id));
  for (const auto& plugin : context.registry().impl().usable(kind)) values.insert(plugin->info().id);
  for (const auto& [name, value] : overrides) {
    if (!ops.contains(name)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}{}: no op has this name; there are {}", kPrefix, name, fmt::join(ops, ", ")));
    }
    if (!values.contains(value)) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("{}{} is '{}', which is neither the reference nor a plugin that is usable on {}; expected "
                      "one of {}",
                      kPrefix, name, value, to_string(kind), fmt::join(values, ", ")));
    }
  }
}

}  // namespace fastpath::rules
