#pragma once

#include "ops/op_module.hpp"

namespace fastpath::ops {

/// inputs: vectors. outputs: sh.
class SphericalHarmonicsModule : public OpModule {
 public:
  explicit SphericalHarmonicsModule(const sdk::SphericalHarmonicsConfig& config) : config_(config) { set_spec(config); }

 protected:
  void reference(const OpCall& call, const std::vector<Tensor>& parameters) override;

 private:
  sdk::SphericalHarmonicsConfig config_;
};

}  // namespace fastpath::ops
