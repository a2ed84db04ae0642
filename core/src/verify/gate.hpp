#pragma once

#include <optional>
#include <string>

#include "fastpath/fast_path.hpp"
#include "plugin/plugin.hpp"
#include "verify/gate_store.hpp"

/// The numerical gate and the comparison of real calls (docs/verification.md).
namespace fastpath::verify {

/// True if inputs for the op can be made: fastpath has its schema.
bool has_schema(const OpSpec& op);

/// Everything a result of the gate depends on. `kernel` names plugin, op, configuration, device and dtype.
std::string gate_key(const FastPathModule& module, const plugin::LoadedPlugin& plugin, const DeviceInfo& device,
                     const std::string& kernel, DType dtype, Passes passes);

/// Tries a kernel in all of `passes` on inputs that the core makes, within the sizes that it takes. The kernel is bound
/// to parameters of the trial and has to be bound anew afterwards.
GateResult try_kernel(FastPathModule& module, plugin::Kernel& kernel, plugin::OpenDevice& device, DType dtype,
                      Passes passes);

/// How a call that was compared ended.
struct Compared {
  plugin::CallStatus status;            ///< Of the kernel. Unless it is ok nothing was written into the call.
  std::optional<std::string> mismatch;  ///< What differed; the call then holds the results of the reference.
};

/// Runs a kernel that is bound to the module's parameters on copies of a call, runs the reference too, and puts the
/// kernel's results into the call if they agree. @throws Error of the device, and what the reference throws.
Compared run_compared(FastPathModule& module, plugin::Kernel& kernel, plugin::OpenDevice& device, const OpCall& call,
                      DType dtype);

}  // namespace fastpath::verify
