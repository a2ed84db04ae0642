#include "driver_backend.hpp"

#include "fastpath/sdk/error.hpp"

namespace fastpath_gpu {

std::shared_ptr<Driver> DriverBackend::driver() {
  const std::lock_guard lock(mutex_);
  if (driver_ == nullptr) driver_ = open_driver();
  return driver_;
}

const RuntimeCompiler& DriverBackend::opened_compiler() {
  const std::lock_guard lock(mutex_);
  if (!no_compiler_.empty()) throw sdk::Unavailable(no_compiler_);
  if (!compiler_) {
    try {
      compiler_.emplace(vendor_);
    } catch (const sdk::Unavailable& error) {
      no_compiler_ = error.what();
      throw;
    }
  }
  return *compiler_;
}

std::string DriverBackend::compiler(const Target& target) {
  try {
    std::string text = opened_compiler().version();
    for (const std::string& option : options(target)) text += " " + option;
    return text;
  } catch (const sdk::Unavailable&) {  // compile() says why
    return {};
  }
}

std::unique_ptr<BackendDevice> DriverBackend::open(const sdk::DeviceDescription& device) {
  const std::shared_ptr<Driver> opened = driver();
  for (const sdk::DeviceDescription& own : opened->devices()) {
    if (!own.same_device(device)) continue;
    return std::make_unique<DriverDevice>(opened, *this, own.index, kind_ + ":" + std::to_string(own.index),
                                          opened->target(own.index));
  }
  throw sdk::InvalidArgument("device " + kind_ + ":" + std::to_string(device.index) +
                             " is not one that the driver shows");
}

}  // namespace fastpath_gpu
