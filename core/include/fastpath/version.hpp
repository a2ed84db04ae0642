#pragma once

#include <cstdint>
#include <string>

#include "fastpath/export.hpp"

namespace fastpath {

/// What a report of a fault needs to say about the library.
struct BuildInfo {
  std::string version;          ///< "0.1.0"
  std::string compiler;         ///< "GCC 12.2.0"
  std::string build_type;       ///< "Release"
  std::string sanitizer;        ///< "address", "thread", or empty.
  std::string system;           ///< "Linux x86_64"
  std::uint32_t abi_major = 0;  ///< Of the plugin ABI that the library speaks.
  std::uint32_t abi_minor = 0;
};

/// Facts about the library that runs, which a host need not have been built with. Thread-safe.
FASTPATH_EXPORT const BuildInfo& build_info();

}  // namespace fastpath
