#include "fastpath/registry.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "fastpath/error.hpp"
#include "loaded.hpp"
#include "plugin.hpp"
#include "scan.hpp"

namespace fastpath {
namespace {

/// True if both describe one device: by identity where it is known on both sides, else by its place in the list.
bool same_device(const DeviceInfo& a, const DeviceInfo& b) {
  if (a.device.kind != b.device.kind) return false;
  if (!a.uuid.empty() && !b.uuid.empty()) return a.uuid == b.uuid;
  if (!a.pci.empty() && !b.pci.empty()) return a.pci == b.pci;
  return a.device.index == b.device.index;
}

/// Fills in the steps of a report, in their order.
class Steps {
 public:
  explicit Steps(FileReport& report) : report_(report) {}

  /// This step and all before it that nothing was said about passed.
  void pass(Stage stage, std::string text = {}) {
    while (next() < stage) add(next(), Verdict::passed, {ReasonCode::usable, ""});
    add(stage, Verdict::passed, {ReasonCode::usable, std::move(text)});
    report_.stage = stage;
  }
  void skip(Stage stage, Reason reason) { add(stage, Verdict::skipped, std::move(reason)); }
  void skip_rest(const Reason& reason) {
    while (more()) skip(next(), reason);
  }
  /// The steps before this one passed, and those after it were not reached.
  void fail(Stage stage, const Reason& reason) {
    while (next() < stage) add(next(), Verdict::passed, {ReasonCode::usable, ""});
    add(stage, Verdict::failed, reason);
    skip_rest({ReasonCode::not_reached, fmt::format("ended by the step '{}'", to_string(stage))});
    report_.stage = stage;
  }
  /// How loading ended: at `stage` with this reason. Kernels are listed before devices.
  void end(Stage stage, const Reason& reason, const std::string& text = {}) {
    if (stage == Stage::kernels && reason.code == ReasonCode::usable) return pass(Stage::kernels, text);
    if (stage == Stage::devices) {
      while (next() < stage) add(next(), Verdict::passed, {ReasonCode::usable, text});
      add(stage, Verdict::failed, reason);
      add(Stage::kernels, Verdict::passed, {ReasonCode::usable, text});
      report_.stage = stage;
    } else if (stage == Stage::kernels) {
      while (next() < Stage::devices) add(next(), Verdict::passed, {ReasonCode::usable, text});
      add(Stage::devices, Verdict::skipped, {ReasonCode::not_reached, "kernels are listed first"});
      add(stage, Verdict::failed, reason);
      report_.stage = stage;
    } else {
      fail(stage, reason);
    }
  }

 private:
  using Verdict = StageReport::Verdict;
  static constexpr std::size_t kCount = static_cast<std::size_t>(Stage::kernels) + 1;
  bool more() const { return report_.stages.size() < kCount; }
  Stage next() const { return static_cast<Stage>(report_.stages.size()); }
  void add(Stage stage, Verdict verdict, Reason reason) {
    report_.stages.push_back({stage, verdict, std::move(reason)});
  }
  FileReport& report_;
};

class Registry final : public PluginRegistry::Impl {
 public:
  explicit Registry(RegistryOptions options) : options_(std::move(options)) {}

  std::vector<SearchDirectory> search_path() const override {
    const std::lock_guard lock(mutex_);
    return scanned_ ? directories_ : plugin::search_path(options_);
  }

  std::vector<PluginInfo> plugins() override {
    std::unique_lock lock(mutex_);
    scan(lock);
    for (Entry& entry : entries_) load(lock, entry);
    return infos();
  }

  ScanReport scan_report() override {
    plugins();
    const std::lock_guard lock(mutex_);
    ScanReport report;
    report.directories = directories_;
    report.files.reserve(entries_.size());
    for (const Entry& entry : entries_) report.files.push_back(report_of(entry));
    report.cache = {ReasonCode::not_needed, "nothing is kept"};
    report.probe = {ReasonCode::disabled, "plugins are tried in this process"};
    return report;
  }

  std::vector<PluginInfo> known() override {
    std::unique_lock lock(mutex_);
    scan(lock);
    return infos();
  }

  std::vector<std::shared_ptr<plugin::LoadedPlugin>> usable(DeviceKind kind) override {
    std::unique_lock lock(mutex_);
    scan(lock);
    std::vector<std::shared_ptr<plugin::LoadedPlugin>> result;
    for (Entry& entry : entries_) {
      const auto& kinds = entry.info.device_kinds;
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) continue;
      load(lock, entry);
      if (!entry.plugin) continue;
      const auto& devices = entry.info.devices;
      const bool has = std::any_of(devices.begin(), devices.end(),
                                   [&](const DeviceInfo& device) { return device.device.kind == kind; });
      if (has) result.push_back(entry.plugin);
    }
    return result;
  }

 private:
  struct Entry {
    plugin::Candidate candidate;
    enum class Stage { examined, loading, done } stage = Stage::done;
    std::thread::id loader;
    PluginInfo info;
    std::shared_ptr<plugin::LoadedPlugin> plugin;
    std::optional<fastpath::Stage> tried;  // where loading it ended, once it was tried
  };

  static FileReport report_of(const Entry& entry) {
    FileReport report;
    report.plugin = entry.info;
    report.sha256 = entry.candidate.sha256;
    report.trust = "unchecked";
    Steps steps(report);
    steps.pass(Stage::directory);
    // What can be told without loading it.
    const plugin::Candidate& candidate = entry.candidate;
    if (candidate.state == PluginState::rejected) {
      steps.fail(plugin::stage_of(candidate), candidate.reason);
      return report;
    }
    steps.pass(Stage::metadata);
    steps.skip(Stage::trust, {ReasonCode::not_needed, "no list of allowed plugins is looked at"});
    if (candidate.state != PluginState::usable) {
      steps.skip_rest(candidate.reason);
      return report;
    }
    steps.skip(Stage::cache, {ReasonCode::not_needed, "nothing is kept"});
    steps.skip(Stage::probe, {ReasonCode::not_needed, "tried in this process"});
    if (entry.tried) {
      steps.end(*entry.tried, entry.info.reason);
    } else {
      steps.skip_rest(entry.info.reason);
    }
    return report;
  }

  std::vector<PluginInfo> infos() const {
    std::vector<PluginInfo> result;
    result.reserve(entries_.size());
    for (const Entry& entry : entries_) result.push_back(entry.info);
    return result;
  }

  /// Looks at all files, once.
  void scan(std::unique_lock<std::mutex>&) {
    if (scanned_) return;
    directories_ = plugin::search_path(options_);
    for (plugin::Candidate& candidate : plugin::scan(directories_, options_)) {
      Entry entry;
      entry.info.id = candidate.id;
      if (candidate.metadata) {
        entry.info.version = candidate.metadata->version;
        entry.info.vendor = candidate.metadata->vendor;
        entry.info.build_tag = candidate.metadata->build_tag;
        entry.info.device_kinds = candidate.metadata->device_kinds;
      }
      entry.info.path = candidate.path;
      entry.info.state = candidate.state;
      entry.info.reason = candidate.reason;
      if (candidate.state == PluginState::usable) {
        entry.stage = Entry::Stage::examined;
        entry.info.state = PluginState::idle;
        entry.info.reason = {ReasonCode::not_needed, "not loaded: nothing asked for it yet"};
      }
      entry.candidate = std::move(candidate);
      entries_.push_back(std::move(entry));
    }
    scanned_ = true;
  }

  /// Loads a file that passed its examination, once; other threads wait for the one that does. The lock is open while
  /// code of the plugin runs.
  void load(std::unique_lock<std::mutex>& lock, Entry& entry) {
    if (entry.stage == Entry::Stage::loading && entry.loader == std::this_thread::get_id()) return;
    loaded_.wait(lock, [&] { return entry.stage != Entry::Stage::loading; });
    if (entry.stage == Entry::Stage::done) return;
    entry.stage = Entry::Stage::loading;
    entry.loader = std::this_thread::get_id();
    lock.unlock();
    plugin::LoadResult result;
    try {
      result = plugin::load(entry.candidate);
    } catch (...) {
      lock.lock();
      entry.stage = Entry::Stage::examined;  // out of memory, on our side: asked again at the next need
      loaded_.notify_all();
      throw;
    }
    lock.lock();
    entry.info.state = result.state;
    entry.info.reason = std::move(result.reason);
    entry.info.devices = std::move(result.info.devices);
    entry.info.kernels = std::move(result.info.kernels);
    entry.plugin = std::move(result.plugin);
    entry.tried = result.stage;
    entry.stage = Entry::Stage::done;
    loaded_.notify_all();
  }

  const RegistryOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable loaded_;
  bool scanned_ = false;
  std::vector<SearchDirectory> directories_;
  std::vector<Entry> entries_;  // grows only in scan()
};

}  // namespace

std::string_view to_string(PluginState state) noexcept {
  switch (state) {
    case PluginState::usable:
      return "usable";
    case PluginState::idle:
      return "idle";
    case PluginState::disabled:
      return "disabled";
    case PluginState::shadowed:
      return "shadowed";
    case PluginState::rejected:
      return "rejected";
    case PluginState::quarantined:
      return "quarantined";
  }
  return "rejected";
}

std::string_view to_string(Stage stage) noexcept {
  constexpr std::array<std::string_view, 11> kNames{"directory", "file", "object",    "metadata", "trust",  "cache",
                                                    "probe",     "load", "negotiate", "devices",  "kernels"};
  const auto index = static_cast<std::size_t>(stage);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string_view to_string(ProbeMode mode) noexcept {
  switch (mode) {
    case ProbeMode::automatic:
      return "automatic";
    case ProbeMode::helper:
      return "helper";
    case ProbeMode::in_process:
      return "in_process";
  }
  return "automatic";
}

ProbeMode parse_probe_mode(std::string_view text) {
  for (const ProbeMode mode : {ProbeMode::automatic, ProbeMode::helper, ProbeMode::in_process}) {
    if (text == to_string(mode)) return mode;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("'{}' is no way of trying plugins; there are automatic, helper and in_process", text));
}

std::string_view to_string(StageReport::Verdict verdict) noexcept {
  switch (verdict) {
    case StageReport::Verdict::passed:
      return "passed";
    case StageReport::Verdict::failed:
      return "failed";
    case StageReport::Verdict::skipped:
      return "skipped";
  }
  return "unknown";
}

PluginRegistry::PluginRegistry(RegistryOptions options) : impl_(std::make_unique<Registry>(std::move(options))) {}
PluginRegistry::PluginRegistry(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PluginRegistry::~PluginRegistry() = default;

std::vector<SearchDirectory> PluginRegistry::search_path() const { return impl_->search_path(); }

ScanReport PluginRegistry::scan_report() { return impl_->scan_report(); }

std::vector<PluginInfo> PluginRegistry::plugins() { return impl_->plugins(); }

std::vector<DeviceInfo> PluginRegistry::devices() {
  std::vector<DeviceInfo> result{cpu_info()};
  for (const PluginInfo& plugin : impl_->plugins()) {
    if (plugin.state != PluginState::usable) continue;
    for (const DeviceInfo& device : plugin.devices) {
      const bool known = std::any_of(result.begin(), result.end(),
                                     [&](const DeviceInfo& other) { return same_device(other, device); });
      if (!known) result.push_back(device);
    }
  }
  return result;
}

}  // namespace fastpath
