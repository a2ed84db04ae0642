#pragma once

#include "backend.hpp"
#include "fastpath/sdk/compile.hpp"
#include "fastpath/sdk/plugin.hpp"

namespace fastpath_gpu {

/// Compiles what kernels will ask for at run time, into the cache where they will look for it.
class GpuOfflineCompiler final : public sdk::OfflineCompiler {
 public:
  /// Both outlive this object.
  GpuOfflineCompiler(const sdk::Plugin& plugin, Backend& backend) : plugin_(plugin), backend_(backend) {}
  bool serves(std::string_view arch) override;
  sdk::CompiledOp compile(const sdk::KernelQuery& query, const sdk::TensorList& parameters, bool source_only) override;

 private:
  const sdk::Plugin& plugin_;
  Backend& backend_;
};

}  // namespace fastpath_gpu
