#include "fake_driver.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

extern "C" {
__attribute__((visibility("default"))) FakeDriver fake_driver{};
}

namespace {

std::recursive_mutex mutex;
thread_local std::vector<void*> contexts;  // CUDA: the stack of this thread
thread_local int current_device = 0;       // HIP
char primary[8];                           // addresses of contexts
struct Function {
  std::string name;
};

int failure(const char* function) {
  if (fake_driver.failing != function) return 0;
  fake_driver.failing.clear();
  return fake_driver.error;
}
int needs_context(const char* function) {
  if (const int error = failure(function); error != 0) return error;
  return fake_driver.lost;
}
std::string text_of(const char* what, void* stream) {
  char text[64];
  std::snprintf(text, sizeof text, "%s %p", what, stream);
  return text;
}
/// A driver outlives whoever forgets to give something back: what it has handed out stays reachable, and is no leak.
template <class T>
T* kept(T* block) {
  static auto* const all = new std::vector<void*>;
  all->push_back(block);
  return block;
}
int make(std::set<void*>& set, void** out) {
  *out = kept(std::malloc(8));
  set.insert(*out);
  return 0;
}
int drop(std::set<void*>& set, void* handle) {
  if (set.erase(handle) == 0) return 400;
  std::free(handle);
  return 0;
}
void put_text(char* out, int size, const char* text) { std::snprintf(out, static_cast<std::size_t>(size), "%s", text); }

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
// One function under both vendors' names; the body may say what NAME it was called by.
#define BOTH(cuda, hip, parameters, arguments)         \
  static int cuda##_body parameters;                   \
  EXPORT int cuda parameters {                         \
    const std::lock_guard lock(mutex);                 \
    const int error = needs_context(#cuda);            \
    return error != 0 ? error : cuda##_body arguments; \
  }                                                    \
  EXPORT int hip parameters {                          \
    const std::lock_guard lock(mutex);                 \
    const int error = needs_context(#hip);             \
    return error != 0 ? error : cuda##_body arguments; \
  }                                                    \
  static int cuda##_body parameters

BOTH(cuMemAlloc_v2, hipMalloc, (void** memory, std::size_t bytes), (memory, bytes)) {
  if (fake_driver.used_bytes + bytes > fake_driver.memory_bytes) return 2;
  auto* block = static_cast<std::uint64_t*>(kept(std::aligned_alloc(256, 256 + (bytes + 255) / 256 * 256)));
  block[0] = bytes;
  fake_driver.used_bytes += bytes;
  *memory = block + 32;
  fake_driver.memory.insert(*memory);
  return 0;
}
BOTH(cuMemFree_v2, hipFree, (void* memory), (memory)) {
  if (fake_driver.memory.erase(memory) == 0) return 1;
  auto* block = static_cast<std::uint64_t*>(memory) - 32;
  fake_driver.used_bytes -= block[0];
  std::free(block);
  return 0;
}
BOTH(cuMemGetInfo_v2, hipMemGetInfo, (std::size_t * unused, std::size_t* total), (unused, total)) {
  *total = fake_driver.memory_bytes;
  *unused = fake_driver.memory_bytes - fake_driver.used_bytes;
  return 0;
}
static int copy(void* to, const void* from, std::size_t bytes, void* stream) {
  fake_driver.calls.push_back(text_of("copy", stream));
  std::memcpy(to, from, bytes);
  return 0;
}
BOTH(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync, (void* to, const void* from, std::size_t n, void* s), (to, from, n, s)) {
  return copy(to, from, n, s);
}
BOTH(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync, (void* to, void* from, std::size_t n, void* s), (to, from, n, s)) {
  return copy(to, from, n, s);
}
BOTH(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync, (void* to, void* from, std::size_t n, void* s), (to, from, n, s)) {
  return copy(to, from, n, s);
}
BOTH(cuMemsetD8Async, hipMemsetD8Async, (void* to, unsigned char value, std::size_t n, void* s), (to, value, n, s)) {
  fake_driver.calls.push_back(text_of("fill", s));
  std::memset(to, value, n);
  return 0;
}
BOTH(cuStreamCreate, hipStreamCreateWithFlags, (void** stream, unsigned flags), (stream, flags)) {
  return flags == 1 ? make(fake_driver.streams, stream) : 1;
}
BOTH(cuStreamDestroy_v2, hipStreamDestroy, (void* stream), (stream)) { return drop(fake_driver.streams, stream); }
BOTH(cuStreamSynchronize, hipStreamSynchronize, (void* stream), (stream)) {
  if (fake_driver.streams.count(stream) == 0) return 400;  // also the default stream, which is never to be used
  fake_driver.calls.push_back(text_of("synchronize", stream));
  return 0;
}
BOTH(cuEventCreate, hipEventCreateWithFlags, (void** event, unsigned), (event, 0)) {
  return make(fake_driver.events, event);
}
BOTH(cuEventDestroy_v2, hipEventDestroy, (void* event), (event)) { return drop(fake_driver.events, event); }
BOTH(cuEventRecord, hipEventRecord, (void* event, void* stream), (event, stream)) {
  return fake_driver.events.count(event) != 0 && fake_driver.streams.count(stream) != 0 ? 0 : 400;
}
BOTH(cuStreamWaitEvent, hipStreamWaitEvent, (void* stream, void* event, unsigned), (stream, event, 0)) {
  return fake_driver.events.count(event) != 0 && fake_driver.streams.count(stream) != 0 ? 0 : 400;
}
BOTH(cuModuleLoadData, hipModuleLoadData, (void** module, const void*), (module, nullptr)) {
  return make(fake_driver.modules, module);
}
BOTH(cuModuleUnload, hipModuleUnload, (void* module), (module)) { return drop(fake_driver.modules, module); }
BOTH(cuModuleGetFunction, hipModuleGetFunction, (void** function, void*, const char* name), (function, nullptr, name)) {
  *function = kept(new Function{name});  // found again by its address
  return 0;
}
static int launch(void* function, unsigned groups, unsigned items, void* stream, void** arguments) {
  FakeDriver::Launch seen{static_cast<Function*>(function)->name, groups, items, {}, stream};
  for (std::size_t i = 0; i < fake_driver.arguments; ++i) {
    std::int64_t value = 0;
    std::memcpy(&value, arguments[i], sizeof value);
    seen.arguments.push_back(value);
  }
  fake_driver.launches.push_back(seen);
  return 0;
}
BOTH(cuLaunchKernel, hipModuleLaunchKernel,
     (void* function, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned, unsigned, void* stream,
      void** arguments, void**),
     (function, gx, 1, 1, bx, 1, 1, 0, stream, arguments, nullptr)) {
  return launch(function, gx, bx, stream, arguments);
}

// What only needs the driver.
static int attribute(int* value, int which, int multiprocessors, int threads, int shared) {
  *value = which == multiprocessors ? 132 : which == threads ? 1024 : which == shared ? 49152 : 0;
  return 0;
}
EXPORT int cuInit(unsigned) { return fake_driver.init_error; }
EXPORT int hipInit(unsigned) { return fake_driver.init_error; }
EXPORT int cuDriverGetVersion(int* version) {
  *version = fake_driver.version != 0 ? fake_driver.version : 12040;
  return 0;
}
EXPORT int hipRuntimeGetVersion(int* version) {
  *version = fake_driver.version != 0 ? fake_driver.version : 60140093;
  return 0;
}
EXPORT int cuDeviceGetCount(int* count) {
  *count = fake_driver.devices;
  return 0;
}
EXPORT int hipGetDeviceCount(int* count) {
  *count = fake_driver.devices;
  return fake_driver.devices == 0 ? 100 : 0;
}
EXPORT int cuDeviceGet(int* device, int ordinal) {
  *device = 10 + ordinal;  // a handle, not the ordinal
  return ordinal < fake_driver.devices ? 0 : 101;
}
EXPORT int cuDeviceGetName(char* name, int size, int device) {
  put_text(name, size, device == 10 ? "Fake H100" : "Fake A100");
  return 0;
}
EXPORT int hipDeviceGetName(char* name, int size, int ordinal) {
  put_text(name, size, ordinal == 0 ? "Fake MI250X" : "Fake W6800");
  return 0;
}
EXPORT int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
  *bytes = fake_driver.memory_bytes;
  return 0;
}
EXPORT int hipDeviceTotalMem(std::size_t* bytes, int) {
  *bytes = fake_driver.memory_bytes;
  return 0;
}
EXPORT int cuDeviceGetAttribute(int* value, int which, int device) {
  if (which == 75) return *value = device == 10 ? 9 : 8, 0;
  if (which == 76) return *value = 0, 0;
  return attribute(value, which, 16, 1, 8);
}
EXPORT int hipDeviceGetAttribute(int* value, int which, int) { return attribute(value, which, 63, 56, 74); }
EXPORT int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  for (int i = 0; i < 16; ++i) uuid[i] = static_cast<unsigned char>(16 * i + device);
  return 0;
}
EXPORT int hipDeviceGetUuid(unsigned char* uuid, int ordinal) {
  std::memcpy(uuid, "5f31cdc0ad72e30", 15);
  uuid[15] = static_cast<unsigned char>('0' + ordinal);
  return 0;
}
EXPORT int cuDeviceGetPCIBusId(char* text, int size, int device) {
  put_text(text, size, device == 10 ? "0000:3B:00.0" : "0000:AF:00.0");
  return 0;
}
EXPORT int hipDeviceGetPCIBusId(char* text, int size, int ordinal) {
  put_text(text, size, ordinal == 0 ? "0000:3b:00.0" : "0000:af:00.0");
  return 0;
}
// The name first, as in every version; the architecture somewhere later, with its features.
EXPORT int hipGetDevicePropertiesR0600(char* properties, int ordinal) {
  std::memset(properties, 0x11, 1472);
  put_text(properties, 256, "gfx of the fake");
  put_text(properties + 1160, 256, ordinal == 0 ? "gfx90a:sramecc+:xnack-" : "gfx1030");
  return 0;
}
EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  if (const int error = failure("cuDevicePrimaryCtxRetain"); error != 0) return error;
  ++fake_driver.retained;
  *context = primary + (device - 10);
  return 0;
}
EXPORT int cuDevicePrimaryCtxRelease_v2(int) {
  --fake_driver.retained;
  return 0;
}
EXPORT int cuCtxPushCurrent_v2(void* context) {
  if (fake_driver.lost != 0) return fake_driver.lost;
  contexts.push_back(context);
  ++fake_driver.entered;
  return 0;
}
EXPORT int cuCtxPopCurrent_v2(void** context) {
  if (contexts.empty()) return 201;
  *context = contexts.back();
  contexts.pop_back();
  ++fake_driver.left;
  return 0;
}
EXPORT int cuCtxGetCurrent(void** context) {
  *context = contexts.empty() ? nullptr : contexts.back();
  return 0;
}
EXPORT int hipGetDevice(int* ordinal) {
  *ordinal = current_device;
  return 0;
}
EXPORT int hipSetDevice(int ordinal) {
  if (ordinal >= fake_driver.devices) return 101;
  current_device = ordinal;
  return 0;
}
EXPORT int cuGetErrorName(int error, const char** name) {
  static thread_local std::string text;
  text = "CUDA_ERROR_" + std::to_string(error);
  *name = text.c_str();
  return 0;
}
EXPORT int cuGetErrorString(int, const char** text) {
  *text = "as the fake says";
  return 0;
}
EXPORT const char* hipGetErrorName(int error) {
  static thread_local std::string text;
  text = "hipError" + std::to_string(error);
  return text.c_str();
}
EXPORT const char* hipGetErrorString(int) { return "as the fake says"; }
