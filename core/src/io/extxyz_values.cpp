#include "io/extxyz_values.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace fastpath::io {
namespace {

/// Without a plus sign, which from_chars does not take; empty if another sign follows it.
std::string_view without_plus(std::string_view word) {
  if (word.empty() || word.front() != '+') return word;
  word.remove_prefix(1);
  return !word.empty() && (word.front() == '-' || word.front() == '+') ? std::string_view{} : word;
}

template <class T, class Parse>
std::optional<Values> all(const std::vector<std::string>& words, Parse parse) {
  std::vector<T> result;
  for (const std::string& word : words) {
    const std::optional<T> value = parse(word);
    if (!value) return std::nullopt;
    result.push_back(*value);
  }
  return Values(std::move(result));
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view word) {
  word = without_plus(word);
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (word.empty() || status != std::errc{} || end != word.data() + word.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_real(std::string_view word) {
  word = without_plus(word);
  if (word.empty()) return std::nullopt;
  std::string fortran;
  if (const std::size_t exponent = word.find_first_of("dD");
      exponent != std::string_view::npos && exponent > 0 && word.find_first_of("eE") == std::string_view::npos) {
    fortran = word;
    fortran[exponent] = 'e';
    word = fortran;
  }
  const char* last = word.data() + word.size();
  double value = 0;
  const auto [end, status] = std::from_chars(word.data(), last, value);
  if (end != last) return std::nullopt;
  if (status == std::errc{}) return value;
  if (status != std::errc::result_out_of_range) return std::nullopt;
  long double wide = 0;  // tells a number that is too small from one that is too large
  const auto [wide_end, wide_status] = std::from_chars(word.data(), last, wide);
  if (wide_end != last || wide_status != std::errc{} || std::fabs(wide) > 1.0L) return std::nullopt;
  return static_cast<double>(wide);
}

std::optional<bool> parse_truth(std::string_view word) {
  constexpr std::array<std::string_view, 4> kTrue{"T", "true", "True", "TRUE"};
  constexpr std::array<std::string_view, 4> kFalse{"F", "false", "False", "FALSE"};
  if (std::find(kTrue.begin(), kTrue.end(), word) != kTrue.end()) return true;
  if (std::find(kFalse.begin(), kFalse.end(), word) != kFalse.end()) return false;
  return std::nullopt;
}

Values classify(std::vector<std::string> words) {
  if (words.empty()) return Values(std::move(words));
  if (auto integers = all<std::int64_t>(words, parse_integer)) return *std::move(integers);
  // A whole number beyond 64 bits stays a word: as a double it would lose digits.
  const bool too_long = std::any_of(words.begin(), words.end(), [](const std::string& word) {
    return word.find_first_not_of("+-0123456789") == std::string::npos && !parse_integer(word);
  });
  if (!too_long) {
    if (auto reals = all<double>(words, parse_real)) return *std::move(reals);
  }
  if (auto truths = all<bool>(words, parse_truth)) return *std::move(truths);
  return Values(std::move(words));
}

std::string real_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer;
  const auto [end, status] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  std::string text(buffer.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '\n') {
      result += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> words;
  std::size_t at = 0;
  while (at < text.size()) {
    if (is_blank(text[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < text.size() && !is_blank(text[end])) ++end;
    words.emplace_back(text.substr(at, end - at));
    at = end;
  }
  return words;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return result;
}

}  // namespace fastpath::io
