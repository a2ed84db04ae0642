#pragma once

#include <memory>

#include "fastpath/export.hpp"
#include "fastpath/registry.hpp"

namespace fastpath {

struct ContextOptions {
  RegistryOptions registry = {};
  std::shared_ptr<PluginRegistry> shared_registry =
      nullptr;      ///< Used instead of `registry`: contexts may share their plugins.
  int threads = 0;  ///< CPU threads an evaluation may use; 0: all hardware threads.
  /// Before a kernel is used for a configuration, it must agree with the reference on inputs made by the core.
  bool gate = true;
  /// Compare every Nth evaluation with the reference; 0: the value of FASTPATH_SHADOW, or never.
  int shadow = 0;
};

/// What one host shares between its models: plugins, kernels that failed, the thread budget. Thread-safe.
/// There is one for the process; tests and hosts with several configurations make their own, which must outlive
/// the evaluations that use it.
class FASTPATH_EXPORT Context {
 public:
  explicit Context(ContextOptions options = {});
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// The context of the process, made on first use with default options.
  static Context& process();

  PluginRegistry& registry() noexcept;
  int threads() const noexcept;

  class Impl;
  Impl& impl() noexcept { return *impl_; }  ///< For the library itself.

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastpath
