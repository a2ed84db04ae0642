#pragma once

#include <cstdint>
#include <vector>

#include "train/data.hpp"

namespace fastpath::training {

/// Energies of elements that explain the energies of a set best, in the least-squares sense per atom.
struct EnergyFit {
  std::vector<double> energies;  ///< eV, of each element asked for.
  double spread = 0;             ///< Root mean square of what they leave, eV per atom; 0 without energies.
};
/// Where the set does not tell elements apart, such as those of one compound, the solution of least norm.
/// @param explained  What is known of the energy of each frame already, eV; empty: nothing.
EnergyFit fit_energies(const std::vector<Frame>& frames, const std::vector<std::int32_t>& elements,
                       const std::vector<double>& explained = {});

/// Mean over the frames with an energy, eV per atom, of what `explained` and energies of elements leave of it; 0 if
/// there are none.
double mean_energy(const std::vector<Frame>& frames, const std::vector<std::int32_t>& elements,
                   const std::vector<double>& energies, const std::vector<double>& explained = {});

/// What a model's buffers and configuration take from the data.
struct Statistics {
  std::vector<double> reference_energies;  ///< eV, of each element.
  double scale = 1;                        ///< Root mean square of forces (eV/angstrom), else of energies per atom.
  double shift = 0;                        ///< Mean energy per atom beside the reference energies, eV.
  double avg_num_neighbors = 1;            ///< Mean number of edges over atoms that have one.
};
/// @throws Error(bad_file) naming an element of which the configuration gives a reference energy and that is none of
/// these.
void check_reference_energies(const TrainingConfig& config, const std::vector<std::int32_t>& elements);
/// @throws Error(bad_file) if no atom of the set has a neighbour, or the reference energies that the configuration
/// gives
///   are not those of the elements.
Statistics statistics_of(const std::vector<Frame>& frames, const std::vector<std::int32_t>& elements,
                         const TrainingConfig& config);

}  // namespace fastpath::training
