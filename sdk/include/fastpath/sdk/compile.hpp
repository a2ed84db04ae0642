#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "fastpath/compile.h"
#include "fastpath/sdk/abi.hpp"
#include "fastpath/sdk/error.hpp"
#include "fastpath/sdk/kernel.hpp"

/// For plugins that make their kernels at run time: compiling for a device that is not there (fastpath/compile.h).
/// Derive from OfflineCompiler and return CompileExtension::get() from Plugin::extensions().
namespace fastpath::sdk {

/// What became of one op.
struct CompiledOp {
  struct Kernel {
    std::string name;
    std::int64_t registers = -1, shared_bytes = -1, spill_bytes = -1, code_bytes = -1;  ///< fp_kernel_resources.
  };
  std::string source;           ///< What the compiler gets.
  std::string compiler;         ///< "NVRTC 12.4"; empty where nothing was compiled.
  bool cached = false;          ///< The code was there already.
  std::vector<Kernel> kernels;  ///< Empty where nothing was compiled.
};

/// May be called from several threads at once, and may throw (error.hpp).
class OfflineCompiler {
 public:
  virtual ~OfflineCompiler() = default;
  /// Whether `arch` is named as this plugin's architectures are. Cheap.
  virtual bool serves(std::string_view arch) = 0;
  /// @param query        Of the device type and arch alone are known; Plugin::query() has said yes.
  /// @param parameters   In host memory.
  /// @param source_only  Compile nothing.
  /// @throws Unavailable without a compiler, Refused with its words if the source does not compile.
  virtual CompiledOp compile(const KernelQuery& query, const TensorList& parameters, bool source_only) = 0;
};

extern "C" {
inline std::int32_t fastpath_sdk_serves(void* context, const char* arch, std::uint64_t arch_size) noexcept {
  std::int32_t answer = 0;
  guarded(nullptr,
          [&] { answer = static_cast<OfflineCompiler*>(context)->serves(text_view(arch, arch_size)) ? 1 : 0; });
  return answer;
}
inline std::int32_t fastpath_sdk_compile(void* context, const fp_compile_args* args) noexcept {
  fp_compile_args c{};  // what both sides know of it
  if (args != nullptr) {
    std::memcpy(static_cast<void*>(&c), static_cast<const void*>(args),
                std::min(args->struct_size, std::uint32_t{FP_SIZE_COMPILE_ARGS}));
  }
  return guarded(c.errors, [&] {
    if (context == nullptr || c.query == nullptr) throw InvalidArgument("a null compiler or query");
    const bool source_only = (c.flags & FP_COMPILE_SOURCE_ONLY) != 0;
    const CompiledOp done = static_cast<OfflineCompiler*>(context)->compile(KernelQuery::from(c.query),
                                                                            TensorList(c.parameters), source_only);
    if (c.take_source != nullptr) c.take_source(c.context, done.source.data(), done.source.size());
    if (c.take_compiler != nullptr) {
      c.take_compiler(c.context, done.compiler.data(), done.compiler.size(), done.cached ? 1 : 0);
    }
    for (const CompiledOp::Kernel& kernel : done.kernels) {
      fp_kernel_resources resources{};
      resources.struct_size = FP_SIZE_KERNEL_RESOURCES;
      resources.kernel = kernel.name.data();
      resources.kernel_size = kernel.name.size();
      resources.registers = kernel.registers;
      resources.shared_bytes = kernel.shared_bytes;
      resources.spill_bytes = kernel.spill_bytes;
      resources.code_bytes = kernel.code_bytes;
      if (c.take_kernel != nullptr) c.take_kernel(c.context, &resources);
    }
  });
}
}  // extern "C"

/// The extension in C form; lives as long as the plugin.
class CompileExtension {
 public:
  /// @param device_type  FP_DEVICE_* that is compiled for. @param next  Other extensions of the plugin.
  CompileExtension(OfflineCompiler& compiler, std::int32_t device_type, const fp_extension* next = nullptr) {
    constexpr std::string_view kId = FP_COMPILE_ID;
    api_.extension = {FP_SIZE_COMPILE_API, 0, kId.data(), kId.size(), next};
    api_.context = &compiler;
    api_.device_type = device_type;
    api_.serves = fastpath_sdk_serves;
    api_.compile = fastpath_sdk_compile;
  }
  CompileExtension(const CompileExtension&) = delete;
  CompileExtension& operator=(const CompileExtension&) = delete;
  const fp_extension* get() const noexcept { return &api_.extension; }

 private:
  fp_compile_api api_{};
};

}  // namespace fastpath::sdk
