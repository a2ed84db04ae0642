#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "fastpath/plugin.h"
#include "fastpath/sdk/irreps.hpp"

namespace fastpath::sdk {

/// The configuration of an op: names with integer, real or text values, in the form that crosses the ABI.
class Attributes {
 public:
  using Integers = std::vector<std::int64_t>;
  using Reals = std::vector<double>;
  using Value = std::variant<Integers, Reals, std::string>;

  Attributes() = default;
  explicit Attributes(std::map<std::string, Value> values) : values_(std::move(values)) {}
  /// Copies a list that came over the ABI. @throws ConfigError for an entry that is null, unnamed, named twice or of
  /// unknown kind.
  static Attributes from(const fp_attribute_list& list);

  Attributes& set(std::string name, Integers value) { return put(std::move(name), std::move(value)); }
  Attributes& set(std::string name, Reals value) { return put(std::move(name), std::move(value)); }
  Attributes& set(std::string name, std::string value) { return put(std::move(name), std::move(value)); }

  bool has(std::string_view name) const { return values_.find(std::string(name)) != values_.end(); }
  /// @throws ConfigError if the name is missing or its value is of another kind; integer() and real() want one element.
  const Integers& integers(std::string_view name) const { return get<Integers>(name, "integers"); }
  const Reals& reals(std::string_view name) const { return get<Reals>(name, "reals"); }
  const std::string& text(std::string_view name) const { return get<std::string>(name, "text"); }
  std::int64_t integer(std::string_view name) const { return only(integers(name), name); }
  double real(std::string_view name) const { return only(reals(name), name); }
  const std::map<std::string, Value>& values() const noexcept { return values_; }

  /// The canonical form, version 1: per attribute, sorted by name: name length, name, kind, element count, elements;
  /// integers little-endian on 8 bytes, reals as the bits of a double. Equal configurations have equal bytes.
  std::string canonical_bytes() const;
  /// FNV-1a of the canonical bytes: keys caches, locks and measurements.
  std::uint64_t hash() const;

  friend bool operator==(const Attributes&, const Attributes&) = default;

 private:
  Attributes& put(std::string name, Value value) {
    values_[std::move(name)] = std::move(value);
    return *this;
  }
  template <class T>
  const T& get(std::string_view name, const char* kind) const {
    const auto found = values_.find(std::string(name));
    if (found == values_.end()) throw ConfigError("attribute '" + std::string(name) + "' is missing");
    const T* value = std::get_if<T>(&found->second);
    if (value == nullptr) throw ConfigError("attribute '" + std::string(name) + "' does not hold " + kind);
    return *value;
  }
  template <class T>
  static typename T::value_type only(const T& values, std::string_view name) {
    if (values.size() != 1) {
      throw ConfigError("attribute '" + std::string(name) + "' holds " + std::to_string(values.size()) +
                        " values, expected 1");
    }
    return values.front();
  }
  std::map<std::string, Value> values_;
};

/// A list of attributes in C form that points into an Attributes object, which must outlive it unchanged.
class AttributeList {
 public:
  explicit AttributeList(const Attributes& source) {
    for (const auto& [name, value] : source.values()) {
      fp_attribute item{};
      item.struct_size = FP_SIZE_ATTRIBUTE;
      item.name = name.data();
      item.name_size = name.size();
      if (const auto* integers = std::get_if<Attributes::Integers>(&value)) {
        item.kind = FP_ATTRIBUTE_I64;
        item.data = integers->data();
        item.count = integers->size();
      } else if (const auto* reals = std::get_if<Attributes::Reals>(&value)) {
        item.kind = FP_ATTRIBUTE_F64;
        item.data = reals->data();
        item.count = reals->size();
      } else {
        const auto& text = std::get<std::string>(value);
        item.kind = FP_ATTRIBUTE_UTF8;
        item.data = text.data();
        item.count = text.size();
      }
      items_.push_back(item);
    }
    list_.struct_size = FP_SIZE_ATTRIBUTE_LIST;
    list_.stride = sizeof(fp_attribute);
    list_.count = items_.size();
    list_.items = items_.data();
  }
  AttributeList(const AttributeList&) = delete;
  AttributeList& operator=(const AttributeList&) = delete;
  const fp_attribute_list& c_list() const noexcept { return list_; }

 private:
  std::vector<fp_attribute> items_;
  fp_attribute_list list_{};
};

inline Attributes Attributes::from(const fp_attribute_list& list) {
  Attributes result;
  for (std::uint64_t i = 0; i < list.count; ++i) {
    fp_attribute item{};
    const auto* source =
        reinterpret_cast<const fp_attribute*>(reinterpret_cast<const char*>(list.items) + i * list.stride);
    std::memcpy(&item, source, std::min<std::size_t>(source->struct_size, sizeof item));
    if (item.name == nullptr || item.name_size == 0 || (item.data == nullptr && item.count != 0)) {
      throw ConfigError("attribute " + std::to_string(i) + " has no name or no data");
    }
    std::string name(item.name, item.name_size);
    if (result.has(name)) throw ConfigError("attribute '" + name + "' is given twice");
    if (item.kind == FP_ATTRIBUTE_I64) {
      const auto* data = static_cast<const std::int64_t*>(item.data);
      result.set(std::move(name), Integers(data, data + item.count));
    } else if (item.kind == FP_ATTRIBUTE_F64) {
      const auto* data = static_cast<const double*>(item.data);
      result.set(std::move(name), Reals(data, data + item.count));
    } else if (item.kind == FP_ATTRIBUTE_UTF8) {
      result.set(std::move(name), std::string(static_cast<const char*>(item.data), item.count));
    } else {
      throw ConfigError("attribute '" + name + "' has unknown kind " + std::to_string(item.kind));
    }
  }
  return result;
}

inline std::string Attributes::canonical_bytes() const {
  std::string bytes;
  const auto append = [&](std::uint64_t word) {
    for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>((word >> shift) & 0xff);
  };
  append(1);
  for (const auto& [name, value] : values_) {
    append(name.size());
    bytes += name;
    append(value.index());
    if (const auto* integers = std::get_if<Integers>(&value)) {
      append(integers->size());
      for (const std::int64_t element : *integers) append(static_cast<std::uint64_t>(element));
    } else if (const auto* reals = std::get_if<Reals>(&value)) {
      append(reals->size());
      for (const double element : *reals) append(std::bit_cast<std::uint64_t>(element));
    } else {
      const auto& text = std::get<std::string>(value);
      append(text.size());
      bytes += text;
    }
  }
  return bytes;
}

inline std::uint64_t Attributes::hash() const {
  std::uint64_t state = 14695981039346656037ull;
  for (const char c : canonical_bytes()) {
    state ^= static_cast<unsigned char>(c);
    state *= 1099511628211ull;
  }
  return state;
}

}  // namespace fastpath::sdk
