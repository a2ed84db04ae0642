#include "mapping.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <charconv>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace fastpath::plugin {
namespace {

/// One line of /proc/self/maps: "start-end perms offset device inode path".
struct Line {
  std::uintptr_t start = 0, end = 0;
  std::string_view device, inode;
};

std::optional<Line> parse(std::string_view text) {
  Line line;
  const auto hexadecimal = [&](std::uintptr_t& value, char after) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
    const auto used = static_cast<std::size_t>(end - text.data());
    if (error != std::errc() || used >= text.size() || text[used] != after) return false;
    text.remove_prefix(used + 1);
    return true;
  };
  if (!hexadecimal(line.start, '-') || !hexadecimal(line.end, ' ')) return std::nullopt;
  const auto word = [&] {
    const std::string_view result = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(result.size() + 1, text.size()));
    return result;
  };
  word();  // permissions
  word();  // offset
  line.device = word();
  line.inode = word();
  return line;
}

}  // namespace

OpenFile::OpenFile(const std::filesystem::path& path) noexcept
    : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {}

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::optional<FileIdentity> OpenFile::identity() const {
  return descriptor_ < 0 ? std::nullopt : identify(descriptor_);
}

Mapping mapped_from(const void* address, int descriptor) {
  constexpr std::size_t kSome = 1;  // bytes; the kernel rounds up to a page
  void* const sample = ::mmap(nullptr, kSome, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (sample == MAP_FAILED) return Mapping::unknown;
  std::string of_address, of_sample;
  std::ifstream maps("/proc/self/maps");
  for (std::string text; std::getline(maps, text);) {
    const std::optional<Line> line = parse(text);
    if (!line) continue;
    const auto holds = [&](const void* pointer) {
      const auto at = reinterpret_cast<std::uintptr_t>(pointer);
      return at >= line->start && at < line->end;
    };
    const auto identity = [&] { return std::string(line->device) + ' ' + std::string(line->inode); };
    if (holds(address)) of_address = identity();
    if (holds(sample)) of_sample = identity();
  }
  ::munmap(sample, kSome);
  if (of_address.empty() || of_sample.empty()) return Mapping::unknown;
  return of_address == of_sample ? Mapping::same : Mapping::other;
}

}  // namespace fastpath::plugin
