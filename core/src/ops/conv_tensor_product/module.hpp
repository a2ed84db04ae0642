#pragma once

#include "ops/op_module.hpp"

namespace fastpath::ops {

/// inputs: x, y, w. outputs: out. Needs the graph.
class ConvTensorProductModule : public OpModule {
 public:
  /// @throws sdk::ConfigError if the instructions make no sense.
  explicit ConvTensorProductModule(const sdk::ConvTensorProductConfig& config) : config_(config) {
    config.check();
    set_spec(config);
  }
  const sdk::ConvTensorProductConfig& config() const { return config_; }

 protected:
  void reference(const OpCall& call, const std::vector<Tensor>& parameters) override;

 private:
  sdk::ConvTensorProductConfig config_;
};

}  // namespace fastpath::ops
