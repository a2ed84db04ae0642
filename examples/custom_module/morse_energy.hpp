#pragma once

#include <vector>

#include "fastpath/fast_path.hpp"

namespace morse {

/// The host's module: parameters, and the reference that is always right. See morse_op.hpp for what it computes.
class MorseEnergy final : public fastpath::FastPathModule {
 public:
  /// @param depth  eV. @param stiffness  1/angstrom. @param distance, r_max  angstrom.
  MorseEnergy(double depth, double stiffness, double distance, double r_max);

  const fastpath::OpSpec& op() const override { return op_; }

 protected:
  void reference(const fastpath::OpCall& call, const std::vector<fastpath::Tensor>& parameters) override;
  /// In the order in which morse_op.hpp lists them: that is how kernels get them.
  std::vector<fastpath::Tensor> schema_tensors() const override {
    return {parameter("depth"), parameter("stiffness"), parameter("distance")};
  }

 private:
  fastpath::OpSpec op_;
  double r_max_;
};

}  // namespace morse
