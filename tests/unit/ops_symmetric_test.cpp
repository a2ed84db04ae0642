#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "fastpath/error.hpp"
#include "fastpath/sdk/symmetric.hpp"
#include "ops/symmetric_contraction/basis.hpp"
#include "ops/symmetric_contraction/symmetric_contraction.hpp"
#include "support/ops_data.hpp"
#include "support/rotation.hpp"

namespace fastpath::ops {
namespace {

using sdk::SymmetricContractionConfig;
using sdk::SymmetricPolynomial;
using test::random_values;
using test::relative_error;

/// A symmetric contraction with its tables and weights.
struct Case {
  SymmetricContractionConfig config;
  SymmetricPolynomial polynomial;
  std::vector<std::vector<double>> weights;  // target-major, nu-minor

  Case(SymmetricContractionConfig c, const std::vector<std::vector<double>>& u) : config(std::move(c)) {
    std::vector<const double*> pointers;
    for (const auto& matrix : u) pointers.push_back(matrix.data());
    polynomial = SymmetricPolynomial::build(config, pointers.data());
  }
  /// With the basis of new models and random weights.
  static Case random(int l_max, std::vector<int> targets, int correlation, std::int64_t channels,
                     std::int64_t n_species) {
    SymmetricContractionConfig config;
    config.channels = channels;
    config.dim = (l_max + 1) * (l_max + 1);
    config.correlation = correlation;
    config.n_species = n_species;
    config.targets = std::move(targets);
    std::vector<std::vector<double>> u, w;
    for (const int target : config.targets) {
      config.n_paths.emplace_back();
      for (int nu = 1; nu <= correlation; ++nu) {
        std::int64_t k = 0;
        u.push_back(u_matrix(l_max, target, nu, &k));
        config.n_paths.back().push_back(k);
        w.push_back(random_values(n_species * k * channels, u.size()));
      }
    }
    Case result(config, u);
    result.weights = w;
    return result;
  }
};

template <class S>
std::vector<std::vector<S>> converted(const std::vector<std::vector<double>>& tensors) {
  std::vector<std::vector<S>> result;
  for (const auto& tensor : tensors) result.push_back(test::converted<S>(tensor));
  return result;
}

template <class S>
std::vector<S> forward(const Case& c, const std::vector<std::vector<S>>& weights, const std::vector<S>& x,
                       const std::vector<std::int32_t>& species) {
  std::vector<const S*> w;
  for (const auto& tensor : weights) w.push_back(tensor.data());
  std::vector<S> out(species.size() * static_cast<std::size_t>(c.config.out_dim()), S(99));
  symmetric_contraction_forward<S>(c.config, c.polynomial, static_cast<std::int64_t>(species.size()), x.data(),
                                   species.data(), w.data(), out.data());
  return out;
}

template <class S>
struct Gradients {
  std::vector<S> x;
  std::vector<std::vector<S>> weights;
};

template <class S>
Gradients<S> backward(const Case& c, const std::vector<std::vector<S>>& weights, const std::vector<S>& x,
                      const std::vector<std::int32_t>& species, const std::vector<S>& grad_out) {
  Gradients<S> g{std::vector<S>(x.size(), S(99)), weights};
  std::vector<const S*> w;
  std::vector<S*> gw;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    w.push_back(weights[i].data());
    g.weights[i].assign(weights[i].size(), S(99));
    gw.push_back(g.weights[i].data());
  }
  symmetric_contraction_backward<S>(c.config, c.polynomial, static_cast<std::int64_t>(species.size()), x.data(),
                                    species.data(), w.data(), grad_out.data(), g.x.data(), gw.data());
  return g;
}

std::vector<std::int32_t> cycling_species(std::int64_t n, std::int64_t n_species) {
  std::vector<std::int32_t> species;
  for (std::int64_t i = 0; i < n; ++i) species.push_back(static_cast<std::int32_t>((i * 3 + 1) % n_species));
  return species;
}

TEST(SymmetricBasis, HasThePublishedSizesAndSymmetrisesToThePublishedMonomials) {
  struct Row {
    int l_max, target;
    std::array<std::int64_t, 3> k, nonzeros, monomials;
  };
  const std::vector<Row> table{
      {1, 0, {1, 2, 4}, {1, 4, 10}, {1, 4, 4}},        {1, 1, {1, 2, 6}, {3, 6, 51}, {3, 3, 12}},
      {2, 0, {1, 3, 11}, {1, 9, 83}, {1, 9, 25}},      {2, 1, {1, 4, 21}, {3, 28, 507}, {3, 14, 56}},
      {2, 2, {1, 4, 23}, {5, 46, 976}, {5, 29, 89}},   {3, 0, {1, 4, 23}, {1, 16, 353}, {1, 16, 77}},
      {3, 1, {1, 6, 51}, {3, 70, 2838}, {3, 35, 278}}, {3, 2, {1, 7, 65}, {5, 129, 5782}, {5, 74, 398}},
  };
  for (const Row& row : table) {
    for (int nu = 1; nu <= 3; ++nu) {
      SCOPED_TRACE(testing::Message() << "l_max " << row.l_max << ", target " << row.target << ", nu " << nu);
      const auto index = static_cast<std::size_t>(nu - 1);
      std::int64_t k = 0;
      const std::vector<double> u = u_matrix(row.l_max, row.target, nu, &k);
      EXPECT_EQ(count_paths(row.l_max, row.target, nu), static_cast<double>(k));
      ASSERT_EQ(k, row.k[index]);
      std::int64_t nonzeros = 0;
      for (const double value : u) nonzeros += std::abs(value) > 1e-12 ? 1 : 0;
      EXPECT_EQ(nonzeros, row.nonzeros[index]);
    }
    const Case c = Case::random(row.l_max, {row.target}, 3, 1, 1);
    std::array<std::int64_t, 3> rows{};
    for (const auto& r : c.polynomial.rows) ++rows[static_cast<std::size_t>(r.tensor)];
    EXPECT_EQ(rows, row.monomials) << "l_max " << row.l_max << ", target " << row.target;
  }
}

TEST(SymmetricBasis, KeepsOnlyNaturalParityAtFourFactors) {
  std::int64_t k = 0;
  const std::vector<double> u = u_matrix(1, 0, 4, &k);
  EXPECT_EQ(k, 9);
  EXPECT_EQ(u.size(), 256u * 9u);
}

TEST(SymmetricBasis, RefusesSizesThatDoNotExist) {
  std::int64_t k = 0;
  EXPECT_THROW(u_matrix(-1, 0, 1, &k), Error);
  EXPECT_THROW(u_matrix(1, -1, 1, &k), Error);
  EXPECT_THROW(u_matrix(1, 0, 0, &k), Error);
  EXPECT_THROW(u_matrix(1, 0, 5, &k), Error);
}

TEST(SymmetricBasis, EqualsTheTensorsOfTheReferencePackageInOrderAndSign) {
  const test::TestData contraction("refdata/symcontr_l2_corr3_L2.safetensors");
  const test::TestData model("refdata/mace_a/model/model.safetensors");
  const auto compare = [](const test::TestData& data, const std::string& prefix, int l_max, int n_targets) {
    for (int target = 0; target < n_targets; ++target) {
      for (int nu = 1; nu <= 3; ++nu) {
        std::string name = prefix;
        name.append(std::to_string(target)).append(".U_matrix_").append(std::to_string(nu));
        std::int64_t k = 0;
        EXPECT_LE(relative_error(u_matrix(l_max, target, nu, &k), data.reals(name)), 4e-16 * (1 << nu)) << name;
        EXPECT_EQ(k, data.shape(name).back()) << name;
      }
    }
  };
  compare(contraction, "sd:contractions.", 2, 3);
  compare(model, "products.0.symmetric_contractions.contractions.", 3, 2);
}

/// Test vector of operators.md 2.8: one channel, l_max 1, targets 0 and 1, its own U.
Case published_case() {
  SymmetricContractionConfig config;
  config.channels = 1;
  config.dim = 4;
  config.correlation = 3;
  config.n_species = 2;
  config.targets = {0, 1};
  config.n_paths = {{1, 2, 4}, {1, 2, 6}};
  const double s = 1 / std::sqrt(3.0), p = 0.5163977794943222, q = 0.3872983346207416, r = -0.2581988897471611;
  std::vector<double> a1(4), a2(16 * 2), a3(64 * 4), b1(3 * 4), b2(3 * 16 * 2), b3(3 * 64 * 6);
  const auto A3 = [&](int i, int j, int l, int k) -> double& {
    return a3[static_cast<std::size_t>(((i * 4 + j) * 4 + l) * 4 + k)];
  };
  const auto B2 = [&](int m, int i, int j, int k) -> double& {
    return b2[static_cast<std::size_t>(((m * 4 + i) * 4 + j) * 2 + k)];
  };
  const auto B3 = [&](int m, int i, int j, int l, int k) -> double& {
    return b3[static_cast<std::size_t>((((m * 4 + i) * 4 + j) * 4 + l) * 6 + k)];
  };
  a1[0] = 1;
  a2[0] = 1;
  A3(0, 0, 0, 0) = 1;
  for (int i = 1; i <= 3; ++i) {
    a2[static_cast<std::size_t>((i * 4 + i) * 2 + 1)] = s;
    A3(i, i, 0, 1) = A3(0, i, i, 2) = A3(i, 0, i, 3) = s;
  }
  for (int m = 0; m < 3; ++m) {
    b1[static_cast<std::size_t>(m * 4 + m + 1)] = 1;
    B2(m, 0, m + 1, 0) = B2(m, m + 1, 0, 1) = 1;
    B3(m, 0, 0, m + 1, 0) = B3(m, 0, m + 1, 0, 2) = B3(m, m + 1, 0, 0, 3) = 1;
    B3(m, m + 1, m + 1, m + 1, 5) = p;
    for (int j = 1; j <= 3; ++j) {
      B3(m, j, j, m + 1, 1) = s;
      if (j == m + 1) continue;
      B3(m, m + 1, j, j, 4) = -0.5;
      B3(m, j, m + 1, j, 4) = 0.5;
      B3(m, m + 1, j, j, 5) = B3(m, j, m + 1, j, 5) = q;
      B3(m, j, j, m + 1, 5) = r;
    }
  }
  Case c(config, {a1, a2, a3, b1, b2, b3});
  c.weights = {
      {-.75, -.25}, {-.75, -.25, .25, .75}, {-.75, -.25, .25, .75, 1.25, -.75, -.25, .25},
      {-.75, -.25}, {-.75, -.25, .25, .75}, {-.75, -.25, .25, .75, 1.25, -.75, -.25, .25, .75, 1.25, -.75, -.25}};
  return c;
}

TEST(SymmetricContraction, MatchesThePublishedVector) {
  const Case c = published_case();
  const std::vector<double> x{0.5, 1, -2, 3, 1, 0.25, 0.5, -1};
  EXPECT_LE(relative_error(forward(c, c.weights, x, {0, 1}),
                           std::vector{0.3541129710818442, -8.630402626854071, 17.26080525370815, -25.89120788056222,
                                       1.25, 0.6300000089203177, 1.260000017840636, -2.520000035681271}),
            1e-14);
  const auto g = backward(c, c.weights, x, {0, 1}, {1, 2, 3, 4, 1, -1, .5, 2});
  EXPECT_LE(
      relative_error(g.x, std::vector{-2.000322173508929, -25.622642117101105, -9.167534153776305, -59.60712109759517,
                                      -5.568329171233534, -2.5352381581050967, 1.2295237729929842, 5.100952561057845}),
      1e-14);
}

class SymmetricContractionReference : public testing::Test {
 protected:
  SymmetricContractionReference() {
    SymmetricContractionConfig config;
    config.channels = 5;
    config.dim = 9;
    config.correlation = 3;
    config.n_species = 4;
    config.targets = {0, 1, 2};
    std::vector<std::vector<double>> u, w;
    for (int target = 0; target < 3; ++target) {
      config.n_paths.emplace_back();
      for (int nu = 1; nu <= 3; ++nu) {
        std::string prefix("contractions.");
        prefix.append(std::to_string(target)).append(".");
        std::string weight(prefix);
        weight.append(nu == 3 ? "weights_max" : nu == 2 ? "weights.0" : "weights.1");
        std::string u_name("sd:");
        u_name.append(prefix).append("U_matrix_").append(std::to_string(nu));
        u.push_back(data.reals(u_name));
        w.push_back(data.reals("sd:" + weight));
        config.n_paths.back().push_back(data.shape(u_name).back());
        names.push_back(weight);
      }
    }
    c = std::make_unique<Case>(config, u);
    c->weights = w;
    for (const std::int64_t z : data.integers("element")) species.push_back(static_cast<std::int32_t>(z));
  }
  test::TestData data{"refdata/symcontr_l2_corr3_L2.safetensors"};
  std::unique_ptr<Case> c;
  std::vector<std::string> names;
  std::vector<std::int32_t> species;
};

TEST_F(SymmetricContractionReference, MatchesForwardAndBackward) {
  const auto x = data.reals("x");
  EXPECT_LE(relative_error(forward(*c, c->weights, x, species), data.reals("out")), 1e-14);
  const auto g = backward(*c, c->weights, x, species, data.reals("ct"));
  EXPECT_LE(relative_error(g.x, data.reals("gx")), 1e-14);
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_LE(relative_error(g.weights[i], data.reals("grad:" + names[i])), 1e-14) << names[i];
  }
}

TEST_F(SymmetricContractionReference, MatchesSecondDerivatives) {
  // M = sum(gx cx) is the derivative of sum(out ct) along cx, so its gradient is the derivative of gx along cx.
  std::vector<test::Duals> weights;
  for (const auto& tensor : c->weights) weights.push_back(test::duals(tensor));
  const auto g =
      backward(*c, weights, test::duals(data.reals("x"), data.reals("cx")), species, test::duals(data.reals("ct")));
  EXPECT_LE(relative_error(test::tangents_of(g.x), data.reals("g2x")), 1e-14);
}

TEST(SymmetricContraction, GradientsMatchFiniteDifferences) {
  for (const int correlation : {1, 2, 3, 4}) {
    SCOPED_TRACE(testing::Message() << "correlation " << correlation);
    const int l_max = correlation == 4 ? 1 : 2;
    const Case c = Case::random(l_max, {1, 0}, correlation, 3, 3);
    const std::int64_t n = 4;
    const std::vector<std::int32_t> species{2, 0, 2, 2};
    const auto x = random_values(n * 3 * c.config.dim, 1), dx = random_values(n * 3 * c.config.dim, 2);
    const auto ct = random_values(n * c.config.out_dim(), 3);
    const auto g = backward(c, c.weights, x, species, ct);

    // Degree `correlation` in x: the five point rule is exact.
    const double along_x = test::derivative(
        [&](double h) { return test::dot(ct, forward(c, c.weights, test::moved(x, h, dx), species)); }, 0.25);
    EXPECT_NEAR(test::dot(g.x, dx), along_x, 1e-11 * std::abs(along_x));

    std::vector<std::vector<double>> dw;
    double actual = 0;
    for (std::size_t i = 0; i < c.weights.size(); ++i) {
      dw.push_back(random_values(static_cast<std::int64_t>(c.weights[i].size()), 10 + i));
      actual += test::dot(g.weights[i], dw[i]);
    }
    const double along_w = test::derivative(
        [&](double h) {
          auto w = c.weights;
          for (std::size_t i = 0; i < w.size(); ++i) w[i] = test::moved(w[i], h, dw[i]);
          return test::dot(ct, forward(c, w, x, species));
        },
        0.5);
    EXPECT_NEAR(actual, along_w, 1e-11 * std::abs(along_w));
  }
}

TEST(SymmetricContraction, RotatesWithItsInput) {
  const Case c = Case::random(3, {0, 1, 2}, 3, 2, 2);
  const sdk::Irreps components = sdk::Irreps::natural(1, 3), out = sdk::Irreps::parse("2x0e+2x1o+2x2e");
  const auto rotation = test::Rotation::example(3);
  const std::vector<std::int32_t> species{1, 0, 1};
  const auto x = random_values(3 * 2 * 16, 1);
  EXPECT_LE(relative_error(forward(c, c.weights, rotation.apply(components, x), species),
                           rotation.apply(out, forward(c, c.weights, x, species))),
            1e-13);
}

TEST(SymmetricContraction, FourFactorsRotateWithTheirInput) {
  const Case c = Case::random(2, {0, 1}, 4, 1, 1);
  const auto rotation = test::Rotation::example(2);
  const auto x = random_values(9, 1);
  EXPECT_LE(relative_error(forward(c, c.weights, rotation.apply(sdk::Irreps::natural(1, 2), x), {0}),
                           rotation.apply(sdk::Irreps::parse("0e+1o"), forward(c, c.weights, x, {0}))),
            1e-13);
}

TEST(SymmetricContraction, FloatRoundsNothingButItsResults) {
  const Case c = Case::random(3, {0, 1, 2}, 3, 32, 3);
  const std::int64_t n = 60;
  const auto species = cycling_species(n, 3);
  const auto x = test::converted<float>(random_values(n * 32 * 16, 1));
  const auto ct = test::converted<float>(random_values(n * c.config.out_dim(), 2));
  const auto wf = converted<float>(c.weights);
  std::vector<std::vector<double>> wd;
  for (const auto& tensor : wf) wd.push_back(test::converted<double>(tensor));
  const auto xd = test::converted<double>(x), ctd = test::converted<double>(ct);
  EXPECT_EQ(forward(c, wf, x, species), test::converted<float>(forward(c, wd, xd, species)));
  const auto gf = backward(c, wf, x, species, ct);
  const auto gd = backward(c, wd, xd, species, ctd);
  EXPECT_EQ(gf.x, test::converted<float>(gd.x));
  for (std::size_t i = 0; i < wf.size(); ++i) EXPECT_EQ(gf.weights[i], test::converted<float>(gd.weights[i])) << i;
}

TEST(SymmetricContraction, AbsentSpeciesAndNoRowsGetZeroWeightGradients) {
  const Case c = Case::random(1, {0, 1}, 3, 2, 3);
  const auto x = random_values(2 * 2 * 4, 1), ct = random_values(2 * c.config.out_dim(), 2);
  const auto g = backward(c, c.weights, x, {2, 0}, ct);
  for (const auto& tensor : g.weights) {
    const std::size_t slice = tensor.size() / 3;
    for (std::size_t i = 0; i < slice; ++i) {
      EXPECT_EQ(tensor[slice + i], 0.0);
      EXPECT_NE(tensor[i], 99.0);
      EXPECT_NE(tensor[2 * slice + i], 99.0);
    }
  }
  EXPECT_TRUE(forward<double>(c, c.weights, {}, {}).empty());
  for (const auto& tensor : backward<double>(c, c.weights, {}, {}, {}).weights) {
    EXPECT_EQ(tensor, std::vector<double>(tensor.size(), 0.0));
  }
}

TEST(SymmetricContraction, ZeroInputGivesExactZeros) {
  const Case c = Case::random(2, {0, 1, 2}, 3, 2, 1);
  const std::vector<double> out = forward(c, c.weights, std::vector<double>(18, 0.0), {0});
  EXPECT_EQ(out, std::vector<double>(18, 0.0));
}

TEST(SymmetricContraction, WritesOnlyTheWantedGradients) {
  const Case c = Case::random(1, {0}, 2, 1, 1);
  const std::vector<double> x{1, 2, 3, 4}, ct{2};
  const std::int32_t species = 0;
  const auto all = backward(c, c.weights, x, {0}, ct);
  std::vector<const double*> w{c.weights[0].data(), c.weights[1].data()};
  std::vector<double> only(c.weights[1].size(), 99.0);
  std::vector<double*> gw{nullptr, only.data()};
  symmetric_contraction_backward<double>(c.config, c.polynomial, 1, x.data(), &species, w.data(), ct.data(), nullptr,
                                         gw.data());
  EXPECT_EQ(only, all.weights[1]);
  std::vector<double> gx(4, 99.0);
  symmetric_contraction_backward<double>(c.config, c.polynomial, 1, x.data(), &species, w.data(), ct.data(), gx.data(),
                                         nullptr);
  EXPECT_EQ(gx, all.x);
}

TEST(SymmetricContraction, RefusesACorrelationAboveFour) {
  SymmetricContractionConfig config;
  config.correlation = 5;
  EXPECT_THROW(SymmetricPolynomial::build<double>(config, nullptr), sdk::ConfigError);
}

}  // namespace
}  // namespace fastpath::ops
