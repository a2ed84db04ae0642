/*
 * A small, correct plugin for the CPU, and every way of getting one thing wrong: each library of the zoo is this file
 * with one of the macros below. ZOO_ID is its id. Written in C, so that the ABI is used from C too.
 */
#include <stddef.h>

#include "fastpath/plugin.h"

#define TEXT(literal) literal, sizeof(literal) - 1
#define UNUSED(x) ((void)(x))

/* ---- Metadata ---- */

#if defined(ZOO_NO_METADATA)
#elif defined(ZOO_METADATA_MAGIC) || defined(ZOO_METADATA_SHORT) || defined(ZOO_METADATA_UNTERMINATED) ||  \
    defined(ZOO_METADATA_LATER_ABI) || defined(ZOO_METADATA_ABI_ZERO) || defined(ZOO_METADATA_SDK_ZERO) || \
    defined(ZOO_METADATA_TWICE)
__attribute__((used, section(FP_METADATA_SECTION))) static const fp_metadata metadata[] = {
    {
        .struct_size = sizeof(fp_metadata),
        .magic = FP_METADATA_MAGIC,
        .abi_version = FP_ABI_VERSION,
        .abi_min = FP_ABI_MAJOR << 16,
        .abi_max = FP_ABI_VERSION,
        .sdk_version = FP_SDK_VERSION,
        .id = ZOO_ID,
        .vendor = "Zoo",
        .version = "1.2.3",
        .device_kinds = "cpu",
#if defined(ZOO_METADATA_MAGIC)
        .magic = 0x12345678,
#elif defined(ZOO_METADATA_SHORT)
        .struct_size = 24,
#elif defined(ZOO_METADATA_UNTERMINATED)
        .vendor =
            "0123456789012345678901234567890123456789012345678901234567890123", /* 64 bytes: no room for the end */
#elif defined(ZOO_METADATA_LATER_ABI)
        .abi_version = (FP_ABI_MAJOR << 16) + 9,
        .abi_min = (FP_ABI_MAJOR << 16) + 7,
        .abi_max = (FP_ABI_MAJOR << 16) + 9,
#elif defined(ZOO_METADATA_ABI_ZERO)
        .abi_version = 0,
#elif defined(ZOO_METADATA_SDK_ZERO)
        .sdk_version = 0,
#endif
    }
#if defined(ZOO_METADATA_TWICE)
    ,
    {.struct_size = sizeof(fp_metadata), .magic = FP_METADATA_MAGIC}
#endif
};
#elif defined(ZOO_METADATA_ID)
FASTPATH_PLUGIN_METADATA("an id", "Zoo", "1.2.3", "cpu", "");
#elif defined(ZOO_METADATA_KINDS)
FASTPATH_PLUGIN_METADATA(ZOO_ID, "Zoo", "1.2.3", "toaster", "");
#elif defined(ZOO_FUTURE_KIND)
FASTPATH_PLUGIN_METADATA(ZOO_ID, "Zoo", "1.2.3", "toaster, cpu", "");
#elif defined(ZOO_GPU_ONLY)
FASTPATH_PLUGIN_METADATA(ZOO_ID, "Zoo", "1.2.3", "cuda,hip", "");
#elif defined(ZOO_BUILD_TAG)
FASTPATH_PLUGIN_METADATA(ZOO_ID, "Zoo", "1.2.3", "cpu", ZOO_BUILD_TAG);
#else
FASTPATH_PLUGIN_METADATA(ZOO_ID, "Zoo", "1.2.3", "cpu", "zoo");
#endif

/* ---- What the plugin has ---- */

#if defined(ZOO_THROWS_IN_QUERY) || defined(ZOO_THROWS_IN_ENUMERATE) || defined(ZOO_THROWS_IN_OPS)
void zoo_throw(void); /* C++, in throwing.cpp */
#endif
#if defined(ZOO_UNDEFINED_SYMBOL)
int zoo_nobody_defines_this(void);
#endif
#if defined(ZOO_MISSING_DEPENDENCY)
int zoo_absent_library(void);
#endif

#if defined(ZOO_DEED_IN_CONSTRUCTOR) || defined(ZOO_DEED_IN_QUERY) || defined(ZOO_DEED_IN_ENUMERATE) || \
    defined(ZOO_DEED_IN_DESTRUCTOR)
void zoo_deed(void); /* deed.c */
#endif
#if defined(ZOO_DEED_IN_CONSTRUCTOR)
__attribute__((constructor)) static void construct(void) { zoo_deed(); }
#elif defined(ZOO_DEED_IN_DESTRUCTOR)
__attribute__((destructor)) static void destruct(void) { zoo_deed(); }
#endif

static void report(const fp_error_sink* errors, int32_t status, const char* text, uint64_t size) {
  if (errors != NULL && errors->report != NULL) errors->report(errors->context, status, text, size);
}

static fp_device_info devices[2];

static int32_t enumerate(const fp_plugin* plugin, fp_device_list* out, const fp_error_sink* errors) {
  UNUSED(plugin);
  report(errors, FP_OK, TEXT(""));
  for (int i = 0; i < 2; ++i) {
    devices[i].struct_size = FP_SIZE_DEVICE_INFO;
    devices[i].type = FP_DEVICE_CPU;
    devices[i].index = 0;
    devices[i].name = "Zoo's \xff name"; /* not UTF-8: shown with a replacement character */
    devices[i].name_size = 12;
    devices[i].dtypes = FP_DTYPE_BIT_F32 | FP_DTYPE_BIT_F64;
  }
  out->stride = sizeof(fp_device_info);
  out->count = 1;
  out->items = devices;
#if defined(ZOO_ENUMERATE_UNAVAILABLE)
  report(errors, FP_E_UNAVAILABLE, TEXT("libzoo.so.1, the zoo's driver, is not installed"));
  return FP_E_UNAVAILABLE;
#elif defined(ZOO_ENUMERATE_NONE)
  out->count = 0;
#elif defined(ZOO_ENUMERATE_FAILS)
  report(errors, FP_E_INTERNAL, TEXT("first cause"));
  report(errors, FP_E_INTERNAL, TEXT("in between"));
  report(errors, FP_E_INTERNAL, TEXT("last cause"));
  return FP_E_INTERNAL;
#elif defined(ZOO_ENUMERATE_UNKNOWN_STATUS)
  return 77;
#elif defined(ZOO_THROWS_IN_ENUMERATE)
  zoo_throw();
#elif defined(ZOO_ENUMERATE_COUNT)
  out->count = UINT64_C(0x7fffffffffffffff);
#elif defined(ZOO_ENUMERATE_NULL_ITEMS)
  out->items = NULL;
#elif defined(ZOO_ENUMERATE_STRIDE)
  out->stride = 4;
#elif defined(ZOO_ENUMERATE_ITEM_SIZE)
  devices[0].struct_size = 8;
#elif defined(ZOO_ENUMERATE_TEXT_SIZE)
  devices[0].name_size = UINT64_C(1) << 60;
#elif defined(ZOO_ENUMERATE_TWICE)
  out->count = 2;
#elif defined(ZOO_ENUMERATE_INDEX)
  devices[0].index = -1;
#elif defined(ZOO_ENUMERATE_UNDECLARED)
  devices[0].type = FP_DEVICE_CUDA;
#elif defined(ZOO_FUTURE_KIND)
  out->count = 2;
  devices[0].type = 4711;
#elif defined(ZOO_GPU_ONLY)
  devices[0].type = FP_DEVICE_CUDA;
#elif defined(ZOO_DEED_IN_ENUMERATE)
  zoo_deed();
#endif
  return FP_OK;
}

static const fp_op_info op_items[] = {{.struct_size = FP_SIZE_OP_INFO,
                                       .op_version = 1,
                                       .op = "org.example.nothing",
                                       .op_size = 19,
                                       .device_type = FP_DEVICE_CPU,
                                       .dtypes = FP_DTYPE_BIT_F64,
                                       .passes = FP_PASS_FORWARD | FP_PASS_BACKWARD}};

static int32_t ops(const fp_plugin* plugin, fp_op_list* out, const fp_error_sink* errors) {
  UNUSED(plugin);
  UNUSED(errors);
  out->stride = sizeof(fp_op_info);
  out->count = 1;
  out->items = op_items;
#if defined(ZOO_OPS_FAIL)
  return FP_E_INTERNAL;
#elif defined(ZOO_THROWS_IN_OPS)
  zoo_throw();
#elif defined(ZOO_OPS_COUNT)
  out->count = UINT64_C(0xffffffffffffffff);
#endif
  return FP_OK;
}

static int32_t open_device(const fp_plugin* plugin, const fp_open_args* args, fp_device** device) {
  UNUSED(plugin);
  UNUSED(args);
  *device = (fp_device*)devices;
  return FP_OK;
}
static void close_device(const fp_plugin* plugin, fp_device* device) {
  UNUSED(plugin);
  UNUSED(device);
}

static int32_t kernel_query(const fp_plugin* plugin, const fp_kernel_query* query, fp_kernel_answer* answer,
                            const fp_error_sink* errors) {
  UNUSED(plugin);
  UNUSED(query);
  UNUSED(errors);
  answer->add_blocker(answer->context, FP_REASON_OP, TEXT("the zoo computes nothing"));
  answer->verdict = FP_ANSWER_NO;
  return FP_OK;
}
static int32_t kernel_create(const fp_plugin* plugin, const fp_create_args* args, fp_kernel** kernel) {
  UNUSED(plugin);
  UNUSED(args);
  UNUSED(kernel);
  return FP_E_UNSUPPORTED;
}
static void kernel_destroy(fp_kernel* kernel) { UNUSED(kernel); }
static int32_t kernel_bind(fp_kernel* kernel, const fp_bind_args* args) {
  UNUSED(kernel);
  UNUSED(args);
  return FP_E_UNSUPPORTED;
}
static int32_t kernel_workspace(fp_kernel* kernel, const fp_sizes* sizes, fp_workspace* out,
                                const fp_error_sink* errors) {
  UNUSED(kernel);
  UNUSED(sizes);
  UNUSED(out);
  UNUSED(errors);
  return FP_E_UNSUPPORTED;
}
#if !defined(ZOO_NULL_RUN)
static int32_t kernel_run(fp_kernel* kernel, const fp_run_args* args) {
  UNUSED(kernel);
  UNUSED(args);
  return FP_E_UNSUPPORTED;
}
#endif

static const fp_kernel_api kernels = {
#if defined(ZOO_KERNELS_SMALL)
    .struct_size = 16,
#else
    .struct_size = FP_SIZE_KERNEL_API,
#endif
    .query = kernel_query,
    .create = kernel_create,
    .destroy = kernel_destroy,
    .bind = kernel_bind,
    .workspace = kernel_workspace,
#if !defined(ZOO_NULL_RUN)
    .run = kernel_run,
#endif
};

#if defined(ZOO_NULL_MEMORY_ENTRY)
static const fp_memory_api memory = {.struct_size = FP_SIZE_MEMORY_API};
#endif

/* A later header: members after the last one that this host knows. */
typedef struct later_plugin {
  fp_plugin known;
  uint64_t unknown[8];
} later_plugin;

static const later_plugin plugin = {.known =
                                        {
                                            .abi_version = FP_ABI_VERSION,
                                            .abi_min = FP_ABI_MAJOR << 16,
                                            .abi_max = FP_ABI_VERSION,
                                            .sdk_version = FP_SDK_VERSION,
                                            .numerics_version = 1,
                                            .id = ZOO_ID,
                                            .id_size = sizeof(ZOO_ID) - 1,
                                            .vendor = "Zoo",
                                            .vendor_size = 3,
                                            .version = "1.2.3",
                                            .version_size = 5,
                                            .enumerate = enumerate,
                                            .open = open_device,
                                            .close = close_device,
                                            .ops = ops,
                                            .kernels = &kernels,
#if defined(ZOO_SIZE_ZERO)
                                            .struct_size = 0,
#elif defined(ZOO_SIZE_SHORT)
                                            .struct_size = FP_END_OF(fp_plugin, open),
#elif defined(ZOO_SIZE_GARBAGE)
                                            .struct_size = 0xfffffff0u,
#elif defined(ZOO_SIZE_LARGER)
                                            .struct_size = sizeof(later_plugin),
#elif defined(ZOO_SIZE_SMALLER)
                                            .struct_size = FP_END_OF(fp_plugin, kernels),
#else
                                            .struct_size = FP_SIZE_PLUGIN,
#endif
#if defined(ZOO_LATER_ABI)
                                            .abi_version = (FP_ABI_MAJOR + 1) << 16,
                                            .abi_min = (FP_ABI_MAJOR + 1) << 16,
                                            .abi_max = (FP_ABI_MAJOR + 1) << 16,
#elif defined(ZOO_ABI_ZERO)
                                            .abi_version = 0,
#elif defined(ZOO_ABI_RANGE)
                                            .abi_min = FP_ABI_VERSION + 1,
#elif defined(ZOO_SDK_ZERO)
                                            .sdk_version = 0,
#elif defined(ZOO_NULL_ENUMERATE)
                                            .enumerate = NULL,
#elif defined(ZOO_NULL_KERNELS)
                                            .kernels = NULL,
#elif defined(ZOO_NULL_MEMORY_ENTRY)
                                            .memory = &memory,
#elif defined(ZOO_OTHER_ID)
                                            .id = "somebody",
                                            .id_size = 8,
#elif defined(ZOO_OTHER_VERSION)
                                            .version = "1.2.4",
#elif defined(ZOO_ID_SIZE)
                                            .id_size = UINT64_C(1) << 50,
#endif
                                        },
                                    .unknown = {1, 2, 3, 4, 5, 6, 7, 8}};

/* ---- The exported function ---- */

#if defined(ZOO_NO_SYMBOL)
FP_EXPORT int32_t zoo_something_else(const fp_host* host, const fp_plugin** out);
int32_t zoo_something_else(const fp_host* host, const fp_plugin** out) {
#elif defined(ZOO_OTHER_MAJOR)
FP_EXPORT int32_t fastpath_plugin_query_v2(const fp_host* host, const fp_plugin** out);
int32_t fastpath_plugin_query_v2(const fp_host* host, const fp_plugin** out) {
#elif defined(ZOO_SYMBOL_IS_DATA)
extern FP_EXPORT int fastpath_plugin_query_v1;
int fastpath_plugin_query_v1 = 1;
int32_t zoo_unused(const fp_host* host, const fp_plugin** out);
int32_t zoo_unused(const fp_host* host, const fp_plugin** out) {
#else
FP_EXPORT int32_t fastpath_plugin_query_v1(const fp_host* host, const fp_plugin** out);
int32_t fastpath_plugin_query_v1(const fp_host* host, const fp_plugin** out) {
#endif
  UNUSED(host);
  *out = &plugin.known;
#if defined(ZOO_QUERY_FAILS)
  host->log(host->context, FP_LOG_ERROR, TEXT("the zoo is closed"));
  return FP_E_INTERNAL;
#elif defined(ZOO_QUERY_UNKNOWN_STATUS)
  return -1234;
#elif defined(ZOO_QUERY_UNAVAILABLE)
  host->log(host->context, FP_LOG_WARNING, TEXT("no zoo in this town"));
  return FP_E_UNAVAILABLE;
#elif defined(ZOO_QUERY_INCOMPATIBLE)
  return FP_E_INCOMPATIBLE;
#elif defined(ZOO_QUERY_NULL)
*out = NULL;
#elif defined(ZOO_THROWS_IN_QUERY)
zoo_throw();
#elif defined(ZOO_DEED_IN_QUERY)
zoo_deed();
#elif defined(ZOO_UNDEFINED_SYMBOL)
return zoo_nobody_defines_this();
#elif defined(ZOO_MISSING_DEPENDENCY)
return zoo_absent_library();
#endif
  return FP_OK;
}
