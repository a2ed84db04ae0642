#pragma once

#include <filesystem>
#include <string>

#include "fastpath/model.hpp"

namespace fastpath::training {

/// The folder of a run, which no other process trains in while the object lives.
class RunFolder {
 public:
  /// Makes the folder if need be, and removes what a process that was killed left half written.
  /// @throws Error(invalid_argument) if another process is training in it; Error(io).
  explicit RunFolder(std::filesystem::path path);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path checkpoint() const { return path_ / "checkpoint.safetensors"; }
  std::filesystem::path model() const { return path_ / "model"; }
  std::filesystem::path start() const { return path_ / "start"; }  ///< The starting model, of runs that have one.

  /// Replaces a file of the folder. @throws Error(io)
  void write(const char* name, const std::string& text) const;
  /// Appends a line. @throws Error(io)
  void append(const char* name, const std::string& line) const;
  /// Replaces a folder of this one, model() or start(). @throws Error(io), the one that was there stays.
  void write_model(const std::filesystem::path& folder, const Model& model) const;
  void remove_model(const std::filesystem::path& folder) const;

 private:
  std::filesystem::path path_;
  int lock_ = -1;
};

}  // namespace fastpath::training
