#include "train/statistics.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "fastpath/error.hpp"

namespace fastpath::training {
namespace {

/// Eigenvalues and eigenvectors (columns of `v`) of a symmetric matrix, by Jacobi's rotations.
void diagonalise(std::vector<double>& a, std::vector<double>& v, std::size_t n) {
  v.assign(n * n, 0);
  for (std::size_t i = 0; i < n; ++i) v[i * n + i] = 1;
  constexpr int kMostSweeps = 60;
  for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
    double off = 0, diagonal = 0;
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < n; ++j) (i == j ? diagonal : off) += a[i * n + j] * a[i * n + j];
    }
    if (off <= 1e-30 * diagonal) return;
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        if (a[p * n + q] == 0) continue;
        const double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
        const double t = (theta >= 0 ? 1 : -1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
        const double c = 1 / std::sqrt(t * t + 1), s = t * c;
        const auto rotate = [&](std::vector<double>& m, std::size_t i, std::size_t j) {
          const double x = m[i], y = m[j];
          m[i] = c * x - s * y;
          m[j] = s * x + c * y;
        };
        for (std::size_t k = 0; k < n; ++k) rotate(a, k * n + p, k * n + q);
        for (std::size_t k = 0; k < n; ++k) rotate(a, p * n + k, q * n + k);
        for (std::size_t k = 0; k < n; ++k) rotate(v, k * n + p, k * n + q);
      }
    }
  }
}

/// Fractions of elements in a frame.
std::vector<double> composition(const Frame& frame, const std::vector<std::int32_t>& elements) {
  std::vector<double> row(elements.size(), 0);
  for (const std::int32_t number : frame.graph.atomic_numbers().span<std::int32_t>()) {
    const auto found = std::find(elements.begin(), elements.end(), number);
    if (found != elements.end()) row[static_cast<std::size_t>(found - elements.begin())] += 1;
  }
  for (double& value : row) value /= static_cast<double>(frame.size());
  return row;
}

}  // namespace

EnergyFit fit_energies(const std::vector<Frame>& frames, const std::vector<std::int32_t>& elements,
                       const std::vector<double>& explained) {
  const std::size_t n = elements.size();
  std::vector<double> normal(n * n, 0), right(n, 0), vectors;
  std::vector<std::pair<std::vector<double>, double>> rows;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const Frame& frame = frames[i];
    if (!frame.energy) continue;
    const double rest = *frame.energy - (explained.empty() ? 0 : explained[i]);
    rows.emplace_back(composition(frame, elements), rest / static_cast<double>(frame.size()));
  }
  for (const auto& [row, energy] : rows) {
    for (std::size_t i = 0; i < n; ++i) {
      right[i] += row[i] * energy;
      for (std::size_t j = 0; j < n; ++j) normal[i * n + j] += row[i] * row[j];
    }
  }
  diagonalise(normal, vectors, n);
  double largest = 0;
  for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, normal[i * n + i]);
  EnergyFit fit{std::vector<double>(n, 0), 0};
  constexpr double kSingular = 1e-10;
  for (std::size_t k = 0; k < n; ++k) {
    const double value = normal[k * n + k];
    if (!(value > kSingular * largest)) continue;
    double projection = 0;
    for (std::size_t i = 0; i < n; ++i) projection += vectors[i * n + k] * right[i];
    for (std::size_t i = 0; i < n; ++i) fit.energies[i] += vectors[i * n + k] * projection / value;
  }
  double sum = 0;
  for (const auto& [row, energy] : rows) {
    double rest = energy;
    for (std::size_t i = 0; i < n; ++i) rest -= row[i] * fit.energies[i];
    sum += rest * rest;
  }
  if (!rows.empty()) fit.spread = std::sqrt(sum / static_cast<double>(rows.size()));
  return fit;
}

double mean_energy(const std::vector<Frame>& frames, const std::vector<std::int32_t>& elements,
                   const std::vector<double>& energies, const std::vector<double>& explained) {
  double sum = 0;
  std::size_t count = 0;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    const Frame& frame = frames[i];
    if (!frame.energy) continue;
    double rest = (*frame.energy - (explained.empty() ? 0 : explained[i])) / static_cast<double>(frame.size());
    const std::vector<double> row = composition(frame, elements);
    for (std::size_t k = 0; k < row.size(); ++k) rest -= row[k] * energies[k];
    sum += rest;
    ++count;
  }
  return count > 0 ? sum / static_cast<double>(count) : 0;
}

void check_reference_energies(const TrainingConfig& config, const std::vector<std::int32_t>& elements) {
  if (!config.reference_energies) return;
  for (const auto& [number, energy] : *config.reference_energies) {
    if (std::find(elements.begin(), elements.end(), number) != elements.end()) continue;
    std::vector<std::string> symbols;
    for (const std::int32_t element : elements) symbols.push_back(chemical_symbol(element));
    throw Error(ErrorCode::bad_file,
                fmt::format("key 'reference_energies' has an energy of {}, which is no element of the model; it has {}",
                            chemical_symbol(number), fmt::join(symbols, ", ")));
  }
}

Statistics statistics_of(const std::vector<Frame>& frames, const std::vector<std::int32_t>& elements,
                         const TrainingConfig& config) {
  Statistics result;
  check_reference_energies(config, elements);
  if (config.reference_energies) {
    for (const std::int32_t number : elements) {
      const auto found = config.reference_energies->find(number);
      if (found == config.reference_energies->end()) {
        throw Error(ErrorCode::bad_file,
                    fmt::format("key 'reference_energies' has no energy of {}, which is an element "
                                "of the model",
                                chemical_symbol(number)));
      }
      result.reference_energies.push_back(found->second);
    }
  } else {
    result.reference_energies = fit_energies(frames, elements).energies;
  }

  double energies = 0, squares = 0, forces = 0, edges = 0, atoms = 0;
  std::size_t n_energies = 0, n_forces = 0;
  for (const Frame& frame : frames) {
    if (frame.energy) {
      double rest = *frame.energy / static_cast<double>(frame.size());
      const std::vector<double> row = composition(frame, elements);
      for (std::size_t i = 0; i < row.size(); ++i) rest -= row[i] * result.reference_energies[i];
      energies += rest;
      squares += rest * rest;
      ++n_energies;
    }
    for (const double f : frame.forces) forces += f * f;
    n_forces += frame.forces.size();
    edges += static_cast<double>(frame.graph.n_edges());
    const auto ptr = frame.graph.receiver_ptr().span<std::int64_t>();
    for (std::size_t n = 0; n + 1 < ptr.size(); ++n) atoms += ptr[n + 1] > ptr[n] ? 1 : 0;
  }
  if (atoms == 0) {
    throw Error(ErrorCode::bad_file, fmt::format("{}: no atom has another within r_max, so there is nothing to learn",
                                                 config.training.string()));
  }
  result.avg_num_neighbors = edges / atoms;
  const double mean = n_energies > 0 ? energies / static_cast<double>(n_energies) : 0;
  const double deviation =
      n_energies > 0 ? std::sqrt(std::max(0.0, squares / static_cast<double>(n_energies) - mean * mean)) : 0;
  const double force = n_forces > 0 ? std::sqrt(forces / static_cast<double>(n_forces)) : 0;
  // Perfect crystals have no forces at all, and one structure alone no deviation.
  constexpr double kNothing = 1e-6;
  result.scale = config.scale.value_or(force > kNothing ? force : deviation > kNothing ? deviation : 1.0);
  result.shift = config.shift.value_or(mean);
  return result;
}

}  // namespace fastpath::training
