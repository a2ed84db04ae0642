#include "ops/species_linear/module.hpp"

#include "ops/arguments.hpp"
#include "ops/species_linear/species_linear.hpp"

namespace fastpath::ops {

SpeciesLinearModule::SpeciesLinearModule(const sdk::SpeciesLinearConfig& config) : config_(config) {
  register_parameter("weight", Tensor::zeros({config.weight_numel()}, DType::float64));
  set_spec(config);
}

void SpeciesLinearModule::reference(const OpCall& call, const std::vector<Tensor>& parameters) {
  with_arguments(call, parameters, [&](auto& a) {
    if (!a.backward()) {
      species_linear_forward(config_, a.rows(0), a.input(0), a.indices(1), a.parameter(0), a.output(0));
    } else {
      species_linear_backward(config_, a.rows(0), a.input(0), a.indices(1), a.parameter(0), a.grad_output(0),
                              a.grad_input(0), a.grad_parameter(0));
    }
  });
}

}  // namespace fastpath::ops
