#include "ops/radial_mlp/module.hpp"

#include <fmt/format.h>

#include "ops/arguments.hpp"
#include "ops/radial_mlp/radial_mlp.hpp"

namespace fastpath::ops {

RadialMlpModule::RadialMlpModule(const sdk::RadialMlpConfig& config) : config_(config) {
  for (std::size_t i = 0; i < config.n_layers(); ++i) {
    register_parameter(fmt::format("layer{}.weight", i),
                       Tensor::zeros({config.widths[i], config.widths[i + 1]}, DType::float64));
  }
  set_spec(config);
}

std::vector<SchemaTensor> RadialMlpModule::schema() const {
  std::vector<SchemaTensor> names;
  for (std::size_t i = 0; i < config_.n_layers(); ++i) names.push_back({fmt::format("layer{}.weight", i)});
  return names;
}

void RadialMlpModule::reference(const OpCall& call, const std::vector<Tensor>& parameters) {
  with_arguments(call, parameters, [&]<class S>(Arguments<S>& a) {
    std::vector<const S*> weights;
    for (std::size_t i = 0; i < config_.n_layers(); ++i) weights.push_back(a.parameter(i));
    if (!a.backward()) {
      radial_mlp_forward(config_, a.rows(0), a.input(0), weights.data(), a.output(0));
      return;
    }
    std::vector<S*> grads;
    for (std::size_t i = 0; i < config_.n_layers(); ++i) grads.push_back(a.grad_parameter(i));
    radial_mlp_backward(config_, a.rows(0), a.input(0), weights.data(), a.grad_output(0), a.grad_input(0),
                        grads.data());
  });
}

}  // namespace fastpath::ops
