#include "fastpath/sdk/coupling.hpp"

#include <gmock/gmock.h>

#include <set>
#include <thread>
#include <utility>

namespace fastpath::sdk {
namespace {

constexpr double kExact = 1e-15;  // values below 1 with a few roundings each

template <class Visit>
void for_each_triple(int l_max, const Visit& visit) {
  for (int a = 0; a <= l_max; ++a) {
    for (int b = 0; b <= l_max; ++b) {
      for (int c = std::abs(a - b); c <= std::min(a + b, l_max); ++c) visit(coupling(a, b, c));
    }
  }
}

using Matrix = std::vector<double>;  // square, row-major

Matrix product(const Matrix& a, const Matrix& b, std::size_t n) {
  Matrix c(n * n, 0.0);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) {
      for (std::size_t k = 0; k < n; ++k) c[i * n + k] += a[i * n + j] * b[j * n + k];
    }
  }
  return c;
}

Matrix rotation() {
  const double a = 0.7, b = -1.9, c = 2.6;
  const Matrix about_y{std::cos(a), 0, std::sin(a), 0, 1, 0, -std::sin(a), 0, std::cos(a)};
  const Matrix about_x{1, 0, 0, 0, std::cos(b), -std::sin(b), 0, std::sin(b), std::cos(b)};
  const Matrix about_z{std::cos(c), -std::sin(c), 0, std::sin(c), std::cos(c), 0, 0, 0, 1};
  return product(product(about_y, about_x, 3), about_z, 3);
}

/// How each degree rotates: degree 1 as a vector, degree l as the top part of the product of degrees l - 1 and 1.
std::vector<Matrix> rotations(int l_max) {
  const Matrix r = rotation();
  std::vector<Matrix> d{{1.0}, r};
  for (int l = 2; l <= l_max; ++l) {
    const auto n = static_cast<std::size_t>(2 * l + 1);
    Matrix next(n * n, 0.0);
    for (const auto& a : coupling(l, l - 1, 1).nonzero) {
      for (const auto& b : coupling(l, l - 1, 1).nonzero) {
        next[static_cast<std::size_t>(a.i) * n + static_cast<std::size_t>(b.i)] +=
            static_cast<double>(n) * a.value * b.value * d.back()[static_cast<std::size_t>(a.j * (2 * l - 1) + b.j)] *
            r[static_cast<std::size_t>(a.k * 3 + b.k)];
      }
    }
    d.push_back(next);
  }
  return d;
}

TEST(Coupling, HasThePublishedValues) {
  for (int l = 0; l <= 6; ++l) {
    for (int i = 0; i <= 2 * l; ++i) {
      for (int j = 0; j <= 2 * l; ++j) {
        const double expected = i == j ? 1 / std::sqrt(2.0 * l + 1) : 0.0;
        EXPECT_NEAR(coupling(l, l, 0).at(i, j, 0), expected, kExact);
        EXPECT_NEAR(coupling(0, l, l).at(0, i, j), expected, kExact);
      }
    }
  }
  const CouplingTensor& cross = coupling(1, 1, 1);
  EXPECT_NEAR(cross.at(0, 1, 2), 0.4082482904638631, kExact);
  EXPECT_NEAR(cross.at(1, 2, 0), 0.4082482904638631, kExact);
  EXPECT_NEAR(cross.at(1, 0, 2), -0.4082482904638631, kExact);

  const CouplingTensor& c = coupling(1, 1, 2);
  EXPECT_EQ(c.nonzero.size(), 11u);
  EXPECT_NEAR(c.at(0, 0, 2), -0.18257418583505536, kExact);
  EXPECT_NEAR(c.at(0, 0, 4), -0.3162277660168379, kExact);
  for (const auto& [i, j, k] : {std::array{0, 1, 1}, {0, 2, 0}, {1, 0, 1}, {1, 2, 3}, {2, 0, 0}, {2, 1, 3}}) {
    EXPECT_NEAR(c.at(i, j, k), 0.3162277660168379, kExact);
  }
  EXPECT_NEAR(c.at(1, 1, 2), 0.36514837167011077, kExact);
  EXPECT_NEAR(c.at(2, 2, 2), -0.18257418583505536, kExact);
  EXPECT_NEAR(c.at(2, 2, 4), 0.3162277660168379, kExact);

  const CouplingTensor& d = coupling(2, 2, 2);
  EXPECT_EQ(d.nonzero.size(), 25u);
  EXPECT_NEAR(d.at(0, 0, 2), -0.2390457218668787, kExact);
  EXPECT_NEAR(d.at(0, 1, 3), 0.2070196678027062, kExact);
  EXPECT_NEAR(d.at(1, 1, 2), 0.1195228609334394, kExact);
}

TEST(Coupling, HasThePublishedNumbersOfNonZeros) {
  struct Row {
    int l1, l2, l3;
    std::size_t nonzeros, pairs;
  };
  const std::vector<Row> rows{
      {1, 1, 0, 3, 3},   {1, 1, 1, 6, 6},   {1, 1, 2, 11, 11}, {1, 2, 1, 11, 9},  {1, 2, 2, 16, 14}, {1, 2, 3, 21, 19},
      {1, 3, 2, 21, 15}, {1, 3, 3, 26, 20}, {2, 1, 1, 11, 11}, {2, 1, 2, 16, 16}, {2, 1, 3, 21, 21}, {2, 2, 0, 5, 5},
      {2, 2, 1, 16, 14}, {2, 2, 2, 25, 23}, {2, 2, 3, 28, 26}, {2, 3, 1, 21, 15}, {2, 3, 2, 28, 20}, {2, 3, 3, 41, 31},
      {3, 3, 0, 7, 7},   {3, 3, 1, 26, 20}, {3, 3, 2, 41, 31}, {3, 3, 3, 42, 42}, {3, 1, 2, 21, 21}, {3, 2, 1, 21, 19},
      {3, 2, 3, 41, 39}, {4, 4, 4, 97, 77}};
  for (const Row& row : rows) {
    const CouplingTensor& c = coupling(row.l1, row.l2, row.l3);
    std::set<std::pair<int, int>> pairs;
    for (const auto& entry : c.nonzero) pairs.emplace(entry.i, entry.k);
    EXPECT_EQ(c.nonzero.size(), row.nonzeros) << row.l1 << row.l2 << row.l3;
    EXPECT_EQ(pairs.size(), row.pairs) << row.l1 << row.l2 << row.l3;
  }
}

TEST(Coupling, ListsExactlyTheNonZeroElements) {
  for_each_triple(5, [](const CouplingTensor& c) {
    std::vector<double> dense(c.dense.size(), 0.0);
    for (const auto& e : c.nonzero) {
      EXPECT_NE(e.value, 0.0);
      dense[static_cast<std::size_t>((e.i * (2 * c.l2 + 1) + e.j) * (2 * c.l3 + 1) + e.k)] = e.value;
    }
    EXPECT_EQ(dense, c.dense);
  });
}

TEST(Coupling, IsOrthonormalAndHasThePermutationSymmetriesUpToDegreeTwelve) {
  for_each_triple(12, [](const CouplingTensor& c) {
    const CouplingTensor& cyclic = coupling(c.l2, c.l3, c.l1);
    const CouplingTensor& swapped = coupling(c.l2, c.l1, c.l3);
    const int sign = (c.l1 + c.l2 + c.l3) % 2 == 0 ? 1 : -1;
    ASSERT_EQ(cyclic.nonzero.size(), c.nonzero.size());
    ASSERT_EQ(swapped.nonzero.size(), c.nonzero.size());
    const int n3 = 2 * c.l3 + 1;
    std::vector<double> gram(static_cast<std::size_t>(n3 * n3), 0.0);
    double worst = 0;
    for (int i = 0; i <= 2 * c.l1; ++i) {
      for (int j = 0; j <= 2 * c.l2; ++j) {
        for (int k = 0; k < n3; ++k) {
          worst = std::max(worst, std::abs(c.at(i, j, k) - cyclic.at(j, k, i)));
          worst = std::max(worst, std::abs(c.at(i, j, k) - sign * swapped.at(j, i, k)));
          for (int m = 0; m < n3; ++m) gram[static_cast<std::size_t>(k * n3 + m)] += c.at(i, j, k) * c.at(i, j, m);
        }
      }
    }
    for (int k = 0; k < n3; ++k) {
      for (int m = 0; m < n3; ++m) {
        const double expected = k == m ? 1.0 / n3 : 0.0;
        worst = std::max(worst, std::abs(gram[static_cast<std::size_t>(k * n3 + m)] - expected));
      }
    }
    ASSERT_LE(worst, kExact) << c.l1 << ' ' << c.l2 << ' ' << c.l3;
  });
}

TEST(Coupling, IsInvariantUnderRotation) {
  const std::vector<Matrix> d = rotations(8);
  const auto element = [&](int l, int i, int j) {
    return d[static_cast<std::size_t>(l)][static_cast<std::size_t>(i * (2 * l + 1) + j)];
  };
  for_each_triple(8, [&](const CouplingTensor& c) {
    if (c.l1 > c.l2 || c.l2 > c.l3) return;  // the others follow from the permutation symmetries
    const int n1 = 2 * c.l1 + 1, n2 = 2 * c.l2 + 1, n3 = 2 * c.l3 + 1;
    std::vector<double> first(c.dense.size(), 0.0), second(c.dense.size(), 0.0), third(c.dense.size(), 0.0);
    const auto at = [&](int i, int j, int k) { return static_cast<std::size_t>((i * n2 + j) * n3 + k); };
    for (int i = 0; i < n1; ++i) {
      for (int j = 0; j < n2; ++j) {
        for (int k = 0; k < n3; ++k) {
          for (int m = 0; m < n1; ++m) first[at(i, j, k)] += element(c.l1, i, m) * c.dense[at(m, j, k)];
        }
      }
    }
    for (int i = 0; i < n1; ++i) {
      for (int j = 0; j < n2; ++j) {
        for (int k = 0; k < n3; ++k) {
          for (int m = 0; m < n2; ++m) second[at(i, j, k)] += element(c.l2, j, m) * first[at(i, m, k)];
        }
      }
    }
    double worst = 0;
    for (int i = 0; i < n1; ++i) {
      for (int j = 0; j < n2; ++j) {
        for (int k = 0; k < n3; ++k) {
          for (int m = 0; m < n3; ++m) third[at(i, j, k)] += element(c.l3, k, m) * second[at(i, j, m)];
          worst = std::max(worst, std::abs(third[at(i, j, k)] - c.dense[at(i, j, k)]));
        }
      }
    }
    ASSERT_LE(worst, 3e-15) << c.l1 << ' ' << c.l2 << ' ' << c.l3;  // roundings of the rotation matrices
  });
}

TEST(Coupling, StaysAccurateAtTheLargestDegrees) {
  double sum = 0;
  for (const auto& entry : coupling(20, 21, 21).nonzero) sum += entry.value * entry.value;
  EXPECT_NEAR(sum, 1.0, 1e-14);  // 1e4 squares
  EXPECT_NEAR(coupling(31, 31, 0).at(5, 5, 0), 1 / std::sqrt(63.0), kExact);
}

TEST(Coupling, RefusesWhatCannotCoupleOrIsTooLarge) {
  EXPECT_THROW(coupling(1, 1, 3), ConfigError);
  EXPECT_THROW(coupling(3, 1, 1), ConfigError);
  EXPECT_THROW(coupling(-1, 1, 0), ConfigError);
  EXPECT_THROW(coupling(21, 21, 21), ConfigError);
  EXPECT_THROW(coupling(2147483647, 2147483647, 1), ConfigError);
}

TEST(Coupling, GivesAllThreadsTheSameTensor) {
  std::vector<const CouplingTensor*> seen(8);
  std::vector<std::thread> threads;
  for (const CouplingTensor*& result : seen) threads.emplace_back([&result] { result = &coupling(9, 10, 11); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(seen, ::testing::Each(&coupling(9, 10, 11)));
}

}  // namespace
}  // namespace fastpath::sdk
