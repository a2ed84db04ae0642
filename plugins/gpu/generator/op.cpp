#include "op.hpp"

namespace fastpath_gpu {

const std::vector<OpFactory>& all_ops() {
  static const std::vector<OpFactory> ops{
      conv_tensor_product(),  irreps_linear(), message_step(),   radial_basis(),        radial_mlp(),
      regroup_channels(),     scaled_silu(),   species_linear(), spherical_harmonics(), sum(),
      symmetric_contraction()};
  return ops;
}

}  // namespace fastpath_gpu
