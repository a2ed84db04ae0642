// The least that is a plugin: it has an identity, and no device.
#include "fastpath/plugin.h"

namespace {

constexpr char kId[] = "minimal";
constexpr char kVendor[] = "fastpath tests";
constexpr char kVersion[] = "1.0";

int32_t enumerate(const fp_plugin*, fp_device_list* out, const fp_error_sink*) {
  out->count = 0;
  return FP_OK;
}

int32_t ops(const fp_plugin*, fp_op_list* out, const fp_error_sink*) {
  out->count = 0;
  return FP_OK;
}

int32_t open(const fp_plugin*, const fp_open_args*, fp_device**) { return FP_E_UNAVAILABLE; }

void close(const fp_plugin*, fp_device*) {}

}  // namespace

FASTPATH_PLUGIN_METADATA("minimal", "fastpath tests", "1.0", "cpu", "");

extern "C" FP_EXPORT int32_t fastpath_plugin_query_v1(const fp_host*, const fp_plugin** out) {
  static fp_plugin plugin = [] {
    fp_plugin p{};
    p.struct_size = FP_SIZE_PLUGIN;
    p.abi_version = p.abi_min = p.abi_max = FP_ABI_VERSION;
    p.sdk_version = FP_SDK_VERSION;
    p.numerics_version = 1;
    p.id = kId;
    p.id_size = sizeof kId - 1;
    p.vendor = kVendor;
    p.vendor_size = sizeof kVendor - 1;
    p.version = kVersion;
    p.version_size = sizeof kVersion - 1;
    p.enumerate = enumerate;
    p.open = open;
    p.close = close;
    p.ops = ops;
    return p;
  }();
  *out = &plugin;
  return FP_OK;
}
