#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/backend.hpp"
#include "runtime/driver.hpp"
#include "runtime/runtime_compiler.hpp"

namespace fastpath_hip {

namespace sdk = fastpath::sdk;
namespace gpu = fastpath_gpu;

/// AMD: the HIP runtime's library and hipRTC, both opened when they are first needed.
class HipBackend final : public gpu::Backend {
 public:
  /// Names or paths of the libraries, in the order in which they are tried.
  struct Libraries {
    std::vector<std::string> runtime, compiler;
    /// Without one of these files there is no AMD device, and the runtime need not be loaded to say so; none: always.
    std::vector<std::string> device_nodes;
    static Libraries usual();
  };
  explicit HipBackend(Libraries libraries = Libraries::usual()) : libraries_(std::move(libraries)) {}

  gpu::Language language() const override { return gpu::Language::hip; }
  std::vector<sdk::DeviceDescription> devices() override;
  std::unique_ptr<gpu::BackendDevice> open(const sdk::DeviceDescription& device) override;
  std::string compiler(const gpu::Target& target) override;
  gpu::Binary compile(const gpu::Program& program, const gpu::Target& target) override;

 private:
  class HipDriver;
  std::shared_ptr<HipDriver> driver();
  const gpu::RuntimeCompiler& opened_compiler();

  Libraries libraries_;
  std::mutex mutex_;
  std::shared_ptr<HipDriver> driver_;  // once it could be opened
  std::optional<gpu::RuntimeCompiler> compiler_;
  std::string no_compiler_;  // why it could not be opened
};

}  // namespace fastpath_hip
