#pragma once

#include "cpu/kernel.hpp"
#include "cpu/multilinear.hpp"
#include "cpu/pointwise.hpp"
#include "target.hpp"

/// The ops of this plugin, a file each.
namespace cpu_simd {

namespace sdk = fastpath::sdk;
using fastpath_cpu::check_degree;
using fastpath_cpu::check_degrees;
using fastpath_cpu::Chunks;
using fastpath_cpu::CpuKernel;
using fastpath_cpu::create;
using fastpath_cpu::MultilinearKernel;
using fastpath_cpu::Op;
using fastpath_cpu::op_of;
using fastpath_cpu::part;
using fastpath_cpu::ReadPair;
using fastpath_cpu::regroup_channels;
using fastpath_cpu::scaled_silu;
using fastpath_cpu::sum;
using fastpath_cpu::Workers;
using fastpath_cpu::WritePair;

Op conv_tensor_product();
Op message_step();
Op spherical_harmonics();
Op radial_basis();
Op radial_mlp();
Op irreps_linear();
Op species_linear();
Op symmetric_contraction();

}  // namespace cpu_simd
