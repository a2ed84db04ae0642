#include "train/optimizer.hpp"

#include <algorithm>
#include <cmath>

namespace fastpath::training {

Optimizer::Optimizer(std::size_t n_weights, const TrainingConfig& config)
    : learning_rate(config.learning_rate),
      mean(n_weights, 0),
      square(n_weights, 0),
      largest_square(config.amsgrad ? n_weights : 0, 0),
      beta1_(config.beta1),
      beta2_(config.beta2),
      epsilon_(config.epsilon),
      decay_(config.weight_decay) {}

void Optimizer::step(std::span<double> weights, std::span<const double> gradient) {
  ++steps;
  const double correction1 = 1 - std::pow(beta1_, static_cast<double>(steps));
  const double correction2 = 1 - std::pow(beta2_, static_cast<double>(steps));
  const double shrink = 1 - learning_rate * decay_;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double g = gradient[i];
    mean[i] = beta1_ * mean[i] + (1 - beta1_) * g;
    square[i] = beta2_ * square[i] + (1 - beta2_) * g * g;
    double spread = square[i];
    if (!largest_square.empty()) spread = largest_square[i] = std::max(largest_square[i], square[i]);
    weights[i] =
        shrink * weights[i] - learning_rate * (mean[i] / correction1) / (std::sqrt(spread / correction2) + epsilon_);
  }
}

double clip(std::span<double> gradient, double most) {
  double sum = 0;
  for (const double g : gradient) sum += g * g;
  const double norm = std::sqrt(sum);
  if (most > 0 && norm > most) {
    for (double& g : gradient) g *= most / norm;
  }
  return norm;
}

void add_to_average(std::span<double> average, std::span<const double> weights, std::int64_t steps, double decay) {
  const double n = static_cast<double>(steps);
  const double d = std::min(decay, (1 + n) / (10 + n));
  const double share = decay > 0 ? 1 - d : 1;
  for (std::size_t i = 0; i < average.size(); ++i) {
    average[i] = decay > 0 ? average[i] + share * (weights[i] - average[i]) : weights[i];
  }
}

double Schedule::after(double learning_rate, double validation_loss, const TrainingConfig& config) {
  const bool better = epochs == 0 || validation_loss < best;
  ++epochs;
  if (better) best = validation_loss;
  waited = better ? 0 : waited + 1;
  double next = learning_rate;
  if (config.schedule == TrainingConfig::Schedule::exponential) {
    next *= config.schedule_factor;
  } else if (config.schedule == TrainingConfig::Schedule::plateau && waited > config.schedule_patience) {
    next *= config.schedule_factor;
    waited = 0;
  }
  // What began below the smallest stays there.
  return std::max(next, std::min(config.smallest_learning_rate, learning_rate));
}

}  // namespace fastpath::training
