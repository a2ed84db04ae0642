#pragma once

#include <span>
#include <vector>

#include "fastpath/model.hpp"
#include "train/data.hpp"

namespace fastpath::training {

/// What one deviation costs, in eV, eV/angstrom or eV/angstrom^3: its square, or less where it is large (Huber).
double penalty_of(const TrainingConfig& config, double deviation);

/// Sums of squares from which root mean squares follow, whatever the frames' weights.
struct ErrorSums {
  double energy = 0, forces = 0, stress = 0;
  std::int64_t n_energy = 0, n_forces = 0, n_stress = 0;
  void add(const ErrorSums& other);
  TrainingErrors errors() const;
};

/// Sums of penalties times the frames' weights, kept apart so that the loss of a set does not depend on how it is cut
/// into batches.
struct PenaltySums {
  double energy = 0, forces = 0, stress = 0;
  std::int64_t n_energy = 0, n_forces = 0, n_stress = 0;
  void add(const PenaltySums& other);
  /// Weighted sum of the means: over structures, components of forces, components of stresses, as many as there are,
  /// not their weights.
  double loss(const TrainingConfig& config) const;
};

struct BatchLoss {
  PenaltySums penalties;
  ErrorSums errors;
  GradientWeights weights;  ///< Derivatives of the loss of these frames by their energies, forces and stresses.
};

/// Compares results of joined graphs with the labels of their frames. @param wants_weights  Whether `weights` is
/// filled.
BatchLoss compare(std::span<const Frame* const> frames, const EvaluationResult& result, const TrainingConfig& config,
                  bool wants_weights);

}  // namespace fastpath::training
