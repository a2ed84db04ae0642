#include "ops/edge_geometry/edge_geometry.hpp"

#include <gmock/gmock.h>

#include "support/ops_data.hpp"

namespace fastpath::ops {
namespace {

using namespace test;

template <class S>
std::vector<S> lengths(const std::vector<S>& vectors) {
  std::vector<S> result(vectors.size() / 3, S(99));
  edge_lengths_forward<S>(static_cast<std::int64_t>(result.size()), vectors.data(), result.data());
  return result;
}

template <class S>
std::vector<S> lengths_gradient(const std::vector<S>& vectors, const std::vector<S>& grad) {
  std::vector<S> result(vectors.size(), S(99));
  edge_lengths_backward<S>(static_cast<std::int64_t>(grad.size()), vectors.data(), grad.data(), result.data());
  return result;
}

TEST(EdgeGeometry, LengthsAndTheirGradient) {
  EXPECT_EQ(lengths<double>({3, 0, 4, 1, 2, 2}), (Reals{5, 3}));
  EXPECT_LE(relative_error(lengths_gradient<double>({3, 0, 4, 1, 2, 2}, {10, 3}), {6, 0, 8, 1, 2, 2}), 1e-15);
  EXPECT_LE(relative_error(lengths<float>({3, 0, 4, 1, 2, 3}), {5, std::sqrt(14.0)}), 1e-7);
}

TEST(EdgeGeometry, ZeroVectorHasLengthZeroAndNoGradient) {
  EXPECT_EQ(lengths<double>({0, 0, 0}), (Reals{0}));
  EXPECT_EQ(lengths_gradient<double>({0, 0, 0}, {1}), (Reals{0, 0, 0}));
  const Duals vectors(3, {0.0, 1.0});
  EXPECT_EQ(lengths(vectors)[0].tangent, 0.0);
  EXPECT_THAT(tangents_of(lengths_gradient(vectors, Duals(1, {1.0, 1.0}))), ::testing::Each(0.0));
}

TEST(EdgeGeometry, TangentsMatchFiniteDifferences) {
  const Reals vectors = random_values(15, 1), direction = random_values(15, 2), grad = random_values(5, 3);
  EXPECT_LE(relative_error(tangents_of(lengths(duals(vectors, direction))),
                           difference([](const Reals& v) { return lengths(v); }, vectors, direction)),
            1e-8);
  EXPECT_LE(
      relative_error(tangents_of(lengths_gradient(duals(vectors, direction), duals(grad))),
                     difference([&](const Reals& v) { return lengths_gradient(v, grad); }, vectors, direction, 1e-4)),
      1e-8);
}

/// E = sum over edges of w_e . sin(v_e), on 4 nodes with a self-image and a repeated pair; node 3 has no edge.
struct Springs {
  Indices sender{0, 1, 1, 2, 0, 0}, receiver{1, 0, 2, 1, 0, 1};
  Reals positions = random_values(12, 5), shifts = random_values(18, 6), w = random_values(18, 7);

  Reals vectors(const Reals& at) const {
    Reals v = shifts;
    for (std::size_t e = 0; e < 6; ++e) {
      for (std::size_t k = 0; k < 3; ++k) {
        v[3 * e + k] +=
            at[3 * static_cast<std::size_t>(receiver[e]) + k] - at[3 * static_cast<std::size_t>(sender[e]) + k];
      }
    }
    return v;
  }
  double energy(const Reals& v) const {
    double sum = 0;
    for (std::size_t i = 0; i < v.size(); ++i) sum += w[i] * std::sin(v[i]);
    return sum;
  }
  Reals gradient(const Reals& v) const {
    Reals g;
    for (std::size_t i = 0; i < v.size(); ++i) g.push_back(w[i] * std::cos(v[i]));
    return g;
  }
};

TEST(EdgeGeometry, ForcesAreMinusTheGradientOfTheEnergyAndAddUpToZero) {
  const Springs springs;
  const Reals g = springs.gradient(springs.vectors(springs.positions));
  Reals forces(12, 99.0);
  accumulate_forces<double>(4, 6, springs.sender.data(), springs.receiver.data(), g.data(), forces.data());
  for (std::size_t i = 0; i < 12; ++i) {
    Reals direction(12, 0.0);
    direction[i] = 1.0;
    const Reals slope = difference([&](const Reals& at) { return Reals{springs.energy(springs.vectors(at))}; },
                                   springs.positions, direction);
    EXPECT_NEAR(forces[i], -slope[0], 1e-10);
  }
  for (std::size_t k = 0; k < 3; ++k) {
    EXPECT_NEAR(forces[k] + forces[3 + k] + forces[6 + k] + forces[9 + k], 0.0, 1e-15);
    EXPECT_EQ(forces[9 + k], 0.0);
  }
  Reals from_float(12, 99.0);
  accumulate_forces<float>(4, 6, springs.sender.data(), springs.receiver.data(), converted<float>(g).data(),
                           from_float.data());
  EXPECT_LE(relative_error(from_float, forces), 1e-6);
}

TEST(EdgeGeometry, VirialIsMinusTheStrainDerivativeOfTheEnergy) {
  const Springs springs;
  const Reals v = springs.vectors(springs.positions);
  const auto virial = accumulate_virial<double>(6, v.data(), springs.gradient(v).data());
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      Reals direction(18, 0.0);  // v epsilon with the symmetric strain of (i, j)
      for (std::size_t e = 0; e < 6; ++e) {
        direction[3 * e + j] += 0.5 * v[3 * e + i];
        direction[3 * e + i] += 0.5 * v[3 * e + j];
      }
      const Reals slope = difference([&](const Reals& at) { return Reals{springs.energy(at)}; }, v, direction);
      EXPECT_NEAR(virial[3 * i + j], -slope[0], 1e-9);
      EXPECT_EQ(virial[3 * i + j], virial[3 * j + i]);
    }
  }
}

TEST(EdgeGeometry, NoEdgesGiveZeroForces) {
  Reals forces(6, 99.0);
  accumulate_forces<double>(2, 0, nullptr, nullptr, nullptr, forces.data());
  EXPECT_THAT(forces, ::testing::Each(0.0));
  EXPECT_THAT((accumulate_virial<double>(0, nullptr, nullptr)), ::testing::Each(0.0));
}

}  // namespace
}  // namespace fastpath::ops
