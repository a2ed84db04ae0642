#pragma once

#include <memory>
#include <vector>

#include "mace_models.hpp"

/// Small models, one for everything that a configuration may say.
namespace fastpath::test {

/// One way to build a model that is not mace_a's.
struct Variant {
  const char* name;
  Json changes;
};
inline void PrintTo(const Variant& variant, std::ostream* out) { *out << variant.changes.dump(); }
inline std::vector<Variant> variants() {
  const Json agnesi{{"distance_transform", "agnesi"}}, soft{{"distance_transform", "soft"}};
  const Json density{{"interaction_first", "RealAgnosticDensityInteractionBlock"},
                     {"interaction", "RealAgnosticDensityResidualInteractionBlock"}};
  const Json residual_first{{"interaction_first", "RealAgnosticResidualInteractionBlock"}};
  const auto with = [](Json json, const Json& more) {
    json.update(more);
    return json;
  };
  return {
      {"Plain", {{"correlation", 2}}},
      {"OneLayer", {{"num_interactions", 1}}},
      {"OneLayerKeepingIrreps", {{"num_interactions", 1}, {"keep_last_layer_irreps", true}}},
      {"OneResidualLayer", with(residual_first, {{"num_interactions", 1}})},
      {"ThreeLayers", {{"num_interactions", 3}, {"avg_num_neighbors", {2.0, 3.5, 5.0}}}},
      {"ResidualFirst", residual_first},
      {"NoSkipAnywhere", {{"interaction", "RealAgnosticInteractionBlock"}}},
      {"Density", density},
      {"DensityResidualFirst", with(density, {{"interaction_first", "RealAgnosticDensityResidualInteractionBlock"}})},
      {"EnvelopeOnWeights", {{"apply_cutoff", false}}},
      {"EnvelopeOnWeightsAndDensity", with(density, {{"apply_cutoff", false}})},
      {"Soft", soft},
      {"Agnesi", agnesi},
      {"Zbl", {{"pair_repulsion", true}, {"polynomial_cutoff_p", 6}}},
      {"Foundation", with(with(density, agnesi), {{"pair_repulsion", true}})},
      {"CorrelationOne", {{"correlation", 1}}},
      {"CorrelationFour", {{"correlation", 4}, {"l_max", 1}}},
      {"CorrelationByLayer", {{"correlation", {3, 1}}}},
      {"KeepLastLayerIrreps", {{"keep_last_layer_irreps", true}}},
      {"HiddenScalars", {{"hidden_irreps", "3x0e"}}},
      {"HiddenDegreeTwo", {{"hidden_irreps", "3x0e+3x1o+3x2e"}}},
      {"NoAngles", {{"l_max", 0}, {"hidden_irreps", "3x0e"}}},
      {"TwoHeads", {{"heads", {"first", "second"}}}},
      {"DeepRadialNet", {{"radial_mlp", {5, 4, 3, 6}}}},
      {"LinearRadialNet", {{"radial_mlp", Json::array()}}},
  };
}
inline std::shared_ptr<Model> variant_model(const Variant& variant) {
  Json config = small_config();
  config.update(variant.changes);
  const auto model = Model::create(config.dump(), 20240517);
  const auto heads = static_cast<std::int64_t>(model->heads().size());
  set_tensor(*model, "atomic_energies_fn.atomic_energies", random_values(2 * heads, 1));
  set_tensor(*model, "scale_shift.scale", heads == 1 ? std::vector{0.7} : std::vector{0.7, -1.3});
  set_tensor(*model, "scale_shift.shift", heads == 1 ? std::vector{0.2} : std::vector{0.2, 0.4});
  return model;
}
/// Bonds within the range of ZBL, several distances, two periodic images in range.
inline Structure variant_structure() {
  Structure s = system_b();
  s.atomic_numbers = {8, 1, 1};
  s.positions = {{0.1, 0.2, 0.3}, {0.75, 0.5, 0.85}, {1.4, 1.5, 1.6}};
  return s;
}

}  // namespace fastpath::test
