#include <fmt/format.h>

#include <cmath>
#include <ostream>
#include <set>
#include <utility>

#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "io/extxyz_values.hpp"
#include "io/file.hpp"
#include "io/printable.hpp"

namespace fastpath {
namespace {

using io::printable;

[[noreturn]] void refuse(std::size_t frame, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("frame {} cannot be written: {}", frame + 1, what));
}

bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
         c == '+' || c == '.' || c == ':' || c == '/';
}

bool is_plain(std::string_view text) {
  if (text.empty()) return false;
  for (const char c : text) {
    if (!is_plain(c)) return false;
  }
  return true;
}

bool is_word(const Values& values) { return std::holds_alternative<std::vector<std::string>>(values); }

std::string element_text(std::int64_t value) { return fmt::format("{}", value); }
std::string element_text(double value) { return io::real_text(value); }
std::string element_text(bool value) { return value ? "T" : "F"; }

/// "1 2 3", without the quotes.
template <class Container>
std::string joined(const Container& values) {
  std::string text;
  for (const auto& value : values) {
    if (!text.empty()) text += ' ';
    text += element_text(value);
  }
  return text;
}

template <class T>
std::string array_text(const std::vector<T>& values) {
  if (values.empty()) return "[]";
  const std::string text = joined(values);
  return values.size() == 1 ? text : fmt::format("\"{}\"", text);
}

std::string array_text(const std::vector<std::string>& words) {
  if (words.size() == 1) {
    const std::string& word = words.front();
    if (is_plain(word) && is_word(io::classify({word}))) return word;
    // A text that looks like numbers is read as numbers from quotes, but not from within brackets.
    const std::vector<std::string> parts = io::split(word);
    if (parts.empty() || is_word(io::classify(parts))) return io::quoted(word);
  }
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ", ";
    text += io::quoted(word);
  }
  return fmt::format("[{}]", text);
}

std::string value_text(const Values& values) {
  return std::visit([](const auto& elements) { return array_text(elements); }, values);
}

char type_letter(const Values& values) { return "IRLS"[values.index()]; }

std::string column_text(const Values& values, std::size_t i) {
  return std::visit(
      [&](const auto& elements) -> std::string {
        using Elements = std::decay_t<decltype(elements)>;
        if constexpr (std::is_same_v<Elements, std::vector<std::string>>) {
          const std::string& word = elements[i];
          bool bare = !word.empty() && word.front() != '"';
          for (const char c : word) bare = bare && static_cast<unsigned char>(c) > 0x20;
          return bare ? word : io::quoted(word);
        } else {
          return element_text(static_cast<typename Elements::value_type>(elements[i]));
        }
      },
      values);
}

void check(const Structure& frame, std::size_t index) {
  const auto atoms = frame.positions.size();
  if (frame.atomic_numbers.size() != atoms) {
    refuse(index, fmt::format("{} atomic numbers for {} positions", frame.atomic_numbers.size(), atoms));
  }
  for (std::size_t atom = 0; atom < atoms; ++atom) {
    for (const double x : frame.positions[atom]) {
      if (!std::isfinite(x)) refuse(index, fmt::format("a position of atom {} of {} is {}", atom + 1, atoms, x));
    }
  }
  for (std::size_t axis = 0; axis < 3; ++axis) {
    for (const double x : frame.cell[axis]) {
      if (!std::isfinite(x)) refuse(index, fmt::format("lattice vector {} holds {}", "abc"[axis], x));
    }
    if (frame.pbc[axis] && frame.cell[axis] == Vec3{}) {
      refuse(index, fmt::format("it is periodic along {}, but that lattice vector is zero", "abc"[axis]));
    }
  }
  std::set<std::string> keys;
  for (const auto& [key, value] : frame.info) {
    const std::string plain = io::lower(key);
    if (key.empty() || plain == "lattice" || plain == "properties" || plain == "pbc" || !keys.insert(key).second) {
      refuse(index, fmt::format("the key {} is empty, reserved or given twice", printable(key)));
    }
  }
  std::set<std::string> names{"species", "pos", "Z"};
  for (const AtomColumn& column : frame.columns) {
    if (column.name.empty() || column.name.find(':') != std::string::npos || !names.insert(column.name).second) {
      refuse(index,
             fmt::format("the column name {} is empty, reserved, given twice or has a ':'", printable(column.name)));
    }
    if (column.width < 1 || count(column.values) != atoms * static_cast<std::size_t>(column.width)) {
      refuse(index, fmt::format("column {} of width {} has {} values for {} atoms", printable(column.name),
                                column.width, count(column.values), atoms));
    }
  }
}

std::string frame_text(const Structure& frame, std::size_t index) {
  check(frame, index);
  std::string text = fmt::format("{}\n", frame.positions.size());
  if (frame.cell != std::array<Vec3, 3>{}) {
    const auto& [a, b, c] = frame.cell;
    text += fmt::format("Lattice=\"{} {} {}\" ", joined(a), joined(b), joined(c));
  }
  std::string properties = "species:S:1:pos:R:3";
  for (const AtomColumn& column : frame.columns) {
    properties += fmt::format(":{}:{}:{}", column.name, type_letter(column.values), column.width);
  }
  text += fmt::format("Properties={}", is_plain(properties) ? properties : io::quoted(properties));
  for (const auto& [key, value] : frame.info) {
    text += fmt::format(" {}={}", is_plain(key) ? key : io::quoted(key), value_text(value));
  }
  text += fmt::format(" pbc=\"{}\"\n", joined(frame.pbc));
  for (std::size_t atom = 0; atom < frame.positions.size(); ++atom) {
    text += chemical_symbol(frame.atomic_numbers[atom]);
    text += ' ';
    text += joined(frame.positions[atom]);
    for (const AtomColumn& column : frame.columns) {
      const auto width = static_cast<std::size_t>(column.width);
      for (std::size_t i = 0; i < width; ++i) {
        text += ' ';
        text += column_text(column.values, atom * width + i);
      }
    }
    text += '\n';
  }
  return text;
}

}  // namespace

void write_extxyz(std::ostream& out, const std::vector<Structure>& frames) {
  for (std::size_t i = 0; i < frames.size(); ++i) out << frame_text(frames[i], i);
  out.flush();
  if (!out) throw Error(ErrorCode::io, "the stream for extended XYZ refused to be written");
}

void write_extxyz(const std::filesystem::path& path, const std::vector<Structure>& frames) {
  io::ReplacingFile file(path);
  for (std::size_t i = 0; i < frames.size(); ++i) file.write(frame_text(frames[i], i));
  file.commit();
}

}  // namespace fastpath
