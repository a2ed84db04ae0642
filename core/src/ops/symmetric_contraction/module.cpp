#include "ops/symmetric_contraction/module.hpp"

#include <fmt/format.h>

#include "dispatch/module_state.hpp"
#include "ops/arguments.hpp"
#include "ops/symmetric_contraction/symmetric_contraction.hpp"

namespace fastpath::ops {

SymmetricContractionModule::SymmetricContractionModule(const sdk::SymmetricContractionConfig& config,
                                                       const std::vector<std::vector<Tensor>>& u)
    : config_(config) {
  for (std::size_t t = 0; t < config.targets.size(); ++t) {
    for (int nu = 1; nu <= config.correlation; ++nu) {
      const auto n = static_cast<std::size_t>(nu - 1);
      register_buffer(u_name(t, nu), u[t][n]);
      register_parameter(w_name(t, nu),
                         Tensor::zeros({config.n_species, config.n_paths[t][n], config.channels}, DType::float64));
    }
  }
  set_spec(config);
}

std::string SymmetricContractionModule::u_name(std::size_t target, int nu) const {
  return fmt::format("contractions.{}.U_matrix_{}", target, nu);
}

std::string SymmetricContractionModule::w_name(std::size_t target, int nu) const {
  if (nu == config_.correlation) return fmt::format("contractions.{}.weights_max", target);
  return fmt::format("contractions.{}.weights.{}", target, config_.correlation - 1 - nu);
}

std::vector<SchemaTensor> SymmetricContractionModule::schema() const {
  std::vector<SchemaTensor> names;
  for (std::size_t t = 0; t < config_.targets.size(); ++t) {
    for (int nu = 1; nu <= config_.correlation; ++nu) {
      names.push_back({u_name(t, nu), false});
      names.push_back({w_name(t, nu), true});
    }
  }
  return names;
}

void SymmetricContractionModule::on_change() {
  {
    const std::lock_guard lock(mutex_);
    polynomial_.reset();
  }
  OpModule::on_change();
}

void SymmetricContractionModule::share_polynomial(const SymmetricContractionModule& other) {
  polynomial_ = other.polynomial();
  polynomial_version_ = state().version();
}

std::shared_ptr<const sdk::SymmetricPolynomial> SymmetricContractionModule::polynomial() const {
  const std::lock_guard lock(mutex_);
  // A replica is not told when the other one's tensors, which it shares, change.
  const std::uint64_t version = const_cast<SymmetricContractionModule&>(*this).state().version();
  if (!polynomial_ || polynomial_version_ != version) {
    // Always from the stored values in double: the sparse form does not depend on the dtype of an evaluation.
    std::vector<Tensor> kept;
    std::vector<const double*> u;
    for (std::size_t t = 0; t < config_.targets.size(); ++t) {
      for (int nu = 1; nu <= config_.correlation; ++nu) {
        kept.push_back(buffer(u_name(t, nu)).to(DType::float64).contiguous());
        u.push_back(kept.back().data<double>());
      }
    }
    polynomial_ = std::make_shared<const sdk::SymmetricPolynomial>(sdk::SymmetricPolynomial::build(config_, u.data()));
    polynomial_version_ = version;
  }
  return polynomial_;
}

void SymmetricContractionModule::reference(const OpCall& call, const std::vector<Tensor>& parameters) {
  const auto sparse = polynomial();
  with_arguments(call, parameters, [&]<class S>(Arguments<S>& a) {
    std::vector<const S*> weights;
    std::vector<S*> grads;
    for (std::size_t t = 0; t < config_.targets.size(); ++t) {
      for (int nu = 1; nu <= config_.correlation; ++nu) {
        weights.push_back(a.parameter(config_.w_index(t, nu)));
        if (a.backward()) grads.push_back(a.grad_parameter(config_.w_index(t, nu)));
      }
    }
    if (!a.backward()) {
      symmetric_contraction_forward(config_, *sparse, a.rows(0), a.input(0), a.indices(1), weights.data(), a.output(0));
    } else {
      symmetric_contraction_backward(config_, *sparse, a.rows(0), a.input(0), a.indices(1), weights.data(),
                                     a.grad_output(0), a.grad_input(0), grads.data());
    }
  });
}

}  // namespace fastpath::ops
