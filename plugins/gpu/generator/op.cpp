#include "op.hpp"

namespace fastpath_gpu {

const std::vector<OpFactory>& all_ops() {
  static const std::vector<OpFactory> ops{spherical_harmonics()};
  return ops;
}

}  // namespace fastpath_gpu
