#pragma once

#include <boost/dll/shared_library.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fastpath/compile.h"
#include "fastpath/plugin.h"
#include "plugin.hpp"
#include "scan.hpp"

namespace fastpath::plugin {

class OfflineCompiler;

/// What became of one file that was loaded: a plugin, or the reason why not.
struct LoadResult {
  PluginState state = PluginState::rejected;
  Reason reason;
  std::shared_ptr<LoadedPlugin> plugin;       ///< Only if usable.
  std::shared_ptr<OfflineCompiler> compiler;  ///< Also where there is no device; null if it does not compile.
  PluginInfo info;                            ///< Devices and kernels, where they could be asked for.
  Stage stage = Stage::load;  ///< The step that failed, or the last one: load, negotiate, devices, kernels.
};

/// Is told which step begins: load, negotiate, devices or kernels.
using StageObserver = std::function<void(Stage stage)>;

/// Loads and negotiates a file that scan() found fit. The library stays in the process for good, and so does the
/// result: a library that is loaded twice, by whichever registry, is negotiated once. Thread-safe; holds no lock while
/// code of the plugin runs. What is mapped must be the file that the candidate describes, else the reason is `changed`.
LoadResult load(const Candidate& candidate, const StageObserver& observer = {});

/// The tables of a plugin after negotiation: the host's own copies, complete and checked.
struct PluginTables {
  boost::dll::shared_library library;   // before everything that points into it, so that it dies last
  const fp_plugin* original = nullptr;  // what the plugin's functions want to see
  fp_plugin plugin{};
  fp_kernel_api kernels{};
  fp_memory_api memory{};
  bool has_memory = false;
  std::string id;
};

/// A device as it crosses the ABI; points into the DeviceInfo it was made from.
fp_device_info to_c(const DeviceInfo& info) noexcept;

class PluginDevice;
/// Opens a device of a plugin. `tables` and `plugin` live as long as the process. @param owner  Who lends its memory to
/// a plugin that only brings kernels; else null. @throws Error as LoadedPlugin::open says.
std::shared_ptr<PluginDevice> open_device(const PluginTables& tables, LoadedPlugin& plugin, const DeviceInfo& info,
                                          const std::shared_ptr<OpenDevice>& owner);

/// An op as it crosses the ABI, with everything it points to.
class KernelQuery {
 public:
  KernelQuery(const OpSpec& op, const DeviceInfo& device, DType dtype, Passes passes);
  ~KernelQuery();
  KernelQuery(const KernelQuery&) = delete;
  KernelQuery& operator=(const KernelQuery&) = delete;
  const fp_kernel_query& get() const noexcept;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// Asks a plugin for a kernel on a device, as LoadedPlugin::query() does.
Support query_kernel(const PluginTables& tables, const OpSpec& op, const DeviceInfo& device, DType dtype, Passes passes,
                     KernelTraits* traits);

/// The tensor as the ABI shows it. Shape and strides are the tensor's own, which must outlive the result.
/// @param index  Of the device, as the plugin that is called numbers it.
fp_tensor to_c(const Tensor& tensor, std::uint32_t access, std::int32_t index) noexcept;

/// DLPack's code and width.
struct DTypeCode {
  std::uint8_t code;
  std::uint8_t bits;
};
DTypeCode dtype_code(DType dtype) noexcept;

}  // namespace fastpath::plugin
