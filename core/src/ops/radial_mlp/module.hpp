#pragma once

#include "ops/op_module.hpp"

namespace fastpath::ops {

/// `conv_tp_weights` of a checkpoint: layer0.weight, layer1.weight, ... inputs: x. outputs: y.
class RadialMlpModule : public OpModule {
 public:
  explicit RadialMlpModule(const sdk::RadialMlpConfig& config);
  std::vector<SchemaTensor> schema() const override;

 protected:
  void reference(const OpCall& call, const std::vector<Tensor>& parameters) override;

 private:
  sdk::RadialMlpConfig config_;
};

}  // namespace fastpath::ops
