#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "fastpath/op.hpp"
#include "fastpath/sdk/irreps.hpp"
#include "fastpath/sdk/ops.hpp"

/// Ops at the sizes that models have (docs/operators.md 4), and what they have to do at least (5).
namespace bench {

/// The second layer of a model.
struct LayerShape {
  const char* name;
  const char* features;           ///< Irreps between layers.
  int l_max;                      ///< Of the edge harmonics.
  std::int64_t n_basis;           ///< Radial functions.
  std::vector<std::int64_t> net;  ///< Hidden widths of the radial net.
  std::int64_t n_species;         ///< 0: NequIP, which has no symmetric contraction and mixes species otherwise.
};
const std::vector<LayerShape>& layer_shapes();

/// "spherical_harmonics", ...: every op that layers have.
const std::vector<std::string_view>& op_names();

/// The convolution of a layer: paths of natural parity, in MACE by output block, in NequIP as enumerated (2.7).
fastpath::sdk::ConvTensorProductConfig convolution(const LayerShape& shape);

/// An op of a layer; nothing where such a layer has none.
std::optional<fastpath::OpSpec> op_of(std::string_view op, const LayerShape& shape);

/// How many rows of each kind a call has.
struct Sizes {
  std::int64_t edges = 0, nodes = 0;
  std::int64_t species = 1;  ///< That occur.
};

/// What a call has to do at least: docs/operators.md 5, with the bytes of what is read and written once.
struct Work {
  std::optional<double> flops;  ///< Nothing where section 5 counts none.
  double bytes = 0;
};
/// @param element_bytes  4 or 8.
Work forward_work(const fastpath::OpSpec& op, const Sizes& sizes, int element_bytes);
/// Gradients of the inputs, given those of the outputs; without those of parameters.
Work backward_work(const fastpath::OpSpec& op, const Sizes& sizes, int element_bytes);

}  // namespace bench
