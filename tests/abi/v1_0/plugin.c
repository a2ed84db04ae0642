/* A plugin as it was written for ABI 1.0, against the header beside it and nothing else. It stays as it is: hosts of
 * later versions must go on loading it.
 *
 * org.example.edge_sum, version 1: out[n] = factor * weight * sum over edges e of n of x[e]^2, float64 on the CPU.
 * Configuration: factor. Parameter: weight [1]. Passes: forward, which saves 2 x[e], and backward. */
#include <string.h>

#include "fastpath/plugin.h"

FASTPATH_PLUGIN_METADATA("abi_1_0", "Example", "1.0", "cpu", "");

static const char kOp[] = "org.example.edge_sum";
static const fp_host* the_host;

struct device {
  int32_t threads;
};
struct kernel {
  double factor, weight;
};

static int32_t fail(const fp_error_sink* errors, int32_t status, const char* text) {
  if (errors != 0 && errors->report != 0) errors->report(errors->context, status, text, strlen(text));
  return status;
}

static void* get(uint64_t bytes) { return the_host->allocate(the_host->context, bytes, 16); }
static void put_back(void* memory) { the_host->release(the_host->context, memory); }

static int32_t enumerate(const fp_plugin* plugin, fp_device_list* out, const fp_error_sink* errors) {
  static const fp_device_info device = {
      .struct_size = FP_SIZE_DEVICE_INFO, .type = FP_DEVICE_CPU, .dtypes = FP_DTYPE_BIT_F64};
  (void)plugin, (void)errors;
  out->stride = sizeof device;
  out->count = 1;
  out->items = &device;
  return FP_OK;
}

static int32_t open_device(const fp_plugin* plugin, const fp_open_args* args, fp_device** out) {
  struct device* device;
  (void)plugin;
  if (args->device->type != FP_DEVICE_CPU) return fail(args->errors, FP_E_UNAVAILABLE, "not a CPU");
  device = get(sizeof *device);
  if (device == 0) return fail(args->errors, FP_E_OUT_OF_MEMORY, "no memory for a device");
  device->threads = the_host->thread_budget(the_host->context);
  *out = (fp_device*)device;
  return FP_OK;
}
static void close_device(const fp_plugin* plugin, fp_device* device) {
  (void)plugin;
  put_back(device);
}

static int32_t ops(const fp_plugin* plugin, fp_op_list* out, const fp_error_sink* errors) {
  static const fp_op_info op = {.struct_size = FP_SIZE_OP_INFO,
                                .op_version = 1,
                                .op = kOp,
                                .op_size = sizeof kOp - 1,
                                .device_type = FP_DEVICE_CPU,
                                .dtypes = FP_DTYPE_BIT_F64,
                                .passes = FP_PASS_FORWARD | FP_PASS_BACKWARD};
  (void)plugin, (void)errors;
  out->stride = sizeof op;
  out->count = 1;
  out->items = &op;
  return FP_OK;
}

/* The one attribute, or 0 if it is not there or not alone. */
static const double* factor_of(const fp_attribute_list* config) {
  if (config->count != 1 || config->items->kind != FP_ATTRIBUTE_F64 || config->items->count != 1) return 0;
  if (config->items->name_size != 6 || memcmp(config->items->name, "factor", 6) != 0) return 0;
  return config->items->data;
}

static int32_t query(const fp_plugin* plugin, const fp_kernel_query* asked, fp_kernel_answer* answer,
                     const fp_error_sink* errors) {
  static const char op_text[] = "only org.example.edge_sum 1", dtype_text[] = "only float64",
                    pass_text[] = "only forward and backward", config_text[] = "expected factor alone";
  int32_t blocked = 0;
  (void)plugin, (void)errors;
  if (asked->op_size != sizeof kOp - 1 || memcmp(asked->op, kOp, sizeof kOp - 1) != 0 || asked->op_version != 1) {
    answer->add_blocker(answer->context, FP_REASON_OP, op_text, sizeof op_text - 1);
    answer->verdict = FP_ANSWER_NO;
    return FP_OK;
  }
  if (asked->dtype_code != FP_CODE_FLOAT || asked->dtype_bits != 64 || asked->dtype_lanes != 1) {
    answer->add_blocker(answer->context, FP_REASON_DTYPE, dtype_text, sizeof dtype_text - 1);
    blocked = 1;
  }
  if ((asked->passes & ~(FP_PASS_FORWARD | FP_PASS_BACKWARD)) != 0) {
    answer->add_blocker(answer->context, FP_REASON_PASS, pass_text, sizeof pass_text - 1);
    blocked = 1;
  }
  if (factor_of(asked->config) == 0) {
    answer->add_blocker(answer->context, FP_REASON_CONFIG, config_text, sizeof config_text - 1);
    blocked = 1;
  }
  answer->verdict = blocked ? FP_ANSWER_NO : FP_ANSWER_YES;
  answer->prior_edges = -1;
  answer->flags = FP_KERNEL_DETERMINISTIC;
  answer->math_mode = FP_MATH_FULL;
  answer->rank = 3;
  return FP_OK;
}

static int32_t create(const fp_plugin* plugin, const fp_create_args* args, fp_kernel** out) {
  struct kernel* kernel = get(sizeof *kernel);
  (void)plugin;
  if (kernel == 0) return fail(args->errors, FP_E_OUT_OF_MEMORY, "no memory for a kernel");
  kernel->factor = *factor_of(args->query->config);
  kernel->weight = 0;
  *out = (fp_kernel*)kernel;
  return FP_OK;
}
static void destroy(fp_kernel* kernel) { put_back(kernel); }

static const fp_tensor* item(const fp_tensor_list* list, uint64_t i) {
  return list == 0 || i >= list->count ? 0 : (const fp_tensor*)((const char*)list->items + i * list->stride);
}
static double* data_of(const fp_tensor* tensor) {
  return tensor == 0 || tensor->access == FP_ACCESS_ABSENT ? 0 : (double*)((char*)tensor->data + tensor->byte_offset);
}

static int32_t bind(fp_kernel* opaque, const fp_bind_args* args) {
  const double* weight = data_of(item(args->parameters, 0));
  if (weight == 0 || args->version == 0) return fail(args->errors, FP_E_INVALID_ARGUMENT, "no weight, or version 0");
  ((struct kernel*)opaque)->weight = *weight;
  return FP_OK;
}

static int32_t workspace(fp_kernel* kernel, const fp_sizes* sizes, fp_workspace* out, const fp_error_sink* errors) {
  (void)kernel, (void)errors;
  out->scratch_bytes = (uint64_t)sizes->n_receivers * sizeof(double);
  out->saved_bytes = (uint64_t)sizes->n_edges * sizeof(double);
  return FP_OK;
}

static int32_t run(fp_kernel* opaque, const fp_run_args* args) {
  const struct kernel* kernel = (const struct kernel*)opaque;
  const fp_graph* graph = args->graph;
  const double* x = data_of(item(args->inputs, 0));
  const int64_t* first_edge;
  double *saved = args->saved, *sums = args->scratch, grad_weight = 0;
  int64_t n, e;
  if (graph == 0) return fail(args->errors, FP_E_INVALID_ARGUMENT, "no graph");
  if (args->saved_bytes < (uint64_t)graph->n_edges * sizeof(double) ||
      args->scratch_bytes < (uint64_t)graph->n_receivers * sizeof(double)) {
    return fail(args->errors, FP_E_INVALID_ARGUMENT, "less memory than workspace said");
  }
  first_edge = (const int64_t*)((const char*)graph->receiver_ptr->data + graph->receiver_ptr->byte_offset);
  if (args->pass == FP_PASS_FORWARD) {
    double* out = data_of(item(args->outputs, 0));
    for (n = 0; n < graph->n_receivers; ++n) {
      sums[n] = 0;
      for (e = first_edge[n]; e < first_edge[n + 1]; ++e) {
        sums[n] += x[e] * x[e];
        saved[e] = 2 * x[e];
      }
      out[n] = kernel->factor * kernel->weight * sums[n];
    }
    return FP_OK;
  }
  if (args->pass == FP_PASS_BACKWARD) {
    const double* g = data_of(item(args->grad_outputs, 0));
    double *grad_x = data_of(item(args->grad_inputs, 0)), *out = data_of(item(args->grad_parameters, 0));
    for (n = 0; n < graph->n_receivers; ++n) {
      for (e = first_edge[n]; e < first_edge[n + 1]; ++e) {
        if (grad_x != 0) grad_x[e] = g[n] * kernel->factor * kernel->weight * saved[e];
        grad_weight += g[n] * kernel->factor * saved[e] * saved[e] / 4;
      }
    }
    if (out != 0) *out = grad_weight;
    return FP_OK;
  }
  return fail(args->errors, FP_E_UNSUPPORTED, "only forward and backward");
}

static const fp_kernel_api kernels = {FP_SIZE_KERNEL_API, 0, query, create, destroy, bind, workspace, run};
static const fp_plugin plugin = {.struct_size = FP_SIZE_PLUGIN,
                                 .abi_version = FP_ABI_VERSION,
                                 .abi_min = FP_ABI_MAJOR << 16,
                                 .abi_max = FP_ABI_VERSION,
                                 .sdk_version = FP_SDK_VERSION,
                                 .numerics_version = 1,
                                 .id = "abi_1_0",
                                 .id_size = 7,
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
  static const char key[] = "abi_1_0.off", text[] = "off: its configuration says so";
  const char* value = 0;
  uint64_t value_size = 0;
  if (host->struct_size < FP_SIZE_HOST) return FP_E_INCOMPATIBLE;
  if (host->abi_min > FP_ABI_VERSION || host->abi_max < plugin.abi_min) return FP_E_INCOMPATIBLE;
  if (host->lookup(host->context, key, sizeof key - 1, &value, &value_size) != 0) {
    host->log(host->context, FP_LOG_ERROR, text, sizeof text - 1);
    return FP_E_UNAVAILABLE;
  }
  the_host = host;
  *out = &plugin;
  return FP_OK;
}
