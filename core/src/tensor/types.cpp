#include "fastpath/types.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <utility>

#include "fastpath/error.hpp"

namespace fastpath {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  std::size_t size;
};
constexpr std::array<DTypeRow, 6> kDTypes{{{DType::float32, "float32", 4},
                                           {DType::float64, "float64", 8},
                                           {DType::int32, "int32", 4},
                                           {DType::int64, "int64", 8},
                                           {DType::boolean, "bool", 1},
                                           {DType::uint8, "uint8", 1}}};

constexpr std::array<std::pair<DeviceKind, std::string_view>, 5> kKinds{{{DeviceKind::cpu, "cpu"},
                                                                         {DeviceKind::cuda, "cuda"},
                                                                         {DeviceKind::opencl, "opencl"},
                                                                         {DeviceKind::hip, "hip"},
                                                                         {DeviceKind::extension, "ext"}}};

}  // namespace

std::string_view to_string(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::not_found:
      return "not_found";
    case ErrorCode::io:
      return "io";
    case ErrorCode::bad_file:
      return "bad_file";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::strict_violation:
      return "strict_violation";
    case ErrorCode::out_of_memory:
      return "out_of_memory";
    case ErrorCode::device_lost:
      return "device_lost";
    case ErrorCode::kernel_failed:
      return "kernel_failed";
    case ErrorCode::numerics:
      return "numerics";
    case ErrorCode::internal:
      return "internal";
  }
  return "internal";
}

Error::Error(ErrorCode code, const std::string& text) : std::runtime_error(text), code_(code) {}
Error::~Error() = default;

std::size_t size_of(DType dtype) noexcept { return kDTypes[static_cast<std::size_t>(dtype)].size; }

std::string_view to_string(DType dtype) noexcept { return kDTypes[static_cast<std::size_t>(dtype)].name; }

DType parse_dtype(std::string_view text) {
  for (const DTypeRow& row : kDTypes) {
    if (row.name == text) return row.dtype;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("dtype '{}' is unknown; accepted: float32, float64, int32, int64, bool, uint8", text));
}

std::string_view to_string(DeviceKind kind) noexcept {
  for (const auto& [value, name] : kKinds) {
    if (value == kind) return name;
  }
  return "unknown";
}

std::string to_string(const Device& device) {
  if (device.is_cpu()) return "cpu";
  return fmt::format("{}:{}", to_string(device.kind), device.index);
}

Device parse_device(std::string_view text) {
  const auto fail = [&]() -> Device {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("device '{}' is unknown; accepted: cpu, cuda:N, hip:N, opencl:N, ext:N", text));
  };
  const std::size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  Device device;
  bool known = false;
  for (const auto& [kind, kind_name] : kKinds) {
    if (kind_name == name) {
      device.kind = kind;
      known = true;
    }
  }
  if (!known) return fail();
  if (colon != std::string_view::npos) {
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), device.index);
    if (digits.empty() || status != std::errc{} || end != digits.data() + digits.size() || device.index < 0)
      return fail();
  }
  if (device.is_cpu() && device.index != 0) return fail();
  return device;
}

}  // namespace fastpath
