#include "compile_cache.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <span>
#include <system_error>
#include <vector>

#include "fastpath/sdk/sha256.hpp"

namespace fastpath_gpu {
namespace {

namespace fs = std::filesystem;

// A file: magic, bytes of the content as a number, SHA-256 of the content in hexadecimal, the content.
constexpr std::string_view kMagic = "fastpath-kernel1";
constexpr std::size_t kHash = 64;
constexpr std::size_t kHead = kMagic.size() + sizeof(std::uint64_t) + kHash;
constexpr std::uint64_t kMostOfOne = std::uint64_t{64} << 20;  // the code of one program, with all its kernels
constexpr std::string_view kSuffix = ".kernels";
constexpr std::string_view kTemporary = "new-";

class File {
 public:
  explicit File(int descriptor) : descriptor_(descriptor) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const noexcept { return descriptor_; }

 private:
  int descriptor_;
};

std::string hash_of(std::string_view text) { return sdk::sha256_of(std::as_bytes(std::span(text))); }

/// Numbers and texts one after the other, each text after its length.
class Writer {
 public:
  void number(std::int64_t value) { text_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void bytes(std::string_view bytes) {
    number(static_cast<std::int64_t>(bytes.size()));
    text_ += bytes;
  }
  const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}
  /// Once something was not there, everything is zero and empty.
  std::int64_t number() {
    std::int64_t value = 0;
    const std::string_view bytes = take(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string_view bytes() {
    const std::int64_t size = number();
    if (size < 0) good_ = false;
    return take(good_ ? static_cast<std::size_t>(size) : 0);
  }
  bool complete() const noexcept { return good_ && text_.empty(); }
  bool good() const noexcept { return good_; }

 private:
  std::string_view take(std::size_t size) {
    if (!good_ || size > text_.size()) {
      good_ = false;
      return {};
    }
    const std::string_view result = text_.substr(0, size);
    text_.remove_prefix(size);
    return result;
  }
  std::string_view text_;
  bool good_ = true;
};

std::string content_of(const CompileKey& key, const Binary& binary) {
  Writer content;
  content.bytes(key.source);
  content.bytes(key.compiler);
  content.number(static_cast<std::int64_t>(binary.resources.size()));
  for (const KernelResources& kernel : binary.resources) {
    content.bytes(kernel.kernel);
    for (const std::int64_t value : {kernel.registers, kernel.shared_bytes, kernel.spill_bytes, kernel.code_bytes}) {
      content.number(value);
    }
  }
  content.bytes({reinterpret_cast<const char*>(binary.code.data()), binary.code.size()});
  return content.text();
}

/// Nothing for a text that is not all of what content_of() writes, or that belongs to another key.
std::optional<Binary> binary_of(std::string_view text, const CompileKey& key) {
  Reader content(text);
  if (content.bytes() != key.source) return std::nullopt;
  const std::string_view compiler = content.bytes();
  if (!key.compiler.empty() && compiler != key.compiler) return std::nullopt;
  Binary result;
  const std::int64_t kernels = content.number();
  for (std::int64_t i = 0; i < kernels && content.good(); ++i) {
    KernelResources& kernel = result.resources.emplace_back();
    kernel.kernel = content.bytes();
    for (std::int64_t* value : {&kernel.registers, &kernel.shared_bytes, &kernel.spill_bytes, &kernel.code_bytes}) {
      *value = content.number();
    }
  }
  const std::string_view code = content.bytes();
  if (!content.complete() || code.empty()) return std::nullopt;
  result.code.assign(code.begin(), code.end());
  return result;
}

/// All of a file, or what is wrong with it; nothing of either if it is not there.
std::optional<std::string> read_file(const fs::path& path, std::string& wrong) {
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno != ENOENT) wrong = std::strerror(errno);
    return std::nullopt;
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    wrong = "not a regular file";
    return std::nullopt;
  }
  if ((status.st_uid != ::geteuid() && status.st_uid != 0) || (status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    wrong = "others than the user may have written it";
    return std::nullopt;
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size < kHead || size > kHead + kMostOfOne) {
    wrong = std::to_string(size) + " bytes";
    return std::nullopt;
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t got = ::read(file.get(), text.data() + at, text.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      wrong = got == 0 ? "it ends early" : std::strerror(errno);
      return std::nullopt;
    }
    at += static_cast<std::size_t>(got);
  }
  return text;
}

std::optional<Binary> read_binary(const fs::path& path, const CompileKey& key, std::string& wrong) {
  const std::optional<std::string> text = read_file(path, wrong);
  if (!text) return std::nullopt;
  const std::string_view all = *text;
  std::uint64_t size = 0;
  std::memcpy(&size, all.data() + kMagic.size(), sizeof size);
  const std::string_view content = all.substr(kHead);
  std::optional<Binary> result;
  if (all.substr(0, kMagic.size()) == kMagic && size == content.size() &&
      all.substr(kHead - kHash, kHash) == hash_of(content)) {
    result = binary_of(content, key);
  }
  if (!result) wrong = "damaged";
  return result;
}

/// @return What went wrong, or nothing.
std::string write_file(const fs::path& directory, const std::string& name, std::string_view head,
                       std::string_view content) {
  std::string temporary = (directory / (std::string(kTemporary) + "XXXXXX")).string();
  const File file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (file.get() < 0) return std::strerror(errno);
  std::string wrong;
  for (std::string_view part : {head, content}) {
    while (wrong.empty() && !part.empty()) {
      const ssize_t count = ::write(file.get(), part.data(), part.size());
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        wrong = std::strerror(errno);
      } else {
        part.remove_prefix(static_cast<std::size_t>(count));
      }
    }
  }
  if (wrong.empty() && ::rename(temporary.c_str(), (directory / name).c_str()) != 0) wrong = std::strerror(errno);
  if (!wrong.empty()) ::unlink(temporary.c_str());
  return wrong;
}

std::string file_name(const CompileKey& key) { return key.source + "." + key.compiler + std::string(kSuffix); }

struct Kept {
  fs::path path;
  std::uint64_t bytes;
  fs::file_time_type used;
};

/// Files whose names start with `prefix`, the one used last first.
std::vector<Kept> files_of(const fs::path& directory, const std::string& prefix) {
  std::vector<Kept> result;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix) || !name.ends_with(kSuffix)) continue;
    std::error_code gone;
    const std::uint64_t bytes = entry->file_size(gone);
    const fs::file_time_type used = entry->last_write_time(gone);
    if (!gone) result.push_back({entry->path(), bytes, used});
  }
  std::sort(result.begin(), result.end(), [](const Kept& a, const Kept& b) { return a.used > b.used; });
  return result;
}

}  // namespace

CompileKey CompileKey::of(const Program& program, const Target& target, const std::string& compiler) {
  std::string text = std::string(name_of(target.language)) + "\n" + target.arch + "\n";
  // In the order in which the runtime finds them in the module.
  for (const KernelInfo& kernel : program.kernels) text += kernel.name + "\n";
  text += program.source;
  return {hash_of(text), compiler.empty() ? std::string() : hash_of(compiler)};
}

CompileCache CompileCache::of(const sdk::Host& host, Language language) {
  const std::optional<std::string> directory = host.lookup("cache_dir");
  if (!directory || directory->empty()) return {};
  std::uint64_t most = kMostBytes;
  if (const std::optional<std::string> text = host.lookup("gpu.cache_bytes")) {
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), most);
    if (error != std::errc() || end != text->data() + text->size()) {
      throw sdk::InvalidArgument("configuration key gpu.cache_bytes is '" + *text + "', expected a number of bytes");
    }
  }
  if (most == 0) return {};
  return {host, fs::path(*directory) / "kernels" / name_of(language), most};
}

void CompileCache::say(const std::string& text) const { host_.log(FP_LOG_DEBUG, text); }

void CompileCache::say_once(const std::string& text) const {
  if (!said_->exchange(true)) say("compiled kernels are not kept in " + directory_.string() + ": " + text);
}

std::optional<Binary> CompileCache::find(const CompileKey& key) const {
  if (directory_.empty()) return std::nullopt;
  std::vector<fs::path> candidates;
  if (key.compiler.empty()) {
    for (Kept& kept : files_of(directory_, key.source + ".")) candidates.push_back(std::move(kept.path));
  } else {
    candidates.push_back(directory_ / file_name(key));
  }
  for (const fs::path& path : candidates) {
    std::string wrong;
    std::optional<Binary> result = read_binary(path, key, wrong);
    if (result) {
      std::error_code ignored;  // of a directory that is not written to
      fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);
      return result;
    }
    if (!wrong.empty()) say(path.string() + " is not used: " + wrong);
  }
  return std::nullopt;
}

void CompileCache::keep(const CompileKey& key, const Binary& binary) const {
  if (directory_.empty() || binary.code.empty() || key.compiler.empty()) return;
  const std::string content = content_of(key, binary);
  if (content.size() > std::min(kMostOfOne, most_bytes_)) return;
  std::error_code error;
  fs::create_directories(directory_, error);
  if (error) return say_once(error.message());
  const std::uint64_t size = content.size();
  const std::string head =
      std::string(kMagic) + std::string(reinterpret_cast<const char*>(&size), sizeof size) + hash_of(content);
  if (const std::string wrong = write_file(directory_, file_name(key), head, content); !wrong.empty()) {
    return say_once(wrong);
  }
  trim();
}

void CompileCache::trim() const {
  std::uint64_t total = 0;
  for (const Kept& kept : files_of(directory_, "")) {
    total += kept.bytes;
    std::error_code ignored;  // another process was faster
    if (total > most_bytes_) fs::remove(kept.path, ignored);
  }
  // What a process left that ended while it wrote.
  std::error_code error;
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (fs::directory_iterator entry(directory_, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code gone;
    if (!entry->path().filename().string().starts_with(kTemporary)) continue;
    if (entry->last_write_time(gone) < old && !gone) fs::remove(entry->path(), gone);
  }
}

}  // namespace fastpath_gpu
