#pragma once

#include "cpu/kernel.hpp"

/// The small ops between the large ones. A host runs its own on the CPU unless a plugin has them; a plugin for a device
/// wants them. Memory is all that they need, so the plugins for the CPU share them.
namespace fastpath_cpu {

Op regroup_channels();
Op sum();
Op scaled_silu();

}  // namespace fastpath_cpu
