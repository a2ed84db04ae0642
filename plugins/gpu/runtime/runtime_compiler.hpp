#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shared_library.hpp"

namespace fastpath_gpu {

/// NVRTC or hipRTC, which have the same functions under two names. Opened while the program runs. Thread-safe.
class RuntimeCompiler {
 public:
  /// What differs between the two.
  struct Vendor {
    const char* name;                ///< "NVRTC".
    const char* prefix;              ///< "nvrtc", of every function.
    const char* code;                ///< "CUBIN" or "Code": nvrtcGetCUBIN, hiprtcGetCode.
    const char* needed;              ///< The oldest version that has all functions.
    std::vector<std::string> names;  ///< Of the library, in the order in which they are tried.
  };
  struct Output {
    std::vector<std::uint8_t> code;
    std::string log;
  };

  /// @throws sdk::Unavailable without the library.
  explicit RuntimeCompiler(const Vendor& vendor);

  /// "NVRTC 12.4".
  const std::string& version() const noexcept { return version_; }
  /// The name by which the library was found.
  const std::string& library() const noexcept { return library_.name(); }
  /// @throws sdk::Refused with the compiler's log if the source does not compile or an option is not known to it.
  Output compile(const std::string& source, const std::vector<std::string>& options) const;

 private:
  [[noreturn]] void fail(const char* doing, int status) const;

  SharedLibrary library_;
  std::string name_, version_;
  int major_ = 0, minor_ = 0;

  int (*version_of_)(int*, int*) = nullptr;
  const char* (*error_text_)(int) = nullptr;
  int (*create_)(void**, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  int (*destroy_)(void**) = nullptr;
  int (*compile_)(void*, int, const char* const*) = nullptr;
  int (*log_size_)(void*, std::size_t*) = nullptr;
  int (*log_)(void*, char*) = nullptr;
  int (*code_size_)(void*, std::size_t*) = nullptr;
  int (*code_)(void*, char*) = nullptr;
};

}  // namespace fastpath_gpu
