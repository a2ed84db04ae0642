#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "fastpath/export.hpp"
#include "fastpath/registry.hpp"

namespace fastpath {

class MeasurementStore;
class SelectionLock;

struct ContextOptions {
  RegistryOptions registry = {};
  std::shared_ptr<PluginRegistry> shared_registry =
      nullptr;      ///< Used instead of `registry`: contexts may share their plugins.
  int threads = 0;  ///< CPU threads an evaluation may use; 0: all hardware threads.
  /// Before a kernel is used for a configuration, it must agree with the reference on inputs made by the core.
  bool gate = true;
  /// Compare every Nth evaluation with the reference; 0: the value of FASTPATH_SHADOW, or never.
  int shadow = 0;
  /// Receives what plugins log, from any thread; it must not throw. Levels: 0 debug, 1 information, 2 warning, 3 error.
  /// A plugin is in a process once, so what it is offered is the process's: the last context that brings a sink, or a
  /// value for a key, sets it.
  std::function<void(std::int32_t level, std::string_view text)> log = nullptr;
  /// Values that plugins may look up, by key (each plugin documents its own).
  std::map<std::string, std::string> plugin_configuration = {};
  /// What is known about the speed of kernels. Null: a store of MeasurementDirectories::defaults().
  std::shared_ptr<MeasurementStore> measurements = nullptr;
  /// Every evaluation under use_fast true and auto chooses as this lock says, or fails. Null: none.
  std::shared_ptr<const SelectionLock> replay = nullptr;
  /// Nothing is measured, and decisions do not depend on what was: the same call makes the same choice on every machine
  /// with these plugins and devices.
  bool deterministic = false;
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
  MeasurementStore& measurements() noexcept;
  bool deterministic() const noexcept;

  class Impl;
  Impl& impl() noexcept { return *impl_; }  ///< For the library itself.

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastpath
