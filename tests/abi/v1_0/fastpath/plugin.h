/*
 * fastpath plugin ABI, major version 1.
 *
 * A plugin is a shared library `fastpath_NAME.so` that exports one function, fastpath_plugin_query_v1, and carries one
 * fp_metadata record in the ELF section "fastpath_plugin" (FASTPATH_PLUGIN_METADATA). This header is all it needs; it
 * compiles as C11 and as C++20 and includes nothing but <stdint.h>.
 *
 * Rules (docs/plugin-contract.md numbers them and says what happens when one is broken):
 *  - Every struct starts with `uint32_t struct_size`. Writers set it to the FP_SIZE_* constant of the header they were
 *    compiled with, "end of the last member known". Readers copy min(theirs, mine) bytes into zeroed locals and
 *    test `>=`, never `==`. Members are only ever appended. Arrays of structs carry an element stride.
 *  - Text is UTF-8 with an explicit length, not necessarily terminated by zero.
 *  - Status values are FP_OK or a negative FP_E_*; the text of a failure goes to the error sink of the call.
 *  - No exception, signal, longjmp or exit leaves a plugin; none enters it.
 *  - A plugin never links the host, never reads the environment, keeps the thread's current device, locale, signal
 * handlers and floating-point mode as they were, and installs no static destructor with effects.
 *  - Unless stated otherwise a function may be called from several threads at once on distinct kernels and streams.
 *  - What a plugin returns by pointer stays valid until shutdown, or until the object it belongs to is destroyed.
 */
#ifndef FASTPATH_PLUGIN_H
#define FASTPATH_PLUGIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ABI version of this header: (major << 16) | minor. The major is also in the name of the query function. */
#define FP_ABI_MAJOR 1u
#define FP_ABI_MINOR 0u
#define FP_ABI_VERSION ((FP_ABI_MAJOR << 16) | FP_ABI_MINOR)
/* Version of the SDK that a plugin was built with, stamped by the SDK's macros: (major << 16) | minor. */
#define FP_SDK_VERSION ((0u << 16) | 1u)

/* Size of a struct up to and including its last member known to this header. */
#define FP_END_OF(type, member) ((uint32_t)(FP_OFFSET_OF(type, member) + sizeof(((type*)0)->member)))
#define FP_OFFSET_OF(type, member) __builtin_offsetof(type, member)

/* ---- Status ------------------------------------------------------------------------------------------------------ */

enum {
  FP_OK = 0,
  FP_E_UNSUPPORTED = -1,      /* this request cannot be served; the host runs its reference */
  FP_E_INVALID_ARGUMENT = -2, /* the host broke the contract */
  FP_E_INCOMPATIBLE = -3,     /* no common ABI version */
  FP_E_UNAVAILABLE = -4,      /* no driver, no device */
  FP_E_OUT_OF_MEMORY = -5,    /* recoverable */
  FP_E_BUSY = -6,             /* recoverable */
  FP_E_DEVICE_LOST = -7,      /* sticky: nothing on this device works any more */
  FP_E_NUMERICS = -8,         /* the kernel itself found a result that cannot be right */
  FP_E_INTERNAL = -9          /* a bug of the plugin, or an exception that was caught */
};

/* Where the text of a failure goes. `report` may be called any number of times during the call it was passed to. */
typedef struct fp_error_sink {
  uint32_t struct_size;
  uint32_t reserved;
  void* context;
  void (*report)(void* context, int32_t status, const char* text, uint64_t text_size);
} fp_error_sink;
#define FP_SIZE_ERROR_SINK FP_END_OF(fp_error_sink, report)

/* A named struct that extends another one. `id` is reverse-DNS; unknown ids are skipped. */
typedef struct fp_extension {
  uint32_t struct_size;
  uint32_t reserved;
  const char* id;
  uint64_t id_size;
  const struct fp_extension* next;
} fp_extension;
#define FP_SIZE_EXTENSION FP_END_OF(fp_extension, next)

/* ---- What the host offers ---------------------------------------------------------------------------------------- */

enum { FP_LOG_DEBUG = 0, FP_LOG_INFO = 1, FP_LOG_WARNING = 2, FP_LOG_ERROR = 3 };

/* Valid for the life of the process. All functions may be called from any thread. */
typedef struct fp_host {
  uint32_t struct_size;
  uint32_t abi_min; /* lowest and highest ABI version the host speaks */
  uint32_t abi_max;
  uint32_t reserved;
  void* context;
  const char* version; /* of the host library */
  uint64_t version_size;
  void (*log)(void* context, int32_t level, const char* text, uint64_t text_size);
  void* (*allocate)(void* context, uint64_t bytes, uint64_t alignment); /* null when there is no memory */
  void (*release)(void* context, void* memory);
  int32_t (*thread_budget)(void* context); /* at least 1; fp_run_args may give less */
  /* Text of a host configuration key; returns 0 if it is not set. The pointer stays valid for the process. */
  int32_t (*lookup)(void* context, const char* key, uint64_t key_size, const char** value, uint64_t* value_size);
  const fp_extension* extensions;
} fp_host;
#define FP_SIZE_HOST FP_END_OF(fp_host, extensions)

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

/* Device types are DLPack's DLDeviceType. */
enum { FP_DEVICE_CPU = 1, FP_DEVICE_CUDA = 2, FP_DEVICE_OPENCL = 4, FP_DEVICE_ROCM = 10, FP_DEVICE_EXT = 12 };

/* Identity of a device. Two plugins serve the same device if type and (uuid, or else pci, or else index) agree. */
typedef struct fp_device_info {
  uint32_t struct_size;
  int32_t type;
  int32_t index;
  uint32_t units; /* compute units, or cores */
  const char* vendor;
  uint64_t vendor_size;
  const char* name; /* "NVIDIA H200"; what is empty here for the CPU the host fills in */
  uint64_t name_size;
  const char* arch; /* "sm_90", "gfx942", "x86-64-v3" */
  uint64_t arch_size;
  const char* uuid; /* 32 hexadecimal digits, or empty */
  uint64_t uuid_size;
  const char* pci; /* "0000:3b:00.0", or empty */
  uint64_t pci_size;
  const char* driver; /* version text, or empty */
  uint64_t driver_size;
  uint64_t memory_bytes; /* 0 if not known */
  uint32_t dtypes;       /* FP_DTYPE_BIT_* that arithmetic on the device has */
  uint32_t flags;
} fp_device_info;
#define FP_SIZE_DEVICE_INFO FP_END_OF(fp_device_info, flags)

typedef struct fp_device_list {
  uint32_t struct_size;
  uint32_t stride; /* bytes from one item to the next */
  uint64_t count;
  const fp_device_info* items;
} fp_device_list;
#define FP_SIZE_DEVICE_LIST FP_END_OF(fp_device_list, items)

typedef struct fp_device fp_device; /* opaque: an open device */
typedef struct fp_stream fp_stream; /* opaque: an ordered queue of the plugin that owns the device's memory */
typedef struct fp_event fp_event;   /* opaque */
typedef struct fp_kernel fp_kernel; /* opaque */

/* Native handles, for plugins that bring kernels to a device whose memory and streams another plugin owns. */
enum {
  FP_NATIVE_NONE = 0,
  FP_NATIVE_CUDA = 1,   /* CUcontext (the primary context) and CUstream */
  FP_NATIVE_HIP = 2,    /* device ordinal and hipStream_t */
  FP_NATIVE_OPENCL = 3, /* cl_context and cl_command_queue */
  FP_NATIVE_EXT = 4     /* agreed between the plugins by device name */
};
typedef struct fp_native {
  uint32_t struct_size;
  int32_t kind; /* FP_NATIVE_* */
  void* context;
  void* stream;
  uint64_t device;
} fp_native;
#define FP_SIZE_NATIVE FP_END_OF(fp_native, device)

typedef struct fp_open_args {
  uint32_t struct_size;
  uint32_t reserved;
  const fp_device_info* device;
  const fp_native* native; /* null: the plugin creates what it needs; else it works inside this context */
  const fp_error_sink* errors;
} fp_open_args;
#define FP_SIZE_OPEN_ARGS FP_END_OF(fp_open_args, errors)

/* Memory, copies, streams and events of one kind of device. A kernel-only plugin, and one for the CPU alone, has none.
 * A null stream means: the call is complete when it returns. Streams order what is given to them and nothing else. */
typedef struct fp_memory_api {
  uint32_t struct_size;
  uint32_t reserved;
  int32_t (*allocate)(fp_device* device, uint64_t bytes, void** memory,
                      const fp_error_sink* errors); /* 256-byte aligned */
  void (*release)(fp_device* device, void* memory);
  int32_t (*copy_to_device)(fp_device* device, void* to, uint64_t to_offset, const void* from, uint64_t bytes,
                            fp_stream* stream, const fp_error_sink* errors);
  int32_t (*copy_from_device)(fp_device* device, void* to, const void* from, uint64_t from_offset, uint64_t bytes,
                              fp_stream* stream, const fp_error_sink* errors);
  int32_t (*copy_on_device)(fp_device* device, void* to, uint64_t to_offset, const void* from, uint64_t from_offset,
                            uint64_t bytes, fp_stream* stream, const fp_error_sink* errors);
  int32_t (*fill_zero)(fp_device* device, void* memory, uint64_t offset, uint64_t bytes, fp_stream* stream,
                       const fp_error_sink* errors);
  int32_t (*create_stream)(fp_device* device, fp_stream** stream, const fp_error_sink* errors);
  void (*destroy_stream)(fp_device* device, fp_stream* stream);
  int32_t (*synchronize)(fp_device* device, fp_stream* stream, const fp_error_sink* errors);
  int32_t (*create_event)(fp_device* device, fp_event** event, const fp_error_sink* errors);
  void (*destroy_event)(fp_device* device, fp_event* event);
  int32_t (*record)(fp_device* device, fp_event* event, fp_stream* stream, const fp_error_sink* errors);
  int32_t (*wait)(fp_device* device, fp_stream* stream, fp_event* event, const fp_error_sink* errors);
  int32_t (*memory_info)(fp_device* device, uint64_t* free_bytes, uint64_t* total_bytes, const fp_error_sink* errors);
  int32_t (*native)(fp_device* device, fp_stream* stream, fp_native* out); /* may be null */
} fp_memory_api;
#define FP_SIZE_MEMORY_API FP_END_OF(fp_memory_api, native)

/* ---- Tensors ----------------------------------------------------------------------------------------------------- */

/* DLPack's DLDataTypeCode. */
enum { FP_CODE_INT = 0, FP_CODE_UINT = 1, FP_CODE_FLOAT = 2 };
enum { FP_DTYPE_BIT_F32 = 1u, FP_DTYPE_BIT_F64 = 2u };
enum {
  FP_ACCESS_ABSENT = 0u, /* nothing here: an optional argument that is not given, a gradient that is not wanted */
  FP_ACCESS_READ = 1u,
  FP_ACCESS_WRITE = 2u
};

/* From `data` on this is DLTensor, member by member. Strides are always present, in elements. */
typedef struct fp_tensor {
  uint32_t struct_size;
  uint32_t access; /* FP_ACCESS_* bits; a written tensor is written completely */
  void* data;      /* host address or device handle; element 0 lies byte_offset bytes after it */
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t dtype_lanes;
  const int64_t* shape;
  const int64_t* strides;
  uint64_t byte_offset;
} fp_tensor;
#define FP_SIZE_TENSOR FP_END_OF(fp_tensor, byte_offset)

typedef struct fp_tensor_list {
  uint32_t struct_size;
  uint32_t stride; /* bytes from one item to the next */
  uint64_t count;
  const fp_tensor* items;
} fp_tensor_list;
#define FP_SIZE_TENSOR_LIST FP_END_OF(fp_tensor_list, items)

/* ---- Graphs ------------------------------------------------------------------------------------------------------ */

/* Edges in canonical order: by receiver, sender, shift, input position. All tensors are contiguous, on the kernel's
 * device. Node ids are int32, offsets int64. Valid for the duration of the call. */
typedef struct fp_graph {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t n_edges;
  int64_t n_nodes;           /* senders, ghosts included */
  int64_t n_receivers;       /* outputs per receiver have this many rows; receivers are the first nodes */
  int64_t n_species;         /* 0 if there are no species */
  const fp_tensor* sender;   /* [n_edges] int32 */
  const fp_tensor* receiver; /* [n_edges] int32, ascending */
  const fp_tensor*
      receiver_ptr;            /* [n_nodes + 1] int64: edges of receiver n are receiver_ptr[n] .. receiver_ptr[n+1]-1 */
  const fp_tensor* sender_ptr; /* [n_nodes + 1] int64 */
  const fp_tensor* sender_edge; /* [n_edges] int64: edges of sender n are sender_edge[sender_ptr[n] ..], ascending */
  const fp_tensor* species;     /* [n_nodes] int32, or absent */
  const fp_tensor* species_ptr; /* [n_species + 1] int64, or absent */
  const fp_tensor*
      species_node; /* [n_nodes] int32: nodes of species s are species_node[species_ptr[s] ..], ascending */
} fp_graph;
#define FP_SIZE_GRAPH FP_END_OF(fp_graph, species_node)

/* ---- Ops and kernels --------------------------------------------------------------------------------------------- */

enum { FP_ATTRIBUTE_I64 = 0, FP_ATTRIBUTE_F64 = 1, FP_ATTRIBUTE_UTF8 = 2 };

typedef struct fp_attribute {
  uint32_t struct_size;
  int32_t kind; /* FP_ATTRIBUTE_* */
  const char* name;
  uint64_t name_size;
  const void* data; /* int64_t, double or char, `count` of them */
  uint64_t count;
} fp_attribute;
#define FP_SIZE_ATTRIBUTE FP_END_OF(fp_attribute, count)

typedef struct fp_attribute_list {
  uint32_t struct_size;
  uint32_t stride;
  uint64_t count;
  const fp_attribute* items; /* sorted by name */
} fp_attribute_list;
#define FP_SIZE_ATTRIBUTE_LIST FP_END_OF(fp_attribute_list, items)

/* What a call computes. Tangent passes carry one directional derivative of every quantity beside its value. */
enum { FP_PASS_FORWARD = 1u, FP_PASS_BACKWARD = 2u, FP_PASS_FORWARD_TANGENT = 4u, FP_PASS_BACKWARD_TANGENT = 8u };

enum { FP_MATH_FULL = 0, FP_MATH_REDUCED = 1 };

/* Everything that identifies a kernel. */
typedef struct fp_kernel_query {
  uint32_t struct_size;
  int32_t op_version;
  const char* op; /* "conv_tensor_product"; reverse-DNS for ops of third parties */
  uint64_t op_size;
  const fp_attribute_list* config;
  const fp_device_info* device;
  uint8_t dtype_code;
  uint8_t dtype_bits;
  uint16_t dtype_lanes;
  uint32_t passes;   /* FP_PASS_* bits, all of them needed */
  int32_t math_mode; /* lowest mode the host accepts */
  uint32_t reserved;
  const fp_extension* extensions;
} fp_kernel_query;
#define FP_SIZE_KERNEL_QUERY FP_END_OF(fp_kernel_query, extensions)

/* Why a kernel is refused. Codes are append-only; the text says what was found and what would be accepted. */
enum {
  FP_REASON_OTHER = 0,
  FP_REASON_OP = 1,         /* op id unknown to the plugin */
  FP_REASON_OP_VERSION = 2, /* interface version of the op */
  FP_REASON_DEVICE = 3,     /* device type or model */
  FP_REASON_ARCH = 4,       /* no code for this architecture or instruction set */
  FP_REASON_DTYPE = 5,
  FP_REASON_PASS = 6,          /* one of the passes is missing */
  FP_REASON_CONFIG = 7,        /* an attribute is missing or malformed */
  FP_REASON_DEGREE = 8,        /* degree l too high */
  FP_REASON_MULTIPLICITY = 9,  /* channel count */
  FP_REASON_INSTRUCTIONS = 10, /* kind or order of paths */
  FP_REASON_MATH_MODE = 11,
  FP_REASON_MEMORY = 12,
  FP_REASON_SIZE = 13
};

enum { FP_ANSWER_NO = 0, FP_ANSWER_YES = 1, FP_ANSWER_UNKNOWN = 2 /* until the device is open */ };
enum {
  FP_KERNEL_DETERMINISTIC = 1u, /* bitwise equal results from run to run and for any number of threads */
  FP_KERNEL_THREAD_SAFE = 2u,   /* one kernel may run in several threads at once */
  FP_KERNEL_CAPTURE_SAFE = 4u   /* may run while a stream is being captured */
};

/* The host zeroes this and sets context and add_blocker; the plugin fills the rest. */
typedef struct fp_kernel_answer {
  uint32_t struct_size;
  int32_t verdict; /* FP_ANSWER_* */
  void* context;
  void (*add_blocker)(void* context, int32_t reason, const char* text,
                      uint64_t text_size); /* once per reason, all of them */
  int64_t min_edges;                       /* sizes outside min..max are not served; max 0 means no limit */
  int64_t max_edges;
  int64_t prior_edges; /* from how many edges on the vendor measured it to be faster; negative: not known */
  double tolerance;    /* promised error max|a-b|/max|reference|; 0: the precision contract */
  uint32_t flags;      /* FP_KERNEL_* */
  int32_t math_mode;   /* FP_MATH_* that will be used */
  int32_t rank;        /* between kernels of unknown speed the higher rank wins */
  uint32_t reserved;
} fp_kernel_answer;
#define FP_SIZE_KERNEL_ANSWER FP_END_OF(fp_kernel_answer, reserved)

typedef struct fp_sizes {
  uint32_t struct_size;
  uint32_t pass;   /* one FP_PASS_* bit */
  int64_t n_edges; /* of the graph; without a graph equal to n_rows */
  int64_t n_nodes; /* of the graph; without a graph 0 */
  int64_t n_receivers;
  int64_t n_rows; /* size of the leading axis of the first input; 0 if it has none */
} fp_sizes;
#define FP_SIZE_SIZES FP_END_OF(fp_sizes, n_rows)

/* Bytes a kernel wants for a call of this size. */
typedef struct fp_workspace {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t scratch_bytes; /* contents need not survive the call */
  uint64_t saved_bytes;   /* written by forward, read by backward; 0 if backward recomputes */
} fp_workspace;
#define FP_SIZE_WORKSPACE FP_END_OF(fp_workspace, saved_bytes)

typedef struct fp_bind_args {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t version; /* changes whenever a value changed; never 0 */
  /* In the order of the op's schema, on the kernel's device; valid until the next bind or destroy. */
  const fp_tensor_list* parameters;
  fp_stream* stream;
  const fp_native* native;
  const fp_error_sink* errors;
} fp_bind_args;
#define FP_SIZE_BIND_ARGS FP_END_OF(fp_bind_args, errors)

/* One call of a kernel. Lists are in the order of the op's schema; an item whose access is FP_ACCESS_ABSENT is not
 * there or not wanted. Gradients and outputs are overwritten, completely. No output aliases an input. forward: reads
 * inputs; writes outputs. backward:         reads inputs, grad_outputs; writes grad_inputs, grad_parameters.
 *   forward_tangent:  reads inputs, inputs_t, parameters_t; writes outputs, outputs_t.
 *   backward_tangent: reads inputs, inputs_t, parameters_t, grad_outputs, grad_outputs_t;
 *                     writes grad_inputs, grad_inputs_t, grad_parameters, grad_parameters_t.
 * An absent tangent is zero. Lists that a pass does not use may be null. */
typedef struct fp_run_args {
  uint32_t struct_size;
  uint32_t pass;         /* one FP_PASS_* bit */
  const fp_graph* graph; /* null for ops without a graph */
  const fp_sizes* sizes;
  const fp_tensor_list* inputs;
  const fp_tensor_list* outputs;
  const fp_tensor_list* grad_outputs;
  const fp_tensor_list* grad_inputs;
  const fp_tensor_list* grad_parameters;
  const fp_tensor_list* inputs_t;
  const fp_tensor_list* outputs_t;
  const fp_tensor_list* parameters_t;
  const fp_tensor_list* grad_outputs_t;
  const fp_tensor_list* grad_inputs_t;
  const fp_tensor_list* grad_parameters_t;
  void* scratch; /* scratch_bytes of fp_workspace, 256-byte aligned, on the device */
  uint64_t scratch_bytes;
  void* saved;
  uint64_t saved_bytes;
  fp_stream* stream;       /* null: complete when the call returns; never a default stream */
  const fp_native* native; /* for a kernel-only plugin on somebody else's device; else null */
  int32_t threads;         /* CPU threads this call may use, at least 1 */
  int32_t capturing;       /* not 0: no tuning, allocation or synchronisation */
  const fp_error_sink* errors;
  const fp_extension* extensions;
} fp_run_args;
#define FP_SIZE_RUN_ARGS FP_END_OF(fp_run_args, extensions)

typedef struct fp_plugin fp_plugin;

typedef struct fp_create_args {
  uint32_t struct_size;
  uint32_t reserved;
  fp_device* device; /* open */
  const fp_kernel_query* query;
  const fp_error_sink* errors;
} fp_create_args;
#define FP_SIZE_CREATE_ARGS FP_END_OF(fp_create_args, errors)

typedef struct fp_kernel_api {
  uint32_t struct_size;
  uint32_t reserved;
  /* Pure and cheap: may be called before any device is open. */
  int32_t (*query)(const fp_plugin* plugin, const fp_kernel_query* query, fp_kernel_answer* answer,
                   const fp_error_sink* errors);
  int32_t (*create)(const fp_plugin* plugin, const fp_create_args* args, fp_kernel** kernel);
  void (*destroy)(fp_kernel* kernel);
  int32_t (*bind)(fp_kernel* kernel, const fp_bind_args* args);
  /* Depends on the sizes and on what is bound: asked after the first bind, and anew after each. */
  int32_t (*workspace)(fp_kernel* kernel, const fp_sizes* sizes, fp_workspace* out, const fp_error_sink* errors);
  int32_t (*run)(fp_kernel* kernel, const fp_run_args* args);
} fp_kernel_api;
#define FP_SIZE_KERNEL_API FP_END_OF(fp_kernel_api, run)

/* One (op, version) that a plugin has kernels for, so that the host can list them and name the plugin that would help.
 */
typedef struct fp_op_info {
  uint32_t struct_size;
  int32_t op_version;
  const char* op;
  uint64_t op_size;
  int32_t device_type;
  uint32_t dtypes; /* FP_DTYPE_BIT_* */
  uint32_t passes; /* FP_PASS_* */
  uint32_t reserved;
} fp_op_info;
#define FP_SIZE_OP_INFO FP_END_OF(fp_op_info, reserved)

typedef struct fp_op_list {
  uint32_t struct_size;
  uint32_t stride;
  uint64_t count;
  const fp_op_info* items;
} fp_op_list;
#define FP_SIZE_OP_LIST FP_END_OF(fp_op_list, items)

/* ---- The plugin -------------------------------------------------------------------------------------------------- */

struct fp_plugin {
  uint32_t struct_size;
  uint32_t abi_version; /* FP_ABI_VERSION of the header it was built with; 0 is refused */
  uint32_t abi_min;     /* lowest and highest ABI version it can serve */
  uint32_t abi_max;
  uint32_t sdk_version;
  uint32_t numerics_version; /* changes whenever results may change; keys measurements and gate results */
  const char* id;            /* "acme": letters, digits, '_', '-', '.'; equal to the metadata */
  uint64_t id_size;
  const char* vendor;
  uint64_t vendor_size;
  const char* version;
  uint64_t version_size;
  void* context; /* the plugin's own */
  /* Creates no context on any GPU. FP_E_UNAVAILABLE with a text if there is no driver or device: the plugin is then
   * idle. */
  int32_t (*enumerate)(const fp_plugin* plugin, fp_device_list* out, const fp_error_sink* errors);
  int32_t (*open)(const fp_plugin* plugin, const fp_open_args* args, fp_device** device);
  void (*close)(const fp_plugin* plugin, fp_device* device);
  int32_t (*ops)(const fp_plugin* plugin, fp_op_list* out, const fp_error_sink* errors);
  const fp_kernel_api* kernels;
  const fp_memory_api* memory;               /* null: kernels only, or CPU */
  void (*shutdown)(const fp_plugin* plugin); /* last call; devices and kernels are gone by then; may be null */
  const fp_extension* extensions;
};
#define FP_SIZE_PLUGIN FP_END_OF(fp_plugin, extensions)

#if defined(__GNUC__)
#define FP_EXPORT __attribute__((visibility("default")))
#else
#define FP_EXPORT
#endif

/* The one exported function. Sets *out and returns FP_OK, or a status when it cannot serve this host.
 * It does no work that could hang: devices are looked for in `enumerate`. */
typedef int32_t (*fp_plugin_query_fn)(const fp_host* host, const fp_plugin** out);
#define FP_QUERY_SYMBOL "fastpath_plugin_query_v1"

/* ---- Metadata ---------------------------------------------------------------------------------------------------- */

/* Read from the file without loading it. All text is zero-terminated inside its field. */
#define FP_METADATA_MAGIC 0x4d504b46u /* "FKPM", little-endian */
#define FP_METADATA_SECTION "fastpath_plugin"
typedef struct fp_metadata {
  uint32_t struct_size;
  uint32_t magic;
  uint32_t abi_version;
  uint32_t abi_min;
  uint32_t abi_max;
  uint32_t sdk_version;
  char id[64];
  char vendor[64];
  char version[32];
  char device_kinds[64]; /* "cpu" or "cuda,hip": names of kinds, separated by commas */
  char build_tag[64];    /* anything that tells builds apart */
} fp_metadata;
#define FP_SIZE_METADATA FP_END_OF(fp_metadata, build_tag)

/* Puts the record into its section; once per plugin, at file scope. Works from C and C++. Within a major version
 * members are only added, and a plugin tests what it reads, so it serves every minor version up to its own. */
#define FASTPATH_PLUGIN_METADATA(id_text, vendor_text, version_text, device_kinds_text, build_tag_text)     \
  __attribute__((used, section(FP_METADATA_SECTION))) static const fp_metadata fastpath_plugin_metadata = { \
      (uint32_t)sizeof(fp_metadata),                                                                        \
      FP_METADATA_MAGIC,                                                                                    \
      FP_ABI_VERSION,                                                                                       \
      FP_ABI_MAJOR << 16,                                                                                   \
      FP_ABI_VERSION,                                                                                       \
      FP_SDK_VERSION,                                                                                       \
      id_text,                                                                                              \
      vendor_text,                                                                                          \
      version_text,                                                                                         \
      device_kinds_text,                                                                                    \
      build_tag_text}

#ifdef __cplusplus
}
#endif

#endif /* FASTPATH_PLUGIN_H */
