#include "offline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "abi.hpp"
#include "call.hpp"
#include "fastpath/error.hpp"

namespace fastpath::plugin {
namespace {

constexpr std::string_view kId = FP_COMPILE_ID;
constexpr int kMaxExtensions = 64;
constexpr std::size_t kMaxKernels = 4096;
constexpr std::size_t kMaxSource = std::size_t{64} << 20;
constexpr std::size_t kMaxWords = 4000;  // of a compiler's log

/// What a plugin hands over during one call. Nothing here throws into it.
struct Taker {
  CompiledModule& result;

  static void source(void* context, const char* text, std::uint64_t size) noexcept {
    guarded_void([&] {
      if (text != nullptr && size <= kMaxSource) of(context).source.assign(text, size);
    });
  }
  static void kernel(void* context, const fp_kernel_resources* resources) noexcept {
    guarded_void([&] {
      fp_kernel_resources c{};
      if (!copy_struct(resources, FP_END_OF(fp_kernel_resources, code_bytes), c)) return;
      if (of(context).kernels.size() >= kMaxKernels || (c.kernel == nullptr && c.kernel_size != 0)) return;
      of(context).kernels.push_back({clean_text({c.kernel, static_cast<std::size_t>(c.kernel_size)}, 256), c.registers,
                                     c.shared_bytes, c.spill_bytes, c.code_bytes});
    });
  }
  static void compiler(void* context, const char* text, std::uint64_t size, std::int32_t cached) noexcept {
    guarded_void([&] {
      if (text != nullptr) of(context).compiler = clean_text({text, static_cast<std::size_t>(size)}, 256);
      of(context).cached = cached != 0;
    });
  }

 private:
  static CompiledModule& of(void* context) { return static_cast<Taker*>(context)->result; }
};

}  // namespace

std::shared_ptr<OfflineCompiler> OfflineCompiler::of(const PluginTables& tables) {
  const fp_extension* at = tables.plugin.extensions;
  for (int i = 0; at != nullptr && i < kMaxExtensions; ++i) {
    fp_extension extension{};
    if (!copy_struct(at, FP_END_OF(fp_extension, next), extension)) return nullptr;
    if (extension.id != nullptr && extension.id_size == kId.size() &&
        std::memcmp(extension.id, kId.data(), kId.size()) == 0) {
      auto result = std::make_shared<OfflineCompiler>();
      if (!copy_struct(at, FP_END_OF(fp_compile_api, compile), result->api_)) return nullptr;
      if (result->api_.serves == nullptr || result->api_.compile == nullptr) return nullptr;
      result->tables_.original = tables.original;
      result->tables_.plugin = tables.plugin;
      result->tables_.kernels = tables.kernels;
      result->tables_.id = tables.id;
      return result;
    }
    at = extension.next;
  }
  return nullptr;
}

void OfflineCompiler::belongs_to(LoadedPlugin& plugin) noexcept {
  if (Ending* const ending = plugin.ending()) life_ = &ending->life();
}

bool OfflineCompiler::hold(Lease& lease) const { return life_ == nullptr || lease.add(*life_); }

bool OfflineCompiler::serves(const std::string& arch) const {
  ErrorSink sink;
  std::int32_t answer = 0;
  const CallStatus status = guarded(sink, [&] {
    answer = api_.serves(api_.context, arch.data(), arch.size());
    return FP_OK;
  });
  return status.ok() && answer != 0;
}

void OfflineCompiler::compile(const OpSpec& op, const std::string& arch, DType dtype, Passes passes,
                              std::span<const Tensor> parameters, bool source_only, CompiledModule& result) const {
  DeviceInfo device;  // what is known of one that is not here
  device.device = {static_cast<DeviceKind>(api_.device_type), 0};
  device.arch = arch;
  device.dtypes = {DType::float32, DType::float64};
  result.plugin = tables_.id;
  result.arch = arch;
  result.dtype = dtype;
  if (const Support support = query_kernel(tables_, op, device, dtype, passes, nullptr); !support) {
    result.verdict = CompiledModule::Verdict::refused;
    result.reasons = support.reasons();
    return;
  }
  std::vector<fp_tensor> items;
  for (const Tensor& parameter : parameters) items.push_back(to_c(parameter, FP_ACCESS_READ, 0));
  const fp_tensor_list list{FP_SIZE_TENSOR_LIST, sizeof(fp_tensor), items.size(), items.data()};
  const KernelQuery query(op, device, dtype, passes);
  Taker taker{result};
  ErrorSink sink;
  fp_compile_args args{};
  args.struct_size = FP_SIZE_COMPILE_ARGS;
  args.flags = source_only ? static_cast<std::uint32_t>(FP_COMPILE_SOURCE_ONLY) : 0u;
  args.query = &query.get();
  args.parameters = &list;
  args.context = &taker;
  args.take_source = &Taker::source;
  args.take_kernel = &Taker::kernel;
  args.take_compiler = &Taker::compiler;
  args.errors = sink.get();
  const CallStatus status = guarded(sink, [&] { return api_.compile(api_.context, &args); });
  if (status.ok()) {
    result.verdict = source_only ? CompiledModule::Verdict::source : CompiledModule::Verdict::compiled;
    return;
  }
  const std::string text = status.text.substr(0, kMaxWords);
  if (status.status == FP_E_UNSUPPORTED) {
    result.verdict = CompiledModule::Verdict::failed;
    result.reasons = {{ReasonCode::create_failed, text}};
    return;
  }
  const ErrorCode otherwise = status.status == FP_E_UNAVAILABLE ? ErrorCode::unavailable : ErrorCode::kernel_failed;
  throw Error(error_code(status.status, otherwise), fmt::format("{}: {} for {}: {}", tables_.id, op.id, arch, text));
}

}  // namespace fastpath::plugin
