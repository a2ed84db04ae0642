#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fastpath/export.hpp"

namespace fastpath {

/// Element types of tensors. `boolean` and `uint8` exist for files; nothing is computed with them.
enum class DType : std::int32_t { float32, float64, int32, int64, boolean, uint8 };

/// Bytes of one element.
FASTPATH_EXPORT std::size_t size_of(DType dtype) noexcept;
/// "float32", "float64", "int32", "int64", "bool", "uint8".
FASTPATH_EXPORT std::string_view to_string(DType dtype) noexcept;
/// The dtype of a name as to_string writes it.
/// @throws Error(invalid_argument) naming the text and the accepted names.
FASTPATH_EXPORT DType parse_dtype(std::string_view text);
/// True for float32 and float64.
constexpr bool is_floating(DType dtype) noexcept { return dtype == DType::float32 || dtype == DType::float64; }

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::float64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::int32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::int64;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::boolean;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::uint8;
};

/// Kinds of devices; the values are DLPack's device codes.
enum class DeviceKind : std::int32_t { cpu = 1, cuda = 2, opencl = 4, hip = 10, extension = 12 };

/// The stable name of a kind: "cpu", "cuda", "opencl", "hip", "ext".
FASTPATH_EXPORT std::string_view to_string(DeviceKind kind) noexcept;

/// A device as users name it: `cpu`, `cuda:0`, `hip:0`, `opencl:0`, `ext:0` (a device class that a plugin defines).
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  std::int32_t index = 0;

  static constexpr Device cpu() noexcept { return {}; }
  constexpr bool is_cpu() const noexcept { return kind == DeviceKind::cpu; }
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

/// "cpu" for the CPU, otherwise kind and index: "cuda:0".
FASTPATH_EXPORT std::string to_string(const Device& device);
/// The device of a name; a kind without an index means index 0, and `cpu` takes no index but 0.
/// @throws Error(invalid_argument) naming the text and the accepted forms.
FASTPATH_EXPORT Device parse_device(std::string_view text);

}  // namespace fastpath
