#pragma once

#include <filesystem>
#include <optional>

#include "scan.hpp"

/// Which file is behind an address of this process.
namespace fastpath::plugin {

/// A file that stays open, so that its inode cannot be given to another one meanwhile.
class OpenFile {
 public:
  explicit OpenFile(const std::filesystem::path& path) noexcept;
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int descriptor() const noexcept { return descriptor_; }
  /// Nothing if it could not be opened.
  std::optional<FileIdentity> identity() const;

 private:
  int descriptor_;
};

enum class Mapping { same, other, unknown };

/// Whether the memory at `address` is mapped from the file that is open as `descriptor`. Unknown where the system does
/// not tell (no /proc). Compares what the kernel says of both mappings: on some file systems that differs from stat().
Mapping mapped_from(const void* address, int descriptor);

}  // namespace fastpath::plugin
