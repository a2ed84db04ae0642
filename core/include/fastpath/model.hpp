#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "fastpath/context.hpp"
#include "fastpath/error.hpp"
#include "fastpath/export.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/graph.hpp"
#include "fastpath/module.hpp"
#include "fastpath/structure.hpp"

namespace fastpath {

/// Weights of a sum of energies, forces and stresses, of which a training step wants the gradient by every parameter:
///   L = sum_g energies[g] E_g + sum_n forces[n] . F_n + sum_g stresses[g] : sigma_g,
/// the weights being constants. For a loss that is any function of energies, forces and stresses they are its
/// derivatives by these. An undefined tensor means zero.
struct GradientWeights {
  Tensor energies;  ///< [n_graphs] float64, per eV.
  Tensor forces;    ///< [n_nodes, 3] float64, per eV/angstrom.
  Tensor stresses;  ///< [n_graphs, 3, 3] float64, per eV/angstrom^3; zero for graphs without a volume.
  bool defined() const noexcept { return energies.defined() || forces.defined() || stresses.defined(); }
};

struct EvaluateOptions {
  Device device = Device::cpu();
  DType dtype = DType::float64;     ///< Of the evaluation; parameters are converted once.
  std::optional<UseFast> use_fast;  ///< Overrides the model's setting for this call.
  bool forces = true;
  bool stress = true;  ///< Only where the structure is periodic in all three directions.
  bool require_fast =
      false;         ///< A capable module that would run, or runs, its reference is an error. Also FASTPATH_STRICT=1.
  int threads = 0;   ///< 0: as the context says.
  std::string head;  ///< Empty: the frame's `head=`, else the first.
  std::vector<std::string> heads;    ///< Of every graph of joined ones, in place of `head`; an empty name: the first.
  ExchangeCallback exchange;         ///< Exact message passing under domain decomposition; see ExchangeCallback.
  bool parameter_gradients = false;  ///< dE/dp of every parameter.
  /// [n_nodes, 3] float64, angstrom: also derive every result along this displacement of the positions (Hessian-vector
  /// products, force matching). Undefined: do not.
  Tensor direction;
  /// Also the gradient by every parameter of a weighted sum of the results, EvaluationResult::weighted_gradients. Not
  /// together with `direction`, nor under an exchange.
  GradientWeights weights;
  /// Told of every direction of hessian() and hessian_products() that is done, of how many; one call at a time, from
  /// any thread.
  std::function<void(std::int64_t done, std::int64_t of)> on_direction = {};
  std::uint64_t memory_limit = 0;  ///< Bytes; 0: the memory of the machine. A run that cannot fit is refused early.
  /// Bytes up to which structures of one call are joined, see evaluate(structures); 0: kBatchMemory.
  std::uint64_t batch_memory = 0;
  Context* context = nullptr;  ///< Null: Context::process().

  /// Beyond this, more structures in one graph save nothing any more, and caches hold less of it.
  static constexpr std::uint64_t kBatchMemory = std::uint64_t{64} << 20;
};

/// What such an evaluation computes.
FASTPATH_EXPORT Passes passes_of(const EvaluateOptions& options);

struct EvaluationResult {
  double energy = 0;     ///< eV, of the local atoms.
  Tensor node_energies;  ///< [n_local] float64, eV
  Tensor forces;  ///< [n_nodes, 3] float64, eV/angstrom; ghosts included, for the host to reduce. Undefined if not
                  ///< asked for.
  std::optional<std::array<std::array<double, 3>, 3>>
      stress;                                     ///< eV/angstrom^3; positive where the energy rises under expansion.
  std::array<std::array<double, 3>, 3> virial{};  ///< eV, of all edges.
  /// Of every graph of joined ones, which have no stress together: energies [n_graphs] float64, eV, whose sum `energy`
  /// is; virials [n_graphs, 3, 3] float64, eV; stresses [n_graphs, 3, 3] float64, eV/angstrom^3, zero for graphs
  /// without a volume. Virials and stresses are undefined where `virial` and `stress` were not asked for.
  Tensor graph_energies, graph_virials, graph_stresses;
  Tensor edge_forces;                     ///< [n_edges, 3] float64: +dE/d(edge vector) in the graph's edge order.
  StateDict parameter_gradients;          ///< eV per unit of each parameter.
  Tensor forces_tangent;                  ///< [n_nodes, 3]: minus the Hessian times `direction`.
  StateDict parameter_gradients_tangent;  ///< Derivative of parameter_gradients along `direction`.
  /// Of the weighted sum, per unit of each parameter: all parameters in definition order, float64 whatever the dtype of
  /// the evaluation.
  StateDict weighted_gradients;
  std::int64_t n_edges = 0;
  std::int64_t n_atoms = 0;
  std::int64_t n_joined = 1;  ///< Structures that were evaluated together in one graph, this one included.
  Selection selection;
  std::uint64_t copied_bytes = 0;     ///< Between host and device, parameters not counted.
  std::int64_t synchronizations = 0;  ///< How often the evaluation waited for a device.
  double seconds = 0;                 ///< The evaluation alone.
  double seconds_graph = 0;           ///< Building the neighbour list.
  double seconds_first_use = 0;       ///< Loading plugins, creating kernels, converting parameters.
};

/// An error of one of several structures, or of the first one of those that could not be evaluated together.
class FASTPATH_EXPORT StructureError : public Error {
 public:
  /// The text is "structure 3: " and the cause.
  StructureError(std::size_t structure, ErrorCode code, const std::string& cause);
  ~StructureError() override;
  std::size_t structure() const noexcept { return structure_; }  ///< Its index, from 0.
  const std::string& cause() const noexcept { return cause_; }   ///< The text without the number.

 private:
  std::size_t structure_;
  std::string cause_;
};

/// Memory that an evaluation needs on the evaluation device beyond the model's parameters.
struct MemoryEstimate {
  std::uint64_t workspace_bytes = 0;
  std::uint64_t parameter_bytes = 0;
};

/// What Model::warm_up() did.
struct WarmUp {
  std::size_t measured = 0;  ///< Measurements that were made, and are in the context's store.
  bool out_of_time = false;  ///< The budget ended before everything was measured as well as it could be.
  double seconds = 0;        ///< Of everything.
};

/// A root module with a `use_fast` setting and a policy. One evaluation at a time per instance; see replica().
class FASTPATH_EXPORT Model : public Module {
 public:
  /// Loads a model folder (docs/model-format.md) or a name in the hub.
  /// @throws Error(not_found) for a missing folder or file, Error(bad_file) listing every unknown or missing key and
  /// tensor.
  static std::shared_ptr<Model> load(const std::filesystem::path& directory);
  /// A new model with weights drawn from `seed`; the same seed gives the same weights everywhere.
  /// @param config  Text of a config.json. @throws Error(bad_file) as load().
  static std::shared_ptr<Model> create(const std::string& config, std::uint64_t seed);
  ~Model() override;

  /// Writes config.json and model.safetensors; the folder must not exist or be empty. @throws Error(io), nothing is
  /// left behind.
  void save(const std::filesystem::path& directory) const;

  UseFast use_fast() const noexcept { return use_fast_; }
  void set_use_fast(UseFast value) noexcept { use_fast_ = value; }
  /// Never null; AutoPolicy::builtin() by default. Setting null restores that.
  const std::shared_ptr<const AutoPolicy>& policy() const noexcept { return policy_; }
  void set_policy(std::shared_ptr<const AutoPolicy> policy);

  virtual const std::string& architecture() const = 0;
  virtual const std::vector<std::int32_t>& atomic_numbers() const = 0;
  virtual const std::vector<std::string>& heads() const = 0;
  virtual double r_max() const = 0;  ///< angstrom
  virtual int num_interactions() const = 0;
  virtual DType stored_dtype() const = 0;
  /// Text of a config.json that describes this model.
  virtual std::string config_text() const = 0;

  /// Energy, forces and stress of a structure, or of a host's own graph.
  /// @throws Error(invalid_argument) naming the atom, species, option or device; Error(strict_violation) listing every
  ///   module and reason; Error(out_of_memory) with needed and available bytes; Error(numerics) if a result is not
  ///   finite.
  EvaluationResult evaluate(const Structure& structure, const EvaluateOptions& options = {});
  EvaluationResult evaluate(const Graph& graph, const EvaluateOptions& options = {});

  /// Told of every structure of a list, in order, as soon as its result is there. It may take from the result what is
  /// not to be kept.
  using ResultCallback = std::function<void(std::size_t structure, EvaluationResult& result)>;
  /// Energies, forces and stresses of many structures, in their order: the same as one by one, to rounding. Structures
  /// that follow each other are evaluated as one joined graph as long as memory_estimate() stays below
  /// `options.batch_memory`; one that needs more by itself is evaluated alone. So small structures cost less than one
  /// by one, while memory is bounded. Each may have a head of its own, as in evaluate(structure). A result's seconds,
  /// and bytes copied, are its share by atoms and edges; seconds_first_use stands with the first structure of a joined
  /// graph, synchronizations, which all of them share, with each.
  /// @throws StructureError as evaluate(structure), naming the structure: if joined ones fail, they are evaluated one
  /// by
  ///   one to find it. Error(invalid_argument) for options that mean one structure: direction, weights, heads,
  ///   parameter_gradients, exchange.
  std::vector<EvaluationResult> evaluate(std::span<const Structure> structures, const EvaluateOptions& options = {},
                                         const ResultCallback& on_result = {});

  /// Second derivatives of the energy by positions times displacements, H d = -(derivative of the forces along d).
  /// Every direction is an evaluation of its own with derivatives along it; as many run at the same time, on replicas,
  /// as there are threads and as memory_limit allows (on a device one after the other).
  /// @param directions  [n_directions, n_nodes, 3] float64, angstrom.
  /// @return [n_directions, n_nodes, 3] float64, eV/angstrom. The same bits for any number of threads, if those of
  ///   evaluate() are.
  /// @throws Error(invalid_argument) for wrong directions, or options that ask for another derivative; Error(numerics)
  ///   naming the direction; otherwise as evaluate().
  Tensor hessian_products(const Graph& graph, const Tensor& directions, const EvaluateOptions& options = {});
  /// The Hessian [3 n_atoms, 3 n_atoms] float64, eV/angstrom^2: entry (3 n + k, 3 m + l) is the second derivative by
  /// position k of atom n and position l of atom m (of all periodic images together). Not symmetrised.
  /// @throws Error(out_of_memory) if it cannot fit; otherwise as hessian_products.
  Tensor hessian(const Structure& structure, const EvaluateOptions& options = {});

  /// The gradient by every parameter, in definition order and float64, of a weighted sum of the energies, forces and
  /// stresses of a graph, joined or not. One pass forward and one back: with a weight of forces or stresses both carry
  /// derivatives along the direction in which these weights move the edges, so that modules run on kernels that have
  /// the tangent passes and on the reference elsewhere (reason `pass`); with weights of energies alone they do not.
  /// @throws Error(invalid_argument) naming the weight: wrong shape or dtype, none at all, a stress of a graph without
  /// a
  ///   volume; Error(numerics) naming the parameter if a gradient is not finite; otherwise as evaluate().
  StateDict weighted_gradients(const Graph& graph, const GradientWeights& weights, const EvaluateOptions& options = {});

  /// Makes ready for evaluations of structures like this one, so that the first of them takes no longer than the
  /// others: loads plugins, creates kernels and converts parameters, by an evaluation. Under auto it first measures
  /// what the context's store has no measurement of that counts: whole evaluations and single ops, from 8 edges to
  /// twice as many as here (docs/tuning.md), and keeps what it finds there. evaluate() never measures.
  /// @param budget_seconds  For measuring, about; 0: measure nothing. What does not fit is left for the next time.
  ///   Nothing is measured either where the context is deterministic.
  /// @throws Error(invalid_argument) for a negative budget, what evaluate() throws, and what the store throws.
  WarmUp warm_up(const Structure& structure, const EvaluateOptions& options = {}, double budget_seconds = 30);
  WarmUp warm_up(const Graph& graph, const EvaluateOptions& options = {}, double budget_seconds = 30);

  /// The selection an evaluation of this size would make; also written into the modules.
  Selection explain(ProblemSize size, const EvaluateOptions& options = {});
  /// Memory of an evaluation, with the kernels that explain() would choose: fused ones need no arrays over edges.
  /// What these kernels keep from forward to backward is in it, what they work with is not. @throws as explain().
  MemoryEstimate memory_estimate(const Structure& structure, const EvaluateOptions& options = {}) const;
  MemoryEstimate memory_estimate(ProblemSize size, const EvaluateOptions& options = {}) const;

  /// Another instance on the same parameters, for another thread. Costs almost nothing. When parameters change, make
  /// replicas anew: they keep what was derived from the old values.
  virtual std::shared_ptr<Model> replica() const = 0;

  void for_each_model(const std::function<void(Model&)>& visit) override;

  /// Ops between the modules, without parameters, that a device other than the CPU may take over too, so that features
  /// stay there. They are part of a selection for such a device; on the CPU they are never active. Not in
  /// fast_modules(), nor in the state dict; they live as long as the model.
  virtual const std::vector<NamedFastModule>& small_ops() = 0;

 protected:
  Model();
  virtual EvaluationResult run(const Graph& graph, const EvaluateOptions& options) = 0;
  /// With the kernels that are chosen now.
  virtual MemoryEstimate estimate(ProblemSize size, const EvaluateOptions& options) const = 0;
  /// @throws Error(out_of_memory) with both numbers if that is more than the options, or the machine, allow.
  void require_memory(ProblemSize size, const EvaluateOptions& options) const;
  /// fast_modules(*this), kept until a module gets a child.
  const std::vector<NamedFastModule>& fast_list();

 private:
  std::vector<NamedFastModule> fast_list_;
  std::uint64_t fast_list_epoch_ = 0;
  UseFast use_fast_ = UseFast::automatic;
  std::shared_ptr<const AutoPolicy> policy_;
};

/// Sets `use_fast` of every model inside, through wrappers, and returns the module it was given. The value is checked
/// before anything changes. @throws as resolve_use_fast.
template <class ModuleType, class Value>
ModuleType& set_use_fast(ModuleType& module, Value&& value) {
  const UseFast resolved = resolve_use_fast(std::forward<Value>(value));
  module.for_each_model([resolved](Model& model) { model.set_use_fast(resolved); });
  return module;
}

}  // namespace fastpath
