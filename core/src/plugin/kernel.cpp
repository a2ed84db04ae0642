#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "device.hpp"

namespace fastpath::plugin {
namespace {

/// A list of tensors in C form that is filled anew for every call; allocates only while it grows.
class TensorList {
 public:
  const fp_tensor_list* fill(std::span<const Tensor> tensors, std::uint32_t access, std::int32_t index) {
    items_.resize(tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) items_[i] = to_c(tensors[i], access, index);
    list_ = {FP_SIZE_TENSOR_LIST, sizeof(fp_tensor), items_.size(), items_.data()};
    return &list_;
  }

 private:
  std::vector<fp_tensor> items_;
  fp_tensor_list list_{};
};

bool has_tangents(Pass pass) noexcept { return pass == Pass::forward_tangent || pass == Pass::backward_tangent; }
bool is_backward(Pass pass) noexcept { return pass == Pass::backward || pass == Pass::backward_tangent; }

class PluginKernel final : public Kernel {
 public:
  PluginKernel(std::shared_ptr<PluginDevice> device, fp_kernel* kernel, KernelTraits traits)
      : device_(std::move(device)), kernel_(kernel), traits_(traits), scratch_(*device_) {}
  ~PluginKernel() override {
    device_->give_kernel(kernel_);
    if (stream_ != nullptr) device_->memory_device().give_stream(stream_);
  }

  const std::string& plugin_id() const noexcept override { return device_->tables().id; }
  const KernelTraits& traits() const noexcept override { return traits_; }
  CallStatus bind(std::span<const Tensor> parameters, std::uint64_t version) override;
  std::uint64_t saved_bytes(const OpCall& call) override;
  CallStatus run(const OpCall& call) override;

 private:
  /// A stream of this kernel's own: streams may not be shared between threads, kernels are not either.
  CallStatus need_stream();
  CallStatus synchronize();
  CallStatus need_workspace(const OpCall& call);
  CallStatus check_devices(const OpCall& call) const;
  void fill_lists(const OpCall& call);
  const fp_graph* fill_graph(const OpGraph& graph);
  std::int32_t device_index() const noexcept { return device_->own_info().device.index; }

  std::shared_ptr<PluginDevice> device_;
  fp_kernel* kernel_;
  KernelTraits traits_;
  fp_stream* stream_ = nullptr;
  fp_native native_{};  // of stream_, where another plugin lends the memory
  ErrorSink sink_;
  Workspace scratch_;

  std::vector<Tensor> bound_;
  std::uint64_t bound_version_ = 0;
  TensorList parameters_;

  /// What the plugin wants for a call of these sizes; struct_size 0 while that is not known.
  struct Need {
    fp_sizes sizes{};
    fp_workspace workspace{};
  };
  std::array<Need, 4> needs_{};       // of the last sizes of each pass: an evaluation goes through all of them
  const Need* need_ = needs_.data();  // of the last call
  fp_run_args args_{};
  fp_graph graph_{};
  std::array<fp_tensor, 8> graph_tensors_{};
  std::array<TensorList, 11> lists_;
};

CallStatus PluginKernel::need_stream() {
  if (stream_ != nullptr || !device_->owns_memory()) return {};
  CallStatus status = device_->memory_device().take_stream(stream_, sink_);
  if (!status.ok() || !device_->borrows()) return status;
  status = device_->memory_device().native(stream_, native_, sink_);
  if (!status.ok()) device_->memory_device().give_stream(std::exchange(stream_, nullptr));
  return status;
}

CallStatus PluginKernel::synchronize() {
  PluginDevice& memory = device_->memory_device();
  return memory.call(sink_, [&] { return memory.tables().memory.synchronize(memory.handle(), stream_, sink_.get()); });
}

CallStatus PluginKernel::bind(std::span<const Tensor> parameters, std::uint64_t version) {
  if (version == bound_version_ && version != 0) return {};
  for (const Tensor& parameter : parameters) {
    if (parameter.defined() && parameter.device() != device_->info().device) {
      return {FP_E_INVALID_ARGUMENT, fmt::format("a parameter on {} for a kernel on {}", to_string(parameter.device()),
                                                 to_string(device_->info().device))};
    }
  }
  Lease lease;  // what was begun is waited for
  if (!device_->hold(lease)) return {FP_E_UNSUPPORTED, shut_down_reason().text};
  if (CallStatus status = need_stream(); !status.ok()) return status;
  // The kernel may look at the old ones until the call returns, so they go only then.
  std::vector<Tensor> next(parameters.begin(), parameters.end());
  bound_version_ = 0;
  needs_ = {};  // for other parameters a kernel may want other memory
  fp_bind_args args{};
  args.struct_size = FP_SIZE_BIND_ARGS;
  args.version = version;
  TensorList list;
  args.parameters = list.fill(next, FP_ACCESS_READ, device_index());
  args.stream = stream_;
  args.native = device_->borrows() ? &native_ : nullptr;
  args.errors = sink_.get();
  CallStatus status = device_->call(sink_, [&] { return device_->tables().kernels.bind(kernel_, &args); });
  if (stream_ != nullptr) {  // calls come on other streams, which know nothing of this one
    CallStatus finished = synchronize();
    if (status.ok()) status = std::move(finished);
  }
  // On failure too: how far the plugin came with the new ones is not known.
  bound_.swap(next);
  std::swap(parameters_, list);
  if (status.ok()) bound_version_ = version;
  return status;
}

CallStatus PluginKernel::need_workspace(const OpCall& call) {
  fp_sizes sizes{};
  sizes.struct_size = FP_SIZE_SIZES;
  sizes.pass = static_cast<std::uint32_t>(call.pass);
  if (!call.inputs.empty() && call.inputs[0].defined() && call.inputs[0].rank() > 0) {
    sizes.n_rows = call.inputs[0].shape()[0];
  }
  if (call.graph != nullptr) {
    sizes.n_edges = call.graph->n_edges;
    sizes.n_nodes = call.graph->n_nodes;
    sizes.n_receivers = call.graph->n_receivers;
  } else {
    sizes.n_edges = sizes.n_rows;  // an op over edges that needs no graph: its first input has a row per edge
  }
  Need& need = needs_[static_cast<std::size_t>(std::countr_zero(sizes.pass)) % needs_.size()];
  need_ = &need;
  const fp_sizes& known = need.sizes;
  if (known.struct_size != 0 && sizes.pass == known.pass && sizes.n_edges == known.n_edges &&
      sizes.n_nodes == known.n_nodes && sizes.n_receivers == known.n_receivers && sizes.n_rows == known.n_rows) {
    return {};
  }
  need = {};
  fp_workspace workspace{};
  workspace.struct_size = FP_SIZE_WORKSPACE;
  CallStatus status = device_->call(
      sink_, [&] { return device_->tables().kernels.workspace(kernel_, &sizes, &workspace, sink_.get()); });
  if (status.ok()) {
    need = {sizes, workspace};
  }
  return status;
}

std::uint64_t PluginKernel::saved_bytes(const OpCall& call) {
  return need_workspace(call).ok() ? need_->workspace.saved_bytes : 0;
}

CallStatus PluginKernel::check_devices(const OpCall& call) const {
  const Device wanted = device_->info().device;
  const auto check = [&](std::span<const Tensor> tensors) -> const Tensor* {
    for (const Tensor& tensor : tensors) {
      if (tensor.defined() && tensor.device() != wanted) return &tensor;
    }
    return nullptr;
  };
  const Tensor* wrong = nullptr;
  for (const auto& list : {call.inputs, call.outputs, call.grad_outputs, call.grad_inputs, call.grad_parameters,
                           call.inputs_t, call.outputs_t, call.parameters_t, call.grad_outputs_t, call.grad_inputs_t,
                           call.grad_parameters_t, std::span<const Tensor>(&call.saved, 1)}) {
    if (wrong == nullptr) wrong = check(list);
  }
  if (wrong == nullptr && call.graph != nullptr) {
    const OpGraph& graph = *call.graph;
    for (const Tensor* tensor : {&graph.sender, &graph.receiver, &graph.receiver_ptr, &graph.sender_ptr,
                                 &graph.sender_edge, &graph.species, &graph.species_ptr, &graph.species_node}) {
      if (wrong == nullptr) wrong = check({tensor, 1});
    }
  }
  if (wrong == nullptr) return {};
  return {FP_E_INVALID_ARGUMENT,
          fmt::format("a tensor on {} in a call of a kernel on {}", to_string(wrong->device()), to_string(wanted))};
}

const fp_graph* PluginKernel::fill_graph(const OpGraph& graph) {
  const std::array<const Tensor*, 8> tensors{&graph.sender,      &graph.receiver,    &graph.receiver_ptr,
                                             &graph.sender_ptr,  &graph.sender_edge, &graph.species,
                                             &graph.species_ptr, &graph.species_node};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    graph_tensors_[i] = to_c(*tensors[i], FP_ACCESS_READ, device_index());
  }
  graph_ = {};
  graph_.struct_size = FP_SIZE_GRAPH;
  graph_.n_edges = graph.n_edges;
  graph_.n_nodes = graph.n_nodes;
  graph_.n_receivers = graph.n_receivers;
  graph_.n_species = graph.n_species;
  graph_.sender = &graph_tensors_[0];
  graph_.receiver = &graph_tensors_[1];
  graph_.receiver_ptr = &graph_tensors_[2];
  graph_.sender_ptr = &graph_tensors_[3];
  graph_.sender_edge = &graph_tensors_[4];
  graph_.species = &graph_tensors_[5];
  graph_.species_ptr = &graph_tensors_[6];
  graph_.species_node = &graph_tensors_[7];
  return &graph_;
}

void PluginKernel::fill_lists(const OpCall& call) {
  const bool tangents = has_tangents(call.pass);
  const bool backward = is_backward(call.pass);
  std::size_t next = 0;
  // Lists that the pass does not use stay null, whatever the caller put there.
  const auto put = [&](const fp_tensor_list*& slot, std::span<const Tensor> tensors, std::uint32_t access, bool used) {
    TensorList& list = lists_[next++];
    slot = used ? list.fill(tensors, access, device_index()) : nullptr;
  };
  put(args_.inputs, call.inputs, FP_ACCESS_READ, true);
  put(args_.outputs, call.outputs, FP_ACCESS_WRITE, !backward);
  put(args_.grad_outputs, call.grad_outputs, FP_ACCESS_READ, backward);
  put(args_.grad_inputs, call.grad_inputs, FP_ACCESS_WRITE, backward);
  put(args_.grad_parameters, call.grad_parameters, FP_ACCESS_WRITE, backward);
  put(args_.inputs_t, call.inputs_t, FP_ACCESS_READ, tangents);
  put(args_.outputs_t, call.outputs_t, FP_ACCESS_WRITE, tangents && !backward);
  put(args_.parameters_t, call.parameters_t, FP_ACCESS_READ, tangents);
  put(args_.grad_outputs_t, call.grad_outputs_t, FP_ACCESS_READ, tangents && backward);
  put(args_.grad_inputs_t, call.grad_inputs_t, FP_ACCESS_WRITE, tangents && backward);
  put(args_.grad_parameters_t, call.grad_parameters_t, FP_ACCESS_WRITE, tangents && backward);
}

CallStatus PluginKernel::run(const OpCall& call) {
  Lease lease;  // for all of it: what was begun is waited for
  if (!device_->hold(lease)) return {FP_E_UNSUPPORTED, shut_down_reason().text};
  if (CallStatus status = check_devices(call); !status.ok()) return status;
  // The queue's own stream, or the kernel's, on which a call is complete when it returns.
  auto* const queue = device_->owns_memory() ? static_cast<PluginQueue*>(call.queue) : nullptr;
  if (queue == nullptr) {
    if (CallStatus status = need_stream(); !status.ok()) return status;
  }
  if (CallStatus status = need_workspace(call); !status.ok()) return status;
  if (queue != nullptr && need_->workspace.scratch_bytes > scratch_.capacity()) {
    try {
      queue->synchronize();  // an earlier call may still use what is about to be released
    } catch (const Error& error) {
      return {error.code() == ErrorCode::device_lost ? FP_E_DEVICE_LOST : FP_E_INTERNAL, error.what()};
    }
  }
  if (CallStatus status = scratch_.reserve(need_->workspace.scratch_bytes, sink_); !status.ok()) return status;

  args_ = {};
  args_.struct_size = FP_SIZE_RUN_ARGS;
  args_.pass = static_cast<std::uint32_t>(call.pass);
  args_.graph = call.graph == nullptr ? nullptr : fill_graph(*call.graph);
  args_.sizes = &need_->sizes;
  fill_lists(call);
  args_.scratch = scratch_.memory();
  args_.scratch_bytes = need_->workspace.scratch_bytes;
  if (call.saved.defined()) {
    if (device_->owns_memory() && call.saved.byte_offset() != 0) {
      return {FP_E_INVALID_ARGUMENT, "the saved buffer does not start at its allocation"};
    }
    args_.saved = call.saved.raw();
    args_.saved_bytes = call.saved.bytes();
  }
  args_.stream = queue != nullptr ? queue->stream() : stream_;
  args_.native = device_->borrows() ? &native_ : nullptr;
  if (queue != nullptr && device_->borrows()) {
    if (CallStatus status = queue->native(args_.native, sink_); !status.ok()) return status;
  }
  args_.threads = std::max(call.threads, 1);
  args_.errors = sink_.get();
  CallStatus status = device_->call(sink_, [&] { return device_->tables().kernels.run(kernel_, &args_); });
  if (queue != nullptr || stream_ == nullptr) return status;
  // Also after a failure: what was enqueued before it still writes to the caller's tensors.
  CallStatus finished = synchronize();
  return status.ok() ? finished : status;
}

}  // namespace

fp_tensor to_c(const Tensor& tensor, std::uint32_t access, std::int32_t index) noexcept {
  static constexpr std::int64_t kNoAxes = 0;  // a scalar has no sizes, but its pointers are not null
  fp_tensor result{};
  result.struct_size = FP_SIZE_TENSOR;
  if (!tensor.defined()) return result;  // access 0: absent
  result.access = access;
  result.data = tensor.base();
  result.device_type = static_cast<std::int32_t>(tensor.device().kind);
  result.device_id = tensor.device().is_cpu() ? 0 : index;
  result.ndim = static_cast<std::int32_t>(tensor.rank());
  const DTypeCode code = dtype_code(tensor.dtype());
  result.dtype_code = code.code;
  result.dtype_bits = code.bits;
  result.dtype_lanes = 1;
  result.shape = tensor.rank() == 0 ? &kNoAxes : tensor.shape().data();
  result.strides = tensor.rank() == 0 ? &kNoAxes : tensor.strides().data();
  result.byte_offset = tensor.byte_offset();
  return result;
}

std::unique_ptr<Kernel> adopt_kernel(std::shared_ptr<PluginDevice> device, fp_kernel* kernel, KernelTraits traits) {
  return std::make_unique<PluginKernel>(std::move(device), kernel, traits);
}

}  // namespace fastpath::plugin
