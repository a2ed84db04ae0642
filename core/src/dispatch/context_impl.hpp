#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fastpath/context.hpp"
#include "fastpath/lock.hpp"
#include "fastpath/measurement.hpp"
#include "fastpath/reason.hpp"
#include "verify/gate_store.hpp"

namespace fastpath {

struct FastPathKernelWarning;
/// Tells the handler of kernel warnings, or stderr if there is none.
void warn_about_kernel(const FastPathKernelWarning& warning);

class Context::Impl {
 public:
  /// @throws Error(invalid_argument) for a negative number, or a FASTPATH_SHADOW that is none.
  explicit Impl(ContextOptions options);

  const std::filesystem::path cache;  ///< What is kept between processes; empty: nothing is.
  verify::GateStore gates;
  const std::shared_ptr<PluginRegistry> registry;
  const int threads;
  const bool gate;
  const bool deterministic;
  const std::shared_ptr<MeasurementStore> measurements;
  const std::shared_ptr<const SelectionLock> replay;  ///< May be null.
  /// What FASTPATH_OP_<NAME> says, by NAME.
  const std::map<std::string, std::string> overrides;
  const std::uint64_t id;  ///< Of this context alone, in this process: addresses are used again.

  /// Changes whenever a decision made before may have to be another one: a kernel failed, was taken out, its device was
  /// lost, the process was forked, plugins were shut down. Selections that were kept are good only for the epoch they
  /// were made in.
  std::uint64_t epoch() const noexcept;

  /// Counts a failure of a kernel (plugin, op configuration, device, dtype) and keeps its text. True for the first one,
  /// which is to be reported; the second takes the kernel out for the process.
  bool record_failure(const std::string& kernel, const std::string& text);
  /// Takes a kernel out at once. True unless it was out.
  bool take_out(const std::string& kernel, Reason reason);
  /// Why a kernel is out, if it is.
  std::optional<Reason> taken_out(const std::string& kernel) const;

  /// A device that answered device_lost, through one plugin, stays lost.
  void lose(const std::string& plugin, const Device& device, const std::string& text);
  std::optional<Reason> lost(const std::string& plugin, const Device& device) const;

  /// Counts an evaluation that runs kernels; true for every Nth, if a shadow is wanted.
  bool shadow_due() noexcept;

  /// Devices that were found before, so that not every evaluation looks for them.
  bool knows(const Device& device) const;
  void remember(const Device& device);

 private:
  struct Failures {
    int count = 0;
    std::string text;
    std::optional<Reason> out;
  };
  const std::uint64_t shadow_;
  std::atomic<std::uint64_t> evaluations_{0};
  std::atomic<std::uint64_t> epoch_{1};
  mutable std::mutex mutex_;
  std::map<std::string, Failures> failures_;
  std::map<std::pair<std::string, std::string>, std::string> lost_;  // plugin and device; its words
  std::vector<Device> known_;
};

}  // namespace fastpath
