#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "terminal.hpp"

namespace fastpath::cli {

struct Cell {
  std::string text;
  Style style = Style::plain;
  Cell(std::string text_, Style style_ = Style::plain) : text(std::move(text_)), style(style_) {}  // NOLINT: implicit
};

/// `text` in lines of at most `width` columns: broken at spaces, else after punctuation, else anywhere.
std::vector<std::string> wrap(const std::string& text, std::size_t width);

/// Aligned columns that fit the terminal: cells too wide are wrapped, never cut.
class Table {
 public:
  enum class Align { left, right };
  /// @param narrowest  The width to which a column is narrowed at most; those aligned right never are.
  void column(std::string title, Align align = Align::left, std::size_t narrowest = 8);
  void row(std::vector<Cell> cells);
  std::string text(int width = terminal_width()) const;

 private:
  std::vector<std::size_t> widths(std::size_t available) const;

  struct Column {
    std::string title;
    Align align;
    std::size_t narrowest;
  };
  std::vector<Column> columns_;
  std::vector<std::vector<Cell>> rows_;
};

}  // namespace fastpath::cli
