#include "source.hpp"

namespace fastpath_gpu {
namespace {

constexpr const char* kCuda = R"(typedef int i32;
typedef long long i64;
#define FP_KERNEL(group_size) extern "C" __global__ void __launch_bounds__(group_size)
#ifdef __HIP__
#define FP_KERNEL_LARGE(group_size) FP_KERNEL(group_size)
#else
#define FP_KERNEL_LARGE(group_size) extern "C" __global__ void __launch_bounds__(group_size, 1)
#endif
#define FP_DEVICE static __device__ inline
#define FP_GLOBAL
#define FP_SHARED __shared__
#define FP_RESTRICT __restrict__
#define FP_GROUP ((i64)blockIdx.x)
#define FP_LANE ((i32)threadIdx.x)
#define FP_BARRIER() __syncthreads()
#define FP_PRAGMA(text) _Pragma(#text)
#define FP_UNROLL(times) FP_PRAGMA(unroll times)
)";

constexpr const char* kOpenCl = R"(typedef int i32;
typedef long i64;
#define FP_KERNEL(group_size) __kernel __attribute__((reqd_work_group_size(group_size, 1, 1))) void
#define FP_KERNEL_LARGE(group_size) FP_KERNEL(group_size)
#define FP_DEVICE static inline
#define FP_GLOBAL __global
#define FP_SHARED __local
#define FP_RESTRICT restrict
#define FP_GROUP ((i64)get_group_id(0))
#define FP_LANE ((i32)get_local_id(0))
#define FP_BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define FP_UNROLL(times)
)";

// The items of a group are run one after the other by the program that loads this; see tests/gpu.
constexpr const char* kHost = R"(#include <cmath>
typedef int i32;
typedef long long i64;
struct fp_host_items {
  i64 (*group)();
  i32 (*lane)();
  void (*barrier)(i32 line);
  void (*shared)(void* memory, i64 bytes);  // tells of an array at the top of a kernel
};
static fp_host_items fp_items;
extern "C" void fp_connect(const fp_host_items* items) { fp_items = *items; }
#define FP_DEVICE static inline
#define FP_GLOBAL
#define FP_SHARED static
#define FP_RESTRICT
#define FP_GROUP (fp_items.group())
#define FP_LANE (fp_items.lane())
#define FP_BARRIER() fp_items.barrier(__LINE__)
#define FP_UNROLL(times)
)";

// CUDA, HIP: one function per type. OpenCL and C++: overloads.
constexpr const char* kMathFloat = R"(typedef float real;
#define fp_exp expf
#define fp_sin sinf
#define fp_cos cosf
#define fp_tanh tanhf
#define fp_pow powf
#define fp_sqrt sqrtf
#define fp_abs fabsf
#define fp_max fmaxf
#define fp_fma fmaf
)";
constexpr const char* kMathDouble = R"(typedef double real;
#define fp_exp exp
#define fp_sin sin
#define fp_cos cos
#define fp_tanh tanh
#define fp_pow pow
#define fp_sqrt sqrt
#define fp_abs fabs
#define fp_max fmax
#define fp_fma fma
)";

}  // namespace

std::string prelude(const Target& target, sdk::DType dtype) {
  const bool wide = dtype == sdk::kFloat64;
  std::string text;
  switch (target.language) {
    case Language::cuda:
    case Language::hip:
      text = kCuda;
      break;
    case Language::opencl:
      text = target.fp64 ? std::string("#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n") + kOpenCl : kOpenCl;
      break;
    case Language::host:
      text = kHost;
      break;
  }
  // OpenCL's functions are the double ones by name, overloaded by type.
  std::string mathematics = wide || target.language == Language::opencl ? kMathDouble : kMathFloat;
  if (!wide && target.language == Language::opencl) {
    mathematics.replace(mathematics.find("double"), 6, "float");
  }
  return text + mathematics;
}

}  // namespace fastpath_gpu
