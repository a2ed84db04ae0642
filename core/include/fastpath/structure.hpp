#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "fastpath/export.hpp"

namespace fastpath {

using Vec3 = std::array<double, 3>;

/// A value of a comment line or of a per-atom column: integers, reals, truth values or words, in file order.
/// More than one element means an array.
using Values =
    std::variant<std::vector<std::int64_t>, std::vector<double>, std::vector<bool>, std::vector<std::string>>;

/// A per-atom column that fastpath itself does not use, kept so that nothing is lost on the way to an output file.
struct AtomColumn {
  std::string name;
  std::int64_t width = 1;  ///< Values per atom; `values` holds n_atoms * width of them, atoms outermost.
  Values values;
};

/// Atoms in space: what an evaluation starts from.
struct FASTPATH_EXPORT Structure {
  std::vector<std::int32_t> atomic_numbers;
  std::vector<Vec3> positions;  ///< angstrom
  std::array<Vec3, 3> cell{};   ///< Rows are the lattice vectors a, b, c, in angstrom; zero where there is none.
  std::array<bool, 3> pbc{};    ///< Periodic along a, b, c. A non-periodic axis may have any cell vector.
  std::vector<std::pair<std::string, Values>> info;  ///< Other keys of the comment line, in order.
  std::vector<AtomColumn> columns;                   ///< Other per-atom columns, in order.

  std::int64_t size() const noexcept { return static_cast<std::int64_t>(positions.size()); }

  /// The value of a key, or null. Valid until `info` changes.
  const Values* find_info(std::string_view key) const noexcept;
  /// Gives a key a value: in its old place if it has one, otherwise last.
  void set_info(std::string key, Values values);
  /// The column of a name, or null. Valid until `columns` changes.
  const AtomColumn* find_column(std::string_view name) const noexcept;
  /// Gives a column its values: in its old place if there is one of that name, otherwise last.
  /// @throws Error(invalid_argument) unless there are size() * width values and the width is at least 1.
  void set_column(AtomColumn column);
};

/// Number of elements of a value.
FASTPATH_EXPORT std::size_t count(const Values& values) noexcept;

/// Chemical symbol of an atomic number 1..118, "X" for 0. @throws Error(invalid_argument) for any other.
FASTPATH_EXPORT std::string chemical_symbol(std::int32_t atomic_number);
/// Atomic number of a symbol (case as usual: "Si"), 0 for "X". @throws Error(invalid_argument) naming the text.
FASTPATH_EXPORT std::int32_t atomic_number(const std::string& symbol);

}  // namespace fastpath
