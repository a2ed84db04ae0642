#include "models/mace.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "models/glue.hpp"
#include "ops/conv_tensor_product/module.hpp"
#include "ops/edge_geometry/edge_geometry.hpp"
#include "ops/irreps_linear/module.hpp"
#include "ops/message_step/module.hpp"
#include "ops/pair_zbl/module.hpp"
#include "ops/pointwise/module.hpp"
#include "ops/radial_basis/module.hpp"
#include "ops/radial_mlp/module.hpp"
#include "ops/species_linear/module.hpp"
#include "ops/spherical_harmonics/module.hpp"
#include "ops/symmetric_contraction/basis.hpp"
#include "ops/symmetric_contraction/module.hpp"

namespace fastpath::models {
namespace {

using sdk::Irreps;

Irreps scalars(std::int64_t n) { return Irreps::natural(n, 0); }

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

std::shared_ptr<Module> container() { return std::make_shared<Module>(); }

sdk::IrrepsLinearConfig linear(Irreps in, Irreps out, double scale = 1.0) {
  return {std::move(in), std::move(out), false, scale};
}

/// True if a density is made of the radial basis, which is then evaluated in any case.
bool has_density(const MaceConfig& config) {
  for (std::int64_t t = 0; t < config.num_interactions; ++t) {
    if (interaction_kind(config.block(t)).density) return true;
  }
  return false;
}

/// K of a tensor U that a checkpoint lacks or has in another shape, as the weights beside it say.
std::int64_t paths_by_weights(const StateDict& state, const std::string& prefix, int nu, int correlation) {
  const std::string name = nu == correlation ? "weights_max" : fmt::format("weights.{}", correlation - 1 - nu);
  const Tensor* weights = state.find(fmt::format("{}.{}", prefix, name));
  return weights != nullptr && weights->rank() == 3 && weights->numel() > 0 ? weights->size(1) : 0;
}

/// The tensors U of one target: from a checkpoint where it has fitting ones, otherwise the full basis of new models.
std::vector<Tensor> basis(const StateDict* state, const std::string& prefix, int l_max, int degree, int correlation) {
  std::vector<Tensor> result;
  const std::int64_t dim = std::int64_t{l_max + 1} * (l_max + 1);
  for (int nu = 1; nu <= correlation; ++nu) {
    Shape shape;
    if (degree > 0) shape.push_back(2 * degree + 1);
    shape.insert(shape.end(), static_cast<std::size_t>(nu), dim);
    const Tensor* stored = state != nullptr ? state->find(fmt::format("{}.U_matrix_{}", prefix, nu)) : nullptr;
    if (stored != nullptr && stored->rank() == static_cast<std::int64_t>(shape.size()) + 1 &&
        std::equal(shape.begin(), shape.end(), stored->shape().begin())) {
      shape.push_back(stored->size(-1));
      result.push_back(Tensor::zeros(shape, DType::float64));  // load_state_dict fills it
      continue;
    }
    if (state != nullptr) {
      // load_state_dict will refuse the checkpoint and list the tensor; until then it takes no memory and no time.
      static double zero = 0;
      shape.push_back(paths_by_weights(*state, prefix, nu, correlation));
      Shape strides(shape.size(), 0);
      result.push_back(
          Tensor::wrap(&zero, std::move(shape), std::move(strides), DType::float64, Device::cpu(), nullptr));
      continue;
    }
    std::int64_t n_paths = 0;
    const std::vector<double> values = ops::u_matrix(l_max, degree, nu, &n_paths);
    shape.push_back(n_paths);
    result.push_back(Tensor::from<double>(shape, values));
  }
  return result;
}

/// 64 random bits per call, equal on every platform.
class SplitMix {
 public:
  explicit SplitMix(std::uint64_t state) : state_(state) {}
  std::uint64_t next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  /// Uniform in (-sqrt(3), sqrt(3)): mean 0, variance 1.
  double unit_variance() { return std::sqrt(3.0) * (2.0 * static_cast<double>(next() >> 11) * 0x1.0p-53 - 1.0); }

 private:
  std::uint64_t state_;
};

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

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

double basis_size(const MaceConfig& config) {
  double total = 0;
  const double dim = static_cast<double>(config.l_max + 1) * static_cast<double>(config.l_max + 1);
  for (std::int64_t t = 0; t < config.num_interactions; ++t) {
    for (const sdk::IrrepsBlock& target : config.irreps_out(t)) {
      for (int nu = 1; nu <= config.correlation[static_cast<std::size_t>(t)]; ++nu) {
        total += ops::count_paths(config.l_max, target.ir.l, nu) * target.ir.dim() * std::pow(dim, nu);
      }
    }
  }
  return total;
}

/// A program and what runs it; one for plain evaluations, one for those with a ghost exchange.
struct MaceModel::Runner {
  Program program;
  SlotId vectors = 0, species_nodes = 0, species_receivers = 0, head = 0, result = 0;
  std::unique_ptr<Executor> executor;
};

MaceModel::MaceModel(MaceConfig config, const StateDict* state) : config_(std::move(config)) { build_modules(state); }
MaceModel::~MaceModel() = default;

const std::string& MaceModel::architecture() const {
  static const auto* name = new std::string("mace");
  return *name;
}

void MaceModel::build_modules(const StateDict* state) {
  const MaceConfig& c = config_;
  const std::int64_t n_species = c.n_species(), channels = c.channels();
  const auto n_heads = static_cast<std::int64_t>(c.heads.size());
  // One value for all heads or one per head: either form is in use, whatever the number of heads. Anything else is
  // refused as mis-shaped when the tensors are loaded.
  const auto shape_in_file = [&](const std::string& name, const Shape& shared) {
    Shape with_heads = shared;
    with_heads.insert(with_heads.begin(), n_heads);
    const Shape &usual = n_heads > 1 ? with_heads : shared, &other = n_heads > 1 ? shared : with_heads;
    const Tensor* stored = state != nullptr ? state->find(name) : nullptr;
    return stored != nullptr && stored->shape() == other ? other : usual;
  };
  register_buffer("atomic_numbers",
                  Tensor::from<std::int64_t>({n_species}, {c.atomic_numbers.begin(), c.atomic_numbers.end()}));
  register_buffer("r_max", Tensor::scalar(c.r_max));
  register_buffer("num_interactions", Tensor::scalar<std::int64_t>(c.num_interactions));

  const auto embedding = container();
  embedding->register_parameter("linear.weight", Tensor::zeros({n_species * channels}, DType::float64));
  register_child("node_embedding", embedding);

  sdk::RadialBasisConfig radial;
  radial.n_basis = c.num_bessel;
  radial.r_max = c.r_max;
  radial.p = c.polynomial_cutoff_p;
  radial.apply_cutoff = c.apply_cutoff;
  radial.transform = c.distance_transform;
  const auto basis_of_lengths = std::make_shared<ops::RadialBasisModule>(radial, c.atomic_numbers);
  const auto harmonics =
      std::make_shared<ops::SphericalHarmonicsModule>(sdk::SphericalHarmonicsConfig{.l_max = c.l_max});
  register_child("radial_embedding", basis_of_lengths);
  register_child("spherical_harmonics", harmonics);
  if (c.pair_repulsion) {
    register_child("pair_repulsion_fn", std::make_shared<ops::PairZblModule>(c.polynomial_cutoff_p, c.atomic_numbers));
  }
  const auto atomic_energies = container();
  const std::string e0 = "atomic_energies_fn.atomic_energies";
  atomic_energies->register_buffer("atomic_energies", Tensor::zeros(shape_in_file(e0, {n_species}), DType::float64));
  register_child("atomic_energies_fn", atomic_energies);

  const auto interactions = container(), products = container(), readouts = container();
  for (std::int64_t t = 0; t < c.num_interactions; ++t) {
    const auto layer = static_cast<std::size_t>(t);
    const InteractionKind kind = interaction_kind(c.block(t));
    const Irreps in = c.irreps_in(t), out = c.irreps_out(t), message = c.message();
    const sdk::ConvTensorProductConfig& conv = c.convolutions[layer];
    const std::string name = std::to_string(t);

    sdk::RadialMlpConfig mlp;
    mlp.widths = {c.num_bessel};
    mlp.widths.insert(mlp.widths.end(), c.radial_mlp.begin(), c.radial_mlp.end());
    mlp.widths.push_back(conv.weight_numel());
    for (std::size_t i = 0; i + 1 < mlp.widths.size(); ++i) {
      mlp.scales.push_back(1.0 / std::sqrt(static_cast<double>(mlp.widths[i])));
    }
    mlp.activation_constant = c.activation_constant;
    const auto net = std::make_shared<ops::RadialMlpModule>(mlp);
    const auto product_with_edges = std::make_shared<ops::ConvTensorProductModule>(conv);
    const auto block = std::make_shared<ops::MessageStepModule>(
        ops::MessageStepModule::Parts{harmonics, basis_of_lengths, net, product_with_edges}, has_density(c));
    block->register_child("linear_up", std::make_shared<ops::IrrepsLinearModule>(linear(in, in)));
    block->register_child("conv_tp_weights", net);
    block->register_child("conv_tp", product_with_edges);
    const double scale = kind.density ? 1.0 : 1.0 / c.avg_num_neighbors[layer];
    block->register_child("linear", std::make_shared<ops::IrrepsLinearModule>(linear(conv.out, message, scale)));
    if (kind.density) {
      const auto density = container();
      density->register_parameter("layer0.weight", Tensor::zeros({c.num_bessel, 1}, DType::float64));
      block->register_child("density_fn", density);
    }
    const sdk::SpeciesLinearConfig skip = kind.residual ? sdk::SpeciesLinearConfig{in, out, n_species}
                                                        : sdk::SpeciesLinearConfig{message, message, n_species};
    block->register_child("skip_tp", std::make_shared<ops::SpeciesLinearModule>(skip));
    interactions->register_child(name, block);

    sdk::SymmetricContractionConfig contraction;
    contraction.channels = channels;
    contraction.dim = std::int64_t{c.l_max + 1} * (c.l_max + 1);
    contraction.correlation = c.correlation[layer];
    contraction.n_species = n_species;
    std::vector<std::vector<Tensor>> u;
    for (std::size_t target = 0; target < out.size(); ++target) {
      const std::string prefix = fmt::format("products.{}.symmetric_contractions.contractions.{}", t, target);
      contraction.targets.push_back(out[target].ir.l);
      u.push_back(basis(state, prefix, c.l_max, out[target].ir.l, contraction.correlation));
      contraction.n_paths.emplace_back();
      for (const Tensor& tensor : u.back()) contraction.n_paths.back().push_back(tensor.size(-1));
    }
    const auto product = container();
    product->register_child("symmetric_contractions",
                            std::make_shared<ops::SymmetricContractionModule>(contraction, u));
    product->register_child("linear", std::make_shared<ops::IrrepsLinearModule>(linear(out, out)));
    products->register_child(name, product);

    const auto readout = container();
    if (t == c.num_interactions - 1 && c.num_interactions > 1) {
      const Irreps hidden = scalars(n_heads * c.mlp[0].mul);
      readout->register_child("linear_1", std::make_shared<ops::IrrepsLinearModule>(linear(out, hidden)));
      readout->register_child("linear_2", std::make_shared<ops::IrrepsLinearModule>(linear(hidden, scalars(n_heads))));
    } else {
      readout->register_child("linear", std::make_shared<ops::IrrepsLinearModule>(linear(out, scalars(n_heads))));
    }
    readouts->register_child(name, readout);
  }
  register_child("interactions", interactions);
  register_child("products", products);
  register_child("readouts", readouts);

  const auto scale_shift = container();
  const Tensor one = Tensor::zeros(shape_in_file("scale_shift.scale", {}), DType::float64);
  for (double& value : one.span<double>()) value = 1.0;
  scale_shift->register_buffer("scale", one);
  scale_shift->register_buffer("shift", Tensor::zeros(shape_in_file("scale_shift.shift", {}), DType::float64));
  register_child("scale_shift", scale_shift);
}

bool MaceModel::is_ignored(const std::string& name, const Tensor& tensor) {
  const auto ends_with = [&](std::string_view suffix) { return std::string_view(name).ends_with(suffix); };
  return ends_with("_zeroed") || ends_with(".output_mask") || (ends_with(".bias") && tensor.numel() == 0) ||
         (ends_with("conv_tp.weight") && tensor.numel() == 0) || name.find("_w3j_") != std::string::npos;
}

void MaceModel::initialize(std::uint64_t seed) {
  for (const auto& [name, tensor] : named_parameters()) {
    std::uint64_t hash = 14695981039346656037ull;
    for (const char c : name) {
      hash ^= static_cast<unsigned char>(c);
      hash *= 1099511628211ull;
    }
    SplitMix random(SplitMix(hash ^ SplitMix(seed).next()).next());
    // Weights of a contraction sum over K paths; the others are normalised where they are applied.
    const bool contraction = name.find(".symmetric_contractions.") != std::string::npos;
    const double scale = contraction ? 1.0 / static_cast<double>(tensor.size(1)) : 1.0;
    for (double& value : tensor.span<double>()) value = scale * random.unit_variance();
  }
  for (const auto& [name, module] : named_modules()) module->touch();
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

std::unique_ptr<MaceModel::Runner> MaceModel::build_runner(bool exchange) const {
  auto& self = const_cast<MaceModel&>(*this);
  const MaceConfig& c = config_;
  const auto n_heads = static_cast<std::int64_t>(c.heads.size());
  const std::int64_t channels = c.channels();
  auto made = std::make_unique<Runner>();
  Program& p = made->program;

  const auto op_step = [&](const std::string& path, std::vector<SlotId> inputs, std::vector<SlotId> outputs,
                           std::vector<ops::OpModule*> replaced_by = {}) {
    Step step;
    step.name = path;
    step.replaced_by = std::move(replaced_by);
    step.fused = dynamic_cast<ops::MessageStepModule*>(&child(self, path)) != nullptr;
    step.op = dynamic_cast<ops::OpModule*>(&child(self, path));
    for (const ops::SchemaTensor& item : step.op->schema()) {
      step.parameters.push_back(item.trainable && !item.name.empty() ? path + "." + item.name : "");
    }
    step.inputs = std::move(inputs);
    step.outputs = std::move(outputs);
    p.add(std::move(step));
  };
  /// An op that a model has no module for: reference code on the CPU, a plugin's kernel on its device.
  const auto small_op = [&](const std::string& name, const auto& make) {
    auto known = std::find_if(self.small_ops_.begin(), self.small_ops_.end(),
                              [&](const NamedFastModule& op) { return op.name == name; });
    if (known == self.small_ops_.end()) {
      self.small_op_modules_.push_back(make());
      known = self.small_ops_.insert(known, {name, self.small_op_modules_.back().get()});
    }
    return dynamic_cast<ops::OpModule*>(known->module);
  };
  const auto small_op_step = [&](const std::string& name, const auto& make, std::vector<SlotId> inputs, SlotId output) {
    Step step;
    step.name = name;
    step.op = small_op(name, make);
    step.inputs = std::move(inputs);
    step.outputs = {output};
    p.add(std::move(step));
  };
  const auto glue_step = [&](const std::string& name, std::shared_ptr<Glue> glue, std::vector<SlotId> inputs,
                             std::vector<SlotId> outputs, std::vector<ops::OpModule*> replaced_by = {}) {
    Step step;
    step.name = name;
    step.replaced_by = std::move(replaced_by);
    for (const ops::SchemaTensor& item : glue->schema()) step.parameters.push_back(name + "." + item.name);
    step.glue = std::move(glue);
    step.inputs = std::move(inputs);
    step.outputs = std::move(outputs);
    p.add(std::move(step));
  };

  // Geometry, pair energies and the sum of the contributions stay in float64. None of it costs anything, and the short
  // bonds that a pair repulsion acts on turn a rounded length into a wrong force. What ops see is rounded once.
  made->vectors = p.add_input("vectors", Rows::edges, {3}, true, true, true);
  made->species_nodes = p.add_input("species", Rows::nodes, {}, false, false);
  made->species_receivers = p.add_input("species of receivers", Rows::receivers, {}, false, false);
  made->head = p.add_input("head", Rows::receivers, {}, false, false);

  const SlotId exact_lengths = p.add_slot("exact lengths", Rows::edges, {}, true);
  glue_step("edge_lengths", edge_lengths(), {made->vectors}, {exact_lengths});
  const SlotId lengths = p.add_slot("lengths", Rows::edges, {});
  glue_step("round_lengths", sum(), {exact_lengths}, {lengths});
  const SlotId vectors = p.add_slot("rounded vectors", Rows::edges, {3});
  glue_step("round_vectors", sum(), {made->vectors}, {vectors});
  const std::int64_t sh_dim = std::int64_t{c.l_max + 1} * (c.l_max + 1);
  // Where all steps of the layers are done by fused kernels, nobody needs what they share.
  std::vector<ops::OpModule*> all_fused;
  for (std::int64_t t = 0; t < c.num_interactions; ++t) {
    all_fused.push_back(dynamic_cast<ops::OpModule*>(&child(self, fmt::format("interactions.{}", t))));
  }
  const SlotId sh = p.add_slot("sh", Rows::edges, {sh_dim});
  op_step("spherical_harmonics", {vectors}, {sh}, all_fused);
  const SlotId basis = p.add_slot("radial_basis", Rows::edges, {c.num_bessel});
  const SlotId envelope = c.apply_cutoff ? kAbsent : p.add_slot("envelope", Rows::edges, {});
  op_step("radial_embedding", {lengths, made->species_nodes}, {basis, envelope},
          has_density(c) ? std::vector<ops::OpModule*>() : all_fused);

  SlotId h = p.add_slot("node_embedding", Rows::nodes, {channels});
  glue_step("node_embedding", node_embedding(child(self, "node_embedding"), c.n_species(), channels),
            {made->species_nodes}, {h});

  std::vector<SlotId> contributions;
  std::vector<Step> readouts;  // the last steps of the program
  if (c.pair_repulsion) {
    const SlotId pair = p.add_slot("pair_repulsion", Rows::receivers, {}, true);
    glue_step("pair_repulsion_fn", dynamic_cast<ops::PairZblModule&>(child(self, "pair_repulsion_fn")).glue(),
              {exact_lengths, made->species_nodes}, {pair});
    contributions.push_back(pair);
  }

  for (std::int64_t t = 0; t < c.num_interactions; ++t) {
    const auto layer = static_cast<std::size_t>(t);
    const InteractionKind kind = interaction_kind(c.block(t));
    const Irreps in = c.irreps_in(t), out = c.irreps_out(t), message = c.message();
    const sdk::ConvTensorProductConfig& conv = c.convolutions[layer];
    const std::string block = fmt::format("interactions.{}", t), product = fmt::format("products.{}", t),
                      readout = fmt::format("readouts.{}", t);
    const auto slot = [&](const char* name, Rows rows, Shape trailing) {
      return p.add_slot(fmt::format("{}.{}", t, name), rows, std::move(trailing));
    };
    // Features of layer 0 follow from the species, so ghosts have them; later ones exist on receivers only.
    const Rows feature_rows = t == 0 ? Rows::nodes : Rows::receivers;

    SlotId skip = kAbsent;
    if (kind.residual) {
      SlotId own = h;
      if (t == 0) {
        own = slot("receivers", Rows::receivers, {in.dim()});
        glue_step(block + ".keep_receivers", keep_receivers(), {h}, {own});
      }
      skip = slot("skip", Rows::receivers, {out.dim()});
      op_step(block + ".skip_tp", {own, made->species_receivers}, {skip});
    }
    SlotId up = slot("up", feature_rows == Rows::nodes || !exchange ? Rows::nodes : Rows::receivers, {in.dim()});
    op_step(block + ".linear_up", {h}, {up});
    if (exchange && t > 0) {
      const SlotId with_ghosts = slot("exchange", Rows::nodes, {in.dim()});
      Step step;
      step.name = block + ".exchange";
      step.inputs = {up};
      step.outputs = {with_ghosts};
      step.exchange = true;
      step.layer = t;
      p.add(std::move(step));
      up = with_ghosts;
    }
    const std::vector<ops::OpModule*> fused{all_fused[layer]};
    const SlotId messages = slot("messages", Rows::receivers, {conv.out.dim()});
    op_step(block, {up, vectors, lengths, made->species_nodes}, {messages});
    SlotId weights = slot("weights", Rows::edges, {conv.weight_numel()});
    op_step(block + ".conv_tp_weights", {basis}, {weights}, fused);
    if (!c.apply_cutoff) {
      const SlotId cut = slot("weights with envelope", Rows::edges, {conv.weight_numel()});
      glue_step(block + ".apply_cutoff", multiply_rows(conv.weight_numel()), {weights, envelope}, {cut}, fused);
      weights = cut;
    }
    op_step(block + ".conv_tp", {up, sh, weights}, {messages}, fused);
    SlotId a = slot("linear", Rows::receivers, {message.dim()});
    op_step(block + ".linear", {messages}, {a});
    if (kind.density) {
      const SlotId density = slot("density", Rows::receivers, {});
      glue_step(block + ".density_fn", edge_density(child(self, block + ".density_fn"), c.num_bessel),
                {basis, envelope}, {density});
      const SlotId divided = slot("divided", Rows::receivers, {message.dim()});
      glue_step(block + ".divide_by_density", divide_by_density(message.dim()), {a, density}, {divided});
      a = divided;
    }
    if (!kind.residual) {
      const SlotId mixed = slot("skip", Rows::receivers, {message.dim()});
      op_step(block + ".skip_tp", {a, made->species_receivers}, {mixed});
      a = mixed;
    }
    const SlotId x = slot("X", Rows::receivers, {channels, sh_dim});
    small_op_step(
        product + ".regroup",
        [&] {
          return std::make_unique<ops::RegroupChannelsModule>(sdk::RegroupChannelsConfig{channels, c.l_max});
        },
        {a}, x);
    const SlotId b = slot("contraction", Rows::receivers, {out.dim()});
    op_step(product + ".symmetric_contractions", {x, made->species_receivers}, {b});
    SlotId features = slot(skip == kAbsent ? "h" : "product", Rows::receivers, {out.dim()});
    op_step(product + ".linear", {b}, {features});
    if (skip != kAbsent) {
      const SlotId total = slot("h", Rows::receivers, {out.dim()});
      small_op_step(
          product + ".add_skip",
          [&] {
            return std::make_unique<ops::SumModule>(sdk::SumConfig{2, out.dim()});
          },
          {features, skip}, total);
      features = total;
    }
    h = features;

    SlotId per_head = slot("readout of heads", Rows::receivers, {n_heads});
    if (t == c.num_interactions - 1 && c.num_interactions > 1) {
      const std::int64_t hidden = n_heads * c.mlp[0].mul;
      const SlotId first = slot("readout hidden", Rows::receivers, {hidden});
      op_step(readout + ".linear_1", {h}, {first});
      SlotId active = slot("readout active", Rows::receivers, {hidden});
      const sdk::ScaledSiluConfig activation{hidden, c.activation_constant};
      small_op_step(
          readout + ".activation", [&] { return std::make_unique<ops::ScaledSiluModule>(activation); }, {first},
          active);
      if (n_heads > 1) {
        const SlotId masked = slot("readout masked", Rows::receivers, {hidden});
        glue_step(readout + ".mask_heads", mask_heads(n_heads, c.mlp[0].mul), {active, made->head}, {masked});
        active = masked;
      }
      op_step(readout + ".linear_2", {active}, {per_head});
    } else {
      op_step(readout + ".linear", {h}, {per_head});
    }
    const SlotId energy = slot("readout", Rows::receivers, {});
    Step selection;
    selection.name = readout + ".select_head";
    selection.glue = select_head(n_heads);
    selection.inputs = {per_head, made->head};
    selection.outputs = {energy};
    selection.late = true;
    readouts.push_back(std::move(selection));
    contributions.push_back(energy);
  }
  made->result = p.add_slot("interaction_energy", Rows::receivers, {}, true);
  Step total;
  total.name = "interaction_energy";
  total.glue = sum();
  total.inputs = contributions;
  total.outputs = {made->result};
  total.late = true;
  readouts.push_back(std::move(total));
  for (Step& step : readouts) p.add(std::move(step));
  for (const Slot& slot : p.slots()) {
    if (!slot.real || slot.wide || slot.n_readers() < 2) continue;
    std::int64_t width = 1;
    for (const std::int64_t size : slot.trailing) width *= size;
    const std::string name = fmt::format("gradients.{}", width);
    ops::OpModule* sum = small_op(name, [&] { return std::make_unique<ops::SumModule>(sdk::SumConfig{2, width}); });
    p.add_gradient_sum(width, {name, sum});
  }
  made->executor = std::make_unique<Executor>(p);
  return made;
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
                           (carries_tangents(options) ? 2u : 1u);
  result.parameter_bytes = static_cast<std::uint64_t>(parameter_count()) * size_of(options.dtype);
  return result;
}

namespace {

/// The decisions of an evaluation that was repeated without kernels because one of them gave way.
Selection repeated_by_reference(Selection selection, const KernelGaveWay& failure) {
  for (Decision& decision : selection.decisions.edit()) {
    if (!decision.fast() && decision.reason.code != ReasonCode::covered_by_parent &&
        decision.reason.code != ReasonCode::in_parts) {
      continue;
    }
    Reason reason = failure.reason;
    if (decision.module != failure.module) {
      reason = {ReasonCode::fallback, fmt::format("the evaluation was repeated by the reference because of {}: {}",
                                                  failure.module, failure.reason.text)};
    }
    for (Candidate& candidate : decision.candidates) {
      if (candidate.plugin != decision.choice) continue;
      if (decision.module == failure.module) {
        candidate.verdict = Candidate::Verdict::refused;
        candidate.reasons.push_back(reason);
      } else {
        candidate.verdict = Candidate::Verdict::not_chosen;
        candidate.reasons = {reason};
      }
    }
    decision.choice = "reference";
    decision.reason = std::move(reason);
  }
  return selection;
}

/// The first edge of a graph and the one after its last.
std::pair<std::int64_t, std::int64_t> edges_of(const Graph& graph, std::int64_t g) {
  const auto nodes = graph.graph_ptr().span<std::int64_t>(), edges = graph.receiver_ptr().span<std::int64_t>();
  const auto at = [&](std::int64_t i) { return edges[static_cast<std::size_t>(nodes[static_cast<std::size_t>(i)])]; };
  return {at(g), at(g + 1)};
}

/// How fast edge vectors [n_edges, 3] move where nodes move along `nodes` [n_nodes, 3], and every graph is strained by
/// the symmetric part of its `strains` [n_graphs, 3, 3] / volume. Either may be undefined.
Tensor moved_vectors(const Graph& graph, const Tensor& nodes, const Tensor& strains, const Tensor& vectors) {
  const Tensor result = Tensor::zeros({graph.n_edges(), 3}, DType::float64);
  double* const out = result.data<double>();
  const auto* sender = graph.sender().data<std::int32_t>();
  const auto* receiver = graph.receiver().data<std::int32_t>();
  if (nodes.defined()) {
    const Tensor packed = nodes.contiguous();
    const double* d = packed.data<double>();
    for (std::int64_t e = 0; e < graph.n_edges(); ++e) {
      for (std::int64_t k = 0; k < 3; ++k) {
        out[3 * e + k] = d[3 * std::int64_t{receiver[e]} + k] - d[3 * std::int64_t{sender[e]} + k];
      }
    }
  }
  if (!strains.defined()) return result;
  const Tensor packed = strains.contiguous();
  const double* v = vectors.data<double>();
  for (std::int64_t g = 0; g < graph.n_graphs(); ++g) {
    if (!graph.volume(g)) continue;
    const double* s = packed.data<double>() + 9 * g;
    const auto [begin, end] = edges_of(graph, g);
    for (std::int64_t e = begin; e < end; ++e) {
      for (std::int64_t i = 0; i < 3; ++i) {
        double sum = 0;
        for (std::int64_t j = 0; j < 3; ++j) sum += 0.5 * (s[3 * i + j] + s[3 * j + i]) * v[3 * e + j];
        out[3 * e + i] += sum / *graph.volume(g);
      }
    }
  }
  return result;
}

Tensor negated(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  Tensor result = tensor.clone();
  for (double& value : result.span<double>()) value = -value;
  return result;
}

/// Virials and stresses of a result from its edge forces.
void set_virials(const Graph& graph, const Tensor& vectors, bool stress, EvaluationResult& result) {
  const std::int64_t n_graphs = graph.n_graphs();
  result.graph_virials = Tensor::zeros({n_graphs, 3, 3}, DType::float64);
  if (stress) result.graph_stresses = Tensor::zeros({n_graphs, 3, 3}, DType::float64);
  for (std::int64_t g = 0; g < n_graphs; ++g) {
    const auto [begin, end] = edges_of(graph, g);
    const std::array<double, 9> virial = ops::accumulate_virial(end - begin, vectors.data<double>() + 3 * begin,
                                                                result.edge_forces.data<double>() + 3 * begin);
    for (std::size_t i = 0; i < 9; ++i) {
      result.virial[i / 3][i % 3] += virial[i];
      result.graph_virials.data<double>()[9 * g + static_cast<std::int64_t>(i)] = virial[i];
      if (!stress || !graph.volume(g)) continue;
      const double value = -virial[i] / *graph.volume(g);
      result.graph_stresses.data<double>()[9 * g + static_cast<std::int64_t>(i)] = value;
      if (n_graphs > 1) continue;
      if (!result.stress) result.stress.emplace();
      (*result.stress)[i / 3][i % 3] = value;
    }
  }
}

}  // namespace

EvaluationResult MaceModel::run(const Graph& graph, const EvaluateOptions& options) {
  const bool exchange = static_cast<bool>(options.exchange);
  const std::int64_t n_nodes = graph.n_nodes(), n_local = graph.n_local();
  Context& context = options.context != nullptr ? *options.context : Context::process();

  if (exchange && graph.n_edges() > 0 && graph.receiver().data<std::int32_t>()[graph.n_edges() - 1] >= n_local) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("an edge has receiver {}, a ghost (of {} local atoms): under an exchange ghosts only send",
                            graph.receiver().data<std::int32_t>()[graph.n_edges() - 1], n_local));
  }
  EvaluationResult result;
  result.n_edges = graph.n_edges();
  result.n_atoms = n_local;
  // What is wrong with the input is told before plugins are loaded for it.
  (void)species_of(graph);
  (void)heads_of(graph, options);

  const auto first_use = std::chrono::steady_clock::now();
  plugin::Lease lease;  // no plugin of the selection is shut down meanwhile
  do {
    lease.clear();
    result.selection = explain({graph.n_edges(), n_nodes}, options);
  } while (!hold_plugins(fast_list(), lease) || !hold_plugins(small_ops(), lease));
  require_memory({graph.n_edges(), n_nodes}, options);
  for (const NamedFastModule& named : fast_list()) (void)named.module->op_parameters(options.dtype);
  result.seconds_first_use = seconds_since(first_use);

  const auto start = std::chrono::steady_clock::now();
  try {
    compute(graph, options, context, result);
  } catch (const KernelGaveWay& failure) {
    // Results that are partly those of a kernel which then failed are nobody's: all of it again, by the reference.
    deactivate(*this);
    for (const NamedFastModule& op : small_ops()) op.module->state().active = nullptr;
    EvaluationResult again;
    again.n_edges = result.n_edges;
    again.n_atoms = result.n_atoms;
    again.seconds_first_use = result.seconds_first_use;
    again.selection = repeated_by_reference(result.selection, failure);
    result = std::move(again);
    compute(graph, options, context, result);
  } catch (...) {
    // What is under way on a device ends before anybody may shut its plugin down.
    if (const auto& runner = runners_[exchange ? 1 : 0]) runner->executor->end();
    throw;
  }
  result.seconds = seconds_since(start);
  return result;
}

void MaceModel::compute(const Graph& graph, const EvaluateOptions& options, Context& context,
                        EvaluationResult& result) {
  const MaceConfig& c = config_;
  const bool exchange = static_cast<bool>(options.exchange);
  const GradientWeights& weights = options.weights;
  const bool tangent = carries_tangents(options), backward = goes_back(options);
  const std::int64_t n_nodes = graph.n_nodes(), n_local = graph.n_local();
  const std::int64_t n_receivers = exchange ? n_local : n_nodes;
  const Tensor species = species_of(graph);
  const Tensor species_receivers = species.narrow(0, 0, n_receivers);
  const std::vector<std::int32_t> heads = heads_of(graph, options);
  const auto graph_ptr = graph.graph_ptr().span<std::int64_t>();
  const OpGraph op_graph = OpGraph::from(graph, species, c.n_species(), n_receivers);
  Runner& r = runner(exchange);
  Executor& executor = *r.executor;
  RunSettings settings;
  settings.dtype = options.dtype;
  settings.tangent = tangent;
  settings.parameter_gradients = options.parameter_gradients || weights.defined();
  settings.threads = options.threads > 0 ? options.threads : context.threads();
  settings.graph = &op_graph;
  settings.exchange = exchange ? &options.exchange : nullptr;
  settings.require_fast = options.require_fast;
  // Under an exchange others wait for this domain, which therefore cannot begin anew.
  settings.repeat = !exchange;
  settings.selection = &result.selection;
  executor.begin(settings);

  const Tensor vectors = graph.edge_vectors();
  const auto sender = graph.sender().span<std::int32_t>(), receiver = graph.receiver().span<std::int32_t>();
  Tensor vectors_t;
  if (options.direction.defined()) {
    if (options.direction.shape() != Shape{n_nodes, 3} || options.direction.dtype() != DType::float64) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("direction is {} {}, expected float64 {}", to_string(options.direction.dtype()),
                              to_string(options.direction.shape()), to_string(Shape{n_nodes, 3})));
    }
    vectors_t = moved_vectors(graph, options.direction, {}, vectors);
  } else if (weights.forces.defined() || weights.stresses.defined()) {
    vectors_t = moved_vectors(graph, negated(weights.forces), weights.stresses, vectors);
  }
  executor.set_input(r.vectors, vectors, vectors_t);
  executor.set_input(r.species_nodes, species);
  executor.set_input(r.species_receivers, species_receivers);
  const Tensor head_of = Tensor::empty({n_receivers}, DType::int32);
  // Of every graph; empty ones and ghosts included.
  std::vector<const double*> e0;
  std::vector<double> scale, shift;
  for (std::size_t g = 0; g < heads.size(); ++g) {
    const auto pick = [&](const char* child_name, const char* name, std::int64_t width) {
      const Tensor values = child(*this, child_name).buffer(name);
      return values.data<double>() + (values.numel() > width ? heads[g] * width : 0);
    };
    e0.push_back(pick("atomic_energies_fn", "atomic_energies", c.n_species()));
    scale.push_back(*pick("scale_shift", "scale", 1));
    shift.push_back(*pick("scale_shift", "shift", 1));
    const std::int64_t end = std::min(graph_ptr[g + 1], n_receivers);
    for (std::int64_t n = graph_ptr[g]; n < end; ++n) head_of.data<std::int32_t>()[n] = heads[g];
  }
  executor.set_input(r.head, head_of);

  executor.forward();
  if (backward) {
    const Tensor seed = Tensor::zeros({n_receivers}, DType::float64);
    Tensor seed_t;
    Tensor energy_weights;
    if (weights.energies.defined()) {
      energy_weights = weights.energies.contiguous();
      if (tangent) seed_t = Tensor::zeros({n_receivers}, DType::float64);
    }
    for (std::size_t g = 0; g < heads.size(); ++g) {
      const double weight = energy_weights.defined() ? energy_weights.data<double>()[g] : 0;
      for (std::int64_t n = graph_ptr[g]; n < std::min(graph_ptr[g + 1], n_local); ++n) {
        // Without tangents nothing but the weighted sum is asked for.
        seed.data<double>()[n] = scale[g] * (energy_weights.defined() && !tangent ? weight : 1.0);
        if (seed_t.defined()) seed_t.data<double>()[n] = scale[g] * weight;
      }
    }
    executor.seed(r.result, seed, seed_t);
    executor.backward();
  }
  executor.finish_forward();

  // Totals in float64 whatever the dtype: reference energies are large.
  const Tensor interaction = executor.value(r.result);
  result.node_energies = Tensor::empty({n_local}, DType::float64);
  result.graph_energies = Tensor::zeros({graph.n_graphs()}, DType::float64);
  for (std::size_t g = 0; g < heads.size(); ++g) {
    double& total = result.graph_energies.data<double>()[g];
    for (std::int64_t n = graph_ptr[g]; n < std::min(graph_ptr[g + 1], n_local); ++n) {
      const double energy =
          e0[g][species.data<std::int32_t>()[n]] + (scale[g] * interaction.data<double>()[n] + shift[g]);
      result.node_energies.data<double>()[n] = energy;
      total += energy;
    }
    result.energy += total;
  }

  if (backward) {
    const auto forces_from = [&](const Tensor& gradient) {
      const Tensor forces = Tensor::empty({n_nodes, 3}, DType::float64);
      ops::accumulate_forces(n_nodes, graph.n_edges(), sender.data(), receiver.data(), gradient.data<double>(),
                             forces.data<double>());
      return forces;
    };
    const bool plain_gradient = tangent || !weights.defined();
    if (plain_gradient) {
      // A model that no edge reaches has no gradient at all.
      const Tensor gradient = executor.gradient(r.vectors);
      result.edge_forces = gradient.defined() ? gradient.clone() : Tensor::zeros({graph.n_edges(), 3}, DType::float64);
      if (options.forces) result.forces = forces_from(result.edge_forces);
      set_virials(graph, vectors, options.stress, result);
    }
    if (options.parameter_gradients) result.parameter_gradients = executor.parameter_gradients(false);
    if (options.direction.defined()) {
      const Tensor along = executor.gradient_tangent(r.vectors);
      result.forces_tangent =
          forces_from(along.defined() ? along : Tensor::zeros({graph.n_edges(), 3}, DType::float64));
      if (options.parameter_gradients) result.parameter_gradients_tangent = executor.parameter_gradients(true);
    }
    if (weights.defined()) {
      const StateDict reached = executor.parameter_gradients(tangent);
      for (const auto& [name, tensor] : named_parameters()) {
        const Tensor* gradient = reached.find(name);
        result.weighted_gradients.add(
            name, gradient != nullptr ? gradient->to(DType::float64) : Tensor::zeros(tensor.shape(), DType::float64));
      }
    }
  }
  result.copied_bytes = executor.copied_bytes();
  result.synchronizations = executor.synchronizations();
}

}  // namespace fastpath::models
