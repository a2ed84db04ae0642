#include "fastpath/create_op.hpp"

#include <cmath>

#include "ops/make_op_module.hpp"

namespace fastpath {

std::shared_ptr<FastPathModule> create_op(const OpSpec& spec, std::uint64_t seed) {
  std::shared_ptr<ops::OpModule> module = ops::make_op_module(spec);
  std::uint64_t state = seed;
  const auto draw = [&state] {  // splitmix64
    std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return std::sqrt(3.0) * (2 * (static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53) - 1);
  };
  for (const auto& [name, parameter] : module->named_parameters()) {
    for (double& value : parameter.span<double>()) value = draw();
  }
  for (const auto& [name, part] : module->named_modules()) part->touch();
  return module;
}

}  // namespace fastpath
