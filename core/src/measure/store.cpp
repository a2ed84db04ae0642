#include <fcntl.h>
#include <fmt/format.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <random>
#include <set>
#include <system_error>
#include <utility>

#include "fastpath/error.hpp"
#include "fastpath/measurement.hpp"
#include "fastpath/version.hpp"
#include "io/descriptor.hpp"
#include "io/file.hpp"
#include "measure/record.hpp"

namespace fastpath {
namespace {

namespace fs = std::filesystem;
using io::Descriptor;

constexpr std::size_t kMostBytes = std::size_t{64} << 20;  // of one file
constexpr std::int64_t kDaySeconds = std::int64_t{24} * 3600;
constexpr std::int64_t kOldSeconds = 180 * kDaySeconds;
constexpr std::string_view kExtension = ".jsonl";
constexpr std::size_t kMostSkipped = 100;  // that a change tells of, one by one

std::int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string error_text(int code) { return std::error_code(code, std::generic_category()).message(); }

[[noreturn]] void fail(const fs::path& file, const char* action, int code) {
  throw Error(ErrorCode::io, fmt::format("{}: cannot be {}: {}", file.string(), action, error_text(code)));
}

/// Who adds a record shares the directory with others who do; who rewrites it has it alone.
class DirectoryLock {
 public:
  enum class Kind { shared, alone };
  DirectoryLock(const fs::path& directory, Kind kind)
      : file_(directory / "lock"), descriptor_(::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    if (descriptor_.get() < 0) fail(file_, "opened", errno);
    int result = 0;
    do {
      result = ::flock(descriptor_.get(), kind == Kind::shared ? LOCK_SH : LOCK_EX);
    } while (result != 0 && errno == EINTR);
    // A file system without locks: adding needs none, since everyone writes a file of their own.
    if (result != 0 && kind == Kind::alone) fail(file_, "locked", errno);
  }

 private:
  fs::path file_;
  Descriptor descriptor_;
};

void make_directory(const fs::path& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  std::error_code ignored;  // a directory above may not even be searched
  if (error && !fs::is_directory(directory, ignored)) fail(directory, "made", error.value());
}

std::vector<fs::path> files_of(const fs::path& directory, std::vector<Reason>& problems) {
  std::vector<fs::path> files;
  if (directory.empty()) return files;
  std::error_code error;
  const fs::file_status status = fs::status(directory, error);
  if (status.type() == fs::file_type::not_found) return files;
  const auto cannot = [&](const std::string& why) {
    problems.push_back({ReasonCode::unreadable, fmt::format("{}: cannot be read: {}", directory.string(), why)});
  };
  if (error) {
    cannot(error.message());
    return files;
  }
  if (status.type() != fs::file_type::directory) {
    cannot("not a directory");
    return files;
  }
  fs::directory_iterator entry(directory, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (entry->path().extension() == kExtension) files.push_back(entry->path());
  }
  if (error) cannot(error.message());
  std::sort(files.begin(), files.end());
  return files;
}

/// Calls `each(line, number)` for every line. A last one without an end is one too.
template <class Each>
void for_each_line(std::string_view text, const Each& each) {
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = text.find('\n');
    if (const std::string_view line = text.substr(0, end); !line.empty()) each(line, number);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
}

/// Where a new record of a key is compared with older ones.
std::string identity(const MeasurementKey& key, std::string_view build) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}", key.op, key.op_version, key.config, key.device,
                     to_string(key.dtype), key.passes, key.threads, key.plugin, build);
}

std::string identity(const Measurement& m) {
  return fmt::format("{}\n{}\n{}", identity(m.key, m.plugin_build), m.driver, m.library_version);
}

/// Dated later than clocks that are right differ: it must not come before all that is measured until then.
bool is_ahead(const Measurement& m, std::int64_t now) { return m.unix_time - now > kDaySeconds; }

std::optional<Reason> staleness(const Measurement& m, std::string_view driver, std::int64_t now) {
  std::string text;
  const auto add = [&](std::string part) { text += (text.empty() ? "" : "; ") + std::move(part); };
  if (m.driver != driver) add(fmt::format("made with driver '{}', now '{}'", m.driver, driver));
  if (const std::string& library = build_info().version; m.library_version != library) {
    add(fmt::format("made with fastpath {}, this is {}", m.library_version, library));
  }
  if (now - m.unix_time > kOldSeconds) add(fmt::format("made {} days ago", (now - m.unix_time) / kDaySeconds));
  if (is_ahead(m, now)) {
    add(fmt::format("dated {} days from now, by a clock that was wrong", (m.unix_time - now) / kDaySeconds));
  }
  if (text.empty()) return std::nullopt;
  return Reason{ReasonCode::stale, std::move(text)};
}

std::string shard_name() {
  std::string host = measure::host_name();
  std::replace_if(
      host.begin(), host.end(), [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '.'; }, '_');
  std::random_device random;
  return fmt::format("{}-{}-{:08x}{}", host, ::getpid(), random(), kExtension);
}

/// Appends a line, whole or not at all. The file belongs to this process alone, but others read it.
void append(const fs::path& file, std::string line) {
  Descriptor descriptor(::open(file.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (descriptor.get() < 0) fail(file, "opened", errno);
  struct stat status {};
  if (::fstat(descriptor.get(), &status) != 0) fail(file, "examined", errno);
  char last = '\n';
  if (status.st_size > 0 && ::pread(descriptor.get(), &last, 1, status.st_size - 1) != 1) fail(file, "read", errno);
  if (last != '\n') line.insert(0, "\n");  // what was torn stays a line of its own
  ssize_t written = 0;
  do {
    written = ::write(descriptor.get(), line.data(), line.size());
  } while (written < 0 && errno == EINTR);
  int code = written < 0 ? errno : 0;
  if (code == 0 && static_cast<std::size_t>(written) != line.size()) code = ENOSPC;
  if (code == 0 && ::fdatasync(descriptor.get()) != 0 && errno != EINVAL) code = errno;
  if (code != 0) {
    // Nothing of a record that its caller believes lost may come to light later.
    if (status.st_size == 0) {
      ::unlink(file.c_str());
    } else if (::ftruncate(descriptor.get(), status.st_size) != 0) {
      fail(file, "written, nor what was written be taken back", code);
    }
    fail(file, "written", code);
  }
  if (code = descriptor.close(); code != 0) fail(file, "written", code);
}

Reason at_line(const fs::path& file, std::int64_t line, const Reason& reason) {
  return {reason.code, fmt::format("{}:{}: {}", file.string(), line, reason.text)};
}

}  // namespace

class MeasurementStore::Impl {
 public:
  struct Entry {
    std::shared_ptr<const Measurement> measurement;  // null where `fault` says why
    Reason fault;
    MeasurementLayer layer = MeasurementLayer::user;
    std::shared_ptr<const fs::path> file;
    std::int64_t line = 0;
  };

  MeasurementDirectories directories;
  mutable std::mutex mutex;
  mutable bool loaded = false;
  mutable std::vector<Entry> entries;  // in the order of layers, files and lines
  mutable std::multimap<std::string, std::size_t> by_identity;
  mutable std::vector<Reason> problems;
  std::vector<std::shared_ptr<const Measurement>> in_memory;
  std::map<fs::path, fs::path> shards;  // of this process, by directory
  pid_t shards_of = 0;
  mutable std::atomic<std::uint64_t> generation{1};

  const fs::path& directory(MeasurementLayer layer) const {
    if (layer == MeasurementLayer::system) {
      throw Error(ErrorCode::invalid_argument,
                  "measurements of the system are only read; those of the user and of a project can be changed");
    }
    const fs::path& result = layer == MeasurementLayer::user ? directories.user : directories.project;
    if (result.empty() && layer == MeasurementLayer::project) {
      throw Error(ErrorCode::invalid_argument,
                  "there is no directory for the measurements of a project: make .fastpath/measurements where you are");
    }
    return result;
  }

  void put(Entry entry) const {
    if (entry.measurement != nullptr) {
      by_identity.emplace(identity(entry.measurement->key, entry.measurement->plugin_build), entries.size());
    }
    entries.push_back(std::move(entry));
  }

  void load_file(const fs::path& path, MeasurementLayer layer) const {
    std::string text;
    try {
      text = io::read_small_file(path, kMostBytes);
    } catch (const Error& error) {
      // One that was merged away meanwhile.
      if (error.code() != ErrorCode::not_found) problems.push_back({ReasonCode::unreadable, error.what()});
      return;
    }
    const auto file = std::make_shared<const fs::path>(path);
    for_each_line(text, [&](std::string_view line, std::int64_t number) {
      Entry entry{nullptr, {}, layer, file, number};
      if (auto read = measure::read_line(line, entry.fault)) {
        entry.measurement = std::make_shared<const Measurement>(std::move(*read));
      }
      put(std::move(entry));
    });
  }

  /// With the lock.
  void load() const {
    if (std::exchange(loaded, true)) return;
    entries.clear();
    by_identity.clear();
    problems.clear();
    for (const fs::path& system : directories.system) {
      for (const fs::path& file : files_of(system, problems)) load_file(file, MeasurementLayer::system);
    }
    for (const fs::path& file : files_of(directories.user, problems)) load_file(file, MeasurementLayer::user);
    for (const auto& measurement : in_memory) put({measurement, {}, MeasurementLayer::user, nullptr, 0});
    for (const fs::path& file : files_of(directories.project, problems)) load_file(file, MeasurementLayer::project);
  }

  void forget_loaded() {
    loaded = false;
    generation.fetch_add(1, std::memory_order_release);
  }

  /// Better first: conclusive, not stale, later layer, newer, later in order.
  bool better(std::size_t a, std::size_t b, std::string_view driver, std::int64_t now) const {
    const auto rank = [&](std::size_t i) {
      const Entry& entry = entries[i];
      const Measurement& m = *entry.measurement;
      return std::tuple(!m.inconclusive, !staleness(m, driver, now).has_value(), entry.layer, m.unix_time, i);
    };
    return rank(a) > rank(b);
  }

  std::optional<std::size_t> best(const std::string& id, std::string_view driver, std::int64_t now) const {
    const auto [first, last] = by_identity.equal_range(id);
    std::optional<std::size_t> result;
    for (auto at = first; at != last; ++at) {
      if (!result || better(at->second, *result, driver, now)) result = at->second;
    }
    return result;
  }

  /// With the lock.
  void add(Measurement m, MeasurementLayer layer) {
    const fs::path& target = directory(layer);
    if (m.library_version.empty()) m.library_version = build_info().version;
    if (m.host.empty()) m.host = measure::host_name();
    if (m.unix_time == 0) m.unix_time = now_seconds();
    const std::string line = measure::write_line(m) + "\n";
    if (target.empty()) {
      in_memory.push_back(std::make_shared<const Measurement>(std::move(m)));
      return;
    }
    make_directory(target);
    if (shards_of != ::getpid()) {  // a child of a fork gets files of its own
      shards.clear();
      shards_of = ::getpid();
    }
    const auto [shard, is_new] = shards.try_emplace(target);
    if (is_new) shard->second = target / shard_name();
    const DirectoryLock lock(target, DirectoryLock::Kind::shared);
    append(shard->second, line);
  }

  /// Makes one file of a directory. `keep` decides about every record, and may be asked for any number of them.
  MeasurementChange rewrite(MeasurementLayer layer, bool keep_faults,
                            const std::function<std::vector<bool>(const std::vector<Measurement>&)>& keep) {
    MeasurementChange change;
    const fs::path& target = directory(layer);
    std::error_code error;
    if (!fs::exists(target, error)) return change;
    const DirectoryLock lock(target, DirectoryLock::Kind::alone);
    std::vector<Reason> unreadable;
    const std::vector<fs::path> files = files_of(target, unreadable);
    if (!unreadable.empty()) throw Error(ErrorCode::io, unreadable.front().text);
    std::vector<Measurement> found;
    std::string verbatim;
    for (const fs::path& file : files) {
      const std::string text = io::read_small_file(file, kMostBytes);
      for_each_line(text, [&](std::string_view line, std::int64_t number) {
        Reason why;
        if (auto read = measure::read_line(line, why)) {
          found.push_back(std::move(*read));
          return;
        }
        if (keep_faults || why.code == ReasonCode::record_format) verbatim.append(line).append("\n");
        if (why.code == ReasonCode::record_format) {
          ++change.kept;
        } else if (!keep_faults && change.skipped.size() < kMostSkipped) {
          change.skipped.push_back(at_line(file, number, why));
        }
      });
    }
    const std::vector<bool> kept = keep(found);
    std::string all;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (kept[i]) all.append(measure::write_line(found[i])).append("\n");
      ++(kept[i] ? change.kept : change.removed);
    }
    all += verbatim;
    if (!all.empty()) {
      io::ReplacingFile file(target / shard_name());
      file.write(all);
      file.commit();
    }
    // From here on what goes is twice there at worst.
    for (const fs::path& file : files) {
      if (::unlink(file.c_str()) != 0 && errno != ENOENT) fail(file, "removed", errno);
    }
    shards.clear();
    return change;
  }
};

MeasurementDirectories MeasurementDirectories::defaults() {
  MeasurementDirectories result;
  const auto variable = [](const char* name) {
    const char* const value = ::secure_getenv(name);  // null in a process with elevated rights
    return fs::path(value == nullptr ? "" : value);
  };
  const auto absolute = [&](const char* name) {
    fs::path path = variable(name);
    if (path.empty() || path.is_absolute()) return path;
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is '{}', expected an absolute path", name, path.string()));
  };
  const fs::path system = absolute("FASTPATH_SYSTEM_MEASUREMENTS");
  result.system.push_back(system.empty() ? fs::path(FASTPATH_SYSTEM_MEASUREMENT_DIR) : system);
  if (const fs::path own = absolute("FASTPATH_MEASUREMENTS"); !own.empty()) {
    result.user = own;
  } else if (const fs::path data = variable("XDG_DATA_HOME"); data.is_absolute()) {
    result.user = data / "fastpath/measurements";
  } else if (const fs::path home = variable("HOME"); home.is_absolute()) {
    result.user = home / ".local/share/fastpath/measurements";
  }
  // With elevated rights the directory one stands in says nothing.
  if (::getauxval(AT_SECURE) != 0) return result;
  std::error_code error;
  const fs::path project = fs::current_path(error) / ".fastpath/measurements";
  if (!error && fs::is_directory(project, error)) result.project = project;
  return result;
}

MeasurementStore::MeasurementStore(MeasurementDirectories directories) : impl_(std::make_unique<Impl>()) {
  impl_->directories = std::move(directories);
}
MeasurementStore::~MeasurementStore() = default;

const MeasurementDirectories& MeasurementStore::directories() const noexcept { return impl_->directories; }

void MeasurementStore::add(Measurement measurement, MeasurementLayer layer) {
  const std::lock_guard lock(impl_->mutex);
  impl_->add(std::move(measurement), layer);
  impl_->forget_loaded();
}

std::optional<MeasurementStore::Found> MeasurementStore::find(const MeasurementKey& key, std::string_view build,
                                                              std::string_view driver) const {
  const std::lock_guard lock(impl_->mutex);
  impl_->load();
  if (impl_->entries.empty()) return std::nullopt;
  const std::int64_t now = now_seconds();
  const auto best = impl_->best(identity(key, build), driver, now);
  if (!best) return std::nullopt;
  const Impl::Entry& entry = impl_->entries[*best];
  return Found{entry.measurement, entry.layer, staleness(*entry.measurement, driver, now)};
}

std::vector<MeasurementRecord> MeasurementStore::records(const MeasurementSituation& situation) const {
  const std::lock_guard lock(impl_->mutex);
  impl_->load();
  const std::int64_t now = situation.now != 0 ? situation.now : now_seconds();
  std::vector<MeasurementRecord> result;
  for (std::size_t i = 0; i < impl_->entries.size(); ++i) {
    const Impl::Entry& entry = impl_->entries[i];
    MeasurementRecord record;
    record.layer = entry.layer;
    if (entry.file != nullptr) record.file = *entry.file;
    record.line = entry.line;
    if (entry.measurement == nullptr) {
      record.reasons.push_back(entry.fault);
      result.push_back(std::move(record));
      continue;
    }
    const Measurement& m = *entry.measurement;
    record.measurement = m;
    const auto device = std::find_if(situation.devices.begin(), situation.devices.end(),
                                     [&](const DeviceInfo& info) { return device_class(info) == m.key.device; });
    if (device == situation.devices.end()) {
      record.reasons.push_back({ReasonCode::other_device, fmt::format("of device '{}'", m.key.device)});
    } else if (device->device.is_cpu() && m.key.threads > static_cast<int>(device->units)) {
      record.reasons.push_back(
          {ReasonCode::other_device, fmt::format("of {} threads, there are {}", m.key.threads, device->units)});
    }
    const std::string kind = m.key.device.substr(0, m.key.device.find(' '));
    const std::string name = m.key.plugin == kEveryPlugin ? m.key.plugin + " " + kind : m.key.plugin;
    const auto build = situation.builds.find(name);
    if (build == situation.builds.end() || build->second.empty()) {
      record.reasons.push_back({ReasonCode::other_build, fmt::format("of plugin {}, which is not here", m.key.plugin)});
    } else if (build->second != m.plugin_build) {
      record.reasons.push_back(
          {ReasonCode::other_build, m.key.plugin == kEveryPlugin
                                        ? fmt::format("of plugins '{}', now '{}'", m.plugin_build, build->second)
                                        : fmt::format("of build '{}', now '{}'", m.plugin_build, build->second)});
    }
    if (record.reasons.empty()) {
      if (impl_->best(identity(m.key, m.plugin_build), device->driver, now) != i) {
        record.reasons.push_back({ReasonCode::superseded, "another record of this kernel counts"});
      } else {
        record.counts = true;
        if (std::optional<Reason> stale = staleness(m, device->driver, now)) record.reasons.push_back(*stale);
      }
    }
    result.push_back(std::move(record));
  }
  return result;
}

std::vector<Reason> MeasurementStore::problems() const {
  const std::lock_guard lock(impl_->mutex);
  impl_->load();
  return impl_->problems;
}

bool MeasurementStore::empty() const {
  const std::lock_guard lock(impl_->mutex);
  impl_->load();
  return impl_->by_identity.empty();
}

void MeasurementStore::reload() {
  const std::lock_guard lock(impl_->mutex);
  impl_->forget_loaded();
}

std::uint64_t MeasurementStore::generation() const noexcept {
  return impl_->generation.load(std::memory_order_acquire);
}

MeasurementChange MeasurementStore::export_file(const fs::path& path,
                                                const std::function<bool(const Measurement&)>& wanted) const {
  MeasurementChange change;
  const std::lock_guard lock(impl_->mutex);
  impl_->load();
  io::ReplacingFile file(path);
  for (const Impl::Entry& entry : impl_->entries) {
    if (entry.measurement == nullptr) {
      if (change.skipped.size() < kMostSkipped) change.skipped.push_back(at_line(*entry.file, entry.line, entry.fault));
      continue;
    }
    if (wanted && !wanted(*entry.measurement)) continue;
    file.write(measure::write_line(*entry.measurement) + "\n");
    ++change.kept;
  }
  file.commit();
  return change;
}

MeasurementChange MeasurementStore::import_file(const fs::path& path, MeasurementLayer layer) {
  MeasurementChange change;
  const std::lock_guard lock(impl_->mutex);
  impl_->directory(layer);  // throws before anything is read
  std::vector<fs::path> files{path};
  std::error_code error;
  if (fs::is_directory(path, error)) {
    std::vector<Reason> unreadable;
    files = files_of(path, unreadable);
    if (!unreadable.empty()) throw Error(ErrorCode::io, unreadable.front().text);
  }
  impl_->forget_loaded();
  impl_->load();
  std::set<std::string> known;
  for (const Impl::Entry& entry : impl_->entries) {
    if (entry.measurement != nullptr && entry.layer == layer) known.insert(measure::write_line(*entry.measurement));
  }
  impl_->forget_loaded();  // what comes counts, also where an error ends it
  for (const fs::path& file : files) {
    const std::string text = io::read_small_file(file, kMostBytes);
    for_each_line(text, [&](std::string_view line, std::int64_t number) {
      Reason why;
      std::optional<Measurement> read = measure::read_line(line, why);
      if (!read) {
        if (change.skipped.size() < kMostSkipped) change.skipped.push_back(at_line(file, number, why));
      } else if (!known.insert(measure::write_line(*read)).second) {
        ++change.known;
      } else {
        impl_->add(std::move(*read), layer);
        ++change.added;
      }
    });
  }
  if (!change.skipped.empty() && change.added + change.known == 0) {
    throw Error(ErrorCode::bad_file,
                fmt::format("{}: has no measurement: {}", path.string(), change.skipped.front().text));
  }
  return change;
}

MeasurementChange MeasurementStore::merge(MeasurementLayer layer) {
  const std::lock_guard lock(impl_->mutex);
  const auto keep = [now = now_seconds()](const std::vector<Measurement>& all) {
    // Of each key, build, driver and library the newest that is conclusive, else the newest.
    std::map<std::string, std::size_t> best;
    const auto rank = [&](std::size_t i) {
      return std::tuple(!all[i].inconclusive, !is_ahead(all[i], now), all[i].unix_time, i);
    };
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto [at, is_new] = best.try_emplace(identity(all[i]), i);
      if (!is_new && rank(i) > rank(at->second)) at->second = i;
    }
    std::vector<bool> kept(all.size());
    for (const auto& [id, i] : best) kept[i] = true;
    return kept;
  };
  MeasurementChange change = impl_->rewrite(layer, false, keep);
  impl_->forget_loaded();
  return change;
}

MeasurementChange MeasurementStore::forget(const std::function<bool(const Measurement&)>& which,
                                           MeasurementLayer layer) {
  const std::lock_guard lock(impl_->mutex);
  MeasurementChange change;
  if (layer == MeasurementLayer::user) {
    change.removed = std::erase_if(impl_->in_memory, [&](const auto& m) { return which(*m); });
    change.kept = impl_->in_memory.size();
  }
  if (!impl_->directory(layer).empty()) {
    change = impl_->rewrite(layer, true, [&](const std::vector<Measurement>& all) {
      std::vector<bool> kept;
      for (const Measurement& m : all) kept.push_back(!which(m));
      return kept;
    });
  }
  impl_->forget_loaded();
  return change;
}

}  // namespace fastpath
