#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "fastpath/extxyz.hpp"
#include "fastpath/model.hpp"
#include "models/mace.hpp"
#include "test_data.hpp"

/// Small MACE models and structures that tests of the whole model share.
namespace fastpath::test {

using Json = nlohmann::json;
using Matrix3 = std::array<std::array<double, 3>, 3>;

/// operators.md 3.9: the model M1.
inline Json m1_config() {
  return {{"format", "fastpath-model"},
          {"format_version", 1},
          {"architecture", "mace"},
          {"dtype", "float64"},
          {"atomic_numbers", {1, 8}},
          {"r_max", 4.0},
          {"num_bessel", 4},
          {"polynomial_cutoff_p", 5},
          {"radial_mlp", {8, 8}},
          {"l_max", 3},
          {"hidden_irreps", "4x0e+4x1o"},
          {"num_interactions", 2},
          {"correlation", 3},
          {"interaction_first", "RealAgnosticInteractionBlock"},
          {"interaction", "RealAgnosticResidualInteractionBlock"},
          {"mlp_irreps", "4x0e"},
          {"avg_num_neighbors", 3.0}};
}

/// M2: densities, Agnesi transform and ZBL.
inline Json m2_config() {
  Json config = m1_config();
  config.update({{"polynomial_cutoff_p", 6},
                 {"avg_num_neighbors", 1.0},
                 {"interaction_first", "RealAgnosticDensityInteractionBlock"},
                 {"interaction", "RealAgnosticDensityResidualInteractionBlock"},
                 {"distance_transform", "agnesi"},
                 {"pair_repulsion", true}});
  return config;
}

/// A cheap model that variants start from.
inline Json small_config() {
  Json config = m1_config();
  config.update({{"l_max", 2}, {"hidden_irreps", "3x0e+3x1o"}, {"radial_mlp", {6}}, {"correlation", 2}});
  return config;
}

/// Sets the value of one tensor of a model, keeping its shape.
inline void set_tensor(Model& model, const std::string& name, const std::vector<double>& values) {
  StateDict state;
  state.add(name, Tensor::from<double>(model.state_dict().at(name).shape(), values));
  model.load_state_dict(state, Strictness::lenient);
}

/// The deterministic filler of operators.md 3.9.
inline std::vector<double> filler(const std::string& name, std::int64_t count) {
  std::uint64_t s = 14695981039346656037ull;
  for (const char c : name) s = (s ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) {
    s += 0x9E3779B97F4A7C15ull;
    std::uint64_t z = s;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    values.push_back(std::sqrt(3.0) * (2.0 * static_cast<double>(z >> 11) * 0x1.0p-53 - 1.0));
  }
  return values;
}

/// A model with the filler's parameters, reference energies, scale and shift of operators.md 3.9.
inline std::shared_ptr<Model> filled_model(const Json& config) {
  const auto model = Model::create(config.dump(), 0);
  StateDict state;
  for (const auto& [name, tensor] : model->state_dict()) state.add(name, tensor.clone());
  for (const auto& [name, tensor] : model->named_parameters()) {
    const std::vector<double> values = filler(name, tensor.numel());
    std::copy(values.begin(), values.end(), state.at(name).span<double>().begin());
  }
  const auto set = [&](const char* name, const std::vector<double>& values) {
    std::copy(values.begin(), values.end(), state.at(name).span<double>().begin());
  };
  set("atomic_energies_fn.atomic_energies", {-1.5, -4.25});
  set("scale_shift.scale", {0.75});
  set("scale_shift.shift", {-0.125});
  model->load_state_dict(state);
  return model;
}

/// Systems A, B and C of operators.md 3.9.
inline Structure system_a() {
  Structure s;
  s.atomic_numbers = {8, 1, 1};
  s.positions = {{0, -2, 0}, {1, 0, 0}, {0, 1, 0}};
  return s;
}
inline Structure system_b() {
  Structure s;
  s.atomic_numbers = {8, 1};
  s.positions = {{0.1, 0.2, 0.3}, {1.4, 1.5, 1.6}};
  s.cell = {{{3, 0, 0}, {0.3, 3.2, 0}, {0.1, -0.2, 3.4}}};
  s.pbc = {true, true, true};
  return s;
}
inline Structure system_c() {
  Structure s;
  s.atomic_numbers = {8, 1, 1};
  s.positions = {{0, 0, 0}, {0.6, 0, 0.3}, {-0.2, 0.5, 0.4}};
  return s;
}

inline std::shared_ptr<Model> mace_a() {
  static const auto model = Model::load(data_path("refdata/mace_a/model"));
  return model;
}
inline Structure mace_a_structure(const std::string& name) {
  return read_extxyz(data_path("refdata/mace_a/" + name + ".xyz")).front();
}

/// Cubic cells of `n` x `n` x `n` copies of a periodic structure.
inline Structure repeated(const Structure& s, int na, int nb, int nc) {
  Structure result = s;
  result.atomic_numbers.clear();
  result.positions.clear();
  for (int a = 0; a < na; ++a) {
    for (int b = 0; b < nb; ++b) {
      for (int c = 0; c < nc; ++c) {
        for (std::size_t n = 0; n < s.positions.size(); ++n) {
          Vec3 x = s.positions[n];
          for (std::size_t k = 0; k < 3; ++k) x[k] += a * s.cell[0][k] + b * s.cell[1][k] + c * s.cell[2][k];
          result.positions.push_back(x);
          result.atomic_numbers.push_back(s.atomic_numbers[n]);
        }
      }
    }
  }
  const std::array<int, 3> copies{na, nb, nc};
  for (std::size_t k = 0; k < 3; ++k) {
    for (double& x : result.cell[k]) x *= copies[k];
  }
  return result;
}

/// Options under which only the reference runs.
inline EvaluateOptions reference() {
  EvaluateOptions options;
  options.use_fast = UseFast::never;
  return options;
}

inline std::vector<double> reals(const Tensor& tensor) {
  const Tensor values = tensor.to(DType::float64).contiguous();
  const auto span = values.span<double>();
  return {span.begin(), span.end()};
}
inline std::vector<double> reals(const Matrix3& m) {
  std::vector<double> values;
  for (const auto& row : m) values.insert(values.end(), row.begin(), row.end());
  return values;
}
inline std::vector<double> reals(const std::vector<Vec3>& rows) {
  std::vector<double> values;
  for (const Vec3& row : rows) values.insert(values.end(), row.begin(), row.end());
  return values;
}

/// Every atom moved by step * direction[3 * n + k].
inline Structure displaced(Structure s, double step, const std::vector<double>& direction) {
  for (std::size_t i = 0; i < direction.size(); ++i) s.positions[i / 3][i % 3] += step * direction[i];
  return s;
}

/// Row vector times matrix.
inline Vec3 times(const Vec3& v, const Matrix3& m) {
  Vec3 result{};
  for (std::size_t j = 0; j < 3; ++j) result[j] = v[0] * m[0][j] + v[1] * m[1][j] + v[2] * m[2][j];
  return result;
}

/// Positions and cell as row vectors times a matrix.
inline Structure transformed(Structure s, const Matrix3& m) {
  for (Vec3& x : s.positions) x = times(x, m);
  for (Vec3& x : s.cell) x = times(x, m);
  return s;
}

/// A rotation drawn from a seed: a random unit quaternion.
inline Matrix3 random_rotation(std::uint64_t seed) {
  std::vector<double> q = random_values(4, seed);
  double norm = 0;
  for (const double x : q) norm += x * x;
  for (double& x : q) x /= std::sqrt(norm);
  const double a = q[0], b = q[1], c = q[2], d = q[3];
  return {{{a * a + b * b - c * c - d * d, 2 * (b * c - a * d), 2 * (b * d + a * c)},
           {2 * (b * c + a * d), a * a - b * b + c * c - d * d, 2 * (c * d - a * b)},
           {2 * (b * d - a * c), 2 * (c * d + a * b), a * a - b * b - c * c + d * d}}};
}

/// Rows of vectors, and a tensor of rank two, under the same transformation.
inline std::vector<double> transformed_rows(const std::vector<double>& rows, const Matrix3& m) {
  std::vector<double> result;
  for (std::size_t i = 0; i + 2 < rows.size(); i += 3) {
    const Vec3 row = times({rows[i], rows[i + 1], rows[i + 2]}, m);
    result.insert(result.end(), row.begin(), row.end());
  }
  return result;
}
inline Matrix3 transformed_tensor(const Matrix3& t, const Matrix3& m) {
  Matrix3 result{};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) {
      for (std::size_t k = 0; k < 3; ++k) {
        for (std::size_t l = 0; l < 3; ++l) result[i][j] += m[k][i] * t[k][l] * m[l][j];
      }
    }
  }
  return result;
}

/// 1 + step * strain.
inline Matrix3 strain_matrix(double step, const Matrix3& strain) {
  Matrix3 m{};
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j < 3; ++j) m[i][j] = (i == j ? 1.0 : 0.0) + step * strain[i][j];
  }
  return m;
}

}  // namespace fastpath::test
