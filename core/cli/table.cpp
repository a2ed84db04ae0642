#include "table.hpp"

#include <algorithm>
#include <cstddef>

namespace fastpath::cli {

namespace {

constexpr std::size_t kGap = 2;

bool starts_character(char c) { return (static_cast<unsigned char>(c) & 0xc0u) != 0x80u; }

/// Columns that UTF-8 text takes, counting one per code point.
std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), starts_character));
}

}  // namespace

std::vector<std::string> wrap(const std::string& text, std::size_t width) {
  std::vector<std::string> lines;
  std::size_t start = 0;
  while (start < text.size()) {
    // `end`: as far as the width allows; `space` and `mark`: the last places there where breaking is better.
    std::size_t end = start, columns = 0, space = 0, mark = 0;
    while (end < text.size() && text[end] != '\n') {
      if (starts_character(text[end]) && ++columns > width) break;
      if (text[end] == ' ') space = end;
      ++end;
      if (std::string_view("/._-,:+").find(text[end - 1]) != std::string_view::npos) mark = end;
    }
    if (end == text.size() || text[end] == '\n' || text[end] == ' ') {
      lines.push_back(text.substr(start, end - start));
      start = end + (end < text.size() ? 1 : 0);
    } else if (space > start) {
      lines.push_back(text.substr(start, space - start));
      start = space + 1;
    } else {
      if (mark > start) end = mark;
      if (end == start) ++end;
      while (end < text.size() && !starts_character(text[end])) ++end;
      lines.push_back(text.substr(start, end - start));
      start = end;
    }
  }
  if (lines.empty()) lines.emplace_back();
  return lines;
}

void Table::column(std::string title, Align align, std::size_t narrowest) {
  columns_.push_back({std::move(title), align, narrowest});
}

void Table::row(std::vector<Cell> cells) {
  for (Cell& cell : cells) cell.text = one_line(cell.text);
  rows_.push_back(std::move(cells));
}

std::vector<std::size_t> Table::widths(std::size_t available) const {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t width = width_of(columns_[i].title);
    for (const auto& row : rows_) width = std::max(width, width_of(row[i].text));
    result.push_back(width);
  }
  std::size_t total = kGap * (columns_.size() - 1);
  for (const std::size_t width : result) total += width;
  while (total > available) {
    // Numbers, which are aligned right, are never wrapped.
    std::size_t* widest = nullptr;
    for (std::size_t i = 0; i < result.size(); ++i) {
      const bool can = columns_[i].align == Align::left && result[i] > columns_[i].narrowest;
      if (can && (widest == nullptr || result[i] > *widest)) widest = &result[i];
    }
    if (widest == nullptr) break;
    --*widest;
    --total;
  }
  return result;
}

std::string Table::text(int width) const {
  const std::vector<std::size_t> widths = this->widths(static_cast<std::size_t>(width));
  std::string result;
  const auto append = [&](const std::vector<Cell>& cells) {
    std::vector<std::vector<std::string>> wrapped;
    std::size_t height = 1;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      wrapped.push_back(wrap(cells[i].text, std::max<std::size_t>(widths[i], 1)));
      height = std::max(height, wrapped.back().size());
    }
    for (std::size_t line = 0; line < height; ++line) {
      std::size_t pending = 0;  // spaces that are written only if something follows
      for (std::size_t i = 0; i < cells.size(); ++i) {
        const std::string text = line < wrapped[i].size() ? wrapped[i][line] : std::string();
        const std::size_t padding = widths[i] - std::min(widths[i], width_of(text));
        const bool right = columns_[i].align == Align::right;
        if (right) pending += padding;
        if (!text.empty()) {
          result.append(pending, ' ');
          result += styled(text, cells[i].style);
          pending = 0;
        }
        if (!right) pending += padding;
        pending += kGap;
      }
      result += '\n';
    }
  };
  std::vector<Cell> titles;
  for (const Column& column : columns_) titles.emplace_back(column.title, Style::bold);
  append(titles);
  for (const auto& row : rows_) append(row);
  return result;
}

}  // namespace fastpath::cli
