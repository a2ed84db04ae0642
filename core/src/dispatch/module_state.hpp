#pragma once

#include <atomic>
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
    std::atomic<std::uint64_t> version{1};  // grows with every change of the parameters
    std::uint64_t converted_version = 0;
    std::map<DType, std::vector<Tensor>> converted;
  };

  /// A kernel and what it needs to run.
  struct Slot {
    std::shared_ptr<plugin::LoadedPlugin> plugin;
    std::shared_ptr<plugin::OpenDevice> device;
    std::unique_ptr<plugin::Kernel> kernel;
    DType dtype = DType::float64;
    std::uint32_t passes = 0;
    std::string key;                 // identifies it among the failures of a context
    std::string gate_key;            // and among the results of its gate; empty where it is off
    std::uint64_t gate_context = 0;  // whose gate it has passed,
    std::uint64_t gate_version = 0;  // with the constants of this version of the parameters
    std::uint32_t unverified = 0;    // passes whose first call is compared: of ops that fastpath has no schema of
    std::vector<Tensor> parameters;  // where the kernel reads them
    std::uint64_t bound_version = 0;
  };

  /// What plugins answered; kept until the module or the question changes.
  struct Answer {
    std::shared_ptr<plugin::LoadedPlugin> plugin;
    const DeviceInfo* device = nullptr;  // as the plugin describes it; null where it has none
    Support support;
    plugin::KernelTraits traits;
    std::string key;  // Slot::key
  };
  struct Question {
    Device device;
    DType dtype = DType::float64;
    std::uint32_t passes = 0;
    std::uint64_t context = 0;
    std::uint64_t version = 0;
    friend bool operator==(const Question&, const Question&) = default;
  };

  /// A selection for a list of modules that begins with this one; good as long as nothing it depends on has changed.
  struct Memo {
    struct Entry {
      std::string name;
      const FastPathModule* module = nullptr;
      std::uint64_t state = 0;  // State::id: an address may be that of another module by now
      std::uint64_t version = 0;
      Slot* slot = nullptr;
    };
    UseFast use_fast = UseFast::automatic;
    std::optional<AutoPolicy> policy;
    Device device;
    DType dtype = DType::float64;
    std::uint32_t passes = 0;
    int threads = 0;
    std::uint64_t context = 0, epoch = 0;       // 0: nobody was asked
    std::int64_t min_edges = 0, max_edges = 0;  // the sizes it holds for, both included
    std::vector<Entry> entries;
    Selection selection;
    bool any_fast = false;
  };
  static constexpr std::size_t kMemos = 4;  // float32 and float64, with and without forces

  const std::uint64_t id = next_id();
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  /// Other modules whose tensors are among the parameters of this one: their changes are its own.
  std::vector<const FastPathModule*> parts;
  std::optional<Question> question;
  std::vector<Answer> answers;
  OpSpec asked;  // what the answers and slots belong to
  std::vector<std::unique_ptr<Slot>> slots;
  std::vector<std::unique_ptr<Memo>> memos;  // the last one made first
  Slot* active = nullptr;
  Context* context = nullptr;
  bool compare = false;  // this evaluation with the reference
  std::optional<Reason> last_failure;
  std::optional<sdk::Signature> signature;
  std::uint64_t signature_version = 0;

  std::uint64_t version() const noexcept {
    std::uint64_t sum = shared->version.load(std::memory_order_acquire);
    for (const FastPathModule* part : parts) sum += part->state_->version();
    return sum;
  }
  /// Binds parameters if they changed. Errors of the device become a status.
  plugin::CallStatus bind_active(const FastPathModule& module, DType dtype);
  /// Notes a failure of the active kernel, tells of the first one, and goes back to the reference.
  void drop_active(const plugin::CallStatus& status);
  /// Takes the active kernel out because its results are wrong, tells of it, and goes back to the reference.
  void expose_active(ReasonCode code, const std::string& text);
  /// Goes back to the reference because the plugin of the active kernel was shut down.
  void leave_active();

 private:
  static std::uint64_t next_id() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
  }
};

/// The device of a name, if the CPU or a usable plugin has it. Loads only plugins for its kind.
std::optional<DeviceInfo> find_device(Context& context, const Device& device);

/// Keeps the plugins of all chosen kernels from being shut down as long as the lease. False where one was, or is about
/// to be: then the selection is to be made again.
bool hold_plugins(const std::vector<NamedFastModule>& modules, plugin::Lease& lease);

/// The dtype of a call: that of its first floating-point tensor.
DType call_dtype(const OpCall& call);

}  // namespace fastpath
