#include "icd.hpp"

#include <mutex>
#include <utility>

#include "runtime/backend.hpp"
#include "runtime/shared_library.hpp"

namespace fastpath_opencl {
namespace {

namespace gpu = fastpath_gpu;
namespace sdk = fastpath::sdk;

Icd open_icd() {
  const gpu::SharedLibrary library({"libOpenCL.so.1", "libOpenCL.so"}, "the OpenCL loader");
  Icd found;
#define FASTPATH_OPENCL_LOAD(name) library.get(found.name, #name, "a loader for OpenCL 1.2");
  FASTPATH_OPENCL_FUNCTIONS(FASTPATH_OPENCL_LOAD)
#undef FASTPATH_OPENCL_LOAD
  return found;
}

}  // namespace

const Icd& icd() {
  static std::mutex mutex;
  static const Icd* opened = nullptr;  // never destroyed: devices may be closed after statics are gone
  const std::lock_guard lock(mutex);
  if (opened != nullptr) return *opened;
  try {
    opened = new Icd(open_icd());
  } catch (const sdk::Unavailable& error) {
    throw sdk::Unavailable(error.what() +
                           std::string("; it comes with the driver of a GPU, or with the package ocl-icd-libopencl1"));
  }
  return *opened;
}

std::string error_name(cl_int code) {
  static constexpr std::pair<cl_int, const char*> kNames[] = {
      {CL_DEVICE_NOT_FOUND, "CL_DEVICE_NOT_FOUND"},
      {CL_DEVICE_NOT_AVAILABLE, "CL_DEVICE_NOT_AVAILABLE"},
      {CL_COMPILER_NOT_AVAILABLE, "CL_COMPILER_NOT_AVAILABLE"},
      {CL_MEM_OBJECT_ALLOCATION_FAILURE, "CL_MEM_OBJECT_ALLOCATION_FAILURE"},
      {CL_OUT_OF_RESOURCES, "CL_OUT_OF_RESOURCES"},
      {CL_OUT_OF_HOST_MEMORY, "CL_OUT_OF_HOST_MEMORY"},
      {CL_MEM_COPY_OVERLAP, "CL_MEM_COPY_OVERLAP"},
      {CL_BUILD_PROGRAM_FAILURE, "CL_BUILD_PROGRAM_FAILURE"},
      {CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
      {CL_INVALID_VALUE, "CL_INVALID_VALUE"},
      {CL_INVALID_DEVICE, "CL_INVALID_DEVICE"},
      {CL_INVALID_CONTEXT, "CL_INVALID_CONTEXT"},
      {CL_INVALID_COMMAND_QUEUE, "CL_INVALID_COMMAND_QUEUE"},
      {CL_INVALID_MEM_OBJECT, "CL_INVALID_MEM_OBJECT"},
      {CL_INVALID_BINARY, "CL_INVALID_BINARY"},
      {CL_INVALID_BUILD_OPTIONS, "CL_INVALID_BUILD_OPTIONS"},
      {CL_INVALID_PROGRAM_EXECUTABLE, "CL_INVALID_PROGRAM_EXECUTABLE"},
      {CL_INVALID_KERNEL_NAME, "CL_INVALID_KERNEL_NAME"},
      {CL_INVALID_KERNEL_ARGS, "CL_INVALID_KERNEL_ARGS"},
      {CL_INVALID_WORK_GROUP_SIZE, "CL_INVALID_WORK_GROUP_SIZE"},
      {CL_INVALID_WORK_ITEM_SIZE, "CL_INVALID_WORK_ITEM_SIZE"},
      {CL_INVALID_BUFFER_SIZE, "CL_INVALID_BUFFER_SIZE"},
      {CL_INVALID_GLOBAL_WORK_SIZE, "CL_INVALID_GLOBAL_WORK_SIZE"},
      {-1001, "CL_PLATFORM_NOT_FOUND_KHR"}};
  for (const auto& [known, name] : kNames) {
    if (known == code) return std::string(name) + " (" + std::to_string(code) + ")";
  }
  return "OpenCL error " + std::to_string(code);
}

void check(cl_int code, const char* action) {
  if (code == CL_SUCCESS) return;
  const std::string text = std::string(action) + ": " + error_name(code);
  switch (code) {
    case CL_MEM_OBJECT_ALLOCATION_FAILURE:
    case CL_OUT_OF_RESOURCES:
    case CL_OUT_OF_HOST_MEMORY:
    case CL_INVALID_BUFFER_SIZE:  // more than one buffer may have
      throw sdk::Failure(FP_E_OUT_OF_MEMORY, text);
    case CL_DEVICE_NOT_AVAILABLE:
      throw gpu::DeviceLost(text);
    case CL_COMPILER_NOT_AVAILABLE:
      throw sdk::Unavailable(text);
    case CL_MEM_COPY_OVERLAP:
    case CL_INVALID_MEM_OBJECT:
    case CL_INVALID_VALUE:  // a range outside of a buffer
      throw sdk::InvalidArgument(text);
    default:
      throw sdk::Failure(FP_E_INTERNAL, text);
  }
}

void check_finished(cl_int code, const char* action) {
  switch (code) {
    case CL_OUT_OF_RESOURCES:  // what drivers say after an access that was not allowed; the context is then dead
    case CL_INVALID_COMMAND_QUEUE:
    case CL_INVALID_CONTEXT:
    case CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST:
      throw gpu::DeviceLost(std::string(action) + ": " + error_name(code));
    default:
      check(code, action);
  }
}

}  // namespace fastpath_opencl
