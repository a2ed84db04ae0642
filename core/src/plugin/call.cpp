#include "call.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace fastpath::plugin {
namespace {

constexpr std::size_t kMaxText = 4096;

}  // namespace

std::string status_text(std::int32_t status) {
  switch (status) {
    case FP_OK:
      return "ok";
    case FP_E_UNSUPPORTED:
      return "unsupported";
    case FP_E_INVALID_ARGUMENT:
      return "invalid_argument";
    case FP_E_INCOMPATIBLE:
      return "incompatible";
    case FP_E_UNAVAILABLE:
      return "unavailable";
    case FP_E_OUT_OF_MEMORY:
      return "out_of_memory";
    case FP_E_BUSY:
      return "busy";
    case FP_E_DEVICE_LOST:
      return "device_lost";
    case FP_E_NUMERICS:
      return "numerics";
    case FP_E_INTERNAL:
      return "internal";
    default:
      return fmt::format("status {}", status);
  }
}

ErrorCode error_code(std::int32_t status, ErrorCode otherwise) noexcept {
  switch (status) {
    case FP_E_OUT_OF_MEMORY:
      return ErrorCode::out_of_memory;
    case FP_E_DEVICE_LOST:
      return ErrorCode::device_lost;
    default:
      return otherwise;
  }
}

bool CallStatus::recoverable() const noexcept {
  return status == FP_E_UNSUPPORTED || status == FP_E_OUT_OF_MEMORY || status == FP_E_BUSY;
}

void ErrorSink::add(std::string_view text) noexcept {
  try {
    if (text.empty()) return;
    (first_.empty() ? first_ : last_) = clean_text(text.substr(0, kMaxText), kMaxText);
  } catch (...) {  // without memory for its text the status alone has to do
  }
}

void ErrorSink::add_exception(const char* what) noexcept {
  try {
    add(fmt::format("threw an exception: {}", what));
  } catch (...) {
    add("threw an exception");
  }
}

std::string ErrorSink::text() const { return last_.empty() ? first_ : first_ + "; " + last_; }

void ErrorSink::report(void* context, std::int32_t, const char* text, std::uint64_t size) {
  if (context == nullptr || text == nullptr) return;
  static_cast<ErrorSink*>(context)->add({text, static_cast<std::size_t>(std::min<std::uint64_t>(size, kMaxText))});
}

CallStatus completed(std::int32_t status, const ErrorSink& sink) {
  if (status == FP_OK) return {};
  const bool known = status < FP_OK && status >= FP_E_INTERNAL;
  CallStatus result{known ? status : FP_E_INTERNAL, sink.text()};
  if (!known) {
    result.text = result.text.empty() ? fmt::format("returned unknown {}", status_text(status))
                                      : fmt::format("returned unknown {}: {}", status_text(status), result.text);
  } else if (result.text.empty()) {
    result.text = status_text(status);
  }
  return result;
}

}  // namespace fastpath::plugin
