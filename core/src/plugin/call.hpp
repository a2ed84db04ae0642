#pragma once

#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <string_view>

#include "abi.hpp"
#include "fastpath/error.hpp"
#include "fastpath/plugin.h"
#include "plugin.hpp"

namespace fastpath::plugin {

/// "out_of_memory" for FP_E_OUT_OF_MEMORY; "status 17" for what is not in the list.
std::string status_text(std::int32_t status);
/// What a failed call of a plugin means to the caller of this library. `otherwise` is for statuses without a code of
/// their own.
ErrorCode error_code(std::int32_t status, ErrorCode otherwise) noexcept;

/// The error sink of one call at a time: keeps the first and the last text that is reported, bounded.
class ErrorSink {
 public:
  ErrorSink() noexcept : sink_{FP_SIZE_ERROR_SINK, 0, this, &ErrorSink::report} {}
  ErrorSink(const ErrorSink&) = delete;
  ErrorSink& operator=(const ErrorSink&) = delete;
  const fp_error_sink* get() const noexcept { return &sink_; }
  void clear() noexcept {
    first_.clear();
    last_.clear();
  }
  void add(std::string_view text) noexcept;
  void add_exception(const char* what) noexcept;
  /// "first; last", or empty.
  std::string text() const;

 private:
  static void report(void* context, std::int32_t status, const char* text, std::uint64_t size);

  fp_error_sink sink_;
  std::string first_, last_;
};

/// Completes a status that came over the ABI: one outside the list becomes internal, and a failure without a text gets
/// its name as text.
CallStatus completed(std::int32_t status, const ErrorSink& sink);

/// Calls a function of a plugin. Nothing that it throws comes through.
template <class Function>
CallStatus guarded(ErrorSink& sink, Function&& function) {
  sink.clear();
  std::int32_t status = FP_E_INTERNAL;
  try {
    status = function();
  } catch (const std::exception& error) {
    sink.add_exception(error.what());
  } catch (...) {
    sink.add_exception("not a std::exception");
  }
  return completed(status, sink);
}

/// The same for a function that returns nothing and cannot fail by contract.
template <class Function>
void guarded_void(Function&& function) noexcept {
  try {
    function();
  } catch (...) {  // what a plugin throws while it releases something has no one left to be told to
  }
}

/// Copies a struct that starts with its size: as many bytes as both sides know, the rest zero.
/// @return false if the size is below `required` or beyond any struct of this ABI; `out` is then zero.
template <class T>
bool copy_struct(const void* source, std::uint32_t required, T& out) noexcept {
  out = T{};
  if (source == nullptr) return false;
  std::uint32_t stated = 0;
  std::memcpy(&stated, source, sizeof stated);
  constexpr std::uint32_t kMaxStruct = 1u << 16;
  if (stated < required || stated > kMaxStruct) return false;
  std::memcpy(static_cast<void*>(&out), source, stated < sizeof out ? stated : sizeof out);
  return true;
}

}  // namespace fastpath::plugin
