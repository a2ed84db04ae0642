#include "shapes.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <utility>

#include "fastpath/sdk/coupling.hpp"

namespace bench {
namespace {

using namespace fastpath;

constexpr double kRadius = 5.0;  // of every graph here

template <class Config>
OpSpec spec(const Config& config) {
  return {std::string(Config::kOp), Config::kVersion, config.attributes().values()};
}

sdk::RadialMlpConfig net_of(const LayerShape& shape, std::int64_t outputs) {
  sdk::RadialMlpConfig net;
  net.widths.push_back(shape.n_basis);
  net.widths.insert(net.widths.end(), shape.net.begin(), shape.net.end());
  net.widths.push_back(outputs);
  const bool nequip = shape.n_species == 0;
  for (std::size_t i = 0; i + 1 < net.widths.size(); ++i) {
    net.scales.push_back((nequip && i > 0 ? std::sqrt(2.0) : 1.0) / std::sqrt(static_cast<double>(net.widths[i])));
  }
  if (nequip) net.activation_constant = 1.0;
  return net;
}

sdk::RadialBasisConfig basis_of(const LayerShape& shape) {
  sdk::RadialBasisConfig basis;
  basis.n_basis = shape.n_basis;
  basis.r_max = kRadius;
  basis.prefactor = shape.n_species == 0 ? 2 / kRadius : std::sqrt(2 / kRadius);
  basis.p = shape.n_species == 0 ? 6 : 5;
  for (std::int64_t n = 1; n <= basis.n_basis; ++n) {
    basis.frequencies.push_back(static_cast<double>(n) * std::acos(-1.0) / kRadius);
  }
  return basis;
}

double dim(const sdk::Irreps& irreps) { return static_cast<double>(irreps.dim()); }

/// Numbers of 5.1, per edge.
struct Product {
  double paths = 0;
  double entries = 0;   // non-zero couplings
  double pairs = 0;     // (i, k) that occur, for every channel
  double rows_in = 0;   // components of x over all paths, for every channel
  double rows_out = 0;  // the same of the output
};
Product product_of(const sdk::ConvTensorProductConfig& conv) {
  Product sum;
  for (const auto& path : conv.instructions) {
    const auto &in = conv.in[path.in], &out = conv.out[path.out];
    const auto channels = static_cast<double>(in.mul);
    const auto& coupling = sdk::coupling(in.ir.l, conv.edge[path.edge].ir.l, out.ir.l);
    std::set<std::pair<int, int>> pairs;
    for (const auto& entry : coupling.nonzero) pairs.insert({entry.i, entry.k});
    sum.paths += 1;
    sum.entries += static_cast<double>(coupling.nonzero.size());
    sum.pairs += channels * static_cast<double>(pairs.size());
    sum.rows_in += channels * in.ir.dim();
    sum.rows_out += channels * out.ir.dim();
  }
  return sum;
}
/// "shared-y": t_ik = sum_j C y_j once, a multiply-add a pair and channel, the weight at the output.
double product_flops(const Product& p) { return 2 * p.entries + 2 * p.pairs + 2 * p.rows_out; }
/// h = t G; gx += w h and gw = x h, five operations a component with w x; then (w x) G and its sum with C for gy.
double product_backward_flops(const Product& p) { return 4 * p.entries + 4 * p.pairs + 5 * p.rows_in; }

double net_flops(const sdk::RadialMlpConfig& net) {
  double sum = 0;
  for (std::size_t i = 0; i + 1 < net.widths.size(); ++i) {
    sum += 2.0 * static_cast<double>(net.widths[i]) * static_cast<double>(net.widths[i + 1]);
  }
  return sum;
}
double net_weights(const sdk::RadialMlpConfig& net) { return net_flops(net) / 2; }

template <class Config>
double linear_flops(const Config& config) {
  double sum = 0;
  for (const auto& path : config.paths()) {
    sum += 2.0 * static_cast<double>(config.in[path.in].mul * config.out[path.out].mul * config.in[path.in].ir.dim());
  }
  return sum;
}

/// 5.3: coefficients and cubic monomials of the sparse form, per atom and channel, for l_max 3 and correlation 3.
struct Polynomial {
  double coefficients, cubic;
};
std::optional<Polynomial> polynomial_of(const sdk::SymmetricContractionConfig& config) {
  if (config.dim != 16 || config.correlation != 3) return std::nullopt;
  if (config.targets == std::vector<int>{0}) return Polynomial{94, 77};
  if (config.targets == std::vector<int>{0, 1}) return Polynomial{410, 355};
  if (config.targets == std::vector<int>{0, 1, 2}) return Polynomial{887, 630};
  return std::nullopt;
}

Work work_of(const OpSpec& op, const Sizes& sizes, int element_bytes, bool forward) {
  const sdk::Attributes config(op.config);
  const double element = element_bytes, edges = static_cast<double>(sizes.edges),
               nodes = static_cast<double>(sizes.nodes), species = static_cast<double>(sizes.species);
  if (op.id == "spherical_harmonics") {
    const auto width = static_cast<double>(sdk::SphericalHarmonicsConfig::from(config).dim());
    return {std::nullopt, edges * element * (3 + width + (forward ? 0 : 3))};
  }
  if (op.id == "radial_basis") {
    const auto width = static_cast<double>(sdk::RadialBasisConfig::from(config).n_basis);
    return {std::nullopt, edges * element * (1 + width + (forward ? 0 : 1))};
  }
  if (op.id == "radial_mlp") {
    // Backward makes the hidden layers again, which are a small part, and goes the other way once.
    const auto net = sdk::RadialMlpConfig::from(config);
    const auto in = static_cast<double>(net.widths.front()), out = static_cast<double>(net.widths.back());
    const double again = forward ? 0 : net_flops(net) - 2 * static_cast<double>(*(net.widths.end() - 2)) * out;
    return {edges * (net_flops(net) + again), element * (edges * (in + out + (forward ? 0 : in)) + net_weights(net))};
  }
  if (op.id == "irreps_linear") {
    const auto linear = sdk::IrrepsLinearConfig::from(config);
    return {nodes * linear_flops(linear),
            element * (nodes * (dim(linear.in) + dim(linear.out)) + static_cast<double>(linear.weight_numel()))};
  }
  if (op.id == "species_linear") {
    const auto linear = sdk::SpeciesLinearConfig::from(config);
    const double weights = static_cast<double>(linear.weight_numel()) / static_cast<double>(linear.n_species);
    return {nodes * linear_flops(linear),
            element * (nodes * (dim(linear.in) + dim(linear.out)) + species * weights) + 4 * nodes};
  }
  if (op.id == "symmetric_contraction") {
    const auto contraction = sdk::SymmetricContractionConfig::from(config);
    const auto polynomial = polynomial_of(contraction);
    const auto channels = static_cast<double>(contraction.channels);
    const double in = channels * static_cast<double>(contraction.dim), out = static_cast<double>(contraction.out_dim());
    Work work;
    work.bytes = element * nodes * (in + out + (forward ? 0 : in)) + 4 * nodes;
    if (!polynomial) return work;
    const double flops = nodes * channels * (2 * polynomial->coefficients + polynomial->cubic);
    work.flops = forward ? flops : 3 * flops;
    work.bytes += element * std::min(species, nodes) * channels * polynomial->coefficients;
    return work;
  }
  if (op.id == "conv_tensor_product") {
    const auto conv = sdk::ConvTensorProductConfig::from(config);
    const Product product = product_of(conv);
    const double row = dim(conv.in) + static_cast<double>(conv.weight_numel()) + dim(conv.edge);
    return {edges * (forward ? product_flops(product) : product_backward_flops(product)),
            edges * (element * row * (forward ? 1 : 2) + 8) + nodes * element * dim(conv.out)};
  }
  if (op.id == "message_step") {
    // Harmonics, weights and messages are nobody's input or output: what must be read is features and geometry.
    // Backward needs the net once more, and once the other way.
    const auto step = sdk::MessageStepConfig::from(config);
    const Product product = product_of(step.conv);
    const double net = net_flops(step.mlp), row = dim(step.conv.in) + 4;
    return {edges * (forward ? product_flops(product) + net : product_backward_flops(product) + 2 * net),
            edges * (element * row * (forward ? 1 : 2) + 8) +
                element * (nodes * dim(step.conv.out) + net_weights(step.mlp))};
  }
  return {};
}

}  // namespace

const std::vector<LayerShape>& layer_shapes() {
  static const std::vector<LayerShape> shapes{
      {"mace_small", "128x0e", 3, 10, {64, 64, 64}, 89},
      {"mace_medium", "128x0e+128x1o", 3, 10, {64, 64, 64}, 89},
      {"mace_large", "128x0e+128x1o+128x2e", 3, 10, {64, 64, 64}, 89},
      {"mace_off_small", "96x0e", 3, 8, {64, 64, 64}, 10},
      {"mace_off_medium", "128x0e+128x1o", 3, 8, {64, 64, 64}, 10},
      {"mace_off_large", "192x0e+192x1o+192x2e", 3, 8, {64, 64, 64}, 10},
      {"nequip_l2", "128x0e+64x1o+32x2e", 2, 8, {128}, 0},
      {"nequip_l3", "128x0e+64x1o+32x2e+32x3o", 3, 8, {128}, 0},
  };
  return shapes;
}

const std::vector<std::string_view>& op_names() {
  static const std::vector<std::string_view> names{"spherical_harmonics", "radial_basis",         "radial_mlp",
                                                   "conv_tensor_product", "message_step",         "irreps_linear",
                                                   "species_linear",      "symmetric_contraction"};
  return names;
}

sdk::ConvTensorProductConfig convolution(const LayerShape& shape) {
  struct Path {
    std::size_t in, edge;
    int l;
    std::int64_t channels;
  };
  sdk::ConvTensorProductConfig conv;
  conv.in = sdk::Irreps::parse(shape.features);
  conv.edge = sdk::Irreps::natural(1, shape.l_max);
  // MACE takes outputs up to the degree of the harmonics, NequIP up to that of its features.
  const int largest = shape.n_species == 0 ? conv.in.l_max() : shape.l_max;
  std::vector<Path> paths;
  for (std::size_t a = 0; a < conv.in.size(); ++a) {
    for (std::size_t b = 0; b < conv.edge.size(); ++b) {
      const int la = conv.in[a].ir.l, lb = conv.edge[b].ir.l;
      for (int l = std::abs(la - lb); l <= std::min(la + lb, largest); l += 2) {  // the parity of l is that of la + lb
        paths.push_back({a, b, l, conv.in[a].mul});
      }
    }
  }
  std::vector<std::size_t> sorted(paths.size());
  for (std::size_t i = 0; i < sorted.size(); ++i) sorted[i] = i;
  std::stable_sort(sorted.begin(), sorted.end(), [&](std::size_t a, std::size_t b) { return paths[a].l < paths[b].l; });
  std::vector<sdk::IrrepsBlock> blocks;
  std::vector<std::size_t> place(paths.size());
  for (const std::size_t i : sorted) {
    place[i] = blocks.size();
    blocks.push_back({paths[i].channels, {paths[i].l, paths[i].l % 2 == 0 ? 1 : -1}});
  }
  conv.out = sdk::Irreps(blocks);
  for (std::size_t n = 0; n < paths.size(); ++n) {
    const std::size_t i = shape.n_species == 0 ? n : sorted[n];
    conv.instructions.push_back({paths[i].in, paths[i].edge, place[i], std::sqrt(2.0 * paths[i].l + 1)});
  }
  return conv;
}

std::optional<OpSpec> op_of(std::string_view op, const LayerShape& shape) {
  const bool mace = shape.n_species > 0;
  const sdk::Irreps features = sdk::Irreps::parse(shape.features);
  const std::int64_t channels = features[0].mul;
  sdk::SphericalHarmonicsConfig harmonics;
  harmonics.l_max = shape.l_max;
  if (op == "spherical_harmonics") return spec(harmonics);
  if (op == "radial_basis") return spec(basis_of(shape));
  const sdk::ConvTensorProductConfig conv = convolution(shape);
  const sdk::RadialMlpConfig net = net_of(shape, conv.weight_numel());
  if (op == "radial_mlp") return spec(net);
  if (op == "conv_tensor_product") return spec(conv);
  if (op == "message_step") {
    sdk::MessageStepConfig step;
    step.harmonics = harmonics;
    step.radial = basis_of(shape);
    step.mlp = net;
    step.conv = conv;
    return spec(step);
  }
  if (op == "irreps_linear") {
    sdk::IrrepsLinearConfig linear;
    linear.in = conv.out.simplified();
    linear.out = sdk::Irreps::natural(channels, shape.l_max);
    if (!mace) {  // into a gate: a scalar more for every channel with l > 0
      std::vector<sdk::IrrepsBlock> blocks = features.blocks();
      for (std::size_t i = 1; i < features.size(); ++i) blocks[0].mul += features[i].mul;
      linear.out = sdk::Irreps(blocks);
    }
    return spec(linear);
  }
  if (!mace) return std::nullopt;
  if (op == "species_linear") {  // after the linear map of a first block that is not residual
    sdk::SpeciesLinearConfig linear;
    linear.in = linear.out = sdk::Irreps::natural(channels, shape.l_max);
    linear.n_species = shape.n_species;
    return spec(linear);
  }
  if (op == "symmetric_contraction") {
    sdk::SymmetricContractionConfig contraction;
    contraction.channels = channels;
    contraction.dim = std::int64_t{shape.l_max + 1} * (shape.l_max + 1);
    contraction.correlation = 3;
    contraction.n_species = shape.n_species;
    // Couplings of the full basis for l_max 3 (2.8).
    const std::vector<std::vector<std::int64_t>> couplings{{1, 4, 23}, {1, 6, 51}, {1, 7, 65}};
    for (int l = 0; l <= features.l_max(); ++l) {
      contraction.targets.push_back(l);
      contraction.n_paths.push_back(couplings.at(static_cast<std::size_t>(l)));
    }
    return spec(contraction);
  }
  return std::nullopt;
}

Work forward_work(const OpSpec& op, const Sizes& sizes, int element_bytes) {
  return work_of(op, sizes, element_bytes, true);
}
Work backward_work(const OpSpec& op, const Sizes& sizes, int element_bytes) {
  return work_of(op, sizes, element_bytes, false);
}

}  // namespace bench
