#include "train/loss.hpp"

#include <cmath>

namespace fastpath::training {
namespace {

/// x^2, or for |x| beyond delta the line that continues it: Huber's penalty, twice as usual such that both agree near
/// 0.
class Penalty {
 public:
  explicit Penalty(const TrainingConfig& config)
      : huber_(config.penalty == TrainingConfig::Penalty::huber), delta_(config.huber_delta) {}
  double value(double x) const { return linear(x) ? delta_ * (2 * std::abs(x) - delta_) : x * x; }
  double slope(double x) const { return linear(x) ? std::copysign(2 * delta_, x) : 2 * x; }

 private:
  bool linear(double x) const { return huber_ && std::abs(x) > delta_; }
  bool huber_;
  double delta_;
};

std::optional<double> root_mean(double sum, std::int64_t count) {
  if (count == 0) return std::nullopt;
  return std::sqrt(sum / static_cast<double>(count));
}

double mean(double sum, std::int64_t count) { return count > 0 ? sum / static_cast<double>(count) : 0; }

}  // namespace

double penalty_of(const TrainingConfig& config, double deviation) { return Penalty(config).value(deviation); }

void ErrorSums::add(const ErrorSums& other) {
  energy += other.energy, forces += other.forces, stress += other.stress;
  n_energy += other.n_energy, n_forces += other.n_forces, n_stress += other.n_stress;
}

TrainingErrors ErrorSums::errors() const {
  return {root_mean(energy, n_energy), root_mean(forces, n_forces), root_mean(stress, n_stress)};
}

void PenaltySums::add(const PenaltySums& other) {
  energy += other.energy, forces += other.forces, stress += other.stress;
  n_energy += other.n_energy, n_forces += other.n_forces, n_stress += other.n_stress;
}

double PenaltySums::loss(const TrainingConfig& config) const {
  return config.energy_weight * mean(energy, n_energy) + config.forces_weight * mean(forces, n_forces) +
         config.stress_weight * mean(stress, n_stress);
}

BatchLoss compare(std::span<const Frame* const> frames, const EvaluationResult& result, const TrainingConfig& config,
                  bool wants_weights) {
  const Penalty penalty(config);
  BatchLoss out;
  PenaltySums& sums = out.penalties;
  std::int64_t n_atoms = 0;
  for (const Frame* frame : frames) {
    n_atoms += frame->size();
    sums.n_energy += frame->energy ? 1 : 0;
    sums.n_forces += static_cast<std::int64_t>(frame->forces.size());
    sums.n_stress += frame->stress ? 9 : 0;
  }
  out.errors.n_energy = sums.n_energy, out.errors.n_forces = sums.n_forces, out.errors.n_stress = sums.n_stress;
  const auto n_graphs = static_cast<std::int64_t>(frames.size());
  if (wants_weights && sums.n_energy > 0) out.weights.energies = Tensor::zeros({n_graphs}, DType::float64);
  if (wants_weights && sums.n_forces > 0) out.weights.forces = Tensor::zeros({n_atoms, 3}, DType::float64);
  if (wants_weights && sums.n_stress > 0) out.weights.stresses = Tensor::zeros({n_graphs, 3, 3}, DType::float64);
  const auto share = [](double weight, std::int64_t count) {
    return count > 0 ? weight / static_cast<double>(count) : 0;
  };
  const double energy_share = share(config.energy_weight, sums.n_energy),
               forces_share = share(config.forces_weight, sums.n_forces),
               stress_share = share(config.stress_weight, sums.n_stress);

  const double* energies = sums.n_energy > 0 ? result.graph_energies.data<double>() : nullptr;
  const double* forces = sums.n_forces > 0 ? result.forces.data<double>() : nullptr;
  const double* stresses = sums.n_stress > 0 ? result.graph_stresses.data<double>() : nullptr;
  std::size_t node = 0;
  for (std::size_t g = 0; g < frames.size(); ++g) {
    const Frame& frame = *frames[g];
    const auto size = static_cast<double>(frame.size());
    if (frame.energy) {
      const double x = (energies[g] - *frame.energy) / size;
      sums.energy += frame.weights.energy * penalty.value(x);
      out.errors.energy += x * x;
      if (wants_weights)
        out.weights.energies.data<double>()[g] = energy_share * frame.weights.energy * penalty.slope(x) / size;
    }
    for (std::size_t i = 0; i < frame.forces.size(); ++i) {
      const double x = forces[3 * node + i] - frame.forces[i];
      sums.forces += frame.weights.forces * penalty.value(x);
      out.errors.forces += x * x;
      if (wants_weights)
        out.weights.forces.data<double>()[3 * node + i] = forces_share * frame.weights.forces * penalty.slope(x);
    }
    if (frame.stress) {
      for (std::size_t i = 0; i < 9; ++i) {
        const double x = stresses[9 * g + i] - (*frame.stress)[i];
        sums.stress += frame.weights.stress * penalty.value(x);
        out.errors.stress += x * x;
        if (wants_weights)
          out.weights.stresses.data<double>()[9 * g + i] = stress_share * frame.weights.stress * penalty.slope(x);
      }
    }
    node += static_cast<std::size_t>(frame.size());
  }
  return out;
}

}  // namespace fastpath::training
