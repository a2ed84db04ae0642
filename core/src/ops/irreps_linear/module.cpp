#include "ops/irreps_linear/module.hpp"

#include "ops/arguments.hpp"
#include "ops/irreps_linear/irreps_linear.hpp"

namespace fastpath::ops {

IrrepsLinearModule::IrrepsLinearModule(const sdk::IrrepsLinearConfig& config) : config_(config) {
  register_parameter("weight", Tensor::zeros({config.weight_numel()}, DType::float64));
  if (config.bias) register_parameter("bias", Tensor::zeros({config.bias_numel()}, DType::float64));
  set_spec(config);
}

void IrrepsLinearModule::reference(const OpCall& call, const std::vector<Tensor>& parameters) {
  with_arguments(call, parameters, [&](auto& a) {
    if (!a.backward()) {
      irreps_linear_forward(config_, a.rows(0), a.input(0), a.parameter(0), a.parameter(1), a.output(0));
    } else {
      irreps_linear_backward(config_, a.rows(0), a.input(0), a.parameter(0), a.grad_output(0), a.grad_input(0),
                             a.grad_parameter(0), a.grad_parameter(1));
    }
  });
}

}  // namespace fastpath::ops
