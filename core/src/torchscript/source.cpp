#include "torchscript/source.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>

#include "fastpath/error.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/sdk/coupling.hpp"
#include "ops/conv_tensor_product/module.hpp"
#include "ops/irreps_linear/module.hpp"
#include "ops/species_linear/module.hpp"
#include "ops/symmetric_contraction/module.hpp"

namespace fastpath::torchscript {
namespace {

using models::MaceConfig;
using sdk::Irreps;

// Scalar types are numbers in a script that is compiled without Python: 4 is int64, 7 is float64.
//
// A block of features is a tensor [nodes, channels, 2l+1], which is what "mul_ir" rows hold; a list of blocks is a row.

/// A number that reads back to the same double, as a float.
std::string literal(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

/// self.a.b of a dotted name, whose parts may be numbers.
std::string attribute(const std::string& path) {
  std::string text = "self";
  for (std::size_t start = 0; start <= path.size();) {
    const std::size_t stop = std::min(path.find('.', start), path.size());
    const std::string part = path.substr(start, stop - start);
    const bool number = part[0] >= '0' && part[0] <= '9';
    text = number ? fmt::format("getattr({}, \"{}\")", text, part) : fmt::format("{}.{}", text, part);
    start = stop + 1;
  }
  return text;
}

using Blocks = std::vector<std::string>;  ///< Expressions, one a block.

class Generator {
 public:
  explicit Generator(models::MaceModel& model) : config_(model.config()), state_(model.state_dict()) {
    for (const auto& [name, module] : model.named_modules()) modules_.emplace(name, module);
  }

  Script script() {
    small_methods();
    harmonics();
    radial();
    if (config_.pair_repulsion) pair_repulsion();
    for (std::int64_t t = 0; t < config_.num_interactions; ++t) {
      layer(t);
      readout(t);
    }
    forward();
    return {std::move(text_), {constants_.begin(), constants_.end()}};
  }

 private:
  template <class M>
  const M& module(const std::string& name) const {
    const auto found = modules_.find(name);
    const auto* result = found == modules_.end() ? nullptr : dynamic_cast<const M*>(found->second);
    if (result == nullptr) {
      throw Error(ErrorCode::unsupported, fmt::format("the module '{}' cannot be written as TorchScript", name));
    }
    return *result;
  }
  const Tensor& tensor(const std::string& name) const { return state_.at(name); }

  template <class... A>
  void line(int depth, fmt::format_string<A...> format, A&&... arguments) {
    text_.append(static_cast<std::size_t>(4 * depth), ' ');
    fmt::format_to(std::back_inserter(text_), format, std::forward<A>(arguments)...);
    text_ += '\n';
  }
  void verbatim(std::string_view text) { text_ += text; }

  /// C(l1,l2,l3) as a matrix [2 l2 + 1, (2 l1 + 1) (2 l3 + 1)], under the name that is returned.
  std::string coupling(int l1, int l2, int l3) {
    std::string name = fmt::format("coupling_{}_{}_{}", l1, l2, l3);
    auto& values = constants_[name];
    if (!values.empty()) return name;
    const sdk::CouplingTensor& c = sdk::coupling(l1, l2, l3);
    for (int j = 0; j <= 2 * l2; ++j) {
      for (int i = 0; i <= 2 * l1; ++i) {
        for (int k = 0; k <= 2 * l3; ++k) values.push_back(c.at(i, j, k));
      }
    }
    return name;
  }

  /// Assigns `name`_0, `name`_1, ..: the blocks of a linear map. @param species  Whether there is a matrix per species.
  template <class Linear>
  Blocks linear(const std::string& name, const Blocks& x, const Linear& map, const std::string& path, bool species) {
    const std::int64_t n_species = species ? config_.n_species() : 1;
    line(1, "weight = {}.weight", attribute(path));
    Blocks result;
    for (std::size_t out = 0; out < map.out.size(); ++out) {
      const std::string block = fmt::format("{}_{}", name, out);
      bool first = true;
      for (const auto& term : map.paths()) {
        if (term.out != out) continue;
        const std::int64_t in_mul = map.in[term.in].mul, out_mul = map.out[out].mul;
        const std::string part = fmt::format(
            "torch.narrow(weight, 0, {}, {}).reshape([{}])", term.weight_offset, in_mul * n_species * out_mul,
            species ? fmt::format("{}, {}, {}", in_mul, n_species, out_mul) : fmt::format("{}, {}", in_mul, out_mul));
        const std::string value =
            species
                ? fmt::format("torch.bmm(torch.index_select({}, 1, species).permute([1, 2, 0]), {})", part, x[term.in])
                : fmt::format("torch.matmul({}.transpose(1, 2), {}).transpose(1, 2)", x[term.in], part);
        line(1, "{} = {}{} * {}", block, first ? "" : block + " + ", value, literal(term.factor));
        first = false;
      }
      if (first) {
        line(1, "{} = torch.zeros([{}.size(0), {}, {}], dtype=weight.dtype, device=weight.device)", block, x[0],
             map.out[out].mul, map.out[out].ir.dim());
      }
      result.push_back(block);
    }
    return result;
  }

  void small_methods() {
    std::vector<std::int32_t> numbers = config_.atomic_numbers;
    // Not made of a list of numbers: torch.tensor() would round them to float32 on the way.
    line(0, "def constant(self, name: str, like: Tensor) -> Tensor:");
    line(1, "return self.constants[name].to(like)\n");
    line(0, "def activation(self, x: Tensor) -> Tensor:");
    line(1, "return x * torch.sigmoid(x) * {}\n", literal(config_.activation_constant));
    line(0, "def species_of(self, z: Tensor) -> Tensor:");
    line(1, "known = \"atomic_numbers: not all are among {}, which the model has\"", fmt::join(numbers, ", "));
    line(1, "assert bool(((z >= 0) & (z < 119)).all()), known");
    line(1, "table = torch.full([119], -1, dtype=4, device=z.device)");
    line(1, "index = torch.arange({}, dtype=4, device=z.device)", config_.n_species());
    line(1, "table = torch.index_copy(table, 0, self.atomic_numbers.to(4), index)");
    line(1, "species = torch.index_select(table, 0, z)");
    line(1, "assert bool((species >= 0).all()), known");
    line(1, "return species\n");
  }

  void harmonics() {
    // P_l of unit vectors from P_(l-1), operators.md 2.2 (S1).
    line(0, "def harmonics(self, u: Tensor) -> Tensor:");
    line(1, "p_0 = torch.ones([u.size(0), 1], dtype=u.dtype, device=u.device)");
    std::string all = "p_0";
    for (int l = 1; l <= config_.l_max; ++l) {
      const std::string name = fmt::format("harmonics_{}", l);
      const sdk::CouplingTensor& c = sdk::coupling(l, l - 1, 1);
      const double factor = (2 * l + 1) / std::sqrt(static_cast<double>(l));
      for (int j = 0; j <= 2 * l - 2; ++j) {
        for (int k = 0; k < 3; ++k) {
          for (int i = 0; i <= 2 * l; ++i) constants_[name].push_back(factor * c.at(i, j, k));
        }
      }
      const int rows = 3 * (2 * l - 1);
      line(1, "pairs = (p_{}.unsqueeze(2) * u.unsqueeze(1)).reshape([-1, {}])", l - 1, rows);
      line(1, "p_{} = torch.matmul(pairs, self.constant(\"{}\", u).reshape([{}, {}]))", l, name, rows, 2 * l + 1);
      all += fmt::format(", p_{}", l);
    }
    line(1, "return torch.cat([{}], 1)\n", all);
  }

  /// The envelope of degree p without its cancellation, operators.md 2.3.
  void envelope(const char* name, int p) {
    line(0, "def {}(self, r: Tensor, r_max: Tensor) -> Tensor:", name);
    line(1, "u = r / r_max");
    line(1, "s = torch.full_like(u, {})", literal(0.5 * p * (p + 1)));
    for (int k = p - 2; k >= 0; --k) line(1, "s = s * u + {}", literal(0.5 * (k + 1) * (k + 2)));
    line(1, "rest = (r_max - r) / r_max");
    line(1, "f = rest * rest * rest * s");
    line(1, "return torch.where(r < r_max, f, torch.zeros_like(f))\n");
  }

  void radial() {
    envelope("envelope", config_.polynomial_cutoff_p);
    line(0, "def radial_basis(self, r: Tensor, z_sender: Tensor, z_receiver: Tensor) -> Tensor:");
    line(1, "bessel = self.radial_embedding.bessel_fn");
    if (config_.distance_transform != sdk::DistanceTransform::none) {
      line(1, "transform = self.radial_embedding.distance_transform");
      line(1, "radii = transform.covalent_radii.to(7)");
      line(1, "sum = torch.index_select(radii, 0, z_sender) + torch.index_select(radii, 0, z_receiver)");
    }
    if (config_.distance_transform == sdk::DistanceTransform::agnesi) {
      line(1, "p = transform.p.to(7)");
      line(1, "y = r / (sum * 0.5)");
      line(1, "tail = torch.pow(y, p - transform.q.to(7))");
      line(1, "x = torch.reciprocal(transform.a.to(7) * torch.pow(y, p) / (tail + 1.0) + 1.0)");
    } else if (config_.distance_transform == sdk::DistanceTransform::soft) {
      line(1, "p_0 = sum * 0.75");
      line(1, "p_1 = sum * 4.0 / 3.0");
      line(1, "step = torch.sigmoid(transform.alpha.to(7) * 2.0 / (p_1 - p_0) * (r - (p_0 + p_1) * 0.5))");
      line(1, "x = p_0 + (r - p_0) * step");
    } else {
      line(1, "x = r");
    }
    line(1, "x = x.unsqueeze(1)");
    line(1, "return torch.sin(x * bessel.bessel_weights.to(7)) / x * bessel.prefactor.to(7)\n");
  }

  void pair_repulsion() {
    envelope("pair_envelope", static_cast<int>(tensor("pair_repulsion_fn.p").item()));
    verbatim(R"(def pair_repulsion(self, r: Tensor, z_sender: Tensor, z_receiver: Tensor) -> Tensor:
    zbl = self.pair_repulsion_fn
    radii = zbl.covalent_radii.to(7)
    r_max = torch.index_select(radii, 0, z_sender) + torch.index_select(radii, 0, z_receiver)
    z_a = z_sender.to(7)
    z_b = z_receiver.to(7)
    exponent = zbl.a_exp.to(7)
    length = zbl.a_prefactor.to(7) * 0.529 / (torch.pow(z_a, exponent) + torch.pow(z_b, exponent))
    c = zbl.c.to(7)
    t = r / length
    screening = torch.exp(t * -3.2) * c[0] + torch.exp(t * -0.9423) * c[1]
    screening = screening + torch.exp(t * -0.4028) * c[2] + torch.exp(t * -0.2016) * c[3]
    return z_a * z_b * 7.1998 / r * screening * self.pair_envelope(r, r_max)

)");
  }

  void layer(std::int64_t t) {
    const models::InteractionKind kind = models::interaction_kind(config_.block(t));
    const Irreps in = config_.irreps_in(t), out = config_.irreps_out(t), message = config_.message();
    const std::string block = fmt::format("interactions.{}", t), product = fmt::format("products.{}", t);
    const auto linear_of = [&](const std::string& path) -> const auto& {
      return module<ops::IrrepsLinearModule>(path).config();
    };
    const auto& skip = module<ops::SpeciesLinearModule>(block + ".skip_tp").config();

    line(0,
         "def layer_{}(self, h: List[Tensor], species: Tensor, sender: Tensor, receiver: Tensor, sh: Tensor, "
         "basis: Tensor, envelope: Tensor) -> List[Tensor]:",
         t);
    Blocks h;
    for (std::size_t i = 0; i < in.size(); ++i) h.push_back(fmt::format("h[{}]", i));
    line(1, "n = species.size(0)");

    // The radial net.
    line(1, "w = basis");
    for (std::size_t i = 0; i <= config_.radial_mlp.size(); ++i) {
      const double width = static_cast<double>(i == 0 ? config_.num_bessel : config_.radial_mlp[i - 1]);
      line(1, "w = torch.matmul(w, {} * {})", attribute(fmt::format("{}.conv_tp_weights.layer{}.weight", block, i)),
           literal(1.0 / std::sqrt(width)));
      if (i < config_.radial_mlp.size()) line(1, "w = self.activation(w)");
    }
    if (!config_.apply_cutoff) line(1, "w = w * envelope.unsqueeze(1)");

    // Messages: tensor products along the edges, summed by receiver.
    const auto& conv = module<ops::ConvTensorProductModule>(block + ".conv_tp").config();
    const Blocks up = linear("up", h, linear_of(block + ".linear_up"), block + ".linear_up", false);
    for (std::size_t i = 0; i < up.size(); ++i) line(1, "x_{} = torch.index_select({}, 0, sender)", i, up[i]);
    std::set<std::size_t> begun;
    std::int64_t offset = 0;
    Blocks sums;
    for (std::size_t i = 0; i < conv.out.size(); ++i) sums.push_back(fmt::format("m_{}", i));
    for (const auto& path : conv.instructions) {
      const std::int64_t channels = conv.in[path.in].mul;
      const int l1 = conv.in[path.in].ir.l, l2 = conv.edge[path.edge].ir.l, l3 = conv.out[path.out].ir.l;
      if (begun.insert(path.out).second) {
        line(1, "{} = torch.zeros([n, {}, {}], dtype=w.dtype, device=w.device)", sums[path.out], channels, 2 * l3 + 1);
      }
      line(1, "c = self.constant(\"{}\", w).reshape([{}, {}]) * {}", coupling(l1, l2, l3), 2 * l2 + 1,
           (2 * l1 + 1) * (2 * l3 + 1), literal(path.factor));
      line(1, "y = torch.matmul(torch.narrow(sh, 1, {}, {}), c).reshape([-1, {}, {}])", conv.edge.offset(path.edge),
           2 * l2 + 1, 2 * l1 + 1, 2 * l3 + 1);
      line(1, "e = torch.bmm(x_{}, y) * torch.narrow(w, 1, {}, {}).unsqueeze(2)", path.in, offset, channels);
      line(1, "{} = torch.index_add({}, 0, receiver, e)", sums[path.out], sums[path.out]);
      offset += channels;
    }
    for (std::size_t i = 0; i < conv.out.size(); ++i) {
      if (begun.contains(i)) continue;
      line(1, "{} = torch.zeros([n, {}, {}], dtype=w.dtype, device=w.device)", sums[i], conv.out[i].mul,
           conv.out[i].ir.dim());
    }
    Blocks a = linear("a", sums, linear_of(block + ".linear"), block + ".linear", false);
    if (kind.density) {
      line(1, "u = torch.matmul(basis, {} * {}).squeeze(1)", attribute(block + ".density_fn.layer0.weight"),
           literal(1.0 / std::sqrt(static_cast<double>(config_.num_bessel))));
      line(1, "density = torch.tanh(u * u){}", config_.apply_cutoff ? "" : " * envelope");
      line(1, "zero = torch.zeros([n], dtype=w.dtype, device=w.device)");
      line(1, "divisor = (torch.index_add(zero, 0, receiver, density) + 1.0).reshape([-1, 1, 1])");
      for (const std::string& name : a) line(1, "{} = {} / divisor", name, name);
    }
    if (!kind.residual) a = linear("s", a, skip, block + ".skip_tp", true);

    // Symmetric contraction, operators.md 2.8: from the highest order down, one factor x at a time.
    const std::int64_t dim = std::int64_t{config_.l_max + 1} * (config_.l_max + 1);
    const auto& contraction = module<ops::SymmetricContractionModule>(product + ".symmetric_contractions").config();
    line(1, "x = torch.cat([{}], 2).reshape([-1, {}])", fmt::join(a, ", "), dim);
    Blocks b;
    for (std::size_t target = 0; target < contraction.targets.size(); ++target) {
      const std::string prefix = fmt::format("{}.symmetric_contractions.contractions.{}", product, target);
      const int components = 2 * contraction.targets[target] + 1, top = contraction.correlation;
      for (int nu = top; nu >= 1; --nu) {
        const std::string name = nu == top ? "weights_max" : fmt::format("weights.{}", top - 1 - nu);
        std::int64_t rows = components;  // of U without what is summed over now
        for (int i = 1; i < nu; ++i) rows *= dim;
        line(1, "u = {}", attribute(fmt::format("{}.U_matrix_{}", prefix, nu)));
        line(1, "k = torch.index_select({}, 0, species).transpose(1, 2).reshape([n * {}, u.size(-1)])",
             attribute(prefix + "." + name), contraction.channels);
        if (nu == top) {
          line(1, "k = (x.unsqueeze(2) * k.unsqueeze(1)).reshape([n * {}, {} * u.size(-1)])", contraction.channels,
               dim);
          line(1, "q = torch.matmul(k, u.reshape([{}, {} * u.size(-1)]).transpose(0, 1))", rows, dim);
        } else {
          line(1, "q = q + torch.matmul(k, u.reshape([{}, u.size(-1)]).transpose(0, 1))", rows * dim);
          line(1, "q = torch.bmm(q.reshape([-1, {}, {}]), x.unsqueeze(2)).squeeze(2)", rows, dim);
        }
      }
      line(1, "b_{} = q.reshape([n, {}, {}])", target, contraction.channels, components);
      b.push_back(fmt::format("b_{}", target));
    }
    Blocks result = linear("g", b, linear_of(product + ".linear"), product + ".linear", false);
    if (kind.residual) {
      const Blocks residual = linear("s", h, skip, block + ".skip_tp", true);
      for (std::size_t i = 0; i < result.size(); ++i) line(1, "{} = {} + {}", result[i], result[i], residual[i]);
    }
    line(1, "return [{}]\n", fmt::join(result, ", "));
  }

  void readout(std::int64_t t) {
    const std::string path = fmt::format("readouts.{}", t);
    const auto n_heads = static_cast<std::int64_t>(config_.heads.size());
    line(0, "def readout_{}(self, h: List[Tensor], head: Tensor) -> Tensor:", t);
    Blocks h;
    for (std::size_t i = 0; i < config_.irreps_out(t).size(); ++i) h.push_back(fmt::format("h[{}]", i));
    const auto linear_of = [&](const std::string& name, const char* result, const Blocks& x) {
      return linear(result, x, module<ops::IrrepsLinearModule>(name).config(), name, false)[0];
    };
    std::string energies;
    if (t == config_.num_interactions - 1 && config_.num_interactions > 1) {
      const std::string hidden = linear_of(path + ".linear_1", "f", h);
      line(1, "x = self.activation({})", hidden);
      if (n_heads > 1) {
        // Only what belongs to the head of the atom.
        const std::int64_t width = config_.mlp[0].mul;
        line(1, "own = torch.arange({}, dtype=4, device=head.device).unsqueeze(0) == head.unsqueeze(1)", n_heads);
        line(1, "x = x.reshape([-1, {}, {}]) * own.to(x.dtype).unsqueeze(2)", n_heads, width);
        line(1, "x = x.reshape([-1, {}, 1])", n_heads * width);
      }
      energies = linear_of(path + ".linear_2", "e", {"x"});
    } else {
      energies = linear_of(path + ".linear", "e", h);
    }
    line(1, "return torch.gather({}.squeeze(2), 1, head.unsqueeze(1)).squeeze(1).to(7)\n", energies);
  }

  /// The entry of a head in a buffer that has one value, or row, for all heads, or one per head.
  std::string of_head(const std::string& name, std::int64_t width) {
    const std::string all = fmt::format("{}.to(7).reshape([-1, {}])", attribute(name), width);
    const bool shared = tensor(name).numel() == width;
    return shared ? all + "[0]" : fmt::format("torch.index_select({}, 0, node_head)", all);
  }

  void forward() {
    const std::int64_t n_species = config_.n_species();
    const std::size_t n_heads = config_.heads.size();
    verbatim(R"(def forward(self, positions: Tensor, atomic_numbers: Tensor, edge_index: Tensor, shifts: Tensor,
            cell: Optional[Tensor] = None, batch: Optional[Tensor] = None, head: Optional[Tensor] = None,
            forces: bool = True, differentiable: bool = False) -> Dict[str, Tensor]:
    assert positions.dim() == 2 and positions.size(-1) == 3, "positions: expected shape [n_atoms, 3]"
    n = positions.size(0)
    assert atomic_numbers.dim() == 1 and atomic_numbers.size(0) == n, "atomic_numbers: expected shape [n_atoms]"
    assert edge_index.dim() == 2 and edge_index.size(0) == 2, "edge_index: expected shape [2, n_edges]"
    edges = [edge_index.size(1), 3]
    assert shifts.size() == edges, "shifts: expected shape [n_edges, 3]"
    grad = "forces are derivatives, which need gradients to be enabled: not under no_grad or inference_mode"
    assert torch.is_grad_enabled() or not forces, grad
    z = atomic_numbers.to(4)
    species = self.species_of(z)
    sender = edge_index[0].to(4)
    receiver = edge_index[1].to(4)
    graph = torch.zeros([n], dtype=4, device=positions.device)
    n_graphs = 1
    if batch is not None:
        assert batch.dim() == 1 and batch.size(0) == n, "batch: expected shape [n_atoms]"
        graph = batch.to(4)
        n_graphs = 0
        if n > 0:
            assert int(graph.min()) >= 0, "batch: the index of a graph is negative"
            n_graphs = int(graph.max()) + 1
    cells = torch.zeros([0, 3, 3], dtype=7, device=positions.device)
    if cell is not None:
        assert cell.size(-1) == 3 and cell.numel() % 9 == 0, "cell: expected shape [3, 3] or [n_graphs, 3, 3]"
        cells = cell.to(7).reshape([-1, 3, 3])
        assert cells.size(0) == n_graphs or batch is not None, "cell: several, but no batch"
        assert cells.size(0) >= n_graphs, "cell: fewer than graphs in batch"
        n_graphs = cells.size(0)
    graph_head = torch.zeros([n_graphs], dtype=4, device=positions.device)
    if head is not None:
)");
    line(2, "assert head.numel() == 1 or head.numel() == n_graphs, \"head: expected one index, or one per graph\"");
    line(2, "graph_head = head.to(4).reshape([-1]).expand([n_graphs])");
    line(2,
         "assert bool(((graph_head >= 0) & (graph_head < {})).all()), \"head: expected indices of {} heads, from 0\"",
         n_heads, n_heads);
    verbatim(R"(    node_head = torch.index_select(graph_head, 0, graph)

    # What forces are derivatives by: something that is added to the vectors of the edges.
    at = positions.to(7)
    vectors = torch.index_select(at, 0, receiver) - torch.index_select(at, 0, sender) + shifts.to(7)
    change = torch.zeros_like(vectors).requires_grad_(forces)
    vectors = vectors + change
    lengths = torch.sqrt((vectors * vectors).sum(1))
    assert bool((lengths > 1e-6).all()), "an edge is shorter than 1e-6 angstrom"
    z_sender = torch.index_select(z, 0, sender)
    z_receiver = torch.index_select(z, 0, receiver)
)");
    line(1, "embedding = self.node_embedding.linear.weight");
    line(1, "dtype = embedding.dtype");
    line(1, "envelope = self.envelope(lengths, self.radial_embedding.cutoff_fn.r_max.to(7))");
    line(1, "basis = self.radial_basis(lengths, z_sender, z_receiver)");
    if (config_.apply_cutoff) line(1, "basis = basis * envelope.unsqueeze(1)");
    line(1, "basis = basis.to(dtype)");
    line(1, "envelope = envelope.to(dtype)");
    line(1, "sh = self.harmonics(vectors / lengths.unsqueeze(1)).to(dtype)");
    line(1, "rows = torch.index_select(embedding.reshape([{}, {}]), 0, species)", n_species, config_.channels());
    line(1, "h = [rows.unsqueeze(2) * {}]", literal(1.0 / std::sqrt(static_cast<double>(n_species))));
    line(1, "total = torch.zeros([n], dtype=7, device=positions.device)");
    if (config_.pair_repulsion) {
      line(1, "pairs = self.pair_repulsion(lengths, z_sender, z_receiver)");
      line(1, "total = torch.index_add(total, 0, receiver, pairs)");
    }
    for (std::int64_t t = 0; t < config_.num_interactions; ++t) {
      line(1, "h = self.layer_{}(h, species, sender, receiver, sh, basis, envelope)", t);
      line(1, "total = total + self.readout_{}(h, node_head)", t);
    }
    // of_head() of the reference energies is a row per node, or one row for all.
    const std::string e0 = "atomic_energies_fn.atomic_energies";
    if (tensor(e0).numel() == n_species) {
      line(1, "energies = torch.index_select({}, 0, species)", of_head(e0, n_species));
    } else {
      line(1, "energies = torch.gather({}, 1, species.unsqueeze(1)).squeeze(1)", of_head(e0, n_species));
    }
    line(1, "scale = {}", of_head("scale_shift.scale", 1));
    line(1, "shift = {}", of_head("scale_shift.shift", 1));
    verbatim(R"(    node_energies = energies + (scale.squeeze(-1) * total + shift.squeeze(-1))
    energy = torch.index_add(torch.zeros([n_graphs], dtype=7, device=positions.device), 0, graph, node_energies)
    result: Dict[str, Tensor] = {"energy": energy, "node_energies": node_energies}
    if forces:
        grads = torch.autograd.grad([node_energies.sum()], [change], None, differentiable, differentiable, True)
        found = grads[0]
        g = torch.zeros_like(change)
        if found is not None:
            g = found
        v = vectors
        zero = torch.zeros([n, 3], dtype=7, device=positions.device)
        result["forces"] = torch.index_add(torch.index_add(zero, 0, sender, g), 0, receiver, -g)
        outer = v.unsqueeze(2) * g.unsqueeze(1)
        zeros = torch.zeros([n_graphs, 3, 3], dtype=7, device=positions.device)
        by_edge = (outer + outer.transpose(1, 2)) * -0.5
        virial = torch.index_add(zeros, 0, torch.index_select(graph, 0, receiver), by_edge)
        result["virial"] = virial
        if cell is not None:
            a = cells[:, 0]
            volume = torch.abs((a * torch.cross(cells[:, 1], cells[:, 2], 1)).sum(1)).reshape([-1, 1, 1])
            there = volume > 0.0
            stress = -virial / torch.where(there, volume, torch.ones_like(volume))
            result["stress"] = torch.where(there, stress, torch.full_like(stress, float("nan")))
    if differentiable:
        return result
    detached: Dict[str, Tensor] = {}
    for key in result.keys():
        detached[key] = result[key].detach()
    return detached
)");
  }

  const MaceConfig& config_;
  StateDict state_;
  std::map<std::string, Module*> modules_;
  std::map<std::string, std::vector<double>> constants_;
  std::string text_;
};

}  // namespace

Script mace_script(models::MaceModel& model) { return Generator(model).script(); }

}  // namespace fastpath::torchscript
