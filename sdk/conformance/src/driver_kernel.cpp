#include "driver.hpp"

#include <algorithm>

namespace fastpath::conformance {

Kernel::Kernel(Session& session, fp_device* device, const fp_device_info& info, const Asked& asked)
    : session_(session), device_(device), info_(info), asked_(asked), op_(*asked.op) {
  asked_.op = &op_;
  Structs structs(session_.dialect);
  const fp_kernel_query* query = put_query(structs, session_.dialect, asked_, info_);
  created_ = session_.call("create", [&](const fp_error_sink* errors) {
    fp_create_args args = sdk::abi_struct<fp_create_args>();
    args.reserved = session_.dialect.reserved;
    args.device = device_;
    args.query = query;
    args.errors = errors;
    return session_.kernels.create(session_.plugin, structs.put(args), &kernel_);
  });
  if (const std::string damage = structs.damage(); !damage.empty()) {
    session_.trial.fail("P-10", "create: " + damage, "nothing written into a struct of the host");
  }
  if (created_.ok() && kernel_ == nullptr) {
    created_ = {FP_E_INTERNAL, "create reported success and gave no kernel"};
  }
}

Kernel::~Kernel() { destroy(); }

void Kernel::destroy() {
  if (kernel_ == nullptr) return;
  session_.call_void("destroy", [&] { session_.kernels.destroy(kernel_); });
  kernel_ = nullptr;
}

namespace {

const fp_tensor_list* put_list(Structs& structs, const std::vector<fp_tensor>& tensors) {
  fp_tensor_list list = sdk::abi_struct<fp_tensor_list>();
  list.items = structs.put_array(tensors, FP_END_OF(fp_tensor, strides), &list.stride);
  list.count = tensors.size();
  return structs.put(list);
}

}  // namespace

Outcome Kernel::bind(const std::vector<Array>& parameters, std::uint64_t version) {
  std::deque<Placed> next;
  std::vector<fp_tensor> tensors;
  // An older host has no byte_offset, so its arrays start at their address: those of a fenced dialect stay as they are.
  for (const Array& parameter : parameters) {
    next.emplace_back(session_, device_, info_, parameter, Layout::plain);
    fp_tensor tensor = next.back().c(FP_ACCESS_READ);
    if (session_.dialect.older && tensor.data != nullptr) {
      tensor.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
    }
    tensors.push_back(tensor);
  }
  Structs structs(session_.dialect);
  const fp_tensor_list* list = put_list(structs, tensors);
  const Outcome outcome = session_.call("bind", [&](const fp_error_sink* errors) {
    fp_bind_args args = sdk::abi_struct<fp_bind_args>();
    args.reserved = session_.dialect.reserved;
    args.version = version;
    args.parameters = list;
    args.errors = errors;
    return session_.kernels.bind(kernel_, structs.put(args));
  });
  if (const std::string damage = structs.damage(); !damage.empty()) {
    session_.trial.fail("P-10", "bind: " + damage, "nothing written into a struct of the host");
  }
  for (Placed& parameter : bound_) parameter.poison();  // nobody may look at the old ones any more
  bound_.swap(next);
  return outcome;
}

fp_sizes Kernel::sizes_of(const Evaluation& evaluation) const {
  fp_sizes sizes = sdk::abi_struct<fp_sizes>();
  sizes.pass = evaluation.pass;
  sizes.n_rows = evaluation.n_rows;
  if (evaluation.graph != nullptr) {
    sizes.n_edges = evaluation.graph->n_edges();
    sizes.n_nodes = evaluation.graph->n_nodes;
    sizes.n_receivers = evaluation.graph->n_receivers;
  } else {
    sizes.n_edges = sizes.n_rows;
  }
  return sizes;
}

Outcome Kernel::workspace(const Evaluation& evaluation, fp_workspace& out) {
  Structs structs(session_.dialect);
  const fp_sizes* sizes = structs.put(sizes_of(evaluation));
  fp_workspace* wanted = structs.put(sdk::abi_struct<fp_workspace>());
  const Outcome outcome = session_.call("workspace", [&](const fp_error_sink* errors) {
    return session_.kernels.workspace(kernel_, sizes, wanted, errors);
  });
  if (const std::string damage = structs.damage(); !damage.empty()) {
    session_.trial.fail("P-10", "workspace: " + damage, "nothing written past the end of a struct");
  }
  out = sdk::known(wanted);
  return outcome;
}

namespace {

Array bytes_array(std::uint64_t bytes) {
  Array array;
  array.present = bytes != 0;
  array.dtype = {FP_CODE_UINT, 8, 1};
  array.shape = {static_cast<std::int64_t>(bytes)};
  array.storage.assign(static_cast<std::size_t>((bytes + 7) / 8), 0.0);
  array.fill_bytes(0xFF);
  return array;
}

}  // namespace

Outcome Kernel::run(Evaluation& evaluation, const RunOptions& options) {
  constexpr std::uint64_t kMostWorkspace = std::uint64_t{1} << 34;
  fp_workspace own{}, forward{};
  Evaluation first;
  Outcome outcome = workspace(evaluation, own);
  if (!outcome.ok()) return outcome;
  const bool backward = (evaluation.pass & (FP_PASS_BACKWARD | FP_PASS_BACKWARD_TANGENT)) != 0;
  if (backward) {
    first = evaluation;
    first.pass = evaluation.pass == FP_PASS_BACKWARD ? FP_PASS_FORWARD : FP_PASS_FORWARD_TANGENT;
    if ((asked_.passes & first.pass) != 0) outcome = workspace(first, forward);
    if (!outcome.ok()) return outcome;
  }
  const std::uint64_t saved_size = std::max(own.saved_bytes, forward.saved_bytes);
  saved_bytes_ = saved_size;
  if (own.scratch_bytes > kMostWorkspace || saved_size > kMostWorkspace) {
    session_.trial.fail(
        "P-55",
        "workspace asks for " + std::to_string(std::max(own.scratch_bytes, saved_size)) + " bytes for a small call",
        "a size that can be had");
    session_.trial.stop();
  }
  std::unique_ptr<Placed> saved;
  Array saved_content = bytes_array(saved_size);
  if (saved_size != 0) {
    saved = std::make_unique<Placed>(session_, device_, info_, saved_content, Layout::plain);
  }
  if (saved != nullptr && backward) {
    first.outputs.clear();
    for (const Array& cotangent : evaluation.grad_outputs) {
      first.outputs.push_back(cotangent.present ? Array::zeros(cotangent.shape, cotangent.dtype) : Array());
    }
    if (first.pass == FP_PASS_FORWARD_TANGENT) first.outputs_t = first.outputs;
    outcome = run_pass(first, {}, saved.get(), saved_size);
    if (!outcome.ok()) return outcome;
  }
  outcome = run_pass(evaluation, options, saved.get(), saved_size);
  if (saved != nullptr && options.check && info_.type == FP_DEVICE_CPU) {
    const std::string damage = saved->read(saved_content);
    if (!damage.empty()) {
      session_.trial.fail("P-55", "the saved buffer of " + std::to_string(saved_size) + " bytes: " + damage,
                          "nothing written past the end of memory");
    }
  }
  return outcome;
}

Outcome Kernel::run_pass(Evaluation& evaluation, const RunOptions& options, Placed* saved, std::uint64_t saved_bytes) {
  fp_workspace wanted{};
  Outcome outcome = workspace(evaluation, wanted);
  if (!outcome.ok()) return outcome;
  const bool older = session_.dialect.older;
  Structs structs(session_.dialect);
  fp_run_args args = sdk::abi_struct<fp_run_args>();

  struct List {
    std::string name;
    std::vector<Array>* arrays;
    const fp_tensor_list** slot;
    bool written;
    std::deque<Placed> placed;
  };
  std::deque<List> lists;
  const auto add = [&](const char* name, std::vector<Array>& arrays, const fp_tensor_list*& slot, bool written,
                       bool used) {
    if (used) lists.push_back({name, &arrays, &slot, written, {}});
  };
  const bool backward = (evaluation.pass & (FP_PASS_BACKWARD | FP_PASS_BACKWARD_TANGENT)) != 0;
  const bool tangent = (evaluation.pass & (FP_PASS_FORWARD_TANGENT | FP_PASS_BACKWARD_TANGENT)) != 0;
  add("inputs", evaluation.inputs, args.inputs, false, true);
  add("outputs", evaluation.outputs, args.outputs, true, !backward);
  add("grad_outputs", evaluation.grad_outputs, args.grad_outputs, false, backward);
  add("grad_inputs", evaluation.grad_inputs, args.grad_inputs, true, backward);
  add("grad_parameters", evaluation.grad_parameters, args.grad_parameters, true, backward);
  add("inputs_t", evaluation.inputs_t, args.inputs_t, false, tangent);
  add("outputs_t", evaluation.outputs_t, args.outputs_t, true, tangent && !backward);
  add("parameters_t", evaluation.parameters_t, args.parameters_t, false, tangent);
  add("grad_outputs_t", evaluation.grad_outputs_t, args.grad_outputs_t, false, tangent && backward);
  add("grad_inputs_t", evaluation.grad_inputs_t, args.grad_inputs_t, true, tangent && backward);
  add("grad_parameters_t", evaluation.grad_parameters_t, args.grad_parameters_t, true, tangent && backward);

  const auto shift = [&](fp_tensor& tensor) {  // an older host has no byte_offset
    if (older && info_.type == FP_DEVICE_CPU && tensor.data != nullptr) {
      tensor.data = static_cast<char*>(tensor.data) + tensor.byte_offset;
    }
  };
  for (List& list : lists) {
    std::vector<fp_tensor> tensors;
    for (const Array& array : *list.arrays) {
      list.placed.emplace_back(session_, device_, info_, array, options.layout);
      tensors.push_back(list.placed.back().c(list.written ? FP_ACCESS_WRITE : FP_ACCESS_READ));
      shift(tensors.back());
      if (options.edit_tensor) options.edit_tensor(list.name, tensors.size() - 1, tensors.back());
    }
    *list.slot = put_list(structs, tensors);
  }

  std::deque<Placed> graph_arrays;
  const fp_graph* graph_c = nullptr;
  if (evaluation.graph != nullptr) {
    const GraphData& graph = *evaluation.graph;
    fp_graph g = sdk::abi_struct<fp_graph>();
    g.reserved = session_.dialect.reserved;
    g.n_edges = graph.n_edges();
    g.n_nodes = graph.n_nodes;
    g.n_receivers = graph.n_receivers;
    g.n_species = graph.n_species;
    const auto put = [&](const auto& values, bool there) -> const fp_tensor* {
      using Value = typename std::decay_t<decltype(values)>::value_type;
      Array array;
      if (there) {
        array = Array::zeros({static_cast<std::int64_t>(values.size())}, sdk::dtype_of<Value>());
        std::copy(values.begin(), values.end(), array.template data<Value>());
      }
      graph_arrays.emplace_back(session_, device_, info_, array, Layout::plain);
      fp_tensor tensor = graph_arrays.back().c(FP_ACCESS_READ);
      shift(tensor);
      return structs.put(tensor, FP_END_OF(fp_tensor, strides));
    };
    g.sender = put(graph.sender, true);
    g.receiver = put(graph.receiver, true);
    g.receiver_ptr = put(graph.receiver_ptr, true);
    g.sender_ptr = put(graph.sender_ptr, true);
    g.sender_edge = put(graph.sender_edge, true);
    const bool species = graph.n_species > 0;
    g.species = put(graph.species, species);
    g.species_ptr = put(graph.species_ptr, species);
    g.species_node = put(graph.species_node, species);
    if (options.edit_graph) options.edit_graph(g);
    graph_c = structs.put(g);
  }

  const auto scratch_bytes = static_cast<std::uint64_t>(
      std::max<std::int64_t>(0, static_cast<std::int64_t>(wanted.scratch_bytes) - options.scratch_missing));
  Array scratch_content = bytes_array(scratch_bytes);
  std::unique_ptr<Placed> scratch;
  if (scratch_bytes != 0) scratch = std::make_unique<Placed>(session_, device_, info_, scratch_content, Layout::plain);
  const auto address = [&](const Placed& placed) -> void* {
    const fp_tensor tensor = placed.c(FP_ACCESS_WRITE);
    // A handle of a device need not be an address that can be added to; its guards are then behind it alone.
    return info_.type == FP_DEVICE_CPU ? static_cast<char*>(tensor.data) + tensor.byte_offset : tensor.data;
  };

  args.pass = evaluation.pass;
  args.graph = graph_c;
  args.sizes = structs.put(sizes_of(evaluation));
  args.scratch = scratch == nullptr ? nullptr : address(*scratch);
  args.scratch_bytes = scratch_bytes;
  args.saved = saved == nullptr ? nullptr : address(*saved);
  args.saved_bytes = saved_bytes;
  args.threads = options.threads;
  args.extensions = session_.dialect.extensions;
  fp_stream* stream = nullptr;
  if (options.stream) {
    outcome = session_.call("create_stream", [&](const fp_error_sink* errors) {
      return session_.memory.create_stream(device_, &stream, errors);
    });
    if (!outcome.ok()) return outcome;
    args.stream = stream;
  }
  const fp_run_args* sent = nullptr;
  outcome = session_.call(
      "run",
      [&](const fp_error_sink* errors) {
        args.errors = errors;
        if (options.edit) options.edit(args, structs);
        sent = structs.put(args, FP_END_OF(fp_run_args, capturing));
        const std::int32_t status = session_.kernels.run(kernel_, sent);
        if (options.after) options.after(status, *sent);
        return status;
      },
      options.wants_text);
  if (stream != nullptr) {
    const Outcome finished = session_.call("synchronize", [&](const fp_error_sink* errors) {
      return session_.memory.synchronize(device_, stream, errors);
    });
    session_.call_void("destroy_stream", [&] { session_.memory.destroy_stream(device_, stream); });
    if (outcome.ok()) outcome = finished;
  }
  if (const std::string damage = structs.damage(); !damage.empty()) {
    session_.trial.fail("P-10", "run: " + damage, "nothing written into a struct of the host");
  }
  if (outcome.status == FP_E_DEVICE_LOST) return outcome;  // nothing can be read any more
  const bool look = options.check;
  for (List& list : lists) {
    for (std::size_t i = 0; i < list.placed.size(); ++i) {
      const auto name = [&] { return list.name + "[" + std::to_string(i) + "]"; };
      if (list.written) {
        const std::string damage = list.placed[i].read((*list.arrays)[i]);
        if (look && !damage.empty()) {
          session_.trial.fail("P-57", name() + ": " + damage, "nothing written but the elements");
        }
      } else if (look) {
        const std::string damage = list.placed[i].unchanged();
        if (!damage.empty()) session_.trial.fail("P-57", name() + ": " + damage, "inputs that stay as they are");
      }
    }
  }
  if (!look) return outcome;
  for (Placed& array : graph_arrays) {
    if (const std::string damage = array.unchanged(); !damage.empty()) {
      session_.trial.fail("P-57", "an array of the graph: " + damage, "a graph that stays as it is");
    }
  }
  for (std::size_t i = 0; i < bound_.size(); ++i) {
    if (const std::string damage = bound_[i].unchanged(); !damage.empty()) {
      session_.trial.fail("P-57", "parameter " + std::to_string(i) + ": " + damage, "parameters that stay as they are");
    }
  }
  if (scratch != nullptr) {
    // On a device the scratch memory begins at the allocation, so what is called a guard in front belongs to it.
    const std::string damage = scratch->read(scratch_content);
    if (!damage.empty() && info_.type == FP_DEVICE_CPU) {
      session_.trial.fail("P-55", "scratch memory of " + std::to_string(scratch_bytes) + " bytes: " + damage,
                          "nothing written past the end of memory");
    }
  }
  return outcome;
}

}  // namespace fastpath::conformance
