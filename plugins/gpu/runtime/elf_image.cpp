#include "elf_image.hpp"

#include <elf.h>

#include <algorithm>
#include <cstring>

namespace fastpath_gpu {

template <class T>
bool ElfImage::read(std::uint64_t offset, T& value) const noexcept {
  const std::span<const std::uint8_t> bytes = slice(offset, sizeof(T));
  if (bytes.empty()) return false;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return true;
}

std::span<const std::uint8_t> ElfImage::slice(std::uint64_t offset, std::uint64_t size) const noexcept {
  if (offset > image_.size() || size > image_.size() - offset) return {};
  return image_.subspan(offset, size);
}

ElfImage::ElfImage(std::span<const std::uint8_t> image) : image_(image) {
  Elf64_Ehdr header{};
  if (!read(0, header) || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64 ||
      header.e_shentsize != sizeof(Elf64_Shdr)) {
    return;
  }
  valid_ = true;
  for (std::uint32_t i = 0; i < header.e_shnum; ++i) {
    Elf64_Shdr section{};
    if (header.e_shoff > image_.size() || !read(header.e_shoff + std::uint64_t{i} * sizeof section, section)) break;
    const bool stored = section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL;
    sections_.push_back({section.sh_type, section.sh_link,
                         stored ? slice(section.sh_offset, section.sh_size) : std::span<const std::uint8_t>()});
  }
  for (const Section& section : sections_) {
    const bool symbols = section.type == SHT_SYMTAB || section.type == SHT_DYNSYM;
    if (symbols && section.link < sections_.size()) read_functions(section, sections_[section.link]);
  }
}

void ElfImage::read_functions(const Section& symbols, const Section& names) {
  for (std::size_t at = 0; symbols.content.size() - at >= sizeof(Elf64_Sym); at += sizeof(Elf64_Sym)) {
    Elf64_Sym symbol{};
    std::memcpy(&symbol, symbols.content.data() + at, sizeof symbol);
    if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_name >= names.content.size()) continue;
    const char* text = reinterpret_cast<const char*>(names.content.data()) + symbol.st_name;
    const std::string_view name(text, ::strnlen(text, names.content.size() - symbol.st_name));
    if (code_bytes(name) < 0) functions_.push_back({name, symbol.st_size});
  }
}

std::int64_t ElfImage::code_bytes(std::string_view function) const noexcept {
  const auto found =
      std::find_if(functions_.begin(), functions_.end(), [&](const Function& known) { return known.name == function; });
  return found == functions_.end() ? -1 : static_cast<std::int64_t>(found->bytes);
}

std::span<const std::uint8_t> ElfImage::note(std::string_view owner, std::uint32_t type) const noexcept {
  constexpr auto kPadded = [](std::uint64_t size) { return (size + 3) / 4 * 4; };
  for (const Section& section : sections_) {
    if (section.type != SHT_NOTE) continue;
    std::span<const std::uint8_t> rest = section.content;
    while (rest.size() >= sizeof(Elf64_Nhdr)) {
      Elf64_Nhdr note{};
      std::memcpy(&note, rest.data(), sizeof note);
      rest = rest.subspan(sizeof note);
      const std::uint64_t name_size = kPadded(note.n_namesz), content_size = kPadded(note.n_descsz);
      if (name_size > rest.size() || note.n_descsz > rest.size() - name_size) break;
      const char* name = reinterpret_cast<const char*>(rest.data());
      if (note.n_type == type && std::string_view(name, ::strnlen(name, note.n_namesz)) == owner) {
        return rest.subspan(name_size, note.n_descsz);
      }
      rest = rest.subspan(std::min<std::uint64_t>(rest.size(), name_size + content_size));
    }
  }
  return {};
}

}  // namespace fastpath_gpu
