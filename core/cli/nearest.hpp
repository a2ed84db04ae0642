#pragma once

#include <string>
#include <vector>

namespace fastpath::cli {

/// The known word that `word` is most likely a misspelling of, or nothing.
std::string nearest(const std::string& word, const std::vector<std::string>& known);
/// ", did you mean 'x'?" or nothing.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace fastpath::cli
