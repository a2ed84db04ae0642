#pragma once

#include "ops/op_module.hpp"

namespace fastpath::ops {

/// inputs: x. outputs: y. Parameters: weight, and bias if the configuration has one.
class IrrepsLinearModule : public OpModule {
 public:
  explicit IrrepsLinearModule(const sdk::IrrepsLinearConfig& config);
  std::vector<SchemaTensor> schema() const override { return {{"weight"}, {config_.bias ? "bias" : ""}}; }
  const sdk::IrrepsLinearConfig& config() const { return config_; }

 protected:
  void reference(const OpCall& call, const std::vector<Tensor>& parameters) override;

 private:
  sdk::IrrepsLinearConfig config_;
};

}  // namespace fastpath::ops
