#pragma once

#include <string>
#include <string_view>

namespace fastpath::cli {

/// Whoever read standard output went away.
struct BrokenPipe {};

/// Writes to standard output. @throws BrokenPipe, or Error(io) with the system's words.
void print(std::string_view text);
/// Writes out what is buffered. @throws as print().
void finish_output();

/// A text that may hold anything (a path, what a file or a plugin says of itself) as one line: what would end the line
/// or move the cursor, or is no UTF-8, is written as an escape such as \\x1b.
std::string one_line(std::string_view text);

/// A line on standard error, prefixed with the program's name: "fastpath: error: ...".
void print_error(std::string_view kind, std::string_view text);

/// Columns of the terminal; 80 where standard output is not one.
int terminal_width();

enum class Style { plain, good, bad, dim, bold };
/// `text` in the colours of a style where standard output is a terminal and NO_COLOR is not set; otherwise as it is.
std::string styled(std::string_view text, Style style);

/// One line of standard error that is rewritten while work goes on, cut where the terminal ends; silent where that is
/// no terminal, or one that cannot clear a line. It is gone when the object is, and before print_error() prints.
class StatusLine {
 public:
  StatusLine() = default;
  ~StatusLine() { clear(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;
  /// Whether someone who looks would miss show() now: not where nothing is shown, nor soon after the last one.
  bool due() const;
  void show(std::string_view text);
  void clear();

 private:
  double last_ = 0;  ///< When it was shown.
};

/// How much of work is done, as a StatusLine; not for work that is short.
class Progress {
 public:
  Progress(std::string what, std::size_t total);
  void step();

 private:
  StatusLine line_;
  std::string what_;
  std::size_t total_;
  std::size_t done_ = 0;
  double last_ = 0;
};

}  // namespace fastpath::cli
