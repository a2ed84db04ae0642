#include "code_object.hpp"

#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "runtime/elf_image.hpp"

namespace fastpath_hip {
namespace {

namespace gpu = fastpath_gpu;

constexpr std::uint32_t kMetadataNote = 32;  // NT_AMDGPU_METADATA
constexpr int kVectorRegisterBytes = 4;      // of one work-item

/// Reads MessagePack front to back. Every value takes at least a byte, so work is bounded by the size of the input.
class Reader {
 public:
  explicit Reader(std::span<const std::uint8_t> bytes) : rest_(bytes) {}

  enum class Kind { integer, text, list, map, other };
  struct Value {
    Kind kind = Kind::other;
    std::uint64_t number = 0;  ///< The integer; or how many values follow: items, or keys and values.
    std::string_view text;
  };
  /// The next value's head; what a list or map holds comes with the calls after. Nothing at the end, or if malformed.
  std::optional<Value> next() {
    const auto head = take(1);
    if (!head) return std::nullopt;
    const std::uint8_t tag = (*head)[0];
    if (tag < 0x80) return Value{Kind::integer, tag, {}};
    if (tag < 0x90) return Value{Kind::map, 2u * (tag & 15u), {}};
    if (tag < 0xa0) return Value{Kind::list, tag & 15u, {}};
    if (tag < 0xc0) return text(tag & 31u);
    switch (tag) {
      case 0xc0:  // nil, false, true
      case 0xc2:
      case 0xc3:
        return Value{};
      case 0xca:  // float, double
        return skipped(4);
      case 0xcb:
        return skipped(8);
      case 0xcc:
      case 0xcd:
      case 0xce:
      case 0xcf:
      case 0xd0:
      case 0xd1:
      case 0xd2:
      case 0xd3: {
        const auto value = number(std::size_t{1} << (tag & 3u));
        return value ? std::optional(Value{Kind::integer, *value, {}}) : std::nullopt;
      }
      case 0xc4:  // binary
      case 0xc5:
      case 0xc6: {
        const auto size = number(std::size_t{1} << (tag - 0xc4u));
        return size ? skipped(*size) : std::nullopt;
      }
      case 0xd9:
      case 0xda:
      case 0xdb: {
        const auto size = number(std::size_t{1} << (tag - 0xd9u));
        return size ? text(*size) : std::nullopt;
      }
      case 0xdc:
      case 0xdd:
        return counted(Kind::list, tag == 0xdc ? 2 : 4, 1);
      case 0xde:
      case 0xdf:
        return counted(Kind::map, tag == 0xde ? 2 : 4, 2);
      default:  // extensions: not in this metadata
        return std::nullopt;
    }
  }
  /// Passes over everything that a value holds. False if malformed.
  bool skip(const Value& value) {
    // Without recursion, so that depth costs nothing: what is to come, all levels together.
    std::uint64_t open = value.kind == Kind::list || value.kind == Kind::map ? value.number : 0;
    while (open > 0) {
      const auto inner = next();
      if (!inner) return false;
      --open;
      if (inner->kind != Kind::list && inner->kind != Kind::map) continue;
      if (inner->number > rest_.size()) return false;
      open += inner->number;
    }
    return true;
  }

 private:
  std::optional<std::span<const std::uint8_t>> take(std::uint64_t size) {
    if (size > rest_.size()) return std::nullopt;
    const auto result = rest_.first(size);
    rest_ = rest_.subspan(size);
    return result;
  }
  std::optional<std::uint64_t> number(std::size_t size) {
    const auto bytes = take(size);
    if (!bytes) return std::nullopt;
    std::uint64_t value = 0;
    for (const std::uint8_t byte : *bytes) value = value << 8 | byte;
    return value;
  }
  std::optional<Value> text(std::uint64_t size) {
    const auto bytes = take(size);
    if (!bytes) return std::nullopt;
    return Value{Kind::text, 0, {reinterpret_cast<const char*>(bytes->data()), bytes->size()}};
  }
  std::optional<Value> skipped(std::uint64_t size) { return take(size) ? std::optional(Value{}) : std::nullopt; }
  std::optional<Value> counted(Kind kind, std::size_t size, std::uint64_t each) {
    const auto count = number(size);
    if (!count || *count > rest_.size()) return std::nullopt;
    return Value{kind, *count * each, {}};
  }

  std::span<const std::uint8_t> rest_;
};

/// What the metadata says of one kernel; -1 where it says nothing.
struct Kernel {
  std::string_view name;
  std::int64_t registers = -1, spills = -1, shared_bytes = -1;
};

std::optional<Kernel> read_kernel(Reader& reader, std::uint64_t values) {
  Kernel kernel;
  for (; values >= 2; values -= 2) {
    const auto key = reader.next();
    const auto value = key ? reader.next() : std::nullopt;
    if (!value) return std::nullopt;
    if (value->kind == Reader::Kind::integer) {
      const auto number = static_cast<std::int64_t>(value->number);
      if (key->text == ".vgpr_count") kernel.registers = number;
      if (key->text == ".vgpr_spill_count") kernel.spills = number;
      if (key->text == ".group_segment_fixed_size") kernel.shared_bytes = number;
    } else if (value->kind == Reader::Kind::text) {
      if (key->text == ".name") kernel.name = value->text;
    } else if (!reader.skip(*value)) {
      return std::nullopt;
    }
  }
  return kernel;
}

std::vector<Kernel> read_kernels(std::span<const std::uint8_t> note) {
  Reader reader(note);
  std::vector<Kernel> kernels;
  const auto top = reader.next();
  if (!top || top->kind != Reader::Kind::map) return kernels;
  for (std::uint64_t values = top->number; values >= 2; values -= 2) {
    const auto key = reader.next();
    const auto value = key ? reader.next() : std::nullopt;
    if (!value) return kernels;
    if (key->text != "amdhsa.kernels" || value->kind != Reader::Kind::list) {
      if (!reader.skip(*value)) return kernels;
      continue;
    }
    for (std::uint64_t i = 0; i < value->number; ++i) {
      const auto entry = reader.next();
      if (!entry || entry->kind != Reader::Kind::map) return kernels;
      const auto kernel = read_kernel(reader, entry->number);
      if (!kernel) return kernels;
      kernels.push_back(*kernel);
    }
  }
  return kernels;
}

}  // namespace

std::vector<gpu::KernelResources> resources_of(const gpu::Program& program,
                                               const std::vector<std::uint8_t>& code_object) {
  const gpu::ElfImage image(code_object);
  const std::vector<Kernel> kernels = read_kernels(image.note("AMDGPU", kMetadataNote));
  std::vector<gpu::KernelResources> result;
  for (const gpu::KernelInfo& info : program.kernels) {
    gpu::KernelResources& resources = result.emplace_back();
    resources.kernel = info.name;
    resources.code_bytes = image.code_bytes(info.name);
    for (const Kernel& kernel : kernels) {
      if (kernel.name != info.name) continue;
      resources.registers = kernel.registers;
      resources.shared_bytes = kernel.shared_bytes;
      if (kernel.spills >= 0) resources.spill_bytes = kVectorRegisterBytes * kernel.spills;
    }
  }
  return result;
}

}  // namespace fastpath_hip
