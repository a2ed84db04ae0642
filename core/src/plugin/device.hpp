#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <vector>

#include "call.hpp"
#include "host.hpp"
#include "loaded.hpp"

namespace fastpath::plugin {

/// An open device of a plugin, its memory and what both need from the ABI. It knows everything that it has given out,
/// so that a shutdown can take it back whoever still holds it.
class PluginDevice final : public OpenDevice, public std::enable_shared_from_this<PluginDevice> {
 public:
  /// @throws Error(unavailable) or Error(device_lost).
  PluginDevice(const PluginTables& tables, LoadedPlugin& plugin, const DeviceInfo& info,
               std::shared_ptr<PluginDevice> owner);
  ~PluginDevice() override;

  const DeviceInfo& info() const noexcept override { return memory_device().info_; }
  /// As the plugin itself describes it; its index may be another one than the memory owner's.
  const DeviceInfo& own_info() const noexcept { return info_; }
  bool owns_memory() const noexcept override { return memory_device().has_memory(); }
  std::string lender() const override { return borrows() ? owner_->tables_.id : std::string(); }
  std::shared_ptr<OpenDevice> lending() const override { return owner_; }
  Support lends() override;
  bool hold(Lease& lease) override;
  Tensor allocate(const Shape& shape, DType dtype) override;
  void copy_to_device(const Tensor& host, const Tensor& device) override;
  void copy_from_device(const Tensor& device, const Tensor& host) override;
  void fill_zero(const Tensor& device) override;
  std::unique_ptr<Queue> create_queue() override;
  bool lost() const noexcept override {
    return lost_.load(std::memory_order_relaxed) || (owner_ != nullptr && owner_->lost());
  }
  bool forked() const noexcept override { return generation_ != fork_generation(); }
  std::unique_ptr<Kernel> create_kernel(const OpSpec& op, DType dtype, Passes passes) override;

  const PluginTables& tables() const noexcept { return tables_; }
  fp_device* handle() const noexcept { return handle_; }
  /// The device that memory and streams belong to: this one, or another plugin's.
  PluginDevice& memory_device() noexcept { return owner_ == nullptr ? *this : *owner_; }
  const PluginDevice& memory_device() const noexcept { return owner_ == nullptr ? *this : *owner_; }
  bool borrows() const noexcept { return owner_ != nullptr; }

  /// Calls into the plugin on behalf of this device. A lost device answers device_lost for good, without a call.
  template <class Function>
  CallStatus call(ErrorSink& sink, Function&& function) {
    if (forked()) return {FP_E_UNAVAILABLE, "the process was forked after the device was opened"};
    if (lost()) return {FP_E_DEVICE_LOST, "the device was lost before"};
    Lease lease;
    if (!hold(lease)) return {FP_E_UNSUPPORTED, shut_down_reason().text};
    CallStatus status = guarded(sink, std::forward<Function>(function));
    if (status.status == FP_E_DEVICE_LOST) lose();
    return status;
  }
  /// @throws Error for a status that is not ok.
  void check(const CallStatus& status, std::string_view action) const;
  void copy_to_device(const Tensor& host, const Tensor& device, fp_stream* stream);
  void copy_from_device(const Tensor& device, const Tensor& host, fp_stream* stream);

  /// What was taken is given back by the function beside it, or by the shutdown. Memory and streams are those of
  /// memory_device().
  CallStatus take_memory(std::uint64_t bytes, void*& memory, ErrorSink& sink);
  void give_memory(void* memory) noexcept;
  CallStatus take_stream(fp_stream*& stream, ErrorSink& sink);
  void give_stream(fp_stream* stream) noexcept;
  void give_kernel(fp_kernel* kernel) noexcept;
  /// Handles for a plugin that brings kernels to this device: of its context, and of a stream unless that is null.
  CallStatus native(fp_stream* stream, fp_native& out, ErrorSink& sink);

  /// A device that works on the memory of this one.
  void add_borrower(const std::shared_ptr<PluginDevice>& device) {
    const std::lock_guard lock(mutex_);
    borrowers_.push_back(device);
  }
  // For a shutdown, when nobody has a lease on the plugin any more: those of devices that this one lends to come first.
  void destroy_kernels() noexcept;
  void close() noexcept;

 private:
  bool has_memory() const noexcept { return tables_.has_memory && !info_.device.is_cpu(); }
  void lose() noexcept;
  void check_pair(const Tensor& host, const Tensor& device, std::string_view action) const;
  void check_own(const Tensor& device, std::string_view action) const;
  std::vector<std::shared_ptr<PluginDevice>> borrowers();

  const PluginTables& tables_;
  LoadedPlugin& plugin_;
  const DeviceInfo info_;
  const std::shared_ptr<PluginDevice> owner_;
  const std::uint64_t generation_ = fork_generation();
  fp_device* handle_ = nullptr;
  std::atomic<bool> lost_{false};

  std::mutex mutex_;  // never held during a call
  std::set<fp_kernel*> kernels_;
  std::set<fp_stream*> streams_;
  std::set<void*> memory_;
  std::vector<std::weak_ptr<PluginDevice>> borrowers_;
};

/// A stream of a device.
class PluginQueue final : public Queue {
 public:
  /// @throws Error as PluginDevice::allocate.
  explicit PluginQueue(std::shared_ptr<PluginDevice> device);
  ~PluginQueue() override;
  PluginQueue(const PluginQueue&) = delete;
  PluginQueue& operator=(const PluginQueue&) = delete;

  void copy_to_device(const Tensor& host, const Tensor& device) override {
    device_->copy_to_device(host, device, stream_);
  }
  void copy_from_device(const Tensor& device, const Tensor& host) override {
    device_->copy_from_device(device, host, stream_);
  }
  void synchronize() override;
  fp_stream* stream() const noexcept { return stream_; }
  /// Handles of the stream for a plugin that brings kernels to its device; valid as long as the queue.
  CallStatus native(const fp_native*& out, ErrorSink& sink);

 private:
  std::shared_ptr<PluginDevice> device_;
  fp_stream* stream_ = nullptr;
  fp_native native_{};  // struct_size 0: not asked for yet
};

/// Memory of a device, or of the host, that is kept and grown: for scratch.
class Workspace {
 public:
  explicit Workspace(PluginDevice& device) noexcept : device_(device) {}
  ~Workspace() { release(); }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  /// Makes room for `bytes`; the content is undefined.
  CallStatus reserve(std::uint64_t bytes, ErrorSink& sink);
  void* memory() const noexcept { return memory_; }
  std::uint64_t capacity() const noexcept { return capacity_; }

 private:
  void release() noexcept;
  PluginDevice& device_;
  void* memory_ = nullptr;
  std::uint64_t capacity_ = 0;
};

/// A kernel that the plugin has just created; takes it over. `device` stays open as long as the kernel lives, or until
/// the plugin is shut down.
std::unique_ptr<Kernel> adopt_kernel(std::shared_ptr<PluginDevice> device, fp_kernel* kernel, KernelTraits traits);

}  // namespace fastpath::plugin
