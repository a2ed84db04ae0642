#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "fastpath/export.hpp"

namespace fastpath {

/// What kind of fault an Error reports, and what the caller should do about it.
enum class ErrorCode {
  invalid_argument,  ///< A value the caller passed is wrong: fix the call.
  not_found,         ///< A named file, model, plugin, tensor or device does not exist: fix the name or install it.
  io,                ///< The operating system refused to read or write: check permissions and space.
  bad_file,          ///< A file's content is malformed or inconsistent: repair or replace the file.
  unsupported,       ///< The request is valid but this build cannot do it: use another option.
  unavailable,       ///< Something that could serve the request is not usable now: see the reasons in the text.
  strict_violation,  ///< Strict mode: a module that has a fast path would run, or ran, its reference.
  out_of_memory,     ///< Memory of the host or of a device is exhausted: use a smaller input.
  device_lost,       ///< The device no longer answers: restart the process.
  kernel_failed,     ///< A kernel returned an error that has no fallback: use another plugin, report it.
  numerics,          ///< A result is not finite, or two paths disagree: check the input, report the kernel.
  internal,          ///< A bug of fastpath: report it.
};

/// The stable name of a code, e.g. "invalid_argument".
FASTPATH_EXPORT std::string_view to_string(ErrorCode code) noexcept;

/// Base of every exception that fastpath throws. The text names the thing, what was found and what was expected.
class FASTPATH_EXPORT Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& text);
  ~Error() override;
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace fastpath
