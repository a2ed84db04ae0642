#include "driver.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>

namespace fastpath::conformance {

std::string status_name(std::int32_t status) {
  constexpr std::array kNames{"ok",   "unsupported", "invalid_argument", "incompatible", "unavailable", "out_of_memory",
                              "busy", "device_lost", "numerics",         "internal"};
  return known_status(status) ? kNames[static_cast<std::size_t>(-status)] : "status " + std::to_string(status);
}
bool valid_text(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    const auto byte = [&](std::size_t k) { return k < text.size() ? static_cast<unsigned char>(text[k]) : 0u; };
    const unsigned lead = byte(i);
    const std::size_t length = lead < 0x80                   ? 1
                               : lead >= 0xc2 && lead < 0xe0 ? 2
                               : lead >= 0xe0 && lead < 0xf0 ? 3
                               : lead >= 0xf0 && lead < 0xf5 ? 4
                                                             : 0;
    if (length == 0 || (length == 1 && (lead < 0x20 || lead == 0x7f))) return false;
    for (std::size_t k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0u) != 0x80u) return false;
    }
    i += length;
  }
  return true;
}
bool known_status(std::int32_t status) { return status <= FP_OK && status >= FP_E_INTERNAL; }

namespace {
constexpr char kRubbish = static_cast<char>(0xAB);
}

Structs::~Structs() {
  for (const Block& block : blocks_) {
    if (block.pages != nullptr) {
      ::munmap(block.pages, block.page_bytes);
    } else {
      std::free(block.data);
    }
  }
}

Structs::Block Structs::allocate(std::size_t size) {
  if (!dialect_.fenced) {
    char* data = static_cast<char*>(std::malloc(std::max<std::size_t>(size, 1)));
    if (data == nullptr) throw std::bad_alloc();
    return {data, size, 0, 0, nullptr, 0};
  }
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t used = (size + page - 1) / page * page;
  void* pages = ::mmap(nullptr, used + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  char* fence = static_cast<char*>(pages) + used;
  ::mprotect(fence, page, PROT_NONE);
  return {fence - size, size, 0, 0, pages, used + page};
}

void* Structs::put_bytes(const void* value, std::uint32_t known, std::uint32_t older_end) {
  const std::uint32_t end = dialect_.older && older_end != 0 ? older_end : known;
  const std::uint32_t size = end + dialect_.extra;
  Block block = allocate(size);
  block.known = end;
  block.stated = size;
  std::memset(block.data, kRubbish, size);
  std::memcpy(block.data, value, end);
  std::memcpy(block.data, &size, sizeof size);
  blocks_.push_back(block);
  return block.data;
}

const void* Structs::put_items(const char* items, std::size_t item_size, std::size_t count, std::uint32_t known,
                               std::uint32_t older_end, std::uint32_t* stride) {
  const std::uint32_t end = dialect_.older && older_end != 0 ? older_end : known;
  const std::uint32_t size = end + dialect_.extra;
  *stride = (size + dialect_.gap + 7) / 8 * 8;
  if (count == 0) return nullptr;
  // The last item ends where its struct ends, not where its stride does.
  Block block = allocate(*stride * (count - 1) + size);
  std::memset(block.data, kRubbish, block.size);
  for (std::size_t i = 0; i < count; ++i) {
    char* to = block.data + i * *stride;
    std::memcpy(to, items + i * item_size, end);
    std::memcpy(to, &size, sizeof size);
  }
  blocks_.push_back(block);
  return block.data;
}

const char* Structs::put_text(std::string_view text) {
  constexpr std::size_t kBehind = 8;
  Block block = allocate(text.size() + (dialect_.fenced ? 0 : kBehind));
  std::memset(block.data, 'Z', block.size);
  if (!text.empty()) std::memcpy(block.data, text.data(), text.size());
  blocks_.push_back(block);
  return block.data;
}

std::string Structs::damage() const {
  for (const Block& block : blocks_) {
    if (block.stated == 0) continue;
    std::uint32_t size = 0;
    std::memcpy(&size, block.data, sizeof size);
    if (size != block.stated) {
      return "struct_size of a struct became " + std::to_string(size) + ", was " + std::to_string(block.stated);
    }
    for (std::size_t i = block.known; i < block.size; ++i) {
      if (block.data[i] != kRubbish) {
        return "byte " + std::to_string(i) + " of a struct whose last known member ends at byte " +
               std::to_string(block.known) + " was written";
      }
    }
  }
  return {};
}

Errors::Errors() : sink_(sdk::abi_struct<fp_error_sink>()) {
  sink_.context = this;
  sink_.report = [](void* context, std::int32_t, const char* text, std::uint64_t size) {
    constexpr std::uint64_t kMost = 4096;
    std::string& to = static_cast<Errors*>(context)->text_;
    if (text != nullptr && to.size() < kMost) to.append(text, static_cast<std::size_t>(std::min(size, kMost)));
  };
}

}  // namespace fastpath::conformance
