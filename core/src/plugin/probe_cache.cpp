#include "probe_cache.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "fastpath/version.hpp"

namespace fastpath::plugin {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMagic = "fastpath-probe-cache";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kEnd = "end";
constexpr std::size_t kMaxFile = std::size_t{8} << 20;
constexpr std::size_t kMaxMemos = 2048;
constexpr std::size_t kMaxResults = 1024;
constexpr std::size_t kMaxRecord = std::size_t{64} << 10;
constexpr std::size_t kMaxFiles = 32;  // environments
// A driver may come to life without any sign that this library knows of.
constexpr std::int64_t kSecondsWithoutDevice = 3600;
// A file that was changed this short a time ago could be changed again without another time of change.
constexpr std::int64_t kFineTick = 20'000'000, kCoarseTick = 2'000'000'000;

std::string error_text(int code) { return std::error_code(code, std::generic_category()).message(); }

/// The first bytes of a file, at most `most`; empty if it cannot be read.
std::string beginning(const char* path, std::size_t most) {
  const Descriptor file(::open(path, O_RDONLY | O_CLOEXEC));
  std::string text(most, '\0');
  std::size_t size = 0;
  while (size < most) {
    const ssize_t got = ::read(file.get(), text.data() + size, most - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return text;
}

/// Type, features and family of the first processor, which stands for all.
std::string processor() {
  constexpr std::size_t kOne = 8192;
  const std::string text = beginning("/proc/cpuinfo", kOne);
  std::string result;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view line = std::string_view(text).substr(start, end - start);
    if (line.empty()) break;
    constexpr std::array<std::string_view, 11> kKeys{"vendor_id", "cpu family", "model", "stepping", "flags",  "CPU",
                                                     "Features",  "isa",        "uarch", "cpu",      "machine"};
    const bool wanted =
        std::any_of(kKeys.begin(), kKeys.end(), [&](std::string_view key) { return line.starts_with(key); });
    if (wanted && !line.starts_with("cpu MHz") && !line.starts_with("cpu cores")) result += fmt::format("{};", line);
    start = end + 1;
  }
  return result;
}

std::string stamp(const fs::path& path) {
  const std::optional<FileIdentity> identity = identify(path);
  if (!identity) return "none";
  return fmt::format("{}:{}:{}:{}", identity->device, identity->inode, identity->size, identity->modified_ns);
}

fs::path own_file() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&probe_environment), &info) == 0 || info.dli_fname == nullptr) return {};
  return info.dli_fname;
}

std::uint64_t fnv1a(std::string_view text) noexcept {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

std::int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// True if the time of change says for sure that the content is the one that was read.
bool settled(const FileIdentity& identity) {
  const auto now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  constexpr std::int64_t kSecond = 1'000'000'000;
  return identity.changed_ns + (identity.changed_ns % kSecond == 0 ? kCoarseTick : kFineTick) < now;
}

/// True if the same plugin will give the same answer in the same environment.
bool lasting(const ProbeRecord& record) {
  switch (record.reason.code) {
    case ReasonCode::usable:
    case ReasonCode::no_device:  // for a while
    case ReasonCode::abi_incompatible:
    case ReasonCode::bad_plugin:
    case ReasonCode::metadata_mismatch:
    case ReasonCode::probe_timeout:
    case ReasonCode::probe_crashed:
    case ReasonCode::probe_exited:
    case ReasonCode::probe_garbage:
    case ReasonCode::probe_output:
    case ReasonCode::probe_memory:
    case ReasonCode::probe_side_effects:
      return true;
    default:
      // A library that is missing may be installed, a driver repaired: tried anew by every process.
      return false;
  }
}

std::string kinds_text(const std::vector<DeviceKind>& kinds) {
  std::string text;
  for (const DeviceKind kind : kinds) text += fmt::format("{}{}", text.empty() ? "" : ",", to_string(kind));
  return text;
}

std::optional<std::vector<DeviceKind>> kinds_from(std::string_view text) {
  std::vector<DeviceKind> kinds;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const auto kind = parse_device_kind(text.substr(0, comma));
    if (!kind) return std::nullopt;
    kinds.push_back(*kind);
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return kinds;
}

}  // namespace

fs::path user_cache_directory() {
  const auto variable = [](const char* name) {
    const char* const value = ::secure_getenv(name);  // null in a process with elevated rights
    const fs::path path = value == nullptr ? "" : value;
    return path.is_absolute() ? path : fs::path();
  };
  if (fs::path own = variable("FASTPATH_CACHE_DIR"); !own.empty()) return own;
  if (const fs::path base = variable("XDG_CACHE_HOME"); !base.empty()) return base / "fastpath";
  if (const fs::path home = variable("HOME"); !home.empty()) return home / ".cache/fastpath";
  return {};
}

std::string probe_environment(const fs::path& probe_program) {
  std::string text;
  const auto add = [&](std::string_view name, std::string_view value) { text += fmt::format("{}={}\n", name, value); };
  const BuildInfo& build = build_info();
  add("core",
      fmt::format("{} {} {} {} {}", build.version, build.compiler, build.build_type, build.sanitizer, build.system));
  add("library", stamp(own_file()));
  add("probe", stamp(probe_program));
  add("cpu", processor());
  for (const char* file : {"/proc/sys/kernel/hostname", "/proc/sys/kernel/osrelease", "/proc/driver/nvidia/version",
                           "/sys/module/nvidia/version", "/sys/module/amdgpu/version"}) {
    constexpr std::size_t kMost = 1024;
    add(file, beginning(file, kMost));
  }
  for (const char* file : {"/etc/ld.so.cache", "/etc/OpenCL/vendors", "/dev/dri"}) add(file, stamp(file));
  for (const char* device : {"/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/dxg"}) {
    add(device, identify(fs::path(device)) ? "there" : "none");
  }
  for (const char* name :
       {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HSA_OVERRIDE_GFX_VERSION", "OCL_ICD_VENDORS",
        "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH", "POCL_DEVICES", "POCL_CACHE_DIR", "LD_LIBRARY_PATH", "LD_PRELOAD"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr) add(name, value);
  }
  return text;
}

bool read_cache(std::string_view text, std::string_view environment, CacheContent& content, std::string& why) {
  std::size_t number = 0;
  const auto malformed = [&](std::string_view what) {
    why = fmt::format("line {}: {}; it is written anew", number, what);
    return false;
  };
  FieldReader words;
  RecordReader reader;
  bool in_record = false;
  std::string sha256;
  std::int64_t seconds = 0;
  const auto finish = [&] {
    if (!std::exchange(in_record, false)) return true;
    std::optional<ProbeRecord> record = reader.finish();
    if (!record) return false;
    content.results.insert_or_assign(content.results.end(), std::move(sha256),
                                     CacheContent::Result{seconds, std::move(*record)});
    return true;
  };
  bool ended = false;
  while (!text.empty()) {
    ++number;
    const std::size_t end = text.find('\n');
    if (ended || end == std::string_view::npos) return malformed("not where a line may be");
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (number > 2 && !line.starts_with("file\t") && !line.starts_with("result\t") && line != kEnd) {
      if (!in_record || !reader.add(line)) return malformed("malformed, or not known");
      continue;
    }
    if (!words.read(line)) return malformed("a malformed escape");
    if (number == 1) {
      if (words.size() != 2 || words[0] != kMagic || words[1] != kVersion) return malformed("another format");
    } else if (number == 2) {
      if (words.size() != 2 || words[0] != "environment") return malformed("no environment");
      if (words[1] != environment) return true;  // another one with the same hash: nothing is known
    } else {
      if (!finish()) return malformed("the record before it is not complete");
      if (line == kEnd) {
        ended = true;
      } else if (words[0] == "result") {
        const auto time = words.size() == 3 ? read_number<std::int64_t>(words[2]) : std::nullopt;
        if (!time || content.results.size() >= kMaxResults) return malformed("a malformed result");
        sha256 = words.text(1);
        seconds = *time;
        in_record = true;
      } else {
        constexpr std::size_t kWithout = 10, kWith = 19;
        if ((words.size() != kWithout && words.size() != kWith) || content.memos.size() >= kMaxMemos) {
          return malformed("a malformed file");
        }
        CacheContent::Memo memo;
        std::array<std::optional<std::int64_t>, 5> numbers;
        for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = read_number<std::int64_t>(words[2 + i]);
        const auto code = parse_reason_code(words[8]);
        if (std::count(numbers.begin(), numbers.end(), std::nullopt) > 0 || !code) return malformed("a malformed file");
        memo.identity = {static_cast<std::uint64_t>(*numbers[0]), static_cast<std::uint64_t>(*numbers[1]),
                         static_cast<std::uint64_t>(*numbers[2]), *numbers[3], *numbers[4]};
        memo.found.sha256 = words.text(7);
        memo.found.reason = {*code, words.text(9)};
        if (words.size() == kWith) {
          Metadata metadata;
          const std::array targets{&metadata.abi_version, &metadata.abi_min, &metadata.abi_max, &metadata.sdk_version};
          for (std::size_t i = 0; i < targets.size(); ++i) {
            const auto value = read_number<std::uint64_t>(words[kWithout + i]);
            if (!value || *value > UINT32_MAX) return malformed("a malformed version");
            *targets[i] = static_cast<std::uint32_t>(*value);
          }
          metadata.id = words.text(14);
          metadata.vendor = words.text(15);
          metadata.version = words.text(16);
          metadata.build_tag = words.text(17);
          auto kinds = kinds_from(words[18]);
          if (!kinds || !is_plugin_id(metadata.id)) return malformed("a malformed id or kind");
          metadata.device_kinds = std::move(*kinds);
          memo.found.metadata = std::move(metadata);
        }
        // A file that passed has a record.
        if (memo.found.reason.code == ReasonCode::usable && !memo.found.metadata) return malformed("no metadata");
        content.memos.insert_or_assign(content.memos.end(), words.text(1), std::move(memo));
      }
    }
  }
  if (!ended) return malformed("the end is missing");
  return true;
}

std::string write_cache(std::string_view environment, const CacheContent& content) {
  std::string text = write_fields({kMagic, kVersion}) + write_fields({"environment", environment});
  for (const auto& [path, memo] : content.memos) {
    const FileIdentity& identity = memo.identity;
    const std::array<std::string, 5> numbers{std::to_string(static_cast<std::int64_t>(identity.device)),
                                             std::to_string(static_cast<std::int64_t>(identity.inode)),
                                             std::to_string(static_cast<std::int64_t>(identity.size)),
                                             std::to_string(identity.modified_ns), std::to_string(identity.changed_ns)};
    std::vector<std::string_view> fields{"file", path};
    fields.insert(fields.end(), numbers.begin(), numbers.end());
    for (const std::string_view word : {std::string_view(memo.found.sha256), to_string(memo.found.reason.code),
                                        std::string_view(memo.found.reason.text)}) {
      fields.push_back(word);
    }
    std::array<std::string, 4> versions;
    std::string kinds;
    if (const auto& metadata = memo.found.metadata) {
      versions = {std::to_string(metadata->abi_version), std::to_string(metadata->abi_min),
                  std::to_string(metadata->abi_max), std::to_string(metadata->sdk_version)};
      kinds = kinds_text(metadata->device_kinds);
      fields.insert(fields.end(), versions.begin(), versions.end());
      for (const std::string& word :
           {std::cref(metadata->id), std::cref(metadata->vendor), std::cref(metadata->version),
            std::cref(metadata->build_tag), std::cref(std::as_const(kinds))}) {
        fields.emplace_back(word);
      }
    }
    text += write_fields(fields);
  }
  for (const auto& [sha256, result] : content.results) {
    text += write_fields({"result", sha256, std::to_string(result.seconds)});
    text += write_record(result.record);
  }
  text += write_fields({kEnd});
  return text;
}

ProbeCache::ProbeCache(fs::path directory, std::string environment)
    : directory_(std::move(directory)), environment_(std::move(environment)) {
  if (directory_.empty()) {
    loaded_ = true;
    return;
  }
  file_ = directory_ / "probe" / fmt::format("{:016x}.txt", fnv1a(environment_));
}

void ProbeCache::failed(std::string text) {
  if (reason_.code == ReasonCode::usable) reason_ = {ReasonCode::cache_unusable, std::move(text)};
}

void ProbeCache::load() {
  if (std::exchange(loaded_, true)) return;
  std::string why;
  if (!read(content_, why)) {
    content_ = {};
    failed(fmt::format("{}: {}", file_.string(), why));
  }
}

const Examination* ProbeCache::find(const fs::path& resolved, const FileIdentity& identity) {
  load();
  const auto found = content_.memos.find(resolved.native());
  return found != content_.memos.end() && found->second.identity == identity ? &found->second.found : nullptr;
}

void ProbeCache::keep(const fs::path& resolved, const FileIdentity& identity, const Examination& found) {
  if (file_.empty() || found.sha256.empty() || !settled(identity)) return;
  CacheContent::Memo memo{identity, found};
  content_.memos.insert_or_assign(resolved.native(), memo);
  fresh_.memos.insert_or_assign(resolved.native(), std::move(memo));
}

std::optional<ProbeRecord> ProbeCache::take_result(std::string_view sha256, bool retry) {
  load();
  const auto found = content_.results.find(sha256);
  if (found == content_.results.end()) return std::nullopt;
  CacheContent::Result& result = found->second;
  const std::int64_t age = now_seconds() - result.seconds;
  const bool old = age < 0 || age > kSecondsWithoutDevice;
  std::optional<ProbeRecord> record;
  if ((result.record.reason.code != ReasonCode::no_device || !old) &&
      (result.record.state != PluginState::quarantined || !retry)) {
    record = std::move(result.record);
  }
  content_.results.erase(found);
  return record;
}

void ProbeCache::keep_result(std::string_view sha256, const ProbeRecord& record) {
  if (file_.empty() || sha256.empty() || !lasting(record)) return;
  if (write_record(record).size() > kMaxRecord) return;
  fresh_.results.insert_or_assign(std::string(sha256), CacheContent::Result{now_seconds(), record});
}

bool ProbeCache::read(CacheContent& content, std::string& why) const {
  const Descriptor file(::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) {
    if (errno == ENOENT) return true;
    why = error_text(errno);
    return false;
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    why = "not a regular file";
    return false;
  }
  // It says which files need not be looked at again: nobody else may have written it.
  if (status.st_uid != ::geteuid() || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    why = fmt::format("it belongs to user {} with mode {:03o}; expected {}, and nobody else to write to it",
                      status.st_uid, status.st_mode & 0777u, ::geteuid());
    return false;
  }
  if (static_cast<std::uint64_t>(status.st_size) > kMaxFile) {
    why = fmt::format("{} bytes, at most {} are read", status.st_size, kMaxFile);
    return false;
  }
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(file.get(), text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  text.resize(size);
  return read_cache(text, environment_, content, why);
}

void ProbeCache::save() {
  if (fresh_.memos.empty() && fresh_.results.empty()) return;
  const fs::path folder = file_.parent_path();
  std::error_code error;
  if (fs::create_directories(folder, error); error) {
    return failed(fmt::format("{} cannot be made: {}", folder.string(), error.message()));
  }
  // Files of another user's could not be read by them, nor trusted here.
  struct stat status {};
  if (::stat(folder.c_str(), &status) != 0 || status.st_uid != ::geteuid()) {
    return failed(fmt::format("{} belongs to another user", folder.string()));
  }
  // One writer at a time; whoever finds another one at work leaves it to the next process.
  const Descriptor lock(::open((folder / "lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (lock.get() < 0) return failed(fmt::format("{}: {}", folder.string(), error_text(errno)));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK || errno == EINTR) return;
    // A file system without locks: the last writer wins.
  }
  CacheContent all;
  std::string why;
  if (!read(all, why)) all = {};
  for (auto& [path, memo] : fresh_.memos) all.memos.insert_or_assign(path, std::move(memo));
  for (auto& [sha256, result] : fresh_.results) all.results.insert_or_assign(sha256, std::move(result));
  fresh_ = {};
  // Bounded: what was found longest ago goes first; of memos, whose age is not kept, those of files that are gone.
  while (all.results.size() > kMaxResults) {
    all.results.erase(std::min_element(all.results.begin(), all.results.end(), [](const auto& a, const auto& b) {
      return a.second.seconds < b.second.seconds;
    }));
  }
  if (all.memos.size() > kMaxMemos / 2) {
    std::erase_if(all.memos, [](const auto& entry) {
      const auto identity = identify(fs::path(entry.first));
      return !identity || !(*identity == entry.second.identity);
    });
  }
  while (all.memos.size() > kMaxMemos) all.memos.erase(all.memos.begin());
  const bool is_new = !identify(file_);
  store(write_cache(environment_, all));
  if (is_new) drop_old_files();
}

void ProbeCache::store(const std::string& text) {
  std::string name = file_.string() + ".XXXXXX";
  const Descriptor file(::mkostemp(name.data(), O_CLOEXEC));
  if (file.get() < 0) return failed(fmt::format("{}: {}", file_.parent_path().string(), error_text(errno)));
  std::string_view rest = text;
  int code = 0;
  while (!rest.empty() && code == 0) {
    const ssize_t count = ::write(file.get(), rest.data(), rest.size());
    if (count < 0 && errno != EINTR) code = errno;
    if (count > 0) rest.remove_prefix(static_cast<std::size_t>(count));
  }
  if (code == 0 && ::rename(name.c_str(), file_.c_str()) != 0) code = errno;
  if (code == 0) return;
  ::unlink(name.c_str());
  failed(fmt::format("{}: {}", file_.string(), error_text(code)));
}

void ProbeCache::drop_old_files() const {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code error;
  for (fs::directory_iterator entry(file_.parent_path(), error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code ignored;
    const fs::path& path = entry->path();
    if (path.filename() != "lock") files.emplace_back(fs::last_write_time(path, ignored), path);
  }
  std::sort(files.begin(), files.end(), std::greater<>());
  for (std::size_t i = kMaxFiles; i < files.size(); ++i) fs::remove(files[i].second, error);
}

}  // namespace fastpath::plugin
