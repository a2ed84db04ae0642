#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace fastpath::io {

/// The content of a regular file, mapped read-only for as long as the object lives.
/// Truncating the file meanwhile is a fault of whoever does it, and ends the process with SIGBUS on access; a file that
/// is replaced by a rename, as ReplacingFile does, is safe.
class MappedFile {
 public:
  /// @throws Error(not_found) or Error(io), naming the path.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const noexcept { return {static_cast<const std::byte*>(data_), size_}; }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// What a path names; "there is nothing" is an answer. @throws Error(io) if the system does not say, naming the path.
std::filesystem::file_type type_of(const std::filesystem::path& path);

/// Everything a file, pipe or device gives until its end. A device may have none: what is longer than a quarter of this
/// machine's memory is refused, because what is made of a text takes a few times its size.
/// @throws Error(not_found), Error(io) or Error(out_of_memory), naming the path.
std::string read_text(const std::filesystem::path& path);

/// The content of a regular file that is known to be small.
/// @throws Error(not_found) or Error(io), and Error(bad_file) if it has more than `most` bytes, naming the path.
std::string read_small_file(const std::filesystem::path& path, std::size_t most);

/// Writes a file that appears under its name whole or not at all: the bytes go to a temporary file in the same
/// directory, which commit() flushes to the disk and renames. Without commit() nothing is left behind.
/// A path that names a pipe or a device is written directly; a symbolic link stays and its target is replaced, or made.
class ReplacingFile {
 public:
  /// @throws Error(io) naming the path.
  explicit ReplacingFile(const std::filesystem::path& path);
  ~ReplacingFile();
  ReplacingFile(const ReplacingFile&) = delete;
  ReplacingFile& operator=(const ReplacingFile&) = delete;

  /// @throws Error(io) naming the path; the temporary file goes with the object.
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text) { write(std::as_bytes(std::span<const char>(text.data(), text.size()))); }
  void commit();

 private:
  [[noreturn]] void fail(const char* action) const;
  void discard() noexcept;

  std::filesystem::path path_;       // as the caller wrote it, for messages
  std::filesystem::path target_;     // with a final symbolic link resolved
  std::filesystem::path temporary_;  // empty where the target is written directly
  int descriptor_ = -1;
};

}  // namespace fastpath::io
