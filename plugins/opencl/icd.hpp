#pragma once

#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <string>

namespace fastpath_opencl {

// Everything of OpenCL 1.2 that this plugin calls.
#define FASTPATH_OPENCL_FUNCTIONS(X) \
  X(clGetPlatformIDs)                \
  X(clGetPlatformInfo)               \
  X(clGetDeviceIDs)                  \
  X(clGetDeviceInfo)                 \
  X(clCreateContext)                 \
  X(clReleaseContext)                \
  X(clCreateCommandQueue)            \
  X(clReleaseCommandQueue)           \
  X(clFlush)                         \
  X(clFinish)                        \
  X(clCreateBuffer)                  \
  X(clReleaseMemObject)              \
  X(clGetMemObjectInfo)              \
  X(clEnqueueReadBuffer)             \
  X(clEnqueueWriteBuffer)            \
  X(clEnqueueCopyBuffer)             \
  X(clEnqueueFillBuffer)             \
  X(clEnqueueMarkerWithWaitList)     \
  X(clEnqueueBarrierWithWaitList)    \
  X(clWaitForEvents)                 \
  X(clReleaseEvent)                  \
  X(clCreateProgramWithSource)       \
  X(clCreateProgramWithBinary)       \
  X(clBuildProgram)                  \
  X(clGetProgramInfo)                \
  X(clGetProgramBuildInfo)           \
  X(clReleaseProgram)                \
  X(clCreateKernel)                  \
  X(clGetKernelWorkGroupInfo)        \
  X(clReleaseKernel)                 \
  X(clSetKernelArg)                  \
  X(clEnqueueNDRangeKernel)

/// The OpenCL loader (ICD loader) of this machine, opened at run time.
struct Icd {
#define FASTPATH_OPENCL_MEMBER(name) decltype(&::name) name = nullptr;
  FASTPATH_OPENCL_FUNCTIONS(FASTPATH_OPENCL_MEMBER)
#undef FASTPATH_OPENCL_MEMBER
};

/// Opens the loader at the first call, and again after a failure. It is never closed: drivers keep threads.
/// @throws Unavailable with the dynamic linker's words and what to install.
const Icd& icd();

/// "CL_OUT_OF_RESOURCES (-5)".
std::string error_name(cl_int code);

/// For a call that says what came of it. @throws Failure(FP_E_OUT_OF_MEMORY), DeviceLost, Unavailable, InvalidArgument
/// or Failure(FP_E_INTERNAL), each with `action` and the error's name.
void check(cl_int code, const char* action);

/// As check(), for a call that waits: here an error means that something enqueued before went wrong on the device.
void check_finished(cl_int code, const char* action);

}  // namespace fastpath_opencl
