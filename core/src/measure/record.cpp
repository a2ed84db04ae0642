#include "measure/record.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "fastpath/error.hpp"

namespace fastpath::measure {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kStart = "{\"fastpath_measurement\":";
constexpr std::string_view kSum = ",\"sum\":\"";
constexpr std::string_view kRecord = "\",\"record\":";
constexpr std::size_t kDigits = 16;
constexpr std::size_t kMostPoints = 4096, kMostNesting = 8;

std::uint64_t fnv1a(std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

bool is_hexadecimal(std::string_view text) {
  return text.size() == kDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Json json_of(const MeasuredPoint& point) {
  Json json = {
      {"edges", point.n_edges}, {"nodes", point.n_nodes}, {"conclusive", point.conclusive}, {"repeats", point.repeats}};
  // A number that means nothing is not written.
  if (!point.conclusive) return json;
  json["reference"] = point.reference_seconds;
  json["kernel"] = point.kernel_seconds;
  json["reference_spread"] = point.reference_spread;
  json["kernel_spread"] = point.kernel_spread;
  return json;
}

MeasuredPoint point_of(const Json& json) {
  MeasuredPoint point;
  json.at("edges").get_to(point.n_edges);
  json.at("nodes").get_to(point.n_nodes);
  json.at("conclusive").get_to(point.conclusive);
  json.at("repeats").get_to(point.repeats);
  if (!point.conclusive) return point;
  json.at("reference").get_to(point.reference_seconds);
  json.at("kernel").get_to(point.kernel_seconds);
  json.at("reference_spread").get_to(point.reference_spread);
  json.at("kernel_spread").get_to(point.kernel_spread);
  return point;
}

Json json_of(const SizeWindow& window) {
  return {{"min_edges", window.min_edges},
          {"max_edges", window.max_edges},
          {"min_spread", window.min_spread},
          {"max_spread", window.max_spread}};
}

SizeWindow window_of(const Json& json) {
  SizeWindow window;
  json.at("min_edges").get_to(window.min_edges);
  json.at("max_edges").get_to(window.max_edges);
  json.at("min_spread").get_to(window.min_spread);
  json.at("max_spread").get_to(window.max_spread);
  return window;
}

Json json_of(const Measurement& m) {
  Json points = Json::array(), windows = Json::array();
  for (const MeasuredPoint& point : m.points) points.push_back(json_of(point));
  for (const SizeWindow& window : m.windows) windows.push_back(json_of(window));
  return {{"op", m.key.op},
          {"op_version", m.key.op_version},
          {"config", m.key.config},
          {"device", m.key.device},
          {"dtype", std::string(to_string(m.key.dtype))},
          {"passes", m.key.passes},
          {"threads", m.key.threads},
          {"plugin", m.key.plugin},
          {"points", std::move(points)},
          {"windows", std::move(windows)},
          {"inconclusive", m.inconclusive},
          {"plugin_version", m.plugin_version},
          {"plugin_build", m.plugin_build},
          {"library_version", m.library_version},
          {"driver", m.driver},
          {"host", m.host},
          {"unix_time", m.unix_time}};
}

Measurement measurement_of(const Json& json) {
  Measurement m;
  json.at("op").get_to(m.key.op);
  json.at("op_version").get_to(m.key.op_version);
  json.at("config").get_to(m.key.config);
  json.at("device").get_to(m.key.device);
  m.key.dtype = parse_dtype(json.at("dtype").get<std::string>());
  json.at("passes").get_to(m.key.passes);
  json.at("threads").get_to(m.key.threads);
  json.at("plugin").get_to(m.key.plugin);
  for (const Json& point : json.at("points").get_ref<const Json::array_t&>()) m.points.push_back(point_of(point));
  for (const Json& window : json.at("windows").get_ref<const Json::array_t&>()) m.windows.push_back(window_of(window));
  json.at("inconclusive").get_to(m.inconclusive);
  json.at("plugin_version").get_to(m.plugin_version);
  json.at("plugin_build").get_to(m.plugin_build);
  json.at("library_version").get_to(m.library_version);
  json.at("driver").get_to(m.driver);
  json.at("host").get_to(m.host);
  json.at("unix_time").get_to(m.unix_time);
  return m;
}

/// A parser takes memory for every level.
bool is_shallow(std::string_view text) {
  std::size_t depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && depth > 0) --depth;
    if (depth > kMostNesting) return false;
  }
  return true;
}

bool is_size(double value) { return std::isfinite(value) && value > 0; }
bool is_spread(double value) { return std::isfinite(value) && value >= 0; }

std::string fault(const MeasuredPoint& point) {
  if (point.n_edges < 0 || point.n_nodes < 0 || point.repeats < 0) return "has a negative size";
  if (!point.conclusive) return {};
  if (!is_size(point.reference_seconds) || !is_size(point.kernel_seconds)) return "has a time that is none";
  if (!is_spread(point.reference_spread) || !is_spread(point.kernel_spread)) return "has a spread that is none";
  return {};
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "host";
  return name.data();
}

std::string fault(const Measurement& m) {
  for (const auto& [name, text] : {std::pair{"op", &m.key.op},
                                   {"config", &m.key.config},
                                   {"device", &m.key.device},
                                   {"plugin", &m.key.plugin},
                                   {"plugin_build", &m.plugin_build}}) {
    if (text->empty()) return fmt::format("has no {}", name);
  }
  if (!is_hexadecimal(m.key.config)) {
    return fmt::format("its config is '{}', expected {} hexadecimal digits", m.key.config, kDigits);
  }
  if (m.unix_time < 0) return fmt::format("its time is {}", m.unix_time);
  if (!is_floating(m.key.dtype)) return fmt::format("its dtype is {}", to_string(m.key.dtype));
  if (m.key.passes == 0 || Passes::from_bits(m.key.passes).bits() != m.key.passes) {
    return fmt::format("its passes are {}", m.key.passes);
  }
  const bool on_cpu = m.key.device.starts_with("cpu ");
  if (on_cpu ? m.key.threads < 1 : m.key.threads != 0) return fmt::format("has {} threads", m.key.threads);
  if (m.points.size() > kMostPoints || m.windows.size() > kMostPoints) return "has too many sizes";
  for (std::size_t i = 0; i < m.points.size(); ++i) {
    if (std::string text = fault(m.points[i]); !text.empty()) return fmt::format("point {} {}", i + 1, text);
    if (i > 0 && m.points[i].n_edges <= m.points[i - 1].n_edges) return "its points are not in the order of sizes";
  }
  for (std::size_t i = 0; i < m.windows.size(); ++i) {
    const SizeWindow& window = m.windows[i];
    if (window.min_edges < 0 || (window.max_edges != 0 && window.max_edges < window.min_edges)) {
      return fmt::format("window {} is from {} to {}", i + 1, window.min_edges, window.max_edges);
    }
    if (i > 0 && (m.windows[i - 1].max_edges == 0 || window.min_edges <= m.windows[i - 1].max_edges)) {
      return "its windows are not in the order of sizes";
    }
    if (!is_spread(window.min_spread) || !is_spread(window.max_spread)) {
      return fmt::format("window {} has a spread that is none", i + 1);
    }
  }
  if (!m.inconclusive && std::none_of(m.points.begin(), m.points.end(), [](const auto& p) { return p.conclusive; })) {
    return "is conclusive without a point that is";
  }
  if (m.inconclusive && !m.windows.empty()) return "is inconclusive and has windows";
  return {};
}

std::string write_line(const Measurement& measurement) {
  std::string text = fault(measurement);
  std::string record;
  if (text.empty()) {
    try {
      record = json_of(measurement).dump();
    } catch (const Json::exception&) {
      text = "has text that is not UTF-8";
    }
  }
  if (record.size() > kLongestLine / 2) text = "is too long";
  if (!text.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("measurement of {} by {}: {}", measurement.key.op, measurement.key.plugin, text));
  }
  return fmt::format("{}{}{}{:016x}{}{}}}", kStart, kFormat, kSum, fnv1a(record), kRecord, record);
}

std::optional<Measurement> read_line(std::string_view line, Reason& why) {
  const auto bad = [&](std::string text) {
    why = {ReasonCode::bad_record, std::move(text)};
    return std::nullopt;
  };
  std::string_view rest = line;
  if (line.size() > kLongestLine) return bad("longer than any record");
  if (!rest.starts_with(kStart)) return bad("does not begin as a record does");
  rest.remove_prefix(kStart.size());
  int format = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), format);
  if (error != std::errc()) return bad("has no number of its format");
  rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
  // The last byte that belongs to every format.
  if (!rest.starts_with(kSum) || !rest.ends_with('}')) return bad("torn");
  rest.remove_prefix(kSum.size());
  const std::string_view sum = rest.substr(0, kDigits);
  if (!is_hexadecimal(sum)) return bad("has no sum");
  rest.remove_prefix(kDigits);
  if (!rest.starts_with(kRecord)) return bad("has no record");
  rest.remove_prefix(kRecord.size());
  rest.remove_suffix(1);
  if (fmt::format("{:016x}", fnv1a(rest)) != sum) return bad("torn or changed: its sum is another one");
  if (format != kFormat) {
    why = {ReasonCode::record_format, fmt::format("of format {}, this version reads {}", format, kFormat)};
    return std::nullopt;
  }
  if (!is_shallow(rest)) return bad("nested too deeply");
  try {
    Measurement measurement = measurement_of(Json::parse(rest));
    if (std::string text = fault(measurement); !text.empty()) return bad(std::move(text));
    return measurement;
  } catch (const Json::exception&) {
    return bad("not the record of a measurement");
  } catch (const Error& error_of_dtype) {
    return bad(error_of_dtype.what());
  }
}

}  // namespace fastpath::measure
