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
#include <climits>
#include <cstdlib>
#include <memory>
#include <system_error>

#include "fastpath/plugin.h"
#include "sha256.hpp"
#include "trust.hpp"

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

SearchDirectory directory(const fs::path& path, std::string source, const OwnerRules& rules) {
  SearchDirectory result{path, std::move(source), false, {}};
  if (!path.is_absolute()) {
    // What a relative path means changes with the current directory, from where nothing may be loaded.
    result.reason = {ReasonCode::relative_path,
                     fmt::format("'{}' is relative; search directories must be absolute", path.string())};
    return result;
  }
  Located located = locate(path, rules);
  result.exists = located.kind == Located::Kind::directory;
  result.reason = std::move(located.reason);
  if (located.kind == Located::Kind::file || result.reason.code == ReasonCode::not_a_file) {
    result.reason = {ReasonCode::no_directory, "not a directory"};
  }
  return result;
}

/// A directory that somebody else than the owner of this process's rights named.
SearchDirectory ignored(const fs::path& path, std::string source) {
  return {path,
          std::move(source),
          false,
          {ReasonCode::ignored_elevated, "not searched, because this process has elevated rights"}};
}

/// Calls `add` with each entry of a list of directories.
template <class Add>
void for_each_entry(const std::string& list, Add add) {
  for (std::size_t start = 0; start <= list.size();) {
    const std::size_t colon = std::min(list.find(':', start), list.size());
    // An empty entry means the current directory to some tools; here it means nothing.
    if (colon > start) add(fs::path(list.substr(start, colon - start)));
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

/// What a file is called where its metadata does not say it.
std::string id_from(std::string_view name) {
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  if (name.ends_with(kSuffix)) name.remove_suffix(kSuffix.size());
  return std::string(name);
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
Examination read_object(const ByteSource& file, const fs::path& resolved) {
  Examination result;
  result.sha256 = sha256_of(file).value_or("");
  ObjectReport report = inspect_object(file);
  result.metadata = std::move(report.metadata);
  result.reason = std::move(report.reason);
  if (result.reason.code == ReasonCode::usable) result.reason = confirm_query_symbol(resolved);
  return result;
}

/// What a symbolic link of the directory leads to; empty if it is none.
std::string link_target(const Located& directory, const std::string& name) {
  std::array<char, PATH_MAX> target;
  const ssize_t size = ::readlinkat(directory.descriptor.get(), name.c_str(), target.data(), target.size());
  return size < 0 ? std::string() : std::string(target.data(), static_cast<std::size_t>(size));
}

/// Looks at one file without loading it.
/// @param directory  The one that it was found in, or null where it is named by its path.
Candidate examine(const fs::path& path, const Located* directory, const OwnerRules& rules, ExaminationMemo* memo) {
  Candidate result;
  result.path = path;
  const std::string name = path.filename().string();
  result.id = id_from(name);
  const auto refuse = [&](ReasonCode code, std::string text) {
    result.reason = {code, std::move(text)};
    return result;
  };

  Located file = directory != nullptr ? locate_in(*directory, name, rules) : locate(path, rules);
  if (file.kind == Located::Kind::directory) return refuse(ReasonCode::not_a_file, "not a regular file");
  if (file.kind == Located::Kind::nothing) {
    const std::string target = directory == nullptr ? std::string() : link_target(*directory, name);
    if (!target.empty() && file.reason.code == ReasonCode::no_directory) {
      return refuse(ReasonCode::not_a_file, fmt::format("a symbolic link to '{}', which leads nowhere", target));
    }
    const bool known = file.reason.code == ReasonCode::not_a_file || file.reason.code == ReasonCode::relative_path;
    return refuse(known ? file.reason.code : ReasonCode::unreadable, std::move(file.reason.text));
  }
  result.resolved = std::move(file.path);
  struct stat status {};
  if (::fstat(file.descriptor.get(), &status) != 0) return refuse(ReasonCode::unreadable, error_text(errno));
  result.identity = identity_of(status);

  const FileSource bytes(file.descriptor.get(), result.identity.size);
  if (!file.safe()) {
    // Not of interest beyond what it says of itself.
    result.metadata = inspect_object(bytes).metadata;
    if (result.metadata) result.id = result.metadata->id;
    result.unsafe_directory = file.unsafe_directory;
    return refuse(file.reason.code, std::move(file.reason.text));
  }
  const Examination* const known = memo == nullptr ? nullptr : memo->find(result.resolved, result.identity);
  Examination found = known != nullptr ? *known : read_object(bytes, result.resolved);
  if (found.sha256.empty()) return refuse(ReasonCode::unreadable, "a part of it cannot be read");
  if (memo != nullptr && known == nullptr) memo->keep(result.resolved, result.identity, found);
  result.sha256 = std::move(found.sha256);
  result.metadata = std::move(found.metadata);
  result.reason = std::move(found.reason);
  if (result.metadata) result.id = result.metadata->id;
  if (result.reason.code == ReasonCode::usable) result.state = PluginState::usable;
  return result;
}

/// Looks a file up in the list of allowed plugins.
void check_trust(Candidate& candidate, const AllowList& allowed, const RegistryOptions& options) {
  if (candidate.sha256.empty()) return;
  if (allowed.contains(candidate.sha256)) {
    candidate.trust = "trusted";
    return;
  }
  candidate.trust = "not_listed";
  if (options.trust != TrustMode::require || candidate.state != PluginState::usable) return;
  candidate.state = PluginState::rejected;
  candidate.reason = {ReasonCode::untrusted,
                      fmt::format("its SHA-256 {} is not in {}", candidate.sha256, options.allow_list.string())};
}

/// Names of the files in question, sorted. Tells in `reason` if the directory cannot be read.
std::vector<std::string> list_files(const Located& directory, Reason& reason) {
  const int opened = ::openat(directory.descriptor.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const std::unique_ptr<DIR, int (*)(DIR*)> stream(opened < 0 ? nullptr : ::fdopendir(opened), ::closedir);
  if (!stream) {
    reason = {ReasonCode::unreadable, error_text(errno)};
    if (opened >= 0) ::close(opened);
    return {};
  }
  std::vector<std::string> names;
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(stream.get());
    if (entry == nullptr) break;
    std::string name = entry->d_name;
    if (name.size() > kPrefix.size() + kSuffix.size() && name.starts_with(kPrefix) && name.ends_with(kSuffix)) {
      names.push_back(std::move(name));
    }
  }
  if (errno != 0) reason = {ReasonCode::unreadable, error_text(errno)};
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
    case ReasonCode::relative_path:
      return candidate.unsafe_directory ? Stage::directory : Stage::file;
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

std::vector<SearchDirectory> search_path(const RegistryOptions& options, bool elevated) {
  std::vector<SearchDirectory> result;
  const OwnerRules rules = owner_rules(options.check_owner, options.allow_group_writable, elevated);
  const auto add = [&](const fs::path& path, const char* source) { result.push_back(directory(path, source, rules)); };
  const auto add_users = [&](const fs::path& path, const char* source) {
    if (elevated) {
      result.push_back(ignored(path, source));
    } else {
      add(path, source);
    }
  };
  const auto add_variable = [&](const char* name) {
    for_each_entry(environment(name), [&](const fs::path& path) { add_users(path, name); });
  };

  if (options.default_paths && !environment("FASTPATH_PLUGIN_ONLY_PATH").empty()) {
    add_variable("FASTPATH_PLUGIN_ONLY_PATH");
    if (!elevated) return result;
  }
  for (const fs::path& path : options.search_paths) add(path, "api");
  if (!options.default_paths) return result;
  add_variable("FASTPATH_PLUGIN_PATH");
  fs::path data = environment("XDG_DATA_HOME");
  // The base directory specification says that a relative value is invalid and must be ignored.
  if (!data.is_absolute()) {
    const fs::path home = environment("HOME");
    data = home.is_absolute() ? home / ".local/share" : fs::path();
  }
  if (!data.empty()) add_users(data / "fastpath/plugins", "user");
  if (const fs::path own = own_directory(); !own.empty()) add(own / "fastpath/plugins", "library");
  add(FASTPATH_SYSTEM_PLUGIN_DIR, "system");
  return result;
}

std::vector<Candidate> scan(std::vector<SearchDirectory>& directories, const RegistryOptions& options,
                            ExaminationMemo* memo, bool elevated) {
  const OwnerRules rules = owner_rules(options.check_owner, options.allow_group_writable, elevated);
  AllowList allowed;
  if (options.trust != TrustMode::off) {
    allowed = AllowList::read(options.allow_list, rules);
    memo = nullptr;  // what the list is about is read anew, whatever was kept
  }

  std::vector<Candidate> result;
  for (const fs::path& path : options.files) result.push_back(examine(path, nullptr, rules, memo));
  std::vector<FileIdentity> seen;
  for (SearchDirectory& directory : directories) {
    if (!directory.exists) continue;
    const Located place = locate(directory.path, rules);
    struct stat status {};
    if (place.kind != Located::Kind::directory || ::fstat(place.descriptor.get(), &status) != 0) {
      directory.exists = false;
      directory.reason = {ReasonCode::no_directory, "the directory went away"};
      continue;
    }
    // The library's own directory is often the system's: one place is read once.
    const FileIdentity identity = identity_of(status);
    if (std::any_of(seen.begin(), seen.end(), [&](const auto& other) { return other.same_file(identity); })) continue;
    seen.push_back(identity);
    for (const std::string& name : list_files(place, directory.reason)) {
      result.push_back(examine((directory.path / name).lexically_normal(), &place, rules, memo));
    }
  }
  for (Candidate& candidate : result) {
    candidate.trust = "unchecked";
    if (options.trust != TrustMode::off) check_trust(candidate, allowed, options);
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
      if (same_file || earlier.sha256 == candidate.sha256) {
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
