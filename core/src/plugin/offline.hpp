#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fastpath/compile.hpp"
#include "loaded.hpp"

namespace fastpath::plugin {

/// A plugin that compiles for devices that need not be here. Thread-safe; pinned for the life of the process.
class OfflineCompiler {
 public:
  /// Of a plugin that was negotiated so far that its kernels could be listed. Null if it does not compile.
  static std::shared_ptr<OfflineCompiler> of(const PluginTables& tables);

  const std::string& plugin() const noexcept { return tables_.id; }
  /// The plugin as it was loaded, whose end is this one's too. A plugin that is idle is never shut down and has none.
  void belongs_to(LoadedPlugin& plugin) noexcept;
  /// Keeps the plugin from being shut down as long as the lease. False if it was, or is about to be. Only who holds it
  /// may call the functions below.
  bool hold(Lease& lease) const;
  bool serves(const std::string& arch) const;
  /// Fills in verdict, reasons, kernels and so on. @throws Error(unavailable) without a compiler, Error(kernel_failed)
  /// for a fault of the plugin.
  void compile(const OpSpec& op, const std::string& arch, DType dtype, Passes passes,
               std::span<const Tensor> parameters, bool source_only, CompiledModule& result) const;

 private:
  PluginTables tables_;  // without the library, which stays for good
  fp_compile_api api_{};
  Life* life_ = nullptr;
};

}  // namespace fastpath::plugin
