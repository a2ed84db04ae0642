/*
 * A plugin for the CPU that says yes to everything and whose kernels return at once: what is left of an evaluation is
 * what the host spends on it. It computes nothing, so it lives only with the gate switched off.
 */
#include <stddef.h>

#include "fastpath/plugin.h"

#define UNUSED(x) ((void)(x))

FASTPATH_PLUGIN_METADATA("noop", "Example", "1.0.0", "cpu", "bench");

static const fp_device_info cpu = {
    .struct_size = FP_SIZE_DEVICE_INFO, .type = FP_DEVICE_CPU, .dtypes = FP_DTYPE_BIT_F32 | FP_DTYPE_BIT_F64};

static int32_t enumerate(const fp_plugin* plugin, fp_device_list* out, const fp_error_sink* errors) {
  UNUSED(plugin);
  UNUSED(errors);
  out->stride = sizeof cpu;
  out->count = 1;
  out->items = &cpu;
  return FP_OK;
}

static int32_t ops(const fp_plugin* plugin, fp_op_list* out, const fp_error_sink* errors) {
  UNUSED(plugin);
  UNUSED(errors);
  out->count = 0;
  return FP_OK;
}

static int32_t open_device(const fp_plugin* plugin, const fp_open_args* args, fp_device** device) {
  UNUSED(plugin);
  UNUSED(args);
  *device = (fp_device*)&cpu;
  return FP_OK;
}
static void close_device(const fp_plugin* plugin, fp_device* device) {
  UNUSED(plugin);
  UNUSED(device);
}

static int32_t query(const fp_plugin* plugin, const fp_kernel_query* asked, fp_kernel_answer* answer,
                     const fp_error_sink* errors) {
  UNUSED(plugin);
  UNUSED(asked);
  UNUSED(errors);
  answer->verdict = FP_ANSWER_YES;
  return FP_OK;
}

static int32_t create(const fp_plugin* plugin, const fp_create_args* args, fp_kernel** kernel) {
  UNUSED(plugin);
  UNUSED(args);
  *kernel = (fp_kernel*)&cpu;
  return FP_OK;
}
static void destroy(fp_kernel* kernel) { UNUSED(kernel); }

static int32_t bind(fp_kernel* kernel, const fp_bind_args* args) {
  UNUSED(kernel);
  UNUSED(args);
  return FP_OK;
}

static int32_t workspace(fp_kernel* kernel, const fp_sizes* sizes, fp_workspace* out, const fp_error_sink* errors) {
  UNUSED(kernel);
  UNUSED(sizes);
  UNUSED(errors);
  out->scratch_bytes = 0;
  out->saved_bytes = 0;
  return FP_OK;
}

static int32_t run(fp_kernel* kernel, const fp_run_args* args) {
  UNUSED(kernel);
  UNUSED(args);
  return FP_OK;
}

static const fp_kernel_api kernels = {.struct_size = FP_SIZE_KERNEL_API,
                                      .query = query,
                                      .create = create,
                                      .destroy = destroy,
                                      .bind = bind,
                                      .workspace = workspace,
                                      .run = run};

static const fp_plugin plugin = {.struct_size = FP_SIZE_PLUGIN,
                                 .abi_version = FP_ABI_VERSION,
                                 .abi_min = FP_ABI_MAJOR << 16,
                                 .abi_max = FP_ABI_VERSION,
                                 .sdk_version = FP_SDK_VERSION,
                                 .numerics_version = 1,
                                 .id = "noop",
                                 .id_size = 4,
                                 .vendor = "Example",
                                 .vendor_size = 7,
                                 .version = "1.0.0",
                                 .version_size = 5,
                                 .enumerate = enumerate,
                                 .open = open_device,
                                 .close = close_device,
                                 .ops = ops,
                                 .kernels = &kernels};

FP_EXPORT int32_t fastpath_plugin_query_v1(const fp_host* host, const fp_plugin** out);
int32_t fastpath_plugin_query_v1(const fp_host* host, const fp_plugin** out) {
  UNUSED(host);
  *out = &plugin;
  return FP_OK;
}
