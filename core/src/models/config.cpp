#include "models/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "fastpath/error.hpp"
#include "io/json_reader.hpp"
#include "io/printable.hpp"

namespace fastpath::models {
namespace {

using io::JsonReader;
using Json = io::Json;

/// Reads irreps too.
class Reader : public JsonReader {
 public:
  using JsonReader::JsonReader;
  void irreps(const char* key, sdk::Irreps& value, bool required) {
    std::string text_value;
    if (!text(key, text_value, required)) return;
    try {
      value = sdk::Irreps::parse(text_value);
    } catch (const sdk::ConfigError& error) {
      problem(fmt::format("key '{}': {}", key, error.what()));
    }
  }
};

sdk::ConvTensorProductConfig read_convolution(const Json& json, Reader& reader, std::size_t t) {
  sdk::ConvTensorProductConfig config;
  const auto fail = [&](const std::string& text) {
    reader.problem(fmt::format("convolutions[{}]: {}", t, text));
    return config;
  };
  if (!json.is_object()) return fail("expected an object");
  for (const auto& [key, value] : json.items()) {
    if (key != "irreps_in" && key != "irreps_edge" && key != "irreps_out" && key != "instructions") {
      return fail(fmt::format("key {} is unknown", io::printable(key)));
    }
  }
  for (const char* key : {"irreps_in", "irreps_edge", "irreps_out"}) {
    if (!json.contains(key) || !json[key].is_string()) return fail(fmt::format("'{}' is missing or not text", key));
  }
  if (!json.contains("instructions") || !json["instructions"].is_array())
    return fail("'instructions' is missing or not a list");
  try {
    config.in = sdk::Irreps::parse(json["irreps_in"].get<std::string>());
    config.edge = sdk::Irreps::parse(json["irreps_edge"].get<std::string>());
    config.out = sdk::Irreps::parse(json["irreps_out"].get<std::string>());
    std::vector<std::int64_t> fan(config.out.size(), 0);
    for (const Json& item : json["instructions"]) {
      const bool good =
          item.is_array() && item.size() == 3 && std::all_of(item.begin(), item.end(), [](const Json& index) {
            return index.is_number_unsigned() && index.get<std::uint64_t>() < 100000;
          });
      if (!good) return fail("an instruction is not [in, edge, out]");
      config.instructions.push_back(
          {item[0].get<std::size_t>(), item[1].get<std::size_t>(), item[2].get<std::size_t>(), 1.0});
    }
    config.check();
    // "element" normalisation: a block shared by several paths is divided by their number (y multiplicity 1).
    for (const auto& path : config.instructions) ++fan[path.out];
    for (auto& path : config.instructions) {
      path.factor = std::sqrt(static_cast<double>(config.out[path.out].ir.dim()) / static_cast<double>(fan[path.out]));
    }
  } catch (const sdk::ConfigError& error) {
    return fail(error.what());
  }
  return config;
}

/// Checks that need more than one key.
void check_consistency(const MaceConfig& c, Reader& reader) {
  std::set<std::int32_t> seen(c.atomic_numbers.begin(), c.atomic_numbers.end());
  if (c.atomic_numbers.empty() || seen.size() != c.atomic_numbers.size()) {
    reader.problem("key 'atomic_numbers' is empty or names an element twice");
  }
  if (c.hidden.empty() || !(c.hidden[0].ir == sdk::Irrep{0, 1})) {
    reader.problem(
        fmt::format("key 'hidden_irreps' is {}, expected it to start with scalars 0e", io::printable(c.hidden.text())));
    return;
  }
  for (std::size_t i = 0; i < c.hidden.size(); ++i) {
    const auto& block = c.hidden[i];
    const int l = static_cast<int>(i);
    if (block.ir.l != l || block.ir.parity != (l % 2 == 0 ? 1 : -1) || block.mul != c.channels() || block.mul == 0) {
      reader.problem(fmt::format("key 'hidden_irreps' is {}, expected equal multiplicities of 0e, 1o, 2e, .. in order",
                                 io::printable(c.hidden.text())));
      return;
    }
  }
  if (c.hidden.l_max() > c.l_max) {
    reader.problem(fmt::format("key 'hidden_irreps' has degree {}, above l_max {}", c.hidden.l_max(), c.l_max));
  }
  if (c.mlp.size() != 1 || !(c.mlp[0].ir == sdk::Irrep{0, 1}) || c.mlp[0].mul == 0) {
    reader.problem(fmt::format("key 'mlp_irreps' is {}, expected scalars such as 16x0e", io::printable(c.mlp.text())));
  }
  for (std::size_t t = 0; t < c.convolutions.size(); ++t) {
    const auto& conv = c.convolutions[t];
    const sdk::Irreps in = c.irreps_in(static_cast<std::int64_t>(t));
    if (!(conv.in == in) || !(conv.edge == sdk::Irreps::natural(1, c.l_max))) {
      reader.problem(fmt::format("convolutions[{}] takes {} and {}, the model gives {} and {}", t,
                                 io::printable(conv.in.text()), io::printable(conv.edge.text()),
                                 io::printable(in.text()), io::printable(sdk::Irreps::natural(1, c.l_max).text())));
    }
  }
}

}  // namespace

InteractionKind interaction_kind(const std::string& name) {
  if (name == "RealAgnosticInteractionBlock") return {false, false};
  if (name == "RealAgnosticResidualInteractionBlock") return {true, false};
  if (name == "RealAgnosticDensityInteractionBlock") return {false, true};
  if (name == "RealAgnosticDensityResidualInteractionBlock") return {true, true};
  throw Error(ErrorCode::bad_file,
              fmt::format("interaction block {} is not supported; supported: RealAgnosticInteractionBlock, "
                          "RealAgnosticResidualInteractionBlock, RealAgnosticDensityInteractionBlock, "
                          "RealAgnosticDensityResidualInteractionBlock",
                          io::printable(name)));
}

sdk::Irreps MaceConfig::irreps_in(std::int64_t t) const {
  return t == 0 ? sdk::Irreps::natural(channels(), 0) : hidden;
}

sdk::Irreps MaceConfig::irreps_out(std::int64_t t) const {
  const bool last = t == num_interactions - 1;
  return last && !keep_last_layer_irreps ? sdk::Irreps::natural(channels(), 0) : hidden;
}

double MaceConfig::fewest_parameters() const {
  const auto real = [](auto value) { return static_cast<double>(value); };
  double total = real(n_species()) * real(channels());
  for (const auto& convolution : convolutions) {
    double width = real(num_bessel);
    for (const std::int64_t next : radial_mlp) {
      total += width * real(next);
      width = real(next);
    }
    total += width * real(convolution.weight_numel());
    // linear_up, linear, the linear after the contraction: at least the scalars of each.
    total += 3 * real(channels()) * real(channels());
  }
  const double hidden_readout = real(heads.size()) * real(mlp[0].mul);
  if (num_interactions > 1) total += hidden_readout * (real(channels()) + real(heads.size()));
  return total;
}

sdk::ConvTensorProductConfig mace_convolution(const sdk::Irreps& in, int l_max, const sdk::Irreps& target) {
  sdk::ConvTensorProductConfig config;
  config.in = in;
  config.edge = sdk::Irreps::natural(1, l_max);
  struct Path {
    std::size_t in, edge;
    sdk::IrrepsBlock out;
  };
  std::vector<Path> paths;
  for (std::size_t i = 0; i < in.size(); ++i) {
    for (std::size_t j = 0; j < config.edge.size(); ++j) {
      const sdk::Irrep a = in[i].ir, b = config.edge[j].ir;
      for (int l = std::abs(a.l - b.l); l <= a.l + b.l; ++l) {
        const sdk::Irrep out{l, a.parity * b.parity};
        if (target.count(out) > 0) paths.push_back({i, j, {in[i].mul, out}});
      }
    }
  }
  std::stable_sort(paths.begin(), paths.end(), [](const Path& a, const Path& b) { return a.out.ir < b.out.ir; });
  std::vector<sdk::IrrepsBlock> out;
  for (const Path& path : paths) {
    config.instructions.push_back({path.in, path.edge, out.size(), std::sqrt(static_cast<double>(path.out.ir.dim()))});
    out.push_back(path.out);
  }
  config.out = sdk::Irreps(std::move(out));
  return config;
}

MaceConfig MaceConfig::parse(const std::string& text, const std::string& name) {
  const Json json = io::parse_json(text, name);
  if (!json.is_object()) throw Error(ErrorCode::bad_file, fmt::format("{}: not a JSON object", name));

  Reader reader(json, name);
  MaceConfig c;
  std::string word;
  int version = 1;
  reader.choice("format", word, {"fastpath-model"}, true);
  reader.integer("format_version", version, 1, 1, true);
  reader.choice("architecture", word, {"mace"}, true);
  word = "float64";
  reader.choice("dtype", word, {"float64", "float32"}, true);
  c.dtype = parse_dtype(word);
  reader.integers("atomic_numbers", c.atomic_numbers, 1, 118, true);
  reader.number("r_max", c.r_max, true);
  reader.integer("num_bessel", c.num_bessel, 1, 1024, true);
  reader.integer("polynomial_cutoff_p", c.polynomial_cutoff_p, 2, 64, true);
  reader.choice("radial_type", word, {"bessel"}, false);
  word = "none";
  reader.choice("distance_transform", word, {"none", "agnesi", "soft"}, false);
  c.distance_transform = word == "agnesi" ? sdk::DistanceTransform::agnesi
                         : word == "soft" ? sdk::DistanceTransform::soft
                                          : sdk::DistanceTransform::none;
  reader.boolean("apply_cutoff", c.apply_cutoff);
  reader.boolean("pair_repulsion", c.pair_repulsion);
  reader.integers("radial_mlp", c.radial_mlp, 1, 1 << 16, false);
  reader.integer("l_max", c.l_max, 0, 11, true);
  reader.irreps("hidden_irreps", c.hidden, true);
  reader.integer("num_interactions", c.num_interactions, 1, 64, true);
  reader.per_layer(
      "correlation", c.correlation, c.num_interactions,
      [](const Json& item) {
        return item.is_number_integer() && item.get<std::int64_t>() >= 1 && item.get<std::int64_t>() <= 4;
      },
      "an integer in 1..4, or a list with one per layer");
  reader.per_layer(
      "avg_num_neighbors", c.avg_num_neighbors, c.num_interactions,
      [](const Json& item) { return item.is_number() && std::isfinite(item.get<double>()) && item.get<double>() > 0; },
      "a positive number, or a list with one per layer");
  for (auto [key, target] :
       {std::pair{"interaction_first", &c.interaction_first}, std::pair{"interaction", &c.interaction}}) {
    if (!reader.text(key, *target, true)) continue;
    try {
      (void)interaction_kind(*target);
    } catch (const Error& error) {
      reader.problem(fmt::format("key '{}': {}", key, error.what()));
    }
  }
  c.mlp = sdk::Irreps::parse("16x0e");
  reader.irreps("mlp_irreps", c.mlp, false);
  reader.choice("gate", c.gate, {"silu"}, false);
  reader.number("activation_constant", c.activation_constant, false);
  reader.names("heads", c.heads);
  reader.boolean("reduced_cg", c.reduced_cg);
  reader.boolean("keep_last_layer_irreps", c.keep_last_layer_irreps);
  if (const Json* convolutions = reader.raw("convolutions")) {
    if (!convolutions->is_array() || static_cast<std::int64_t>(convolutions->size()) != c.num_interactions) {
      reader.wrong("convolutions", *convolutions, "a list with one entry per layer");
    } else {
      for (std::size_t t = 0; t < convolutions->size(); ++t) {
        c.convolutions.push_back(read_convolution((*convolutions)[t], reader, t));
      }
    }
  }
  if (reader.good()) check_consistency(c, reader);
  reader.finish();
  if (c.convolutions.empty()) {
    for (std::int64_t t = 0; t < c.num_interactions; ++t) {
      c.convolutions.push_back(mace_convolution(c.irreps_in(t), c.l_max, c.message()));
    }
  }
  return c;
}

std::string MaceConfig::text() const {
  constexpr std::array<const char*, 3> kTransforms{"none", "agnesi", "soft"};
  Json json;
  json["format"] = "fastpath-model";
  json["format_version"] = 1;
  json["architecture"] = "mace";
  json["dtype"] = std::string(to_string(dtype));
  json["atomic_numbers"] = atomic_numbers;
  json["r_max"] = r_max;
  json["radial_type"] = "bessel";
  json["num_bessel"] = num_bessel;
  json["polynomial_cutoff_p"] = polynomial_cutoff_p;
  json["distance_transform"] = kTransforms[static_cast<std::size_t>(distance_transform)];
  json["apply_cutoff"] = apply_cutoff;
  json["pair_repulsion"] = pair_repulsion;
  json["radial_mlp"] = radial_mlp;
  json["l_max"] = l_max;
  json["hidden_irreps"] = hidden.text();
  json["num_interactions"] = num_interactions;
  json["correlation"] = correlation;
  json["interaction_first"] = interaction_first;
  json["interaction"] = interaction;
  json["mlp_irreps"] = mlp.text();
  json["gate"] = gate;
  json["activation_constant"] = activation_constant;
  json["avg_num_neighbors"] = avg_num_neighbors;
  json["heads"] = heads;
  json["reduced_cg"] = reduced_cg;
  json["keep_last_layer_irreps"] = keep_last_layer_irreps;
  Json list = Json::array();
  for (const auto& conv : convolutions) {
    Json instructions = Json::array();
    for (const auto& path : conv.instructions) instructions.push_back({path.in, path.edge, path.out});
    list.push_back({{"irreps_in", conv.in.text()},
                    {"irreps_edge", conv.edge.text()},
                    {"irreps_out", conv.out.text()},
                    {"instructions", instructions}});
  }
  json["convolutions"] = list;
  return json.dump(1) + "\n";
}

}  // namespace fastpath::models
