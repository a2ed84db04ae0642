#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fastpath/export.hpp"
#include "fastpath/op.hpp"
#include "fastpath/reason.hpp"
#include "fastpath/types.hpp"

namespace fastpath {

/// Identity of a device.
struct DeviceInfo {
  Device device;
  std::string vendor, name, arch, uuid, pci, driver;  ///< Empty where not known. `name` is the model: "NVIDIA H200".
  std::uint32_t units = 0;
  std::uint64_t memory_bytes = 0;
  std::vector<DType> dtypes;
};

/// The CPU of this machine.
FASTPATH_EXPORT const DeviceInfo& cpu_info();

/// What a plugin says it has kernels for.
struct KernelInfo {
  std::string op;
  std::int32_t op_version = 1;
  DeviceKind device = DeviceKind::cpu;
  std::vector<DType> dtypes;
  Passes passes;
};

enum class PluginState {
  usable,
  idle,         ///< Fine, but there is no device or driver for it, or nothing asked for it yet.
  disabled,     ///< Switched off by configuration.
  shadowed,     ///< Another file with this id, or this very file, came first in search order.
  rejected,     ///< Cannot be used; the reason says why.
  quarantined,  ///< It failed in a way that would endanger the process.
};
FASTPATH_EXPORT std::string_view to_string(PluginState state) noexcept;

/// One file that was looked at. Files that are not plugins are listed with their reason: nothing is dropped silently.
struct PluginInfo {
  std::string id;  ///< From the metadata; the file name without prefix and suffix where there is none.
  std::string version, vendor, build_tag;
  std::filesystem::path path;
  PluginState state = PluginState::rejected;
  Reason reason;
  std::vector<DeviceKind> device_kinds;  ///< From the metadata, without loading.
  std::vector<DeviceInfo> devices;
  std::vector<KernelInfo> kernels;
};

/// A directory of the search path, in search order.
struct SearchDirectory {
  std::filesystem::path path;
  std::string source;  ///< "api", "FASTPATH_PLUGIN_PATH", "FASTPATH_PLUGIN_ONLY_PATH", "user", "library", "system".
  bool exists = false;
  Reason reason;  ///< usable, no_directory, unreadable or relative_path.
};

struct RegistryOptions {
  std::vector<std::filesystem::path> search_paths = {};  ///< Searched before everything else. Absolute.
  bool default_paths = true;                             ///< Also environment, user, library and system directories.
  std::vector<std::string> enable = {"*"};               ///< Globs of plugin ids that may be used.
  std::vector<std::string> disable = {};                 ///< Globs of plugin ids that may not.
};

/// The plugins of one host: found, checked and loaded on first need. Usable without any plugin.
/// Thread-safe. Loaded plugins stay in the process for its life.
class FASTPATH_EXPORT PluginRegistry {
 public:
  explicit PluginRegistry(RegistryOptions options = {});
  ~PluginRegistry();
  PluginRegistry(const PluginRegistry&) = delete;
  PluginRegistry& operator=(const PluginRegistry&) = delete;

  std::vector<SearchDirectory> search_path() const;
  /// Every file in search order with its state; loads what can be loaded, creates no context on a GPU.
  std::vector<PluginInfo> plugins();
  /// Devices that usable plugins offer, and the CPU.
  std::vector<DeviceInfo> devices();

  class Impl;
  explicit PluginRegistry(std::unique_ptr<Impl> impl);  ///< For the library itself and its tests.
  Impl& impl() noexcept { return *impl_; }              ///< For the library itself.

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastpath
