#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend.hpp"
#include "driver.hpp"
#include "runtime_compiler.hpp"

namespace fastpath_gpu {

/// A vendor whose driver and compiler are libraries that are opened when they are first needed: a driver that cannot be
/// opened is tried again at the next call, a compiler is not. Thread-safe.
class DriverBackend : public Backend {
 public:
  std::vector<sdk::DeviceDescription> devices() final { return driver()->devices(); }
  std::unique_ptr<BackendDevice> open(const sdk::DeviceDescription& device) final;
  std::string compiler(const Target& target) final;

 protected:
  /// @param kind  "cuda", of the names of its devices.
  DriverBackend(std::string kind, RuntimeCompiler::Vendor compiler)
      : kind_(std::move(kind)), vendor_(std::move(compiler)) {}

  /// @throws sdk::Unavailable without the driver's library, and where it cannot work.
  virtual std::shared_ptr<Driver> open_driver() const = 0;
  /// What the compiler is told, for this target.
  virtual std::vector<std::string> options(const Target& target) const = 0;
  /// @throws sdk::Unavailable without its library.
  const RuntimeCompiler& opened_compiler();

 private:
  std::shared_ptr<Driver> driver();

  const std::string kind_;
  const RuntimeCompiler::Vendor vendor_;
  std::mutex mutex_;
  std::shared_ptr<Driver> driver_;  // once it could be opened
  std::optional<RuntimeCompiler> compiler_;
  std::string no_compiler_;  // why it could not be opened
};

}  // namespace fastpath_gpu
