#include "models/mace.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "fastpath/error.hpp"
#include "models/mace_runner.hpp"
#include "ops/symmetric_contraction/module.hpp"

namespace fastpath::models {

bool carries_tangents(const EvaluateOptions& options) {
  const bool plain_results = options.forces || options.stress || options.parameter_gradients;
  return options.direction.defined() || options.weights.forces.defined() || options.weights.stresses.defined() ||
         (options.weights.energies.defined() && plain_results);
}

bool goes_back(const EvaluateOptions& options) {
  return options.forces || options.stress || options.parameter_gradients || options.direction.defined() ||
         options.weights.defined();
}

std::string name_of_node(const Graph& graph, std::int64_t node) {
  const auto ptr = graph.graph_ptr().span<std::int64_t>();
  const auto own = std::upper_bound(ptr.begin(), ptr.end(), node) - 1;
  if (graph.n_graphs() == 1) return fmt::format("atom {}", node);
  return fmt::format("atom {} of graph {}", node - *own, own - ptr.begin());
}

/// A child by dotted path. The tree is our own: a missing one is a bug.
Module& child(Module& root, const std::string& path) {
  Module* at = &root;
  std::size_t start = 0;
  while (start <= path.size()) {
    const std::size_t stop = std::min(path.find('.', start), path.size());
    const std::string name = path.substr(start, stop - start);
    Module* next = nullptr;
    for (const auto& [child_name, module] : at->children()) {
      if (child_name == name) next = module.get();
    }
    if (next == nullptr) throw Error(ErrorCode::internal, fmt::format("module '{}' has no child '{}'", path, name));
    at = next;
    start = stop + 1;
  }
  return *at;
}

MaceModel::MaceModel(MaceConfig config, const StateDict* state) : config_(std::move(config)) { build_modules(state); }
MaceModel::~MaceModel() = default;

const std::string& MaceModel::architecture() const {
  static const auto* name = new std::string("mace");
  return *name;
}

bool MaceModel::is_ignored(const std::string& name, const Tensor& tensor) {
  const auto ends_with = [&](std::string_view suffix) { return std::string_view(name).ends_with(suffix); };
  return ends_with("_zeroed") || ends_with(".output_mask") || (ends_with(".bias") && tensor.numel() == 0) ||
         (ends_with("conv_tp.weight") && tensor.numel() == 0) || name.find("_w3j_") != std::string::npos;
}

std::shared_ptr<Model> MaceModel::replica() const {
  // The shapes of U and of the heads come from this model, not from a file.
  const StateDict state = state_dict();
  auto copy = std::make_shared<MaceModel>(config_, &state);
  copy->share_tensors(*this);
  copy->set_use_fast(use_fast());
  copy->set_policy(policy());
  const auto mine = fast_modules(const_cast<MaceModel&>(*this)), theirs = fast_modules(*copy);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    theirs[i].module->share_parameters(*mine[i].module);
    if (auto* contraction = dynamic_cast<ops::SymmetricContractionModule*>(theirs[i].module)) {
      contraction->share_polynomial(dynamic_cast<const ops::SymmetricContractionModule&>(*mine[i].module));
    }
  }
  return copy;
}

const std::vector<NamedFastModule>& MaceModel::small_ops() {
  // Programs make them, with and without an exchange the same.
  if (!runners_[0] && !runners_[1]) runners_[0] = build_runner(false);
  return small_ops_;
}

MaceModel::Runner& MaceModel::runner(bool exchange) {
  auto& slot = runners_[exchange ? 1 : 0];
  if (!slot) slot = build_runner(exchange);
  last_ = slot.get();
  return *slot;
}

Tensor MaceModel::last_value(const std::string& name) {
  if (last_ == nullptr) return {};
  for (std::size_t i = 0; i < last_->program.slots().size(); ++i) {
    if (last_->program.slots()[i].name == name) return last_->executor->value(static_cast<SlotId>(i));
  }
  return {};
}

std::int32_t MaceModel::head_index(const std::string& name) const {
  if (name.empty()) return 0;
  for (std::size_t i = 0; i < config_.heads.size(); ++i) {
    if (config_.heads[i] == name) return static_cast<std::int32_t>(i);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("head '{}' is unknown; the model has {}", name, fmt::join(config_.heads, ", ")));
}

std::vector<std::int32_t> MaceModel::heads_of(const Graph& graph, const EvaluateOptions& options) const {
  const auto n_graphs = static_cast<std::size_t>(graph.n_graphs());
  if (options.heads.empty()) return std::vector<std::int32_t>(n_graphs, head_index(options.head));
  if (options.heads.size() != n_graphs) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} heads for {} graphs, expected one for each", options.heads.size(), n_graphs));
  }
  std::vector<std::int32_t> result;
  for (const std::string& name : options.heads) result.push_back(head_index(name));
  return result;
}

Tensor MaceModel::species_of(const Graph& graph) const {
  std::vector<std::int32_t> index_of(119, -1);
  for (std::size_t i = 0; i < config_.atomic_numbers.size(); ++i) {
    index_of[static_cast<std::size_t>(config_.atomic_numbers[i])] = static_cast<std::int32_t>(i);
  }
  const Tensor species = Tensor::empty({graph.n_nodes()}, DType::int32);
  const auto numbers = graph.atomic_numbers().span<std::int32_t>();
  for (std::size_t n = 0; n < numbers.size(); ++n) {
    const std::int32_t z = numbers[n];
    const std::int32_t index = z >= 0 && z < 119 ? index_of[static_cast<std::size_t>(z)] : -1;
    if (index < 0) {
      std::vector<std::string> known;
      for (const std::int32_t number : config_.atomic_numbers) known.push_back(chemical_symbol(number));
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is {}; the model knows {}", name_of_node(graph, static_cast<std::int64_t>(n)),
                              z >= 0 && z < 119 ? chemical_symbol(z) : fmt::format("atomic number {}", z),
                              fmt::join(known, ", ")));
    }
    species.data<std::int32_t>()[n] = index;
  }
  return species;
}

MemoryEstimate MaceModel::estimate(ProblemSize size, const EvaluateOptions& options) const {
  MemoryEstimate result;
  // Building the program of a model changes nothing that can be observed.
  const Runner* made = &const_cast<MaceModel*>(this)->runner(static_cast<bool>(options.exchange));
  result.workspace_bytes = made->program.bytes(size.n_edges, size.n_nodes, options.dtype, goes_back(options)) *
                               (carries_tangents(options) ? 2u : 1u) +
                           made->program.saved_bytes(size, options.dtype, passes_of(options));
  result.parameter_bytes = static_cast<std::uint64_t>(parameter_count()) * size_of(options.dtype);
  return result;
}

}  // namespace fastpath::models
