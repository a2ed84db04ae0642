#include "ops/conv_tensor_product/module.hpp"

#include "ops/arguments.hpp"
#include "ops/conv_tensor_product/conv_tensor_product.hpp"

namespace fastpath::ops {

void ConvTensorProductModule::reference(const OpCall& call, const std::vector<Tensor>& parameters) {
  with_arguments(call, parameters, [&](auto& a) {
    if (!a.backward()) {
      conv_tensor_product_forward(config_, a.graph_view(), a.input(0), a.input(1), a.input(2), a.output(0));
    } else {
      conv_tensor_product_backward(config_, a.graph_view(), a.input(0), a.input(1), a.input(2), a.grad_output(0),
                                   a.grad_input(0), a.grad_input(1), a.grad_input(2));
    }
  });
}

}  // namespace fastpath::ops
