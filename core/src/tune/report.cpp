#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <string>
#include <vector>

#include "fastpath/tune.hpp"
#include "fastpath/version.hpp"
#include "io/file.hpp"

namespace fastpath {
namespace {

/// Text that may hold anything, inside an element or an attribute.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        // A control character means nothing here; browsers replace bytes that are no UTF-8 themselves.
        if (const auto code = static_cast<unsigned char>(c); code < 0x20 || code == 0x7f) {
          result += "&#xfffd;";
        } else {
          result += c;
        }
    }
  }
  return result;
}

std::string with_commas(std::int64_t value) {
  std::string digits = std::to_string(value);
  for (std::ptrdiff_t at = std::ssize(digits) - 3; at > 0; at -= 3) digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string time_text(double seconds) {
  for (const auto& [unit, size] : {std::pair{"s", 1.0}, {"ms", 1e-3}, {"µs", 1e-6}}) {
    if (seconds >= size * 0.9995) return fmt::format("{:.3g} {}", seconds / size, unit);
  }
  return fmt::format("{:.3g} ns", seconds / 1e-9);
}

std::string percent(double part) { return fmt::format("{:.0f} %", std::ceil(100 * part)); }

/// "from 310 (±4 %) edges": where the kernel is faster.
std::string windows_text(const Measurement& measurement) {
  if (measurement.inconclusive) return "inconclusive";
  if (measurement.windows.empty()) return fmt::format("not up to {} edges", with_commas(largest_measured(measurement)));
  const auto bound = [](std::int64_t edges, double spread) {
    return with_commas(edges) + (spread > 0 ? fmt::format(" (±{})", percent(spread)) : "");
  };
  std::string text;
  for (const SizeWindow& window : measurement.windows) {
    if (!text.empty()) text += ", ";
    const std::string low = bound(window.min_edges, window.min_spread),
                      high = bound(window.max_edges, window.max_spread);
    if (window.min_edges == 0 && window.max_edges == 0) {
      text += "always";
    } else if (window.max_edges == 0) {
      text += "from " + low + " edges";
    } else if (window.min_edges == 0) {
      text += "up to " + high + " edges";
    } else {
      text += low + " to " + high + " edges";
    }
  }
  return text;
}

/// A logarithmic axis over part of a picture.
class Axis {
 public:
  Axis(double low, double high, double from, double to) : from_(from), to_(to) {
    constexpr double kMargin = 1.15;  // marks stay inside
    low_ = std::log10(low / kMargin);
    high_ = std::log10(high * kMargin);
  }
  double at(double value) const {
    return std::clamp(from_ + (std::log10(value) - low_) / (high_ - low_) * (to_ - from_), std::min(from_, to_),
                      std::max(from_, to_));
  }
  /// Powers of ten; with their double and fivefold where there would be few.
  std::vector<double> ticks() const {
    std::vector<double> result;
    const bool fine = high_ - low_ < 2.2;
    for (int power = static_cast<int>(std::floor(low_)); power <= static_cast<int>(std::ceil(high_)); ++power) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double value = factor * std::pow(10.0, power);
        if ((factor == 1 || fine) && std::log10(value) >= low_ && std::log10(value) <= high_) result.push_back(value);
      }
    }
    return result;
  }

 private:
  double low_ = 0, high_ = 0, from_, to_;
};

/// Both cost curves, with what the machine scattered by, and the sizes at which the kernel is faster.
class Plot {
 public:
  explicit Plot(const Measurement& measurement) : measurement_(measurement) {}

  std::string svg() {
    std::int64_t fewest = 0, most = 0;
    double shortest = 0, longest = 0;
    for (const MeasuredPoint& point : measurement_.points) {
      if (fewest == 0) fewest = std::max<std::int64_t>(point.n_edges, 1);
      most = std::max<std::int64_t>(point.n_edges, 1);
      if (!point.conclusive) continue;
      for (const auto& [seconds, spread] :
           {std::pair{point.reference_seconds, point.reference_spread}, {point.kernel_seconds, point.kernel_spread}}) {
        const double low = seconds / (1 + spread), high = seconds * (1 + spread);
        shortest = shortest == 0 ? low : std::min(shortest, low);
        longest = std::max(longest, high);
      }
    }
    if (shortest <= 0) return {};
    const Axis x(static_cast<double>(fewest), static_cast<double>(most), kLeft, kWidth - kRight);
    const Axis y(shortest, longest, kHeight - kBottom, kTop);
    text_ = fmt::format(
        "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"Time against edges of {}: reference and "
        "{}\">\n",
        kWidth, kHeight, escaped(measurement_.key.op), escaped(measurement_.key.plugin));
    windows(x);
    axes(x, y);
    text_ += notes_;  // above the grid
    curve(x, y, Arm::reference);
    curve(x, y, Arm::kernel);
    unknown(x);
    legend();
    return text_ + "</svg>\n";
  }

 private:
  static constexpr int kWidth = 420, kHeight = 330, kLeft = 62, kRight = 24, kTop = 34, kBottom = 48;

  void windows(const Axis& x) {
    for (const SizeWindow& window : measurement_.windows) {
      const double from = window.min_edges > 0 ? x.at(static_cast<double>(window.min_edges)) : kLeft;
      const double to = window.max_edges > 0 ? x.at(static_cast<double>(window.max_edges)) : kWidth - kRight;
      rectangle("window", from, to, "the kernel is faster here");
      const auto band = [&](std::int64_t edges, double spread) {
        if (edges <= 0) return;
        const auto at = static_cast<double>(edges);
        const double left = x.at(at / (1 + spread)), right = x.at(at * (1 + spread));
        rectangle("band", std::min(left, x.at(at) - 0.75), std::max(right, x.at(at) + 0.75),
                  fmt::format("changes at {} edges, ±{}", with_commas(edges), percent(spread)));
        const bool late = x.at(at) > kWidth * 0.75;
        notes_ += fmt::format("<text class=\"note\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n",
                              late ? left - 4 : right + 4, kTop + 16, late ? "end" : "start", with_commas(edges));
      };
      band(window.min_edges, window.min_spread);
      band(window.max_edges, window.max_spread);
    }
  }

  void rectangle(const char* kind, double from, double to, const std::string& title) {
    text_ += fmt::format(
        "<rect class=\"{}\" x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"{}\"><title>{}</title>"
        "</rect>\n",
        kind, from, kTop, to - from, kHeight - kTop - kBottom, title);
  }

  void axes(const Axis& x, const Axis& y) {
    constexpr int kFloor = kHeight - kBottom;
    for (const double tick : x.ticks()) {
      text_ += fmt::format(
          "<path class=\"grid\" d=\"M{0:.1f},{1}V{2}\"/><text x=\"{0:.1f}\" y=\"{3}\" "
          "text-anchor=\"middle\">{4}</text>\n",
          x.at(tick), kTop, kFloor, kFloor + 18, with_commas(std::llround(tick)));
    }
    for (const double tick : y.ticks()) {
      text_ += fmt::format(
          "<path class=\"grid\" d=\"M{0},{1:.1f}H{2}\"/><text x=\"{3}\" y=\"{4:.1f}\" "
          "text-anchor=\"end\">{5}</text>\n",
          kLeft, y.at(tick), kWidth - kRight, kLeft - 6, y.at(tick) + 5, time_text(tick));
    }
    text_ += fmt::format(
        "<path class=\"frame\" d=\"M{0},{1}V{2}H{3}\"/><text x=\"{4}\" y=\"{5}\" "
        "text-anchor=\"middle\">edges</text>\n",
        kLeft, kTop, kFloor, kWidth - kRight, (kLeft + kWidth - kRight) / 2, kFloor + 40);
  }

  void curve(const Axis& x, const Axis& y, Arm arm) {
    const char* const kind = arm == Arm::kernel ? "kernel" : "reference";
    std::string line, marks;
    for (const MeasuredPoint& point : measurement_.points) {
      if (!point.conclusive) continue;
      const double seconds = arm == Arm::kernel ? point.kernel_seconds : point.reference_seconds;
      const double spread = arm == Arm::kernel ? point.kernel_spread : point.reference_spread;
      const double at = x.at(static_cast<double>(std::max<std::int64_t>(point.n_edges, 1))), height = y.at(seconds);
      line += fmt::format("{}{:.1f},{:.1f}", line.empty() ? "M" : "L", at, height);
      const std::string title = fmt::format("{}: {} edges, {}, ±{}", arm == Arm::kernel ? "kernel" : "reference",
                                            with_commas(point.n_edges), time_text(seconds), percent(spread));
      marks += fmt::format("<path class=\"{} bar\" d=\"M{:.1f},{:.1f}V{:.1f}\"/>", kind, at,
                           y.at(seconds * (1 + spread)), y.at(seconds / (1 + spread)));
      marks += arm == Arm::kernel
                   ? fmt::format(
                         "<circle class=\"{} mark\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\"><title>{}</title>"
                         "</circle>\n",
                         kind, at, height, escaped(title))
                   : fmt::format(
                         "<rect class=\"{} mark\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"6\" height=\"6\"><title>{}"
                         "</title></rect>\n",
                         kind, at - 3, height - 3, escaped(title));
    }
    text_ += fmt::format("<path class=\"{} curve\" d=\"{}\"/>\n{}", kind, line, marks);
  }

  /// Sizes that were measured and say nothing.
  void unknown(const Axis& x) {
    constexpr int kAt = kHeight - kBottom - 8;
    for (const MeasuredPoint& point : measurement_.points) {
      if (point.conclusive) continue;
      const double at = x.at(static_cast<double>(std::max<std::int64_t>(point.n_edges, 1)));
      text_ += fmt::format(
          "<path class=\"unknown\" d=\"M{:.1f},{}l8,8m0,-8l-8,8\"><title>{} edges: inconclusive"
          "</title></path>\n",
          at - 4, kAt - 4, with_commas(point.n_edges));
    }
  }

  void legend() {
    text_ += fmt::format(
        "<rect class=\"reference mark\" x=\"{}\" y=\"14\" width=\"9\" height=\"9\"/><text x=\"{}\" "
        "y=\"23\">reference</text><circle class=\"kernel mark\" cx=\"{}\" cy=\"18.5\" r=\"5\"/><text "
        "x=\"{}\" y=\"23\">{}</text>\n",
        kLeft, kLeft + 15, kLeft + 115, kLeft + 125, escaped(measurement_.key.plugin));
  }

  const Measurement& measurement_;
  std::string text_, notes_;
};

constexpr std::string_view kStyle = R"(
:root { --paper: #ffffff; --ink: #1c1c1c; --faint: #666666; --grid: #dddddd; --reference: #b34a00; --kernel: #00639c;
  --window: #e3f0f8; --band: #9cc8e4; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181a; --ink: #e8e8e8; --faint: #a0a0a0; --grid: #34383c;
  --reference: #f0934e; --kernel: #58b4ee; --window: #1d3040; --band: #33627f; } }
@media print { :root { --paper: #ffffff; --ink: #000000; --faint: #444444; --grid: #dddddd; --reference: #b34a00;
  --kernel: #00639c; --window: #e3f0f8; --band: #9cc8e4; } section { break-inside: avoid; } details > summary { list-style: none; } }
* { box-sizing: border-box; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.45 system-ui, Helvetica, Arial, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.4rem; margin: 0.25rem 0 0.5rem; } h2 { font-size: 1.15rem; margin: 1.5rem 0 0.25rem; overflow-wrap: anywhere; }
p { margin: 0.25rem 0; overflow-wrap: anywhere; } .faint { color: var(--faint); font-size: 0.9rem; }
.wide { overflow-x: auto; } .summary td { overflow-wrap: anywhere; } .summary td + td { width: 45%; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 0.2rem 0.9rem 0.2rem 0; border-bottom: 1px solid var(--grid); vertical-align: top; }
td.number, th.number { text-align: right; white-space: nowrap; } a { color: var(--kernel); }
figure { margin: 0.5rem 0; } svg { width: 100%; max-width: 36rem; height: auto; display: block; }
svg text { font-size: 14px; fill: var(--ink); } svg .note { font-size: 13px; }
.grid { stroke: var(--grid); fill: none; } .frame { stroke: var(--faint); fill: none; }
.window { fill: var(--window); } .band { fill: var(--band); } .unknown { stroke: var(--faint); stroke-width: 2; fill: none; }
.curve { fill: none; stroke-width: 2; } .reference.curve { stroke-dasharray: 6 3; }
.reference { stroke: var(--reference); } .kernel { stroke: var(--kernel); } .bar { stroke-width: 1.2; }
.reference.mark { fill: var(--reference); } .kernel.mark { fill: var(--kernel); }
)";

std::string subject(const Measurement& measurement) {
  return measurement.key.op == kModelOp ? "whole evaluation" : measurement.key.op;
}

std::string date(std::int64_t unix_time) {
  return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(static_cast<std::time_t>(unix_time)));
}

std::string summary(const std::vector<Measurement>& measurements) {
  std::string text =
      "<table class=\"summary\"><thead><tr><th>what</th><th>faster than the reference</th></tr></thead><tbody>\n";
  for (std::size_t i = 0; i < measurements.size(); ++i) {
    const Measurement& each = measurements[i];
    text +=
        fmt::format("<tr><td><a href=\"#m{}\">{}</a> by {} <span class=\"faint\">{}, {}</span></td><td>{}</td></tr>\n",
                    i + 1, escaped(subject(each)), escaped(each.key.plugin), to_string(each.key.dtype),
                    escaped(each.key.config.substr(0, 8)), windows_text(each));
  }
  return text + "</tbody></table>\n";
}

std::string samples(const Measurement& measurement) {
  std::string text =
      "<details><summary>Samples</summary><div class=\"wide\"><table><thead><tr><th class=\"number\">edges</th>"
      "<th class=\"number\">nodes</th><th class=\"number\">reference</th><th class=\"number\">±</th>"
      "<th class=\"number\">kernel</th><th class=\"number\">±</th><th class=\"number\">times as fast</th>"
      "<th class=\"number\">blocks</th></tr></thead><tbody>\n";
  for (const MeasuredPoint& point : measurement.points) {
    text += fmt::format("<tr><td class=\"number\">{}</td><td class=\"number\">{}</td>", with_commas(point.n_edges),
                        with_commas(point.n_nodes));
    if (point.conclusive) {
      for (const std::string& cell :
           {time_text(point.reference_seconds), percent(point.reference_spread), time_text(point.kernel_seconds),
            percent(point.kernel_spread), fmt::format("{:.2f}", point.reference_seconds / point.kernel_seconds),
            std::to_string(point.repeats)}) {
        text += "<td class=\"number\">" + cell + "</td>";
      }
    } else {
      text += "<td colspan=\"6\">inconclusive</td>";
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div></details>\n";
}

std::string section(const Measurement& measurement, std::size_t number) {
  const MeasurementKey& key = measurement.key;
  std::string text = fmt::format("<section id=\"m{}\">\n<h2>{} by {}</h2>\n", number, escaped(subject(measurement)),
                                 escaped(key.plugin));
  if (measurement.inconclusive) {
    text += "<p>Inconclusive: others used the machine meanwhile, or times scattered too much.</p>\n";
  } else {
    text += fmt::format("<p>{} is faster than the reference: <strong>{}</strong>.</p>\n",
                        key.plugin == kEveryPlugin ? "The fast path" : escaped(key.plugin), windows_text(measurement));
  }
  const std::string picture = Plot(measurement).svg();
  text += picture.empty() ? "<p>No size was conclusive, so there is nothing to draw.</p>\n"
                          : "<figure>\n" + picture + "</figure>\n";
  const std::string threads =
      key.threads > 0 ? fmt::format(", {} thread{}", key.threads, key.threads == 1 ? "" : "s") : "";
  text += fmt::format("<p class=\"faint\">{}, {}{}; configuration {}, version {} of the op. {}.</p>\n",
                      to_string(key.dtype), to_string(Passes::from_bits(key.passes)), threads, escaped(key.config),
                      key.op_version, escaped(key.device));
  text += fmt::format("<p class=\"faint\">{}; fastpath {}{}. Measured on {}, {}.</p>\n",
                      measurement.plugin_version.empty()
                          ? "build " + escaped(measurement.plugin_build.substr(0, 12))
                          : fmt::format("{} {}, build {}", escaped(key.plugin), escaped(measurement.plugin_version),
                                        escaped(measurement.plugin_build.substr(0, 12))),
                      escaped(measurement.library_version),
                      measurement.driver.empty() ? "" : ", driver " + escaped(measurement.driver),
                      escaped(measurement.host), date(measurement.unix_time));
  return text + samples(measurement) + "</section>\n";
}

}  // namespace

std::string tuning_report(const std::vector<Measurement>& measurements) {
  std::string text = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<title>When fast kernels are "
      "faster</title>\n<style>{}</style>\n"
      "</head>\n<body>\n<main>\n<h1>When fast kernels are faster</h1>\n",
      kStyle);
  if (measurements.empty()) {
    text += "<p>There are no measurements. <code>fastpath tune --model DIR</code> makes some.</p>\n";
  } else {
    text += summary(measurements);
  }
  for (std::size_t i = 0; i < measurements.size(); ++i) text += section(measurements[i], i + 1);
  if (!measurements.empty()) {
    text +=
        "<h2>How to read this</h2>\n<p>Both ways of doing the same work were timed in turns, at sizes of different "
        "numbers of edges. Shaded: the kernel is faster; darker: how well the size is known at which that changes. "
        "Bars: "
        "the central half of the samples. Crosses: sizes at which nothing can be said.</p>\n";
  }
  return text +
         fmt::format("<p class=\"faint\">Made by fastpath {}.</p>\n</main>\n</body>\n</html>\n", build_info().version);
}

void write_tuning_report(const std::filesystem::path& file, const std::vector<Measurement>& measurements) {
  io::ReplacingFile out(file);
  out.write(tuning_report(measurements));
  out.commit();
}

}  // namespace fastpath
