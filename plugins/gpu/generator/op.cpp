#include "op.hpp"

namespace fastpath_gpu {

const std::vector<OpFactory>& all_ops() {
  static const std::vector<OpFactory> ops{conv_tensor_product(), radial_basis(), spherical_harmonics()};
  return ops;
}

}  // namespace fastpath_gpu
