#include "op.hpp"

namespace fastpath_gpu {

const std::vector<OpFactory>& all_ops() {
  static const std::vector<OpFactory> ops{conv_tensor_product(), radial_basis(),        regroup_channels(),
                                          scaled_silu(),         spherical_harmonics(), sum()};
  return ops;
}

}  // namespace fastpath_gpu
