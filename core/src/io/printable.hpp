#pragma once

#include <string>
#include <string_view>

namespace fastpath::io {

/// Text from a file as an error message may show it: in quotes, cut to about 60 bytes, control characters escaped.
std::string printable(std::string_view text);

}  // namespace fastpath::io
