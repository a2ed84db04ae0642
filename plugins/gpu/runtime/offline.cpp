#include "offline.hpp"

#include <stdexcept>

#include "compile_cache.hpp"
#include "fastpath/sdk/check.hpp"
#include "generator/op.hpp"

namespace fastpath_gpu {
namespace {

/// Elements of a parameter in host memory.
std::vector<double> values_of(const sdk::Tensor& tensor, sdk::DType dtype) {
  const auto copied = [](const auto& view) { return std::vector<double>(view.data(), view.data() + view.size()); };
  return dtype == sdk::kFloat32 ? copied(tensor.view<const float>()) : copied(tensor.view<const double>());
}

}  // namespace

bool GpuOfflineCompiler::serves(std::string_view arch) {
  try {
    const Target target = Target::of(backend_.language(), std::string(arch));
    return !target.arch.empty();
  } catch (const std::invalid_argument&) {
    return false;
  }
}

sdk::CompiledOp GpuOfflineCompiler::compile(const sdk::KernelQuery& query, const sdk::TensorList& parameters,
                                            bool source_only) {
  for (const OpFactory& factory : all_ops()) {
    if (factory.id != query.op || factory.version != query.op_version) continue;
    const std::unique_ptr<Op> op = factory.create(query.config);
    std::vector<std::vector<double>> constants;
    for (const std::size_t index : op->constants()) {
      const sdk::Tensor tensor = parameters[index];
      sdk::check_tensor(op->signature().parameters[index], tensor, 1, query.dtype, true, "parameter");
      constants.push_back(values_of(tensor, query.dtype));
    }
    if (!constants.empty()) op->set_constants(constants);
    const Target target = Target::of(backend_.language(), query.device.arch);
    const Program program = op->generate(target, query.dtype, query.passes);

    sdk::CompiledOp result;
    result.source = program.source;
    if (source_only) return result;
    result.compiler = backend_.compiler(target);
    const CompileKey key = CompileKey::of(program, target, result.compiler);
    const CompileCache cache = CompileCache::of(plugin_.host(), backend_.language());
    std::optional<Binary> binary = cache.find(key);
    result.cached = binary.has_value();
    if (!binary) {
      binary = backend_.compile(program, target);
      cache.keep(key, *binary);
    }
    result.compiler = result.compiler.substr(0, result.compiler.find(" -"));  // without options
    for (const KernelResources& kernel : binary->resources) {
      result.kernels.push_back(
          {kernel.kernel, kernel.registers, kernel.shared_bytes, kernel.spill_bytes, kernel.code_bytes});
    }
    return result;
  }
  throw sdk::Refused("op '" + query.op + "' is not known here");
}

}  // namespace fastpath_gpu
