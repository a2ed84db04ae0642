#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>

#include "backend.hpp"
#include "compile_cache.hpp"
#include "fastpath/sdk/host.hpp"

namespace fastpath_gpu {

/// An open device of any vendor: hands calls on, answers all of them with its loss once it is lost, and shares loaded
/// code between kernels of the same source. May be called from several threads.
class GpuDevice final : public sdk::Device, public sdk::DeviceMemory {
  template <class Body>
  auto unless_lost(Body&& body) {
    if (lost_.load(std::memory_order_acquire)) throw DeviceLost(loss_);
    try {
      return std::forward<Body>(body)();
    } catch (const DeviceLost& error) {
      lose(error.what());
      throw;
    }
  }

 public:
  /// @param description  One of the backend's devices(). @param index  What the host calls it.
  GpuDevice(sdk::DeviceDescription description, std::int32_t index, Backend& backend, CompileCache cache);

  const sdk::DeviceDescription& description() const noexcept { return description_; }
  const Target& target() const { return device_->target(); }

  /// The code of a program: that of a kernel that is there already, or from the cache, or compiled now.
  std::shared_ptr<Module> module(const Program& program);
  void launch(Module& module, const Launch& launch, std::span<const BoundArgument> arguments, fp_stream* stream) {
    unless_lost([&] { device_->launch(module, launch.kernel, launch.groups, arguments, stream); });
  }

  sdk::DeviceMemory* memory() noexcept override { return this; }
  void* allocate(std::uint64_t bytes) override {
    return unless_lost([&] { return device_->allocate(bytes); });
  }
  void release(void* memory) noexcept override { device_->release(memory); }
  void copy_to_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t bytes,
                      fp_stream* stream) override {
    unless_lost([&] { device_->copy_to_device(to, to_offset, from, bytes, stream); });
  }
  void copy_from_device(void* to, const void* from, std::uint64_t from_offset, std::uint64_t bytes,
                        fp_stream* stream) override {
    unless_lost([&] { device_->copy_from_device(to, from, from_offset, bytes, stream); });
  }
  void copy_on_device(void* to, std::uint64_t to_offset, const void* from, std::uint64_t from_offset,
                      std::uint64_t bytes, fp_stream* stream) override {
    unless_lost([&] { device_->copy_on_device(to, to_offset, from, from_offset, bytes, stream); });
  }
  void fill_zero(void* memory, std::uint64_t offset, std::uint64_t bytes, fp_stream* stream) override {
    unless_lost([&] { device_->fill_zero(memory, offset, bytes, stream); });
  }
  fp_stream* create_stream() override {
    return unless_lost([&] { return device_->create_stream(); });
  }
  void destroy_stream(fp_stream* stream) noexcept override { device_->destroy_stream(stream); }
  void synchronize(fp_stream* stream) override {
    unless_lost([&] { device_->synchronize(stream); });
  }
  fp_event* create_event() override {
    return unless_lost([&] { return device_->create_event(); });
  }
  void destroy_event(fp_event* event) noexcept override { device_->destroy_event(event); }
  void record(fp_event* event, fp_stream* stream) override {
    unless_lost([&] { device_->record(event, stream); });
  }
  void wait(fp_stream* stream, fp_event* event) override {
    unless_lost([&] { device_->wait(stream, event); });
  }
  void memory_info(std::uint64_t* free_bytes, std::uint64_t* total_bytes) override {
    unless_lost([&] { device_->memory_info(free_bytes, total_bytes); });
  }
  fp_native native(fp_stream* stream) override {
    return unless_lost([&] { return device_->native(stream); });
  }

 private:
  void lose(const char* text);
  std::shared_ptr<Module> load(const Program& program, const CompileKey& key);

  sdk::DeviceDescription description_;
  Backend& backend_;
  std::unique_ptr<BackendDevice> device_;
  CompileCache cache_;

  std::mutex loss_mutex_;
  std::atomic<bool> lost_{false};
  std::string loss_;  // written once, before lost_ is set

  std::mutex modules_mutex_;
  std::map<std::string, std::weak_ptr<Module>> modules_;  // by the hash of their key
};

/// Memory on a device, released with its owner.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(GpuDevice& device, std::uint64_t bytes) : device_(&device), memory_(device.allocate(bytes)) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : device_(std::exchange(other.device_, nullptr)), memory_(std::exchange(other.memory_, nullptr)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(memory_, other.memory_);
    return *this;
  }
  ~DeviceBuffer() {
    if (device_ != nullptr) device_->release(memory_);
  }
  void* get() const noexcept { return memory_; }

 private:
  GpuDevice* device_ = nullptr;
  void* memory_ = nullptr;
};

}  // namespace fastpath_gpu
