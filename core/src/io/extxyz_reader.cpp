#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "io/extxyz_comment.hpp"
#include "io/extxyz_values.hpp"
#include "io/file.hpp"
#include "io/printable.hpp"

namespace fastpath {
namespace {

using io::CommentEntry;
using io::is_blank;
using io::Malformed;
using io::printable;

constexpr std::string_view kDefaultProperties = "species:S:1:pos:R:3";
constexpr std::int64_t kWidest = 1'000'000;  // keeps sums of widths far from overflow; rows bound them in fact

struct Property {
  enum class Role { species, number, position, other };
  Role role = Role::other;
  char type = 'S';
  AtomColumn column;
};

/// One pass over a text, frame by frame, that knows where it is.
class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {
    if (text_.substr(0, 3) == "\xef\xbb\xbf") text_.remove_prefix(3);  // a byte-order mark
  }

  std::vector<Structure> read() {
    std::vector<Structure> frames;
    while (text_.find_first_not_of(" \t\v\f\r\n", next_) != std::string_view::npos) {
      ++frame_;
      frames.push_back(read_frame());
    }
    if (frames.empty()) {
      advance();
      fail(0, "the file is empty, expected at least one frame");
    }
    return frames;
  }

 private:
  [[noreturn]] void fail(std::size_t at, const std::string& what) const {
    throw Error(ErrorCode::bad_file, fmt::format("{}:{}:{}: {}", name_, line_number_, at + 1, what));
  }

  /// Moves to the next line; at the end of the text the line is empty and the answer false.
  bool advance() {
    ++line_number_;
    line_ = {};
    at_ = 0;
    if (next_ >= text_.size()) return false;
    const std::size_t end = std::min(text_.find('\n', next_), text_.size());
    line_ = text_.substr(next_, end - next_);
    if (!line_.empty() && line_.back() == '\r') line_.remove_suffix(1);
    next_ = end + 1;
    return true;
  }

  std::size_t bytes_left() const { return text_.size() - std::min(next_, text_.size()); }

  /// The next word of the line, empty at its end; `at_` is then behind it and `word_at_` where it begins.
  std::string_view word() {
    while (at_ < line_.size() && is_blank(line_[at_])) ++at_;
    word_at_ = at_;
    while (at_ < line_.size() && !is_blank(line_[at_])) ++at_;
    return line_.substr(word_at_, at_ - word_at_);
  }

  Structure read_frame() {
    advance();
    const std::int64_t atoms = read_count();
    if (!advance()) fail(0, fmt::format("frame {} ends before its comment line", frame_));
    Structure frame;
    std::vector<Property> properties = read_comment(frame);
    // A row has a symbol, three coordinates and the blanks between them, so this reserves no more than the text holds.
    const auto most = std::min(static_cast<std::size_t>(atoms), bytes_left() / 7 + 1);
    frame.atomic_numbers.reserve(most);
    frame.positions.reserve(most);
    for (std::int64_t atom = 0; atom < atoms; ++atom) {
      if (!advance()) fail(0, fmt::format("frame {} claims {} atoms, the file ends after {}", frame_, atoms, atom));
      read_row(frame, properties, atom, atoms);
    }
    for (Property& property : properties) {
      if (property.role == Property::Role::other) frame.columns.push_back(std::move(property.column));
    }
    return frame;
  }

  std::int64_t read_count() {
    const std::string_view text = word();
    const std::optional<std::int64_t> count = io::parse_integer(text);
    const std::string hint =
        frame_ > 1 ? fmt::format("; does frame {} have more rows than it claims?", frame_ - 1) : std::string{};
    if (!count || *count < 0) {
      fail(word_at_, fmt::format("expected the number of atoms of frame {}, found {}{}", frame_,
                                 text.empty() ? "a blank line" : printable(text), hint));
    }
    if (const std::string_view more = word(); !more.empty()) {
      fail(word_at_, fmt::format("{} after the number of atoms of frame {}{}", printable(more), frame_, hint));
    }
    return *count;
  }

  std::vector<Property> read_comment(Structure& frame) {
    std::vector<CommentEntry> entries;
    try {
      entries = io::parse_comment(line_);
    } catch (const Malformed& problem) {
      fail(problem.at, problem.what);
    }
    std::vector<Property> properties;
    const CommentEntry* lattice = nullptr;
    const CommentEntry* pbc = nullptr;
    std::set<std::string> keys;
    for (CommentEntry& entry : entries) {
      const std::string key = io::lower(entry.key);
      const bool is_lattice = key == "lattice";
      const bool is_properties = key == "properties";
      if ((is_lattice && lattice != nullptr) || (is_properties && !properties.empty()) ||
          (key == "pbc" && pbc != nullptr) || !keys.insert(entry.key).second) {
        fail(entry.key_at, fmt::format("the key {} is given twice", printable(entry.key)));
      }
      if (is_lattice) {
        lattice = &entry;
        read_lattice(frame, entry);
      } else if (is_properties) {
        const auto* words = std::get_if<std::vector<std::string>>(&entry.value);
        if (words == nullptr || words->size() != 1) {
          fail(entry.value_at, "Properties is not of the form name:type:columns:...");
        }
        properties = read_properties(words->front(), entry.value_at);
      } else if (key == "pbc") {
        pbc = &entry;
        read_pbc(frame, entry);
      } else {
        frame.info.emplace_back(std::move(entry.key), std::move(entry.value));
      }
    }
    if (properties.empty()) properties = read_properties(kDefaultProperties, 0);
    if (pbc == nullptr && lattice != nullptr) frame.pbc = {true, true, true};
    for (std::size_t axis = 0; axis < 3; ++axis) {
      if (frame.pbc[axis] && frame.cell[axis] == Vec3{}) {
        fail(pbc != nullptr ? pbc->value_at : lattice->value_at,
             fmt::format("frame {} is periodic along {}, but that lattice vector is {}", frame_, "abc"[axis],
                         lattice != nullptr ? "zero" : "not given"));
      }
    }
    return properties;
  }

  void read_lattice(Structure& frame, const CommentEntry& entry) {
    std::vector<double> numbers;
    if (const auto* reals = std::get_if<std::vector<double>>(&entry.value)) numbers = *reals;
    if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&entry.value)) {
      for (const std::int64_t value : *integers) numbers.push_back(static_cast<double>(value));
    }
    if (numbers.size() != 9 && numbers.size() != 3) {
      fail(entry.value_at, fmt::format("Lattice has {} {}, expected 9 numbers (or the 3 of a diagonal)",
                                       numbers.empty() ? count(entry.value) : numbers.size(),
                                       numbers.empty() ? "values that are not numbers" : "numbers"));
    }
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (!std::isfinite(numbers[i])) {
        fail(entry.value_at, fmt::format("number {} of Lattice is {}, expected a finite number", i + 1, numbers[i]));
      }
      (numbers.size() == 3 ? frame.cell[i][i] : frame.cell[i / 3][i % 3]) = numbers[i];
    }
  }

  void read_pbc(Structure& frame, const CommentEntry& entry) {
    std::vector<bool> values;
    if (const auto* truths = std::get_if<std::vector<bool>>(&entry.value)) values = *truths;
    if (const auto* integers = std::get_if<std::vector<std::int64_t>>(&entry.value)) {
      for (const std::int64_t value : *integers) {
        if (value != 0 && value != 1) {
          fail(entry.value_at, fmt::format("pbc holds {}, expected T or F", value));
        }
        values.push_back(value == 1);
      }
    }
    if (values.size() != 3 && values.size() != 1) {
      fail(entry.value_at, "pbc is not three truth values, such as \"T T F\"");
    }
    for (std::size_t axis = 0; axis < 3; ++axis) frame.pbc[axis] = values[values.size() == 3 ? axis : 0];
  }

  std::vector<Property> read_properties(std::string_view text, std::size_t text_at) {
    std::vector<std::pair<std::string_view, std::size_t>> parts;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(':', begin), text.size());
      parts.emplace_back(text.substr(begin, end - begin), text_at + begin);
      begin = end + 1;
    }
    if (parts.size() % 3 != 0) {
      fail(text_at, fmt::format("Properties has {} parts, expected name:type:columns for each", parts.size()));
    }
    std::vector<Property> properties;
    std::set<std::string_view> names;
    bool has_elements = false;
    bool has_positions = false;
    for (std::size_t i = 0; i < parts.size(); i += 3) {
      const std::string_view name = parts[i].first;  // Clang 14 lets no lambda capture a structured binding
      const std::size_t name_at = parts[i].second;
      const std::string_view type = parts[i + 1].first;
      const std::size_t type_at = parts[i + 1].second;
      const auto [width_text, width_at] = parts[i + 2];
      if (name.empty()) fail(name_at, "a property without a name");
      if (!names.insert(name).second) {
        fail(name_at, fmt::format("the property {} is given twice", printable(name)));
      }
      if (type != "S" && type != "I" && type != "R" && type != "L") {
        fail(type_at, fmt::format("property {} has type {}, expected S, I, R or L", printable(name), printable(type)));
      }
      const std::optional<std::int64_t> width = io::parse_integer(width_text);
      if (!width || *width < 1 || *width > kWidest) {
        fail(width_at, fmt::format("property {} has {} columns, expected 1 to {}", printable(name),
                                   printable(width_text), kWidest));
      }
      Property property;
      property.type = type.front();
      property.column.name = name;
      property.column.width = *width;
      if (property.type == 'I') property.column.values = std::vector<std::int64_t>{};
      if (property.type == 'R') property.column.values = std::vector<double>{};
      if (property.type == 'L') property.column.values = std::vector<bool>{};
      if (property.type == 'S') property.column.values = std::vector<std::string>{};
      const auto require = [&](bool fits, std::string_view expected) {
        if (!fits) {
          fail(name_at, fmt::format("property {} is {}:{}, expected {}", printable(name), type, *width, expected));
        }
      };
      if (name == "species") {
        require((property.type == 'S' || property.type == 'I') && *width == 1, "S:1");
        property.role = Property::Role::species;
        has_elements = true;
      } else if (name == "Z") {
        require(property.type == 'I' && *width == 1, "I:1");
        property.role = Property::Role::number;
        has_elements = true;
      } else if (name == "pos") {
        require(property.type == 'R' && *width == 3, "R:3");
        property.role = Property::Role::position;
        has_positions = true;
      }
      properties.push_back(std::move(property));
    }
    if (!has_elements) fail(text_at, "Properties has neither species:S:1 nor Z:I:1");
    if (!has_positions) fail(text_at, "Properties has no pos:R:3");
    return properties;
  }

  void read_row(Structure& frame, std::vector<Property>& properties, std::int64_t atom, std::int64_t atoms) {
    const std::string who = fmt::format("atom {} of {}", atom + 1, atoms);
    std::optional<std::int32_t> element;
    for (Property& property : properties) {
      Vec3 position{};
      for (std::int64_t i = 0; i < property.column.width; ++i) {
        const std::string text = field(property, i, who);
        switch (property.role) {
          case Property::Role::species:
          case Property::Role::number: {
            const std::int32_t z = element_of(property, text, who);
            if (element && *element != z) {
              fail(word_at_, fmt::format("{}: Z and species disagree: {} and {}", who, chemical_symbol(*element),
                                         chemical_symbol(z)));
            }
            element = z;
            break;
          }
          case Property::Role::position: {
            const double value =
                number<double>(io::parse_real, text, property, who, "a real number in the range of a double");
            if (!std::isfinite(value)) {
              fail(word_at_, fmt::format("{}: position {} is {}, expected a finite number", who,
                                         "xyz"[static_cast<std::size_t>(i)], value));
            }
            position[static_cast<std::size_t>(i)] = value;
            break;
          }
          case Property::Role::other:
            append(property, text, who);
            break;
        }
      }
      if (property.role == Property::Role::position) frame.positions.push_back(position);
    }
    frame.atomic_numbers.push_back(*element);
    if (const std::string_view more = word(); !more.empty()) {
      fail(word_at_, fmt::format("{}: {} after the last column that Properties names", who, printable(more)));
    }
  }

  std::string field(const Property& property, std::int64_t i, const std::string& who) {
    std::string_view text = word();
    if (text.empty()) {
      fail(at_, fmt::format("{}: the row ends before column {} of {}", who, i + 1, printable(property.column.name)));
    }
    if (property.type != 'S' || text.front() != '"') return std::string(text);
    at_ = word_at_;
    try {
      std::string unquoted = io::parse_quoted(line_, at_);
      if (at_ < line_.size() && !is_blank(line_[at_]))
        fail(at_, fmt::format("{}: expected a blank after the quote", who));
      return unquoted;
    } catch (const Malformed& problem) {
      fail(problem.at, fmt::format("{}: {}", who, problem.what));
    }
  }

  std::int32_t element_of(const Property& property, const std::string& text, const std::string& who) {
    const std::optional<std::int64_t> z = io::parse_integer(text);
    if (z) {
      if (*z < 0 || *z > 118) fail(word_at_, fmt::format("{}: atomic number {} is outside 0..118", who, *z));
      return static_cast<std::int32_t>(*z);
    }
    if (property.type == 'I') fail(word_at_, fmt::format("{}: {} is not an atomic number", who, printable(text)));
    try {
      return atomic_number(text);
    } catch (const Error& error) {
      fail(word_at_, fmt::format("{}: {}", who, error.what()));
    }
  }

  template <class T, class Parse>
  T number(Parse parse, const std::string& text, const Property& property, const std::string& who,
           std::string_view expected) {
    if (const std::optional<T> value = parse(text)) return *value;
    fail(word_at_,
         fmt::format("{}: {} of {} is not {}", who, printable(text), printable(property.column.name), expected));
  }

  void append(Property& property, const std::string& text, const std::string& who) {
    Values& values = property.column.values;
    switch (property.type) {
      case 'I':
        std::get<std::vector<std::int64_t>>(values).push_back(
            number<std::int64_t>(io::parse_integer, text, property, who, "a whole number of 64 bits"));
        break;
      case 'R':
        std::get<std::vector<double>>(values).push_back(
            number<double>(io::parse_real, text, property, who, "a real number in the range of a double"));
        break;
      case 'L':
        std::get<std::vector<bool>>(values).push_back(number<bool>(io::parse_truth, text, property, who, "T or F"));
        break;
      default:
        std::get<std::vector<std::string>>(values).push_back(text);
        break;
    }
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t next_ = 0;  // where the next line begins
  std::size_t line_number_ = 0;
  std::string_view line_;
  std::size_t at_ = 0;
  std::size_t word_at_ = 0;
  std::int64_t frame_ = 0;
};

}  // namespace

std::vector<Structure> parse_extxyz(std::string_view text, const std::string& name) {
  return Reader(text, name).read();
}

std::vector<Structure> read_extxyz(const std::filesystem::path& path) {
  return parse_extxyz(io::read_text(path), path.string());
}

}  // namespace fastpath
