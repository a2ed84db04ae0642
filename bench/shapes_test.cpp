#include "shapes.hpp"

#include <gtest/gtest.h>

#include "crystal.hpp"
#include "fastpath/graph.hpp"

namespace bench {
namespace {

fastpath::OpSpec conv_of(const LayerShape& shape) { return op_of("conv_tensor_product", shape).value(); }

/// A row of the table in docs/operators.md 5.1, which has three or four digits.
struct Row {
  LayerShape shape;
  std::size_t paths;
  std::int64_t x, w, z;
  double forward, backward, bytes_forward, bytes_backward;
};

TEST(Shapes, CountsOfAConvolutionAreThoseOfTheTableOfOperators) {
  const Row rows[] = {
      {{"", "96x0e", 3, 8, {}, 10}, 4, 96, 384, 1536, 6.2e3, 8.1e3, 1992, 3976},
      {{"", "128x0e", 3, 8, {}, 89}, 4, 128, 512, 2048, 8.2e3, 10.8e3, 2632, 5256},
      {{"", "128x0e+128x1o", 3, 8, {}, 89}, 10, 512, 1280, 5120, 29.9e3, 53.3e3, 7240, 14472},
      {{"", "128x0e+128x1o+128x2e", 3, 8, {}, 89}, 17, 1152, 2176, 9088, 66.5e3, 133.1e3, 13384, 26760},
      {{"", "192x0e+192x1o+192x2e", 3, 8, {}, 10}, 17, 1728, 3264, 13632, 99.5e3, 199.2e3, 20040, 40072},
      {{"", "64x0e+64x1o", 1, 8, {}, 0}, 4, 256, 256, 512, 2.3e3, 5.2e3, 2072, 4136},
      {{"", "32x0e+32x1o+32x2e", 2, 8, {}, 0}, 11, 288, 352, 1120, 7.5e3, 16.0e3, 2604, 5200},
      {{"", "128x0e+64x1o+32x2e+32x3o", 3, 8, {}, 0}, 23, 704, 1312, 5472, 38.5e3, 75.7e3, 8136, 16264},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.shape.features);
    const auto conv = convolution(row.shape);
    EXPECT_EQ(conv.instructions.size(), row.paths);
    EXPECT_EQ(conv.in.dim(), row.x);
    EXPECT_EQ(conv.weight_numel(), row.w);
    EXPECT_EQ(conv.out.dim(), row.z);
    // Outputs are written, and their gradients read, once a node; the table counts edges alone.
    const auto op = conv_of(row.shape);
    const Work forward = forward_work(op, {1000, 0}, 4), backward = backward_work(op, {1000, 0}, 4);
    EXPECT_NEAR(forward.flops.value() / 1000, row.forward, 51);
    EXPECT_NEAR(backward.flops.value() / 1000, row.backward, 51);
    EXPECT_EQ(forward.bytes / 1000, row.bytes_forward);
    EXPECT_EQ(backward.bytes / 1000, row.bytes_backward);
    EXPECT_EQ(forward_work(op, {0, 10}, 8).bytes, static_cast<double>(10 * 8 * row.z));
  }
}

TEST(Shapes, EveryOpOfEveryLayerIsCounted) {
  int ops = 0;
  for (const LayerShape& shape : layer_shapes()) {
    for (const std::string_view name : op_names()) {
      const auto op = op_of(name, shape);
      if (!op) {
        EXPECT_EQ(shape.n_species, 0) << shape.name << ' ' << name;
        continue;
      }
      ++ops;
      EXPECT_EQ(op->id, name);
      EXPECT_NO_THROW(fastpath::sdk::signature_of(op->id, op->version, fastpath::sdk::Attributes(op->config)));
      const bool counted = name != "spherical_harmonics" && name != "radial_basis";
      for (const Work& work : {forward_work(*op, {100, 10}, 4), backward_work(*op, {100, 10}, 4)}) {
        EXPECT_EQ(work.flops.has_value(), counted) << shape.name << ' ' << name;
        EXPECT_GT(work.bytes, 0) << shape.name << ' ' << name;
      }
    }
  }
  EXPECT_EQ(ops, 6 * 8 + 2 * 6);
}

TEST(Shapes, CrystalsHaveTheAtomsAskedForAndFiftyNeighbours) {
  for (const std::int64_t atoms : {2, 20, 180, 1000}) {
    const auto graph = fastpath::Graph::from_structure(crystal(atoms), 5.0);
    EXPECT_EQ(graph.n_nodes(), atoms);
    EXPECT_NEAR(static_cast<double>(graph.n_edges()) / static_cast<double>(atoms), 50, 6);
  }
  EXPECT_EQ(fastpath::Graph::from_structure(cluster(4), 5.0).n_edges(), 12);
}

}  // namespace
}  // namespace bench
