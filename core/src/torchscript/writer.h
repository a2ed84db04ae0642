#pragma once

#include <stdint.h>

/// What the library asks of `fastpath_torchscript.so`, the one file that is linked with libtorch (docs/adr/0010). Plain
/// C, because the two may be built by different compilers, language levels and ABIs of the C++ library.
#ifdef __cplusplus
extern "C" {
#endif

enum { FASTPATH_SCRIPT_FLOAT32 = 0, FASTPATH_SCRIPT_FLOAT64 = 1, FASTPATH_SCRIPT_INT32 = 2, FASTPATH_SCRIPT_INT64 = 3 };

/// A parameter or buffer. Packed, row-major.
typedef struct {
  const char* name; /* dotted: the parts before the last are submodules */
  int32_t dtype;
  int32_t is_parameter;
  int32_t rank;
  const int64_t* shape;
  const void* data;
} fastpath_script_tensor;

/// An entry of the attribute `constants` of the root module, Dict[str, Tensor]: float64, of one axis.
typedef struct {
  const char* name;
  int64_t size;
  const double* values;
} fastpath_script_constant;

/// A file beside the code in the archive.
typedef struct {
  const char* name;
  const char* text;
} fastpath_script_file;

typedef struct {
  int64_t n_tensors, n_constants, n_heads, n_files;
  const fastpath_script_tensor* tensors;
  const fastpath_script_constant* constants;
  const char* const* heads; /* attribute `heads` of the root module, List[str] */
  const fastpath_script_file* files;
  const char* source; /* methods of the root module, TorchScript */
} fastpath_script_module;

/// Takes the next bytes of the archive; another value than 0 stops the writer.
typedef int32_t (*fastpath_script_sink)(void* user, const void* bytes, uint64_t size);

/// Makes the module and gives its archive to the sink.
/// @param error  Receives a text that ends with a zero byte, at most `error_size` bytes with it, where the answer is
/// not 0.
/// @returns 0, or 1 where libtorch or the sink refused.
typedef int32_t (*fastpath_script_writer)(const fastpath_script_module* module, fastpath_script_sink sink, void* user,
                                          char* error, uint64_t error_size);

/// The name of the one exported function. It changes with anything in this file.
#define FASTPATH_SCRIPT_WRITER "fastpath_torchscript_write_1"

#ifdef __cplusplus
}
#endif
