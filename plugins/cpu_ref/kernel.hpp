#pragma once

#include "cpu/kernel.hpp"

/// The ops of this plugin, a file each.
namespace cpu_ref {

namespace sdk = fastpath::sdk;
using fastpath_cpu::check_degree;
using fastpath_cpu::check_degrees;
using fastpath_cpu::Chunks;
using fastpath_cpu::CpuKernel;
using fastpath_cpu::create;
using fastpath_cpu::kMaxDegree;
using fastpath_cpu::Op;
using fastpath_cpu::Workers;

Op spherical_harmonics();
Op radial_basis();
Op radial_mlp();
Op irreps_linear();
Op species_linear();
Op conv_tensor_product();
Op symmetric_contraction();
Op regroup_channels();
Op sum();
Op scaled_silu();

}  // namespace cpu_ref
