#include "fastpath/warning.hpp"

#include <atomic>
#include <cstdio>
#include <mutex>
#include <utility>

#include "dispatch/context_impl.hpp"

namespace fastpath {
namespace {

std::atomic<bool> warned{false};

std::mutex& handler_mutex() {
  static std::mutex mutex;
  return mutex;
}

WarningHandler& current_handler() {
  static auto* handler = new WarningHandler();
  return *handler;
}

KernelWarningHandler& current_kernel_handler() {
  static auto* handler = new KernelWarningHandler();
  return *handler;
}

}  // namespace

KernelWarningHandler set_kernel_warning_handler(KernelWarningHandler handler) {
  const std::lock_guard lock(handler_mutex());
  return std::exchange(current_kernel_handler(), std::move(handler));
}

void warn_about_kernel(const FastPathKernelWarning& warning) {
  KernelWarningHandler handler;
  {
    const std::lock_guard lock(handler_mutex());
    handler = current_kernel_handler();
  }
  if (handler) {
    handler(warning);
  } else {
    std::fprintf(stderr, "fastpath: warning: %s\n", warning.text.c_str());
  }
}

WarningHandler set_warning_handler(WarningHandler handler) {
  const std::lock_guard lock(handler_mutex());
  return std::exchange(current_handler(), std::move(handler));
}

bool warn_float32_once() {
  if (warned.exchange(true)) return false;
  const FastPathPrecisionWarning warning{
      "float32 evaluation with fast kernels: energies and forces agree with the float32 reference to rounding "
      "(about 1e-6 relative), not bit for bit"};
  WarningHandler handler;
  {
    const std::lock_guard lock(handler_mutex());
    handler = current_handler();
  }
  if (handler) {
    handler(warning);
  } else {
    std::fprintf(stderr, "fastpath: warning: %s\n", warning.text.c_str());
  }
  return true;
}

void reset_float32_warning() { warned = false; }

}  // namespace fastpath
