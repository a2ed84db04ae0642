#include "fake_plugin.hpp"

#include <array>

#include "kernel.hpp"
#include "on_device.hpp"
#include "scale.hpp"

namespace fake_device {
namespace {

constexpr std::uint32_t kDTypes = FP_DTYPE_BIT_F32 | FP_DTYPE_BIT_F64;
constexpr std::uint32_t kPasses = FP_PASS_FORWARD | FP_PASS_BACKWARD;

// Kernels of cpu_ref, run here through OnDevice. Not species_linear: a model then has steps on both sides.
std::array<cpu_ref::Op, 9> borrowed() {
  return {cpu_ref::spherical_harmonics(), cpu_ref::radial_basis(),
          cpu_ref::radial_mlp(),          cpu_ref::irreps_linear(),
          cpu_ref::conv_tensor_product(), cpu_ref::symmetric_contraction(),
          cpu_ref::regroup_channels(),    cpu_ref::sum(),
          cpu_ref::scaled_silu()};
}

}  // namespace

std::vector<sdk::DeviceDescription> FakePlugin::devices() {
  sdk::DeviceDescription device;
  device.type = FP_DEVICE_EXT;
  device.units = 1;
  device.vendor = "Example";
  device.name = "Fake device";
  device.arch = "fake_1";
  device.uuid = "00112233445566778899aabbccddeeff";
  device.memory_bytes = FakeDevice::kMemory;
  device.dtypes = kDTypes;
  return {device};
}

std::unique_ptr<sdk::Device> FakePlugin::open(const sdk::OpenRequest& request) {
  if (!devices().front().same_device(request.device)) throw sdk::Unavailable("fake device: there is only device 0");
  std::unique_ptr<FakeDevice> device = make_device();
  const std::string native = host().lookup("fake_device.native").value_or("");
  device->set_native(native == "none" ? FP_NATIVE_NONE : native == "wrong" ? FP_NATIVE_CUDA : FP_NATIVE_EXT);
  if (host().lookup("fastpath.lose_device")) device->lose_at_first_run();
  return device;
}

std::vector<sdk::OpDescription> FakePlugin::ops() {
  std::vector<sdk::OpDescription> result = {{kScaleOp, 1, FP_DEVICE_EXT, kDTypes, kPasses}};
  for (const cpu_ref::Op& op : borrowed()) {
    result.push_back({std::string(op.id), op.version, FP_DEVICE_EXT, kDTypes, kPasses});
  }
  return result;
}

void FakePlugin::query(const sdk::KernelQuery& query, sdk::KernelAnswer& answer) {
  if (query.device.type != FP_DEVICE_EXT) answer.blocked(sdk::Reason::device, "only the fake device");
  if (!(query.dtype == sdk::kFloat32) && !(query.dtype == sdk::kFloat64)) {
    answer.blocked(sdk::Reason::dtype, query.dtype.name() + ", only float32 and float64");
  }
  if ((query.passes & ~kPasses) != 0) answer.blocked(sdk::Reason::pass, "only forward and backward");
  answer.flags = FP_KERNEL_DETERMINISTIC;
  if (query.op == kScaleOp) {
    if (query.op_version != 1) answer.blocked(sdk::Reason::op_version, "only version 1");
    static_cast<void>(query.config.real("factor"));
    return;
  }
  for (const cpu_ref::Op& op : borrowed()) {
    if (op.id == query.op && op.version == query.op_version) return op.check(query.config, answer);
  }
  answer.blocked(sdk::Reason::op, "op '" + query.op + "' is not known here");
}

std::unique_ptr<sdk::Kernel> FakePlugin::make_kernel(const sdk::KernelQuery& query) {
  for (const cpu_ref::Op& op : borrowed()) {
    if (op.id == query.op) return op.create(query.config, query.dtype);
  }
  return make_scale(query);
}

std::unique_ptr<sdk::Kernel> FakePlugin::create(const sdk::KernelQuery& query, sdk::Device& device) {
  FakeDevice& own = static_cast<FakeDevice&>(device);
  own.need();
  return std::make_unique<OnDevice>(make_kernel(query), own, devices().front().index);
}

}  // namespace fake_device
