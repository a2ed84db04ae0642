#pragma once

#include <string>
#include <vector>

#include "fastpath/op.hpp"
#include "generator/target.hpp"
#include "verify/op_trial.hpp"

namespace fastpath_gpu::test {

template <class Config>
fastpath::OpSpec spec(const Config& config) {
  return {std::string(Config::kOp), Config::kVersion, config.attributes().values()};
}
namespace sdk = fastpath::sdk;
inline sdk::Irreps irreps(const char* text) { return sdk::Irreps::parse(text); }

/// The limits of a usual device, and of a small one.
Target usual_target();
Target small_target();

/// Expects the kernels of an op to agree with the reference, bit for bit the same in any order of work-items: forward
/// and backward, float32 and float64, in the shapes of the conformance kit and those given, with all results and with
/// the gradients of inputs alone. Failures name the case.
void expect_agreement(const std::string& name, const fastpath::OpSpec& op, const Target& target,
                      const std::vector<fastpath::verify::TrialShape>& more_shapes = {});

}  // namespace fastpath_gpu::test
