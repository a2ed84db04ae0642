#include "device.hpp"

namespace fastpath_gpu {

GpuDevice::GpuDevice(sdk::DeviceDescription description, std::int32_t index, Backend& backend, CompileCache cache)
    : description_(std::move(description)),
      backend_(backend),
      device_(backend.open(description_)),
      cache_(std::move(cache)) {
  description_.index = index;
}

void GpuDevice::lose(const char* text) {
  const std::lock_guard lock(loss_mutex_);
  if (lost_.load(std::memory_order_relaxed)) return;
  loss_ = text;
  lost_.store(true, std::memory_order_release);
  device_->lost();
}

std::shared_ptr<Module> GpuDevice::module(const Program& program) {
  const CompileKey key = CompileKey::of(program, target(), backend_.compiler(target()));
  // Held while compiling: two kernels of one source are then compiled once.
  const std::lock_guard lock(modules_mutex_);
  std::erase_if(modules_, [](const auto& entry) { return entry.second.expired(); });
  const auto found = modules_.find(key.source);
  if (found != modules_.end()) {
    if (std::shared_ptr<Module> module = found->second.lock()) return module;
  }
  std::shared_ptr<Module> module = unless_lost([&] { return load(program, key); });
  modules_[key.source] = module;
  return module;
}

std::shared_ptr<Module> GpuDevice::load(const Program& program, const CompileKey& key) {
  if (device_->driver_keeps_code()) return device_->build_module(program);
  if (const std::optional<Binary> kept = cache_.find(key)) {
    try {
      return device_->load(program, *kept);
    } catch (const sdk::Refused& error) {  // of another driver, or damaged in a way that its checksum does not show
      cache_.say("the driver does not take what was kept of a kernel, it is compiled anew: " +
                 std::string(error.what()));
    }
  }
  std::unique_ptr<Module> module;
  const Binary binary = device_->compile(program, module);
  cache_.keep(key, binary);
  return module ? std::move(module) : device_->load(program, binary);
}

}  // namespace fastpath_gpu
