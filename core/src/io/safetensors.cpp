#include "fastpath/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>

#include "fastpath/error.hpp"
#include "io/file.hpp"
#include "io/printable.hpp"

// A file is: the header's length (8 bytes, little-endian), the header (JSON), the data of all tensors.
// Source: the format description of the safetensors project.
static_assert(std::endian::native == std::endian::little, "elements are mapped, and the format is little-endian");

namespace fastpath {
namespace {

using io::printable;

constexpr std::uint64_t kPrefix = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;  // the format's own limit
constexpr std::size_t kHighestRank = 64;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 59;  // far above any file; also what a Tensor can count
constexpr std::string_view kMetadata = "__metadata__";
constexpr std::array<std::pair<std::string_view, DType>, 6> kDTypes{{{"F32", DType::float32},
                                                                     {"F64", DType::float64},
                                                                     {"I32", DType::int32},
                                                                     {"I64", DType::int64},
                                                                     {"BOOL", DType::boolean},
                                                                     {"U8", DType::uint8}}};

struct Entry {
  std::string name;
  std::optional<DType> dtype;
  bool has_shape = false;
  std::vector<std::uint64_t> shape;
  bool has_offsets = false;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Takes the header apart while it is parsed, because a JSON document would have dropped duplicate names silently.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::string file) : file_(std::move(file)) {}

  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::bad_file, fmt::format("{}: {}", file_, what));
  }

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a truth value"); }
  bool number_integer(number_integer_t value) override { return refuse(fmt::format("{}", value)); }
  bool number_float(number_float_t, const string_t& text) override { return refuse(printable(text)); }
  bool binary(binary_t&) override { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::shape) {
      std::vector<std::uint64_t>& shape = entries.back().shape;
      if (shape.size() == kHighestRank) fail(fmt::format("{} has more than {} axes", subject(), kHighestRank));
      shape.push_back(value);
    } else if (place_ == Place::offsets) {
      if (offsets_seen_ == 2) fail(fmt::format("{} has more than 2 data_offsets", subject()));
      (offsets_seen_++ == 0 ? entries.back().begin : entries.back().end) = value;
    } else {
      refuse(fmt::format("{}", value));
    }
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::metadata) {
      metadata[key_] = value;
      return true;
    }
    if (place_ != Place::tensor || key_ != "dtype") return refuse(printable(value));
    for (const auto& [name, dtype] : kDTypes) {
      if (name == value) entries.back().dtype = dtype;
    }
    if (!entries.back().dtype) {
      fail(fmt::format("{} has dtype {}, expected F32, F64, I32, I64, BOOL or U8", subject(), printable(value)));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::before) {
      place_ = Place::top;
    } else if (place_ == Place::top) {
      place_ = key_ == kMetadata ? Place::metadata : Place::tensor;
      keys_.clear();
    } else {
      refuse("an object");
    }
    return true;
  }

  bool key(string_t& name) override {
    auto& seen = place_ == Place::top ? names_ : keys_;
    if (!seen.insert(name).second) {
      fail(place_ == Place::top ? fmt::format("header has {} twice", printable(name))
                                : fmt::format("{} has the key {} twice", subject(), printable(name)));
    }
    key_ = name;
    if (place_ == Place::top && name != kMetadata) entries.emplace_back().name = name;
    if (place_ == Place::tensor && name != "dtype" && name != "shape" && name != "data_offsets") {
      fail(fmt::format("{} has the key {}, expected dtype, shape and data_offsets", subject(), printable(name)));
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::tensor) {
      const Entry& entry = entries.back();
      std::vector<std::string_view> missing;
      if (!entry.dtype) missing.push_back("dtype");
      if (!entry.has_shape) missing.push_back("shape");
      if (!entry.has_offsets) missing.push_back("data_offsets");
      if (!missing.empty()) fail(fmt::format("{} has no {}", subject(), fmt::join(missing, ", ")));
    }
    place_ = place_ == Place::top ? Place::after : Place::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::tensor && key_ == "shape") {
      place_ = Place::shape;
      entries.back().has_shape = true;
    } else if (place_ == Place::tensor && key_ == "data_offsets") {
      place_ = Place::offsets;
      entries.back().has_offsets = true;
      offsets_seen_ = 0;
    } else {
      refuse("an array");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::offsets && offsets_seen_ != 2) {
      fail(fmt::format("{} has {} data_offsets, expected 2", subject(), offsets_seen_));
    }
    place_ = Place::tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string& token, const nlohmann::json::exception&) override {
    fail(fmt::format("header is not JSON at its byte {}, near {}", position, printable(token)));
  }

 private:
  enum class Place { before, top, metadata, tensor, shape, offsets, after };

  std::string subject() const {
    if (place_ == Place::metadata) return std::string(kMetadata);
    return entries.empty() ? "header" : fmt::format("tensor {}", printable(entries.back().name));
  }

  bool refuse(const std::string& found) const {
    switch (place_) {
      case Place::before:
        fail(fmt::format("header is {}, expected an object", found));
      case Place::top:
        fail(fmt::format("{} is {}, expected an object", printable(key_), found));
      case Place::metadata:
        fail(fmt::format("metadata {} is {}, expected a string", printable(key_), found));
      case Place::tensor:
        fail(fmt::format("{} of {} is {}, expected {}", key_, subject(), found,
                         key_ == "dtype" ? "a string" : "an array"));
      default:
        fail(fmt::format("{} of {} holds {}, expected a whole number of at least 0", key_, subject(), found));
    }
  }

  std::string file_;
  Place place_ = Place::before;
  std::string key_;
  int offsets_seen_ = 0;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> keys_;
};

/// The shape of an entry after checking that its elements are exactly the bytes it claims.
Shape checked_shape(const Entry& entry, const HeaderReader& reader) {
  Shape shape;
  std::int64_t bytes = static_cast<std::int64_t>(size_of(*entry.dtype));
  for (const std::uint64_t size : entry.shape) {
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
        __builtin_mul_overflow(bytes, static_cast<std::int64_t>(size), &bytes) || bytes > kMostBytes) {
      reader.fail(fmt::format("tensor {} has shape [{}], more elements than can be counted", printable(entry.name),
                              fmt::join(entry.shape, ", ")));
    }
    shape.push_back(static_cast<std::int64_t>(size));
  }
  const std::uint64_t given = entry.end - entry.begin;
  if (static_cast<std::uint64_t>(bytes) != given) {
    reader.fail(fmt::format("tensor {} of shape {} and dtype {} needs {} bytes, its data_offsets give {}",
                            printable(entry.name), to_string(shape), to_string(*entry.dtype), bytes, given));
  }
  return shape;
}

/// Sorts by offset and checks that the tensors tile the data: nothing outside, no overlap, no hole.
void check_layout(std::vector<Entry>& entries, std::uint64_t available, const HeaderReader& reader) {
  for (const Entry& entry : entries) {
    if (entry.begin > entry.end) {
      reader.fail(fmt::format("tensor {} has data_offsets [{}, {}], the end before the begin", printable(entry.name),
                              entry.begin, entry.end));
    }
    if (entry.end > available) {
      reader.fail(fmt::format("tensor {} ends at byte {} of the data, but the file has only {}; is it truncated?",
                              printable(entry.name), entry.end, available));
    }
  }
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t expected = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != expected) {
      reader.fail(fmt::format("tensor {} begins at byte {} of the data, expected {}: {}", printable(entry.name),
                              entry.begin, expected,
                              entry.begin < expected ? "it overlaps the one before" : "there is a hole before it"));
    }
    expected = entry.end;
  }
  if (expected != available) {
    reader.fail(fmt::format("the tensors need {} bytes of data, the file has {}", expected, available));
  }
}

std::string_view name_of(DType dtype) {
  for (const auto& [name, value] : kDTypes) {
    if (value == dtype) return name;
  }
  throw Error(ErrorCode::internal, "dtype without a name in safetensors files");
}

std::string json_string(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is not valid UTF-8", printable(text)));
  }
}

std::string header_of(const StateDict& tensors, const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += fmt::format("\"{}\":{{", kMetadata);
    for (const auto& [key, value] : metadata) header += fmt::format("{}:{},", json_string(key), json_string(value));
    header.back() = '}';
    header += ',';
  }
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    if (name == kMetadata)
      throw Error(ErrorCode::invalid_argument, fmt::format("a tensor may not be named {}", kMetadata));
    if (!tensor.defined()) throw Error(ErrorCode::invalid_argument, fmt::format("tensor '{}' is undefined", name));
    if (!tensor.device().is_cpu()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("tensor '{}' is on {}, expected cpu", name, to_string(tensor.device())));
    }
    const std::uint64_t end = offset + tensor.bytes();
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", json_string(name),
                          name_of(tensor.dtype()), fmt::join(tensor.shape(), ","), offset, end);
    offset = end;
  }
  if (header.back() == ',') header.pop_back();
  header += '}';
  header.append((kPrefix - header.size() % kPrefix) % kPrefix, ' ');
  if (header.size() > kLongestHeader) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a header of {} bytes is longer than the format's {}", header.size(), kLongestHeader));
  }
  return header;
}

}  // namespace

SafetensorsFile read_safetensors(const std::filesystem::path& path) {
  const auto file = std::make_shared<const io::MappedFile>(path);
  const std::span<const std::byte> bytes = file->bytes();
  HeaderReader reader(path.string());
  if (bytes.size() < kPrefix) {
    reader.fail(fmt::format("has {} bytes, a safetensors file has at least {}", bytes.size(), kPrefix + 2));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  if (length > bytes.size() - kPrefix || length > kLongestHeader) {
    reader.fail(
        fmt::format("claims a header of {} bytes, but has {} after the length (and a header has at most {}); is it "
                    "truncated, or not a safetensors file?",
                    length, bytes.size() - kPrefix, kLongestHeader));
  }
  const char* text = reinterpret_cast<const char*>(bytes.data()) + kPrefix;
  if (length == 0 || *text != '{') reader.fail("header does not begin with '{'; is it a safetensors file?");
  // The parser takes a zero byte for the end of the text.
  if (const void* zero = std::memchr(text, 0, length); zero != nullptr) {
    reader.fail(fmt::format("header is not JSON: its byte {} is zero", static_cast<const char*>(zero) - text));
  }
  nlohmann::json::sax_parse(text, text + length, &reader);

  const std::span<const std::byte> data = bytes.subspan(kPrefix + length);
  check_layout(reader.entries, data.size(), reader);
  SafetensorsFile result;
  result.metadata = std::move(reader.metadata);
  for (const Entry& entry : reader.entries) {
    Shape shape = checked_shape(entry, reader);
    const std::span<const std::byte> part = data.subspan(entry.begin, entry.end - entry.begin);
    if (*entry.dtype == DType::boolean) {
      const auto odd = std::find_if(part.begin(), part.end(), [](std::byte b) { return b > std::byte{1}; });
      if (odd != part.end()) {
        reader.fail(fmt::format("tensor {} of dtype bool holds the byte {}, expected 0 or 1", printable(entry.name),
                                std::to_integer<int>(*odd)));
      }
    }
    // The format does not promise alignment to the element size, and an unaligned load is undefined.
    if (reinterpret_cast<std::uintptr_t>(part.data()) % size_of(*entry.dtype) == 0) {
      void* elements = const_cast<std::byte*>(part.data());
      result.tensors.add(entry.name, Tensor::wrap(elements, std::move(shape), {}, *entry.dtype, Device::cpu(), file));
    } else {
      const Tensor copy = Tensor::empty(std::move(shape), *entry.dtype);
      if (!part.empty()) std::memcpy(copy.raw(), part.data(), part.size());
      result.tensors.add(entry.name, copy);
    }
  }
  return result;
}

void write_safetensors(const std::filesystem::path& path, const StateDict& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const std::string header = header_of(tensors, metadata);
  const std::uint64_t length = header.size();
  io::ReplacingFile file(path);
  file.write(std::as_bytes(std::span(&length, 1)));
  file.write(header);
  for (const auto& [name, tensor] : tensors) {
    const Tensor packed = tensor.contiguous();
    file.write(std::span(static_cast<const std::byte*>(packed.raw()), packed.bytes()));
  }
  file.commit();
}

}  // namespace fastpath
