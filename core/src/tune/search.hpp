#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "fastpath/measurement.hpp"
#include "fastpath/op.hpp"

/// How the sizes are found at which one way of doing the same work becomes faster than another, by timing both.
namespace fastpath::tuning {

/// Two arms and the clock they are timed by. Tests bring one whose time is made up.
class Bench {
 public:
  virtual ~Bench() = default;
  /// Makes ready for about so many edges. @return The size it really is. @throws Error(out_of_memory) and others.
  virtual ProblemSize prepare(std::int64_t n_edges) = 0;

  /// So many evaluations in a row.
  struct Block {
    double seconds = 0;      ///< Of all of them together.
    bool disturbed = false;  ///< Others wanted the processors that it used.
  };
  virtual Block run(Arm arm, int repeats) = 0;
  /// Seconds of a clock that only grows.
  virtual double now() = 0;
};

struct SearchOptions {
  std::int64_t min_edges = 8, max_edges = 200000;
  double budget = 5;           ///< Seconds by the clock of the bench; the size under way is finished.
  double min_block = 2e-3;     ///< Seconds that a block takes at least, so that the clock and a call cost nothing.
  int min_rounds = 7;          ///< Blocks of each arm, undisturbed.
  int max_rounds = 21;         ///< The same where it is not clear by then which arm is faster.
  int max_tries = 45;          ///< Blocks of each arm, the disturbed ones included.
  double resolution = 1.05;    ///< A bound of a window is searched until it is known to this factor.
  double closest = 1.3;        ///< No further sizes are looked at within a factor of this, except around a bound.
  double max_spread = 0.25;    ///< Of an arm; a size that spreads more and is not decided says nothing.
  double close = 0.06;         ///< Two arms whose ratio is known to be within this of 1 are as fast as each other.
  std::function<bool()> stop;  ///< Asked before every size.
  std::function<void(const MeasuredPoint&, const std::vector<SizeWindow>&)> on_point;  ///< After every size.
};

struct Searched {
  std::vector<MeasuredPoint> points;  ///< By size.
  std::vector<SizeWindow> windows;    ///< Empty where it is inconclusive.
  bool inconclusive = false;
  bool stopped = false;      ///< By `stop`, with what was measured so far.
  bool out_of_time = false;  ///< The budget ended before every bound was known to the resolution.
};

/// Sizes far apart first, from small to large, as long as the budget will do for them; then around each change of the
/// faster arm, and between sizes that lie far apart, where the arms are closest first.
Searched search(Bench& bench, const SearchOptions& options);

}  // namespace fastpath::tuning
