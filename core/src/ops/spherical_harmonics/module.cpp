#include "ops/spherical_harmonics/module.hpp"

#include "ops/arguments.hpp"
#include "ops/spherical_harmonics/spherical_harmonics.hpp"

namespace fastpath::ops {

void SphericalHarmonicsModule::reference(const OpCall& call, const std::vector<Tensor>& parameters) {
  with_arguments(call, parameters, [&](auto& a) {
    if (!a.backward()) {
      spherical_harmonics_forward(config_, a.rows(0), a.input(0), a.output(0));
    } else if (auto* grad = a.grad_input(0)) {
      spherical_harmonics_backward(config_, a.rows(0), a.input(0), a.grad_output(0), grad);
    }
  });
}

}  // namespace fastpath::ops
