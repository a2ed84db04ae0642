#pragma once

#include "ops/op_module.hpp"

namespace fastpath::ops {

/// `skip_tp` of a checkpoint. inputs: x, species. outputs: y.
class SpeciesLinearModule : public OpModule {
 public:
  explicit SpeciesLinearModule(const sdk::SpeciesLinearConfig& config);
  std::vector<SchemaTensor> schema() const override { return {{"weight"}}; }
  const sdk::SpeciesLinearConfig& config() const { return config_; }

 protected:
  void reference(const OpCall& call, const std::vector<Tensor>& parameters) override;

 private:
  sdk::SpeciesLinearConfig config_;
};

}  // namespace fastpath::ops
