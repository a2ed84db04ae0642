#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fastpath/plugin.h"
#include "fastpath/sdk/abi.hpp"
#include "fastpath/sdk/attributes.hpp"
#include "fastpath/sdk/device.hpp"
#include "fastpath/sdk/error.hpp"
#include "fastpath/sdk/tensor.hpp"

namespace fastpath::sdk {

/// What a call computes; the values are the bits FP_PASS_*.
enum class Pass : std::uint32_t {
  forward = FP_PASS_FORWARD,
  backward = FP_PASS_BACKWARD,
  forward_tangent = FP_PASS_FORWARD_TANGENT,
  backward_tangent = FP_PASS_BACKWARD_TANGENT
};

/// Why a kernel is refused; the values are FP_REASON_*.
enum class Reason : std::int32_t {
  other = FP_REASON_OTHER,
  op = FP_REASON_OP,
  op_version = FP_REASON_OP_VERSION,
  device = FP_REASON_DEVICE,
  arch = FP_REASON_ARCH,
  dtype = FP_REASON_DTYPE,
  pass = FP_REASON_PASS,
  config = FP_REASON_CONFIG,
  degree = FP_REASON_DEGREE,
  multiplicity = FP_REASON_MULTIPLICITY,
  instructions = FP_REASON_INSTRUCTIONS,
  math_mode = FP_REASON_MATH_MODE,
  memory = FP_REASON_MEMORY,
  size = FP_REASON_SIZE
};

/// What the host asks for: everything that identifies a kernel.
struct KernelQuery {
  std::string op;
  std::int32_t op_version = 0;
  Attributes config;  ///< The op's own config class reads it: ConvTensorProductConfig::from(query.config).
  DeviceDescription device;
  DType dtype;
  std::uint32_t passes = 0;               ///< FP_PASS_* bits, all of them needed.
  std::int32_t math_mode = FP_MATH_FULL;  ///< Lowest mode the host accepts.

  bool wants(Pass pass) const noexcept { return (passes & static_cast<std::uint32_t>(pass)) != 0; }
  /// @throws ConfigError if the attribute list is malformed.
  static KernelQuery from(const fp_kernel_query* query) {
    const fp_kernel_query c = known(query);
    const fp_attribute_list config = known(c.config);
    if (config.count != 0 && (config.items == nullptr || config.stride < sizeof(std::uint32_t))) {
      throw ConfigError("a list of " + std::to_string(config.count) + " attributes without items or stride");
    }
    return {.op = std::string(text_view(c.op, c.op_size)),
            .op_version = c.op_version,
            .config = Attributes::from(config),
            .device = DeviceDescription::from(c.device),
            .dtype = {c.dtype_code, c.dtype_bits, c.dtype_lanes},
            .passes = c.passes,
            .math_mode = c.math_mode};
  }
};

/// What the plugin answers: yes, with these promises, unless it was blocked.
struct KernelAnswer {
  std::int64_t min_edges = 0;  ///< Sizes outside min..max are not served; max 0 means no limit.
  std::int64_t max_edges = 0;
  std::int64_t prior_edges = -1;  ///< From how many edges on it was measured to be faster; negative: not known.
  double tolerance = 0;           ///< Promised error; 0: the precision contract.
  std::uint32_t flags = 0;        ///< FP_KERNEL_*
  std::int32_t math_mode = FP_MATH_FULL;
  std::int32_t rank = 0;
  bool unknown_until_open = false;
  std::vector<std::pair<Reason, std::string>> blockers;

  /// Adds a reason why not; name all of them. The text says what was found and what would be accepted.
  void blocked(Reason reason, std::string text) { blockers.emplace_back(reason, std::move(text)); }
};

/// Sizes of a call.
struct Sizes {
  Pass pass = Pass::forward;
  std::int64_t n_edges = 0, n_nodes = 0, n_receivers = 0, n_rows = 0;

  static Sizes from(const fp_sizes* sizes) {
    const fp_sizes c = known(sizes);
    return {static_cast<Pass>(c.pass), c.n_edges, c.n_nodes, c.n_receivers, c.n_rows};
  }
};

/// Memory that a kernel wants from its caller for a call.
struct Workspace {
  std::uint64_t scratch_bytes = 0;  ///< Contents need not survive the call.
  std::uint64_t saved_bytes = 0;    ///< Written by forward, read by backward.
};

/// Cuts scratch memory into arrays, each on a cache line of its own. One function that takes arrays from a Scratch
/// serves both for asking (`Scratch()` has no memory and counts) and for running.
class Scratch {
 public:
  Scratch() = default;
  Scratch(void* memory, std::uint64_t bytes)
      : counting_(false), memory_(static_cast<char*>(memory)), capacity_(memory == nullptr ? 0 : bytes) {}
  /// An array of n elements; null while counting. @throws InvalidArgument if the memory is too small.
  template <class T>
  T* take(std::int64_t n) {
    constexpr std::uint64_t kLine = 64;
    const std::uint64_t start = used_;
    used_ += (static_cast<std::uint64_t>(n) * sizeof(T) + kLine - 1) / kLine * kLine;
    if (counting_) return nullptr;
    if (used_ > capacity_) {
      throw InvalidArgument("scratch memory of " + std::to_string(capacity_) + " bytes, expected at least " +
                            std::to_string(used_));
    }
    return reinterpret_cast<T*>(memory_ + start);
  }
  std::uint64_t bytes() const noexcept { return used_; }

 private:
  bool counting_ = true;
  char* memory_ = nullptr;
  std::uint64_t capacity_ = 0;
  std::uint64_t used_ = 0;
};

/// The graph as plain arrays, for kernels on the CPU; null where the host gave nothing. Meaning: fp_graph.
struct HostGraph {
  std::int64_t n_edges = 0, n_nodes = 0, n_receivers = 0, n_species = 0;
  const std::int32_t* sender = nullptr;        ///< [n_edges]
  const std::int32_t* receiver = nullptr;      ///< [n_edges], ascending
  const std::int64_t* receiver_ptr = nullptr;  ///< [n_nodes + 1]
  const std::int64_t* sender_ptr = nullptr;    ///< [n_nodes + 1]
  const std::int64_t* sender_edge = nullptr;   ///< [n_edges]
  const std::int32_t* species = nullptr;       ///< [n_nodes]
  const std::int64_t* species_ptr = nullptr;   ///< [n_species + 1]
  const std::int32_t* species_node = nullptr;  ///< [n_nodes]
};

/// The graph of a call, on the kernel's device.
struct Graph {
  std::int64_t n_edges = 0, n_nodes = 0, n_receivers = 0, n_species = 0;
  Tensor sender, receiver, receiver_ptr, sender_ptr, sender_edge, species, species_ptr, species_node;

  static Graph from(const fp_graph* graph) {
    const fp_graph c = known(graph);
    const auto tensor = [](const fp_tensor* t) { return t == nullptr ? Tensor() : Tensor(known(t)); };
    return {c.n_edges,
            c.n_nodes,
            c.n_receivers,
            c.n_species,
            tensor(c.sender),
            tensor(c.receiver),
            tensor(c.receiver_ptr),
            tensor(c.sender_ptr),
            tensor(c.sender_edge),
            tensor(c.species),
            tensor(c.species_ptr),
            tensor(c.species_node)};
  }
  /// @throws InvalidArgument naming an array whose length or dtype is wrong, or that is not in host memory.
  HostGraph host() const {
    if (n_edges < 0 || n_nodes < 0 || n_receivers < 0 || n_receivers > n_nodes) {
      throw InvalidArgument("a graph of " + std::to_string(n_edges) + " edges, " + std::to_string(n_nodes) +
                            " nodes and " + std::to_string(n_receivers) +
                            " receivers, expected sizes >= 0 and no more receivers than nodes");
    }
    HostGraph result{n_edges, n_nodes, n_receivers, n_species};
    take(result.sender, sender, n_edges, "sender");
    take(result.receiver, receiver, n_edges, "receiver");
    take(result.receiver_ptr, receiver_ptr, n_nodes + 1, "receiver_ptr");
    take(result.sender_ptr, sender_ptr, n_nodes + 1, "sender_ptr");
    take(result.sender_edge, sender_edge, n_edges, "sender_edge");
    take(result.species, species, n_nodes, "species");
    take(result.species_ptr, species_ptr, n_species + 1, "species_ptr");
    take(result.species_node, species_node, n_nodes, "species_node");
    return result;
  }

 private:
  template <class T>
  static void take(const T*& out, const Tensor& tensor, std::int64_t length, const char* name) {
    if (!tensor.present()) return;
    if (tensor.numel() != length) {
      throw InvalidArgument(std::string("graph array ") + name + " has shape " + tensor.shape_text() + ", expected [" +
                            std::to_string(length) + "]");
    }
    out = tensor.view<const T>().data();
  }
};

/// Parameters of a kernel, in the order of the op's schema. The tensors stay valid until the next bind.
struct Bind {
  std::uint64_t version = 0;  ///< Changes whenever a value changed: a kernel that repacks does so only then.
  TensorList parameters;
  fp_stream* stream = nullptr;
  Native native;
};

/// One call; fp_run_args says which lists a pass reads and writes. An absent tensor is not given or not wanted.
struct Run {
  Pass pass = Pass::forward;
  std::optional<Graph> graph;
  Sizes sizes;
  TensorList inputs, outputs, grad_outputs, grad_inputs, grad_parameters;
  TensorList inputs_t, outputs_t, parameters_t, grad_outputs_t, grad_inputs_t, grad_parameters_t;
  void* scratch = nullptr;
  std::uint64_t scratch_bytes = 0;
  void* saved = nullptr;
  std::uint64_t saved_bytes = 0;
  fp_stream* stream = nullptr;  ///< Null: complete on return.
  Native native;
  int threads = 1;         ///< CPU threads this call may use.
  bool capturing = false;  ///< No tuning, allocation or synchronisation.

  /// @throws InvalidArgument for a malformed list or tensor, Refused for an unknown pass.
  static Run from(const fp_run_args* args) {
    const fp_run_args c = known(args);
    if (c.pass != FP_PASS_FORWARD && c.pass != FP_PASS_BACKWARD && c.pass != FP_PASS_FORWARD_TANGENT &&
        c.pass != FP_PASS_BACKWARD_TANGENT) {
      throw Refused("pass " + std::to_string(c.pass) + ", expected one of forward, backward and their tangents");
    }
    Run run;
    run.pass = static_cast<Pass>(c.pass);
    if (c.graph != nullptr) run.graph = Graph::from(c.graph);
    run.sizes = Sizes::from(c.sizes);
    run.sizes.pass = run.pass;
    run.inputs = TensorList(c.inputs);
    run.outputs = TensorList(c.outputs);
    run.grad_outputs = TensorList(c.grad_outputs);
    run.grad_inputs = TensorList(c.grad_inputs);
    run.grad_parameters = TensorList(c.grad_parameters);
    run.inputs_t = TensorList(c.inputs_t);
    run.outputs_t = TensorList(c.outputs_t);
    run.parameters_t = TensorList(c.parameters_t);
    run.grad_outputs_t = TensorList(c.grad_outputs_t);
    run.grad_inputs_t = TensorList(c.grad_inputs_t);
    run.grad_parameters_t = TensorList(c.grad_parameters_t);
    run.scratch = c.scratch;
    run.scratch_bytes = c.scratch_bytes;
    run.saved = c.saved;
    run.saved_bytes = c.saved_bytes;
    run.stream = c.stream;
    run.native = native_from(c.native);
    run.threads = std::max(c.threads, 1);
    run.capturing = c.capturing != 0;
    return run;
  }
};

/// A kernel for one query. Exceptions become statuses (error.hpp); what an exception leaves half written the host
/// discards.
class Kernel {
 public:
  virtual ~Kernel() = default;
  /// Takes the parameters. Called before the first run of an op that has some, and whenever a value or address changed.
  virtual void bind(const Bind& bind) { static_cast<void>(bind); }
  /// Memory wanted for a call of this size; asked anew after each bind. Depends on nothing else.
  virtual Workspace workspace(const Sizes& sizes) {
    static_cast<void>(sizes);
    return {};
  }
  /// Computes one pass. Allocates nothing that its workspace could hold, reads no environment, takes no global lock.
  virtual void run(const Run& run) = 0;
};

}  // namespace fastpath::sdk
