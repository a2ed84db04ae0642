#include "kernel.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace fastpath_gpu {
namespace {

const char* name_of(Role role) {
  switch (role) {
    case Role::input:
      return "input";
    case Role::output:
      return "output";
    case Role::grad_output:
      return "gradient of output";
    case Role::grad_input:
      return "gradient of input";
    case Role::grad_parameter:
      return "gradient of parameter";
    case Role::parameter:
      return "parameter";
    case Role::graph:
      return "graph array";
    case Role::scratch:
    case Role::owned:
    case Role::table:
      break;
  }
  return "memory";
}

void resize(std::vector<bool>& wanted, std::size_t size) { wanted.assign(size, false); }

bool same(const Call& a, const Call& b) {
  return a.pass == b.pass && a.n_edges == b.n_edges && a.n_nodes == b.n_nodes && a.n_receivers == b.n_receivers &&
         a.n_rows == b.n_rows && a.outputs == b.outputs && a.grad_outputs == b.grad_outputs &&
         a.grad_inputs == b.grad_inputs && a.grad_parameters == b.grad_parameters;
}

void need_pass(sdk::Pass pass, std::uint32_t passes) {
  if ((static_cast<std::uint32_t>(pass) & passes) == 0) {
    throw sdk::Refused("pass " + std::to_string(static_cast<std::uint32_t>(pass)) +
                       ", which this kernel was not made for");
  }
}

void need_sizes(std::int64_t n_edges, std::int64_t n_nodes, std::int64_t n_receivers, std::int64_t n_rows) {
  if (n_edges < 0 || n_nodes < 0 || n_receivers < 0 || n_rows < 0 || n_receivers > n_nodes) {
    throw sdk::InvalidArgument(std::to_string(n_edges) + " edges, " + std::to_string(n_nodes) + " nodes, " +
                               std::to_string(n_receivers) + " receivers and " + std::to_string(n_rows) +
                               " rows, expected sizes >= 0 and no more receivers than nodes");
  }
}

}  // namespace

GpuKernel::GpuKernel(std::unique_ptr<Op> op, sdk::DType dtype, std::uint32_t passes, GpuDevice& device)
    : op_(std::move(op)), dtype_(dtype), passes_(passes), device_(device) {
  const sdk::Signature& signature = op_->signature();
  places(Role::input).resize(signature.inputs.size());
  places(Role::output).resize(signature.outputs.size());
  places(Role::grad_output).resize(signature.outputs.size());
  places(Role::grad_input).resize(signature.inputs.size());
  places(Role::grad_parameter).resize(signature.parameters.size());
  places(Role::parameter).resize(signature.parameters.size());
  constexpr std::size_t kGraphArrays = static_cast<std::size_t>(GraphArray::species_node) + 1;
  places(Role::graph).resize(kGraphArrays);
  places(Role::scratch).resize(1);
  resize(call_.outputs, signature.outputs.size());
  resize(call_.grad_outputs, signature.outputs.size());
  resize(call_.grad_inputs, signature.inputs.size());
  resize(call_.grad_parameters, signature.parameters.size());
  plans_.reserve(kPlans);
  if (op_->constants().empty()) generate();
}

void GpuKernel::generate() {
  Program program = op_->generate(device_.target(), dtype_, passes_);
  std::shared_ptr<Module> module = device_.module(program);
  std::vector<DeviceBuffer> owned, tables;
  for (const std::uint64_t bytes : program.owned) owned.emplace_back(device_, bytes);
  for (const std::vector<std::uint8_t>& table : program.tables) {
    tables.emplace_back(device_, table.size());
    if (!table.empty()) device_.copy_to_device(tables.back().get(), 0, table.data(), table.size(), nullptr);
  }
  plans_.clear();  // they look at the old program
  next_plan_ = 0;
  program_ = std::move(program);
  module_ = std::move(module);
  owned_.swap(owned);
  tables_.swap(tables);
  std::size_t most = 0;
  for (const KernelInfo& kernel : program_->kernels) most = std::max(most, kernel.buffers.size());
  arguments_.resize(most);
  const auto fill = [](std::vector<Place>& to, const std::vector<DeviceBuffer>& from) {
    to.clear();
    for (const DeviceBuffer& buffer : from) to.push_back({buffer.get(), 0});
  };
  fill(places(Role::owned), owned_);
  fill(places(Role::table), tables_);
}

void GpuKernel::need_parameters() const {
  if (!op_->signature().parameters.empty() && version_ == 0) {
    throw sdk::InvalidArgument("parameters were not bound yet");
  }
}

GpuKernel::Place GpuKernel::place(const sdk::Tensor& tensor, std::uint32_t access, const char* role,
                                  std::size_t index) const {
  if (!tensor.present()) return {};
  const auto name = [&] { return std::string(role) + " " + std::to_string(index); };
  const sdk::DeviceDescription& own = device_.description();
  if (tensor.device_type() != own.type || tensor.device_id() != own.index) {
    throw sdk::InvalidArgument(name() + " is on device type " + std::to_string(tensor.device_type()) + " index " +
                               std::to_string(tensor.device_id()) + ", expected type " + std::to_string(own.type) +
                               " index " + std::to_string(own.index));
  }
  if (!tensor.grants(access)) {
    throw sdk::InvalidArgument(name() + " comes without the right to " + (access == FP_ACCESS_READ ? "read" : "write"));
  }
  if (!tensor.is_contiguous()) {
    throw sdk::Refused(name() + " of shape " + tensor.shape_text() + " is strided, expected a contiguous one");
  }
  if (tensor.numel() != 0 && (tensor.handle() == nullptr || tensor.byte_offset() % (tensor.dtype().bits / 8) != 0)) {
    throw sdk::InvalidArgument(name() + " has a null handle, or starts at byte " +
                               std::to_string(tensor.byte_offset()) + ", which is not aligned to " +
                               tensor.dtype().name());
  }
  return {tensor.handle(), tensor.byte_offset()};
}

void GpuKernel::place_all(const std::vector<sdk::Argument>& arguments, const sdk::TensorList& tensors,
                          std::uint32_t access, Role role) {
  std::vector<Place>& found = places(role);
  for (std::size_t i = 0; i < arguments.size(); ++i) found[i] = place(tensors[i], access, name_of(role), i);
}

void GpuKernel::place_graph(const sdk::Graph& graph) {
  need_sizes(graph.n_edges, graph.n_nodes, graph.n_receivers, 0);
  const auto put = [&](GraphArray array, const sdk::Tensor& tensor, std::int64_t length, sdk::DType dtype) {
    const auto index = static_cast<std::size_t>(array);
    if (tensor.present() && (!(tensor.dtype() == dtype) || tensor.numel() != length)) {
      throw sdk::InvalidArgument("graph array " + std::to_string(index) + " is " + tensor.dtype().name() +
                                 " of shape " + tensor.shape_text() + ", expected " + dtype.name() + " of shape [" +
                                 std::to_string(length) + "]");
    }
    places(Role::graph)[index] = place(tensor, FP_ACCESS_READ, name_of(Role::graph), index);
  };
  put(GraphArray::sender, graph.sender, graph.n_edges, sdk::kInt32);
  put(GraphArray::receiver, graph.receiver, graph.n_edges, sdk::kInt32);
  put(GraphArray::receiver_ptr, graph.receiver_ptr, graph.n_nodes + 1, sdk::kInt64);
  put(GraphArray::sender_ptr, graph.sender_ptr, graph.n_nodes + 1, sdk::kInt64);
  put(GraphArray::sender_edge, graph.sender_edge, graph.n_edges, sdk::kInt64);
  put(GraphArray::species, graph.species, graph.n_nodes, sdk::kInt32);
  put(GraphArray::species_ptr, graph.species_ptr, graph.n_species + 1, sdk::kInt64);
  put(GraphArray::species_node, graph.species_node, graph.n_nodes, sdk::kInt32);
}

std::vector<std::vector<double>> GpuKernel::constants(const sdk::Bind& bind) {
  const std::vector<std::size_t> wanted = op_->constants();
  std::vector<std::vector<std::byte>> raw;
  for (const std::size_t i : wanted) {
    const sdk::Tensor tensor = bind.parameters[i];
    auto& bytes = raw.emplace_back(static_cast<std::size_t>(tensor.numel()) * (tensor.dtype().bits / 8));
    if (bytes.empty()) continue;
    const Place from = places(Role::parameter)[i];
    device_.copy_from_device(bytes.data(), from.memory, from.offset, bytes.size(), bind.stream);
  }
  if (bind.stream != nullptr) device_.synchronize(bind.stream);
  std::vector<std::vector<double>> result;
  for (const std::vector<std::byte>& bytes : raw) {
    const auto values = [&](auto type) {
      using T = decltype(type);
      const T* first = reinterpret_cast<const T*>(bytes.data());
      return std::vector<double>(first, first + bytes.size() / sizeof(T));
    };
    result.push_back(dtype_ == sdk::kFloat32 ? values(float{}) : values(double{}));
  }
  return result;
}

void GpuKernel::bind(const sdk::Bind& bind) {
  const sdk::Signature& signature = op_->signature();
  sdk::check_bind(signature, bind, dtype_);
  place_all(signature.parameters, bind.parameters, FP_ACCESS_READ, Role::parameter);
  if (bind.version == version_ && version_ != 0) return;  // the same values, perhaps at other addresses
  version_ = 0;                                           // until everything went well
  if (!op_->constants().empty()) {
    std::vector<std::vector<double>> values = constants(bind);
    if (!program_ || values != constants_) {
      op_->set_constants(values);
      generate();
      constants_ = std::move(values);
    }
  }
  Plan plan(*program_);
  op_->plan_bind(plan);
  if (plan.scratch_bytes() > 0) bind_scratch_ = DeviceBuffer(device_, plan.scratch_bytes());
  places(Role::scratch)[0] = {bind_scratch_.get(), 0};
  launch(plan, bind.stream);
  version_ = bind.version;
}

sdk::Workspace GpuKernel::workspace(const sdk::Sizes& sizes) {
  need_pass(sizes.pass, passes_);
  need_parameters();
  need_sizes(sizes.n_edges, sizes.n_nodes, sizes.n_receivers, sizes.n_rows);
  const sdk::Signature& signature = op_->signature();
  Call call;
  call.pass = sizes.pass;
  call.n_edges = sizes.n_edges;
  call.n_nodes = sizes.n_nodes;
  call.n_receivers = sizes.n_receivers;
  call.n_rows = sizes.n_rows;
  const bool backward = sizes.pass == sdk::Pass::backward;
  call.outputs.assign(signature.outputs.size(), !backward);
  call.grad_outputs.assign(signature.outputs.size(), backward);
  for (const sdk::Argument& input : signature.inputs) {
    call.grad_inputs.push_back(backward && input.real && input.differentiable);
  }
  for (const sdk::Argument& parameter : signature.parameters) {
    call.grad_parameters.push_back(backward && parameter.real && parameter.differentiable);
  }
  Plan plan(*program_);
  op_->plan(call, plan);
  return {.scratch_bytes = plan.scratch_bytes(), .saved_bytes = 0};
}

const Plan& GpuKernel::plan(const Call& call) {
  for (const std::unique_ptr<Planned>& planned : plans_) {
    if (same(planned->call, call)) return planned->plan;
  }
  auto planned = std::make_unique<Planned>(Planned{call, Plan(*program_)});
  op_->plan(call, planned->plan);
  if (plans_.size() < kPlans) {
    plans_.push_back(std::move(planned));
    return plans_.back()->plan;
  }
  std::unique_ptr<Planned>& oldest = plans_[next_plan_];
  next_plan_ = (next_plan_ + 1) % kPlans;
  oldest = std::move(planned);
  return oldest->plan;
}

void GpuKernel::run(const sdk::Run& run) {
  need_pass(run.pass, passes_);
  need_parameters();
  const sdk::Signature& signature = op_->signature();
  sdk::check_run(signature, run, dtype_);
  const sdk::Extents extents(run);
  need_sizes(extents[sdk::Axis::edges], extents[sdk::Axis::nodes], extents[sdk::Axis::receivers],
             extents[sdk::Axis::rows]);
  place_all(signature.inputs, run.inputs, FP_ACCESS_READ, Role::input);
  const bool backward = run.pass == sdk::Pass::backward;
  if (backward) {
    place_all(signature.outputs, run.grad_outputs, FP_ACCESS_READ, Role::grad_output);
    place_all(signature.inputs, run.grad_inputs, FP_ACCESS_WRITE, Role::grad_input);
    place_all(signature.parameters, run.grad_parameters, FP_ACCESS_WRITE, Role::grad_parameter);
  } else {
    place_all(signature.outputs, run.outputs, FP_ACCESS_WRITE, Role::output);
  }
  if (run.graph) {
    place_graph(*run.graph);
  } else {
    std::fill(places(Role::graph).begin(), places(Role::graph).end(), Place{});
  }

  call_.pass = run.pass;
  call_.n_edges = extents[sdk::Axis::edges];
  call_.n_nodes = extents[sdk::Axis::nodes];
  call_.n_receivers = extents[sdk::Axis::receivers];
  call_.n_rows = extents[sdk::Axis::rows];
  const auto present = [](std::vector<bool>& wanted, const sdk::TensorList& tensors, bool used) {
    for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] = used && tensors[i].present();
  };
  present(call_.outputs, run.outputs, !backward);
  present(call_.grad_outputs, run.grad_outputs, backward);
  present(call_.grad_inputs, run.grad_inputs, backward);
  present(call_.grad_parameters, run.grad_parameters, backward);

  const Plan& planned = plan(call_);
  if (planned.scratch_bytes() > 0 && (run.scratch == nullptr || planned.scratch_bytes() > run.scratch_bytes)) {
    throw sdk::InvalidArgument("scratch memory of " + std::to_string(run.scratch == nullptr ? 0 : run.scratch_bytes) +
                               " bytes, expected at least " + std::to_string(planned.scratch_bytes()));
  }
  places(Role::scratch)[0] = {run.scratch, 0};
  launch(planned, run.stream);
}

void GpuKernel::launch(const Plan& plan, fp_stream* stream) {
  for (const Launch& launch : plan.launches()) {
    for (std::size_t i = 0; i < launch.arguments.size(); ++i) {
      const Argument& argument = launch.arguments[i];
      if (!argument.is_buffer) {
        arguments_[i] = {false, nullptr, argument.value};
        continue;
      }
      const Place& place = places(argument.buffer.role).at(argument.buffer.index);
      arguments_[i] = {true, place.memory, static_cast<std::int64_t>(place.offset + argument.buffer.offset)};
    }
    device_.launch(*module_, launch, {arguments_.data(), launch.arguments.size()}, stream);
  }
}

}  // namespace fastpath_gpu
