// From its member `data` on, fp_tensor is a DLTensor, and its codes are DLPack's. Compiling this file is the test.
#include <dlpack/dlpack.h>

#include <cstddef>

#include "fastpath/plugin.h"

namespace {

constexpr std::size_t kBase = offsetof(fp_tensor, data);
static_assert(sizeof(fp_tensor) - kBase == sizeof(DLTensor));
static_assert(offsetof(fp_tensor, device_type) - kBase == offsetof(DLTensor, device) + offsetof(DLDevice, device_type));
static_assert(offsetof(fp_tensor, device_id) - kBase == offsetof(DLTensor, device) + offsetof(DLDevice, device_id));
static_assert(offsetof(fp_tensor, ndim) - kBase == offsetof(DLTensor, ndim));
static_assert(offsetof(fp_tensor, dtype_code) - kBase == offsetof(DLTensor, dtype) + offsetof(DLDataType, code));
static_assert(offsetof(fp_tensor, dtype_bits) - kBase == offsetof(DLTensor, dtype) + offsetof(DLDataType, bits));
static_assert(offsetof(fp_tensor, dtype_lanes) - kBase == offsetof(DLTensor, dtype) + offsetof(DLDataType, lanes));
static_assert(offsetof(fp_tensor, shape) - kBase == offsetof(DLTensor, shape));
static_assert(offsetof(fp_tensor, strides) - kBase == offsetof(DLTensor, strides));
static_assert(offsetof(fp_tensor, byte_offset) - kBase == offsetof(DLTensor, byte_offset));

static_assert(sizeof(fp_tensor::device_type) == sizeof(DLDevice::device_type));
static_assert(sizeof(fp_tensor::device_id) == sizeof(DLDevice::device_id));
static_assert(sizeof(fp_tensor::dtype_code) == sizeof(DLDataType::code));
static_assert(sizeof(fp_tensor::dtype_bits) == sizeof(DLDataType::bits));
static_assert(sizeof(fp_tensor::dtype_lanes) == sizeof(DLDataType::lanes));

static_assert(int{FP_CODE_INT} == int{kDLInt} && int{FP_CODE_UINT} == int{kDLUInt} &&
              int{FP_CODE_FLOAT} == int{kDLFloat});
static_assert(int{FP_DEVICE_CPU} == int{kDLCPU} && int{FP_DEVICE_CUDA} == int{kDLCUDA});
static_assert(int{FP_DEVICE_OPENCL} == int{kDLOpenCL} && int{FP_DEVICE_ROCM} == int{kDLROCM});
static_assert(int{FP_DEVICE_EXT} == int{kDLExtDev});

}  // namespace
