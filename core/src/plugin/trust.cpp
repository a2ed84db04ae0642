#include "trust.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <span>
#include <system_error>
#include <vector>

#include "elf.hpp"
#include "fastpath/error.hpp"
#include "io/printable.hpp"

namespace fastpath {

std::string_view to_string(TrustMode mode) noexcept {
  switch (mode) {
    case TrustMode::off:
      return "off";
    case TrustMode::warn:
      return "warn";
    case TrustMode::require:
      return "require";
  }
  return "off";
}

TrustMode parse_trust_mode(std::string_view text) {
  for (const TrustMode mode : {TrustMode::off, TrustMode::warn, TrustMode::require}) {
    if (text == to_string(mode)) return mode;
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{} is no use of a list of allowed plugins; there are off, warn and require", io::printable(text)));
}

}  // namespace fastpath

namespace fastpath::plugin {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDigits = 64;

bool is_digit(char c) noexcept { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }

/// The hash of a line as lower-case digits, or nothing if the line is malformed.
std::string hash_of(std::string_view line) {
  // A name with special characters is escaped, and the line then begins with a backslash.
  if (line.starts_with('\\')) line.remove_prefix(1);
  constexpr std::size_t kShortest = kDigits + 3;
  if (line.size() < kShortest || !std::all_of(line.begin(), line.begin() + kDigits, is_digit)) return {};
  if (line[kDigits] != ' ' || (line[kDigits + 1] != ' ' && line[kDigits + 1] != '*')) return {};
  std::string hash(line.substr(0, kDigits));
  for (char& c : hash) {
    if (c >= 'A' && c <= 'F') c = static_cast<char>(c - 'A' + 'a');
  }
  return hash;
}

/// The value of a variable that is set and not empty.
std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

/// @param value  What the variable says, if it says something.
void read_switch(const char* name, bool& value) {
  const std::string text = variable(name);
  if (text.empty()) return;
  if (text != "0" && text != "1") {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is {}, expected 0 or 1", name, io::printable(text)));
  }
  value = text == "1";
}

}  // namespace

AllowList AllowList::parse(std::string_view text, const std::string& name) {
  AllowList list;
  std::size_t number = 1;
  for (std::size_t start = 0; start < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    std::string_view line = text.substr(start, end - start);
    start = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    std::string hash = hash_of(line);
    if (hash.empty()) {
      throw Error(ErrorCode::bad_file,
                  fmt::format("{}:{}: not a line of sha256sum, which is 64 hexadecimal digits, two spaces and a name",
                              name, number));
    }
    list.hashes_.insert(std::move(hash));
  }
  return list;
}

AllowList AllowList::read(const fs::path& path, const OwnerRules& rules) {
  const std::string name = path.string();
  const Located file = locate(path, rules);
  if (file.kind == Located::Kind::nothing && file.reason.code == ReasonCode::no_directory) {
    throw Error(ErrorCode::not_found, fmt::format("{}: the list of allowed plugins does not exist", name));
  }
  if (file.kind != Located::Kind::file) {
    throw Error(ErrorCode::io, fmt::format("{}: the list of allowed plugins cannot be read: {}", name,
                                           file.reason.text.empty() ? "not a file" : file.reason.text));
  }
  if (!file.safe()) {
    throw Error(ErrorCode::bad_file,
                fmt::format("{}: others could have written the list of allowed plugins: {}", name, file.reason.text));
  }
  struct stat status {};
  if (::fstat(file.descriptor.get(), &status) != 0) {
    throw Error(ErrorCode::io, fmt::format("{}: {}", name, std::error_code(errno, std::generic_category()).message()));
  }
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (size > kMaxAllowList) {
    throw Error(ErrorCode::bad_file, fmt::format("{}: a list of allowed plugins has at most {} bytes, this one has {}",
                                                 name, kMaxAllowList, size));
  }
  std::string text(static_cast<std::size_t>(size), '\0');
  if (!FileSource(file.descriptor.get(), size).read(0, std::as_writable_bytes(std::span(text)))) {
    throw Error(ErrorCode::io, fmt::format("{}: the list of allowed plugins cannot be read", name));
  }
  return parse(text, name);
}

RegistryOptions with_environment(RegistryOptions options, bool elevated) {
  if (!elevated) {
    // A host that says something other than the default knows what it wants.
    if (options.check_owner) read_switch("FASTPATH_CHECK_OWNER", options.check_owner);
    if (!options.allow_group_writable) read_switch("FASTPATH_ALLOW_GROUP_WRITABLE", options.allow_group_writable);
    const std::string trust = variable("FASTPATH_TRUST");
    if (options.trust == TrustMode::off && !trust.empty()) {
      try {
        options.trust = parse_trust_mode(trust);
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("FASTPATH_TRUST: {}", error.what()));
      }
    }
    if (options.allow_list.empty()) options.allow_list = variable("FASTPATH_ALLOW_LIST");
  }
  if (options.trust == TrustMode::off) return options;
  if (options.allow_list.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("trust is '{}', and there is no list of allowed plugins; name one with --allow-list or "
                            "FASTPATH_ALLOW_LIST",
                            to_string(options.trust)));
  }
  if (!options.allow_list.is_absolute()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the list of allowed plugins is {}, which is relative; it must be absolute",
                            io::printable(options.allow_list.string())));
  }
  return options;
}

}  // namespace fastpath::plugin
