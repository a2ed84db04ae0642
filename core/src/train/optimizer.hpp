#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fastpath/train.hpp"

namespace fastpath::training {

/// Adam (Kingma and Ba, 2015), or AMSGrad (Reddi et al., 2018), with decoupled weight decay (Loshchilov and Hutter,
/// 2019): weights shrink by learning rate times decay, independently of the gradient. Everything that a step depends on
/// is in the members, which a checkpoint keeps.
struct Optimizer {
  explicit Optimizer(std::size_t n_weights, const TrainingConfig& config);
  void step(std::span<double> weights, std::span<const double> gradient);

  double learning_rate;
  std::int64_t steps = 0;
  std::vector<double> mean, square, largest_square;  ///< The last one is empty but for AMSGrad.

 private:
  double beta1_, beta2_, epsilon_, decay_;
};

/// Root of the sum of squares; scales the gradient such that this is `most`, if that is above 0 and less.
double clip(std::span<double> gradient, double most);

/// The moving average of weights: average += (1 - d)(weights - average), where d begins small, so that the first,
/// random weights are forgotten soon, and reaches `decay`.
void add_to_average(std::span<double> average, std::span<const double> weights, std::int64_t steps, double decay);

/// The learning rate after an epoch, and the memory of `plateau`.
struct Schedule {
  double best = 0;  ///< Smallest validation loss; meaningless while `epochs` is 0.
  std::int64_t waited = 0, epochs = 0;
  double after(double learning_rate, double validation_loss, const TrainingConfig& config);
};

}  // namespace fastpath::training
