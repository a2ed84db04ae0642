/*
 * A plugin for the CPU whose kernels do what the attribute `case` of the configuration says, right or wrong. Written
 * against the bare ABI, because the SDK does not let a plugin do most of this.
 * Op "org.example.answer", version 1: y = 2 x for float64 vectors; inputs x, outputs y, parameters p (optional).
 */
#include <stddef.h>
#include <string.h>

#include "cases.h"
#include "fastpath/plugin.h"

#define TEXT(literal) literal, sizeof(literal) - 1
#define UNUSED(x) ((void)(x))

FASTPATH_PLUGIN_METADATA("answers", "Example", "1.0.0", "cpu", "test");

static void report(const fp_error_sink* errors, int32_t status, const char* text, uint64_t size) {
  errors->report(errors->context, status, text, size);
}

static int64_t case_of(const fp_kernel_query* query) {
  const fp_attribute_list* list = query->config;
  for (uint64_t i = 0; i < list->count; ++i) {
    const fp_attribute* item = (const fp_attribute*)((const char*)list->items + i * list->stride);
    if (item->name_size == 4 && memcmp(item->name, "case", 4) == 0 && item->kind == FP_ATTRIBUTE_I64) {
      return *(const int64_t*)item->data;
    }
  }
  return ANSWER_GOOD;
}

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
  static const fp_op_info item = {.struct_size = FP_SIZE_OP_INFO,
                                  .op_version = 1,
                                  .op = "org.example.answer",
                                  .op_size = 18,
                                  .device_type = FP_DEVICE_CPU,
                                  .dtypes = FP_DTYPE_BIT_F64,
                                  .passes = 15};
  UNUSED(plugin);
  UNUSED(errors);
  out->stride = sizeof item;
  out->count = 1;
  out->items = &item;
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
  answer->verdict = FP_ANSWER_YES;
  answer->min_edges = 10;
  answer->max_edges = 1000;
  answer->prior_edges = 500;
  answer->tolerance = 1e-7;
  answer->flags = FP_KERNEL_DETERMINISTIC;
  answer->rank = 3;
  switch (case_of(asked)) {
    case ANSWER_NO_WITHOUT_REASON:
      answer->verdict = FP_ANSWER_NO;
      break;
    case ANSWER_NO_WITH_REASONS:
      answer->add_blocker(answer->context, FP_REASON_DEGREE, TEXT("degree 9, at most 8"));
      answer->add_blocker(answer->context, FP_REASON_DTYPE, TEXT("float64, only float32"));
      answer->add_blocker(answer->context, 4711, TEXT("a reason of a later \xc3\x28 header"));
      answer->add_blocker(answer->context, FP_REASON_MEMORY, NULL, 5);
      answer->verdict = FP_ANSWER_NO;
      break;
    case ANSWER_FLOOD:
      for (int i = 0; i < 100000; ++i) answer->add_blocker(answer->context, FP_REASON_OTHER, TEXT("again"));
      answer->verdict = FP_ANSWER_NO;
      break;
    case ANSWER_UNKNOWN:
      answer->verdict = FP_ANSWER_UNKNOWN;
      break;
    case ANSWER_VERDICT:
      answer->verdict = 7;
      break;
    case ANSWER_YES_WITH_REASON:
      answer->add_blocker(answer->context, FP_REASON_OTHER, TEXT("but no"));
      break;
    case ANSWER_NEGATIVE_WINDOW:
      answer->min_edges = -5;
      break;
    case ANSWER_EMPTY_WINDOW:
      answer->max_edges = 9;
      break;
    case ANSWER_TOLERANCE_NAN:
      answer->tolerance = __builtin_nan("");
      break;
    case ANSWER_TOLERANCE_HUGE:
      answer->tolerance = 2;
      break;
    case ANSWER_REDUCED_MATH:
      answer->math_mode = FP_MATH_REDUCED;
      break;
    case ANSWER_FAILS:
      report(errors, FP_E_INTERNAL, TEXT("lost the plot"));
      return FP_E_INTERNAL;
    case ANSWER_UNSUPPORTED:
      report(errors, FP_E_UNSUPPORTED, TEXT("not on a Sunday"));
      return FP_E_UNSUPPORTED;
    default:
      break;
  }
  return FP_OK;
}

/* Kernels without state of their own but the case they were made for. */
static int64_t kernel_cases[ANSWER_CASES];

static int32_t create(const fp_plugin* plugin, const fp_create_args* args, fp_kernel** kernel) {
  const int64_t which = case_of(args->query);
  UNUSED(plugin);
  if (which == CREATE_FAILS) {
    report(args->errors, FP_E_OUT_OF_MEMORY, TEXT("no room for tables"));
    return FP_E_OUT_OF_MEMORY;
  }
  if (which == CREATE_NULL) return FP_OK;
  kernel_cases[which] = which;
  *kernel = (fp_kernel*)&kernel_cases[which];
  return FP_OK;
}
static void destroy(fp_kernel* kernel) { UNUSED(kernel); }

static int32_t bind(fp_kernel* kernel, const fp_bind_args* args) {
  if (*(int64_t*)kernel == BIND_FAILS_ONCE) {
    static int calls;
    if (calls++ == 0) {
      report(args->errors, FP_E_BUSY, TEXT("not now"));
      return FP_E_BUSY;
    }
  }
  if (*(int64_t*)kernel == BIND_TELLS_VERSION) {
    report(args->errors, FP_E_UNSUPPORTED, args->version == 7 ? "seven" : "other", 5);
    return FP_E_UNSUPPORTED;
  }
  return FP_OK;
}

static int32_t workspace(fp_kernel* kernel, const fp_sizes* sizes, fp_workspace* out, const fp_error_sink* errors) {
  switch (*(int64_t*)kernel) {
    case WORKSPACE_FAILS:
      report(errors, FP_E_UNSUPPORTED, TEXT("no such size"));
      return FP_E_UNSUPPORTED;
    case WORKSPACE_HUGE:
      out->scratch_bytes = UINT64_C(1) << 60;
      break;
    default:
      out->scratch_bytes = (uint64_t)sizes->n_rows * 8;
      break;
  }
  out->saved_bytes = 24;
  return FP_OK;
}

static int complain(const fp_run_args* args, const char* what) {
  report(args->errors, FP_E_INVALID_ARGUMENT, what, strlen(what));
  return FP_E_INVALID_ARGUMENT;
}

/* What the host promises about a call, looked at from the plugin's side. */
static int32_t check(const fp_run_args* args) {
  const int backward = args->pass == FP_PASS_BACKWARD || args->pass == FP_PASS_BACKWARD_TANGENT;
  const int tangents = args->pass == FP_PASS_FORWARD_TANGENT || args->pass == FP_PASS_BACKWARD_TANGENT;
  if (args->struct_size != FP_SIZE_RUN_ARGS) return complain(args, "size of the arguments");
  if (args->threads < 1) return complain(args, "threads");
  if (args->stream != NULL || args->native != NULL || args->capturing != 0) return complain(args, "streams on a CPU");
  if ((uintptr_t)args->scratch % 256 != 0) return complain(args, "alignment of scratch");
  if (args->scratch_bytes != (uint64_t)args->sizes->n_rows * 8) return complain(args, "size of scratch");
  if (args->sizes->pass != args->pass) return complain(args, "pass of the sizes");
  if (args->inputs == NULL || args->inputs->struct_size != FP_SIZE_TENSOR_LIST) return complain(args, "inputs");
  if ((args->outputs == NULL) != backward) return complain(args, "outputs belong to forward passes");
  if ((args->grad_outputs == NULL) == backward) return complain(args, "gradients belong to backward passes");
  if ((args->inputs_t == NULL) == tangents) return complain(args, "tangents belong to tangent passes");
  if ((args->outputs_t == NULL) != (backward || !tangents)) return complain(args, "tangents of outputs");
  if ((args->grad_inputs_t == NULL) != !(backward && tangents)) return complain(args, "tangents of gradients");
  if (args->scratch_bytes != 0) memset(args->scratch, 0x5a, args->scratch_bytes);
  return FP_OK;
}

static int32_t run(fp_kernel* kernel, const fp_run_args* args) {
  switch (*(int64_t*)kernel) {
    case RUN_STATUS_UNKNOWN:
      return 5;
    case RUN_BUSY:
      return FP_E_BUSY;
    case RUN_DEVICE_LOST:
      report(args->errors, FP_E_DEVICE_LOST, TEXT("fell off the bus"));
      return FP_E_DEVICE_LOST;
    case RUN_TALKS:
      report(args->errors, FP_E_NUMERICS, TEXT("first"));
      for (int i = 0; i < 1000; ++i) report(args->errors, FP_E_NUMERICS, TEXT("middle"));
      report(args->errors, FP_E_NUMERICS, NULL, 100);
      report(args->errors, FP_E_NUMERICS, TEXT("last"));
      return FP_E_NUMERICS;
    default:
      break;
  }
  int32_t status = check(args);
  if (status != FP_OK || args->pass != FP_PASS_FORWARD) return status;
  const fp_tensor* x = args->inputs->items;
  const fp_tensor* y = args->outputs->items;
  if (x->struct_size != FP_SIZE_TENSOR || x->access != FP_ACCESS_READ || y->access != FP_ACCESS_WRITE) {
    return complain(args, "size or access of the tensors");
  }
  if (x->ndim != 1 || x->shape == NULL || x->strides == NULL || x->dtype_code != FP_CODE_FLOAT || x->dtype_bits != 64 ||
      x->dtype_lanes != 1) {
    return complain(args, "shape or dtype of x");
  }
  /* The second input is optional and stays away. */
  if (args->inputs->count > 1 && args->inputs->items[1].access != FP_ACCESS_ABSENT) return complain(args, "absence");
  const char* from = (const char*)x->data + x->byte_offset;
  char* to = (char*)y->data + y->byte_offset;
  for (int64_t i = 0; i < x->shape[0]; ++i) {
    double value;
    memcpy(&value, from + i * x->strides[0] * 8, sizeof value);
    value *= 2;
    memcpy(to + i * y->strides[0] * 8, &value, sizeof value);
  }
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
                                 .id = "answers",
                                 .id_size = 7,
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
