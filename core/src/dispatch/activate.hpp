#pragma once

#include <optional>
#include <vector>

#include "dispatch/setting.hpp"

/// Plugins are asked for kernels, and the one that was decided for is made and verified.
namespace fastpath::rules {

/// Asks every usable plugin about a module, once per question.
const std::vector<FastPathModule::State::Answer>& ask(FastPathModule& module, const Device& device, DType dtype,
                                                      Passes passes, Context& context);
/// Makes the kernel of an answer the module's active one. False, with a reason, if it cannot be had.
bool activate(FastPathModule& module, const FastPathModule::State::Answer& answer, Setting& s, Support& support);
/// Why a kernel is known not to agree with the reference, if it is.
std::optional<Reason> failed_gate(const FastPathModule& module, const FastPathModule::State::Answer& answer,
                                  DType dtype, Passes passes, Context& context);

}  // namespace fastpath::rules
