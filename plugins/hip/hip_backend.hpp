#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/driver_backend.hpp"

namespace fastpath_hip {

namespace sdk = fastpath::sdk;
namespace gpu = fastpath_gpu;

/// AMD: the HIP runtime's library and hipRTC, both opened when they are first needed.
class HipBackend final : public gpu::DriverBackend {
 public:
  /// Names or paths of the libraries, in the order in which they are tried.
  struct Libraries {
    std::vector<std::string> runtime, compiler;
    /// Without one of these files there is no AMD device, and the runtime need not be loaded to say so; none: always.
    std::vector<std::string> device_nodes;
    static Libraries usual();
  };
  explicit HipBackend(Libraries libraries = Libraries::usual());

  gpu::Language language() const override { return gpu::Language::hip; }
  gpu::Binary compile(const gpu::Program& program, const gpu::Target& target) override;

 private:
  class HipDriver;
  std::shared_ptr<gpu::Driver> open_driver() const override;
  std::vector<std::string> options(const gpu::Target& target) const override;

  const Libraries libraries_;
};

}  // namespace fastpath_hip
