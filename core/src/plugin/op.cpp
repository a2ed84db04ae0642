#include "fastpath/op.hpp"

#include <string_view>
#include <utility>

namespace fastpath {

std::string to_string(Passes passes) {
  constexpr std::pair<Pass, std::string_view> kNames[] = {{Pass::forward, "forward"},
                                                          {Pass::backward, "backward"},
                                                          {Pass::forward_tangent, "forward_tangent"},
                                                          {Pass::backward_tangent, "backward_tangent"}};
  std::string text;
  for (const auto& [pass, name] : kNames) {
    if (!passes.contains(pass)) continue;
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

}  // namespace fastpath
