#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fastpath/fast_path.hpp"
#include "fastpath/op.hpp"
#include "ops/op_module.hpp"

/// A model as a static list of steps over slots (docs/adr/0002). Built once per model; an evaluation only fills in
/// sizes.
namespace fastpath::models {

/// How many rows a slot has.
enum class Rows { edges, nodes, receivers };

using SlotId = int;
inline constexpr SlotId kAbsent = -1;

/// A quantity that steps read and write: [rows, trailing...].
struct Slot {
  std::string name;
  Rows rows = Rows::nodes;
  Shape trailing;
  bool real = true;             ///< In the dtype of the evaluation; otherwise int32.
  bool wide = false;            ///< In float64 whatever the dtype of the evaluation; only glue reads and writes it.
  bool from_positions = false;  ///< Depends on the positions: has a tangent, and is on the way of forces.
  int n_plain_readers = 0;      ///< Steps that read it, without fused ones,
  int n_fused_readers = 0;      ///< and those: a fused step and the steps that it stands for exclude each other.
  /// Steps of one evaluation that read it, at most.
  int n_readers() const { return std::max(n_plain_readers, n_fused_readers); }
};

/// What a step that is not an op does: glue, in reference code only. Follows the rules of OpCall.
class Glue {
 public:
  virtual ~Glue() = default;
  virtual void apply(const OpCall& call, const std::vector<Tensor>& parameters) = 0;
  /// The module that holds this glue's parameters, and their names in order; null without parameters.
  virtual Module* module() { return nullptr; }
  virtual std::vector<ops::SchemaTensor> schema() const { return {}; }
};

struct Step {
  std::string name;                     ///< Dotted name of the module, or a word for glue.
  ops::OpModule* op = nullptr;          ///< A fast-path module, or
  std::shared_ptr<Glue> glue;           ///< glue.
  std::vector<SlotId> inputs;           ///< In schema order; kAbsent for an optional input.
  std::vector<SlotId> outputs;          ///< kAbsent for an optional output that nobody reads.
  std::vector<std::string> parameters;  ///< Full names of the parameters in schema order; "" for constants.
  bool exchange = false;                ///< Brings ghost features from their owners; done by the executor.
  std::int64_t layer = 0;               ///< Of an exchange.
  /// Glue that leads to the result alone and is linear: its gradient does not depend on its inputs, so that the way
  /// back begins without waiting for them.
  bool late = false;
  /// Done only where a kernel does it: otherwise the steps that it stands for are.
  bool fused = false;
  /// Fused modules; if all of them run fast, this step is left out.
  std::vector<ops::OpModule*> replaced_by;
};

class Program {
 public:
  SlotId add_input(std::string name, Rows rows, Shape trailing, bool real, bool from_positions, bool wide = false);
  /// Adds a slot that a step will write.
  SlotId add_slot(std::string name, Rows rows, Shape trailing, bool wide = false);
  void add(Step step);

  /// The op that adds two gradients of this many numbers a row on a device.
  void add_gradient_sum(std::int64_t width, NamedFastModule sum) { gradient_sums_[width] = std::move(sum); }
  /// Null if there is none.
  const NamedFastModule* gradient_sum(std::int64_t width) const {
    const auto found = gradient_sums_.find(width);
    return found == gradient_sums_.end() ? nullptr : &found->second;
  }

  const std::vector<Slot>& slots() const { return slots_; }
  const std::vector<Step>& steps() const { return steps_; }

  /// Which slots need a gradient when the gradient of the result is known: those on the way to positions, or to any
  /// parameter.
  std::vector<bool> gradient_slots(bool parameters) const;

  /// True if a step is done with the kernels that are active now.
  static bool is_done(const Step& step);

  /// Bytes of all slots of an evaluation with the kernels that are active now, gradients included if asked for.
  std::uint64_t bytes(std::int64_t n_edges, std::int64_t n_nodes, DType dtype, bool backward) const;
  /// Bytes that these kernels keep from forward to backward.
  std::uint64_t saved_bytes(ProblemSize size, DType dtype, Passes passes) const;

 private:
  std::vector<Slot> slots_;
  std::vector<Step> steps_;
  std::map<std::int64_t, NamedFastModule> gradient_sums_;
};

}  // namespace fastpath::models
