#pragma once

#include <memory>

#include "fastpath/sdk/kernel.hpp"

namespace fake_device {

/// The op "org.example.scale", version 1: y = factor * x + shift, elementwise. Configuration: factor, one real.
/// inputs: x. parameters: shift [1]. outputs: y, shaped like x.
inline constexpr const char* kScaleOp = "org.example.scale";

/// A plain kernel for the CPU, in float32 or float64. It wants scratch and saved memory, so that these have a user; the
/// attribute `status`, one integer, makes every run fail with that status.
std::unique_ptr<fastpath::sdk::Kernel> make_scale(const fastpath::sdk::KernelQuery& query);

}  // namespace fake_device
