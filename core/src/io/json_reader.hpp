#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace fastpath::io {

using Json = nlohmann::ordered_json;

/// The document of a text, bounded in depth and in keys; a key given twice is refused.
/// @param name  Stands for the file in messages. @throws Error(bad_file)
Json parse_json(const std::string& text, const std::string& name);

/// A value as a message may show it.
std::string shown(const Json& value);

/// Reads the keys of an object one by one, remembers what was asked for, and collects every problem.
class JsonReader {
 public:
  /// @param json  An object, which must outlive the reader. @param name  Stands for the file in messages.
  JsonReader(const Json& json, std::string name) : json_(json), name_(std::move(name)), root_(this) {}
  JsonReader(const JsonReader&) = delete;
  JsonReader& operator=(const JsonReader&) = delete;
  ~JsonReader() = default;

  void problem(std::string text) { root_->problems_.push_back(std::move(text)); }
  bool has(const char* key) const { return json_.contains(key); }
  const Json* find(const char* key, bool required);
  const Json* raw(const char* key) { return find(key, false); }
  /// The problem that a key has a value other than expected.
  void wrong(const char* key, const Json& found, const std::string& expected);

  // Each leaves `value` as it is where the key is missing or wrong.
  template <class Integer>
  void integer(const char* key, Integer& value, std::int64_t low, std::int64_t high, bool required) {
    std::int64_t read = 0;
    if (read_integer(key, read, low, high, required)) value = static_cast<Integer>(read);
  }
  void number(const char* key, double& value, bool required);  ///< Positive.
  /// In low..high, both included; `expected` is what a message says of the range.
  void number_in(const char* key, double& value, double low, double high, const char* expected);
  void boolean(const char* key, bool& value);
  /// True if the value was read.
  bool text(const char* key, std::string& value, bool required);
  void choice(const char* key, std::string& value, const std::vector<std::string>& accepted, bool required);
  template <class Integer>
  void integers(const char* key, std::vector<Integer>& value, std::int64_t low, std::int64_t high, bool required) {
    std::vector<std::int64_t> read;
    if (!read_integers(key, read, low, high, required)) return;
    value.clear();
    for (const std::int64_t item : read) value.push_back(static_cast<Integer>(item));
  }
  void names(const char* key, std::vector<std::string>& value);
  /// One value for every layer, or a list with one per layer.
  template <class T, class Good>
  void per_layer(const char* key, std::vector<T>& value, std::int64_t layers, Good good, const char* expected) {
    const Json* found = find(key, true);
    if (found == nullptr) return;
    const bool list = found->is_array();
    bool fits = list ? static_cast<std::int64_t>(found->size()) == layers : good(*found);
    for (std::size_t i = 0; list && fits && i < found->size(); ++i) fits = good((*found)[i]);
    if (!fits) return wrong(key, *found, expected);
    value.clear();
    for (std::int64_t t = 0; t < layers; ++t) {
      value.push_back(list ? (*found)[static_cast<std::size_t>(t)].template get<T>() : found->template get<T>());
    }
  }

  /// Reads the object under a key by `read(JsonReader&)`, which is not called where the key is missing or no object.
  /// Problems name "key.inner", and one that nobody asked for the keys that there are.
  template <class Read>
  void section(const char* key, bool required, Read read) {
    const Json* found = find(key, required);
    if (found == nullptr) return;
    if (!found->is_object()) return wrong(key, *found, "an object");
    JsonReader inner(*found, *this, key);
    read(inner);
    inner.report_unknown(true);
  }

  /// @param list_known  Whether the problem of an unknown key lists those that there are.
  /// @throws Error(bad_file) if there was any problem, or a key nobody asked for.
  void finish(bool list_known = false);
  bool good() const { return root_->problems_.empty(); }

 private:
  JsonReader(const Json& json, JsonReader& parent, const char* key)
      : json_(json), prefix_(parent.prefix_ + key + "."), root_(parent.root_) {}
  bool read_integer(const char* key, std::int64_t& value, std::int64_t low, std::int64_t high, bool required);
  bool read_integers(const char* key, std::vector<std::int64_t>& value, std::int64_t low, std::int64_t high,
                     bool required);
  void report_unknown(bool list_known);

  const Json& json_;
  std::string name_, prefix_;
  JsonReader* root_;
  std::set<std::string> asked_;
  std::vector<std::string> problems_;  // of the root
};

}  // namespace fastpath::io
