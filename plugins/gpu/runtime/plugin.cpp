#include "plugin.hpp"

#include <string>

#include "device.hpp"
#include "generator/op.hpp"
#include "kernel.hpp"

namespace fastpath_gpu {
namespace {

constexpr std::uint32_t kDTypes = FP_DTYPE_BIT_F32 | FP_DTYPE_BIT_F64;
constexpr std::uint32_t kPasses = FP_PASS_FORWARD | FP_PASS_BACKWARD;

}  // namespace

std::vector<sdk::OpDescription> GpuPlugin::ops() {
  std::vector<sdk::OpDescription> result;
  for (const OpFactory& op : all_ops()) {
    result.push_back({std::string(op.id), op.version, device_type_, kDTypes, kPasses});
  }
  return result;
}

void GpuPlugin::query(const sdk::KernelQuery& query, sdk::KernelAnswer& answer) {
  if (query.device.type != device_type_) {
    answer.blocked(sdk::Reason::device, "device type " + std::to_string(query.device.type) + ", only type " +
                                            std::to_string(device_type_) + " (" + name_of(backend_->language()) + ")");
  }
  const bool narrow = query.dtype == sdk::kFloat32, wide = query.dtype == sdk::kFloat64;
  if (!narrow && !wide) answer.blocked(sdk::Reason::dtype, query.dtype.name() + ", only float32 and float64");
  if (wide && query.device.type == device_type_ && (query.device.dtypes & FP_DTYPE_BIT_F64) == 0) {
    answer.blocked(sdk::Reason::dtype, "float64, which " + query.device.name + " does not compute in");
  }
  if ((query.passes & ~kPasses) != 0) {
    answer.blocked(sdk::Reason::pass, "tangent passes, only forward and backward");
  }
  answer.flags = FP_KERNEL_DETERMINISTIC;
  for (const OpFactory& op : all_ops()) {
    if (op.id != query.op) continue;
    if (op.version == query.op_version) return op.check(query.config, answer);
    return answer.blocked(sdk::Reason::op_version, "version " + std::to_string(query.op_version) + " of " + query.op +
                                                       ", only " + std::to_string(op.version));
  }
  answer.blocked(sdk::Reason::op, "op '" + query.op + "' is not known here");
}

std::unique_ptr<sdk::Device> GpuPlugin::open(const sdk::OpenRequest& request) {
  if (request.native && request.native->kind != FP_NATIVE_NONE) {
    throw sdk::Refused("a native context of kind " + std::to_string(request.native->kind) +
                       ", but this plugin works in a context of its own alone");
  }
  for (sdk::DeviceDescription& own : backend_->devices()) {
    if (!own.same_device(request.device)) continue;
    return std::make_unique<GpuDevice>(std::move(own), request.device.index, *backend_,
                                       CompileCache::of(host(), backend_->language()));
  }
  throw sdk::InvalidArgument("device type " + std::to_string(request.device.type) + " index " +
                             std::to_string(request.device.index) + ", which is not one of this plugin's");
}

std::unique_ptr<sdk::Kernel> GpuPlugin::create(const sdk::KernelQuery& query, sdk::Device& device) {
  for (const OpFactory& op : all_ops()) {
    if (op.id == query.op) {
      return std::make_unique<GpuKernel>(op.create(query.config), query.dtype, query.passes,
                                         static_cast<GpuDevice&>(device));
    }
  }
  return nullptr;
}

}  // namespace fastpath_gpu
