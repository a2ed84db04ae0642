#include "io/json_reader.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "fastpath/error.hpp"
#include "io/printable.hpp"

namespace fastpath::io {
namespace {

// Far above what a configuration holds. They bound the recursion of whoever visits a value, and the search for a key.
constexpr std::size_t kDeepest = 16;
constexpr std::size_t kMostKeys = 1000;
constexpr std::size_t kMostProblems = 50;

bool is_integer_in(const Json& item, std::int64_t low, std::int64_t high) {
  return item.is_number_integer() && (!item.is_number_unsigned() || item.get<std::uint64_t>() <= INT64_MAX) &&
         item.get<std::int64_t>() >= low && item.get<std::int64_t>() <= high;
}

}  // namespace

std::string shown(const Json& value) {
  if (value.is_string()) return printable(value.get<std::string>());
  const std::string text = value.dump();
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

Json parse_json(const std::string& text, const std::string& name) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::bad_file, fmt::format("{}: {}", name, what));
  };
  // The parser takes a zero byte for the end of the text.
  if (const std::size_t zero = text.find('\0'); zero != std::string::npos) {
    fail(fmt::format("not JSON: byte {} is zero", zero));
  }
  try {
    std::vector<std::set<std::string>> open;  // keys of the objects being read, to find duplicates
    return Json::parse(text, [&](int depth, Json::parse_event_t event, Json& parsed) {
      if (depth > static_cast<int>(kDeepest)) fail(fmt::format("values are nested more than {} deep", kDeepest));
      if (event == Json::parse_event_t::object_start) open.emplace_back();
      if (event == Json::parse_event_t::key) {
        const auto key = parsed.get<std::string>();
        if (!open.back().insert(key).second) fail(fmt::format("key {} is given twice", printable(key)));
        if (open.back().size() > kMostKeys) fail(fmt::format("an object has more than {} keys", kMostKeys));
      }
      if (event == Json::parse_event_t::object_end) open.pop_back();
      return true;
    });
  } catch (const Json::exception& error) {
    std::string what = error.what();
    if (what.starts_with('[')) what.erase(0, std::min(what.find("] "), what.size() - 2) + 2);
    // It quotes the text it was reading, however long.
    constexpr std::size_t kLongest = 300;
    if (what.size() > kLongest) what = fmt::format("{} ... {}", what.substr(0, 60), what.substr(what.size() - 200));
    fail(fmt::format("not JSON: {}", what));
  }
  throw Error(ErrorCode::internal, "a failure that did not throw");
}

const Json* JsonReader::find(const char* key, bool required) {
  asked_.insert(key);
  const auto found = json_.find(key);
  if (found != json_.end()) return &*found;
  if (required) problem(fmt::format("key '{}{}' is missing", prefix_, key));
  return nullptr;
}

void JsonReader::wrong(const char* key, const Json& found, const std::string& expected) {
  problem(fmt::format("key '{}{}' is {}, expected {}", prefix_, key, shown(found), expected));
}

bool JsonReader::read_integer(const char* key, std::int64_t& value, std::int64_t low, std::int64_t high,
                              bool required) {
  const Json* found = find(key, required);
  if (found == nullptr) return false;
  if (!is_integer_in(*found, low, high)) {
    wrong(key, *found, fmt::format("an integer in {}..{}", low, high));
    return false;
  }
  value = found->get<std::int64_t>();
  return true;
}

void JsonReader::number(const char* key, double& value, bool required) {
  const Json* found = find(key, required);
  if (found == nullptr) return;
  if (!found->is_number() || !std::isfinite(found->get<double>()) || found->get<double>() <= 0) {
    return wrong(key, *found, "a positive number");
  }
  value = found->get<double>();
}

void JsonReader::number_in(const char* key, double& value, double low, double high, const char* expected) {
  const Json* found = find(key, false);
  if (found == nullptr) return;
  const double read = found->is_number() ? found->get<double>() : std::nan("");
  if (!(read >= low && read <= high)) return wrong(key, *found, expected);
  value = read;
}

void JsonReader::boolean(const char* key, bool& value) {
  const Json* found = find(key, false);
  if (found == nullptr) return;
  if (!found->is_boolean()) return wrong(key, *found, "true or false");
  value = found->get<bool>();
}

bool JsonReader::text(const char* key, std::string& value, bool required) {
  const Json* found = find(key, required);
  if (found == nullptr) return false;
  if (!found->is_string()) {
    wrong(key, *found, "text");
    return false;
  }
  value = found->get<std::string>();
  return true;
}

void JsonReader::choice(const char* key, std::string& value, const std::vector<std::string>& accepted, bool required) {
  const Json* found = find(key, required);
  if (found == nullptr) return;
  if (!found->is_string() || std::find(accepted.begin(), accepted.end(), found->get<std::string>()) == accepted.end()) {
    return wrong(key, *found, fmt::format("one of {}", fmt::join(accepted, ", ")));
  }
  value = found->get<std::string>();
}

bool JsonReader::read_integers(const char* key, std::vector<std::int64_t>& value, std::int64_t low, std::int64_t high,
                               bool required) {
  const Json* found = find(key, required);
  if (found == nullptr) return false;
  if (!found->is_array() ||
      !std::all_of(found->begin(), found->end(), [&](const Json& item) { return is_integer_in(item, low, high); })) {
    wrong(key, *found, fmt::format("a list of integers in {}..{}", low, high));
    return false;
  }
  for (const Json& item : *found) value.push_back(item.get<std::int64_t>());
  return true;
}

void JsonReader::names(const char* key, std::vector<std::string>& value) {
  const Json* found = find(key, false);
  if (found == nullptr) return;
  const bool good = found->is_array() && !found->empty() &&
                    std::all_of(found->begin(), found->end(), [](const Json& item) { return item.is_string(); });
  if (!good) return wrong(key, *found, "a list of names");
  value = found->get<std::vector<std::string>>();
  if (std::set<std::string>(value.begin(), value.end()).size() != value.size()) wrong(key, *found, "distinct names");
}

void JsonReader::report_unknown(bool list_known) {
  for (const auto& [key, value] : json_.items()) {
    if (asked_.contains(key)) continue;
    const std::string name = prefix_.empty() ? printable(key) : printable(prefix_ + key);
    problem(list_known ? fmt::format("key {} is unknown, expected {}", name, fmt::join(asked_, ", "))
                       : fmt::format("key {} is unknown", name));
  }
}

void JsonReader::finish(bool list_known) {
  report_unknown(list_known);
  if (problems_.empty()) return;
  const std::size_t more = problems_.size() > kMostProblems ? problems_.size() - kMostProblems : 0;
  problems_.resize(problems_.size() - more);
  if (more > 0) problems_.push_back(fmt::format("and {} problems more", more));
  throw Error(ErrorCode::bad_file, fmt::format("{}: {}", name_, fmt::join(problems_, "; ")));
}

}  // namespace fastpath::io
