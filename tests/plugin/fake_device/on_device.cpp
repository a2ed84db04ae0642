#include "on_device.hpp"

#include <array>
#include <utility>

namespace fake_device {

/// The device and its number, as the host of this kernel knows it.
struct Where {
  FakeDevice& device;
  std::int32_t index;
};

/// A call in host terms. The host's own arrays are gone when a stream gets to it, so everything is copied.
struct OnDevice::Call {
  struct List {
    std::vector<fp_tensor> items;
    fp_tensor_list c{};
  };
  std::deque<std::vector<std::int64_t>> numbers;  // shapes and strides
  std::deque<List> lists;
  std::vector<Use> uses;
  std::array<fp_tensor, 8> graph_tensors{};
  fp_graph graph{};
  fp_run_args args{};
  fp_sizes sizes{};
  fp_bind_args bind{};

  fp_tensor tensor(const Where& where, const sdk::Tensor& source, std::uint32_t access) {
    fp_tensor result = sdk::abi_struct<fp_tensor>();
    if (!source.present()) return result;
    if (source.device_type() != FP_DEVICE_EXT || source.device_id() != where.index) {
      throw sdk::InvalidArgument("a tensor on device type " + std::to_string(source.device_type()) + " index " +
                                 std::to_string(source.device_id()) + ", expected the fake device, " +
                                 std::to_string(where.index));
    }
    if (!source.grants(access) && where.device.checks_access()) {
      throw sdk::InvalidArgument(std::string("a tensor without the right to ") +
                                 (access == FP_ACCESS_READ ? "read" : "write"));
    }
    if (!source.is_contiguous()) throw sdk::Refused("a strided tensor of shape " + source.shape_text());
    const std::uint64_t bytes = static_cast<std::uint64_t>(source.numel()) * source.dtype().bits / 8;
    const Range range = where.device.resolve(source.handle(), source.byte_offset(), bytes);
    uses.push_back({range.block, access == FP_ACCESS_WRITE});
    auto& shape = numbers.emplace_back();
    auto& strides = numbers.emplace_back();
    for (std::int32_t axis = 0; axis < source.ndim(); ++axis) {
      shape.push_back(source.size(axis));
      strides.push_back(source.stride(axis));
    }
    result.access = access;
    result.data = range.data;
    result.device_type = FP_DEVICE_CPU;
    result.ndim = source.ndim();
    result.dtype_code = source.dtype().code;
    result.dtype_bits = source.dtype().bits;
    result.dtype_lanes = source.dtype().lanes;
    result.shape = shape.data();
    result.strides = strides.data();
    return result;
  }

  const fp_tensor_list* list(const Where& where, const sdk::TensorList& source, std::uint32_t access) {
    List& result = lists.emplace_back();
    for (std::uint64_t i = 0; i < source.size(); ++i) result.items.push_back(tensor(where, source[i], access));
    result.c = sdk::abi_struct<fp_tensor_list>();
    result.c.stride = sizeof(fp_tensor);
    result.c.count = result.items.size();
    result.c.items = result.items.data();
    return &result.c;
  }

  void* memory(const Where& where, void* handle, std::uint64_t bytes, bool writes) {
    if (handle == nullptr || bytes == 0) return nullptr;
    const Range range = where.device.resolve(handle, 0, bytes);
    uses.push_back({range.block, writes});
    return range.data;
  }
};

namespace {

/// On somebody else's device the stream comes with the native handles.
fp_stream* stream_of(fp_stream* stream, const sdk::Native& native) {
  return native ? static_cast<fp_stream*>(native->stream) : stream;
}

}  // namespace

OnDevice::OnDevice(std::unique_ptr<sdk::Kernel> kernel, FakeDevice& device, std::int32_t index)
    : kernel_(std::move(kernel)), device_(device), index_(index) {
  count(counters().live_kernels);
}
OnDevice::~OnDevice() { count(counters().live_kernels, -1); }

void OnDevice::bind(const sdk::Bind& bind) {
  const Where where{device_, index_};
  fp_stream* const stream = stream_of(bind.stream, bind.native);
  auto call = std::make_shared<Call>();
  fp_bind_args& args = call->bind;
  args = sdk::abi_struct<fp_bind_args>();
  args.version = bind.version;
  args.parameters = call->list(where, bind.parameters, FP_ACCESS_READ);
  // A kernel knows its workspace only when it is bound, so this does not wait for its turn: it makes it its turn.
  if (stream != nullptr) device_.synchronize(stream);
  device_.submit(nullptr, call->uses, [&] {
    kernel_->bind({bind.version, sdk::TensorList(args.parameters), nullptr, {}});
  });
  bound_ = std::move(call);
  count(counters().binds);
}

void OnDevice::run(const sdk::Run& run) {
  const Where where{device_, index_};
  auto call = std::make_shared<Call>();
  fp_run_args& args = call->args;
  args = sdk::abi_struct<fp_run_args>();
  args.pass = static_cast<std::uint32_t>(run.pass);
  args.threads = run.threads;
  if (run.graph) {
    fp_graph& graph = call->graph;
    graph = sdk::abi_struct<fp_graph>();
    graph.n_edges = run.graph->n_edges;
    graph.n_nodes = run.graph->n_nodes;
    graph.n_receivers = run.graph->n_receivers;
    graph.n_species = run.graph->n_species;
    const std::array<std::pair<const sdk::Tensor*, const fp_tensor**>, 8> members{
        {{&run.graph->sender, &graph.sender},
         {&run.graph->receiver, &graph.receiver},
         {&run.graph->receiver_ptr, &graph.receiver_ptr},
         {&run.graph->sender_ptr, &graph.sender_ptr},
         {&run.graph->sender_edge, &graph.sender_edge},
         {&run.graph->species, &graph.species},
         {&run.graph->species_ptr, &graph.species_ptr},
         {&run.graph->species_node, &graph.species_node}}};
    for (std::size_t i = 0; i < members.size(); ++i) {
      call->graph_tensors[i] = call->tensor(where, *members[i].first, FP_ACCESS_READ);
      *members[i].second = &call->graph_tensors[i];
    }
    args.graph = &graph;
  }
  fp_sizes& sizes = call->sizes;
  sizes = sdk::abi_struct<fp_sizes>();
  sizes.pass = args.pass;
  sizes.n_edges = run.sizes.n_edges;
  sizes.n_nodes = run.sizes.n_nodes;
  sizes.n_receivers = run.sizes.n_receivers;
  sizes.n_rows = run.sizes.n_rows;
  args.sizes = &sizes;
  args.inputs = call->list(where, run.inputs, FP_ACCESS_READ);
  args.outputs = call->list(where, run.outputs, FP_ACCESS_WRITE);
  args.grad_outputs = call->list(where, run.grad_outputs, FP_ACCESS_READ);
  args.grad_inputs = call->list(where, run.grad_inputs, FP_ACCESS_WRITE);
  args.grad_parameters = call->list(where, run.grad_parameters, FP_ACCESS_WRITE);
  args.inputs_t = call->list(where, run.inputs_t, FP_ACCESS_READ);
  args.outputs_t = call->list(where, run.outputs_t, FP_ACCESS_WRITE);
  args.parameters_t = call->list(where, run.parameters_t, FP_ACCESS_READ);
  args.grad_outputs_t = call->list(where, run.grad_outputs_t, FP_ACCESS_READ);
  args.grad_inputs_t = call->list(where, run.grad_inputs_t, FP_ACCESS_WRITE);
  args.grad_parameters_t = call->list(where, run.grad_parameters_t, FP_ACCESS_WRITE);
  args.scratch = call->memory(where, run.scratch, run.scratch_bytes, true);
  args.scratch_bytes = run.scratch_bytes;
  args.saved = call->memory(where, run.saved, run.saved_bytes, run.pass == sdk::Pass::forward);
  args.saved_bytes = run.saved_bytes;
  device_.run(stream_of(run.stream, run.native), call->uses,
              [call, kernel = kernel_] { kernel->run(sdk::Run::from(&call->args)); });
  count(counters().runs);
}

}  // namespace fake_device
