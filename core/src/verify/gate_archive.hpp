#pragma once

#include <filesystem>
#include <mutex>
#include <set>
#include <string>

namespace fastpath::verify {

/// Which kernels have passed the gate in earlier processes: a file for each environment (library, drivers, CPU, host),
/// below `gate` of a cache directory, of a line for each that passed. Failures are not kept: whoever was wrong once is
/// tried again in every process. Whatever is wrong with the file costs the time of trying anew and nothing else; one
/// that somebody else could have written is not believed. Thread-safe; other processes may add to it at the same time.
class GateArchive {
 public:
  /// @param directory  Of the cache; created when there is something to keep. Empty: nothing is read or written.
  explicit GateArchive(std::filesystem::path directory) : directory_(std::move(directory)) {}
  bool has_passed(const std::string& key);
  void keep(const std::string& key);
  /// The file; empty if there is no directory.
  std::filesystem::path file();

 private:
  void load();  // with the lock

  const std::filesystem::path directory_;
  std::mutex mutex_;
  bool loaded_ = false;
  std::filesystem::path file_;
  std::set<std::string> passed_;  // SHA-256 of keys
};

}  // namespace fastpath::verify
