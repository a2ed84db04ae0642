#include "fastpath/compile.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "fastpath/error.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/model.hpp"
#include "plugin/offline.hpp"

namespace fastpath {

std::string_view to_string(CompiledModule::Verdict verdict) noexcept {
  switch (verdict) {
    case CompiledModule::Verdict::compiled:
      return "compiled";
    case CompiledModule::Verdict::source:
      return "source";
    case CompiledModule::Verdict::refused:
      return "refused";
    case CompiledModule::Verdict::failed:
      return "failed";
  }
  return "failed";
}

std::vector<CompiledModule> compile(Module& model, const CompileOptions& options) {
  Context& context = options.context == nullptr ? Context::process() : *options.context;
  auto compilers = context.registry().impl().compilers();
  const bool any = !compilers.empty();
  plugin::Lease lease;  // no plugin is shut down while it compiles
  std::erase_if(compilers, [&](const auto& compiler) { return !compiler->hold(lease); });
  if (compilers.empty() && (any || context.registry().impl().ended())) {
    throw Error(ErrorCode::unavailable, fmt::format("nothing compiles any more: {}", plugin::shut_down_reason().text));
  }
  if (compilers.empty()) {
    throw Error(ErrorCode::unavailable,
                "no plugin here compiles for devices that are not here; cuda and hip do ('fastpath list')");
  }
  // Everything that is asked for is checked before anything is compiled, which takes long.
  struct Target {
    std::string arch;
    std::vector<std::shared_ptr<plugin::OfflineCompiler>> compilers;
  };
  std::vector<Target> targets;
  for (const std::string& arch : options.archs) {
    Target target{arch, {}};
    for (const auto& compiler : compilers) {
      if (compiler->serves(arch)) target.compilers.push_back(compiler);
    }
    if (target.compilers.empty()) {
      std::vector<std::string> names;
      for (const auto& compiler : compilers) names.push_back(compiler->plugin());
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("architecture '{}' is none of the plugins that compile ({}), expected a name such as "
                              "sm_90 (NVIDIA) or gfx90a (AMD)",
                              arch, fmt::join(names, ", ")));
    }
    targets.push_back(std::move(target));
  }
  std::vector<NamedFastModule> modules = fast_modules(model);
  model.for_each_model([&](Model& inner) {  // by the names that its decisions have
    modules.insert(modules.end(), inner.small_ops().begin(), inner.small_ops().end());
  });
  std::size_t total = 0;
  for (const Target& target : targets) total += target.compilers.size() * options.dtypes.size() * modules.size();
  std::vector<CompiledModule> results;
  results.reserve(total);
  for (const Target& target : targets) {
    for (const auto& compiler : target.compilers) {
      for (const DType dtype : options.dtypes) {
        for (const NamedFastModule& entry : modules) {
          CompiledModule& result = results.emplace_back();
          result.module = entry.name;
          result.op = entry.module->op().id;
          compiler->compile(entry.module->op(), target.arch, dtype, options.passes, entry.module->op_parameters(dtype),
                            options.source_only, result);
          if (options.on_step) options.on_step(results.size(), total);
        }
      }
    }
  }
  return results;
}

}  // namespace fastpath
