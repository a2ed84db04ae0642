#include "harness.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <limits>

namespace bench {
namespace {

std::optional<std::uint64_t> from_status(std::string_view key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key)) return std::stoull(line.substr(key.size())) * 1024;  // given in kB
  }
  return std::nullopt;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double Timing::median() const { return bench::median(seconds); }

double Timing::mad() const {
  if (seconds.size() < 2) return std::numeric_limits<double>::quiet_NaN();
  const double center = median();
  std::vector<double> distances;
  for (const double value : seconds) distances.push_back(std::abs(value - center));
  return bench::median(distances);
}

double Timing::minimum() const {
  return seconds.empty() ? std::numeric_limits<double>::quiet_NaN() : *std::min_element(seconds.begin(), seconds.end());
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<Timing> measure(const std::vector<Arm>& arms, const Budget& budget, const std::function<double()>& clock) {
  const auto time = [&] { return clock ? clock() : now(); };
  std::vector<Timing> timings;
  for (const Arm& arm : arms) timings.push_back({arm.name, {}, arm.threads});
  for (std::size_t i = 0; i < arms.size(); ++i) {
    if (arms[i].only) timings[i].seconds.push_back(*arms[i].only);
  }
  for (int i = 0; i < budget.warm_up; ++i) {
    for (const Arm& arm : arms) {
      if (!arm.only) arm.run();
    }
  }
  const bool none = std::all_of(arms.begin(), arms.end(), [](const Arm& arm) { return arm.only.has_value(); });
  const double start = time();
  for (int round = 0; round < budget.max_rounds && !none; ++round) {
    if (round >= budget.min_rounds && time() - start >= budget.seconds) break;
    for (std::size_t i = 0; i < arms.size(); ++i) {
      const std::size_t arm = round % 2 == 0 ? i : arms.size() - 1 - i;
      if (arms[arm].only) continue;
      timings[arm].seconds.push_back(arms[arm].run());
    }
  }
  return timings;
}

std::string Slower::text() const {
  const auto figure = [](const Timing& timing) {
    const double spread = timing.mad();
    return time_text(timing.median()) + (std::isnan(spread) ? " once" : " +- " + time_text(spread));
  };
  const bool same = slow->name == fast->name;
  std::string result = slow->name + " with " + std::to_string(slow->threads) +
                       (slow->threads == 1 ? " thread takes " : " threads takes ") + fixed(factor(), 2) +
                       " times as long as " + (same ? "with " + std::to_string(fast->threads) : fast->name);
  return result + ": " + figure(*slow) + " against " + figure(*fast);
}

std::vector<Slower> slower(const std::vector<Timing>& timings) {
  const auto spread = [](const Timing& timing) {
    return std::isnan(timing.mad()) ? 0.1 * timing.median() : timing.mad();
  };
  const auto most_threads = [&](const std::string& name) {
    int most = 0;
    for (const Timing& timing : timings) most = timing.name == name ? std::max(most, timing.threads) : most;
    return most;
  };
  std::vector<Slower> result;
  for (std::size_t i = 0; i < timings.size(); ++i) {
    for (std::size_t k = 0; k < timings.size(); ++k) {
      const Timing &a = timings[i], &b = timings[k];
      const bool same = a.name == b.name;
      const bool other_threads =
          same ? b.threads < a.threads
               : b.threads == a.threads || (b.threads < a.threads && most_threads(b.name) == b.threads);
      const bool before = same || std::find_if(timings.begin(), timings.end(), [&](const Timing& each) {
                                    return each.name == a.name || each.name == b.name;
                                  })->name == b.name;
      if (!before || !other_threads || a.seconds.empty() || b.seconds.empty()) continue;
      if (a.median() - spread(a) > b.median() + spread(b)) result.push_back({&a, &b});
    }
  }
  return result;
}

std::string time_text(double seconds) {
  if (!(seconds >= 0)) return "-";
  return seconds < 1e-3 ? fixed(1e6 * seconds, seconds < 1e-5 ? 2 : 1) + " us"
         : seconds < 1  ? fixed(1e3 * seconds, 2) + " ms"
                        : fixed(seconds, 2) + " s";
}

std::string date_text() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&time, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

std::optional<std::uint64_t> peak_memory() { return from_status("VmHWM:"); }
std::optional<std::uint64_t> current_memory() { return from_status("VmRSS:"); }

bool reset_peak_memory() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5\n";
  file.close();
  return !file.fail();
}

JsonWriter& JsonWriter::open(std::string_view key, char bracket) {
  start_value(key);
  text_ += bracket;
  closing_ += bracket == '{' ? '}' : ']';
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::end() {
  const char bracket = closing_.back();
  closing_.pop_back();
  if (!first_) text_.append("\n").append(2 * closing_.size(), ' ');
  text_ += bracket;
  if (closing_.empty()) text_ += '\n';
  first_ = false;
  return *this;
}

void JsonWriter::start_value(std::string_view key) {
  if (!first_) text_ += ',';
  if (!closing_.empty()) text_.append("\n").append(2 * closing_.size(), ' ');
  first_ = false;
  if (closing_.empty() || closing_.back() == ']') return;  // only members of an object have keys
  quote(key);
  text_ += ": ";
}

void JsonWriter::quote(std::string_view text) {
  text_ += '"';
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned>(c));
      text_ += escape;
      continue;
    }
    if (c == '"' || c == '\\') text_ += '\\';
    text_ += c;
  }
  text_ += '"';
}

JsonWriter& JsonWriter::put(std::string_view key, std::string_view text) {
  start_value(key);
  quote(text);
  return *this;
}

JsonWriter& JsonWriter::put(std::string_view key, double number) {
  if (!std::isfinite(number)) return put_null(key);
  start_value(key);
  char digits[32];
  text_.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
  return *this;
}

JsonWriter& JsonWriter::put(std::string_view key, std::int64_t number) {
  start_value(key);
  text_ += std::to_string(number);
  return *this;
}

JsonWriter& JsonWriter::put(std::string_view key, bool value) {
  start_value(key);
  text_ += value ? "true" : "false";
  return *this;
}

JsonWriter& JsonWriter::put_null(std::string_view key) {
  start_value(key);
  text_ += "null";
  return *this;
}

std::string Table::text() const {
  std::vector<std::size_t> widths;
  for (const auto& row : rows_) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string result;
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string padding(widths[i] - row[i].size(), ' ');
      if (i > 0) result += "  ";
      result += i == 0 ? row[i] + padding : padding + row[i];
    }
    result += '\n';
  }
  return result;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

}  // namespace bench
