#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What every benchmark here shares: arms that take turns, statistics that outliers do not move, JSON, a table.
namespace bench {

/// One of several ways to do the same work. `run` does it once and returns the seconds that count.
struct Arm {
  std::string name;
  std::function<double()> run;
  int threads = 1;
  /// Seconds of a run that it has had already, for an arm too slow for another: that one counts, and `run` is not
  /// called.
  std::optional<double> only = std::nullopt;
};

/// An arm whose first run takes so many times the budget of all arms is too slow for another. That run has first
/// touches of memory in it, so the factor is large.
inline constexpr double kTooSlow = 5;

struct Budget {
  double seconds = 5;  ///< For all arms together, warm-up aside; the round in which it ends is finished.
  int warm_up = 1;     ///< Runs of each arm that are not counted.
  int min_rounds = 3;  ///< Also when the budget is used up.
  int max_rounds = 1000;
};

/// The counted runs of one arm, in order.
struct Timing {
  std::string name;
  std::vector<double> seconds;
  int threads = 1;

  double median() const;
  /// Median absolute deviation from the median: the spread. NaN for fewer than two runs, which have none.
  double mad() const;
  double minimum() const;
};

/// Median of a copy of the values; NaN for none. @throws nothing for values that are not NaN.
double median(std::vector<double> values);

/// Runs arms in rounds, each arm once a round, every other round in reverse order: what drifts (clock frequency,
/// neighbours on the machine) meets all arms alike.
/// @param clock  Seconds of a monotonic clock; the default is the steady clock.
std::vector<Timing> measure(const std::vector<Arm>& arms, const Budget& budget,
                            const std::function<double()>& clock = {});

/// One timing that is slower than another by more than both spread; one run alone counts as spreading by a tenth.
struct Slower {
  const Timing* slow = nullptr;
  const Timing* fast = nullptr;
  double factor() const { return slow->median() / fast->median(); }
  /// "cpu_simd with 2 threads takes 1.30 times as long as with 1: 1.3 us +- 0.1 against 1.0 us +- 0.1".
  std::string text() const;
};
/// What should not be: an arm that takes longer than one named before it with as many threads (or with one, where that
/// one has no more), and an arm that takes longer with more threads than with fewer.
std::vector<Slower> slower(const std::vector<Timing>& timings);

/// "12.3 us", "4.56 ms", "7.89 s".
std::string time_text(double seconds);
/// "2026-01-31T12:00:00Z".
std::string date_text();

/// Seconds of the steady clock.
double now();

/// The most memory that the process has had in use since reset_peak_memory(), and what it has now; bytes.
std::optional<std::uint64_t> peak_memory();
std::optional<std::uint64_t> current_memory();
/// False where the system does not allow it: peaks then grow over the whole run.
bool reset_peak_memory();

/// Writes JSON text with indentation. Numbers read back to the same double; a number that is not finite becomes null.
class JsonWriter {
 public:
  JsonWriter& begin_object(std::string_view key = {}) { return open(key, '{'); }
  JsonWriter& begin_array(std::string_view key = {}) { return open(key, '['); }
  JsonWriter& end();
  JsonWriter& put(std::string_view key, std::string_view text);
  JsonWriter& put(std::string_view key, const char* text) { return put(key, std::string_view(text)); }
  JsonWriter& put(std::string_view key, double number);
  JsonWriter& put(std::string_view key, std::int64_t number);
  JsonWriter& put(std::string_view key, std::uint64_t number) { return put(key, static_cast<std::int64_t>(number)); }
  JsonWriter& put(std::string_view key, int number) { return put(key, static_cast<std::int64_t>(number)); }
  JsonWriter& put(std::string_view key, bool value);
  JsonWriter& put_null(std::string_view key);
  /// The text so far; complete once everything is ended.
  const std::string& text() const noexcept { return text_; }

 private:
  JsonWriter& open(std::string_view key, char bracket);
  void start_value(std::string_view key);
  void quote(std::string_view text);

  std::string text_;
  std::string closing_;  // brackets still to come, innermost last
  bool first_ = true;
};

/// Columns of text, all but the first flush right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// A number with so many digits after the point.
std::string fixed(double value, int digits);

}  // namespace bench
