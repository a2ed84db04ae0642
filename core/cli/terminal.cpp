#include "terminal.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
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

/// Whether a terminal understands more than text.
bool is_capable() {
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && std::strcmp(terminal, "dumb") != 0;
}

bool wants_colour() {
  const char* no_color = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) == 1 && (no_color == nullptr || *no_color == '\0') && is_capable();
}

bool wants_status() {
  static const bool wanted = isatty(STDERR_FILENO) == 1 && is_capable();
  return wanted;
}

/// A StatusLine is on the screen.
std::atomic<bool> status_shown{false};

void clear_status() {
  if (status_shown.exchange(false)) std::fputs("\r\x1b[K", stderr);
}

/// The beginning of a text, of so many characters.
std::string_view cut(std::string_view text, std::size_t most) {
  std::size_t end = 0;
  for (std::size_t count = 0; end < text.size() && count < most; ++count) {
    end += std::max<std::size_t>(printable_length(text.substr(end)), 1);
  }
  return text.substr(0, end);
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
  clear_status();
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

bool StatusLine::due() const {
  constexpr double kSecondsBetween = 0.1;
  return wants_status() && now() - last_ >= kSecondsBetween;
}

void StatusLine::show(std::string_view text) {
  if (!wants_status()) return;
  last_ = now();
  winsize size{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  // A text that reaches the last column may put the cursor into the next line.
  const std::string line = one_line(text);
  status_shown = true;
  fmt::print(stderr, "\r\x1b[K{}", cut(line, known ? size.ws_col - 1u : 79u));
  std::fflush(stderr);
}

void StatusLine::clear() { clear_status(); }

Progress::Progress(std::string what, std::size_t total) : what_(std::move(what)), total_(total), last_(now()) {}

void Progress::step() {
  ++done_;
  constexpr double kSecondsBetween = 0.5;
  if (now() - last_ < kSecondsBetween) return;
  last_ = now();
  line_.show(fmt::format("{} {}/{}", what_, done_, total_));
}

}  // namespace fastpath::cli
