#pragma once

#include "ops/op_module.hpp"

/// The small ops between the large ones. They have no parameters, and a model runs their reference on the CPU; on a
/// device a plugin may serve them, so that features need not travel.
namespace fastpath::ops {

/// inputs: x. outputs: y, the same numbers with channels outermost.
class RegroupChannelsModule : public OpModule {
 public:
  explicit RegroupChannelsModule(const sdk::RegroupChannelsConfig& config) : config_(config) { set_spec(config); }

 protected:
  void reference(const OpCall& call, const std::vector<Tensor>& parameters) override;

 private:
  sdk::RegroupChannelsConfig config_;
};

/// inputs: x0, x1, .. outputs: y, added in this order and in the dtype of the call.
class SumModule : public OpModule {
 public:
  explicit SumModule(const sdk::SumConfig& config) { set_spec(config); }

 protected:
  void reference(const OpCall& call, const std::vector<Tensor>& parameters) override;
};

/// inputs: x. outputs: y.
class ScaledSiluModule : public OpModule {
 public:
  explicit ScaledSiluModule(const sdk::ScaledSiluConfig& config) : config_(config) { set_spec(config); }

 protected:
  void reference(const OpCall& call, const std::vector<Tensor>& parameters) override;

 private:
  sdk::ScaledSiluConfig config_;
};

}  // namespace fastpath::ops
