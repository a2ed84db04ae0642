#include <elf.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "driver.hpp"

/// What can be told from the file without running any of it, and from loading it.
namespace fastpath::conformance {
namespace {

#if defined(__x86_64__)
constexpr std::uint16_t kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr std::uint16_t kMachine = EM_AARCH64;
#elif defined(__powerpc64__)
constexpr std::uint16_t kMachine = EM_PPC64;
#elif defined(__riscv)
constexpr std::uint16_t kMachine = EM_RISCV;
#else
constexpr std::uint16_t kMachine = EM_NONE;
#endif

/// A file in memory; every access is bounded, so that a malformed one is a finding and not a fault.
class File {
 public:
  explicit File(Trial& trial) : trial_(trial) {
    std::ifstream stream(trial.options.plugin, std::ios::binary);
    if (!stream) {
      trial.fail("P-01", "the file cannot be read", "a readable file");
      trial.stop();
    }
    bytes_.assign(std::istreambuf_iterator<char>(stream), {});
    read(0, header_);
    if (std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0) malformed("not an ELF file");
    if (header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB) {
      malformed("an ELF file that is not 64-bit little-endian");
    }
    for (std::uint64_t i = 0; i < header_.e_shnum; ++i) {
      Elf64_Shdr section;
      read(header_.e_shoff + i * header_.e_shentsize, section);
      sections_.push_back(section);
    }
    for (std::uint64_t i = 0; i < header_.e_phnum; ++i) {
      Elf64_Phdr segment;
      read(header_.e_phoff + i * header_.e_phentsize, segment);
      segments_.push_back(segment);
    }
  }

  const Elf64_Ehdr& header() const { return header_; }
  const std::vector<Elf64_Phdr>& segments() const { return segments_; }
  std::uint64_t size() const { return bytes_.size(); }

  struct Symbol {
    std::string name;
    bool defined;
  };
  /// Of the dynamic symbol table, local ones left out.
  std::vector<Symbol> symbols() const {
    std::vector<Symbol> result;
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_DYNSYM || section.sh_entsize < sizeof(Elf64_Sym)) continue;
      for (std::uint64_t at = 0; at + section.sh_entsize <= section.sh_size; at += section.sh_entsize) {
        Elf64_Sym symbol;
        read(section.sh_offset + at, symbol);
        const unsigned bind = ELF64_ST_BIND(symbol.st_info), visibility = ELF64_ST_VISIBILITY(symbol.st_other);
        if (bind == STB_LOCAL || symbol.st_name == 0) continue;
        const bool hidden = visibility == STV_HIDDEN || visibility == STV_INTERNAL;
        const std::string name = text(section.sh_link, symbol.st_name);
        if (symbol.st_shndx == SHN_UNDEF) {
          result.push_back({name, false});
        } else if (!hidden && symbol.st_shndx != SHN_ABS) {
          result.push_back({name, true});
        }
      }
    }
    return result;
  }
  std::vector<std::string> needed() const {
    std::vector<std::string> result;
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type != SHT_DYNAMIC || section.sh_entsize < sizeof(Elf64_Dyn)) continue;
      for (std::uint64_t at = 0; at + section.sh_entsize <= section.sh_size; at += section.sh_entsize) {
        Elf64_Dyn entry;
        read(section.sh_offset + at, entry);
        if (entry.d_tag == DT_NEEDED) result.push_back(text(section.sh_link, entry.d_un.d_val));
      }
    }
    return result;
  }
  /// The records in the section of that name, each with the bytes from its start on.
  std::vector<std::string> sections(const char* name) const {
    std::vector<std::string> result;
    for (const Elf64_Shdr& section : sections_) {
      if (text(header_.e_shstrndx, section.sh_name) != name || section.sh_type == SHT_NOBITS) continue;
      if (section.sh_offset > size() || section.sh_size > size() - section.sh_offset)
        malformed("a section past the end");
      result.push_back(bytes_.substr(section.sh_offset, section.sh_size));
    }
    return result;
  }

 private:
  template <class T>
  void read(std::uint64_t at, T& value) const {
    if (at > bytes_.size() || sizeof value > bytes_.size() - at) malformed("an ELF file that ends too early");
    std::memcpy(&value, bytes_.data() + at, sizeof value);
  }
  std::string text(std::uint64_t section, std::uint64_t at) const {
    if (section >= sections_.size()) return {};
    const Elf64_Shdr& strings = sections_[section];
    if (at >= strings.sh_size || strings.sh_offset > size() || strings.sh_size > size() - strings.sh_offset) return {};
    const char* start = bytes_.data() + strings.sh_offset + at;
    return std::string(start, ::strnlen(start, strings.sh_size - at));
  }
  [[noreturn]] void malformed(const char* what) const {
    trial_.fail("P-01", what, "a complete 64-bit little-endian ELF shared object for this CPU");
    trial_.stop();
  }
  Trial& trial_;
  std::string bytes_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Shdr> sections_;
  std::vector<Elf64_Phdr> segments_;
};

void check_object(Trial& trial) {
  const std::string path = trial.options.plugin;
  const std::string name = path.substr(path.find_last_of('/') + 1);
  trial.expect(name.size() > 12 && name.rfind("fastpath_", 0) == 0 && name.substr(name.size() - 3) == ".so", "P-01",
               "the file is named " + name, "fastpath_NAME.so");
  const File file(trial);
  trial.expect(file.header().e_type == ET_DYN, "P-01", "ELF type " + std::to_string(file.header().e_type),
               "a shared object (" + std::to_string(ET_DYN) + ")");
  trial.expect(kMachine == EM_NONE || file.header().e_machine == kMachine, "P-01",
               "built for machine " + std::to_string(file.header().e_machine), "machine " + std::to_string(kMachine));
  for (const Elf64_Phdr& segment : file.segments()) {
    const bool inside = segment.p_offset <= file.size() && segment.p_filesz <= file.size() - segment.p_offset;
    trial.expect(inside || segment.p_type != PT_LOAD, "P-01",
                 "a segment reaches to byte " + std::to_string(segment.p_offset + segment.p_filesz) +
                     ", the file has " + std::to_string(file.size()),
                 "a complete file");
  }
}

void check_exports(Trial& trial) {
  const File file(trial);
  std::string others;
  bool query = false;
  int count = 0;
  constexpr int kShown = 8;
  for (const File::Symbol& symbol : file.symbols()) {
    if (!symbol.defined) continue;
    if (symbol.name == FP_QUERY_SYMBOL) {
      query = true;
    } else if (++count <= kShown) {
      others += (others.empty() ? "" : ", ") + symbol.name;
    }
  }
  trial.expect(query, "P-02", std::string("no symbol ") + FP_QUERY_SYMBOL + " is exported", "that it is");
  trial.expect(count == 0, "P-02",
               "it also exports " + others + (count > kShown ? " and " + std::to_string(count - kShown) + " more" : ""),
               std::string(FP_QUERY_SYMBOL) + " and no other symbol");
}

fp_metadata read_metadata(Trial& trial) {
  const File file(trial);
  const std::vector<std::string> sections = file.sections(FP_METADATA_SECTION);
  if (sections.size() != 1) {
    trial.fail("P-03", std::to_string(sections.size()) + " sections named " + FP_METADATA_SECTION, "one");
    trial.stop();
  }
  const std::string& bytes = sections[0];
  std::uint32_t size = 0;
  if (bytes.size() >= sizeof size) std::memcpy(&size, bytes.data(), sizeof size);
  if (size < FP_SIZE_METADATA || size > bytes.size()) {
    trial.fail("P-03", "a record of " + std::to_string(size) + " bytes in a section of " + std::to_string(bytes.size()),
               "at least " + std::to_string(FP_SIZE_METADATA) + " bytes, inside the section");
    trial.stop();
  }
  // The linker may pad the section; a second record is not padding.
  const bool only = std::all_of(bytes.begin() + size, bytes.end(), [](char c) { return c == '\0'; });
  trial.expect(only, "P-03", "more than one record in the section", "one");
  fp_metadata metadata{};
  std::memcpy(&metadata, bytes.data(), sizeof metadata);
  return metadata;
}

template <std::size_t N>
std::string field(const char (&text)[N]) {
  return std::string(text, ::strnlen(text, N));
}

void check_metadata(Trial& trial) {
  const fp_metadata m = read_metadata(trial);
  trial.expect(m.magic == FP_METADATA_MAGIC, "P-03", "magic " + std::to_string(m.magic),
               std::to_string(FP_METADATA_MAGIC));
  const auto ended = [&](const auto& text, const char* name) {
    trial.expect(field(text).size() < sizeof text, "P-03", std::string(name) + " is not ended by a zero", "that it is");
  };
  ended(m.id, "id");
  ended(m.vendor, "vendor");
  ended(m.version, "version");
  ended(m.device_kinds, "device_kinds");
  ended(m.build_tag, "build_tag");
  const std::string id = field(m.id), kinds = field(m.device_kinds);
  const bool good = !id.empty() && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  });
  trial.expect(good, "P-03", "id '" + id + "'", "letters, digits, '_', '-', '.'");
  trial.expect(!kinds.empty(), "P-03", "no kind of device", "at least one");
  for (std::size_t at = 0; at <= kinds.size() && !kinds.empty();) {
    const std::size_t end = std::min(kinds.find(',', at), kinds.size());
    const std::string kind = kinds.substr(at, end - at);
    const bool known = kind == "cpu" || kind == "cuda" || kind == "opencl" || kind == "hip" || kind == "ext";
    trial.expect(known, "P-03", "a kind of device '" + kind + "'", "cpu, cuda, opencl, hip or ext");
    at = end + 1;
  }
}

std::string version_text(std::uint32_t version) {
  return std::to_string(version >> 16) + "." + std::to_string(version & 0xffffu);
}

void check_metadata_versions(Trial& trial) {
  const fp_metadata m = read_metadata(trial);
  const std::string found = "built for ABI " + version_text(m.abi_version) + ", serves " + version_text(m.abi_min) +
                            " to " + version_text(m.abi_max) + ", SDK " + version_text(m.sdk_version);
  trial.expect(m.abi_version != 0 && m.abi_min != 0 && m.abi_max != 0 && m.sdk_version != 0, "P-04", found,
               "no version of 0");
  trial.expect(m.abi_min <= m.abi_version && m.abi_version <= m.abi_max, "P-04", found,
               "a range that contains the version it was built with");
}

void check_loads(Trial& trial) { Session::load(trial); }

void check_no_host(Trial& trial) {
  const File file(trial);
  for (const std::string& name : file.needed()) {
    trial.expect(name.rfind("libfastpath.so", 0) != 0, "P-06", "it needs " + name, "no library of the host");
  }
}

void check_quiet_load(Trial& trial) {
  const int threads = thread_count();
  Session::load(trial);
  const int now = thread_count();
  trial.expect(now == threads, "P-07", "loading the file started " + std::to_string(now - threads) + " threads",
               "no threads");
  // The worker now ends the usual way, through static destructors: what they print or break, the parent sees.
}

void check_identity(Trial& trial) {
  const fp_metadata m = read_metadata(trial);
  const Session session(trial);
  const auto compare = [&](const char* what, const char* text, std::uint64_t size, const std::string& stated) {
    const std::string loaded(sdk::text_view(text, std::min<std::uint64_t>(size, 4096)));
    trial.expect(loaded == stated, "P-13", std::string(what) + " of fp_plugin is '" + loaded + "'",
                 "'" + stated + "', as its metadata says");
  };
  compare("id", session.c.id, session.c.id_size, field(m.id));
  compare("vendor", session.c.vendor, session.c.vendor_size, field(m.vendor));
  compare("version", session.c.version, session.c.version_size, field(m.version));
  trial.expect(session.c.abi_version == m.abi_version, "P-13",
               "abi_version of fp_plugin is " + version_text(session.c.abi_version),
               version_text(m.abi_version) + ", as its metadata says");
}

void check_kinds(Trial& trial) {
  const fp_metadata m = read_metadata(trial);
  const std::string kinds = "," + field(m.device_kinds) + ",";
  Session session(trial);
  for (const fp_device_info& device : session.devices()) {
    const char* kind = device.type == FP_DEVICE_CPU      ? "cpu"
                       : device.type == FP_DEVICE_CUDA   ? "cuda"
                       : device.type == FP_DEVICE_OPENCL ? "opencl"
                       : device.type == FP_DEVICE_ROCM   ? "hip"
                       : device.type == FP_DEVICE_EXT    ? "ext"
                                                         : nullptr;
    if (kind == nullptr) continue;  // of a later ABI
    trial.expect(kinds.find("," + std::string(kind) + ",") != std::string::npos, "P-37",
                 std::string("it offers a device of kind ") + kind,
                 "kinds that its metadata names: " + field(m.device_kinds));
  }
}

void check_environment(Trial& trial) {
  const File file(trial);
  for (const File::Symbol& symbol : file.symbols()) {
    const std::string& name = symbol.name;
    const bool reads = name == "getenv" || name == "secure_getenv" || name == "__secure_getenv" || name == "environ" ||
                       name == "__environ" || name == "setenv" || name == "putenv" || name == "unsetenv";
    trial.expect(!reads || symbol.defined, "P-30", "it refers to " + name, "settings from fp_host::lookup alone");
  }
  trial.note("seen from the symbols of the file alone, not of the libraries that it uses");
}

}  // namespace

void add_file_checks(std::vector<Check>& list) {
  list.push_back({{"file.object", "P-01", "the file is a complete shared object for this CPU"}, "", check_object});
  list.push_back({{"file.exports", "P-02", "it exports the query function and nothing else"}, "", check_exports});
  list.push_back({{"file.metadata", "P-03", "its metadata is complete"}, "", check_metadata});
  list.push_back(
      {{"file.versions", "P-04", "its metadata states versions that fit together"}, "", check_metadata_versions});
  list.push_back({{"file.loads", "P-05", "everything it needs is found"}, "P-07", check_loads});
  list.push_back({{"file.needs_no_host", "P-06", "it does not link the host's library"}, "", check_no_host});
  list.push_back(
      {{"file.quiet", "P-07", "loading it, and ending the process, has no effects"}, "P-07", check_quiet_load});
  list.push_back({{"file.identity", "P-13", "it is what its metadata says"}, "", check_identity});
  list.push_back({{"file.device_kinds", "P-37", "its devices are of the kinds its metadata names"}, "", check_kinds});
  list.push_back({{"file.environment", "P-30", "it does not refer to functions that read the environment"},
                  "",
                  check_environment});
}

}  // namespace fastpath::conformance
