#include <dlpack/dlpack.h>
#include <fmt/format.h>

#include <memory>

#include "fastpath/error.hpp"
#include "fastpath/tensor.hpp"

namespace fastpath {
namespace {

DLDataType dlpack_dtype(DType dtype) {
  switch (dtype) {
    case DType::float32:
      return {kDLFloat, 32, 1};
    case DType::float64:
      return {kDLFloat, 64, 1};
    case DType::int32:
      return {kDLInt, 32, 1};
    case DType::int64:
      return {kDLInt, 64, 1};
    // DLPack 0.6 has no boolean; a byte that holds 0 or 1 is what its users exchange.
    case DType::boolean:
    case DType::uint8:
      return {kDLUInt, 8, 1};
  }
  throw Error(ErrorCode::internal, "tensor with a dtype outside the list");
}

DType dtype_of(const DLDataType& type) {
  if (type.lanes == 1) {
    if (type.code == kDLFloat && type.bits == 32) return DType::float32;
    if (type.code == kDLFloat && type.bits == 64) return DType::float64;
    if (type.code == kDLInt && type.bits == 32) return DType::int32;
    if (type.code == kDLInt && type.bits == 64) return DType::int64;
    if (type.code == kDLUInt && type.bits == 8) return DType::uint8;
  }
  throw Error(
      ErrorCode::unsupported,
      fmt::format("DLPack dtype code {} with {} bits and {} lanes; supported: float32, float64, int32, int64, uint8",
                  type.code, type.bits, type.lanes));
}

DeviceKind kind_of(const DLDevice& device) {
  switch (static_cast<int>(device.device_type)) {
    case kDLCPU:
      return DeviceKind::cpu;
    case kDLCUDA:
      return DeviceKind::cuda;
    case kDLOpenCL:
      return DeviceKind::opencl;
    case kDLROCM:
      return DeviceKind::hip;
    case kDLExtDev:
      return DeviceKind::extension;
    default:
      throw Error(ErrorCode::unsupported, fmt::format("DLPack device type {}; supported: cpu, cuda, opencl, rocm, ext",
                                                      static_cast<int>(device.device_type)));
  }
}

/// What an exported tensor keeps alive, in one allocation with the struct that points into it.
struct Exported {
  DLManagedTensor managed{};
  Tensor tensor;
  Shape shape;
  Shape strides;
};

}  // namespace

DLManagedTensor* to_dlpack(const Tensor& tensor) {
  if (!tensor.defined()) throw Error(ErrorCode::invalid_argument, "DLPack export of an undefined tensor");
  auto exported = std::make_unique<Exported>();
  exported->tensor = tensor;
  exported->shape = tensor.shape();
  exported->strides = tensor.strides();
  DLTensor& out = exported->managed.dl_tensor;
  out.data = tensor.base();
  out.device = {static_cast<DLDeviceType>(tensor.device().kind), tensor.device().index};
  out.ndim = static_cast<int>(tensor.rank());
  out.dtype = dlpack_dtype(tensor.dtype());
  out.shape = exported->shape.data();
  out.strides = exported->strides.data();
  out.byte_offset = tensor.byte_offset();
  exported->managed.manager_ctx = exported.get();
  exported->managed.deleter = [](DLManagedTensor* self) { delete static_cast<Exported*>(self->manager_ctx); };
  return &exported.release()->managed;
}

Tensor from_dlpack(DLManagedTensor* managed) {
  if (managed == nullptr) throw Error(ErrorCode::invalid_argument, "DLPack import of a null pointer");
  const DLTensor& in = managed->dl_tensor;
  const DType dtype = dtype_of(in.dtype);
  const Device device{kind_of(in.device), in.device.device_id};
  if (in.ndim < 0 || (in.ndim > 0 && in.shape == nullptr)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("DLPack tensor of rank {} without a shape", in.ndim));
  }
  Shape shape(in.shape, in.shape + in.ndim);
  Shape strides;
  if (in.strides != nullptr) strides.assign(in.strides, in.strides + in.ndim);
  // wrap() checks the sizes and may throw; only after it does the tensor own the import.
  Tensor tensor = Tensor::wrap(in.data, shape, strides, dtype, device, nullptr, in.byte_offset);
  std::shared_ptr<const void> owner(static_cast<const void*>(managed), [managed](const void*) {
    if (managed->deleter != nullptr) managed->deleter(managed);
  });
  return Tensor::wrap(in.data, std::move(shape), std::move(strides), dtype, device, std::move(owner), in.byte_offset);
}

}  // namespace fastpath
