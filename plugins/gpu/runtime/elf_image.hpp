#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace fastpath_gpu {

/// What compiled code says of itself: both vendors put it into 64-bit ELF files. Nothing outside the image is read; an
/// image that is malformed has fewer parts.
class ElfImage {
 public:
  struct Function {
    std::string_view name;
    std::uint64_t bytes;
  };
  /// The image must outlive this object.
  explicit ElfImage(std::span<const std::uint8_t> image);

  bool valid() const noexcept { return valid_; }
  const std::vector<Function>& functions() const noexcept { return functions_; }
  /// Bytes of a function's code; -1 if there is none of this name.
  std::int64_t code_bytes(std::string_view function) const noexcept;
  /// Content of the first note of this type and owner; empty if there is none.
  std::span<const std::uint8_t> note(std::string_view owner, std::uint32_t type) const noexcept;

 private:
  struct Section {
    std::uint32_t type = 0, link = 0;
    std::span<const std::uint8_t> content;
  };
  template <class T>
  bool read(std::uint64_t offset, T& value) const noexcept;
  std::span<const std::uint8_t> slice(std::uint64_t offset, std::uint64_t size) const noexcept;
  void read_functions(const Section& symbols, const Section& names);

  std::span<const std::uint8_t> image_;
  bool valid_ = false;
  std::vector<Section> sections_;
  std::vector<Function> functions_;
};

}  // namespace fastpath_gpu
