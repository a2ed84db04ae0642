#include "loaded.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <boost/dll/shared_library_load_mode.hpp>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "call.hpp"
#include "device.hpp"
#include "fastpath/sdk/attributes.hpp"
#include "host.hpp"
#include "mapping.hpp"
#include "offline.hpp"

namespace fastpath::plugin {
namespace {

namespace fs = std::filesystem;

// The last member that version 1.0 of the ABI has in each struct: what a plugin must at least know.
constexpr std::uint32_t kPluginRequired = FP_END_OF(fp_plugin, kernels);
constexpr std::uint32_t kKernelApiRequired = FP_END_OF(fp_kernel_api, run);
constexpr std::uint32_t kMemoryApiRequired = FP_END_OF(fp_memory_api, memory_info);
constexpr std::uint32_t kDeviceInfoRequired = FP_END_OF(fp_device_info, flags);
constexpr std::uint32_t kOpInfoRequired = FP_END_OF(fp_op_info, reserved);
constexpr std::uint64_t kMaxDevices = 1024;
constexpr std::uint64_t kMaxOps = 1u << 16;
constexpr std::uint64_t kMaxName = 1024;
constexpr std::size_t kMaxBlockers = 64;
constexpr std::size_t kMaxSentence = 1024;

/// Ends a negotiation.
struct Refusal {
  PluginState state;
  Reason reason;
};
[[noreturn]] void refuse(ReasonCode code, std::string text, PluginState state = PluginState::rejected) {
  throw Refusal{state, {code, std::move(text)}};
}

/// Text of a plugin with a length it states itself. @throws Refusal if the pointer or the length cannot be right.
std::string checked_text(const char* text, std::uint64_t size, ReasonCode code, std::string_view what) {
  if (size == 0) return {};
  if (text == nullptr || size > kMaxName)
    refuse(code, fmt::format("{} has {} bytes at {}", what, size, text == nullptr ? "null" : "an address"));
  return clean_text({text, static_cast<std::size_t>(size)}, kMaxName);
}

/// A list with a stride that a plugin filled in. @throws Refusal if it cannot be right.
template <class Item, class List>
std::vector<Item> checked_list(const List& list, std::uint32_t required, std::uint64_t max_count, ReasonCode code,
                               std::string_view what) {
  std::vector<Item> result;
  if (list.count == 0) return result;
  if (list.count > max_count) refuse(code, fmt::format("{} {}, at most {} are accepted", list.count, what, max_count));
  if (list.items == nullptr) refuse(code, fmt::format("{} {} at a null address", list.count, what));
  const auto* at = reinterpret_cast<const std::byte*>(list.items);
  for (std::uint64_t i = 0; i < list.count; ++i, at += list.stride) {
    Item item;
    std::uint32_t stated = 0;
    if (list.stride >= required) std::memcpy(&stated, at, sizeof stated);
    if (stated < required || stated > list.stride || !copy_struct(at, required, item)) {
      refuse(code, fmt::format("item {} of its {} is smaller than {} bytes, or larger than the stride of {}", i, what,
                               required, list.stride));
    }
    result.push_back(item);
  }
  return result;
}

std::optional<DeviceKind> kind_of(std::int32_t type) {
  switch (type) {
    case FP_DEVICE_CPU:
      return DeviceKind::cpu;
    case FP_DEVICE_CUDA:
      return DeviceKind::cuda;
    case FP_DEVICE_OPENCL:
      return DeviceKind::opencl;
    case FP_DEVICE_ROCM:
      return DeviceKind::hip;
    case FP_DEVICE_EXT:
      return DeviceKind::extension;
    default:
      return std::nullopt;  // of a later ABI: not for this host
  }
}

std::vector<DType> dtypes_of(std::uint32_t bits) {
  std::vector<DType> result;
  if ((bits & FP_DTYPE_BIT_F32) != 0) result.push_back(DType::float32);
  if ((bits & FP_DTYPE_BIT_F64) != 0) result.push_back(DType::float64);
  return result;
}

ReasonCode reason_of(std::int32_t code) noexcept {
  constexpr std::array kCodes{ReasonCode::other,        ReasonCode::op,           ReasonCode::op_version,
                              ReasonCode::device,       ReasonCode::arch,         ReasonCode::dtype,
                              ReasonCode::pass,         ReasonCode::config,       ReasonCode::degree,
                              ReasonCode::multiplicity, ReasonCode::instructions, ReasonCode::math_mode,
                              ReasonCode::memory,       ReasonCode::size};
  static_assert(kCodes.size() == FP_REASON_SIZE + 1);
  return code >= 0 && static_cast<std::size_t>(code) < kCodes.size() ? kCodes[static_cast<std::size_t>(code)]
                                                                     : ReasonCode::other;
}

/// Collects the blockers of one query.
struct Blockers {
  std::vector<Reason> reasons;
  static void add(void* context, std::int32_t reason, const char* text, std::uint64_t size) {
    try {
      auto& self = *static_cast<Blockers*>(context);
      if (self.reasons.size() >= kMaxBlockers) return;
      const std::size_t length = static_cast<std::size_t>(std::min<std::uint64_t>(size, kMaxSentence));
      self.reasons.push_back({reason_of(reason), text == nullptr ? "" : clean_text({text, length}, kMaxSentence)});
    } catch (...) {  // nothing is thrown through a plugin; the verdict still counts
    }
  }
};

class Loaded final : public LoadedPlugin, private Ending {
 public:
  Loaded(PluginTables tables, PluginInfo info, const std::string& sha256)
      : tables_(std::move(tables)),
        info_(std::move(info)),
        has_content_(!sha256.empty()),
        build_(fmt::format("{}/{}/{}/{}/{}", info_.id, info_.version, info_.build_tag, tables_.plugin.numerics_version,
                           sha256)) {}

  const PluginInfo& info() const noexcept override { return info_; }
  std::string build() const override { return build_; }
  bool build_is_content() const noexcept override { return has_content_; }
  const DeviceInfo* find_device(const Device& device) const noexcept override {
    const auto found = std::find_if(info_.devices.begin(), info_.devices.end(),
                                    [&](const DeviceInfo& candidate) { return candidate.device == device; });
    return found == info_.devices.end() ? nullptr : &*found;
  }
  const DeviceInfo* match_device(const DeviceInfo& wanted) const noexcept override {
    const auto found = std::find_if(info_.devices.begin(), info_.devices.end(),
                                    [&](const DeviceInfo& candidate) { return same_device(candidate, wanted); });
    return found == info_.devices.end() ? nullptr : &*found;
  }
  bool brings_memory() const noexcept override { return tables_.has_memory; }
  Support query(const OpSpec& op, const DeviceInfo& device, DType dtype, Passes passes, KernelTraits* traits) override;
  std::shared_ptr<OpenDevice> open(const DeviceInfo& device) override { return open_on(device, nullptr); }
  std::shared_ptr<OpenDevice> open_on(const DeviceInfo& device, const std::shared_ptr<OpenDevice>& owner) override;
  Ending* ending() noexcept override { return this; }

 private:
  Life& life() noexcept override { return life_; }
  bool owns_memory() const noexcept override { return tables_.has_memory; }
  std::uint64_t order() const noexcept override { return order_; }
  bool forked() const noexcept override { return generation_ != fork_generation(); }
  void destroy_kernels() noexcept override {
    for (auto& [place, slot] : slots_) {
      if (slot.device) slot.device->destroy_kernels();
    }
  }
  void close_devices() noexcept override {
    for (auto& [place, slot] : slots_) {
      if (slot.device) slot.device->close();
    }
    slots_.clear();
  }
  bool call_shutdown(std::string& text) noexcept override;
  static std::uint64_t next_order() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }

  Life life_;
  const std::uint64_t order_ = next_order();
  const std::uint64_t generation_ = fork_generation();
  bool shut_down_ = false;
  PluginTables tables_;
  PluginInfo info_;
  const bool has_content_;
  const std::string build_;
  std::mutex mutex_;
  std::condition_variable opened_;
  struct Slot {
    bool opening = false;
    std::shared_ptr<PluginDevice> device;
  };
  // By index into info_.devices, and who lends the memory. Not looked at by several threads once nobody gets a lease.
  std::map<std::pair<std::size_t, const OpenDevice*>, Slot> slots_;
};

bool Loaded::call_shutdown(std::string& text) noexcept {
  if (std::exchange(shut_down_, true)) return false;
  if (tables_.plugin.shutdown == nullptr) return true;
  try {
    ErrorSink sink;
    const CallStatus status = guarded(sink, [&] {
      tables_.plugin.shutdown(tables_.original);
      return FP_OK;
    });
    if (!status.ok()) text = "its shutdown " + status.text;
  } catch (...) {  // no memory for the words
  }
  return true;
}

Support Loaded::query(const OpSpec& op, const DeviceInfo& device, DType dtype, Passes passes, KernelTraits* traits) {
  const DeviceInfo* own = find_device(device.device);
  if (own == nullptr) {
    return Support::no(ReasonCode::device, fmt::format("has no device {}", to_string(device.device)));
  }
  const Lease lease(life_);
  if (!lease) return Support::no(shut_down_reason().code, shut_down_reason().text);
  return query_kernel(tables_, op, *own, dtype, passes, traits);
}

std::shared_ptr<OpenDevice> Loaded::open_on(const DeviceInfo& device, const std::shared_ptr<OpenDevice>& owner) {
  const DeviceInfo* own = find_device(device.device);
  if (own == nullptr) {
    throw Error(ErrorCode::unavailable,
                fmt::format("plugin {} has no device {}", tables_.id, to_string(device.device)));
  }
  Lease lease(life_);
  if (!lease || (owner != nullptr && !owner->hold(lease))) {
    throw Error(ErrorCode::unavailable, fmt::format("plugin {}: {}", tables_.id, shut_down_reason().text));
  }
  std::unique_lock lock(mutex_);
  Slot& slot = slots_[{static_cast<std::size_t>(own - info_.devices.data()), owner.get()}];
  opened_.wait(lock, [&] { return !slot.opening; });
  if (slot.device) return slot.device;
  slot.opening = true;
  lock.unlock();  // plugins are called without a lock
  std::shared_ptr<PluginDevice> result;
  std::exception_ptr failure;
  try {
    result = open_device(tables_, *this, *own, owner);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  slot.opening = false;
  slot.device = result;  // a failure is not kept: the device may be busy now and free later
  opened_.notify_all();
  if (failure) std::rethrow_exception(failure);
  return result;
}

/// The dynamic linker's own words in the text of Boost.DLL's exception.
std::string linker_text(std::string_view what) {
  constexpr std::string_view kMark = "(dlerror system message: ";
  const std::size_t mark = what.find(kMark);
  if (mark == std::string_view::npos) return std::string(what);
  const std::size_t start = mark + kMark.size();
  const std::size_t end = what.rfind(')');
  return std::string(what.substr(start, end == std::string_view::npos || end < start ? end : end - start));
}

/// The linker starts its message with the object it complains about: by its bare name if it found no file of that name,
/// by its path if it found one. Its other words depend on the language of the process.
Reason load_failure(const Candidate& candidate, const std::string& text) {
  const std::string object = text.substr(0, text.find(": "));
  const bool other = object.size() < text.size() && object != candidate.resolved.string();
  std::error_code error;
  const bool absent =
      object.find('/') == std::string::npos ? object.find(".so") != std::string::npos : !fs::exists(object, error);
  if (other && absent) {
    return {ReasonCode::missing_dependency, fmt::format("needs {}, which is not found", object)};
  }
  return {ReasonCode::load_failed, text};
}

const char* absent_entry(const PluginTables& tables) {
  const fp_plugin& plugin = tables.plugin;
  if (plugin.enumerate == nullptr) return "enumerate";
  if (plugin.open == nullptr) return "open";
  if (plugin.close == nullptr) return "close";
  if (plugin.ops == nullptr) return "ops";
  if (tables.kernels.query == nullptr) return "kernels->query";
  if (tables.kernels.create == nullptr) return "kernels->create";
  if (tables.kernels.destroy == nullptr) return "kernels->destroy";
  if (tables.kernels.bind == nullptr) return "kernels->bind";
  if (tables.kernels.workspace == nullptr) return "kernels->workspace";
  if (tables.kernels.run == nullptr) return "kernels->run";
  if (!tables.has_memory) return nullptr;
  const fp_memory_api& memory = tables.memory;
  if (memory.allocate == nullptr) return "memory->allocate";
  if (memory.release == nullptr) return "memory->release";
  if (memory.copy_to_device == nullptr) return "memory->copy_to_device";
  if (memory.copy_from_device == nullptr) return "memory->copy_from_device";
  if (memory.copy_on_device == nullptr) return "memory->copy_on_device";
  if (memory.fill_zero == nullptr) return "memory->fill_zero";
  if (memory.create_stream == nullptr) return "memory->create_stream";
  if (memory.destroy_stream == nullptr) return "memory->destroy_stream";
  if (memory.synchronize == nullptr) return "memory->synchronize";
  if (memory.create_event == nullptr) return "memory->create_event";
  if (memory.destroy_event == nullptr) return "memory->destroy_event";
  if (memory.record == nullptr) return "memory->record";
  if (memory.wait == nullptr) return "memory->wait";
  if (memory.memory_info == nullptr) return "memory->memory_info";
  return nullptr;
}

/// The libraries of this process that were loaded as plugins, and what came of it. Never destroyed: libraries stay.
struct Process {
  struct Entry {
    FileIdentity identity;
    bool loading = true;
    std::thread::id loader;
    LoadResult result;
    std::optional<boost::dll::shared_library> pinned;  // of a plugin that was refused: its code may still run
  };
  std::mutex mutex;
  std::condition_variable loaded;
  std::map<void*, Entry> entries;  // by the linker's handle, which is equal for the same library
};
Process& process() {
  static Process* const instance = new Process;
  return *instance;
}

/// What is wrong with the file that the linker mapped; empty if it is the one that was examined. If another file took
/// its place meanwhile, that one's constructors have run; nothing else of it will.
std::string other_file(const PluginTables& tables, const Candidate& candidate, const OpenFile& file) {
  const std::optional<FileIdentity> now = identify(candidate.resolved);
  if (!now || !now->unchanged(candidate.identity)) return "the file was replaced while it was loaded";
  const void* const query = ::dlsym(tables.library.native(), FP_QUERY_SYMBOL);
  if (query != nullptr && mapped_from(query, file.descriptor()) == Mapping::other) {
    return "another file than the examined one was loaded from this path";
  }
  return {};
}

/// Calls the query function and copies what it gives.
void fetch_tables(PluginTables& tables) {
  fp_plugin_query_fn query = nullptr;
  try {
    query = reinterpret_cast<fp_plugin_query_fn>(
        &tables.library.get<std::int32_t(const fp_host*, const fp_plugin**)>(FP_QUERY_SYMBOL));
  } catch (const std::exception& error) {
    refuse(ReasonCode::no_query_symbol, linker_text(error.what()));
  }
  ErrorSink sink;
  CallStatus status;
  {
    const LogCapture log;
    status = guarded(sink, [&] { return query(&host_table(), &tables.original); });
    if (!log.text().empty()) status.text += fmt::format("{}{}", status.text.empty() ? "" : ": ", log.text());
  }
  if (status.status == FP_E_UNAVAILABLE) refuse(ReasonCode::no_device, status.text, PluginState::idle);
  if (status.status == FP_E_INCOMPATIBLE) refuse(ReasonCode::abi_incompatible, status.text);
  if (!status.ok()) refuse(ReasonCode::query_failed, fmt::format("the query function failed: {}", status.text));
  if (tables.original == nullptr) refuse(ReasonCode::query_failed, "the query function gave no plugin");

  if (!copy_struct(tables.original, kPluginRequired, tables.plugin)) {
    refuse(ReasonCode::bad_plugin,
           fmt::format("fp_plugin of {} bytes, expected at least {}", tables.original->struct_size, kPluginRequired));
  }
  const fp_plugin& plugin = tables.plugin;
  const std::string conflict = abi_conflict(plugin.abi_version, plugin.abi_min, plugin.abi_max);
  if (!conflict.empty()) refuse(ReasonCode::abi_incompatible, conflict);
  if (plugin.sdk_version == 0) refuse(ReasonCode::bad_plugin, "SDK version 0");
  if (!copy_struct(plugin.kernels, kKernelApiRequired, tables.kernels)) {
    refuse(ReasonCode::bad_plugin,
           plugin.kernels == nullptr ? "its entry kernels is null" : "fp_kernel_api is too small");
  }
  tables.has_memory = plugin.memory != nullptr;
  if (tables.has_memory && !copy_struct(plugin.memory, kMemoryApiRequired, tables.memory)) {
    refuse(ReasonCode::bad_plugin, "fp_memory_api is too small");
  }
  if (const char* entry = absent_entry(tables)) {
    refuse(ReasonCode::bad_plugin, fmt::format("its entry {} is null", entry));
  }
}

void check_identity(const PluginTables& tables, const Metadata& metadata) {
  const fp_plugin& plugin = tables.plugin;
  const auto compare = [](std::string_view what, const std::string& loaded, const std::string& stated) {
    if (loaded == stated) return;
    refuse(ReasonCode::metadata_mismatch, fmt::format("{} is '{}', its metadata says '{}'", what, loaded, stated));
  };
  compare("id", checked_text(plugin.id, plugin.id_size, ReasonCode::bad_plugin, "id"), metadata.id);
  compare("vendor", checked_text(plugin.vendor, plugin.vendor_size, ReasonCode::bad_plugin, "vendor"), metadata.vendor);
  compare("version", checked_text(plugin.version, plugin.version_size, ReasonCode::bad_plugin, "version"),
          metadata.version);
  if (plugin.abi_version != metadata.abi_version) {
    refuse(ReasonCode::metadata_mismatch, fmt::format("built for ABI {}, its metadata says {}",
                                                      abi_text(plugin.abi_version), abi_text(metadata.abi_version)));
  }
}

void list_devices(const PluginTables& tables, PluginInfo& info) {
  constexpr ReasonCode kCode = ReasonCode::enumerate_failed;
  fp_device_list list{};
  list.struct_size = FP_SIZE_DEVICE_LIST;
  list.stride = sizeof(fp_device_info);
  ErrorSink sink;
  const CallStatus status = guarded(sink, [&] { return tables.plugin.enumerate(tables.original, &list, sink.get()); });
  if (status.status == FP_E_UNAVAILABLE) refuse(ReasonCode::no_device, status.text, PluginState::idle);
  if (!status.ok()) refuse(kCode, fmt::format("listing devices failed: {}", status.text));
  for (const fp_device_info& item :
       checked_list<fp_device_info>(list, kDeviceInfoRequired, kMaxDevices, kCode, "devices")) {
    const std::optional<DeviceKind> kind = kind_of(item.type);
    if (!kind) continue;
    DeviceInfo device;
    device.device = {*kind, item.index};
    if (item.index < 0 || (device.device.is_cpu() && item.index != 0)) {
      refuse(kCode, fmt::format("a device {} with index {}", to_string(*kind), item.index));
    }
    if (std::find(info.device_kinds.begin(), info.device_kinds.end(), *kind) == info.device_kinds.end()) {
      refuse(ReasonCode::metadata_mismatch,
             fmt::format("offers a device of kind {}, which its metadata does not name", to_string(*kind)));
    }
    for (const DeviceInfo& earlier : info.devices) {
      if (earlier.device == device.device) refuse(kCode, fmt::format("device {} twice", to_string(device.device)));
    }
    device.vendor = checked_text(item.vendor, item.vendor_size, kCode, "a device's vendor");
    device.name = checked_text(item.name, item.name_size, kCode, "a device's name");
    device.arch = checked_text(item.arch, item.arch_size, kCode, "a device's arch");
    device.uuid = checked_text(item.uuid, item.uuid_size, kCode, "a device's uuid");
    device.pci = checked_text(item.pci, item.pci_size, kCode, "a device's pci address");
    device.driver = checked_text(item.driver, item.driver_size, kCode, "a device's driver");
    device.units = item.units;
    device.memory_bytes = item.memory_bytes;
    device.dtypes = dtypes_of(item.dtypes);
    if (device.device.is_cpu()) {
      // The host knows its CPU; a plugin need not repeat it.
      const DeviceInfo& cpu = cpu_info();
      if (device.vendor.empty()) device.vendor = cpu.vendor;
      if (device.name.empty()) device.name = cpu.name;
      if (device.arch.empty()) device.arch = cpu.arch;
      if (device.units == 0) device.units = cpu.units;
      if (device.memory_bytes == 0) device.memory_bytes = cpu.memory_bytes;
    }
    info.devices.push_back(std::move(device));
  }
}

void list_kernels(const PluginTables& tables, PluginInfo& info) {
  constexpr ReasonCode kCode = ReasonCode::bad_plugin;
  fp_op_list list{};
  list.struct_size = FP_SIZE_OP_LIST;
  list.stride = sizeof(fp_op_info);
  ErrorSink sink;
  const CallStatus status = guarded(sink, [&] { return tables.plugin.ops(tables.original, &list, sink.get()); });
  if (!status.ok()) refuse(kCode, fmt::format("listing ops failed: {}", status.text));
  for (const fp_op_info& item : checked_list<fp_op_info>(list, kOpInfoRequired, kMaxOps, kCode, "ops")) {
    const std::optional<DeviceKind> kind = kind_of(item.device_type);
    if (!kind) continue;
    KernelInfo kernel;
    kernel.op = checked_text(item.op, item.op_size, kCode, "an op's name");
    if (kernel.op.empty()) refuse(kCode, "an op without a name");
    kernel.op_version = item.op_version;
    kernel.device = *kind;
    kernel.dtypes = dtypes_of(item.dtypes);
    kernel.passes = Passes::from_bits(item.passes);
    info.kernels.push_back(std::move(kernel));
  }
}

/// Everything from the query function on. Fills `result`; the library ends up in it or in `tables`.
void negotiate(PluginTables& tables, const Candidate& candidate, const StageObserver& observer, LoadResult& result) {
  const auto enter = [&](Stage stage) {
    result.stage = stage;
    if (observer) observer(stage);
  };
  PluginInfo& info = result.info;
  info.id = candidate.metadata->id;
  info.version = candidate.metadata->version;
  info.vendor = candidate.metadata->vendor;
  info.build_tag = candidate.metadata->build_tag;
  info.device_kinds = candidate.metadata->device_kinds;
  info.path = candidate.path;
  try {
    enter(Stage::negotiate);
    fetch_tables(tables);
    check_identity(tables, *candidate.metadata);
    tables.id = info.id;
    // Kernels first: they are worth listing where there is no device.
    enter(Stage::kernels);
    list_kernels(tables, info);
    result.compiler = OfflineCompiler::of(tables);
    enter(Stage::devices);
    list_devices(tables, info);
    if (info.devices.empty()) refuse(ReasonCode::no_device, "it finds no device", PluginState::idle);
    result.stage = Stage::kernels;
    result.state = PluginState::usable;
    result.reason = {ReasonCode::usable, ""};
  } catch (Refusal& refusal) {
    result.state = refusal.state;
    result.reason = std::move(refusal.reason);
    info.devices.clear();  // nothing of a list that was wrong somewhere
  }
  info.state = result.state;
  info.reason = result.reason;
  if (result.state == PluginState::usable) {
    result.plugin = std::make_shared<Loaded>(std::move(tables), info, candidate.sha256);
    if (result.compiler) result.compiler->belongs_to(*result.plugin);
  }
}

LoadResult refused(ReasonCode code, std::string text) {
  LoadResult result;
  result.reason = {code, std::move(text)};
  return result;
}

}  // namespace

Support query_kernel(const PluginTables& tables, const OpSpec& op, const DeviceInfo& device, DType dtype, Passes passes,
                     KernelTraits* traits) {
  const KernelQuery query(op, device, dtype, passes);
  Blockers blockers;
  fp_kernel_answer answer{};
  answer.struct_size = FP_SIZE_KERNEL_ANSWER;
  answer.context = &blockers;
  answer.add_blocker = &Blockers::add;
  answer.prior_edges = -1;
  ErrorSink sink;
  const CallStatus status =
      guarded(sink, [&] { return tables.kernels.query(tables.original, &query.get(), &answer, sink.get()); });

  Support support;
  const auto bad = [&](std::string text) { support.blocked(ReasonCode::bad_answer, std::move(text)); };
  if (!status.ok() && status.status != FP_E_UNSUPPORTED) {
    bad(fmt::format("the query failed: {}", status.text));
    return support;
  }
  for (Reason& reason : blockers.reasons) support.blocked(reason.code, std::move(reason.text));
  if (!status.ok() || answer.verdict == FP_ANSWER_NO) {
    if (support) support.blocked(ReasonCode::other, status.ok() ? "refused without a reason" : status.text);
    return support;
  }
  if (answer.verdict != FP_ANSWER_YES && answer.verdict != FP_ANSWER_UNKNOWN) {
    bad(fmt::format("verdict {}, expected 0, 1 or 2", answer.verdict));
    return support;
  }
  if (answer.verdict == FP_ANSWER_YES && !support) bad("the verdict is yes, with reasons against it");
  if (answer.min_edges < 0 || answer.max_edges < 0 || (answer.max_edges != 0 && answer.max_edges < answer.min_edges)) {
    bad(fmt::format("sizes from {} to {} edges", answer.min_edges, answer.max_edges));
  }
  if (!(answer.tolerance >= 0 && answer.tolerance < 1)) {
    bad(fmt::format("tolerance {}, expected at least 0 and below 1", answer.tolerance));
  }
  if (answer.math_mode != FP_MATH_FULL) {
    // Reduced precision was not asked for; a mode of a later ABI cannot be judged.
    support.blocked(ReasonCode::math_mode, fmt::format("math mode {}, only full ({}) was accepted", answer.math_mode,
                                                       static_cast<int>(FP_MATH_FULL)));
  }
  if (support && traits != nullptr) {
    *traits = {.min_edges = answer.min_edges,
               .max_edges = answer.max_edges,
               .prior_edges = std::max<std::int64_t>(answer.prior_edges, -1),
               .tolerance = answer.tolerance,
               .flags = answer.flags,
               .math_mode = answer.math_mode,
               .rank = answer.rank,
               .unknown_until_open = answer.verdict == FP_ANSWER_UNKNOWN};
  }
  return support;
}

LoadResult load(const Candidate& candidate, const StageObserver& observer) {
  PluginTables tables;
  if (observer) observer(Stage::load);
  const OpenFile file(candidate.resolved);
  const std::optional<FileIdentity> opened = file.identity();
  if (!opened) return refused(ReasonCode::changed, "the file went away, or became unreadable, after it was examined");
  if (!opened->unchanged(candidate.identity)) {
    return refused(ReasonCode::changed, "the file was replaced, or written to, after it was examined");
  }
  try {
    // Now rather than lazily: a symbol that is missing is found here, not in the middle of an evaluation.
    tables.library.load(candidate.resolved, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
  } catch (const std::exception& error) {
    LoadResult result;
    result.reason = load_failure(candidate, linker_text(error.what()));
    return result;
  } catch (...) {  // a constructor of the plugin threw
    return refused(ReasonCode::load_failed, "a constructor of the library threw");
  }

  void* const handle = tables.library.native();
  Process& known = process();
  std::unique_lock lock(known.mutex);
  const auto [found, inserted] = known.entries.try_emplace(handle);
  Process::Entry& entry = found->second;
  if (!inserted) {
    if (entry.loading && entry.loader == std::this_thread::get_id()) {
      return refused(ReasonCode::load_failed, "asked for while it is being loaded");  // by its own log line
    }
    known.loaded.wait(lock, [&] { return !entry.loading; });
    // The linker goes by the name: a file that was replaced is not read again.
    if (!entry.identity.unchanged(candidate.identity)) {
      return refused(ReasonCode::load_failed, "another file was loaded from this path before; restart to use this one");
    }
    if (entry.result.plugin != nullptr && entry.result.plugin->ended()) {
      LoadResult ended = entry.result;
      ended.plugin = nullptr;
      ended.state = ended.info.state = PluginState::idle;
      ended.reason = ended.info.reason = shut_down_reason();
      return ended;
    }
    return entry.result;
  }
  entry.identity = candidate.identity;
  entry.loader = std::this_thread::get_id();
  lock.unlock();
  LoadResult result;
  try {
    if (std::string other = other_file(tables, candidate, file); !other.empty()) {
      result = refused(ReasonCode::changed, std::move(other));
    } else {
      negotiate(tables, candidate, observer, result);
    }
  } catch (...) {
    result = refused(ReasonCode::query_failed, "no memory to negotiate");
  }
  lock.lock();
  entry.result = result;
  if (tables.library.is_loaded()) entry.pinned = std::move(tables.library);
  entry.loading = false;
  known.loaded.notify_all();
  return result;
}

fp_device_info to_c(const DeviceInfo& info) noexcept {
  fp_device_info result{};
  result.struct_size = FP_SIZE_DEVICE_INFO;
  result.type = static_cast<std::int32_t>(info.device.kind);
  result.index = info.device.index;
  result.units = info.units;
  const auto put = [](const std::string& text, const char*& data, std::uint64_t& size) {
    data = text.data();
    size = text.size();
  };
  put(info.vendor, result.vendor, result.vendor_size);
  put(info.name, result.name, result.name_size);
  put(info.arch, result.arch, result.arch_size);
  put(info.uuid, result.uuid, result.uuid_size);
  put(info.pci, result.pci, result.pci_size);
  put(info.driver, result.driver, result.driver_size);
  result.memory_bytes = info.memory_bytes;
  for (const DType dtype : info.dtypes) {
    if (dtype == DType::float32) result.dtypes |= FP_DTYPE_BIT_F32;
    if (dtype == DType::float64) result.dtypes |= FP_DTYPE_BIT_F64;
  }
  return result;
}

DTypeCode dtype_code(DType dtype) noexcept {
  switch (dtype) {
    case DType::float32:
      return {FP_CODE_FLOAT, 32};
    case DType::float64:
      return {FP_CODE_FLOAT, 64};
    case DType::int32:
      return {FP_CODE_INT, 32};
    case DType::int64:
      return {FP_CODE_INT, 64};
    case DType::boolean:
    case DType::uint8:
      return {FP_CODE_UINT, 8};
  }
  return {FP_CODE_UINT, 8};
}

struct KernelQuery::Parts {
  Parts(const OpSpec& op, const DeviceInfo& device_info)
      : id(op.id), attributes(op.config), list(attributes), device(to_c(device_info)) {}
  std::string id;
  sdk::Attributes attributes;
  sdk::AttributeList list;
  fp_device_info device;
  fp_kernel_query query{};
};

KernelQuery::KernelQuery(const OpSpec& op, const DeviceInfo& device, DType dtype, Passes passes)
    : parts_(std::make_unique<Parts>(op, device)) {
  fp_kernel_query& query = parts_->query;
  query.struct_size = FP_SIZE_KERNEL_QUERY;
  query.op_version = op.version;
  query.op = parts_->id.data();
  query.op_size = parts_->id.size();
  query.config = &parts_->list.c_list();
  query.device = &parts_->device;
  query.dtype_code = dtype_code(dtype).code;
  query.dtype_bits = dtype_code(dtype).bits;
  query.dtype_lanes = 1;
  query.passes = passes.bits();
  query.math_mode = FP_MATH_FULL;
}
KernelQuery::~KernelQuery() = default;
const fp_kernel_query& KernelQuery::get() const noexcept { return parts_->query; }

}  // namespace fastpath::plugin
