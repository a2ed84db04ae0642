#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "probe_record.hpp"
#include "scan.hpp"

namespace fastpath::plugin {

/// Everything but the plugin's content that what a probe finds depends on: library and helper program, drivers, device
/// files, variables that hide devices or change what the linker finds, CPU and host. One "name=value" a line.
std::string probe_environment(const std::filesystem::path& probe_program);

/// Where the user's results are kept: FASTPATH_CACHE_DIR, else fastpath below XDG_CACHE_HOME, else ~/.cache/fastpath.
/// Empty if none of them is set to an absolute path, and in processes with elevated rights.
std::filesystem::path user_cache_directory();

/// What a file of the cache holds.
struct CacheContent {
  struct Memo {
    FileIdentity identity;
    Examination found;
  };
  struct Result {
    std::int64_t seconds = 0;  ///< Since 1970, when it was found.
    ProbeRecord record;
  };
  std::map<std::string, Memo, std::less<>> memos;      ///< By path.
  std::map<std::string, Result, std::less<>> results;  ///< By SHA-256.
};

std::string write_cache(std::string_view environment, const CacheContent& content);
/// Reads what write_cache() wrote. Accepts any bytes.
/// @param content  Empty. Stays so if the text is that of another environment; undefined on failure.
/// @return False, with `why` naming the line, if the text is no cache.
bool read_cache(std::string_view text, std::string_view environment, CacheContent& content, std::string& why);

/// What is known of plugins from earlier processes: a file for each environment, below `probe` of a cache directory. It
/// is read at first need and written as a whole by save(). Whatever is wrong with it costs time and nothing else. Not
/// thread-safe; other processes may do the same at the same time.
class ProbeCache final : public ExaminationMemo {
 public:
  /// @param directory    Of the cache; created when there is something to write. Empty: nothing is read or written.
  /// @param environment  As probe_environment() says; records of another one are not seen.
  ProbeCache(std::filesystem::path directory, std::string environment);

  const Examination* find(const std::filesystem::path& resolved, const FileIdentity& identity) override;
  void keep(const std::filesystem::path& resolved, const FileIdentity& identity, const Examination& found) override;

  /// What came of the plugin of this content, unless it is too old to count. Each is given away once.
  /// @param retry  As if nothing were known of what is quarantined.
  std::optional<ProbeRecord> take_result(std::string_view sha256, bool retry);
  /// Keeps it if it would come out the same next time: not what depends on other files than the plugin.
  void keep_result(std::string_view sha256, const ProbeRecord& record);

  /// Writes what is new, together with what other processes wrote meanwhile. Throws nothing but bad_alloc.
  void save();

  const std::filesystem::path& directory() const noexcept { return directory_; }
  /// The file of this environment.
  const std::filesystem::path& file() const noexcept { return file_; }
  /// `usable`, or cache_unusable with what went wrong so far.
  const Reason& reason() const noexcept { return reason_; }

 private:
  void load();
  void failed(std::string text);
  /// @return False with `why` if the file cannot be read, or is none of the cache. An absent file is empty content.
  bool read(CacheContent& content, std::string& why) const;
  void store(const std::string& text);
  void drop_old_files() const;

  const std::filesystem::path directory_;
  const std::string environment_;
  std::filesystem::path file_;
  Reason reason_{ReasonCode::usable, ""};
  bool loaded_ = false;
  CacheContent content_;  // what was read, and memos that are new
  CacheContent fresh_;    // what is new
};

}  // namespace fastpath::plugin
