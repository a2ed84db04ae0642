#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fastpath/sdk/kernel.hpp"
#include "fastpath/sdk/ops.hpp"

/// What the generator hands to a runtime: source text with its kernels, and for every call the list of launches that
/// computes it. Nothing here knows a vendor's API.
namespace fastpath_gpu {

namespace sdk = fastpath::sdk;

/// Whose memory an argument of a launch is.
enum class Role {
  input,           ///< run.inputs[index]
  output,          ///< run.outputs[index]
  grad_output,     ///< run.grad_outputs[index]
  grad_input,      ///< run.grad_inputs[index]
  grad_parameter,  ///< run.grad_parameters[index]
  parameter,       ///< bind.parameters[index]
  graph,           ///< an array of the graph; index is a GraphArray
  scratch,         ///< run.scratch
  owned,           ///< Program::owned[index]: memory of the kernel, written by the launches of a bind
  table,           ///< Program::tables[index]: constant, uploaded once
};
enum class GraphArray : std::uint32_t {
  sender,
  receiver,
  receiver_ptr,
  sender_ptr,
  sender_edge,
  species,
  species_ptr,
  species_node
};

/// A place in some memory.
struct Buffer {
  Role role = Role::scratch;
  std::uint32_t index = 0;
  std::uint64_t offset = 0;  ///< Bytes.
};
inline Buffer graph_array(GraphArray array) { return {Role::graph, static_cast<std::uint32_t>(array), 0}; }

/// An argument of a launch: a buffer, which the kernel takes as address and byte offset, or a 64 bit integer.
struct Argument {
  Argument(Buffer b) : is_buffer(true), buffer(b) {}        // NOLINT: written as a plain list
  Argument(std::int64_t v) : is_buffer(false), value(v) {}  // NOLINT
  bool is_buffer;
  Buffer buffer;
  std::int64_t value = 0;
};

/// One kernel of a program.
struct KernelInfo {
  std::string name;
  std::uint32_t group_size = 1;   ///< Work-items in a group; the source is made for exactly so many.
  std::uint32_t local_bytes = 0;  ///< Shared memory of a group.
  std::vector<bool> buffers;      ///< Per argument: whether it is a buffer.
};

/// Source for one configuration, dtype and target.
struct Program {
  std::string source;  ///< With its prelude: what the compiler gets.
  std::vector<KernelInfo> kernels;
  std::vector<std::uint64_t> owned;               ///< Bytes of each buffer that bind fills.
  std::vector<std::vector<std::uint8_t>> tables;  ///< Contents.

  /// Position of a kernel. @throws std::logic_error if there is none of this name.
  std::size_t kernel(const std::string& name) const;
};

struct Launch {
  std::size_t kernel = 0;  ///< Position in Program::kernels.
  std::int64_t groups = 0;
  std::vector<Argument> arguments;
};

/// The launches of one call, in order, and the scratch memory that they share.
class Plan {
 public:
  explicit Plan(const Program& program) : program_(program) {}

  /// Adds a launch of so many groups; none for 0 groups.
  /// @throws std::logic_error if the arguments are not those of the kernel.
  void launch(const std::string& kernel, std::int64_t groups, std::vector<Argument> arguments);
  /// Adds a launch with one work-item for each of n things.
  void launch_items(const std::string& kernel, std::int64_t n, std::vector<Argument> arguments);
  /// Scratch memory for this call, 256-byte aligned.
  Buffer scratch(std::uint64_t bytes);
  /// Adds the launches of an op that is part of this program. `plan_part` calls its plan(); `place` says what its
  /// inputs, outputs and so on are here (offset 0 is the first element); its scratch memory is added to that of this
  /// plan.
  void append(const std::function<void(Plan& part)>& plan_part, const std::function<Buffer(const Buffer&)>& place);

  const std::vector<Launch>& launches() const { return launches_; }
  std::uint64_t scratch_bytes() const { return scratch_bytes_; }

 private:
  const Program& program_;
  std::vector<Launch> launches_;
  std::uint64_t scratch_bytes_ = 0;
};

/// The sizes of a call, and which results it wants.
struct Call {
  sdk::Pass pass = sdk::Pass::forward;
  std::int64_t n_edges = 0, n_nodes = 0, n_receivers = 0, n_rows = 0;
  std::vector<bool> outputs, grad_outputs, grad_inputs, grad_parameters;  ///< Whether each is present.

  std::int64_t rows(sdk::Axis axis) const {
    switch (axis) {
      case sdk::Axis::edges:
        return n_edges;
      case sdk::Axis::nodes:
        return n_nodes;
      case sdk::Axis::receivers:
        return n_receivers;
      case sdk::Axis::rows:
        return n_rows;
      case sdk::Axis::none:
        break;
    }
    return 1;
  }
};

}  // namespace fastpath_gpu
