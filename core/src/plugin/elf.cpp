#include "elf.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "abi.hpp"

namespace fastpath::plugin {
namespace {

// Far above any plugin, low enough that a lying header costs neither memory nor time.
constexpr std::uint64_t kMaxHeaders = 1u << 16;
constexpr std::uint64_t kMaxNames = 64u << 20;
constexpr std::uint64_t kMaxSymbols = 4u << 20;
constexpr std::uint64_t kMaxMetadataSection = 1u << 16;
constexpr std::uint64_t kAddressSpace = std::uint64_t{1} << 56;

struct Machine {
  std::uint16_t code;
  std::string_view name;
};
constexpr std::array kMachines{
    Machine{EM_386, "x86"},         Machine{EM_X86_64, "x86-64"}, Machine{EM_ARM, "arm"},
    Machine{EM_AARCH64, "aarch64"}, Machine{EM_PPC64, "ppc64"},   Machine{EM_RISCV, "riscv"},
    Machine{EM_S390, "s390"},       Machine{EM_CUDA, "cuda"},     Machine{EM_AMDGPU, "amdgpu"}};
#if defined(__x86_64__)
constexpr std::uint16_t kHostMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr std::uint16_t kHostMachine = EM_AARCH64;
#elif defined(__powerpc64__)
constexpr std::uint16_t kHostMachine = EM_PPC64;
#elif defined(__riscv)
constexpr std::uint16_t kHostMachine = EM_RISCV;
#else
#error "the machine code of this CPU is not known here"
#endif
static_assert(std::endian::native == std::endian::little, "ELF headers are read in place");

std::string machine_text(std::uint16_t code) {
  for (const Machine& machine : kMachines) {
    if (machine.code == code) return std::string(machine.name);
  }
  return fmt::format("machine {}", code);
}

/// Ends the inspection; caught in inspect_object.
struct Finding {
  Reason reason;
};
[[noreturn]] void fail(ReasonCode code, std::string text) { throw Finding{{code, std::move(text)}}; }
[[noreturn]] void malformed(std::string_view what) {
  fail(ReasonCode::not_elf, fmt::format("a malformed ELF file: {}", what));
}

/// True if [offset, offset + size) lies inside the first `total` bytes.
bool inside(std::uint64_t offset, std::uint64_t size, std::uint64_t total) noexcept {
  return offset <= total && size <= total - offset;
}

class ObjectReader {
 public:
  explicit ObjectReader(const ByteSource& file) : file_(file) {}

  void read_headers();
  void check_segments() const;
  void check_query_symbol() const;
  Metadata read_metadata() const;

 private:
  template <class T>
  T get(std::uint64_t offset) const {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    fetch(offset, std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }
  template <class T>
  std::vector<T> table(std::uint64_t offset, std::uint64_t count) const {
    std::vector<T> result(count);
    fetch(offset, std::as_writable_bytes(std::span(result)));
    return result;
  }
  void fetch(std::uint64_t offset, std::span<std::byte> into) const {
    require(offset, into.size(), "a header");
    if (!file_.read(offset, into)) fail(ReasonCode::unreadable, "the file could not be read to its end");
  }
  void require(std::uint64_t offset, std::uint64_t size, std::string_view what) const {
    if (inside(offset, size, file_.size())) return;
    fail(ReasonCode::truncated, fmt::format("truncated: {} reaches from byte {} over {} bytes, the file has {}", what,
                                            offset, size, file_.size()));
  }
  /// The zero-terminated name at `at` of a string table.
  static std::string_view name(const std::vector<char>& names, std::uint64_t at) {
    if (at >= names.size()) return {};
    const auto start = names.begin() + static_cast<std::ptrdiff_t>(at);
    const auto end = std::find(start, names.end(), '\0');
    return end == names.end() ? std::string_view{} : std::string_view(&*start, static_cast<std::size_t>(end - start));
  }
  std::vector<char> string_table(const Elf64_Shdr& section) const {
    if (section.sh_type != SHT_STRTAB || section.sh_size > kMaxNames) malformed("a string table is none, or too large");
    return table<char>(section.sh_offset, section.sh_size);
  }

  const ByteSource& file_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Phdr> segments_;
  std::vector<Elf64_Shdr> sections_;
  std::vector<char> section_names_;
};

void ObjectReader::read_headers() {
  std::array<unsigned char, EI_NIDENT> ident{};
  const std::uint64_t head = std::min<std::uint64_t>(file_.size(), ident.size());
  fetch(0, std::as_writable_bytes(std::span(ident.data(), head)));
  if (head < SELFMAG || std::memcmp(ident.data(), ELFMAG, SELFMAG) != 0) {
    fail(ReasonCode::not_elf, head == 0 ? "the file is empty" : "not an ELF file: the first bytes are others");
  }
  if (head < EI_NIDENT)
    fail(ReasonCode::truncated, fmt::format("truncated inside its first header, at {} bytes", head));
  if (ident[EI_CLASS] != ELFCLASS64) {
    fail(ReasonCode::wrong_class, ident[EI_CLASS] == ELFCLASS32 ? "a 32-bit object, this host is 64-bit"
                                                                : "an object of unknown class, expected 64-bit");
  }
  if (ident[EI_DATA] != ELFDATA2LSB) fail(ReasonCode::wrong_class, "a big-endian object, this host is little-endian");
  if (ident[EI_VERSION] != EV_CURRENT) malformed(fmt::format("version {}, expected 1", ident[EI_VERSION]));
  header_ = get<Elf64_Ehdr>(0);
  if (header_.e_machine != kHostMachine) {
    fail(ReasonCode::wrong_machine,
         fmt::format("built for {}, this host is {}", machine_text(header_.e_machine), machine_text(kHostMachine)));
  }
  if (header_.e_type != ET_DYN) {
    fail(ReasonCode::wrong_class, fmt::format("not a shared object: type {}, expected {}", header_.e_type, ET_DYN));
  }

  if (header_.e_phnum == 0 || header_.e_phoff == 0) malformed("no program headers");
  if (header_.e_phentsize != sizeof(Elf64_Phdr)) malformed("program headers of another size");
  require(header_.e_phoff, std::uint64_t{header_.e_phnum} * sizeof(Elf64_Phdr), "the program headers");
  segments_ = table<Elf64_Phdr>(header_.e_phoff, header_.e_phnum);

  if (header_.e_shoff == 0) return;  // stripped to the bone: then there is no metadata either
  if (header_.e_shentsize != sizeof(Elf64_Shdr)) malformed("section headers of another size");
  // With too many sections for the header, section 0 holds their number and the index of the names.
  std::uint64_t count = header_.e_shnum;
  std::uint64_t names = header_.e_shstrndx;
  if (count == 0 || names == SHN_XINDEX) {
    require(header_.e_shoff, sizeof(Elf64_Shdr), "the section headers");
    const auto first = get<Elf64_Shdr>(header_.e_shoff);
    if (count == 0) count = first.sh_size;
    if (names == SHN_XINDEX) names = first.sh_link;
  }
  if (count > kMaxHeaders) malformed(fmt::format("{} sections", count));
  require(header_.e_shoff, count * sizeof(Elf64_Shdr), "the section headers");
  sections_ = table<Elf64_Shdr>(header_.e_shoff, count);
  for (const Elf64_Shdr& section : sections_) {
    if (section.sh_type == SHT_NULL || section.sh_type == SHT_NOBITS) continue;
    require(section.sh_offset, section.sh_size, "a section");
  }
  if (names >= sections_.size()) malformed("no section names");
  section_names_ = string_table(sections_[names]);
}

void ObjectReader::check_segments() const {
  bool any = false;
  bool dynamic = false;
  std::uint64_t end = 0;  // of the segments so far, in memory
  for (const Elf64_Phdr& segment : segments_) {
    if (segment.p_type == PT_DYNAMIC || segment.p_type == PT_TLS || segment.p_type == PT_NOTE ||
        segment.p_type == PT_GNU_EH_FRAME || segment.p_type == PT_LOAD) {
      require(segment.p_offset, segment.p_filesz, "a segment");
    }
    if (segment.p_type == PT_DYNAMIC) dynamic = true;
    if (segment.p_type != PT_LOAD) continue;
    any = true;
    if (segment.p_memsz < segment.p_filesz) malformed("a segment is smaller in memory than in the file");
    if (!inside(segment.p_vaddr, segment.p_memsz, kAddressSpace)) {
      malformed("a segment ends outside the address space");
    }
    if (segment.p_align > 1 &&
        (!std::has_single_bit(segment.p_align) || (segment.p_vaddr - segment.p_offset) % segment.p_align != 0)) {
      malformed("a segment is not aligned as it says");
    }
    if (segment.p_vaddr < end) malformed("segments overlap or are out of order");
    end = segment.p_vaddr + segment.p_memsz;
  }
  if (!any || !dynamic) malformed("nothing to load");
  // The linker reads the dynamic section and the relocations through the mapping, so these must be backed by the file.
  for (const Elf64_Phdr& segment : segments_) {
    if (segment.p_type != PT_DYNAMIC) continue;
    const bool backed = std::any_of(segments_.begin(), segments_.end(), [&](const Elf64_Phdr& load) {
      return load.p_type == PT_LOAD && segment.p_vaddr >= load.p_vaddr &&
             inside(segment.p_vaddr - load.p_vaddr, segment.p_filesz, load.p_filesz);
    });
    if (!backed) malformed("the dynamic section is not in a loaded segment");
  }
}

void ObjectReader::check_query_symbol() const {
  std::string other_major;
  for (const Elf64_Shdr& section : sections_) {
    if (section.sh_type != SHT_DYNSYM) continue;
    if (section.sh_entsize != sizeof(Elf64_Sym) || section.sh_link >= sections_.size()) malformed("the symbol table");
    const std::uint64_t count = section.sh_size / sizeof(Elf64_Sym);
    if (count > kMaxSymbols) malformed(fmt::format("{} symbols", count));
    const std::vector<char> names = string_table(sections_[section.sh_link]);
    for (const Elf64_Sym& symbol : table<Elf64_Sym>(section.sh_offset, count)) {
      const auto binding = ELF64_ST_BIND(symbol.st_info);
      const auto visibility = ELF64_ST_VISIBILITY(symbol.st_other);
      if (symbol.st_shndx == SHN_UNDEF || (binding != STB_GLOBAL && binding != STB_WEAK)) continue;
      if (visibility != STV_DEFAULT && visibility != STV_PROTECTED) continue;
      constexpr std::string_view kQuery = FP_QUERY_SYMBOL;
      constexpr std::string_view kFamily = kQuery.substr(0, kQuery.find("_v") + 2);
      const std::string_view text = name(names, symbol.st_name);
      if (text == kQuery) {
        if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC) {
          fail(ReasonCode::no_query_symbol, fmt::format("{} is exported but is not a function", kQuery));
        }
        return;
      }
      if (text.starts_with(kFamily)) other_major = text;
    }
  }
  if (!other_major.empty()) {
    fail(ReasonCode::abi_incompatible,
         fmt::format("exports {}, this host calls {}", clean_text(other_major, 64), FP_QUERY_SYMBOL));
  }
  fail(ReasonCode::no_query_symbol, fmt::format("exports no function {}", FP_QUERY_SYMBOL));
}

/// The text of a field of fixed size. @throws Finding if it is not terminated.
template <std::size_t N>
std::string field_text(const char (&field)[N], std::string_view what) {
  const auto* end = static_cast<const char*>(std::memchr(field, 0, N));
  if (end == nullptr) {
    fail(ReasonCode::bad_metadata, fmt::format("metadata: {} is not terminated within its {} bytes", what, N));
  }
  return clean_text(std::string_view(field, static_cast<std::size_t>(end - field)), N);
}

std::vector<DeviceKind> parse_kinds(std::string_view text) {
  constexpr std::array kKinds{DeviceKind::cpu, DeviceKind::cuda, DeviceKind::opencl, DeviceKind::hip,
                              DeviceKind::extension};
  std::vector<DeviceKind> result;
  for (std::size_t start = 0; start <= text.size();) {
    const std::size_t comma = std::min(text.find(',', start), text.size());
    std::string_view item = text.substr(start, comma - start);
    while (item.starts_with(' ')) item.remove_prefix(1);
    while (item.ends_with(' ')) item.remove_suffix(1);
    for (const DeviceKind kind : kKinds) {
      const bool seen = std::find(result.begin(), result.end(), kind) != result.end();
      if (item == to_string(kind) && !seen) result.push_back(kind);
    }
    start = comma + 1;
  }
  // A later plugin may name kinds that this host does not know beside ones it knows.
  if (result.empty()) {
    fail(ReasonCode::bad_metadata,
         fmt::format("metadata: device kinds '{}', known are cpu, cuda, opencl, hip, ext", text));
  }
  return result;
}

Metadata ObjectReader::read_metadata() const {
  const Elf64_Shdr* found = nullptr;
  for (const Elf64_Shdr& section : sections_) {
    if (name(section_names_, section.sh_name) != FP_METADATA_SECTION) continue;
    if (found != nullptr) fail(ReasonCode::bad_metadata, "metadata: more than one section of that name");
    found = &section;
  }
  if (found == nullptr) {
    fail(ReasonCode::no_metadata,
         fmt::format("no section {}: FASTPATH_PLUGIN_METADATA is missing", FP_METADATA_SECTION));
  }
  if (found->sh_type == SHT_NOBITS || (found->sh_flags & SHF_COMPRESSED) != 0 || found->sh_size > kMaxMetadataSection) {
    fail(ReasonCode::bad_metadata, "metadata: the section has no plain content, or too much");
  }
  const std::vector<char> bytes = table<char>(found->sh_offset, found->sh_size);
  fp_metadata record{};
  std::uint32_t stated = 0;
  if (bytes.size() >= sizeof stated) std::memcpy(&stated, bytes.data(), sizeof stated);
  if (bytes.size() < FP_SIZE_METADATA || stated < FP_SIZE_METADATA || stated > bytes.size()) {
    fail(ReasonCode::bad_metadata, fmt::format("metadata: size {} in a section of {} bytes, expected at least {}",
                                               stated, bytes.size(), FP_SIZE_METADATA));
  }
  std::memcpy(&record, bytes.data(), std::min<std::size_t>(stated, sizeof record));
  if (record.magic != FP_METADATA_MAGIC) {
    fail(ReasonCode::bad_metadata,
         fmt::format("metadata: magic {:#x}, expected {:#x}", record.magic, FP_METADATA_MAGIC));
  }
  for (std::size_t at = stated; bytes.size() - at >= 2 * sizeof(std::uint32_t); at += sizeof(std::uint32_t)) {
    std::uint32_t magic = 0;
    std::memcpy(&magic, bytes.data() + at + sizeof(std::uint32_t), sizeof magic);
    if (magic == FP_METADATA_MAGIC) fail(ReasonCode::bad_metadata, "metadata: more than one record");
  }
  Metadata result;
  result.abi_version = record.abi_version;
  result.abi_min = record.abi_min;
  result.abi_max = record.abi_max;
  result.sdk_version = record.sdk_version;
  result.id = field_text(record.id, "id");
  result.vendor = field_text(record.vendor, "vendor");
  result.version = field_text(record.version, "version");
  result.build_tag = field_text(record.build_tag, "build tag");
  if (!is_plugin_id(result.id)) {
    fail(ReasonCode::bad_metadata,
         fmt::format("metadata: id '{}', expected letters, digits, '_', '-' and '.'", result.id));
  }
  result.device_kinds = parse_kinds(field_text(record.device_kinds, "device kinds"));
  return result;
}

}  // namespace

bool SpanSource::read(std::uint64_t offset, std::span<std::byte> into) const noexcept {
  if (!inside(offset, into.size(), bytes_.size())) return false;
  if (!into.empty()) std::memcpy(into.data(), bytes_.data() + offset, into.size());
  return true;
}

bool FileSource::read(std::uint64_t offset, std::span<std::byte> into) const noexcept {
  while (!into.empty()) {
    const ssize_t got = ::pread(descriptor_, into.data(), into.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    into = into.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return true;
}

ObjectReport inspect_object(const ByteSource& file) {
  ObjectReport report;
  try {
    ObjectReader reader(file);
    reader.read_headers();
    reader.check_segments();
    reader.check_query_symbol();
    report.metadata = reader.read_metadata();
    const Metadata& metadata = *report.metadata;
    const std::string conflict = abi_conflict(metadata.abi_version, metadata.abi_min, metadata.abi_max);
    if (!conflict.empty()) fail(ReasonCode::abi_incompatible, conflict);
    if (metadata.sdk_version == 0) fail(ReasonCode::bad_metadata, "metadata: SDK version 0");
  } catch (Finding& finding) {
    report.reason = std::move(finding.reason);
  }
  return report;
}

bool is_plugin_id(std::string_view id) noexcept {
  if (id.empty() || id.size() > 63 || id.front() == '.' || id.front() == '-') return false;
  return std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
           c == '.';
  });
}

}  // namespace fastpath::plugin
