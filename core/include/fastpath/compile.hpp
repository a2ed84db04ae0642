#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fastpath/context.hpp"
#include "fastpath/export.hpp"
#include "fastpath/module.hpp"
#include "fastpath/op.hpp"
#include "fastpath/reason.hpp"
#include "fastpath/types.hpp"

namespace fastpath {

/// What a compiler says of one kernel; negative where it says nothing.
struct CompiledKernel {
  std::string name;
  std::int64_t registers = -1;     ///< Of a work-item; vector registers on AMD.
  std::int64_t shared_bytes = -1;  ///< Memory that a group of work-items shares.
  std::int64_t spill_bytes = -1;   ///< Of a work-item: what does not fit in registers.
  std::int64_t code_bytes = -1;
};

/// What became of one module for one architecture and dtype.
struct CompiledModule {
  enum class Verdict {
    compiled,  ///< It is in the plugin's cache now.
    source,    ///< Only the source was asked for.
    refused,   ///< The plugin has no kernel for it: the reference will run. `reasons` say why.
    failed,    ///< The source does not compile; the reason holds the compiler's words.
  };
  std::string module, op, plugin, arch;
  DType dtype = DType::float64;
  Verdict verdict = Verdict::refused;
  std::vector<Reason> reasons;
  bool cached = false;  ///< The code was there already.
  std::string compiler;
  std::string source;
  std::vector<CompiledKernel> kernels;
};
FASTPATH_EXPORT std::string_view to_string(CompiledModule::Verdict verdict) noexcept;

struct CompileOptions {
  std::vector<std::string> archs;  ///< "sm_90", "gfx90a".
  std::vector<DType> dtypes = {DType::float64};
  Passes passes = kPassesForces;  ///< What an evaluation will ask for: code is kept for exactly these.
  bool source_only = false;
  Context* context = nullptr;                                     ///< Null: Context::process().
  std::function<void(std::size_t done, std::size_t of)> on_step;  ///< After each module.
};

/// Lets plugins compile their kernels of every fast-path module below `model`, and of the small ops that evaluations on
/// a device need (Model::small_ops), for devices that need not be here, so that they find the code at run time and need
/// no compiler then. In the order archs, dtypes, modules, small ops. PluginRegistry::shutdown() waits for it in other
/// threads and is refused in `on_step`.
/// @throws Error(invalid_argument) if an architecture is none of any plugin that compiles; Error(unavailable) if there
/// is no such plugin, it was shut down, or its compiler is missing.
FASTPATH_EXPORT std::vector<CompiledModule> compile(Module& model, const CompileOptions& options);

}  // namespace fastpath
