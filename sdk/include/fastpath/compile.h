/*
 * Compiling kernels for a device that is not there: an extension of fp_plugin, hung into fp_plugin.extensions.
 *
 * A plugin that makes its kernels at run time offers it so that `fastpath compile` can fill its cache on a machine
 * without such a device, and say what each kernel needs. Compiles as C11 and as C++20. The rules of plugin.h hold:
 * structs only grow, text has a length, no exception leaves a plugin.
 */
#ifndef FASTPATH_COMPILE_H
#define FASTPATH_COMPILE_H

#include "fastpath/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The id of the extension. */
#define FP_COMPILE_ID "org.fastpath.compile"

/* What a compiler says of one kernel; negative where it says nothing. */
typedef struct fp_kernel_resources {
  uint32_t struct_size;
  uint32_t reserved;
  const char* kernel; /* name in the source */
  uint64_t kernel_size;
  int64_t registers;    /* of a work-item; vector registers on AMD */
  int64_t shared_bytes; /* memory that a group of work-items shares */
  int64_t spill_bytes;  /* of a work-item: what does not fit in registers */
  int64_t code_bytes;
} fp_kernel_resources;
#define FP_SIZE_KERNEL_RESOURCES FP_END_OF(fp_kernel_resources, code_bytes)

enum {
  FP_COMPILE_SOURCE_ONLY = 1u /* generate the source and compile nothing */
};

/* One op for one architecture. What is pointed to is valid during the call; the functions may be called any number of
 * times, from the calling thread alone. */
typedef struct fp_compile_args {
  uint32_t struct_size;
  uint32_t flags; /* FP_COMPILE_* bits */
  /* device->type and device->arch say what to compile for; nothing else of the device is known. kernels->query has said
   * yes to it. */
  const fp_kernel_query* query;
  const fp_tensor_list* parameters; /* in the order of the op's schema, in host memory */
  void* context;
  void (*take_source)(void* context, const char* text, uint64_t text_size);
  void (*take_kernel)(void* context, const fp_kernel_resources* resources);
  /* "NVRTC 12.4", and whether the code was in the cache already. */
  void (*take_compiler)(void* context, const char* text, uint64_t text_size, int32_t cached);
  const fp_error_sink* errors;
} fp_compile_args;
#define FP_SIZE_COMPILE_ARGS FP_END_OF(fp_compile_args, errors)

typedef struct fp_compile_api {
  fp_extension extension; /* its struct_size is that of this struct */
  void* context;          /* the plugin's own */
  int32_t device_type;    /* FP_DEVICE_* that it compiles for */
  int32_t reserved;
  /* Not 0 if `arch` is named as architectures of this plugin are; its compiler may still not know it. */
  int32_t (*serves)(void* context, const char* arch, uint64_t arch_size);
  /* Compiles and keeps the code where the plugin looks for it at run time. FP_E_UNAVAILABLE without a compiler,
   * FP_E_UNSUPPORTED with its words if the source does not compile. */
  int32_t (*compile)(void* context, const fp_compile_args* args);
} fp_compile_api;
#define FP_SIZE_COMPILE_API FP_END_OF(fp_compile_api, compile)

#ifdef __cplusplus
}
#endif

#endif /* FASTPATH_COMPILE_H */
