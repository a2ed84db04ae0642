#pragma once

#include <cstdint>
#include <vector>

#include "runtime/backend.hpp"

namespace fastpath_hip {

/// Registers, spills, shared memory and code size of each kernel, from the metadata that AMD's compiler puts into a
/// code object (a note in MessagePack). What is not there stays -1; nothing outside the image is read.
std::vector<fastpath_gpu::KernelResources> resources_of(const fastpath_gpu::Program& program,
                                                        const std::vector<std::uint8_t>& code_object);

}  // namespace fastpath_hip
