#include "fastpath/structure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <unordered_map>

#include "fastpath/error.hpp"
#include "io/printable.hpp"

namespace fastpath {
namespace {

constexpr std::array<std::string_view, 119> kSymbols{
    "X",  "H",  "He", "Li", "Be", "B",  "C",  "N",  "O",  "F",  "Ne", "Na", "Mg", "Al", "Si", "P",  "S",
    "Cl", "Ar", "K",  "Ca", "Sc", "Ti", "V",  "Cr", "Mn", "Fe", "Co", "Ni", "Cu", "Zn", "Ga", "Ge", "As",
    "Se", "Br", "Kr", "Rb", "Sr", "Y",  "Zr", "Nb", "Mo", "Tc", "Ru", "Rh", "Pd", "Ag", "Cd", "In", "Sn",
    "Sb", "Te", "I",  "Xe", "Cs", "Ba", "La", "Ce", "Pr", "Nd", "Pm", "Sm", "Eu", "Gd", "Tb", "Dy", "Ho",
    "Er", "Tm", "Yb", "Lu", "Hf", "Ta", "W",  "Re", "Os", "Ir", "Pt", "Au", "Hg", "Tl", "Pb", "Bi", "Po",
    "At", "Rn", "Fr", "Ra", "Ac", "Th", "Pa", "U",  "Np", "Pu", "Am", "Cm", "Bk", "Cf", "Es", "Fm", "Md",
    "No", "Lr", "Rf", "Db", "Sg", "Bh", "Hs", "Mt", "Ds", "Rg", "Cn", "Nh", "Fl", "Mc", "Lv", "Ts", "Og"};

const std::unordered_map<std::string_view, std::int32_t>& numbers_by_symbol() {
  static const auto table = [] {
    std::unordered_map<std::string_view, std::int32_t> result;
    for (std::size_t z = 0; z < kSymbols.size(); ++z) result.emplace(kSymbols[z], static_cast<std::int32_t>(z));
    return result;
  }();
  return table;
}

}  // namespace

std::size_t count(const Values& values) noexcept {
  return std::visit([](const auto& elements) { return elements.size(); }, values);
}

const Values* Structure::find_info(std::string_view key) const noexcept {
  const auto found = std::find_if(info.begin(), info.end(), [&](const auto& entry) { return entry.first == key; });
  return found == info.end() ? nullptr : &found->second;
}

void Structure::set_info(std::string key, Values values) {
  const auto found = std::find_if(info.begin(), info.end(), [&](const auto& entry) { return entry.first == key; });
  if (found != info.end()) {
    found->second = std::move(values);
  } else {
    info.emplace_back(std::move(key), std::move(values));
  }
}

const AtomColumn* Structure::find_column(std::string_view name) const noexcept {
  const auto found =
      std::find_if(columns.begin(), columns.end(), [&](const auto& column) { return column.name == name; });
  return found == columns.end() ? nullptr : &*found;
}

void Structure::set_column(AtomColumn column) {
  if (column.width < 1 || count(column.values) != positions.size() * static_cast<std::size_t>(column.width)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("column '{}' of width {} has {} values for {} atoms",
                                                         column.name, column.width, count(column.values), size()));
  }
  const auto found =
      std::find_if(columns.begin(), columns.end(), [&](const auto& other) { return other.name == column.name; });
  if (found != columns.end()) {
    *found = std::move(column);
  } else {
    columns.push_back(std::move(column));
  }
}

std::string chemical_symbol(std::int32_t atomic_number) {
  if (atomic_number < 0 || atomic_number >= static_cast<std::int32_t>(kSymbols.size())) {
    throw Error(ErrorCode::invalid_argument, fmt::format("atomic number {} is outside 0..118", atomic_number));
  }
  return std::string(kSymbols[static_cast<std::size_t>(atomic_number)]);
}

std::int32_t atomic_number(const std::string& symbol) {
  const auto& table = numbers_by_symbol();
  if (const auto found = table.find(symbol); found != table.end()) return found->second;
  std::string usual = symbol;
  for (std::size_t i = 0; i < usual.size(); ++i) {
    const auto c = static_cast<unsigned char>(usual[i]);
    usual[i] = static_cast<char>(i == 0 ? std::toupper(c) : std::tolower(c));
  }
  const std::string hint = table.count(usual) != 0 ? fmt::format("; is it '{}'?", usual) : std::string{};
  throw Error(ErrorCode::invalid_argument, fmt::format("{} is no chemical symbol{}", io::printable(symbol), hint));
}

}  // namespace fastpath
