#include "ops/pointwise/module.hpp"

#include <algorithm>

#include "ops/accumulator.hpp"
#include "ops/activation.hpp"
#include "ops/arguments.hpp"

namespace fastpath::ops {

void RegroupChannelsModule::reference(const OpCall& call, const std::vector<Tensor>& parameters) {
  with_arguments(call, parameters, [&]<class S>(Arguments<S>& a) {
    const bool backward = a.backward();
    const S* from = backward ? a.grad_output(0) : a.input(0);
    S* to = backward ? a.grad_input(0) : a.output(0);
    if (to == nullptr) return;
    const std::int64_t rows = a.rows(0), channels = config_.channels, dim = config_.dim();
    for (std::int64_t row = 0; row < rows; ++row) {
      for (std::int64_t l = 0; l <= config_.l_max; ++l) {
        for (std::int64_t c = 0; c < channels; ++c) {
          for (std::int64_t m = 0; m <= 2 * l; ++m) {
            const std::int64_t block = row * channels * dim + channels * l * l + c * (2 * l + 1) + m;
            const std::int64_t grouped = row * channels * dim + c * dim + l * l + m;
            backward ? to[block] = from[grouped] : to[grouped] = from[block];
          }
        }
      }
    }
  });
}

void SumModule::reference(const OpCall& call, const std::vector<Tensor>& parameters) {
  with_arguments(call, parameters, [&]<class S>(Arguments<S>& a) {
    const std::int64_t size = a.size(0);
    if (a.backward()) {
      const S* grad = a.grad_output(0);
      for (std::size_t i = 0; i < a.n_inputs(); ++i) {
        if (S* target = a.grad_input(i)) std::copy(grad, grad + size, target);
      }
      return;
    }
    S* y = a.output(0);
    for (std::size_t i = 0; i < a.n_inputs(); ++i) {
      const S* x = a.input(i);
      for (std::int64_t k = 0; k < size; ++k) y[k] = i == 0 ? x[k] : y[k] + x[k];
    }
  });
}

void ScaledSiluModule::reference(const OpCall& call, const std::vector<Tensor>& parameters) {
  with_arguments(call, parameters, [&]<class S>(Arguments<S>& a) {
    using A = Accumulator<S>;
    const A constant(config_.constant);
    const std::int64_t size = a.size(0);
    const S* x = a.input(0);
    if (!a.backward()) {
      S* y = a.output(0);
      for (std::int64_t i = 0; i < size; ++i) y[i] = static_cast<S>(constant * silu(A(x[i])));
    } else if (S* grad_x = a.grad_input(0)) {
      const S* grad = a.grad_output(0);
      for (std::int64_t i = 0; i < size; ++i) {
        grad_x[i] = static_cast<S>(A(grad[i]) * constant * silu_derivative(A(x[i])));
      }
    }
  });
}

}  // namespace fastpath::ops
