#pragma once

#include <atomic>
#include <memory>

#include "call.hpp"
#include "host.hpp"
#include "loaded.hpp"

namespace fastpath::plugin {

/// An open device of a plugin, its memory and what both need from the ABI.
class PluginDevice final : public OpenDevice, public std::enable_shared_from_this<PluginDevice> {
 public:
  /// @throws Error(unavailable) or Error(device_lost).
  PluginDevice(const PluginTables& tables, LoadedPlugin& plugin, const DeviceInfo& info);
  ~PluginDevice() override;

  const DeviceInfo& info() const noexcept override { return info_; }
  bool owns_memory() const noexcept override { return tables_.has_memory && !info_.device.is_cpu(); }
  Tensor allocate(const Shape& shape, DType dtype) override;
  void copy_to_device(const Tensor& host, const Tensor& device) override;
  void copy_from_device(const Tensor& device, const Tensor& host) override;
  void fill_zero(const Tensor& device) override;
  std::unique_ptr<Queue> create_queue() override;
  bool lost() const noexcept override { return lost_.load(std::memory_order_relaxed); }
  bool forked() const noexcept override { return generation_ != fork_generation(); }
  std::unique_ptr<Kernel> create_kernel(const OpSpec& op, DType dtype, Passes passes) override;

  const PluginTables& tables() const noexcept { return tables_; }
  fp_device* handle() const noexcept { return handle_; }
  /// Calls into the plugin on behalf of this device. A lost device answers device_lost for good, without a call.
  template <class Function>
  CallStatus call(ErrorSink& sink, Function&& function) {
    if (forked()) return {FP_E_UNAVAILABLE, "the process was forked after the device was opened"};
    if (lost_.load(std::memory_order_relaxed)) return {FP_E_DEVICE_LOST, "the device was lost before"};
    CallStatus status = guarded(sink, std::forward<Function>(function));
    if (status.status == FP_E_DEVICE_LOST) lost_.store(true, std::memory_order_relaxed);
    return status;
  }
  /// @throws Error for a status that is not ok.
  void check(const CallStatus& status, std::string_view action) const;
  void copy_to_device(const Tensor& host, const Tensor& device, fp_stream* stream);
  void copy_from_device(const Tensor& device, const Tensor& host, fp_stream* stream);

 private:
  void check_pair(const Tensor& host, const Tensor& device, std::string_view action) const;
  void check_own(const Tensor& device, std::string_view action) const;

  const PluginTables& tables_;
  LoadedPlugin& plugin_;
  const DeviceInfo info_;
  const std::uint64_t generation_ = fork_generation();
  fp_device* handle_ = nullptr;
  std::atomic<bool> lost_{false};
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

 private:
  std::shared_ptr<PluginDevice> device_;
  fp_stream* stream_ = nullptr;
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

/// A kernel that the plugin has just created; takes it over. `device` stays open as long as the kernel lives.
std::unique_ptr<Kernel> adopt_kernel(std::shared_ptr<PluginDevice> device, fp_kernel* kernel, KernelTraits traits);

}  // namespace fastpath::plugin
