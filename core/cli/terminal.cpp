#include "terminal.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fastpath/error.hpp"

namespace fastpath::cli {

namespace {

[[noreturn]] void output_failed(int cause) {
  if (cause == EPIPE) throw BrokenPipe{};
  throw Error(ErrorCode::io, fmt::format("standard output: cannot write: {}", std::strerror(cause)));
}

/// Bytes of the character at the beginning of a text; 0 if it is a control character or not UTF-8.
std::size_t printable_length(std::string_view text) {
  const auto byte = [&text](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = byte(0);
  if (first < 0x80) return first >= 0x20 && first != 0x7f ? 1 : 0;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0u) != 0x80) return 0;
  }
  // Longer than it need be, a surrogate, or beyond U+10FFFF.
  if ((first == 0xe0 && byte(1) < 0xa0) || (first == 0xed && byte(1) >= 0xa0) || (first == 0xf0 && byte(1) < 0x90) ||
      (first == 0xf4 && byte(1) >= 0x90)) {
    return 0;
  }
  // U+0080 to U+009F are control characters too.
  return first == 0xc2 && byte(1) < 0xa0 ? 0 : length;
}

bool wants_colour() {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  return isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0') && terminal != nullptr &&
         std::strcmp(terminal, "dumb") != 0;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

void print(std::string_view text) {
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) output_failed(errno);
}

void finish_output() {
  errno = 0;
  if (std::fflush(stdout) != 0) output_failed(errno);
}

std::string one_line(std::string_view text) {
  std::string line;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = printable_length(text.substr(i));
    if (length > 0) {
      line += text.substr(i, length);
    } else {
      line += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
    }
    i += std::max<std::size_t>(length, 1);
  }
  return line;
}

void print_error(std::string_view kind, std::string_view text) {
  const std::string line = fmt::format("fastpath: {}: {}\n", kind, one_line(text));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int terminal_width() {
  constexpr int kDefault = 80;
  winsize size{};
  if (isatty(STDOUT_FILENO) != 1 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kDefault;
  return std::max(kDefault, static_cast<int>(size.ws_col));
}

std::string styled(std::string_view text, Style style) {
  static const bool colour = wants_colour();
  if (!colour || text.empty()) return std::string(text);
  switch (style) {
    case Style::plain:
      return std::string(text);
    case Style::good:
      return fmt::format("\x1b[32m{}\x1b[0m", text);
    case Style::bad:
      return fmt::format("\x1b[31m{}\x1b[0m", text);
    case Style::dim:
      return fmt::format("\x1b[2m{}\x1b[0m", text);
    case Style::bold:
      return fmt::format("\x1b[1m{}\x1b[0m", text);
  }
  return std::string(text);
}

Progress::Progress(std::string what, std::size_t total) : what_(std::move(what)), total_(total), last_(now()) {}

Progress::~Progress() {
  if (shown_) std::fputs("\r\x1b[K", stderr);
}

void Progress::step() {
  ++done_;
  constexpr double kSecondsBetween = 0.5;
  if (isatty(STDERR_FILENO) != 1 || now() - last_ < kSecondsBetween) return;
  last_ = now();
  shown_ = true;
  fmt::print(stderr, "\r\x1b[K{} {}/{}", what_, done_, total_);
  std::fflush(stderr);
}

}  // namespace fastpath::cli
