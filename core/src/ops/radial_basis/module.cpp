#include "ops/radial_basis/module.hpp"

#include <fmt/format.h>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "ops/arguments.hpp"
#include "ops/radial_basis/covalent_radii.hpp"
#include "ops/radial_basis/radial_basis.hpp"

namespace fastpath::ops {

RadialBasisModule::RadialBasisModule(const sdk::RadialBasisConfig& shape, std::vector<std::int32_t> atomic_numbers)
    : config_(shape), atomic_numbers_(std::move(atomic_numbers)) {
  std::vector<double> weights;
  for (std::int64_t n = 1; n <= shape.n_basis; ++n) weights.push_back(static_cast<double>(n) * M_PI / shape.r_max);
  register_buffer("bessel_fn.bessel_weights", Tensor::from<double>({shape.n_basis}, weights));
  register_buffer("bessel_fn.r_max", Tensor::scalar(shape.r_max));
  register_buffer("bessel_fn.prefactor", Tensor::scalar(std::sqrt(2.0 / shape.r_max)));
  register_buffer("cutoff_fn.p", Tensor::scalar<std::int32_t>(shape.p));
  register_buffer("cutoff_fn.r_max", Tensor::scalar(shape.r_max));
  if (shape.transform == sdk::DistanceTransform::agnesi) {
    register_buffer("distance_transform.a", Tensor::scalar(shape.a));
    register_buffer("distance_transform.q", Tensor::scalar(shape.q_exponent));
    register_buffer("distance_transform.p", Tensor::scalar(shape.p_exponent));
  } else if (shape.transform == sdk::DistanceTransform::soft) {
    register_buffer("distance_transform.alpha", Tensor::scalar(shape.alpha));
  }
  if (shape.transform != sdk::DistanceTransform::none) {
    register_buffer("distance_transform.covalent_radii", Tensor::from<double>({kCovalentRadiiSize}, covalent_radii()));
  }
  update();
}

void RadialBasisModule::on_change() {
  update();
  OpModule::on_change();
  seen_version_ = state().version();
}

const OpSpec& RadialBasisModule::op() const {
  auto& self = const_cast<RadialBasisModule&>(*this);
  if (const std::uint64_t version = self.state().version(); version != seen_version_) {
    self.update();
    self.seen_version_ = version;
  }
  return OpModule::op();
}

void RadialBasisModule::update() {
  config_.prefactor = buffer("bessel_fn.prefactor").item();
  config_.r_max = buffer("cutoff_fn.r_max").item();
  config_.p = static_cast<int>(buffer("cutoff_fn.p").item());
  if (config_.transform == sdk::DistanceTransform::agnesi) {
    config_.a = buffer("distance_transform.a").item();
    config_.q_exponent = buffer("distance_transform.q").item();
    config_.p_exponent = buffer("distance_transform.p").item();
  } else if (config_.transform == sdk::DistanceTransform::soft) {
    config_.alpha = buffer("distance_transform.alpha").item();
  }
  if (config_.transform != sdk::DistanceTransform::none) {
    config_.species_radii = radii_of(buffer("distance_transform.covalent_radii"), atomic_numbers_);
  }
  const Tensor weights = buffer("bessel_fn.bessel_weights").to(DType::float64).contiguous();
  config_.frequencies.assign(weights.data<double>(), weights.data<double>() + weights.numel());
  set_spec(config_);
}

void RadialBasisModule::reference(const OpCall& call, const std::vector<Tensor>& parameters) {
  with_arguments(call, parameters, [&](auto& a) {
    const bool pairs = config_.transform != sdk::DistanceTransform::none;
    const std::int32_t* sender = pairs ? a.graph().sender.template data<std::int32_t>() : nullptr;
    const std::int32_t* receiver = pairs ? a.graph().receiver.template data<std::int32_t>() : nullptr;
    const std::int32_t* species = pairs ? a.indices(1) : nullptr;
    if (!a.backward()) {
      radial_basis_forward(config_, a.rows(0), a.input(0), sender, receiver, species, a.parameter(0), a.output(0),
                           a.output(1));
    } else {
      radial_basis_backward(config_, a.rows(0), a.input(0), sender, receiver, species, a.parameter(0), a.grad_output(0),
                            a.grad_output(1), a.grad_input(0), a.grad_parameter(0));
    }
  });
}

}  // namespace fastpath::ops
