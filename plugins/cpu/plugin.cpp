#include "cpu/plugin.hpp"

#include <string>

namespace fastpath_cpu {
namespace {

constexpr std::uint32_t kDTypes = FP_DTYPE_BIT_F32 | FP_DTYPE_BIT_F64;

void check_passes(std::uint32_t wanted, std::uint32_t passes, sdk::KernelAnswer& answer) {
  if ((wanted & ~kAllPasses) != 0) {
    answer.blocked(sdk::Reason::pass,
                   "passes " + std::to_string(wanted) + ", only forward, backward and their tangents");
  } else if ((wanted & ~passes) != 0) {
    answer.blocked(sdk::Reason::pass, "tangent passes, only forward and backward");
  }
}

}  // namespace

std::vector<sdk::DeviceDescription> CpuPlugin::devices() {
  sdk::DeviceDescription cpu;  // the host knows the rest of it
  cpu.type = FP_DEVICE_CPU;
  cpu.dtypes = kDTypes;
  return {cpu};
}

std::vector<sdk::OpDescription> CpuPlugin::ops() {
  std::vector<sdk::OpDescription> result;
  for (const Op& op : ops_) result.push_back({std::string(op.id), op.version, FP_DEVICE_CPU, kDTypes, op.passes});
  return result;
}

void CpuPlugin::query(const sdk::KernelQuery& query, sdk::KernelAnswer& answer) {
  if (query.device.type != FP_DEVICE_CPU) {
    answer.blocked(sdk::Reason::device, "device type " + std::to_string(query.device.type) + ", only the CPU");
  }
  if (!(query.dtype == sdk::kFloat32) && !(query.dtype == sdk::kFloat64)) {
    answer.blocked(sdk::Reason::dtype, query.dtype.name() + ", only float32 and float64");
  }
  check_machine(answer);
  answer.flags = FP_KERNEL_DETERMINISTIC | FP_KERNEL_THREAD_SAFE;
  answer.rank = rank_;
  for (const Op& op : ops_) {
    if (op.id != query.op) continue;
    check_passes(query.passes, op.passes, answer);
    answer.prior_edges = (query.passes & ~kPlainPasses) != 0 ? op.prior_tangents
                         : query.dtype == sdk::kFloat32      ? op.prior_float32
                                                             : op.prior_float64;
    if (op.version == query.op_version) return op.check(query.config, answer);
    return answer.blocked(sdk::Reason::op_version, "version " + std::to_string(query.op_version) + " of " + query.op +
                                                       ", only " + std::to_string(op.version));
  }
  answer.blocked(sdk::Reason::op, "op '" + query.op + "' is not known here");
}

std::unique_ptr<sdk::Kernel> CpuPlugin::create(const sdk::KernelQuery& query, sdk::Device&) {
  for (const Op& op : ops_) {
    if (op.id == query.op) return op.create(query.config, query.dtype);
  }
  return nullptr;
}

}  // namespace fastpath_cpu
