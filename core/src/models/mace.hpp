#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fastpath/model.hpp"
#include "models/config.hpp"
#include "models/executor.hpp"
#include "models/program.hpp"

namespace fastpath::models {

/// True if an evaluation carries derivatives along a direction. Weights of energies alone need none, unless results
/// without these weights are asked for too.
bool carries_tangents(const EvaluateOptions& options);
/// True if an evaluation has a way back.
bool goes_back(const EvaluateOptions& options);

/// "atom 3", and of which graph if there are several.
std::string name_of_node(const Graph& graph, std::int64_t node);

/// Elements of all coupling tensors U of a new model, as a double because it may be beyond any integer.
double basis_size(const MaceConfig& config);

/// ScaleShiftMACE, operators.md 3: the module tree with the names of MACE's own checkpoints, and the program over it.
class MaceModel : public Model {
 public:
  /// Tensors are zero, buffers hold their defined values; K and head shapes follow `state` where it is given.
  MaceModel(MaceConfig config, const StateDict* state);
  ~MaceModel() override;

  const std::string& architecture() const override;
  const std::vector<std::int32_t>& atomic_numbers() const override { return config_.atomic_numbers; }
  const std::vector<std::string>& heads() const override { return config_.heads; }
  double r_max() const override { return config_.r_max; }
  int num_interactions() const override { return static_cast<int>(config_.num_interactions); }
  DType stored_dtype() const override { return config_.dtype; }
  std::string config_text() const override { return config_.text(); }
  std::shared_ptr<Model> replica() const override;

  const MaceConfig& config() const { return config_; }
  /// Names of a checkpoint that carry nothing an evaluation needs (operators.md 3.4).
  static bool is_ignored(const std::string& name, const Tensor& tensor);
  /// Draws all parameters from a seed.
  void initialize(std::uint64_t seed);
  /// Values of a slot in the last evaluation, by name; undefined if there is none. For tests.
  Tensor last_value(const std::string& slot);
  const std::vector<NamedFastModule>& small_ops() override;

 protected:
  EvaluationResult run(const Graph& graph, const EvaluateOptions& options) override;
  MemoryEstimate estimate(ProblemSize size, const EvaluateOptions& options) const override;

 private:
  struct Runner;
  class ProgramBuilder;
  void build_modules(const StateDict* state);
  std::unique_ptr<Runner> build_runner(bool exchange) const;
  Runner& runner(bool exchange);
  /// Everything after the selection, into `result`. @throws KernelGaveWay.
  void compute(const Graph& graph, const EvaluateOptions& options, Context& context, EvaluationResult& result);
  std::int32_t head_index(const std::string& name) const;
  /// Of every graph.
  std::vector<std::int32_t> heads_of(const Graph& graph, const EvaluateOptions& options) const;
  Tensor species_of(const Graph& graph) const;

  MaceConfig config_;
  /// What small_ops() lists, in the order of its steps.
  std::vector<std::unique_ptr<ops::OpModule>> small_op_modules_;
  std::vector<NamedFastModule> small_ops_;
  std::unique_ptr<Runner> runners_[2];
  Runner* last_ = nullptr;
};

}  // namespace fastpath::models
