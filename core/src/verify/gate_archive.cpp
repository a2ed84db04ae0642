#include "verify/gate_archive.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "io/descriptor.hpp"
#include "plugin/probe_cache.hpp"
#include "plugin/sha256.hpp"

namespace fastpath::verify {
namespace {

namespace fs = std::filesystem;
using io::Descriptor;

constexpr std::size_t kHash = 64;             // hexadecimal digits
constexpr std::size_t kMostBytes = 1u << 20;  // some ten thousand kernels
constexpr std::size_t kMostFiles = 32;

std::string hash_of(const std::string& text) { return plugin::sha256_of(std::as_bytes(std::span(text))); }

/// A regular file that nobody but this user writes.
bool is_own(int descriptor, std::size_t& size) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return false;
  size = static_cast<std::size_t>(status.st_size);
  return S_ISREG(status.st_mode) && status.st_uid == ::geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

void drop_old_files(const fs::path& directory) {
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::error_code ignored;
    files.emplace_back(fs::last_write_time(entry->path(), ignored), entry->path());
  }
  std::sort(files.begin(), files.end(), std::greater<>());
  for (std::size_t i = kMostFiles; i < files.size(); ++i) fs::remove(files[i].second, error);
}

}  // namespace

void GateArchive::load() {
  if (std::exchange(loaded_, true) || directory_.empty()) return;
  file_ = directory_ / "gate" / hash_of(plugin::probe_environment({}));
  const Descriptor file(::open(file_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  std::size_t size = 0;
  if (file.get() < 0 || !is_own(file.get(), size)) return;
  if (size > kMostBytes) {
    ::unlink(file_.c_str());
    return;
  }
  std::string text(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    const ssize_t count = ::read(file.get(), text.data() + have, size - have);
    if (count <= 0) break;
    have += static_cast<std::size_t>(count);
  }
  std::string_view rest = std::string_view(text).substr(0, have);
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) break;  // torn
    if (end == kHash) passed_.emplace(rest.substr(0, end));
    rest.remove_prefix(end + 1);
  }
}

bool GateArchive::has_passed(const std::string& key) {
  const std::lock_guard lock(mutex_);
  load();
  return !passed_.empty() && passed_.count(hash_of(key)) > 0;
}

void GateArchive::keep(const std::string& key) {
  const std::lock_guard lock(mutex_);
  load();
  if (file_.empty()) return;
  const std::string hash = hash_of(key);
  if (!passed_.insert(hash).second) return;
  std::error_code error;
  if (fs::create_directories(file_.parent_path(), error)) {
    fs::permissions(file_.parent_path(), fs::perms::owner_all, error);
  }
  const bool fresh = !fs::exists(file_, error);
  const Descriptor file(::open(file_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  std::size_t size = 0;
  if (file.get() < 0 || !is_own(file.get(), size)) return;
  // A line that is written with one call is not mixed with those of other processes.
  const std::string line = hash + "\n";
  if (::write(file.get(), line.data(), line.size()) < 0) return;  // a full disk: tried again in the next process
  if (fresh) drop_old_files(file_.parent_path());
}

fs::path GateArchive::file() {
  const std::lock_guard lock(mutex_);
  load();
  return file_;
}

}  // namespace fastpath::verify
