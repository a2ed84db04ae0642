#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fastpath/plugin.h"
#include "fastpath/sdk/abi.hpp"
#include "fastpath/sdk/device.hpp"
#include "fastpath/sdk/error.hpp"
#include "fastpath/sdk/host.hpp"
#include "fastpath/sdk/kernel.hpp"

/// What a vendor writes a plugin against: derive from Plugin and Kernel, and name the plugin once with FASTPATH_PLUGIN.
/// The rest of this header turns the C ABI into these calls. docs/plugin-contract.md has the rules behind it.
namespace fastpath::sdk {

/// One (op, version) that a plugin has kernels for on one kind of device.
struct OpDescription {
  std::string op;
  std::int32_t op_version = 1;
  std::int32_t device_type = FP_DEVICE_CPU;
  std::uint32_t dtypes = 0;  ///< FP_DTYPE_BIT_*
  std::uint32_t passes = 0;  ///< FP_PASS_*
};

/// Where a device is to be opened.
struct OpenRequest {
  DeviceDescription device;  ///< One of devices(), or the same device as another plugin describes it.
  Native native;             ///< Context to work in; nothing: the plugin creates what it needs.
};

/// A plugin. One object a process, made at the first query, never destroyed. Every function may be called from several
/// threads at once and may throw (error.hpp says what becomes of it).
class Plugin {
 public:
  virtual ~Plugin() = default;

  /// Cheap; creates no context on a GPU. @throws Unavailable if there is no driver or no device: the plugin is idle.
  virtual std::vector<DeviceDescription> devices() = 0;
  /// Everything query() may say yes to, for some configuration.
  virtual std::vector<OpDescription> ops() = 0;
  /// Pure and cheap; may come before any device is open. Blocks for every reason there is, or fills in the promises.
  /// A ConfigError thrown here becomes a blocker of reason config.
  virtual void query(const KernelQuery& query, KernelAnswer& answer) = 0;
  /// Makes a kernel for a query that query() does not block (it was asked again just before).
  virtual std::unique_ptr<Kernel> create(const KernelQuery& query, Device& device) = 0;

  /// As it stands: a device without memory of its own, for each of devices().
  /// @throws InvalidArgument for a device that is none of them.
  virtual std::unique_ptr<Device> open(const OpenRequest& request) {
    for (const DeviceDescription& own : devices()) {
      if (own.same_device(request.device)) return std::make_unique<Device>();
    }
    throw InvalidArgument("device type " + std::to_string(request.device.type) + " index " +
                          std::to_string(request.device.index) + ", which is not one of this plugin's");
  }
  /// Last call; kernels and devices are gone by then.
  virtual void shutdown() {}
  /// True if devices of this plugin have memory of their own (Device::memory() is then not null).
  virtual bool owns_memory() const { return false; }
  /// Structs of the vendor's own that hang at fp_plugin, valid until shutdown.
  virtual const fp_extension* extensions() const { return nullptr; }
  /// Must change whenever results may change, in any bit.
  virtual std::uint32_t numerics_version() const { return 1; }

  /// The services of the host; empty while the constructor runs.
  const Host& host() const noexcept { return host_; }
  void set_host(const Host& host) { host_ = host; }  ///< For the entry point.

 private:
  Host host_;
};

// ---------------------------------------------------------------------------------------------------------------------

namespace detail {

/// The one object behind a plugin's C face.
struct Entry {
  fp_plugin c{};
  std::unique_ptr<Plugin> plugin;
  // What was handed out by pointer stays until the process ends.
  struct Devices {
    std::vector<DeviceDescription> descriptions;
    std::vector<fp_device_info> items;
  };
  struct Ops {
    std::vector<OpDescription> descriptions;
    std::vector<fp_op_info> items;
  };
  std::mutex mutex;
  std::deque<Devices> devices;
  std::deque<Ops> ops;
};

inline Entry& entry_of(const fp_plugin* plugin) {
  if (plugin == nullptr || plugin->context == nullptr) throw InvalidArgument("a null plugin");
  return *static_cast<Entry*>(plugin->context);
}
template <class T>
T& not_null(T* pointer, const char* name) {
  if (pointer == nullptr) throw InvalidArgument(std::string(name) + " is null");
  return *pointer;
}
inline Device* as_device(fp_device* device) { return reinterpret_cast<Device*>(device); }
inline Kernel* as_kernel(fp_kernel* kernel) { return reinterpret_cast<Kernel*>(kernel); }
inline DeviceMemory& memory_of(fp_device* device) {
  DeviceMemory* memory = not_null(as_device(device), "device").memory();
  if (memory == nullptr) throw Refused("this device has no memory of its own");
  return *memory;
}

extern "C" {

inline std::int32_t fastpath_sdk_enumerate(const fp_plugin* plugin, fp_device_list* out,
                                           const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] {
    Entry& entry = entry_of(plugin);
    not_null(out, "device list");
    std::vector<DeviceDescription> found = entry.plugin->devices();
    const std::lock_guard lock(entry.mutex);
    if (entry.devices.empty() || entry.devices.back().descriptions != found) {
      Entry::Devices& kept = entry.devices.emplace_back();
      kept.descriptions = std::move(found);
      for (const DeviceDescription& device : kept.descriptions) kept.items.push_back(device.c_info());
    }
    fp_device_list list = abi_struct<fp_device_list>();
    list.stride = sizeof(fp_device_info);
    list.count = entry.devices.back().items.size();
    list.items = entry.devices.back().items.data();
    write_known(out, list);
  });
}

inline std::int32_t fastpath_sdk_ops(const fp_plugin* plugin, fp_op_list* out, const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] {
    Entry& entry = entry_of(plugin);
    not_null(out, "op list");
    const std::lock_guard lock(entry.mutex);
    if (entry.ops.empty()) {
      std::vector<OpDescription> descriptions = entry.plugin->ops();
      Entry::Ops& kept = entry.ops.emplace_back();
      kept.descriptions = std::move(descriptions);
      for (const OpDescription& op : kept.descriptions) {
        fp_op_info item = abi_struct<fp_op_info>();
        item.op_version = op.op_version;
        item.op = op.op.data();
        item.op_size = op.op.size();
        item.device_type = op.device_type;
        item.dtypes = op.dtypes;
        item.passes = op.passes;
        kept.items.push_back(item);
      }
    }
    fp_op_list list = abi_struct<fp_op_list>();
    list.stride = sizeof(fp_op_info);
    list.count = entry.ops.back().items.size();
    list.items = entry.ops.back().items.data();
    write_known(out, list);
  });
}

inline std::int32_t fastpath_sdk_open(const fp_plugin* plugin, const fp_open_args* args, fp_device** out) noexcept {
  const fp_open_args known_args = known(args);
  return guarded(known_args.errors, [&] {
    not_null(out, "device") = nullptr;
    not_null(known_args.device, "device description");
    Plugin& self = *entry_of(plugin).plugin;
    std::unique_ptr<Device> device =
        self.open({DeviceDescription::from(known_args.device), native_from(known_args.native)});
    if (device == nullptr) throw std::logic_error("open returned no device");
    *out = reinterpret_cast<fp_device*>(device.release());
  });
}
inline void fastpath_sdk_close(const fp_plugin*, fp_device* device) noexcept { delete as_device(device); }
inline void fastpath_sdk_shutdown(const fp_plugin* plugin) noexcept {
  guarded(nullptr, [&] { entry_of(plugin).plugin->shutdown(); });
}

inline std::int32_t fastpath_sdk_query(const fp_plugin* plugin, const fp_kernel_query* query, fp_kernel_answer* out,
                                       const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] {
    Plugin& self = *entry_of(plugin).plugin;
    not_null(query, "query");
    fp_kernel_answer c = known(&not_null(out, "answer"));
    const KernelQuery asked = KernelQuery::from(query);
    KernelAnswer answer;
    try {
      self.query(asked, answer);
    } catch (const ConfigError& error) {
      answer.blocked(Reason::config, error.what());
    }
    for (const auto& [reason, text] : answer.blockers) {
      if (c.add_blocker != nullptr) {
        c.add_blocker(c.context, static_cast<std::int32_t>(reason), text.data(), text.size());
      }
    }
    c.verdict = !answer.blockers.empty() ? FP_ANSWER_NO : answer.unknown_until_open ? FP_ANSWER_UNKNOWN : FP_ANSWER_YES;
    c.min_edges = answer.min_edges;
    c.max_edges = answer.max_edges;
    c.prior_edges = answer.prior_edges;
    c.tolerance = answer.tolerance;
    c.flags = answer.flags;
    c.math_mode = answer.math_mode;
    c.rank = answer.rank;
    write_known(out, c);
  });
}

inline std::int32_t fastpath_sdk_create(const fp_plugin* plugin, const fp_create_args* args, fp_kernel** out) noexcept {
  const fp_create_args known_args = known(args);
  return guarded(known_args.errors, [&] {
    not_null(out, "kernel") = nullptr;
    Plugin& self = *entry_of(plugin).plugin;
    Device& device = not_null(as_device(known_args.device), "device");
    const KernelQuery query = KernelQuery::from(&not_null(known_args.query, "query"));
    KernelAnswer answer;
    self.query(query, answer);
    if (!answer.blockers.empty()) {
      std::string text;
      for (const auto& blocker : answer.blockers) text += (text.empty() ? "" : "; ") + blocker.second;
      throw Refused(text);
    }
    std::unique_ptr<Kernel> kernel = self.create(query, device);
    if (kernel == nullptr) throw std::logic_error("create returned no kernel");
    *out = reinterpret_cast<fp_kernel*>(kernel.release());
  });
}
inline void fastpath_sdk_destroy(fp_kernel* kernel) noexcept { delete as_kernel(kernel); }

inline std::int32_t fastpath_sdk_bind(fp_kernel* kernel, const fp_bind_args* args) noexcept {
  const fp_bind_args c = known(args);
  return guarded(c.errors, [&] {
    not_null(as_kernel(kernel), "kernel").bind({c.version, TensorList(c.parameters), c.stream, native_from(c.native)});
  });
}
inline std::int32_t fastpath_sdk_workspace(fp_kernel* kernel, const fp_sizes* sizes, fp_workspace* out,
                                           const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] {
    const Workspace wanted = not_null(as_kernel(kernel), "kernel").workspace(Sizes::from(&not_null(sizes, "sizes")));
    fp_workspace c = abi_struct<fp_workspace>();
    c.scratch_bytes = wanted.scratch_bytes;
    c.saved_bytes = wanted.saved_bytes;
    write_known(&not_null(out, "workspace"), c);
  });
}
inline std::int32_t fastpath_sdk_run(fp_kernel* kernel, const fp_run_args* args) noexcept {
  const fp_error_sink* errors = known(args).errors;
  return guarded(errors,
                 [&] { not_null(as_kernel(kernel), "kernel").run(Run::from(&not_null(args, "run arguments"))); });
}

inline std::int32_t fastpath_sdk_allocate(fp_device* device, std::uint64_t bytes, void** memory,
                                          const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] { not_null(memory, "memory") = memory_of(device).allocate(bytes); });
}
inline void fastpath_sdk_release(fp_device* device, void* memory) noexcept {
  guarded(nullptr, [&] { memory_of(device).release(memory); });
}
inline std::int32_t fastpath_sdk_copy_to_device(fp_device* device, void* to, std::uint64_t to_offset, const void* from,
                                                std::uint64_t bytes, fp_stream* stream,
                                                const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] { memory_of(device).copy_to_device(to, to_offset, from, bytes, stream); });
}
inline std::int32_t fastpath_sdk_copy_from_device(fp_device* device, void* to, const void* from,
                                                  std::uint64_t from_offset, std::uint64_t bytes, fp_stream* stream,
                                                  const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] { memory_of(device).copy_from_device(to, from, from_offset, bytes, stream); });
}
inline std::int32_t fastpath_sdk_copy_on_device(fp_device* device, void* to, std::uint64_t to_offset, const void* from,
                                                std::uint64_t from_offset, std::uint64_t bytes, fp_stream* stream,
                                                const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] { memory_of(device).copy_on_device(to, to_offset, from, from_offset, bytes, stream); });
}
inline std::int32_t fastpath_sdk_fill_zero(fp_device* device, void* memory, std::uint64_t offset, std::uint64_t bytes,
                                           fp_stream* stream, const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] { memory_of(device).fill_zero(memory, offset, bytes, stream); });
}
inline std::int32_t fastpath_sdk_create_stream(fp_device* device, fp_stream** stream,
                                               const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] { not_null(stream, "stream") = memory_of(device).create_stream(); });
}
inline void fastpath_sdk_destroy_stream(fp_device* device, fp_stream* stream) noexcept {
  guarded(nullptr, [&] { memory_of(device).destroy_stream(stream); });
}
inline std::int32_t fastpath_sdk_synchronize(fp_device* device, fp_stream* stream,
                                             const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] { memory_of(device).synchronize(stream); });
}
inline std::int32_t fastpath_sdk_create_event(fp_device* device, fp_event** event,
                                              const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] { not_null(event, "event") = memory_of(device).create_event(); });
}
inline void fastpath_sdk_destroy_event(fp_device* device, fp_event* event) noexcept {
  guarded(nullptr, [&] { memory_of(device).destroy_event(event); });
}
inline std::int32_t fastpath_sdk_record(fp_device* device, fp_event* event, fp_stream* stream,
                                        const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] { memory_of(device).record(event, stream); });
}
inline std::int32_t fastpath_sdk_wait(fp_device* device, fp_stream* stream, fp_event* event,
                                      const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] { memory_of(device).wait(stream, event); });
}
inline std::int32_t fastpath_sdk_memory_info(fp_device* device, std::uint64_t* free_bytes, std::uint64_t* total_bytes,
                                             const fp_error_sink* errors) noexcept {
  return guarded(errors, [&] {
    memory_of(device).memory_info(&not_null(free_bytes, "free bytes"), &not_null(total_bytes, "total bytes"));
  });
}
inline std::int32_t fastpath_sdk_native(fp_device* device, fp_stream* stream, fp_native* out) noexcept {
  return guarded(nullptr, [&] { write_known(&not_null(out, "native"), memory_of(device).native(stream)); });
}

}  // extern "C"

inline constexpr fp_kernel_api kKernelApi = {FP_SIZE_KERNEL_API,     0,
                                             fastpath_sdk_query,     fastpath_sdk_create,
                                             fastpath_sdk_destroy,   fastpath_sdk_bind,
                                             fastpath_sdk_workspace, fastpath_sdk_run};
inline constexpr fp_memory_api kMemoryApi = {FP_SIZE_MEMORY_API,          0,
                                             fastpath_sdk_allocate,       fastpath_sdk_release,
                                             fastpath_sdk_copy_to_device, fastpath_sdk_copy_from_device,
                                             fastpath_sdk_copy_on_device, fastpath_sdk_fill_zero,
                                             fastpath_sdk_create_stream,  fastpath_sdk_destroy_stream,
                                             fastpath_sdk_synchronize,    fastpath_sdk_create_event,
                                             fastpath_sdk_destroy_event,  fastpath_sdk_record,
                                             fastpath_sdk_wait,           fastpath_sdk_memory_info,
                                             fastpath_sdk_native};

/// Lowest ABI version that this SDK can serve: it tests what it reads, so the whole major.
inline constexpr std::uint32_t kAbiMin = FP_ABI_MAJOR << 16;

inline std::string abi_text(std::uint32_t version) {
  return std::to_string(version >> 16) + "." + std::to_string(version & 0xffffu);
}

template <class P>
std::unique_ptr<Entry> make_entry(const fp_metadata& metadata, const Host& host) {
  auto entry = std::make_unique<Entry>();
  entry->plugin = std::make_unique<P>();
  entry->plugin->set_host(host);
  fp_plugin& c = entry->c;
  c.struct_size = FP_SIZE_PLUGIN;
  c.abi_version = FP_ABI_VERSION;
  c.abi_min = kAbiMin;
  c.abi_max = FP_ABI_VERSION;
  c.sdk_version = FP_SDK_VERSION;
  c.numerics_version = entry->plugin->numerics_version();
  c.id = metadata.id;
  c.id_size = std::strlen(metadata.id);
  c.vendor = metadata.vendor;
  c.vendor_size = std::strlen(metadata.vendor);
  c.version = metadata.version;
  c.version_size = std::strlen(metadata.version);
  c.context = entry.get();
  c.enumerate = fastpath_sdk_enumerate;
  c.open = fastpath_sdk_open;
  c.close = fastpath_sdk_close;
  c.ops = fastpath_sdk_ops;
  c.kernels = &kKernelApi;
  c.memory = entry->plugin->owns_memory() ? &kMemoryApi : nullptr;
  c.shutdown = fastpath_sdk_shutdown;
  c.extensions = entry->plugin->extensions();
  return entry;
}

/// The query function of plugin class P.
template <class P>
std::int32_t query_plugin(const fp_metadata& metadata, const fp_host* c_host, const fp_plugin** out) noexcept {
  if (out == nullptr) return FP_E_INVALID_ARGUMENT;
  *out = nullptr;
  if (c_host == nullptr) return FP_E_INVALID_ARGUMENT;
  // There is no error sink yet; the host's log takes the text.
  const Host host(c_host);
  const auto log = [](void* context, std::int32_t, const char* text, std::uint64_t size) {
    static_cast<const Host*>(context)->log(FP_LOG_ERROR, std::string_view(text, size));
  };
  fp_error_sink errors = abi_struct<fp_error_sink>();
  errors.context = const_cast<Host*>(&host);
  errors.report = log;
  return guarded(&errors, [&] {
    if (host.abi_max() == 0 || host.abi_max() < kAbiMin || host.abi_min() > FP_ABI_VERSION) {
      throw Failure(FP_E_INCOMPATIBLE, std::string(metadata.id) + ": serves ABI " + abi_text(kAbiMin) + " to " +
                                           abi_text(FP_ABI_VERSION) + ", host speaks " + abi_text(host.abi_min()) +
                                           " to " + abi_text(host.abi_max()));
    }
    static Entry* const entry = make_entry<P>(metadata, host).release();  // never destroyed: nothing runs at exit
    *out = &entry->c;
  });
}

}  // namespace detail
}  // namespace fastpath::sdk

/// Names a plugin: its metadata and the one function it exports. Once, at file scope, in no namespace.
/// @param plugin_class  Derived from fastpath::sdk::Plugin, default constructible, from any namespace.
/// @param device_kinds  "cpu" or "cuda,hip": the kinds of device it may serve, so that hosts load it only when needed.
/// @param build_tag     Text that tells builds apart.
#define FASTPATH_PLUGIN(plugin_class, id, vendor, version, device_kinds, build_tag)                                 \
  FASTPATH_PLUGIN_METADATA(id, vendor, version, device_kinds, build_tag);                                           \
  extern "C" FP_EXPORT std::int32_t fastpath_plugin_query_v1(const fp_host* host, const fp_plugin** out) noexcept { \
    return ::fastpath::sdk::detail::query_plugin<plugin_class>(fastpath_plugin_metadata, host, out);                \
  }                                                                                                                 \
  static_assert(true, "a semicolon follows")
