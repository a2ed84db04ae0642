#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fastpath/plugin.h"

namespace fastpath::plugin {

/// The range of ABI versions this host speaks.
inline constexpr std::uint32_t kHostAbiMin = FP_ABI_MAJOR << 16;
inline constexpr std::uint32_t kHostAbiMax = FP_ABI_VERSION;

/// "1.0".
std::string abi_text(std::uint32_t version);
/// "abi 2.0 to 2.1, host speaks 1.0", or nothing if the ranges meet.
std::string abi_conflict(std::uint32_t abi_version, std::uint32_t abi_min, std::uint32_t abi_max);

/// Text of a plugin as it may be shown: valid UTF-8 without control characters, at most `limit` bytes.
std::string clean_text(std::string_view text, std::size_t limit);

}  // namespace fastpath::plugin
