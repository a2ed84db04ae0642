#pragma once

#include <memory>

#include "ops/conv_tensor_product/module.hpp"
#include "ops/op_module.hpp"
#include "ops/radial_basis/module.hpp"
#include "ops/radial_mlp/module.hpp"
#include "ops/spherical_harmonics/module.hpp"

namespace fastpath::ops {

/// A fused module: runs fast, it does what its four parts do one after the other. It has no tensors of its own; the
/// parameters are those of the parts, which a model registers where its checkpoints have them (harmonics and radial
/// basis serve several steps). inputs: x, vectors, lengths, species. outputs: out.
class MessageStepModule : public OpModule {
 public:
  /// Parts of a step. The net must be registered as a child named "conv_tp_weights".
  struct Parts {
    std::shared_ptr<SphericalHarmonicsModule> harmonics;
    std::shared_ptr<RadialBasisModule> radial;
    std::shared_ptr<RadialMlpModule> net;
    std::shared_ptr<ConvTensorProductModule> conv;
  };

  /// @param shares_basis  Something else reads the radial basis too, so that it is evaluated in any case.
  /// @throws sdk::ConfigError if the parts do not fit together.
  explicit MessageStepModule(Parts parts, bool shares_basis = false);

  /// With the constants of the radial basis as they are now.
  const OpSpec& op() const override;
  std::vector<SchemaTensor> schema() const override;
  std::vector<FastPathModule*> covered() override;

 protected:
  std::vector<Tensor> schema_tensors() const override;
  void reference(const OpCall& call, const std::vector<Tensor>& parameters) override;

 private:
  sdk::MessageStepConfig current() const;
  Parts parts_;
  bool shares_basis_;
  sdk::MessageStepConfig config_;
  std::uint64_t seen_version_ = 0;  // State::version() that config_ belongs to
};

}  // namespace fastpath::ops
