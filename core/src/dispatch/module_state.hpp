#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dispatch/context_impl.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/sdk/ops.hpp"
#include "plugin/plugin.hpp"

namespace fastpath {

/// What the dispatcher keeps in a fast-path module.
struct FastPathModule::State {
  /// Shared by a module and its replicas.
  struct Shared {
    std::mutex mutex;
    std::uint64_t version = 1;  // grows with every change of the parameters
    std::uint64_t converted_version = 0;
    std::map<DType, std::vector<Tensor>> converted;
  };

  /// A kernel and what it needs to run.
  struct Slot {
    std::shared_ptr<plugin::LoadedPlugin> plugin;
    std::shared_ptr<plugin::OpenDevice> device;
    std::unique_ptr<plugin::Kernel> kernel;
    std::vector<Tensor> parameters;  // where the kernel reads them
    std::uint64_t bound_version = 0;
    std::string key;  // identifies it among the failures of a context
  };

  /// What plugins answered; kept until the module or the question changes.
  struct Answer {
    std::shared_ptr<plugin::LoadedPlugin> plugin;
    Support support;
    plugin::KernelTraits traits;
  };
  struct Question {
    Device device;
    DType dtype = DType::float64;
    std::uint32_t passes = 0;
    const Context* context = nullptr;
    std::uint64_t version = 0;
    friend bool operator==(const Question&, const Question&) = default;
  };

  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  std::optional<Question> question;
  std::vector<Answer> answers;
  std::map<std::string, std::unique_ptr<Slot>> slots;
  Slot* active = nullptr;
  Context* context = nullptr;
  std::optional<Reason> last_failure;
  std::optional<sdk::Signature> signature;
  std::uint64_t signature_version = 0;

  std::uint64_t version() const {
    const std::lock_guard lock(shared->mutex);
    return shared->version;
  }
  /// Binds parameters if they changed, then runs the active kernel. Never throws for what a plugin does wrong.
  plugin::CallStatus run_active(const FastPathModule& module, const OpCall& call, DType dtype);
  /// Notes a failure of the active kernel and goes back to the reference.
  void drop_active(const plugin::CallStatus& status);
};

/// The device of a name, if the CPU or a usable plugin has it. Loads only plugins for its kind.
std::optional<DeviceInfo> find_device(Context& context, const Device& device);

/// The dtype of a call: that of its first floating-point tensor.
DType call_dtype(const OpCall& call);

}  // namespace fastpath
