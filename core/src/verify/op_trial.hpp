#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fastpath/fast_path.hpp"
#include "fastpath/sdk/ops.hpp"
#include "plugin/plugin.hpp"

/// Kernels against the reference, on inputs that the core makes (docs/verification.md): one op configuration, one
/// dtype, one small problem at a time. The numerical gate and the conformance kit are made of it.
namespace fastpath::verify {

/// Size and make of a small problem. Rows of an op that counts neither edges nor nodes are n_rows.
struct TrialShape {
  std::string name = "random";   ///< For messages.
  std::int64_t n_nodes = 9;      ///< With ghosts.
  std::int64_t n_receivers = 7;  ///< At most n_nodes; the others are ghosts, which only send.
  std::int64_t n_edges = 40;     ///< None without receivers.
  std::int64_t n_rows = 11;
  bool duplicates = true;  ///< Every fifth edge stands twice.
  bool isolated = true;    ///< The last receiver and the first node have no edges, if others can have them.
  double scale = 1;        ///< Of inputs that may have any size; values near overflow are made with it.
};

/// What the gate tries, quick: edges and rows that fill no block of any usual size evenly, with duplicates, an isolated
/// node and ghosts; and no edges or rows at all.
std::vector<TrialShape> gate_shapes(const OpSpec& op);
/// What the conformance kit tries: those, one edge, no ghosts, all edges at one receiver, no nodes, more rows.
std::vector<TrialShape> standard_shapes(const OpSpec& op);

/// What is asked of a kernel in one run beyond the pass.
struct Request {
  bool optional_outputs = true;  ///< And their gradients.
  /// Which gradients a backward pass is asked for, by position; empty: all that exist.
  std::vector<bool> grad_inputs = {}, grad_parameters = {};
  int threads = 1;
  bool with_graph = true;  ///< Ops that need no graph get one too, as in a model.
};
/// No gradients of parameters: forces.
Request inputs_only(const sdk::Signature& signature);

enum class Fault {
  failed,          ///< The kernel returned an error; see `status`.
  wrong_value,     ///< The error is above the tolerance.
  not_finite,      ///< Not finite where the reference is.
  not_written,     ///< Some elements were not written.
  input_modified,  ///< An input, parameter or index array was written to.
  wrote_outside,   ///< Bytes around an output were written to.
};
std::string_view to_string(Fault fault) noexcept;

/// The comparison of one tensor.
struct TensorResult {
  std::string tensor;          ///< "output 'y'", "gradient of parameter 'weight'", "tangent of ...".
  double error = 0;            ///< max|kernel - reference| / max|reference|; NaN where an element is not finite.
  double truth_error = 0;      ///< The same against the reference in float64, on the same rounded inputs.
  double reference_error = 0;  ///< Of the reference itself against float64; 0 in float64.
  double tolerance = 0;
};

/// What a kernel did wrong, the gravest thing first seen.
struct Finding {
  Fault fault = Fault::failed;
  Pass pass = Pass::forward;
  std::string tensor;
  double error = 0, tolerance = 0;
  plugin::CallStatus status;
  std::string text;  ///< A sentence: problem, pass, tensor, error and tolerance.
};

struct RunResult {
  std::vector<TensorResult> tensors;
  std::optional<Finding> finding;
};

/// One problem: inputs, parameters, cotangents and tangents of an op that has a schema, drawn from a seed, rounded to
/// the dtype, and what the reference makes of them. Inputs suit the op: no direction is zero, distances lie below the
/// cutoff, indices in their range. Not thread-safe.
class OpTrial {
 public:
  /// @param module  The reference; must outlive the trial. Constants among its parameters are used as they are, the
  ///   others are drawn.
  /// @throws Error(invalid_argument) for an op without a schema or a shape that is none.
  OpTrial(FastPathModule& module, DType dtype, const TrialShape& shape, std::uint64_t seed);
  ~OpTrial();
  OpTrial(const OpTrial&) = delete;
  OpTrial& operator=(const OpTrial&) = delete;

  const TrialShape& shape() const noexcept;
  const sdk::Signature& signature() const noexcept;

  /// Binds the drawn parameters, copied to the device, under a version that no module has. Before the first run, and
  /// after the kernel was bound to something else.
  plugin::CallStatus bind(plugin::Kernel& kernel, plugin::OpenDevice& device);
  /// Runs one pass and compares. A backward pass runs forward first, with the buffer that the kernel keeps for it (not
  /// compared, but its failure is a finding). Never throws for what a kernel does wrong; a device that has no memory
  /// left is a finding of status out_of_memory.
  RunResult run(plugin::Kernel& kernel, plugin::OpenDevice& device, Pass pass, const Request& request = {});

  /// Results of the reference in the trial's dtype, and in float64, in the order outputs (outputs_t) or grad_inputs,
  /// grad_parameters (grad_inputs_t, grad_parameters_t). Computed once.
  const std::vector<Tensor>& reference(Pass pass);
  const std::vector<Tensor>& truth(Pass pass);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The largest error a tensor of this pass may have (docs/verification.md): the precision contract, or what the kernel
/// promises where that is looser, up to a limit; in float32 also a small multiple of the reference's own error.
/// @param terms  How many terms the longest sum of the tensor has.
double tolerance(DType dtype, double promised, double reference_error, double terms) noexcept;
inline constexpr double kMaxPromise64 = 1e-12, kMaxPromise32 = 1e-5;
/// How far a float32 kernel may be off in units of the float32 reference's own error.
inline constexpr double kReferenceErrors = 4;
/// Where a result is ill-conditioned: how far it may be off in units of what one rounding of every input changes.
inline constexpr double kRoundings = 8;

}  // namespace fastpath::verify
