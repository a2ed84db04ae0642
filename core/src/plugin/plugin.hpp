#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "fastpath/op.hpp"
#include "fastpath/reason.hpp"
#include "fastpath/registry.hpp"
#include "fastpath/tensor.hpp"
#include "life.hpp"

/// The host's side of the plugin ABI in C++ terms. Everything a plugin may do wrong ends here as a Reason or a
/// CallStatus: no exception of a plugin, no unchecked size and no null pointer passes this layer.
namespace fastpath::plugin {

/// What a kernel promises about one (op, config, device, dtype, passes).
struct KernelTraits {
  std::int64_t min_edges = 0;
  std::int64_t max_edges = 0;  ///< 0: no limit.
  std::int64_t prior_edges = -1;
  double tolerance = 0;
  std::uint32_t flags = 0;
  std::int32_t math_mode = 0;
  std::int32_t rank = 0;
  bool unknown_until_open = false;
};

/// How a call ended; `status` is FP_OK or an FP_E_* value, `text` what the plugin reported.
struct CallStatus {
  std::int32_t status = 0;
  std::string text;
  bool ok() const noexcept { return status == 0; }
  /// unsupported, out_of_memory, busy: the reference can take over.
  bool recoverable() const noexcept;
};

/// A kernel of a plugin, created for one op configuration, device and dtype. One thread at a time.
class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual const std::string& plugin_id() const noexcept = 0;
  virtual const KernelTraits& traits() const noexcept = 0;
  /// Binds parameters (on the kernel's device) if `version` differs from the last one bound.
  virtual CallStatus bind(std::span<const Tensor> parameters, std::uint64_t version) = 0;
  /// Bytes that forward keeps for backward. A plugin error counts as 0.
  virtual std::uint64_t saved_bytes(const OpCall& call) = 0;
  /// Runs; scratch memory is kept between calls. Complete when it returns.
  virtual CallStatus run(const OpCall& call) = 0;
};

/// Work for a device, done in the order in which it is given and later than the call that gives it. One thread at a
/// time. Memory that is released may still be in use by what was given before; memory of the host must stay as it is
/// until synchronize().
class Queue {
 public:
  virtual ~Queue() = default;
  /// As OpenDevice's functions of these names, with the same errors.
  virtual void copy_to_device(const Tensor& host, const Tensor& device) = 0;
  virtual void copy_from_device(const Tensor& device, const Tensor& host) = 0;
  /// Waits until everything is done. @throws as the copies do, for work that failed.
  virtual void synchronize() = 0;
};

/// True if both describe one device: by identity where it is known on both sides, else by its place in the list.
bool same_device(const DeviceInfo& a, const DeviceInfo& b) noexcept;

/// An open device: its memory and its kernels. Thread-safe.
class OpenDevice {
 public:
  virtual ~OpenDevice() = default;
  /// Where its tensors lie: for a plugin that only brings kernels, the device as the owner of its memory describes it.
  virtual const DeviceInfo& info() const noexcept = 0;
  /// False for the CPU: tensors then live in host memory. True also where the memory is lent by another plugin.
  virtual bool owns_memory() const noexcept = 0;
  /// The plugin whose memory and streams are used, where another one lends them; else empty.
  virtual std::string lender() const { return {}; }
  /// Its device, which queues and memory are of; null where none is lent.
  virtual std::shared_ptr<OpenDevice> lending() const { return nullptr; }
  /// Yes if other plugins can bring kernels to it; otherwise why it has no native handles for them.
  virtual Support lends() { return Support::no(ReasonCode::device, "has no native handles"); }
  /// Keeps the plugins behind it from being shut down as long as the lease. False if they were, or are about to be.
  virtual bool hold(Lease& lease) {
    static_cast<void>(lease);
    return true;
  }
  /// Fresh device memory; its content is undefined. @throws Error(out_of_memory), Error(device_lost),
  /// Error(kernel_failed).
  virtual Tensor allocate(const Shape& shape, DType dtype) = 0;
  /// Copies contiguous tensors of equal size and dtype; complete on return. Same errors.
  virtual void copy_to_device(const Tensor& host, const Tensor& device) = 0;
  virtual void copy_from_device(const Tensor& device, const Tensor& host) = 0;
  virtual void fill_zero(const Tensor& device) = 0;
  /// A queue of this device; null for one without memory of its own. Same errors.
  virtual std::unique_ptr<Queue> create_queue() { return nullptr; }
  /// True once a call answered device_lost: nothing on it works any more.
  virtual bool lost() const noexcept { return false; }
  /// True in a child of the process that opened it: neither the device nor threads of the plugin came along.
  virtual bool forked() const noexcept { return false; }
  /// @throws Error(unavailable) with the plugin's text if the kernel cannot be created.
  virtual std::unique_ptr<Kernel> create_kernel(const OpSpec& op, DType dtype, Passes passes) = 0;
};

/// A plugin's part in a shutdown, in this order: nobody gets a lease on `life` any more, the last one is let go, then
/// kernels, devices, and its own shutdown. Each once; nothing here throws.
class Ending {
 public:
  virtual ~Ending() = default;
  virtual Life& life() noexcept = 0;
  virtual bool owns_memory() const noexcept = 0;
  /// Its place among the plugins of the process in the order of loading.
  virtual std::uint64_t order() const noexcept = 0;
  /// True in a child of the process that loaded it, where it is not called.
  virtual bool forked() const noexcept = 0;
  virtual void destroy_kernels() noexcept = 0;
  virtual void close_devices() noexcept = 0;
  /// False if that was done before; `text` says what went wrong.
  virtual bool call_shutdown(std::string& text) noexcept = 0;
};

class OfflineCompiler;

/// A plugin that was loaded and negotiated. Thread-safe; pinned for the life of the process.
class LoadedPlugin {
 public:
  virtual ~LoadedPlugin() = default;
  virtual const PluginInfo& info() const noexcept = 0;
  /// Tells this build from every other one: results of the gate are kept by it.
  virtual std::string build() const { return info().id + "/" + info().version + "/" + info().build_tag; }
  /// True if build() names the content of the file, and so holds for other processes too.
  virtual bool build_is_content() const noexcept { return false; }
  /// The device of this plugin that is the asked one, or null.
  virtual const DeviceInfo* find_device(const Device& device) const noexcept = 0;
  /// The device of this plugin that is the one which another plugin describes, or null.
  virtual const DeviceInfo* match_device(const DeviceInfo& wanted) const noexcept { return find_device(wanted.device); }
  /// False for plugins that bring kernels to devices whose memory belongs to others.
  virtual bool brings_memory() const noexcept { return true; }
  /// All blockers, or yes with traits. Validates the answer (reason bad_answer).
  virtual Support query(const OpSpec& op, const DeviceInfo& device, DType dtype, Passes passes,
                        KernelTraits* traits) = 0;
  /// Opens the device once and keeps it. @throws Error(unavailable) or Error(device_lost) with the plugin's text.
  virtual std::shared_ptr<OpenDevice> open(const DeviceInfo& device) = 0;
  /// The same on memory and streams that `owner`, the same device of another plugin, lends.
  virtual std::shared_ptr<OpenDevice> open_on(const DeviceInfo& device, const std::shared_ptr<OpenDevice>& owner) {
    static_cast<void>(owner);
    return open(device);
  }
  /// Null for what cannot be shut down.
  virtual Ending* ending() noexcept { return nullptr; }
  /// True once it was shut down, or is about to be.
  bool ended() noexcept { return ending() != nullptr && ending()->life().ending(); }
};

/// Ends plugins in order (PluginRegistry::shutdown), and waits for a shutdown that is under way. @return Those whose
/// end this call was, with what went wrong, or nothing. @throws Error(invalid_argument) in a thread that holds a lease.
struct Ended {
  std::shared_ptr<LoadedPlugin> plugin;
  std::string text;
};
std::vector<Ended> shut_down(std::vector<std::shared_ptr<LoadedPlugin>> plugins);
/// @throws Error(invalid_argument) where shut_down() would.
void refuse_shutdown_from_within();
/// What selections say afterwards.
Reason shut_down_reason();

}  // namespace fastpath::plugin

namespace fastpath {

class PluginRegistry::Impl {
 public:
  virtual ~Impl() = default;
  virtual std::vector<SearchDirectory> search_path() const = 0;
  virtual std::vector<PluginInfo> plugins() = 0;
  /// The same with the verdict of every step.
  virtual ScanReport scan_report() {
    ScanReport report;
    report.directories = search_path();
    for (PluginInfo& info : plugins()) report.files.push_back({std::move(info), {}, "unchecked", Stage::kernels, {}});
    return report;
  }
  /// The same without loading anything: what was not needed so far is `idle` with reason not_needed.
  virtual std::vector<PluginInfo> known() = 0;
  /// Usable plugins that have devices of this kind, in search order; loads only files whose metadata names the kind.
  virtual std::vector<std::shared_ptr<plugin::LoadedPlugin>> usable(DeviceKind kind) = 0;
  virtual std::vector<PluginInfo> shutdown() { return {}; }
  /// True once shutdown() was called.
  virtual bool ended() const { return false; }
  /// Plugins that compile for devices that are not here, in search order: those that are idle for lack of one too.
  virtual std::vector<std::shared_ptr<plugin::OfflineCompiler>> compilers() { return {}; }
};

}  // namespace fastpath
