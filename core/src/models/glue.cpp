#include "models/glue.hpp"

#include <algorithm>
#include <cmath>

#include "ops/accumulator.hpp"
#include "ops/activation.hpp"
#include "ops/edge_geometry/edge_geometry.hpp"
#include "ops/multiply_rows.hpp"

namespace fastpath::models {

using ops::Accumulator;
using ops::Arguments;

std::shared_ptr<Glue> edge_lengths() {
  return make_glue([](auto& a) {
    if (!a.backward()) {
      ops::edge_lengths_forward(a.rows(0), a.input(0), a.output(0));
    } else if (auto* grad = a.grad_input(0)) {
      ops::edge_lengths_backward(a.rows(0), a.input(0), a.grad_output(0), grad);
    }
  });
}

std::shared_ptr<Glue> node_embedding(Module& module, std::int64_t n_species, std::int64_t channels) {
  const auto apply = [n_species, channels]<class S>(Arguments<S>& a) {
    const std::int64_t rows = a.rows(0);
    const std::int32_t* species = a.indices(0);
    const double factor = 1.0 / std::sqrt(static_cast<double>(n_species));
    if (!a.backward()) {
      const S* weight = a.parameter(0);
      S* out = a.output(0);
      for (std::int64_t n = 0; n < rows; ++n) {
        for (std::int64_t c = 0; c < channels; ++c)
          out[n * channels + c] =
              static_cast<S>(Accumulator<S>(weight[species[n] * channels + c]) * Accumulator<S>(factor));
      }
      return;
    }
    S* grad_weight = a.grad_parameter(0);
    if (grad_weight == nullptr) return;
    const S* grad = a.grad_output(0);
    std::vector<Accumulator<S>> total(static_cast<std::size_t>(n_species * channels), Accumulator<S>(0));
    for (std::int64_t n = 0; n < rows; ++n) {
      for (std::int64_t c = 0; c < channels; ++c) {
        total[static_cast<std::size_t>(species[n] * channels + c)] += Accumulator<S>(grad[n * channels + c]);
      }
    }
    for (std::size_t i = 0; i < total.size(); ++i) grad_weight[i] = static_cast<S>(total[i] * Accumulator<S>(factor));
  };
  return make_glue(apply, &module, {{"linear.weight"}});
}

std::shared_ptr<Glue> multiply_rows(std::int64_t width) {
  return make_glue([width]<class S>(Arguments<S>& a) {
    const S* x = a.input(0);
    const S* factor = a.input(1);
    if (!a.backward()) {
      ops::multiply_rows_forward(a.rows(0), width, x, factor, a.output(0));
    } else {
      ops::multiply_rows_backward(a.rows(0), width, x, factor, a.grad_output(0), a.grad_input(0), a.grad_input(1));
    }
  });
}

std::shared_ptr<Glue> edge_density(Module& module, std::int64_t n_basis) {
  const auto apply = [n_basis]<class S>(Arguments<S>& a) {
    using std::tanh;
    using A = Accumulator<S>;
    const std::int64_t n_edges = a.rows(0);
    const std::int32_t* receiver = a.graph().receiver.template data<std::int32_t>();
    const S* basis = a.input(0);
    const S* envelope = a.input(1);
    const S* weight = a.parameter(0);
    const A scale(1.0 / std::sqrt(static_cast<double>(n_basis)));
    const auto argument = [&](std::int64_t e) {
      A total(0);
      for (std::int64_t b = 0; b < n_basis; ++b) total += A(basis[e * n_basis + b]) * A(weight[b]);
      return total * scale;
    };
    if (!a.backward()) {
      S* density = a.output(0);
      std::vector<A> total(static_cast<std::size_t>(a.graph().n_receivers), A(0));
      for (std::int64_t e = 0; e < n_edges; ++e) {
        const A u = argument(e);
        const A value = tanh(u * u);
        total[static_cast<std::size_t>(receiver[e])] += envelope != nullptr ? value * A(envelope[e]) : value;
      }
      for (std::size_t n = 0; n < total.size(); ++n) density[n] = static_cast<S>(total[n]);
      return;
    }
    const S* grad = a.grad_output(0);
    S* grad_basis = a.grad_input(0);
    S* grad_envelope = a.grad_input(1);
    S* grad_weight = a.grad_parameter(0);
    std::vector<A> total(static_cast<std::size_t>(n_basis), A(0));
    for (std::int64_t e = 0; e < n_edges; ++e) {
      const A g(grad[receiver[e]]);
      const A u = argument(e);
      const A value = tanh(u * u);
      if (grad_envelope != nullptr) grad_envelope[e] = static_cast<S>(g * value);
      A slope = g * (A(1) - value * value) * A(2) * u * scale;
      if (envelope != nullptr) slope = slope * A(envelope[e]);
      for (std::int64_t b = 0; b < n_basis; ++b) {
        if (grad_basis != nullptr) grad_basis[e * n_basis + b] = static_cast<S>(slope * A(weight[b]));
        total[static_cast<std::size_t>(b)] += slope * A(basis[e * n_basis + b]);
      }
    }
    if (grad_weight != nullptr) {
      for (std::size_t b = 0; b < total.size(); ++b) grad_weight[b] = static_cast<S>(total[b]);
    }
  };
  return make_glue(apply, &module, {{"layer0.weight"}});
}

std::shared_ptr<Glue> divide_by_density(std::int64_t width) {
  return make_glue([width]<class S>(Arguments<S>& a) {
    using A = Accumulator<S>;
    const std::int64_t rows = a.rows(0);
    const S* x = a.input(0);
    const S* density = a.input(1);
    if (!a.backward()) {
      S* out = a.output(0);
      for (std::int64_t i = 0; i < rows * width; ++i) out[i] = static_cast<S>(A(x[i]) / (A(density[i / width]) + A(1)));
      return;
    }
    const S* grad = a.grad_output(0);
    S* grad_x = a.grad_input(0);
    S* grad_density = a.grad_input(1);
    for (std::int64_t row = 0; row < rows; ++row) {
      const A divisor = A(density[row]) + A(1);
      A total(0);
      for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
        total += A(grad[i]) * A(x[i]);
        if (grad_x != nullptr) grad_x[i] = static_cast<S>(A(grad[i]) / divisor);
      }
      if (grad_density != nullptr) grad_density[row] = static_cast<S>(-total / (divisor * divisor));
    }
  });
}

namespace {

/// to += from, or to = from; a tensor that is not there is zero.
void add(const Tensor& from, const Tensor& to, bool overwrite) {
  if (!to.defined()) return;
  const auto run = [&]<class From, class To>(const From* x, To* y) {
    const std::int64_t size = to.numel();
    if (x == nullptr) {
      if (overwrite) std::fill(y, y + size, To(0));
    } else if (overwrite) {
      for (std::int64_t k = 0; k < size; ++k) y[k] = static_cast<To>(x[k]);
    } else {
      for (std::int64_t k = 0; k < size; ++k) y[k] += static_cast<To>(x[k]);
    }
  };
  const auto to_type = [&]<class To>(To* y) {
    if (from.defined() && from.dtype() == DType::float32) {
      run(from.data<float>(), y);
    } else {
      run(from.defined() ? from.data<double>() : nullptr, y);
    }
  };
  if (to.dtype() == DType::float32) {
    to_type(to.data<float>());
  } else {
    to_type(to.data<double>());
  }
}

/// The one glue whose tensors differ in dtype: it leads from float64 to the dtype of the evaluation and back.
class Sum : public Glue {
 public:
  void apply(const OpCall& call, const std::vector<Tensor>&) override {
    const auto at = [](const auto& list, std::size_t i) { return i < list.size() ? list[i] : Tensor(); };
    if (ops::is_backward(call.pass)) {
      for (std::size_t i = 0; i < call.inputs.size(); ++i) {
        add(at(call.grad_outputs, 0), at(call.grad_inputs, i), true);
        add(at(call.grad_outputs_t, 0), at(call.grad_inputs_t, i), true);
      }
      return;
    }
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      add(call.inputs[i], at(call.outputs, 0), i == 0);
      add(at(call.inputs_t, i), at(call.outputs_t, 0), i == 0);
    }
  }
};

}  // namespace

std::shared_ptr<Glue> sum() { return std::make_shared<Sum>(); }

std::shared_ptr<Glue> keep_receivers() {
  return make_glue([]<class S>(Arguments<S>& a) {
    const std::int64_t rows = a.rows(0), kept = a.graph().n_receivers;
    const std::int64_t width = rows > 0 ? a.size(0) / rows : 0;
    if (!a.backward()) {
      const S* x = a.input(0);
      std::copy(x, x + kept * width, a.output(0));
    } else if (S* grad_x = a.grad_input(0)) {
      const S* grad = a.grad_output(0);
      std::copy(grad, grad + kept * width, grad_x);
      std::fill(grad_x + kept * width, grad_x + rows * width, S(0));
    }
  });
}

std::shared_ptr<Glue> mask_heads(std::int64_t n_heads, std::int64_t width) {
  return make_glue([n_heads, width]<class S>(Arguments<S>& a) {
    const bool backward = a.backward();
    const S* from = backward ? a.grad_output(0) : a.input(0);
    S* to = backward ? a.grad_input(0) : a.output(0);
    if (to == nullptr) return;
    const std::int32_t* head = a.indices(1);
    for (std::int64_t i = 0; i < a.size(0); ++i) {
      const std::int64_t row = i / (n_heads * width), own = i / width % n_heads;
      to[i] = own == head[row] ? from[i] : S(0);
    }
  });
}

std::shared_ptr<Glue> select_head(std::int64_t n_heads) {
  return make_glue([n_heads]<class S>(Arguments<S>& a) {
    const std::int64_t rows = a.rows(0);
    const std::int32_t* head = a.indices(1);
    if (!a.backward()) {
      const S* x = a.input(0);
      S* out = a.output(0);
      for (std::int64_t row = 0; row < rows; ++row) out[row] = x[row * n_heads + head[row]];
    } else if (S* grad_x = a.grad_input(0)) {
      const S* grad = a.grad_output(0);
      std::fill(grad_x, grad_x + rows * n_heads, S(0));
      for (std::int64_t row = 0; row < rows; ++row) grad_x[row * n_heads + head[row]] = grad[row];
    }
  });
}

}  // namespace fastpath::models
