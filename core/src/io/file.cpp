#include "io/file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

#include "fastpath/error.hpp"

namespace fastpath::io {
namespace {

std::string reason(int error) { return std::generic_category().message(error); }

/// A file descriptor that is closed with its scope.
class Descriptor {
 public:
  explicit Descriptor(const std::filesystem::path& path, int flags = 0)
      : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags)) {
    if (value_ < 0) {
      const int error = errno;
      const bool absent = error == ENOENT || error == ENOTDIR;
      throw Error(absent ? ErrorCode::not_found : ErrorCode::io,
                  fmt::format("{}: cannot open for reading: {}", path.string(), reason(error)));
    }
  }
  ~Descriptor() { ::close(value_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const noexcept { return value_; }

 private:
  int value_;
};

struct stat status_of(int descriptor, const std::filesystem::path& path) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    throw Error(ErrorCode::io, fmt::format("{}: cannot examine: {}", path.string(), reason(errno)));
  }
  if (S_ISDIR(status.st_mode)) throw Error(ErrorCode::io, fmt::format("{}: is a directory, not a file", path.string()));
  return status;
}

/// For files that must be regular: a pipe is not waited for.
constexpr int kRegularOnly = O_NONBLOCK | O_NOCTTY;

struct stat regular_status_of(int descriptor, const std::filesystem::path& path) {
  const struct stat status = status_of(descriptor, path);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::io, fmt::format("{}: is a pipe or a device, expected a regular file", path.string()));
  }
  return status;
}

/// Appends what a descriptor gives until its end, or until there are more than `most` bytes.
void read_all(int descriptor, const std::filesystem::path& path, std::size_t most, std::string& result) {
  std::array<char, 65536> chunk;
  while (result.size() <= most) {
    const ssize_t count = ::read(descriptor, chunk.data(), chunk.size());
    if (count == 0) return;
    if (count < 0) {
      if (errno == EINTR) continue;
      throw Error(ErrorCode::io, fmt::format("{}: cannot read: {}", path.string(), reason(errno)));
    }
    result.append(chunk.data(), static_cast<std::size_t>(count));
  }
}

std::size_t most_text() {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  constexpr std::size_t kUnknown = std::size_t{4} << 30;
  return pages > 0 && page > 0 ? static_cast<std::size_t>(pages) * static_cast<std::size_t>(page) / 4 : kUnknown;
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file(path, kRegularOnly);
  const struct stat status = regular_status_of(file.get(), path);
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;  // an empty mapping is refused by the system
  void* data = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) {
    throw Error(ErrorCode::io, fmt::format("{}: cannot map {} bytes: {}", path.string(), size_, reason(errno)));
  }
  data_ = data;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

std::string read_text(const std::filesystem::path& path) {
  const Descriptor file(path);
  const struct stat status = status_of(file.get(), path);
  const std::size_t most = most_text();
  std::string result;
  bool fits = !S_ISREG(status.st_mode) || static_cast<std::size_t>(status.st_size) <= most;
  try {
    if (fits && S_ISREG(status.st_mode)) result.reserve(static_cast<std::size_t>(status.st_size));
    if (fits) read_all(file.get(), path, most, result);
    fits = fits && result.size() <= most;
  } catch (const std::bad_alloc&) {
    const std::size_t had = result.size();
    std::string().swap(result);
    throw Error(ErrorCode::out_of_memory,
                fmt::format("{}: no memory for its text, of which {} bytes were read", path.string(), had));
  }
  if (!fits) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("{}: has more than {} bytes, a quarter of this machine's memory", path.string(), most));
  }
  return result;
}

std::filesystem::file_type type_of(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::status_known(status)) {
    throw Error(ErrorCode::io, fmt::format("{}: cannot be examined: {}", path.string(), error.message()));
  }
  return status.type();
}

std::string read_small_file(const std::filesystem::path& path, std::size_t most) {
  const Descriptor file(path, kRegularOnly);
  (void)regular_status_of(file.get(), path);
  std::string result;
  read_all(file.get(), path, most, result);
  if (result.size() > most) {
    throw Error(ErrorCode::bad_file, fmt::format("{}: has more than {} bytes", path.string(), most));
  }
  return result;
}

ReplacingFile::ReplacingFile(const std::filesystem::path& path) : path_(path), target_(path) {
  // As open() would: through every link to what the last one names, be it there or not.
  std::error_code status;
  for (int links = 0; std::filesystem::is_symlink(target_, status); ++links) {
    constexpr int kMostLinks = 40;
    const std::filesystem::path next = std::filesystem::read_symlink(target_, status);
    errno = links == kMostLinks ? ELOOP : status.value();
    if (errno != 0) fail("cannot follow the symbolic link");
    target_ = target_.parent_path() / next;
  }
  struct stat existing {};
  const bool exists = ::stat(target_.c_str(), &existing) == 0;
  if (exists && S_ISDIR(existing.st_mode)) {
    throw Error(ErrorCode::io, fmt::format("{}: is a directory, not a file", path_.string()));
  }
  if (exists && !S_ISREG(existing.st_mode)) {
    descriptor_ = ::open(target_.c_str(), O_WRONLY | O_CLOEXEC);
    if (descriptor_ < 0) fail("cannot open for writing");
    return;
  }
  // A name that another process, or another thread of this one, may be using at this moment is left alone.
  static std::atomic<unsigned> counter{0};
  for (int attempt = 0; attempt < 100 && descriptor_ < 0; ++attempt) {
    temporary_ = target_.parent_path() / fmt::format(".fastpath-{}-{}.tmp", ::getpid(), counter.fetch_add(1));
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0 && errno != EEXIST) break;
  }
  if (descriptor_ < 0) fail("cannot create a temporary file beside it");
  if (exists && ::fchmod(descriptor_, existing.st_mode & 07777) != 0) {
    const int error = errno;
    discard();
    errno = error;
    fail("cannot keep its permissions");
  }
}

ReplacingFile::~ReplacingFile() { discard(); }

void ReplacingFile::discard() noexcept {
  if (descriptor_ < 0) return;
  ::close(std::exchange(descriptor_, -1));
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void ReplacingFile::fail(const char* action) const {
  throw Error(ErrorCode::io, fmt::format("{}: {}: {}", path_.string(), action, reason(errno)));
}

void ReplacingFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      fail("cannot write");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

void ReplacingFile::commit() {
  if (temporary_.empty()) {
    if (::close(std::exchange(descriptor_, -1)) != 0) fail("cannot write");
    return;
  }
  if (::fsync(descriptor_) != 0) fail("cannot flush");
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail("cannot rename the temporary file");
  temporary_.clear();
  ::close(std::exchange(descriptor_, -1));
  // The rename itself survives a power cut only once the directory is flushed; not every file system can.
  const std::filesystem::path directory = target_.has_parent_path() ? target_.parent_path() : ".";
  const int folder = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    (void)::fsync(folder);
    ::close(folder);
  }
}

}  // namespace fastpath::io
