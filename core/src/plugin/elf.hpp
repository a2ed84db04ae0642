#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fastpath/reason.hpp"
#include "fastpath/types.hpp"

/// What a shared object says about itself, read without mapping its code. The dynamic linker trusts its input: a file
/// that is shorter than its own headers say kills the process (SIGBUS) while it is being loaded. So nothing reaches the
/// linker that this reader has not accepted.
namespace fastpath::plugin {

/// Bytes that may be read in any order; every read is checked.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::uint64_t size() const noexcept = 0;
  /// Fills `into` from `offset`, or returns false and leaves its content undefined.
  virtual bool read(std::uint64_t offset, std::span<std::byte> into) const noexcept = 0;
};

/// Memory of the caller.
class SpanSource final : public ByteSource {
 public:
  explicit SpanSource(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
  std::uint64_t size() const noexcept override { return bytes_.size(); }
  bool read(std::uint64_t offset, std::span<std::byte> into) const noexcept override;

 private:
  std::span<const std::byte> bytes_;
};

/// An open file, read by position: a file that shrinks meanwhile is a failed read, not a signal.
class FileSource final : public ByteSource {
 public:
  /// @param descriptor  Stays the caller's and must outlive this object.
  FileSource(int descriptor, std::uint64_t size) noexcept : descriptor_(descriptor), size_(size) {}
  std::uint64_t size() const noexcept override { return size_; }
  bool read(std::uint64_t offset, std::span<std::byte> into) const noexcept override;

 private:
  int descriptor_;
  std::uint64_t size_;
};

/// The record of FASTPATH_PLUGIN_METADATA.
struct Metadata {
  std::uint32_t abi_version = 0, abi_min = 0, abi_max = 0, sdk_version = 0;
  std::string id, vendor, version, build_tag;
  std::vector<DeviceKind> device_kinds;  ///< Without the kinds that this host does not know.
};

struct ObjectReport {
  /// `usable`, or the first thing that is wrong: not_elf, truncated, wrong_class, wrong_machine, no_query_symbol,
  /// no_metadata, bad_metadata, abi_incompatible.
  Reason reason{ReasonCode::usable, ""};
  /// Whatever of the record could be read; also filled where only its ABI range does not fit.
  std::optional<Metadata> metadata;
};

/// Examines an object file for the CPU this host runs on. Accepts any bytes; memory use is bounded.
ObjectReport inspect_object(const ByteSource& file);

/// True if `id` is 1 to 63 letters, digits, '_', '-' and '.', and does not start with '.' or '-'.
bool is_plugin_id(std::string_view id) noexcept;

}  // namespace fastpath::plugin
