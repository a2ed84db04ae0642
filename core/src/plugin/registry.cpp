#include "fastpath/registry.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "fastpath/error.hpp"
#include "loaded.hpp"
#include "plugin.hpp"
#include "probe.hpp"
#include "probe_cache.hpp"
#include "scan.hpp"
#include "trust.hpp"

namespace fastpath {
namespace {

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

/// How plugins are tried: what the options ask for, else the environment.
/// @throws Error(invalid_argument) if the variable holds no mode.
ProbeMode resolve(ProbeMode asked) {
  if (asked != ProbeMode::automatic) return asked;
  const char* const value = ::secure_getenv("FASTPATH_PROBE");  // null in a process with elevated rights
  if (value == nullptr || *value == '\0') return ProbeMode::automatic;
  try {
    return parse_probe_mode(value);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("FASTPATH_PROBE: {}", error.what()));
  }
}

bool contains(const std::vector<DeviceKind>& kinds, DeviceKind kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

class Registry final : public PluginRegistry::Impl {
 public:
  explicit Registry(RegistryOptions options)
      : options_(plugin::with_environment(std::move(options))), mode_(resolve(options_.probe)) {}

  std::vector<SearchDirectory> search_path() const override {
    const std::lock_guard lock(mutex_);
    return scanned_ ? directories_ : plugin::search_path(options_);
  }

  std::vector<PluginInfo> plugins() override {
    std::unique_lock lock(mutex_);
    try_all(lock);
    return infos();
  }

  ScanReport scan_report() override {
    std::unique_lock lock(mutex_);
    try_all(lock);
    ScanReport report;
    report.directories = directories_;
    report.files.reserve(entries_.size());
    for (const Entry& entry : entries_) report.files.push_back(report_of(entry));
    report.options = options_;
    report.options.probe = mode_;
    report.elevated = plugin::is_elevated();
    report.probe_program = program_;
    report.probe = probe_reason_;
    report.cache = {ReasonCode::not_needed, no_cache()};
    if (cache_) {
      report.cache_directory = cache_->directory();
      report.cache = cache_->reason();
    }
    return report;
  }

  std::vector<PluginInfo> known() override {
    std::unique_lock lock(mutex_);
    scan();
    return infos();
  }

  std::vector<std::shared_ptr<plugin::LoadedPlugin>> usable(DeviceKind kind) override {
    std::unique_lock lock(mutex_);
    scan();
    probe(lock, [&](const Entry& entry) { return contains(entry.info.device_kinds, kind); });
    std::vector<std::shared_ptr<plugin::LoadedPlugin>> result;
    const auto serves = [&](const Entry& entry) {
      const auto& devices = entry.info.devices;
      return std::any_of(devices.begin(), devices.end(),
                         [&](const DeviceInfo& device) { return device.device.kind == kind; });
    };
    for (Entry& entry : entries_) {
      if (!contains(entry.info.device_kinds, kind)) continue;
      if (entry.record && !serves(entry)) continue;  // not worth loading
      load(lock, entry);
      if (entry.plugin && serves(entry)) result.push_back(entry.plugin);
    }
    return result;
  }

  std::vector<PluginInfo> shutdown() override {
    plugin::refuse_shutdown_from_within();
    std::vector<std::shared_ptr<plugin::LoadedPlugin>> loaded;
    {
      std::unique_lock lock(mutex_);
      if (std::any_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
            return entry.state == Entry::State::loading && entry.loader == std::this_thread::get_id();
          })) {
        throw Error(ErrorCode::invalid_argument, "plugins cannot be shut down while one of them is being loaded");
      }
      changed_.wait(lock, [&] {
        return std::none_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
          return entry.state == Entry::State::loading || entry.state == Entry::State::probing;
        });
      });
      ended_ = true;
      for (const Entry& entry : entries_) {
        if (entry.plugin) loaded.push_back(entry.plugin);
      }
    }
    const std::vector<plugin::Ended> ended = plugin::shut_down(std::move(loaded));
    const std::lock_guard lock(mutex_);
    settle_ended();
    std::vector<PluginInfo> result;
    for (const plugin::Ended& one : ended) {
      for (Entry& entry : entries_) {
        if (entry.plugin != one.plugin) continue;
        if (!one.text.empty()) entry.info.reason.text += ": " + one.text;
        result.push_back(entry.info);
        result.back().reason.text = one.text;
      }
    }
    return result;
  }

  std::vector<std::shared_ptr<plugin::OfflineCompiler>> compilers() override {
    std::vector<plugin::Candidate> candidates;
    {
      std::unique_lock lock(mutex_);
      if (ended_) return {};
      scan();
      // OpenCL has no architectures to compile for without a device. And its driver for the CPU and a vendor's compiler
      // may each bring an LLVM of their own, which do not bear each other in one process.
      const auto for_devices = [](const Entry& entry) {
        return std::any_of(entry.info.device_kinds.begin(), entry.info.device_kinds.end(),
                           [](DeviceKind kind) { return kind != DeviceKind::cpu && kind != DeviceKind::opencl; });
      };
      probe(lock, for_devices);
      for (Entry& entry : entries_) {
        if (!for_devices(entry)) continue;
        if (!entry.record) load(lock, entry);
        const bool idle = entry.info.state == PluginState::idle && entry.info.reason.code == ReasonCode::no_device;
        if (idle || entry.info.state == PluginState::usable) candidates.push_back(entry.candidate);
      }
    }
    std::vector<std::shared_ptr<plugin::OfflineCompiler>> result;
    for (const plugin::Candidate& candidate : candidates) {  // once per process, whoever asks
      if (auto compiler = plugin::load(candidate).compiler) result.push_back(std::move(compiler));
    }
    return result;
  }

  bool ended() const override {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

 private:
  struct Entry {
    plugin::Candidate candidate;
    enum class State {
      examined,  // fit to be tried
      probing,   // by a thread, in a helper process
      fit,       // to be loaded
      loading,   // by a thread, in this process
      settled,   // nothing more will become of it
    } state = State::settled;
    std::thread::id loader;
    PluginInfo info;
    std::shared_ptr<plugin::LoadedPlugin> plugin;
    std::optional<plugin::ProbeRecord> record;  // what a helper process found, now or earlier; its lists are in `info`
    bool cached = false;                        // the record is from earlier
    Reason not_probed;                          // why there is no record
    std::optional<Stage> loaded;                // where loading it into this process ended
  };

  std::vector<PluginInfo> infos() const {
    std::vector<PluginInfo> result;
    result.reserve(entries_.size());
    for (const Entry& entry : entries_) result.push_back(current(entry));
    return result;
  }

  /// As it is now: another registry may have shut the plugin down.
  static PluginInfo current(const Entry& entry) {
    PluginInfo info = entry.info;
    if (entry.plugin != nullptr && info.state == PluginState::usable && entry.plugin->ended()) {
      info.state = PluginState::idle;
      info.reason = plugin::shut_down_reason();
    }
    return info;
  }

  /// After a shutdown nothing is tried or loaded any more.
  void settle_ended() {
    for (Entry& entry : entries_) {
      const bool waits = entry.state == Entry::State::examined || entry.state == Entry::State::fit;
      const bool loaded = entry.plugin != nullptr && entry.info.state == PluginState::usable;
      if (!waits && !loaded) continue;
      entry.state = Entry::State::settled;
      entry.info.state = PluginState::idle;
      entry.info.reason = plugin::shut_down_reason();
    }
  }

  std::string no_cache() const {
    return program_.empty() ? "plugins are not tried apart" : "nothing is kept, as asked for";
  }

  FileReport report_of(const Entry& entry) const {
    FileReport report;
    report.plugin = current(entry);
    report.sha256 = entry.candidate.sha256;
    report.trust = entry.candidate.trust;
    Steps steps(report);
    // What can be told without loading it.
    const plugin::Candidate& candidate = entry.candidate;
    if (candidate.state == PluginState::rejected) {
      steps.fail(plugin::stage_of(candidate), candidate.reason);
      return report;
    }
    steps.pass(Stage::metadata);
    if (candidate.trust == "unchecked") {
      steps.skip(Stage::trust, {ReasonCode::not_needed, "no list of allowed plugins is looked at"});
    } else {
      steps.pass(Stage::trust, candidate.trust == "trusted" ? "in the list of allowed plugins"
                                                            : "not in the list of allowed plugins");
    }
    if (candidate.state != PluginState::usable) {
      steps.skip_rest(candidate.reason);
      return report;
    }
    // What came of it in a helper process.
    if (!entry.record) {
      steps.skip(Stage::cache, {ReasonCode::not_needed, "not looked for: it is not tried apart"});
      if (program_.empty() && mode_ == ProbeMode::helper) {
        steps.fail(Stage::probe, entry.info.reason);
        return report;
      }
      steps.skip(Stage::probe, entry.not_probed);
    } else {
      const plugin::ProbeRecord& record = *entry.record;
      if (entry.cached) {
        steps.pass(Stage::cache, "known from an earlier run");
      } else if (cache_ && cache_->reason().code != ReasonCode::usable) {
        steps.skip(Stage::cache, cache_->reason());
      } else {
        steps.skip(Stage::cache, cache_ ? Reason{ReasonCode::not_cached, "nothing was known that still counts"}
                                        : Reason{ReasonCode::not_needed, no_cache()});
      }
      if (record.stage == Stage::probe) {
        steps.fail(Stage::probe, record.reason);
        return report;
      }
      const std::string notes = fmt::format("{}", fmt::join(record.notes, "; "));
      if (entry.cached) {
        steps.skip(Stage::probe, {ReasonCode::not_needed, notes.empty() ? "tried in an earlier run" : notes});
      } else {
        steps.pass(Stage::probe, notes);
      }
      if (!entry.loaded) {
        steps.end(record.stage, record.reason, "in a helper process");
        return report;
      }
    }
    if (entry.loaded) {
      steps.end(*entry.loaded, entry.plugin ? Reason{ReasonCode::usable, ""} : entry.info.reason);
    } else {
      steps.skip_rest(entry.info.reason);
    }
    return report;
  }

  /// Looks at all files, once.
  void scan() {
    if (scanned_) return;
    if (mode_ == ProbeMode::in_process) {
      probe_reason_ = {ReasonCode::disabled, "plugins are tried in this process, as asked for"};
    } else {
      std::string why;
      program_ = plugin::find_probe_program(options_.probe_program, why);
      probe_reason_ = program_.empty() ? Reason{ReasonCode::probe_unavailable, why} : Reason{ReasonCode::usable, ""};
    }
    if (options_.use_cache && !program_.empty()) {
      std::filesystem::path directory = options_.cache_directory;
      if (directory.empty()) directory = plugin::user_cache_directory();
      if (!directory.empty()) cache_.emplace(std::move(directory), plugin::probe_environment(program_));
    }
    directories_ = plugin::search_path(options_);
    for (plugin::Candidate& candidate : plugin::scan(directories_, options_, cache_ ? &*cache_ : nullptr)) {
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
        entry.state = Entry::State::examined;
        entry.info.state = PluginState::idle;
        entry.info.reason = {ReasonCode::not_needed, "not loaded: nothing asked for it yet"};
      }
      entry.candidate = std::move(candidate);
      entries_.push_back(std::move(entry));
    }
    scanned_ = true;
  }

  void try_all(std::unique_lock<std::mutex>& lock) {
    scan();
    probe(lock, [](const Entry&) { return true; });
    for (Entry& entry : entries_) {
      if (!entry.record) load(lock, entry);
    }
  }

  /// What becomes of a file by what trying it apart found.
  void settle(Entry& entry, plugin::ProbeRecord record, bool cached) {
    const bool unavailable = record.reason.code == ReasonCode::probe_unavailable;
    if (unavailable && mode_ == ProbeMode::automatic) return do_without(entry, std::move(record.reason));
    entry.info.state = record.state;
    entry.info.reason = record.reason;
    entry.info.devices = std::move(record.devices);
    entry.info.kernels = std::move(record.kernels);
    entry.state = record.state == PluginState::usable ? Entry::State::fit : Entry::State::settled;
    entry.cached = cached;
    entry.record = std::move(record);
  }

  /// Without a helper process, by choice or for lack of one: it is loaded into this one untried.
  void do_without(Entry& entry, Reason reason) {
    entry.not_probed = std::move(reason);
    entry.state = Entry::State::fit;
  }

  /// Tries what `wanted` says and was not tried before; other threads wait for the one that does. The lock is open
  /// while helper processes run.
  template <class Wanted>
  void probe(std::unique_lock<std::mutex>& lock, Wanted wanted) {
    if (ended_) settle_ended();
    std::vector<Entry*> pending;
    for (Entry& entry : entries_) {
      if (entry.state != Entry::State::examined || !wanted(entry)) continue;
      if (program_.empty()) {
        if (mode_ != ProbeMode::helper) {
          do_without(entry, probe_reason_);
        } else {
          entry.info.state = PluginState::rejected;
          entry.info.reason = probe_reason_;
          entry.state = Entry::State::settled;
        }
        continue;
      }
      if (cache_) {
        if (auto known = cache_->take_result(entry.candidate.sha256, options_.retry)) {
          settle(entry, std::move(*known), true);
          continue;
        }
      }
      entry.state = Entry::State::probing;
      pending.push_back(&entry);
    }
    if (!pending.empty()) {
      std::vector<const plugin::Candidate*> candidates;
      for (const Entry* entry : pending) candidates.push_back(&entry->candidate);
      std::vector<plugin::ProbeRecord> records;
      lock.unlock();
      try {
        records = plugin::probe(program_, candidates, {options_.probe_timeout, options_.probe_memory});
      } catch (...) {
        lock.lock();
        for (Entry* entry : pending) entry->state = Entry::State::examined;  // asked again at the next need
        changed_.notify_all();
        throw;
      }
      lock.lock();
      for (std::size_t i = 0; i < pending.size(); ++i) {
        if (cache_) cache_->keep_result(pending[i]->candidate.sha256, records[i]);
        settle(*pending[i], std::move(records[i]), false);
      }
      changed_.notify_all();
    }
    changed_.wait(lock, [&] {
      return std::none_of(entries_.begin(), entries_.end(),
                          [&](const Entry& entry) { return entry.state == Entry::State::probing && wanted(entry); });
    });
    if (cache_) cache_->save();
  }

  /// Loads a file that is fit for it, once; other threads wait for the one that does. The lock is open while code of
  /// the plugin runs.
  void load(std::unique_lock<std::mutex>& lock, Entry& entry) {
    if (entry.state == Entry::State::loading && entry.loader == std::this_thread::get_id()) return;
    changed_.wait(lock, [&] { return entry.state != Entry::State::loading; });
    if (entry.state != Entry::State::fit) return;
    entry.state = Entry::State::loading;
    entry.loader = std::this_thread::get_id();
    lock.unlock();
    plugin::LoadResult result;
    try {
      result = plugin::load(entry.candidate);
    } catch (...) {
      lock.lock();
      entry.state = Entry::State::fit;  // out of memory, on our side: asked again at the next need
      changed_.notify_all();
      throw;
    }
    lock.lock();
    entry.info.state = result.state;
    entry.info.reason = std::move(result.reason);
    entry.info.devices = std::move(result.info.devices);
    entry.info.kernels = std::move(result.info.kernels);
    entry.plugin = std::move(result.plugin);
    entry.loaded = result.stage;
    entry.state = Entry::State::settled;
    changed_.notify_all();
  }

  const RegistryOptions options_;
  const ProbeMode mode_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool scanned_ = false;
  bool ended_ = false;
  std::filesystem::path program_;  // empty: plugins are tried in this process
  Reason probe_reason_{ReasonCode::not_needed, "no plugin was looked for yet"};
  std::optional<plugin::ProbeCache> cache_;
  std::vector<SearchDirectory> directories_;
  std::vector<Entry> entries_;  // grows only in scan()
};

}  // namespace

PluginRegistry::PluginRegistry(RegistryOptions options) : impl_(std::make_unique<Registry>(std::move(options))) {}
PluginRegistry::PluginRegistry(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PluginRegistry::~PluginRegistry() = default;

std::vector<SearchDirectory> PluginRegistry::search_path() const { return impl_->search_path(); }

ScanReport PluginRegistry::scan_report() { return impl_->scan_report(); }

std::vector<PluginInfo> PluginRegistry::plugins() { return impl_->plugins(); }

std::vector<PluginInfo> PluginRegistry::shutdown() { return impl_->shutdown(); }

std::vector<DeviceInfo> PluginRegistry::devices() {
  std::vector<DeviceInfo> result{cpu_info()};
  for (const PluginInfo& info : impl_->plugins()) {
    if (info.state != PluginState::usable) continue;
    for (const DeviceInfo& device : info.devices) {
      const bool known = std::any_of(result.begin(), result.end(),
                                     [&](const DeviceInfo& other) { return plugin::same_device(other, device); });
      if (!known) result.push_back(device);
    }
  }
  return result;
}

}  // namespace fastpath
