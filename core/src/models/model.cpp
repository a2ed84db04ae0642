#include "fastpath/model.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "fastpath/hub.hpp"
#include "fastpath/safetensors.hpp"
#include "io/file.hpp"
#include "models/evaluate.hpp"
#include "models/mace.hpp"
#include "module/structure.hpp"

namespace fastpath {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestConfig = std::size_t{16} << 20;
constexpr std::size_t kMostNames = 20;  // that one message lists

bool strict_environment() {
  const char* value = std::getenv("FASTPATH_STRICT");
  const std::string_view word = value != nullptr ? value : "";
  if (word != "" && word != "0" && word != "1") {
    // Whoever sets it means something: results must not silently come from another path than was asked for.
    throw Error(ErrorCode::invalid_argument, fmt::format("FASTPATH_STRICT is '{}', expected 1 or 0", word));
  }
  return word == "1";
}

/// Stored dtypes: floating tensors as config.json says; reference energies may be kept in float64.
void check_dtypes(const StateDict& state, DType dtype, const std::string& file) {
  std::vector<std::string> wrong;
  for (const auto& [name, tensor] : state) {
    const bool allowed = !is_floating(tensor.dtype()) || tensor.dtype() == dtype ||
                         (name == "atomic_energies_fn.atomic_energies" && tensor.dtype() == DType::float64);
    if (!allowed) wrong.push_back(fmt::format("{} is {}", name, to_string(tensor.dtype())));
  }
  if (!wrong.empty()) {
    throw Error(ErrorCode::bad_file,
                fmt::format("{}: config.json says {}; {}", file, to_string(dtype), fmt::join(wrong, ", ")));
  }
}

/// Facts that stand in both files must agree.
void check_agreement(const StateDict& state, const models::MaceConfig& config, const std::string& file) {
  std::vector<std::string> wrong;
  const auto compare = [&](const char* name, double expected, double tolerance) {
    const Tensor* tensor = state.find(name);
    if (tensor == nullptr || tensor->numel() != 1) return;  // missing and mis-shaped ones are reported by the loader
    const double found = tensor->item();
    if (!(std::abs(found - expected) <= tolerance * std::abs(expected))) {
      wrong.push_back(fmt::format("{} is {}, config.json says {}", name, found, expected));
    }
  };
  // A checkpoint in float32 has rounded them.
  compare("r_max", config.r_max, 1e-6);
  compare("radial_embedding.bessel_fn.r_max", config.r_max, 1e-6);
  compare("radial_embedding.cutoff_fn.r_max", config.r_max, 1e-6);
  compare("radial_embedding.cutoff_fn.p", config.polynomial_cutoff_p, 0);
  compare("num_interactions", static_cast<double>(config.num_interactions), 0);
  if (const Tensor* numbers = state.find("atomic_numbers");
      numbers != nullptr && numbers->numel() == config.n_species()) {
    const Tensor values = numbers->to(DType::int64).contiguous();
    for (std::int64_t i = 0; i < config.n_species(); ++i) {
      const std::int32_t expected = config.atomic_numbers[static_cast<std::size_t>(i)];
      if (values.data<std::int64_t>()[i] != expected) {
        wrong.push_back(
            fmt::format("atomic_numbers[{}] is {}, config.json says {}", i, values.data<std::int64_t>()[i], expected));
      }
    }
  }
  if (!wrong.empty()) throw Error(ErrorCode::bad_file, fmt::format("{}: {}", file, fmt::join(wrong, "; ")));
}

/// A scalar of a file may be a vector of one element, and the steepness of the soft transform may be left out.
StateDict with_scalars(const StateDict& state, const StateDict& own) {
  StateDict result;
  for (const auto& [name, tensor] : state) {
    const Tensor* target = own.find(name);
    const bool scalar = target != nullptr && target->rank() == 0 && tensor.shape() == Shape{1};
    result.add(name, scalar ? tensor.contiguous().view({}) : tensor);
  }
  const char* const alpha = "radial_embedding.distance_transform.alpha";
  if (own.contains(alpha) && !state.contains(alpha)) result.add(alpha, own.at(alpha).clone());
  return result;
}

template <class T>
bool all_finite(const Tensor& tensor) {
  const Tensor packed = tensor.contiguous();
  const auto values = packed.span<T>();
  return std::all_of(values.begin(), values.end(), [](T value) { return std::isfinite(value); });
}

/// A weight that is not a number may vanish from a result instead of spoiling it, so that nobody would notice.
void check_finite(const StateDict& state, const std::string& file) {
  std::vector<std::string> wrong;
  std::size_t count = 0;
  for (const auto& [name, tensor] : state) {
    const bool good = tensor.dtype() == DType::float64   ? all_finite<double>(tensor)
                      : tensor.dtype() == DType::float32 ? all_finite<float>(tensor)
                                                         : true;
    if (!good && ++count <= kMostNames) wrong.push_back(name);
  }
  if (count == 0) return;
  throw Error(ErrorCode::bad_file, fmt::format("{}: values that are not finite in {}{}", file, fmt::join(wrong, ", "),
                                               count > kMostNames ? ", ..." : ""));
}

/// A config that means a far larger model than the file holds is refused before memory is taken for it.
void check_size(const StateDict& state, const models::MaceConfig& config, const std::string& file) {
  double values = 0;
  for (const auto& [name, tensor] : state) values += static_cast<double>(tensor.numel());
  const double least = config.fewest_parameters();
  constexpr double kSmall = 1e6;
  if (least > kSmall && least > 4 * values) {
    throw Error(ErrorCode::bad_file, fmt::format("{}: has {} values, config.json describes a model of at least {:.3g}",
                                                 file, values, least));
  }
}

/// @param tensor  Undefined, or a row for each node of the graph, or for the first ones.
void require_finite(const Tensor& tensor, const char* what, const Graph& graph) {
  if (!tensor.defined()) return;
  const auto values = tensor.span<double>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    const auto node = static_cast<std::int64_t>(tensor.rank() > 1 ? i / static_cast<std::size_t>(tensor.size(1)) : i);
    throw Error(ErrorCode::numerics,
                fmt::format("{} of {} is not finite ({})", what, models::name_of_node(graph, node), values[i]));
  }
}

void check_weight(const Tensor& weight, const char* name, const Shape& shape) {
  if (!weight.defined()) return;
  if (weight.shape() != shape || weight.dtype() != DType::float64 || !weight.device().is_cpu()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("weights of {} are {} {} on {}, expected float64 {} on cpu",
                                                         name, to_string(weight.dtype()), to_string(weight.shape()),
                                                         to_string(weight.device()), to_string(shape)));
  }
}

/// Whatever is wrong with the weights of a gradient.
void check_weights(const GradientWeights& weights, const Graph& graph, const EvaluateOptions& options) {
  if (options.direction.defined()) {
    throw Error(ErrorCode::invalid_argument, "both a direction and weights of a gradient are given, expected one");
  }
  if (options.exchange) {
    throw Error(ErrorCode::unsupported, "gradients of weighted sums are not available under a ghost exchange");
  }
  const std::int64_t n_graphs = graph.n_graphs();
  check_weight(weights.energies, "energies", {n_graphs});
  check_weight(weights.forces, "forces", {graph.n_nodes(), 3});
  check_weight(weights.stresses, "stresses", {n_graphs, 3, 3});
  if (!weights.stresses.defined()) return;
  const Tensor packed = weights.stresses.contiguous();
  const auto values = packed.span<double>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == 0 || graph.volume(static_cast<std::int64_t>(i / 9))) continue;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a stress of graph {} has weight {}, but it is not periodic in all three directions: "
                            "expected 0",
                            i / 9, values[i]));
  }
}

}  // namespace

std::string models::head_of(const Structure& structure, const EvaluateOptions& options) {
  const Values* head = structure.find_info("head");
  if (!options.head.empty() || head == nullptr) return options.head;
  // A head may be named by a number, which a reader of the frame takes for one.
  if (count(*head) == 1) {
    if (const auto* words = std::get_if<std::vector<std::string>>(head)) return words->front();
    if (const auto* numbers = std::get_if<std::vector<std::int64_t>>(head)) return std::to_string(numbers->front());
  }
  throw Error(ErrorCode::invalid_argument, "head= of the structure is not one name");
}

fs::path models::model_folder(const fs::path& name) {
  if (io::type_of(name) == fs::file_type::directory) return name;
  const bool plain = name.has_filename() && !name.has_parent_path() && name != "." && name != "..";
  if (!plain) throw Error(ErrorCode::not_found, fmt::format("model '{}': no such folder", name.string()));
  try {
    const HubModel model = find_hub_model(name.string(), true);
    if (model.state == HubModel::State::broken) {
      throw Error(ErrorCode::bad_file, fmt::format("model '{}': {} is not whole: {}", name.string(),
                                                   model.directory.string(), model.problem));
    }
    return model.directory;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::not_found) throw;
    throw Error(ErrorCode::not_found, fmt::format("{}, and no such folder", error.what()));
  }
}

std::uint64_t models::memory_limit(const EvaluateOptions& options) {
  if (options.memory_limit > 0) return options.memory_limit;
  const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
  return pages > 0 && page > 0 ? static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page) : 0;
}

Passes passes_of(const EvaluateOptions& options) {
  return models::carries_tangents(options) ? kPassesTraining
         : models::goes_back(options)      ? kPassesForces
                                           : kPassesEnergy;
}

Model::Model() : policy_(AutoPolicy::builtin()) {}
Model::~Model() = default;

void Model::set_policy(std::shared_ptr<const AutoPolicy> policy) {
  policy_ = policy != nullptr ? std::move(policy) : AutoPolicy::builtin();
}

void Model::for_each_model(const std::function<void(Model&)>& visit) {
  visit(*this);
  Module::for_each_model(visit);
}

std::shared_ptr<Model> Model::load(const fs::path& name) {
  const fs::path directory = models::model_folder(name);
  const fs::path config_path = directory / "config.json", tensor_path = directory / "model.safetensors";
  for (const fs::path& path : {config_path, tensor_path}) {
    if (io::type_of(path) == fs::file_type::not_found) {
      throw Error(ErrorCode::not_found,
                  fmt::format("model folder {} has no {}", directory.string(), path.filename().string()));
    }
  }
  const models::MaceConfig config =
      models::MaceConfig::parse(io::read_small_file(config_path, kLargestConfig), config_path.string());
  const SafetensorsFile file = read_safetensors(tensor_path);
  StateDict state;
  for (const auto& [tensor_name, tensor] : file.tensors) {
    if (!models::MaceModel::is_ignored(tensor_name, tensor)) state.add(tensor_name, tensor);
  }
  check_dtypes(state, config.dtype, tensor_path.string());
  check_agreement(state, config, tensor_path.string());
  check_size(state, config, tensor_path.string());
  try {
    auto model = std::make_shared<models::MaceModel>(config, &state);
    model->load_state_dict(with_scalars(state, model->state_dict()));
    check_finite(state, tensor_path.string());
    return model;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    throw Error(ErrorCode::bad_file, fmt::format("{}: {}", tensor_path.string(), error.what()));
  }
}

std::shared_ptr<Model> Model::create(const std::string& config, std::uint64_t seed) {
  models::MaceConfig parsed = models::MaceConfig::parse(config, "config");
  if (parsed.reduced_cg) {
    throw Error(ErrorCode::unsupported,
                "reduced_cg is true: new models have the full basis; a reduced one comes with a checkpoint");
  }
  // Each parameter once more while it is written; each basis twice more while it is made.
  const double need = 8 * (2 * parsed.fewest_parameters() + 3 * models::basis_size(parsed));
  const auto memory = static_cast<double>(models::memory_limit({}));
  if (memory > 0 && need > memory) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("a model of this config needs at least {:.3g} bytes to be made, this machine has {:.3g}",
                            need, memory));
  }
  auto model = std::make_shared<models::MaceModel>(std::move(parsed), nullptr);
  model->initialize(seed);
  return model;
}

void Model::save(const fs::path& directory) const {
  std::error_code status;
  if (fs::exists(directory, status) && !(fs::is_directory(directory, status) && fs::is_empty(directory, status))) {
    throw Error(ErrorCode::io, fmt::format("{}: exists and is not an empty folder", directory.string()));
  }
  // Into a folder beside it, renamed at the end: a model is there whole or not at all.
  fs::path target = directory;
  if (!target.has_filename()) target = target.parent_path();
  const fs::path temporary = target.parent_path() / fmt::format(".{}.partial-{}", target.filename().string(), getpid());
  std::vector<fs::path> parents;  // that are made on the way, innermost first
  for (fs::path parent = target.parent_path(); !parent.empty() && !fs::exists(parent, status);
       parent = parent.parent_path()) {
    parents.push_back(parent);
  }
  const auto clean_up = [&] {
    fs::remove_all(temporary, status);
    for (const fs::path& parent : parents) fs::remove(parent, status);
  };
  try {
    fs::remove_all(temporary);
    fs::create_directories(temporary);
    io::ReplacingFile file(temporary / "config.json");
    file.write(config_text());
    file.commit();
    StateDict stored;
    for (const auto& [name, tensor] : state_dict()) {
      const bool keep = !is_floating(tensor.dtype()) || name == "atomic_energies_fn.atomic_energies";
      stored.add(name, keep ? tensor : tensor.to(stored_dtype()));
    }
    write_safetensors(temporary / "model.safetensors", stored, {{"format", "fastpath-model"}});
    if (fs::exists(target)) fs::remove(target);
    fs::rename(temporary, target);
  } catch (const fs::filesystem_error& error) {
    clean_up();
    throw Error(ErrorCode::io, fmt::format("{}: cannot be made: {}", directory.string(), error.code().message()));
  } catch (const Error& error) {
    clean_up();
    // The folder that was asked for, not the one on the way to it.
    std::string text = error.what();
    if (const std::size_t at = text.find(temporary.string()); at != std::string::npos) {
      text.replace(at, temporary.string().size(), directory.string());
    }
    throw Error(error.code(), text);
  } catch (...) {
    clean_up();
    throw;
  }
}

const std::vector<NamedFastModule>& Model::fast_list() {
  if (const std::uint64_t epoch = structure_epoch(); fast_list_epoch_ != epoch) {
    fast_list_ = fast_modules(*this);
    fast_list_epoch_ = epoch;
  }
  return fast_list_;
}

Selection Model::explain(ProblemSize size, const EvaluateOptions& options) {
  const UseFast use_fast = options.use_fast.value_or(use_fast_);
  if (!is_floating(options.dtype)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("dtype {} cannot be evaluated in; float32 or float64", to_string(options.dtype)));
  }
  Context& context = options.context != nullptr ? *options.context : Context::process();
  if (!options.device.is_cpu()) {
    if (use_fast == UseFast::never) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("device {} with use_fast false: the reference runs on the CPU only", to_string(options.device)));
    }
    if (!context.impl().knows(options.device) && !find_device(context, options.device)) {
      std::vector<std::string> known;
      for (const DeviceInfo& info : context.registry().devices()) known.push_back(to_string(info.device));
      std::string why;
      for (const PluginInfo& plugin : context.registry().plugins()) {
        const auto& kinds = plugin.device_kinds;
        if (std::find(kinds.begin(), kinds.end(), options.device.kind) != kinds.end()) {
          why += fmt::format("; {} is {}: {}", plugin.id, to_string(plugin.state), plugin.reason.text);
        }
      }
      throw Error(ErrorCode::unavailable,
                  fmt::format("device {} is not there; available: {}{}", to_string(options.device),
                              fmt::join(known, ", "), why.empty() ? "; no plugin serves its kind" : why));
    }
    context.impl().remember(options.device);
  }
  const Passes passes = passes_of(options);
  const std::vector<NamedFastModule>& modules = fast_list();
  Selection selection;
  if (options.device.is_cpu()) {
    for (const NamedFastModule& op : small_ops()) op.module->state().active = nullptr;
    selection = select(modules, use_fast, policy_.get(), options.device, options.dtype, size, passes, &context,
                       options.threads);
  } else {
    std::vector<NamedFastModule> all = modules;
    all.insert(all.end(), small_ops().begin(), small_ops().end());
    selection =
        select(all, use_fast, policy_.get(), options.device, options.dtype, size, passes, &context, options.threads);
  }
  if (options.require_fast || strict_environment()) {
    std::vector<std::string> missing;
    const auto is_small = [&](const Decision& decision) {  // not a module: strict mode does not ask for it
      return std::any_of(small_ops().begin(), small_ops().end(),
                         [&](const NamedFastModule& op) { return op.name == decision.module; });
    };
    for (const Decision& decision : selection.decisions) {
      if (is_small(decision)) continue;
      if (decision.fast() || decision.reason.code == ReasonCode::covered_by_parent ||
          decision.reason.code == ReasonCode::in_parts) {
        continue;
      }
      std::string line = fmt::format("{} ({}): {}", decision.module, decision.op, decision.reason.text);
      for (const Candidate& candidate : decision.candidates) {
        for (const Reason& reason : candidate.reasons) line += fmt::format("; {}: {}", candidate.plugin, reason.text);
      }
      missing.push_back(std::move(line));
    }
    if (!missing.empty()) {
      throw Error(ErrorCode::strict_violation,
                  fmt::format("strict: {} of {} modules would run the reference: {}", missing.size(),
                              selection.decisions.size(), fmt::join(missing, " | ")));
    }
  }
  return selection;
}

MemoryEstimate Model::memory_estimate(ProblemSize size, const EvaluateOptions& options) const {
  // Selecting changes nothing that can be observed but which kernels the next evaluation of this size has anyway.
  (void)const_cast<Model*>(this)->explain(size, options);
  return estimate(size, options);
}

MemoryEstimate Model::memory_estimate(const Structure& structure, const EvaluateOptions& options) const {
  const Graph graph = Graph::from_structure(structure, r_max());
  return memory_estimate({graph.n_edges(), graph.n_nodes()}, options);
}

void Model::require_memory(ProblemSize size, const EvaluateOptions& options) const {
  const std::uint64_t limit = models::memory_limit(options);
  if (limit == 0) return;
  const MemoryEstimate need = estimate(size, options);
  if (need.workspace_bytes <= limit) return;
  throw Error(ErrorCode::out_of_memory,
              fmt::format("{} atoms with {} edges need {} MiB, at most {} MiB are there", size.n_nodes, size.n_edges,
                          need.workspace_bytes >> 20, limit >> 20));
}

EvaluationResult Model::evaluate(const Graph& graph, const EvaluateOptions& options) {
  EvaluateOptions used = options;
  used.require_fast = options.require_fast || strict_environment();
  if (options.weights.defined()) check_weights(options.weights, graph, options);
  EvaluationResult result = run(graph, used);
  if (!std::isfinite(result.energy)) {
    require_finite(result.node_energies, "energy", graph);
    throw Error(ErrorCode::numerics, "the sum of the node energies is not finite");
  }
  require_finite(result.forces, "force", graph);
  for (const auto& [name, tensor] : result.weighted_gradients) {
    if (all_finite<double>(tensor)) continue;
    throw Error(ErrorCode::numerics, fmt::format("the gradient of the weighted sum by {} is not finite", name));
  }
  return result;
}

StateDict Model::weighted_gradients(const Graph& graph, const GradientWeights& weights,
                                    const EvaluateOptions& options) {
  if (!weights.defined()) throw Error(ErrorCode::invalid_argument, "no weights of a gradient are given");
  EvaluateOptions used = options;
  used.weights = weights;
  used.forces = used.stress = used.parameter_gradients = false;
  return evaluate(graph, used).weighted_gradients;
}

EvaluationResult Model::evaluate(const Structure& structure, const EvaluateOptions& options) {
  EvaluateOptions used = options;
  used.head = models::head_of(structure, options);
  const auto start = std::chrono::steady_clock::now();
  const Graph graph = Graph::from_structure(structure, r_max());
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EvaluationResult result = evaluate(graph, used);
  result.seconds_graph = seconds;
  return result;
}

}  // namespace fastpath
