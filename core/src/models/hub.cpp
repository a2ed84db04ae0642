#include "fastpath/hub.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <system_error>

#include "fastpath/error.hpp"
#include "fastpath/model.hpp"
#include "io/file.hpp"
#include "io/printable.hpp"
#include "plugin/sha256.hpp"

namespace fastpath {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSums = "SHA256SUMS";
constexpr const char* kReadme = "README.md";
constexpr std::array kNeeded{"config.json", "model.safetensors"};
constexpr std::size_t kLargestSums = std::size_t{1} << 20;

bool is_name(const std::string& name) {
  const auto good = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  };
  return !name.empty() && name.size() <= 63 && name[0] != '.' && name[0] != '-' &&
         std::all_of(name.begin(), name.end(), good);
}

/// What add_to_hub() makes before the rename; it stays where a process is killed.
bool is_leftover(const std::string& name) {
  return name.starts_with('.') &&
         (name.find(".partial-") != std::string::npos || name.find(".removed-") != std::string::npos);
}

/// The checksum of a file. @throws Error(io) or Error(not_found), naming it.
std::string checksum(const fs::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  std::optional<std::string> result;
  int error = errno;
  struct stat status {};
  if (descriptor >= 0) {
    if (::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode)) {
      result = plugin::sha256_of(plugin::FileSource(descriptor, static_cast<std::uint64_t>(status.st_size)));
    }
    error = result ? 0 : EIO;
    ::close(descriptor);
  }
  if (result) return *result;
  throw Error(error == ENOENT ? ErrorCode::not_found : ErrorCode::io,
              fmt::format("{}: cannot be read: {}", path.string(), std::generic_category().message(error)));
}

/// What a SHA256SUMS says, by file name. `problem` names a line that is none.
std::map<std::string, std::string> read_sums(const fs::path& path, std::string& problem) {
  std::map<std::string, std::string> result;
  const std::string text = io::read_small_file(path, kLargestSums);
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const std::string line = text.substr(start, end - start);
    start = end + 1;
    if (line.empty()) continue;
    const bool good = line.size() > 66 && line.find_first_not_of("0123456789abcdef") == 64 && line[64] == ' ' &&
                      (line[65] == ' ' || line[65] == '*') && line.find('/') == std::string::npos;
    if (!good) {
      problem = fmt::format("{} has the line {}, expected a checksum, two spaces and the name of a file", kSums,
                            io::printable(line));
      return result;
    }
    result[line.substr(66)] = line.substr(0, 64);
  }
  for (const char* name : kNeeded) {
    if (result.count(name) == 0) problem = fmt::format("{} does not list {}", kSums, name);
  }
  return result;
}

/// What is known of a folder. @throws Error(io) if it cannot be read.
HubModel examine(const fs::path& directory, bool checksums) {
  HubModel model;
  model.name = directory.filename().string();
  model.directory = directory;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    const std::uintmax_t size = fs::file_size(entry->path(), ignored);
    if (!ignored) model.bytes += size;
  }
  if (error) {
    throw Error(ErrorCode::io, fmt::format("{}: cannot be read: {}", directory.string(), error.message()));
  }
  const auto broken = [&](std::string problem) {
    model.state = HubModel::State::broken;
    model.problem = std::move(problem);
    return model;
  };
  if (is_leftover(model.name)) return broken("left by a command that was interrupted; it may be removed by hand");
  std::vector<std::string> missing;
  for (const char* name : kNeeded) {
    if (io::type_of(directory / name) == fs::file_type::not_found) missing.emplace_back(name);
  }
  std::map<std::string, std::string> sums;
  const bool listed = io::type_of(directory / kSums) != fs::file_type::not_found;
  if (listed) {
    std::string problem;
    sums = read_sums(directory / kSums, problem);
    if (!problem.empty()) return broken(std::move(problem));
    for (const auto& [name, sum] : sums) {
      const bool counted = std::find(missing.begin(), missing.end(), name) != missing.end();
      if (!counted && io::type_of(directory / name) == fs::file_type::not_found) missing.push_back(name);
    }
  }
  if (!missing.empty()) return broken(fmt::format("{} missing: copied in part", fmt::join(missing, ", ")));
  if (!listed) {
    model.state = HubModel::State::no_checksums;
    return model;
  }
  std::vector<std::string> wrong;
  if (checksums) {
    for (const auto& [name, sum] : sums) {
      if (checksum(directory / name) != sum) wrong.push_back(name);
    }
  }
  if (wrong.empty()) return model;
  return broken(fmt::format("{} not of the checksum in {}: copied in part, or changed", fmt::join(wrong, ", "), kSums));
}

std::string joined(const std::vector<fs::path>& hubs) {
  std::vector<std::string> names;
  for (const fs::path& hub : hubs) names.push_back(hub.string());
  return fmt::format("{}", fmt::join(names, ", "));
}

void write_file(const fs::path& path, std::string_view text) {
  io::ReplacingFile file(path);
  file.write(text);
  file.commit();
}

/// Copies a file and says its checksum, which the copy was found to have.
std::string copy_and_sum(const fs::path& from, const fs::path& to) {
  {
    const io::MappedFile source(from);
    io::ReplacingFile file(to);
    file.write(source.bytes());
    file.commit();
  }
  std::string before = checksum(from);
  if (checksum(to) != before) {
    throw Error(ErrorCode::io,
                fmt::format("{}: changed while it was copied, or the copy is not what was written", from.string()));
  }
  return before;
}

std::string readme(const Model& model, const std::string& name) {
  return fmt::format(
      "# {}\n\nA model of the architecture {}, stored in {}.\n\n- elements (atomic numbers): {}\n- cutoff: {} A\n- "
      "layers: {}\n"
      "- heads: {}\n- parameters: {}\n\nWhere it comes from and what it may be used for is not known: whoever knows "
      "may write "
      "it here\nbefore the folder is added to a hub.\n",
      name, model.architecture(), to_string(model.stored_dtype()), fmt::join(model.atomic_numbers(), ", "),
      model.r_max(), model.num_interactions(), fmt::join(model.heads(), ", "), model.parameter_count());
}

}  // namespace

namespace {

bool is_dead_link(const fs::path& path) {
  std::error_code ignored;
  return fs::is_symlink(fs::symlink_status(path, ignored)) && !fs::exists(path, ignored);
}

[[noreturn]] void refuse_dead_link(const fs::path& path) {
  std::error_code ignored;
  throw Error(ErrorCode::bad_file,
              fmt::format("model '{}': {} is a link to {}, which is not there", path.filename().string(), path.string(),
                          fs::read_symlink(path, ignored).string()));
}

}  // namespace

std::string_view to_string(HubModel::State state) noexcept {
  switch (state) {
    case HubModel::State::whole:
      return "whole";
    case HubModel::State::no_checksums:
      return "no checksums";
    case HubModel::State::broken:
      break;
  }
  return "broken";
}

std::vector<fs::path> hub_directories() {
  std::vector<fs::path> result;
  if (const char* hubs = std::getenv("FASTPATH_HUB"); hubs != nullptr && *hubs != '\0') {
    const std::string_view text = hubs;
    for (std::size_t start = 0; start <= text.size();) {
      const std::size_t end = std::min(text.find(':', start), text.size());
      if (end > start) result.emplace_back(text.substr(start, end - start));
      start = end + 1;
    }
    return result;
  }
  // The base directory specification says that a relative value is invalid and must be ignored.
  if (const char* data = std::getenv("XDG_DATA_HOME"); data != nullptr && fs::path(data).is_absolute()) {
    result.push_back(fs::path(data) / "fastpath/models");
  } else if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    result.push_back(fs::path(home) / ".local/share/fastpath/models");
  }
  return result;
}

std::vector<HubModel> hub_models(bool checksums) {
  std::vector<HubModel> result;
  std::set<std::string> seen;
  for (const fs::path& hub : hub_directories()) {
    if (io::type_of(hub) != fs::file_type::directory) continue;
    std::vector<fs::path> folders;
    std::error_code error;
    for (fs::directory_iterator entry(hub, error), end; !error && entry != end; entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      const bool hidden = name.starts_with('.') && !is_leftover(name);
      std::error_code ignored;
      if (!hidden && (fs::is_directory(entry->path(), ignored) || is_dead_link(entry->path()))) {
        folders.push_back(entry->path());
      }
    }
    if (error) throw Error(ErrorCode::io, fmt::format("{}: cannot be read: {}", hub.string(), error.message()));
    std::sort(folders.begin(), folders.end());
    for (const fs::path& folder : folders) {
      HubModel model;
      try {
        if (is_dead_link(folder)) refuse_dead_link(folder);
        model = examine(folder, checksums);
      } catch (const Error& problem) {  // one that cannot be read hides no other
        model.name = folder.filename().string();
        model.directory = folder;
        model.state = HubModel::State::broken;
        model.problem = problem.what();
      }
      model.shadowed = !seen.insert(model.name).second;
      result.push_back(std::move(model));
    }
  }
  return result;
}

HubModel find_hub_model(const std::string& name, bool checksums) {
  const std::vector<fs::path> hubs = hub_directories();
  const bool plain = !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
  for (const fs::path& hub : hubs) {
    if (plain && io::type_of(hub / name) == fs::file_type::directory) return examine(hub / name, checksums);
    if (plain && is_dead_link(hub / name)) refuse_dead_link(hub / name);
  }
  throw Error(ErrorCode::not_found,
              fmt::format("model '{}': {}", name,
                          hubs.empty() ? "there is no hub: none of FASTPATH_HUB, XDG_DATA_HOME and HOME is set"
                                       : fmt::format("no model of this name in {}", joined(hubs))));
}

HubModel add_to_hub(const fs::path& folder, const std::string& name, const fs::path& hub) {
  if (!is_name(name)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("'{}' is no name for a model: expected 1 to 63 letters, digits, '_', '-' and '.', not "
                            "starting with '.' or '-'",
                            name));
  }
  fs::path into = hub;
  if (into.empty()) {
    const std::vector<fs::path> hubs = hub_directories();
    if (hubs.empty()) {
      throw Error(ErrorCode::invalid_argument, "there is no hub: none of FASTPATH_HUB, XDG_DATA_HOME and HOME is set");
    }
    into = hubs.front();
  }
  if (io::type_of(folder) != fs::file_type::directory) {
    throw Error(ErrorCode::not_found, fmt::format("{}: there is no such model folder", folder.string()));
  }
  // An absolute path is no name of a hub. A folder with checksums must have them right, wherever it is.
  const fs::path source = fs::absolute(folder);
  const auto model = Model::load(source);
  if (const HubModel found = examine(source, true); found.state == HubModel::State::broken) {
    throw Error(ErrorCode::bad_file, fmt::format("{}: {}", folder.string(), found.problem));
  }
  const fs::path target = into / name;
  const fs::path temporary = into / fmt::format(".{}.partial-{}", name, ::getpid());
  std::error_code error;
  if (fs::exists(fs::symlink_status(target, error))) {
    throw Error(ErrorCode::io, fmt::format("{}: exists; remove it first, or take another name", target.string()));
  }
  try {
    fs::create_directories(into);
    fs::create_directory(temporary);
    std::string sums;
    for (const char* file : kNeeded)
      sums += fmt::format("{}  {}\n", copy_and_sum(source / file, temporary / file), file);
    if (io::type_of(source / kReadme) == fs::file_type::regular) {
      (void)copy_and_sum(source / kReadme, temporary / kReadme);
    } else {
      write_file(temporary / kReadme, readme(*model, name));
    }
    sums += fmt::format("{}  {}\n", checksum(temporary / kReadme), kReadme);
    write_file(temporary / kSums, sums);
    fs::rename(temporary, target);
  } catch (const fs::filesystem_error& failure) {
    fs::remove_all(temporary, error);
    throw Error(ErrorCode::io, fmt::format("{}: cannot be made: {}", target.string(), failure.code().message()));
  } catch (const Error& failure) {
    fs::remove_all(temporary, error);
    std::string text = failure.what();
    if (const std::size_t at = text.find(temporary.string()); at != std::string::npos) {
      text.replace(at, temporary.string().size(), target.string());
    }
    throw Error(failure.code(), text);
  }
  return examine(target, false);
}

HubModel remove_from_hub(const std::string& name) {
  HubModel model;
  try {
    model = find_hub_model(name, false);
  } catch (const Error& error) {
    // A link that leads nowhere can be removed, too.
    const std::vector<fs::path> hubs = hub_directories();
    const auto found = std::find_if(hubs.begin(), hubs.end(), [&](const fs::path& hub) {
      return name.find('/') == std::string::npos && is_dead_link(hub / name);
    });
    if (found == hubs.end()) throw;
    model.name = name;
    model.directory = *found / name;
    model.state = HubModel::State::broken;
    model.problem = error.what();
  }
  const fs::path& directory = model.directory;
  try {
    if (fs::is_symlink(fs::symlink_status(directory))) {
      fs::remove(directory);
      return model;
    }
    std::set<std::string> own{kNeeded.begin(), kNeeded.end()};
    own.insert({kSums, kReadme});
    if (io::type_of(directory / kSums) == fs::file_type::regular) {
      std::string ignored;
      for (const auto& [file, sum] : read_sums(directory / kSums, ignored)) own.insert(file);
    }
    std::vector<std::string> strange;
    for (const auto& entry : fs::directory_iterator(directory)) {
      const std::string file = entry.path().filename().string();
      if (own.count(file) == 0 || entry.is_directory()) strange.push_back(file);
    }
    std::sort(strange.begin(), strange.end());
    if (!strange.empty()) {
      throw Error(ErrorCode::io, fmt::format("{}: has what is not the model's: {}; nothing was removed",
                                             directory.string(), fmt::join(strange, ", ")));
    }
    const fs::path gone = directory.parent_path() / fmt::format(".{}.removed-{}", name, ::getpid());
    fs::rename(directory, gone);
    fs::remove_all(gone);
  } catch (const fs::filesystem_error& failure) {
    throw Error(ErrorCode::io, fmt::format("{}: cannot be removed: {}", directory.string(), failure.code().message()));
  }
  return model;
}

}  // namespace fastpath
