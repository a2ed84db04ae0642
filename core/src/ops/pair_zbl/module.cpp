#include "ops/pair_zbl/module.hpp"

#include <fmt/format.h>

#include "fastpath/error.hpp"
#include "models/glue.hpp"
#include "ops/radial_basis/covalent_radii.hpp"

namespace fastpath::ops {

PairZblModule::PairZblModule(int p, std::vector<std::int32_t> atomic_numbers)
    : atomic_numbers_(std::move(atomic_numbers)) {
  const PairZblConstants defaults;
  register_buffer("c", Tensor::from<double>({4}, {defaults.c.begin(), defaults.c.end()}));
  register_buffer("p", Tensor::scalar<std::int32_t>(p));
  register_buffer("covalent_radii", Tensor::from<double>({kCovalentRadiiSize}, covalent_radii()));
  register_buffer("a_exp", Tensor::scalar(defaults.a_exp));
  register_buffer("a_prefactor", Tensor::scalar(defaults.a_prefactor));
  update();
}

void PairZblModule::on_change() { update(); }

void PairZblModule::update() {
  const Tensor c = buffer("c").to(DType::float64);
  for (std::size_t i = 0; i < 4; ++i) constants_.c[i] = c.data<double>()[i];
  const double p = buffer("p").item();
  if (!(p >= 2 && p <= 64)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("pair_repulsion_fn.p is {}, expected 2 to 64: the degree of an envelope", p));
  }
  constants_.p = static_cast<int>(p);
  constants_.a_exp = buffer("a_exp").item();
  constants_.a_prefactor = buffer("a_prefactor").item();
  constants_.radii = radii_of(buffer("covalent_radii"), atomic_numbers_);
  constants_.atomic_numbers.assign(atomic_numbers_.begin(), atomic_numbers_.end());
}

std::shared_ptr<models::Glue> PairZblModule::glue() {
  return models::make_glue([this](auto& a) {
    update();  // a replica is not told when the other one's buffers, which it shares, change
    const std::int32_t* sender = a.graph().sender.template data<std::int32_t>();
    const std::int32_t* receiver = a.graph().receiver.template data<std::int32_t>();
    if (!a.backward()) {
      pair_zbl_forward(constants_, a.rows(0), a.graph().n_receivers, a.input(0), sender, receiver, a.indices(1),
                       a.output(0));
    } else if (auto* grad = a.grad_input(0)) {
      pair_zbl_backward(constants_, a.rows(0), a.input(0), sender, receiver, a.indices(1), a.grad_output(0), grad);
    }
  });
}

}  // namespace fastpath::ops
