#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>

#include "command_line.hpp"
#include "fastpath/error.hpp"
#include "fastpath/hub.hpp"
#include "fastpath/measurement.hpp"
#include "fastpath/registry.hpp"
#include "json.hpp"
#include "table.hpp"
#include "terminal.hpp"

namespace fastpath::cli {

namespace {

namespace fs = std::filesystem;

bool is_hash(const std::string& name) {
  return name.size() == 64 && name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// What lies below a directory that fastpath writes.
struct Kept {
  std::string name;
  fs::path directory;
  std::string what;  ///< And what removes it, where that is not this command.
  bool is_cache = true;
  /// Whether a file is one of ours that may go: nothing else is touched.
  std::function<bool(const fs::path& file)> ours = {};
  std::size_t files = 0, others = 0;
  std::uintmax_t bytes = 0;
  std::string problem = {};  ///< Why it cannot be read.
};

/// Calls `each` for every file below a directory; links are not followed.
void for_each_file(const fs::path& directory, const std::function<void(const fs::directory_entry&)>& each) {
  std::error_code error;
  if (!fs::exists(directory, error)) return;
  for (fs::recursive_directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_directory(ignored)) each(*entry);
  }
  if (error) throw Error(ErrorCode::io, fmt::format("{}: cannot be read: {}", directory.string(), error.message()));
}

std::vector<Kept> directories() {
  RegistryOptions options;
  options.default_paths = false;  // no plugin is looked at
  const fs::path cache = PluginRegistry(options).scan_report().cache_directory;
  std::vector<Kept> result;
  if (!cache.empty()) {
    result.push_back({"probe", cache / "probe", "what trying plugins found", true,
                      [](const fs::path& file) { return file.extension() == ".txt"; }});
    result.push_back({"gate", cache / "gate", "which kernels agreed with the reference", true,
                      [](const fs::path& file) { return is_hash(file.filename().string()); }});
    result.push_back({"kernels", cache / "kernels", "compiled kernels for GPUs", true,
                      [](const fs::path& file) { return file.extension() == ".kernels"; }});
  }
  const MeasurementDirectories measured = MeasurementDirectories::defaults();
  if (!measured.user.empty()) {
    result.push_back({"measurements", measured.user, "fastpath tune --forget --all removes them", false});
  }
  for (const fs::path& hub : hub_directories()) {
    result.push_back({"models", hub, "fastpath hub remove NAME removes one", false});
  }
  for (Kept& kept : result) {
    try {
      for_each_file(kept.directory, [&](const fs::directory_entry& file) {
        if (kept.is_cache && !kept.ours(file.path())) {
          ++kept.others;
          return;
        }
        std::error_code ignored;
        const std::uintmax_t size = file.file_size(ignored);
        ++kept.files;
        kept.bytes += ignored ? 0 : size;
      });
    } catch (const Error& error) {  // one that cannot be read hides no other
      kept.problem = error.what();
    }
  }
  return result;
}

std::string size_text(std::uintmax_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  const double kib = static_cast<double>(bytes) / 1024;
  return kib < 1024 ? fmt::format("{:.1f} KiB", kib) : fmt::format("{:.1f} MiB", kib / 1024);
}

/// Removes what is ours. A process that uses it makes it anew.
void clear(Kept& kept) {
  std::vector<fs::path> files;
  for_each_file(kept.directory, [&](const fs::directory_entry& file) {
    if (kept.ours(file.path())) files.push_back(file.path());
  });
  for (const fs::path& file : files) {
    std::error_code error;
    fs::remove(file, error);
    if (error) throw Error(ErrorCode::io, fmt::format("{}: cannot be removed: {}", file.string(), error.message()));
  }
}

}  // namespace

int run_cache(const Arguments& arguments) {
  CommandLine line("fastpath cache", "[NAME...]", "what fastpath keeps between runs, and where");
  line.describe(
      "Lists the directories that fastpath writes, with the number and size of their\n"
      "files. --clear removes what is kept of plugins: all of it, or what is named:\n"
      "probe, gate, kernels. It is made anew when it is needed. Measurements and models\n"
      "are never removed here.");
  line.add()("clear", po::bool_switch(), "remove it");
  line.add()("json", po::bool_switch(), "print everything as JSON");
  line.operands("name", -1);
  line.example("fastpath cache");
  line.example("fastpath cache --clear kernels");
  if (!line.parse(arguments)) return 0;

  std::vector<Kept> all = directories();
  const std::vector<std::string> names = line.list("name");
  std::vector<std::string> known;
  for (const Kept& kept : all) {
    if (kept.is_cache) known.push_back(kept.name);
  }
  const bool clearing = line.get<bool>("clear");
  for (const std::string& name : names) {
    if (!clearing) line.fail(fmt::format("'{}': names are for --clear", one_line(name)));
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      line.fail(fmt::format("--clear: '{}' is unknown, expected probe, gate or kernels", one_line(name)));
    }
  }
  const auto wanted = [&](const Kept& kept) {
    return clearing && kept.is_cache &&
           (names.empty() || std::find(names.begin(), names.end(), kept.name) != names.end());
  };
  for (Kept& kept : all) {
    if (wanted(kept)) clear(kept);
  }
  if (line.get<bool>("json")) {
    Json json = {{"directories", Json::array()}};
    for (const Kept& kept : all) {
      json["directories"].push_back({{"name", kept.name},
                                     {"directory", kept.directory.string()},
                                     {"files", kept.files},
                                     {"bytes", kept.bytes},
                                     {"other_files", kept.others},
                                     {"cleared", wanted(kept)},
                                     {"problem", kept.problem.empty() ? Json(nullptr) : Json(kept.problem)}});
    }
    print_json(json, Layout::indented);
    return 0;
  }
  Table table;
  for (const char* title : {"what", "directory"}) table.column(title);
  table.column("files", Table::Align::right);
  table.column("size", Table::Align::right);
  table.column(clearing ? "" : "holds");
  for (const Kept& kept : all) {
    if (clearing && !wanted(kept)) continue;
    table.row({kept.name, one_line(kept.directory.string()), fmt::format("{}", kept.files), size_text(kept.bytes),
               !kept.problem.empty() ? one_line(kept.problem)
               : clearing            ? std::string("removed")
                                     : kept.what});
  }
  print(table.text());
  return 0;
}

}  // namespace fastpath::cli
