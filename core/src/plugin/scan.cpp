#include "scan.hpp"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/dll/library_info.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "fastpath/plugin.h"
#include "sha256.hpp"

namespace fastpath::plugin {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "fastpath_";
constexpr std::string_view kSuffix = ".so";

std::string error_text(int code) { return std::error_code(code, std::generic_category()).message(); }

/// The value of an environment variable; empty if it is not set.
std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

SearchDirectory directory(const fs::path& path, std::string source) {
  SearchDirectory result{path, std::move(source), false, {}};
  if (!path.is_absolute()) {
    // What a relative path means changes with the current directory, from where nothing may be loaded.
    result.reason = {ReasonCode::relative_path,
                     fmt::format("'{}' is relative; search directories must be absolute", path.string())};
    return result;
  }
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    result.reason = errno == ENOENT || errno == ENOTDIR
                        ? Reason{ReasonCode::no_directory, "the directory does not exist"}
                        : Reason{ReasonCode::unreadable, error_text(errno)};
    return result;
  }
  result.exists = S_ISDIR(status.st_mode);
  result.reason = result.exists ? Reason{ReasonCode::usable, ""} : Reason{ReasonCode::no_directory, "not a directory"};
  return result;
}

void add_list(std::vector<SearchDirectory>& result, const std::string& list, const std::string& source) {
  for (std::size_t start = 0; start <= list.size();) {
    const std::size_t colon = std::min(list.find(':', start), list.size());
    // An empty entry means the current directory to some tools; here it means nothing.
    if (colon > start) result.push_back(directory(list.substr(start, colon - start), source));
    start = colon + 1;
  }
}

/// The directory of the library, or program, that contains this function.
fs::path own_directory() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&search_path), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code error;
  const fs::path file = fs::canonical(info.dli_fname, error);
  return error ? fs::path() : file.parent_path();
}

bool matches(const std::vector<std::string>& globs, const std::string& id) {
  return std::any_of(globs.begin(), globs.end(),
                     [&](const std::string& glob) { return ::fnmatch(glob.c_str(), id.c_str(), 0) == 0; });
}

FileIdentity identity_of(const struct stat& status) {
  return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size),
          std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec,
          std::int64_t{status.st_ctim.tv_sec} * 1'000'000'000 + status.st_ctim.tv_nsec};
}

class Descriptor {
 public:
  /// Does not wait for a writer if the path is a pipe.
  explicit Descriptor(const fs::path& path)
      : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const noexcept { return value_; }

 private:
  int value_;
};

/// Boost.DLL must see the query function too: two readers that disagree about a file are a reason to leave it alone.
Reason confirm_query_symbol(const fs::path& path) {
  try {
    const std::vector<std::string> symbols = boost::dll::library_info(path).symbols();
    if (std::find(symbols.begin(), symbols.end(), FP_QUERY_SYMBOL) != symbols.end()) return {ReasonCode::usable, ""};
    return {ReasonCode::no_query_symbol, fmt::format("its symbol tables disagree about {}", FP_QUERY_SYMBOL)};
  } catch (const std::exception& error) {
    return {ReasonCode::not_elf, fmt::format("its symbol tables cannot be read: {}", error.what())};
  } catch (...) {
    return {ReasonCode::not_elf, "its symbol tables cannot be read"};
  }
}

/// Reads what a file is and says about itself.
Examination read_object(int descriptor, std::uint64_t size, const fs::path& resolved) {
  Examination result;
  const FileSource file(descriptor, size);
  result.sha256 = sha256_of(file).value_or("");
  ObjectReport report = inspect_object(file);
  result.metadata = std::move(report.metadata);
  result.reason = std::move(report.reason);
  if (result.reason.code == ReasonCode::usable) result.reason = confirm_query_symbol(resolved);
  return result;
}

/// Looks at one file without loading it.
Candidate examine(const fs::path& path, ExaminationMemo* memo) {
  Candidate result;
  result.path = path;
  const std::string name = path.filename().string();
  result.id = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  const auto refuse = [&](ReasonCode code, std::string text) {
    result.reason = {code, std::move(text)};
    return result;
  };

  std::error_code error;
  result.resolved = fs::canonical(path, error);
  if (error) {
    const fs::path target = fs::read_symlink(path, error);
    if (!error) {
      return refuse(ReasonCode::not_a_file,
                    fmt::format("a symbolic link to '{}', which leads nowhere", target.string()));
    }
    return refuse(ReasonCode::unreadable, "the file cannot be resolved");
  }
  const Descriptor file(result.resolved);
  const int open_error = errno;
  struct stat status {};
  if (file.get() < 0) {
    if (::stat(result.resolved.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
      return refuse(ReasonCode::not_a_file, "not a regular file");
    }
    return refuse(ReasonCode::unreadable, error_text(open_error));
  }
  if (::fstat(file.get(), &status) != 0) return refuse(ReasonCode::unreadable, error_text(errno));
  if (!S_ISREG(status.st_mode)) return refuse(ReasonCode::not_a_file, "not a regular file");
  result.identity = identity_of(status);

  const Examination* const known = memo == nullptr ? nullptr : memo->find(result.resolved, result.identity);
  Examination found = known != nullptr ? *known : read_object(file.get(), result.identity.size, result.resolved);
  if (memo != nullptr && known == nullptr) memo->keep(result.resolved, result.identity, found);
  result.sha256 = std::move(found.sha256);
  result.metadata = std::move(found.metadata);
  result.reason = std::move(found.reason);
  if (result.metadata) result.id = result.metadata->id;
  if (result.reason.code == ReasonCode::usable) result.state = PluginState::usable;
  return result;
}

bool same_content(const Candidate& a, const Candidate& b) {
  if (a.identity.size != b.identity.size) return false;
  const Descriptor first(a.resolved);
  const Descriptor second(b.resolved);
  if (first.get() < 0 || second.get() < 0) return false;
  const FileSource left(first.get(), a.identity.size);
  const FileSource right(second.get(), b.identity.size);
  std::vector<std::byte> x(1u << 16);
  std::vector<std::byte> y(1u << 16);
  for (std::uint64_t at = 0; at < a.identity.size; at += x.size()) {
    const auto piece = static_cast<std::size_t>(std::min<std::uint64_t>(x.size(), a.identity.size - at));
    if (!left.read(at, std::span(x).first(piece)) || !right.read(at, std::span(y).first(piece))) return false;
    if (std::memcmp(x.data(), y.data(), piece) != 0) return false;
  }
  return true;
}

/// Names of the files in question, sorted. Tells in `reason` if the directory cannot be read.
std::vector<std::string> list_files(const fs::path& path, Reason& reason) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entry(path, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (name.size() > kPrefix.size() + kSuffix.size() && name.starts_with(kPrefix) && name.ends_with(kSuffix)) {
      names.push_back(std::move(name));
    }
  }
  if (error) reason = {ReasonCode::unreadable, error.message()};
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

Stage stage_of(const Candidate& candidate) {
  switch (candidate.reason.code) {
    case ReasonCode::unreadable:
    case ReasonCode::not_a_file:
    case ReasonCode::unsafe_owner:
    case ReasonCode::unsafe_mode:
      return Stage::file;
    case ReasonCode::no_metadata:
    case ReasonCode::bad_metadata:
      return Stage::metadata;
    case ReasonCode::abi_incompatible:  // by its record, or by the name of its query function
      return candidate.metadata ? Stage::metadata : Stage::object;
    case ReasonCode::untrusted:
      return Stage::trust;
    default:
      return Stage::object;
  }
}

std::optional<FileIdentity> identify(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return identity_of(status);
}

std::optional<FileIdentity> identify(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return std::nullopt;
  return identity_of(status);
}

std::vector<SearchDirectory> search_path(const RegistryOptions& options) {
  std::vector<SearchDirectory> result;
  if (options.default_paths) {
    if (const std::string only = environment("FASTPATH_PLUGIN_ONLY_PATH"); !only.empty()) {
      add_list(result, only, "FASTPATH_PLUGIN_ONLY_PATH");
      return result;
    }
  }
  for (const fs::path& path : options.search_paths) result.push_back(directory(path, "api"));
  if (!options.default_paths) return result;
  add_list(result, environment("FASTPATH_PLUGIN_PATH"), "FASTPATH_PLUGIN_PATH");
  fs::path data = environment("XDG_DATA_HOME");
  // The base directory specification says that a relative value is invalid and must be ignored.
  if (!data.is_absolute()) {
    const fs::path home = environment("HOME");
    data = home.is_absolute() ? home / ".local/share" : fs::path();
  }
  if (!data.empty()) result.push_back(directory(data / "fastpath/plugins", "user"));
  if (const fs::path own = own_directory(); !own.empty()) {
    result.push_back(directory(own / "fastpath/plugins", "library"));
  }
  result.push_back(directory(FASTPATH_SYSTEM_PLUGIN_DIR, "system"));
  return result;
}

std::vector<Candidate> scan(std::vector<SearchDirectory>& directories, const RegistryOptions& options,
                            ExaminationMemo* memo) {
  std::vector<Candidate> result;
  std::vector<FileIdentity> seen;
  for (SearchDirectory& directory : directories) {
    if (!directory.exists) continue;
    // The library's own directory is often the system's: one place is read once.
    const auto place = identify(directory.path);
    if (place && std::any_of(seen.begin(), seen.end(), [&](const auto& other) { return other.same_file(*place); })) {
      continue;
    }
    if (place) seen.push_back(*place);
    for (const std::string& name : list_files(directory.path, directory.reason)) {
      result.push_back(examine((directory.path / name).lexically_normal(), memo));
    }
  }

  for (std::size_t i = 0; i < result.size(); ++i) {
    Candidate& candidate = result[i];
    if (candidate.state != PluginState::usable) continue;
    if (!matches(options.enable, candidate.id) || matches(options.disable, candidate.id)) {
      candidate.state = PluginState::disabled;
      candidate.reason = {ReasonCode::disabled, fmt::format("'{}' is switched off by configuration", candidate.id)};
      continue;
    }
    for (std::size_t j = 0; j < i && candidate.state == PluginState::usable; ++j) {
      const Candidate& earlier = result[j];
      if (earlier.state != PluginState::usable) continue;
      const bool same_file = earlier.identity.same_file(candidate.identity);
      if (same_file || (earlier.id == candidate.id && same_content(earlier, candidate))) {
        candidate.state = PluginState::shadowed;
        candidate.reason = {
            ReasonCode::duplicate,
            fmt::format("{} as {}", same_file ? "the same file" : "the same content", earlier.path.string())};
      } else if (earlier.id == candidate.id) {
        candidate.state = PluginState::shadowed;
        candidate.reason = {ReasonCode::shadowed,
                            fmt::format("'{}' was found earlier: {}", candidate.id, earlier.path.string())};
      }
    }
  }
  return result;
}

}  // namespace fastpath::plugin
