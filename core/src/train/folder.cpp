#include "train/folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "fastpath/error.hpp"
#include "io/file.hpp"

namespace fastpath::training {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLock = ".lock";
constexpr const char* kNewModel = ".model.new";
constexpr const char* kOldModel = ".model.old";

[[noreturn]] void fail(const fs::path& path, const std::string& action, const std::string& why) {
  throw Error(ErrorCode::io, fmt::format("{}: {}: {}", path.string(), action, why));
}

}  // namespace

RunFolder::RunFolder(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) fail(path_, "cannot make the folder", error.message());
  const fs::path lock = path_ / kLock;
  lock_ = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) fail(lock, "cannot open for writing", std::generic_category().message(errno));
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    const int cause = errno;
    ::close(lock_);
    if (cause != EWOULDBLOCK) fail(lock, "cannot lock", std::generic_category().message(cause));
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: another process is training in this folder", path_.string()));
  }
  for (const fs::directory_entry& entry : fs::directory_iterator(path_, error)) {
    const std::string name = entry.path().filename().string();
    const bool file = name.starts_with(".fastpath-") && name.ends_with(".tmp");
    const bool folder = name == kNewModel || name == kOldModel || name.starts_with("..model.new.partial-");
    if (file || folder) fs::remove_all(entry.path(), error);
  }
}

RunFolder::~RunFolder() {
  if (lock_ >= 0) ::close(lock_);
}

void RunFolder::write(const char* name, const std::string& text) const {
  io::ReplacingFile file(path_ / name);
  file.write(text);
  file.commit();
}

void RunFolder::append(const char* name, const std::string& line) const {
  const fs::path path = path_ / name;
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor < 0) fail(path, "cannot open for writing", std::generic_category().message(errno));
  const std::string text = line + "\n";
  std::size_t done = 0;
  int cause = 0;
  while (done < text.size() && cause == 0) {
    const ssize_t count = ::write(descriptor, text.data() + done, text.size() - done);
    if (count >= 0) done += static_cast<std::size_t>(count);
    if (count < 0 && errno != EINTR) cause = errno;
  }
  if (::close(descriptor) != 0 && cause == 0) cause = errno;
  if (cause != 0) fail(path, "cannot write", std::generic_category().message(cause));
}

void RunFolder::write_model(const fs::path& folder, const Model& model) const {
  std::error_code error;
  const fs::path fresh = path_ / kNewModel, old = path_ / kOldModel;
  fs::remove_all(fresh, error);
  fs::remove_all(old, error);
  model.save(fresh);
  if (fs::exists(folder, error)) {
    fs::rename(folder, old, error);
    if (error) fail(folder, "cannot be replaced", error.message());
  }
  fs::rename(fresh, folder, error);
  if (error) {
    const std::string why = error.message();
    fs::rename(old, folder, error);
    fail(folder, "cannot be made", why);
  }
  fs::remove_all(old, error);
}

void RunFolder::remove_model(const fs::path& folder) const {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) fail(folder, "cannot be removed", error.message());
}

}  // namespace fastpath::training
