#pragma once

#include <functional>
#include <string>

#include "fastpath/export.hpp"
#include "fastpath/reason.hpp"

namespace fastpath {

/// Told once per process, when the first float32 evaluation with a fast path is about to run.
struct FastPathPrecisionWarning {
  std::string text;
};

/// What is done with warnings. A handler may collect, ignore, or throw; what it throws reaches the caller of the
/// evaluation.
using WarningHandler = std::function<void(const FastPathPrecisionWarning&)>;

/// Replaces the handler and returns the previous one; an empty function restores the default, which writes one line to
/// stderr: the only place where the library prints. Thread-safe.
FASTPATH_EXPORT WarningHandler set_warning_handler(WarningHandler handler);

/// Told once per kernel, op configuration, device and dtype, when a kernel that ran gave way to the reference:
/// `fallback` when it failed, `wrong_result` when it disagreed with the reference in an evaluation that was compared.
struct FastPathKernelWarning {
  ReasonCode code = ReasonCode::fallback;
  std::string text;
};
using KernelWarningHandler = std::function<void(const FastPathKernelWarning&)>;

/// As set_warning_handler, for FastPathKernelWarning. The handler is called during the evaluation, without a lock held;
/// what it throws reaches the caller of the evaluation.
FASTPATH_EXPORT KernelWarningHandler set_kernel_warning_handler(KernelWarningHandler handler);

/// Issues FastPathPrecisionWarning if this process has not done so yet. The flag is set before the handler runs, so of
/// several threads exactly one warns, and a handler that throws is not called again. True if this call warned.
FASTPATH_EXPORT bool warn_float32_once();

/// Forgets that the warning was issued; for tests.
FASTPATH_EXPORT void reset_float32_warning();

}  // namespace fastpath
