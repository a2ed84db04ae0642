#pragma once

#include <cstdint>
#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "fastpath/plugin.h"
#include "fastpath/sdk/abi.hpp"
#include "fastpath/sdk/irreps.hpp"

namespace fastpath::sdk {

/// What plugin code throws to end a call with a status of its own; the text goes to the host's error sink and says what
/// was found and what was expected.
class Failure : public std::runtime_error {
 public:
  Failure(std::int32_t status, const std::string& text) : std::runtime_error(text), status_(status) {}
  std::int32_t status() const noexcept { return status_; }

 private:
  std::int32_t status_;
};

/// This request cannot be served; the host runs its reference.
class Refused : public Failure {
 public:
  explicit Refused(const std::string& text) : Failure(FP_E_UNSUPPORTED, text) {}
};
/// The host broke the contract.
class InvalidArgument : public Failure {
 public:
  explicit InvalidArgument(const std::string& text) : Failure(FP_E_INVALID_ARGUMENT, text) {}
};
/// No driver or no device: the plugin is idle.
class Unavailable : public Failure {
 public:
  explicit Unavailable(const std::string& text) : Failure(FP_E_UNAVAILABLE, text) {}
};

/// Hands a text to a sink; a sink that is null or has no function swallows it.
inline void report(const fp_error_sink* errors, std::int32_t status, std::string_view text) noexcept {
  const fp_error_sink sink = known(errors);
  if (sink.report != nullptr) sink.report(sink.context, status, text.data(), text.size());
}

/// Runs `body` and turns whatever it throws into a status and a text; no exception leaves it.
/// Failure: its status. std::bad_alloc: FP_E_OUT_OF_MEMORY. ConfigError: FP_E_INVALID_ARGUMENT. Others: FP_E_INTERNAL.
template <class Body>
std::int32_t guarded(const fp_error_sink* errors, Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return FP_OK;
  } catch (const Failure& error) {
    report(errors, error.status(), error.what());
    return error.status();
  } catch (const ConfigError& error) {
    report(errors, FP_E_INVALID_ARGUMENT, error.what());
    return FP_E_INVALID_ARGUMENT;
  } catch (const std::bad_alloc&) {
    report(errors, FP_E_OUT_OF_MEMORY, "host memory exhausted");
    return FP_E_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    report(errors, FP_E_INTERNAL, error.what());
  } catch (...) {
    report(errors, FP_E_INTERNAL, "an exception that is no std::exception");
  }
  return FP_E_INTERNAL;
}

}  // namespace fastpath::sdk
