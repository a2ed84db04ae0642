#pragma once

#include <array>

/// Constants of the real spherical harmonics, for every instruction set.
///
/// With u of length 1 and polar axis y, Y_{l,+m} = F_lm(y) Re (z + ix)^m and Y_{l,-m} = F_lm(y) Im (z + ix)^m, where
/// F_lm = N_lm d^m P_l / dy^m, P_l the Legendre polynomial and N_lm^2 = (2l+1) (2 - [m = 0]) (l-m)! / (l+m)!: the
/// "component" normalisation. For any u, F_lm is made homogeneous of degree l - m with powers of r^2.
namespace cpu_simd::harmonics {

/// Beyond it the recurrences over degrees no longer keep the precision contract for sure.
inline constexpr int kMaxDegree = 8;

/// Square root, also for the compiler, to the last bit but one at most.
constexpr double square_root(double x) {
  double root = x < 1.0 ? 1.0 : x;
  for (int i = 0; i < 80; ++i) root = 0.5 * (root + x / root);
  return root;
}
/// N_lm / N_kn.
constexpr double norm_ratio(int l, int m, int k, int n) {
  double square = (2.0 * l + 1.0) / (2.0 * k + 1.0) * ((m == 0 ? 1.0 : 2.0) / (n == 0 ? 1.0 : 2.0));
  for (int i = l - m + 1; i <= l + m; ++i) square /= i;
  for (int i = k - n + 1; i <= k + n; ++i) square *= i;
  return square_root(square);
}
/// F_mm, a constant.
constexpr double first(int m) {
  double value = norm_ratio(m, m, 0, 0);
  for (int i = 1; i < 2 * m; i += 2) value *= i;
  return value;
}
/// F_lm = up(l, m) y F_{l-1,m} - back(l, m) r^2 F_{l-2,m}, l > m.
constexpr double up(int l, int m) { return norm_ratio(l, m, l - 1, m) * (2 * l - 1) / (l - m); }
constexpr double back(int l, int m) { return l < m + 2 ? 0.0 : norm_ratio(l, m, l - 2, m) * (l + m - 1) / (l - m); }

struct Constants {
  std::array<std::array<double, kMaxDegree + 1>, kMaxDegree + 1> up{}, back{}, slope{}, along{}, across{};
  std::array<double, kMaxDegree + 1> first{};
};
/// slope: dF_lm/dy = slope F_{l,m+1} where r = 1. For any r, dF_lm/dy = along F_{l-1,m} - across y F_{l-1,m+1} + ..:
/// the gradient of F_lm is along F_{l-1,m} e_y - across F_{l-1,m+1} (x e_x + z e_z).
constexpr Constants make_constants() {
  Constants c;
  for (int m = 0; m <= kMaxDegree; ++m) {
    c.first[m] = first(m);
    for (int l = m + 1; l <= kMaxDegree; ++l) {
      c.up[l][m] = up(l, m);
      c.back[l][m] = back(l, m);
      c.slope[l][m] = norm_ratio(l, m, l, m + 1);
      c.along[l][m] = (l + m) * norm_ratio(l, m, l - 1, m);
      if (m + 1 <= l - 1) c.across[l][m] = norm_ratio(l, m, l - 1, m + 1);
    }
  }
  return c;
}
inline constexpr Constants kConstants = make_constants();

/// A shorter vector has no direction.
inline constexpr double kShortest = 1e-12;

}  // namespace cpu_simd::harmonics
