#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fastpath/registry.hpp"
#include "scan.hpp"

/// What trying a plugin found, and its text: what the helper program answers and what the cache keeps. A text is lines
/// of fields between tabs; a field has no tab, no line end and no backslash but as an escape.
namespace fastpath::plugin {

struct ProbeRecord {
  PluginState state = PluginState::rejected;
  Reason reason;
  /// Where it ended: load to kernels as LoadResult says, or probe if the plugin brought the helper process down.
  Stage stage = Stage::probe;
  std::vector<DeviceInfo> devices;
  std::vector<KernelInfo> kernels;
  std::vector<std::string> notes;  ///< What is worth telling though it changes nothing, such as lines it printed.
};

/// One line each, without a line that says where the record ends.
std::string write_record(const ProbeRecord& record);

/// A line of fields.
std::string write_fields(const std::vector<std::string_view>& fields);

/// Splits lines into fields; keeps its memory from line to line, since a cache has thousands of them.
class FieldReader {
 public:
  /// @return False if an escape is malformed.
  bool read(std::string_view line);
  /// Valid until the next read(), and as long as the line is.
  std::size_t size() const noexcept { return fields_.size(); }
  std::string_view operator[](std::size_t i) const noexcept { return fields_[i]; }
  std::string text(std::size_t i) const { return std::string(fields_[i]); }

 private:
  std::vector<std::string_view> fields_;
  std::deque<std::string> unescaped_;
};
/// Reads the lines of a record one by one.
class RecordReader {
 public:
  /// @return  False if the line is none of a record, malformed, or one too many.
  bool add(std::string_view line);
  /// The record, or nothing if a part that must be there did not come. The reader then starts anew.
  std::optional<ProbeRecord> finish();

 private:
  ProbeRecord record_;
  FieldReader fields_;
  bool has_state_ = false, has_stage_ = false, has_reason_ = false;
};

/// Which file the host examined, as an argument of the helper program: what it tries must be the same one.
std::string write_identity(const FileIdentity& identity);

/// What the helper program says over its answer descriptor.
struct ProbeAnswer {
  std::string core;                  ///< Version of the library in the helper.
  std::string token;                 ///< What the host gave it, at its start and its end: the plugin does not know it.
  std::vector<Stage> begun;          ///< The steps that began, in the order in which they did.
  std::vector<std::string> effects;  ///< What the plugin changed in the process.
  std::uint64_t peak_bytes = 0;      ///< The most memory that was resident.
  std::optional<ProbeRecord> record;
  bool complete = false;  ///< Its last line came.
};

/// Far above any answer; more is garbage.
inline constexpr std::size_t kMaxAnswer = std::size_t{4} << 20;

/// Exit statuses of the helper program that mean something to the host.
inline constexpr int kAnswerLost = 113;   ///< Its answer descriptor was closed or replaced.
inline constexpr int kProbeFailed = 114;  ///< An error of its own, told on standard error.

std::string write_answer_start(std::string_view core, std::string_view token);
std::string write_answer_step(Stage stage);
/// Everything after the steps.
std::string write_answer_end(const ProbeAnswer& answer);

/// Reads as much as came. Accepts any bytes.
/// @return Nothing if it is no answer, or one of another version; `why` then says what is wrong with it.
std::optional<ProbeAnswer> read_answer(std::string_view text, std::string& why);

/// A decimal number, all of the text. Nothing for anything else.
template <class T>
std::optional<T> read_number(std::string_view text);
extern template std::optional<std::uint64_t> read_number(std::string_view text);
extern template std::optional<std::int64_t> read_number(std::string_view text);

/// The code of this name. Nothing for a name that is none.
std::optional<ReasonCode> parse_reason_code(std::string_view name) noexcept;
std::optional<DeviceKind> parse_device_kind(std::string_view name) noexcept;

}  // namespace fastpath::plugin
