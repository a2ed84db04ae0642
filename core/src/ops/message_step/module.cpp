#include "ops/message_step/module.hpp"

#include "ops/arguments.hpp"
#include "ops/message_step/message_step.hpp"

namespace fastpath::ops {

MessageStepModule::MessageStepModule(Parts parts, bool shares_basis)
    : parts_(std::move(parts)), shares_basis_(shares_basis) {
  state().parts = {parts_.radial.get(), parts_.net.get()};
  config_ = current();
  config_.check();
  set_spec(config_);
  seen_version_ = state().version();
}

sdk::MessageStepConfig MessageStepModule::current() const {
  const auto of = [](const OpModule& part) { return sdk::Attributes(part.op().config); };
  return {sdk::SphericalHarmonicsConfig::from(of(*parts_.harmonics)), sdk::RadialBasisConfig::from(of(*parts_.radial)),
          sdk::RadialMlpConfig::from(of(*parts_.net)), parts_.conv->config()};
}

const OpSpec& MessageStepModule::op() const {
  auto& self = const_cast<MessageStepModule&>(*this);
  if (const std::uint64_t version = self.state().version(); version != seen_version_) {
    self.config_ = current();
    self.set_spec(config_);
    self.seen_version_ = version;
  }
  return OpModule::op();
}

std::vector<SchemaTensor> MessageStepModule::schema() const {
  std::vector<SchemaTensor> names{{"bessel_fn.bessel_weights", false}};
  for (const SchemaTensor& item : parts_.net->schema()) names.push_back({"conv_tp_weights." + item.name});
  return names;
}

std::vector<FastPathModule*> MessageStepModule::covered() {
  std::vector<FastPathModule*> result{parts_.harmonics.get(), parts_.net.get(), parts_.conv.get()};
  if (!shares_basis_) result.push_back(parts_.radial.get());
  return result;
}

std::vector<Tensor> MessageStepModule::schema_tensors() const {
  std::vector<Tensor> tensors{parts_.radial->buffer("bessel_fn.bessel_weights")};
  for (const SchemaTensor& item : parts_.net->schema()) tensors.push_back(parts_.net->parameter(item.name));
  return tensors;
}

void MessageStepModule::reference(const OpCall& call, const std::vector<Tensor>& parameters) {
  (void)op();  // brings config_ up to date
  with_arguments(call, parameters, [&]<class S>(Arguments<S>& a) {
    MessageStepInputs<S> in{a.graph_view(), a.input(0), a.input(1), a.input(2), a.indices(3), a.parameter(0), {}};
    const std::size_t n_layers = config_.mlp.n_layers();
    for (std::size_t i = 0; i < n_layers; ++i) in.weights.push_back(a.parameter(1 + i));
    if (!a.backward()) {
      message_step_forward(config_, in, a.output(0));
      return;
    }
    MessageStepGradients<S> to{a.grad_input(0), a.grad_input(1), a.grad_input(2), {}};
    for (std::size_t i = 0; i < n_layers; ++i) to.weights.push_back(a.grad_parameter(1 + i));
    message_step_backward(config_, in, a.grad_output(0), to);
  });
}

}  // namespace fastpath::ops
