#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/mace_runner.hpp"
#include "ops/conv_tensor_product/module.hpp"
#include "ops/irreps_linear/module.hpp"
#include "ops/message_step/module.hpp"
#include "ops/pair_zbl/module.hpp"
#include "ops/radial_basis/module.hpp"
#include "ops/radial_mlp/module.hpp"
#include "ops/species_linear/module.hpp"
#include "ops/spherical_harmonics/module.hpp"
#include "ops/symmetric_contraction/basis.hpp"
#include "ops/symmetric_contraction/module.hpp"

// The module tree of a MACE model with the names of its checkpoints, and its initial parameters.
namespace fastpath::models {
namespace {

using sdk::Irreps;

Irreps scalars(std::int64_t n) { return Irreps::natural(n, 0); }

std::shared_ptr<Module> container() { return std::make_shared<Module>(); }

sdk::IrrepsLinearConfig linear(Irreps in, Irreps out, double scale = 1.0) {
  return {std::move(in), std::move(out), false, scale};
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

}  // namespace

/// True if a density is made of the radial basis, which is then evaluated in any case.
bool has_density(const MaceConfig& config) {
  for (std::int64_t t = 0; t < config.num_interactions; ++t) {
    if (interaction_kind(config.block(t)).density) return true;
  }
  return false;
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

}  // namespace fastpath::models
