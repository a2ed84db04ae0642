#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cpu/kernel.hpp"

namespace fastpath_cpu {

/// A list of tensors for a call of a kernel's own, made from one of the host.
class TensorArray {
 public:
  /// The first n of a list.
  TensorArray(const sdk::TensorList& from, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) items_.push_back(copy(from[i]));
  }
  void set(std::size_t i, const sdk::Tensor& tensor) { items_[i] = copy(tensor); }
  void clear(std::size_t i) { items_[i] = copy({}); }
  /// Puts a tensor elsewhere, which stays of the same shape.
  template <class T>
  void move_to(std::size_t i, T* data) {
    items_[i].data = data;
    items_[i].byte_offset = 0;
  }
  std::size_t size() const { return items_.size(); }
  bool present(std::size_t i) const { return items_[i].access != FP_ACCESS_ABSENT; }
  bool any() const {
    return std::any_of(items_.begin(), items_.end(), [](const auto& item) { return item.access != FP_ACCESS_ABSENT; });
  }
  /// Valid as long as this object, until it changes.
  sdk::TensorList list() {
    list_ = sdk::abi_struct<fp_tensor_list>();
    list_.stride = sizeof(fp_tensor);
    list_.count = items_.size();
    list_.items = items_.data();
    return sdk::TensorList(&list_);
  }

 private:
  static fp_tensor copy(const sdk::Tensor& tensor) {
    return tensor.present() ? tensor.c() : sdk::abi_struct<fp_tensor>();
  }
  std::vector<fp_tensor> items_;
  fp_tensor_list list_{};
};

/// A kernel for a map with one output that is linear in every real input and in its first parameter, if it has one;
/// further parameters are added to the output. Its tangent passes are sums of calls of its own passes, each with one
/// argument replaced by its tangent. What has no tangent costs nothing.
template <class T>
class MultilinearKernel : public CpuKernel<T> {
 public:
  using CpuKernel<T>::CpuKernel;

 protected:
  /// Forward without the parameters that are added.
  virtual void forward_products(const sdk::Run& run, sdk::Scratch& scratch) { this->forward(run, scratch); }
  /// Another kernel of this kind without parameters, if it has any. Parameters need to be brought into their form anew
  /// to be replaced by their tangents.
  virtual std::unique_ptr<MultilinearKernel<T>> another() const { return nullptr; }

 private:
  std::size_t n_inputs() const { return this->signature().inputs.size(); }
  std::size_t n_parameters() const { return this->signature().parameters.size(); }
  static std::int64_t numel(const sdk::Argument& argument, const sdk::Extents& extents) {
    std::int64_t n = extents[argument.axis];
    for (const std::int64_t size : argument.trailing) n *= size;
    return argument.real && argument.differentiable ? n : 0;
  }

  void plan_tangent(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) override {
    terms(scratch, extents, pass);
    CpuKernel<T>::plan_tangent(scratch, extents, pass);
  }
  /// Memory for terms that are added to what is written: one array for each tensor of the pass.
  std::vector<T*> terms(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) const {
    std::vector<T*> result;
    const sdk::Signature& signature = this->signature();
    if (pass == sdk::Pass::forward_tangent) return {scratch.take<T>(numel(signature.outputs[0], extents))};
    for (const auto* list : {&signature.inputs, &signature.parameters}) {
      for (const sdk::Argument& argument : *list) result.push_back(scratch.take<T>(numel(argument, extents)));
    }
    return result;
  }
  static sdk::Run plain(const sdk::Run& run, sdk::Pass pass) {
    sdk::Run result = run;
    result.pass = result.sizes.pass = pass;
    for (sdk::TensorList* list : {&result.inputs_t, &result.outputs_t, &result.parameters_t, &result.grad_outputs_t,
                                  &result.grad_inputs_t, &result.grad_parameters_t}) {
      *list = {};
    }
    return result;
  }
  void add(const sdk::Run& run, std::int64_t n, const T* from, T* to) {
    const Chunks chunks(n, 4096);
    this->workers_.run(run.threads, chunks.count, [&](std::int64_t chunk) {
      for (std::int64_t i = chunks.begin(chunk); i < chunks.end(chunk); ++i) to[i] += from[i];
    });
  }
  /// A kernel whose parameters are the tangents of this one's, or null if none has one.
  std::unique_ptr<MultilinearKernel<T>> along(const sdk::Run& run) const {
    TensorArray tangents(run.parameters_t, n_parameters());
    if (!tangents.any()) return nullptr;
    std::vector<std::vector<T>> zeros(tangents.size());
    const sdk::Extents extents(run);
    for (std::size_t i = 0; i < tangents.size(); ++i) {
      const sdk::Argument& argument = this->signature().parameters[i];
      if (tangents.present(i) || argument.optional) continue;
      zeros[i].resize(static_cast<std::size_t>(numel(argument, extents)));
      zeros_like(argument, zeros[i], tangents, i);
    }
    std::unique_ptr<MultilinearKernel<T>> kernel = another();
    kernel->take(tangents.list());
    return kernel;
  }
  static void zeros_like(const sdk::Argument& argument, std::vector<T>& zeros, TensorArray& list, std::size_t i) {
    static constexpr std::int64_t kStrides[] = {1};
    fp_tensor tensor = sdk::abi_struct<fp_tensor>();
    tensor.access = FP_ACCESS_READ;
    tensor.data = zeros.data();
    tensor.device_type = FP_DEVICE_CPU;
    tensor.ndim = 1;
    tensor.dtype_code = sdk::dtype_of<T>().code;
    tensor.dtype_bits = sdk::dtype_of<T>().bits;
    tensor.dtype_lanes = 1;
    tensor.shape = argument.trailing.data();
    tensor.strides = kStrides;
    list.set(i, sdk::Tensor(tensor));
  }

  void forward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override {
    const sdk::Extents extents(run);
    T* const more = terms(scratch, extents, run.pass)[0];
    sdk::Run call = plain(run, sdk::Pass::forward);
    sdk::Scratch own = scratch;
    this->forward(call, own);
    T* const target = this->write(run.outputs_t, 0);
    if (target == nullptr) return;
    const std::int64_t n = run.outputs_t[0].numel();
    bool written = false;
    const auto add_term = [&](const sdk::TensorList& inputs, MultilinearKernel<T>& kernel, bool products) {
      TensorArray outputs(run.outputs_t, 1);
      if (written) outputs.move_to(0, more);
      call.inputs = inputs;
      call.outputs = outputs.list();
      own = scratch;
      products ? kernel.forward_products(call, own) : kernel.forward(call, own);
      if (written) add(run, n, more, target);
      written = true;
    };
    for (std::size_t i = 0; i < n_inputs(); ++i) {
      if (!run.inputs_t[i].present()) continue;
      TensorArray inputs(run.inputs, n_inputs());
      inputs.set(i, run.inputs_t[i]);
      add_term(inputs.list(), *this, true);
    }
    if (const auto kernel = along(run)) add_term(run.inputs, *kernel, false);
    if (!written) std::fill_n(target, n, T(0));
  }

  void backward_tangent(const sdk::Run& run, sdk::Scratch& scratch) override {
    const sdk::Extents extents(run);
    const std::vector<T*> more = terms(scratch, extents, run.pass);
    sdk::Run call = plain(run, sdk::Pass::backward);
    sdk::Scratch own = scratch;
    this->backward(call, own);
    // Gradients of inputs, then of parameters.
    std::vector<bool> written(n_inputs() + n_parameters(), false);
    constexpr auto kNone = static_cast<std::size_t>(-1);
    // Of a product, the gradient with respect to one factor does not depend on it; nor do those of what is added.
    const auto add_term = [&](const sdk::TensorList& inputs, const sdk::TensorList& grad_outputs,
                              MultilinearKernel<T>& kernel, std::size_t replaced, bool products) {
      TensorArray grad_inputs(run.grad_inputs_t, n_inputs()), grad_parameters(run.grad_parameters_t, n_parameters());
      for (std::size_t i = 0; i < written.size(); ++i) {
        const bool input = i < n_inputs();
        TensorArray& list = input ? grad_inputs : grad_parameters;
        const std::size_t at = input ? i : i - n_inputs();
        if (i == replaced || (products && !input && at > 0)) list.clear(at);
        if (list.present(at) && written[i]) list.move_to(at, more[i]);
      }
      if (!grad_inputs.any() && !grad_parameters.any()) return;
      call.inputs = inputs;
      call.grad_outputs = grad_outputs;
      call.grad_inputs = grad_inputs.list();
      call.grad_parameters = grad_parameters.list();
      own = scratch;
      kernel.backward(call, own);
      for (std::size_t i = 0; i < written.size(); ++i) {
        const bool input = i < n_inputs();
        const std::size_t at = input ? i : i - n_inputs();
        if (!(input ? grad_inputs : grad_parameters).present(at)) continue;
        const sdk::TensorList& targets = input ? run.grad_inputs_t : run.grad_parameters_t;
        if (written[i]) add(run, targets[at].numel(), more[i], this->write(targets, at));
        written[i] = true;
      }
    };
    if (run.grad_outputs_t[0].present()) add_term(run.inputs, run.grad_outputs_t, *this, kNone, false);
    for (std::size_t i = 0; i < n_inputs(); ++i) {
      if (!run.inputs_t[i].present()) continue;
      TensorArray inputs(run.inputs, n_inputs());
      inputs.set(i, run.inputs_t[i]);
      add_term(inputs.list(), run.grad_outputs, *this, i, true);
    }
    if (const auto kernel = along(run)) add_term(run.inputs, run.grad_outputs, *kernel, n_inputs(), true);
    for (std::size_t i = 0; i < written.size(); ++i) {
      const bool input = i < n_inputs();
      const sdk::TensorList& targets = input ? run.grad_inputs_t : run.grad_parameters_t;
      const std::size_t at = input ? i : i - n_inputs();
      if (T* target = this->write(targets, at); target != nullptr && !written[i]) {
        std::fill_n(target, targets[at].numel(), T(0));
      }
    }
  }
};

}  // namespace fastpath_cpu
