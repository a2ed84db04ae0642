#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "fastpath/op.hpp"
#include "ops/dual.hpp"
#include "ops/graph_view.hpp"

/// How the reference reads a call: plain pointers of one scalar type. Under a tangent pass the scalar is Dual<double>
/// and arrays are packed from value and tangent, whatever the dtype of the call; Dual arrays never leave the reference.
namespace fastpath::ops {

inline bool is_backward(Pass pass) { return pass == Pass::backward || pass == Pass::backward_tangent; }
inline bool is_tangent(Pass pass) { return pass == Pass::forward_tangent || pass == Pass::backward_tangent; }

template <class S>
class Arguments {
 public:
  Arguments(const OpCall& call, const std::vector<Tensor>& parameters) : call_(call), parameters_(parameters) {}
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  bool backward() const { return is_backward(call_.pass); }
  std::size_t n_inputs() const { return call_.inputs.size(); }
  std::int64_t rows(std::size_t i) const { return call_.inputs[i].size(0); }
  std::int64_t size(std::size_t i) const { return call_.inputs[i].numel(); }
  const OpGraph& graph() const { return *call_.graph; }
  GraphView graph_view() const {
    const OpGraph& g = *call_.graph;
    return {g.n_edges,
            g.n_nodes,
            g.n_receivers,
            g.sender.data<std::int32_t>(),
            g.receiver.data<std::int32_t>(),
            g.receiver_ptr.data<std::int64_t>(),
            g.sender_ptr.data<std::int64_t>(),
            g.sender_edge.data<std::int64_t>()};
  }

  // Null where absent. Outputs and gradients hold their final values once commit() has run.
  const S* input(std::size_t i) { return read(at(call_.inputs, i), at(call_.inputs_t, i)); }
  const S* parameter(std::size_t i) { return read(at(parameters_, i), at(call_.parameters_t, i)); }
  const S* grad_output(std::size_t i) { return read(at(call_.grad_outputs, i), at(call_.grad_outputs_t, i)); }
  S* output(std::size_t i) { return write(at(call_.outputs, i), at(call_.outputs_t, i)); }
  S* grad_input(std::size_t i) { return write(at(call_.grad_inputs, i), at(call_.grad_inputs_t, i)); }
  S* grad_parameter(std::size_t i) { return write(at(call_.grad_parameters, i), at(call_.grad_parameters_t, i)); }
  const std::int32_t* indices(std::size_t i) const {
    const Tensor& tensor = at(call_.inputs, i);
    return tensor.defined() ? tensor.data<std::int32_t>() : nullptr;
  }

  void commit() {
    if constexpr (kDual) {
      for (const Written& written : written_) {
        for (std::size_t k = 0; k < written.packed->size(); ++k) {
          store(written.value, k, (*written.packed)[k].value);
          store(written.tangent, k, (*written.packed)[k].tangent);
        }
      }
    }
  }

 private:
  static constexpr bool kDual = std::is_same_v<S, Dual<double>>;
  struct Written {
    Tensor value, tangent;
    std::vector<S>* packed;
  };

  template <class List>
  static const Tensor& at(const List& list, std::size_t i) {
    static const Tensor none;
    return i < list.size() ? list[i] : none;
  }
  static double load(const Tensor& tensor, std::size_t k) {
    if (!tensor.defined()) return 0.0;
    return tensor.dtype() == DType::float32 ? static_cast<double>(tensor.data<float>()[k]) : tensor.data<double>()[k];
  }
  static void store(const Tensor& tensor, std::size_t k, double value) {
    if (!tensor.defined()) return;
    if (tensor.dtype() == DType::float32) {
      tensor.data<float>()[k] = static_cast<float>(value);
    } else {
      tensor.data<double>()[k] = value;
    }
  }

  const S* read(const Tensor& value, const Tensor& tangent) {
    if (!value.defined() && !tangent.defined()) return nullptr;
    if constexpr (kDual) {
      std::vector<S>& packed = buffer(value.defined() ? value : tangent);
      for (std::size_t k = 0; k < packed.size(); ++k) packed[k] = S(load(value, k), load(tangent, k));
      return packed.data();
    } else {
      return value.data<S>();
    }
  }
  S* write(const Tensor& value, const Tensor& tangent) {
    if (!value.defined() && !tangent.defined()) return nullptr;
    if constexpr (kDual) {
      std::vector<S>& packed = buffer(value.defined() ? value : tangent);
      written_.push_back({value, tangent, &packed});
      return packed.data();
    } else {
      return value.data<S>();
    }
  }
  std::vector<S>& buffer(const Tensor& like) {
    buffers_.push_back(std::make_unique<std::vector<S>>(static_cast<std::size_t>(like.numel())));
    return *buffers_.back();
  }

  const OpCall& call_;
  const std::vector<Tensor>& parameters_;
  std::vector<std::unique_ptr<std::vector<S>>> buffers_;
  std::vector<Written> written_;
};

/// Calls `function` with the Arguments of the scalar type that the call needs, then stores its results.
template <class Function>
void with_arguments(const OpCall& call, const std::vector<Tensor>& parameters, Function function) {
  const auto run = [&]<class S>(std::type_identity<S>) {
    Arguments<S> arguments(call, parameters);
    function(arguments);
    arguments.commit();
  };
  if (is_tangent(call.pass)) {
    run(std::type_identity<Dual<double>>{});
  } else if (call_dtype(call) == DType::float32) {
    run(std::type_identity<float>{});
  } else {
    run(std::type_identity<double>{});
  }
}

}  // namespace fastpath::ops
