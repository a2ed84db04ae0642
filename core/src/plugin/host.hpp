#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "fastpath/plugin.h"

/// What the host offers to plugins: one table for the life of the process, because a loaded library has one state for
/// the life of the process too, whichever registry asked for it.
namespace fastpath::plugin {

/// The table that is handed to every query function.
const fp_host& host_table() noexcept;

/// Receives what plugins log; called from any thread. Nothing by default: the library does not print.
using LogSink = std::function<void(std::int32_t level, std::string_view text)>;
void set_log_sink(LogSink sink);

/// CPU threads that plugins may use when a call says nothing else. At least 1; 0 means the hardware's threads.
void set_thread_budget(std::int32_t threads) noexcept;
std::int32_t thread_budget() noexcept;

/// A configuration value that plugins may look up. A value once handed out stays valid; later values are seen by later
/// lookups. @param value  Nothing removes the key.
void set_configuration(std::string_view key, std::optional<std::string> value);

/// How often this process is the child of a fork, counted from the first time it is asked; cheap.
std::uint64_t fork_generation() noexcept;

/// Keeps warnings and errors that plugins log from this thread while it lives: the query function has no error sink,
/// so its log is the only place for its reasons.
class LogCapture {
 public:
  LogCapture();
  ~LogCapture();
  LogCapture(const LogCapture&) = delete;
  LogCapture& operator=(const LogCapture&) = delete;
  const std::string& text() const noexcept { return text_; }
  void add(std::int32_t level, std::string_view text);

 private:
  LogCapture* outer_;
  std::string text_;
};

}  // namespace fastpath::plugin
