/* A plugin in C: all that a vendor needs is plugin.h. One op, y = 2 x in float64 on the CPU. */
#include <string.h>

#include "fastpath/plugin.h"

FASTPATH_PLUGIN_METADATA("plain", "Example", "1.0", "cpu", "test");

static const char kOp[] = "org.example.double";
static int the_device, the_kernel;

static void fail(const fp_error_sink* errors, int32_t status, const char* text) {
  if (errors != 0 && errors->struct_size >= FP_SIZE_ERROR_SINK && errors->report != 0) {
    errors->report(errors->context, status, text, strlen(text));
  }
}

static int32_t enumerate(const fp_plugin* plugin, fp_device_list* out, const fp_error_sink* errors) {
  static const fp_device_info device = {
      .struct_size = FP_SIZE_DEVICE_INFO, .type = FP_DEVICE_CPU, .name = "CPU", .name_size = 3};
  (void)plugin, (void)errors;
  out->stride = sizeof device;
  out->count = 1;
  out->items = &device;
  return FP_OK;
}
static int32_t open_device(const fp_plugin* plugin, const fp_open_args* args, fp_device** device) {
  (void)plugin, (void)args;
  *device = (fp_device*)&the_device;
  return FP_OK;
}
static void close_device(const fp_plugin* plugin, fp_device* device) { (void)plugin, (void)device; }
static int32_t ops(const fp_plugin* plugin, fp_op_list* out, const fp_error_sink* errors) {
  static const fp_op_info op = {FP_SIZE_OP_INFO, 1, kOp, sizeof kOp - 1, FP_DEVICE_CPU, FP_DTYPE_BIT_F64,
                                FP_PASS_FORWARD, 0};
  (void)plugin, (void)errors;
  out->stride = sizeof op;
  out->count = 1;
  out->items = &op;
  return FP_OK;
}

static int32_t query(const fp_plugin* plugin, const fp_kernel_query* asked, fp_kernel_answer* answer,
                     const fp_error_sink* errors) {
  (void)plugin, (void)errors;
  if (asked->op_size == sizeof kOp - 1 && memcmp(asked->op, kOp, sizeof kOp - 1) == 0) {
    answer->verdict = FP_ANSWER_YES;
  } else {
    answer->verdict = FP_ANSWER_NO;
    answer->add_blocker(answer->context, FP_REASON_OP, "only org.example.double", 23);
  }
  return FP_OK;
}
static int32_t create(const fp_plugin* plugin, const fp_create_args* args, fp_kernel** kernel) {
  (void)plugin, (void)args;
  *kernel = (fp_kernel*)&the_kernel;
  return FP_OK;
}
static void destroy(fp_kernel* kernel) { (void)kernel; }
static int32_t bind(fp_kernel* kernel, const fp_bind_args* args) {
  (void)kernel, (void)args;
  return FP_OK;
}
static int32_t workspace(fp_kernel* kernel, const fp_sizes* sizes, fp_workspace* out, const fp_error_sink* errors) {
  (void)kernel, (void)sizes, (void)errors;
  out->scratch_bytes = 0;
  out->saved_bytes = 0;
  return FP_OK;
}
static int32_t run(fp_kernel* kernel, const fp_run_args* args) {
  const fp_tensor *x = args->inputs->items, *y = args->outputs->items;
  (void)kernel;
  if (x->ndim != 1 || y->ndim != 1 || x->shape[0] != y->shape[0]) {
    fail(args->errors, FP_E_INVALID_ARGUMENT, "x and y are not two vectors of one length");
    return FP_E_INVALID_ARGUMENT;
  }
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    ((double*)((char*)y->data + y->byte_offset))[i * y->strides[0]] =
        2 * ((const double*)((const char*)x->data + x->byte_offset))[i * x->strides[0]];
  }
  return FP_OK;
}

static const fp_kernel_api kernels = {FP_SIZE_KERNEL_API, 0, query, create, destroy, bind, workspace, run};
static const fp_plugin plugin = {.struct_size = FP_SIZE_PLUGIN,
                                 .abi_version = FP_ABI_VERSION,
                                 .abi_min = FP_ABI_MAJOR << 16,
                                 .abi_max = FP_ABI_VERSION,
                                 .sdk_version = FP_SDK_VERSION,
                                 .numerics_version = 1,
                                 .id = "plain",
                                 .id_size = 5,
                                 .vendor = "Example",
                                 .vendor_size = 7,
                                 .version = "1.0",
                                 .version_size = 3,
                                 .enumerate = enumerate,
                                 .open = open_device,
                                 .close = close_device,
                                 .ops = ops,
                                 .kernels = &kernels};

FP_EXPORT int32_t fastpath_plugin_query_v1(const fp_host* host, const fp_plugin** out) {
  if (host->abi_min > FP_ABI_VERSION || host->abi_max < plugin.abi_min) return FP_E_INCOMPATIBLE;
  *out = &plugin;
  return FP_OK;
}
