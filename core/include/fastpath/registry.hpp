#pragma once

#include <chrono>
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
  idle,         ///< Fine, but there is no device or driver for it, nothing asked for it yet, or it was shut down.
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

/// The steps from a directory to kernels, in their order.
enum class Stage { directory, file, object, metadata, trust, cache, probe, load, negotiate, devices, kernels };
FASTPATH_EXPORT std::string_view to_string(Stage stage) noexcept;

/// How one step ended for one file.
struct StageReport {
  enum class Verdict {
    passed,
    failed,
    skipped,  ///< Not needed, or not reached; the reason says which.
  };
  Stage stage = Stage::directory;
  Verdict verdict = Verdict::skipped;
  Reason reason;  ///< `usable` where it passed; the text may still say what was found.
};
FASTPATH_EXPORT std::string_view to_string(StageReport::Verdict verdict) noexcept;

/// Everything that is known about one file of the search path.
struct FileReport {
  PluginInfo plugin;
  std::string sha256;              ///< 64 hexadecimal digits; empty where the file was not read, or not as a whole.
  std::string trust;               ///< "trusted", "not_listed", or "unchecked" where no list is looked at.
  Stage stage = Stage::directory;  ///< Where it ended: the step that failed, or the last one that was taken.
  std::vector<StageReport> stages;
};

/// A directory of the search path, in search order.
struct SearchDirectory {
  std::filesystem::path path;
  std::string source;  ///< "api", "FASTPATH_PLUGIN_PATH", "FASTPATH_PLUGIN_ONLY_PATH", "user", "library", "system".
  bool exists = false;
  Reason reason;  ///< usable, no_directory, unreadable, relative_path, ignored_elevated, unsafe_owner or unsafe_mode.
};

/// How a plugin file is tried before it is loaded.
enum class ProbeMode {
  automatic,   ///< What FASTPATH_PROBE says; without it in a helper process, or in this one where there is no helper.
  helper,      ///< In a process of its own (`fastpath-probe`): what crashes, hangs or exits there costs only itself.
  in_process,  ///< Not tried apart: it is loaded into this process as soon as its file looks right.
};
FASTPATH_EXPORT std::string_view to_string(ProbeMode mode) noexcept;
/// "automatic", "helper" or "in_process". @throws Error(invalid_argument) naming the text and what is accepted.
FASTPATH_EXPORT ProbeMode parse_probe_mode(std::string_view text);

/// What the list of allowed plugins is for.
enum class TrustMode {
  off,      ///< It is not looked at.
  warn,     ///< A plugin that is not in it is used, and listed as not trusted.
  require,  ///< A plugin that is not in it is rejected, before any of its code runs.
};
FASTPATH_EXPORT std::string_view to_string(TrustMode mode) noexcept;
/// "off", "warn" or "require". @throws Error(invalid_argument) naming the text and what is accepted.
FASTPATH_EXPORT TrustMode parse_trust_mode(std::string_view text);

struct RegistryOptions {
  std::vector<std::filesystem::path> search_paths = {};  ///< Searched before everything else. Absolute.
  bool default_paths = true;                             ///< Also environment, user, library and system directories.
  std::vector<std::string> enable = {"*"};               ///< Globs of plugin ids that may be used.
  std::vector<std::string> disable = {};                 ///< Globs of plugin ids that may not.

  ProbeMode probe = ProbeMode::automatic;
  std::filesystem::path probe_program = {};             ///< Empty: `fastpath-probe` beside the library or the program.
  std::chrono::milliseconds probe_timeout{30000};       ///< For one file; a driver may take long to start.
  std::uint64_t probe_memory = std::uint64_t{4} << 30;  ///< Bytes of data that the helper process may have.
  bool use_cache = true;                                ///< Keep and reuse what probes found.
  std::filesystem::path cache_directory = {};           ///< Empty: the user's (docs/cli.md).
  bool retry = false;                                   ///< Try again what is quarantined.

  // Where one of these has its default, the environment may say something else (docs/security.md).
  bool check_owner = true;            ///< Owner and mode of each file and of every directory above it.
  bool allow_group_writable = false;  ///< Directories and files that a group may write to count as safe.
  TrustMode trust = TrustMode::off;
  std::filesystem::path allow_list = {};  ///< Lines of `sha256sum`; looked at unless `trust` is off. Absolute.

  std::vector<std::filesystem::path> files = {};  ///< Plugin files of any name, before those of directories. Absolute.
};

/// What a search found, file by file and step by step.
struct ScanReport {
  std::vector<SearchDirectory> directories;
  std::vector<FileReport> files;
  RegistryOptions options;                ///< What counted: the host's options with what the environment says.
  bool elevated = false;                  ///< The process has elevated rights, so the environment was not asked.
  std::filesystem::path cache_directory;  ///< Where results are kept; empty where none are.
  Reason cache;                           ///< `usable`, or why nothing could be read from it or written to it.
  std::filesystem::path probe_program;    ///< The helper program; empty where none is used.
  Reason probe;  ///< `usable`, probe_unavailable, or disabled where plugins are tried in process.
};

/// The plugins of one host: found, checked and loaded on first need. Usable without any plugin.
/// Thread-safe. Loaded plugins stay in the process for its life.
class FASTPATH_EXPORT PluginRegistry {
 public:
  /// @throws Error(invalid_argument) if the environment sets an option to what is no value of it, or if `trust` is not
  /// off and there is no list. A list that cannot be used is an error of the first call that looks for plugins:
  /// Error(not_found), Error(io), or Error(bad_file) naming its line.
  explicit PluginRegistry(RegistryOptions options = {});
  ~PluginRegistry();
  PluginRegistry(const PluginRegistry&) = delete;
  PluginRegistry& operator=(const PluginRegistry&) = delete;

  std::vector<SearchDirectory> search_path() const;
  /// Every file in search order with its state. Tries what was not tried before, in a helper process unless the options
  /// say otherwise, so that nothing is loaded into this one. Creates no context on a GPU.
  std::vector<PluginInfo> plugins();
  /// The same with the verdict of every step.
  ScanReport scan_report();
  /// Devices that usable plugins offer, and the CPU.
  std::vector<DeviceInfo> devices();

  /// Ends every plugin that this registry has loaded: destroys their kernels, closes their devices, and then calls each
  /// plugin's own shutdown, once in a process: first the plugins that bring only kernels, then those that own memory,
  /// the last loaded first. Waits for evaluations under way, in other threads; those that begin meanwhile get the
  /// reference. From then on selections say `shut_down` and the reference runs, for every registry that shares the
  /// plugins, and this one loads no further ones. Models and tensors that are still there stay valid objects: what they
  /// held of a plugin is gone, so the content of a tensor on a device is lost. Libraries stay loaded. Nothing calls it
  /// by itself: a host does before it ends, or not at all. In a child of a fork no plugin is called.
  /// @return What was ended, in that order; the reason is `shut_down`, with words where a plugin's own shutdown threw.
  /// Empty where there was nothing, or where it was called before.
  /// @throws Error(invalid_argument) if it is called from within an evaluation, or from a call of a plugin (its log).
  std::vector<PluginInfo> shutdown();

  class Impl;
  explicit PluginRegistry(std::unique_ptr<Impl> impl);  ///< For the library itself and its tests.
  Impl& impl() noexcept { return *impl_; }              ///< For the library itself.

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace fastpath
