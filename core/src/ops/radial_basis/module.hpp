#pragma once

#include "ops/op_module.hpp"

namespace fastpath::ops {

/// `radial_embedding` of a checkpoint. inputs: lengths, species. outputs: embedding, envelope.
class RadialBasisModule : public OpModule {
 public:
  /// @param shape  What config.json says; cutoff, constants and radii come from the buffers.
  /// @param atomic_numbers  In species order: which covalent radii the distance transform uses.
  RadialBasisModule(const sdk::RadialBasisConfig& shape, std::vector<std::int32_t> atomic_numbers);

  /// With the constants as they are now: a replica is not told when the other one's buffers, which it shares, change.
  const OpSpec& op() const override;
  std::vector<SchemaTensor> schema() const override { return {{"bessel_fn.bessel_weights", false}}; }

 protected:
  void on_change() override;
  void reference(const OpCall& call, const std::vector<Tensor>& parameters) override;

 private:
  void update();
  sdk::RadialBasisConfig config_;
  std::vector<std::int32_t> atomic_numbers_;
  std::uint64_t seen_version_ = 0;  // State::version() that config_ belongs to
};

}  // namespace fastpath::ops
