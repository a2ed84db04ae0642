#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fastpath/structure.hpp"

namespace fastpath::io {

/// Words of extended-XYZ files as values; nothing where the whole word is not one, or does not fit the type.
std::optional<std::int64_t> parse_integer(std::string_view word);
/// Also Fortran's exponents (1.0D+00), nan and inf. A magnitude too small for a double is 0, one too large is refused.
std::optional<double> parse_real(std::string_view word);
/// T, F, true, false, True, False, TRUE, FALSE.
std::optional<bool> parse_truth(std::string_view word);

/// Integers if every word is one, otherwise reals, otherwise truth values, otherwise the words themselves.
Values classify(std::vector<std::string> words);

/// The shortest text that parse_real reads back as the same double, and that parse_integer refuses.
std::string real_text(double value);
/// In double quotes, with \\, \" and \n where needed.
std::string quoted(std::string_view text);

constexpr bool is_blank(char c) noexcept { return c == ' ' || c == '\t' || c == '\v' || c == '\f' || c == '\r'; }
/// Words between blanks.
std::vector<std::string> split(std::string_view text);
/// ASCII letters in lower case.
std::string lower(std::string_view text);

}  // namespace fastpath::io
