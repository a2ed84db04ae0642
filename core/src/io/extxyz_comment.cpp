#include "io/extxyz_comment.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/extxyz_values.hpp"
#include "io/printable.hpp"

namespace fastpath::io {
namespace {

constexpr std::string_view kBrackets = "[]{}";
constexpr std::string_view kQuotes = "\"'";

bool contains(std::string_view set, char c) { return set.find(c) != std::string_view::npos; }

class CommentParser {
 public:
  explicit CommentParser(std::string_view line) : line_(line) {}

  std::vector<CommentEntry> parse() {
    std::vector<CommentEntry> entries;
    for (skip_blanks(); !at_end(); skip_blanks()) {
      CommentEntry entry;
      entry.key_at = entry.value_at = at_;
      entry.key = contains(kQuotes, line_[at_]) ? parse_quoted(line_, at_) : bare_key();
      if (entry.key.empty()) throw Malformed{entry.key_at, "expected a key before '='"};
      skip_blanks();
      if (!at_end() && line_[at_] == '=') {
        ++at_;
        skip_blanks();
        entry.value_at = at_;
        entry.value = value(entry.key);
      } else {
        has_bare_keys_ = true;
        entry.value = std::vector<bool>{true};
      }
      entries.push_back(std::move(entry));
    }
    return entries;
  }

  bool has_bare_keys() const { return has_bare_keys_; }

 private:
  bool at_end() const { return at_ == line_.size(); }
  void skip_blanks() {
    while (!at_end() && is_blank(line_[at_])) ++at_;
  }

  std::string bare_key() {
    const std::size_t begin = at_;
    while (!at_end() && !is_blank(line_[at_]) && line_[at_] != '=') {
      if (contains(kQuotes, line_[at_]) || contains(kBrackets, line_[at_])) {
        throw Malformed{at_, fmt::format("'{}' in a key, expected key=value", line_[at_])};
      }
      ++at_;
    }
    return std::string(line_.substr(begin, at_ - begin));
  }

  Values value(const std::string& key) {
    if (at_end()) throw Malformed{at_, fmt::format("no value for {}", printable(key))};
    Values result;
    if (contains(kQuotes, line_[at_])) {
      const std::string text = parse_quoted(line_, at_);
      result = classify(split(text));
      // Numbers and truth values in quotes are an array; anything else is one text.
      if (std::holds_alternative<std::vector<std::string>>(result)) result = std::vector<std::string>{text};
    } else if (line_[at_] == '[' || line_[at_] == '{') {
      result = list();
    } else {
      const std::size_t begin = at_;
      while (!at_end() && !is_blank(line_[at_])) ++at_;
      return classify({std::string(line_.substr(begin, at_ - begin))});
    }
    if (!at_end() && !is_blank(line_[at_])) {
      throw Malformed{at_, fmt::format("expected a blank after the value of {}", printable(key))};
    }
    return result;
  }

  Values list() {
    std::vector<std::string> words;
    bool any_quoted = false;
    const std::size_t begin = at_;
    parse_list(words, any_quoted, begin, 1);
    return any_quoted ? Values(std::move(words)) : classify(std::move(words));
  }

  /// Appends the words of the list that opens here; returns how many elements it has.
  std::size_t parse_list(std::vector<std::string>& words, bool& any_quoted, std::size_t outermost, int depth) {
    const char close = line_[at_] == '[' ? ']' : '}';
    ++at_;
    std::size_t elements = 0;
    std::size_t row_length = 0;
    std::size_t rows = 0;
    bool after_comma = false;
    for (;;) {
      skip_blanks();
      if (at_end()) throw Malformed{outermost, fmt::format("'{}' is not closed", line_[outermost])};
      const char c = line_[at_];
      if (c == close && !after_comma) {
        ++at_;
        return elements;
      }
      if (c == '[' || c == '{') {
        const std::size_t here = at_;
        if (depth == 2) throw Malformed{here, "an array of more than two dimensions"};
        const std::size_t length = parse_list(words, any_quoted, outermost, depth + 1);
        if (rows++ != elements || (rows > 1 && length != row_length)) {
          throw Malformed{here, "rows of an array differ in length"};
        }
        row_length = length;
      } else if (contains(kQuotes, c)) {
        words.push_back(parse_quoted(line_, at_));
        any_quoted = true;
      } else {
        const std::size_t begin = at_;
        while (!at_end() && !is_blank(line_[at_]) && line_[at_] != ',' && !contains(kBrackets, line_[at_]) &&
               !contains(kQuotes, line_[at_])) {
          ++at_;
        }
        if (begin == at_) throw Malformed{at_, fmt::format("'{}' where an element of an array was expected", c)};
        words.emplace_back(line_.substr(begin, at_ - begin));
      }
      if (++elements != rows && rows != 0) throw Malformed{at_, "an array of both numbers and rows"};
      skip_blanks();
      after_comma = !at_end() && line_[at_] == ',';
      if (after_comma) ++at_;
    }
  }

  std::string_view line_;
  std::size_t at_ = 0;
  bool has_bare_keys_ = false;
};

/// True if a line means to be a list of key=value: it begins with one, or sets a key that decides how the frame is
/// read.
bool looks_extended(std::string_view line) {
  const auto is_key = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  bool first = true;
  std::size_t at = 0;
  while (at < line.size()) {
    if (is_blank(line[at])) {
      ++at;
      continue;
    }
    const std::size_t begin = at;
    while (at < line.size() && is_key(line[at])) ++at;
    const std::string key = lower(line.substr(begin, at - begin));
    if (!key.empty()) {
      if (first && at < line.size() && line[at] == '=') return true;
      std::size_t next = at;
      while (next < line.size() && is_blank(line[next])) ++next;
      const bool set = next < line.size() && line[next] == '=';
      if (set && (key == "lattice" || key == "properties" || key == "pbc")) return true;
    }
    while (at < line.size() && !is_blank(line[at])) ++at;
    first = false;
  }
  return false;
}

}  // namespace

std::string parse_quoted(std::string_view line, std::size_t& at) {
  const std::size_t begin = at;
  const char quote = line[at++];
  std::string text;
  for (; at < line.size(); ++at) {
    char c = line[at];
    if (c == quote) {
      ++at;
      return text;
    }
    if (c == '\\' && at + 1 < line.size()) {
      c = line[++at];
      if (c == 'n') c = '\n';
    }
    text += c;
  }
  throw Malformed{begin, fmt::format("the quote {} is not closed", quote)};
}

std::vector<CommentEntry> parse_comment(std::string_view line) {
  const bool extended = looks_extended(line);
  try {
    CommentParser parser(line);
    std::vector<CommentEntry> entries = parser.parse();
    if (extended || !parser.has_bare_keys()) return entries;
  } catch (const Malformed&) {
    if (extended) throw;
  }
  const auto begin = std::find_if_not(line.begin(), line.end(), is_blank) - line.begin();
  const auto end = line.rend() - std::find_if_not(line.rbegin(), line.rend(), is_blank);
  const auto at = static_cast<std::size_t>(begin);
  std::string text(line.substr(at, static_cast<std::size_t>(end - begin)));
  return {{"comment", std::vector<std::string>{std::move(text)}, at, at}};
}

}  // namespace fastpath::io
