#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "fastpath/measurement.hpp"

/// One measurement as one line of text:
///   {"fastpath_measurement":1,"sum":"<16 hexadecimal digits>","record":{...}}
/// where the sum is that of the bytes of the record, so that a line that was torn or changed is known as such.
namespace fastpath::measure {

inline constexpr int kFormat = 1;
inline constexpr std::size_t kLongestLine = std::size_t{1} << 20;

/// Without a line end. @throws Error(invalid_argument) naming what is not complete or not a number.
std::string write_line(const Measurement& measurement);

/// What write_line() wrote. Accepts any bytes.
/// @param why  bad_record or record_format, with what is wrong, where there is no result.
std::optional<Measurement> read_line(std::string_view line, Reason& why);

/// Of this machine, as records have it.
std::string host_name();

/// What is not complete or means nothing; empty if all is well.
std::string fault(const Measurement& measurement);

}  // namespace fastpath::measure
