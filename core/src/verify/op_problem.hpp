#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "fastpath/fast_path.hpp"
#include "fastpath/sdk/ops.hpp"
#include "verify/op_trial.hpp"

/// The problems that kernels are tried on.
namespace fastpath::verify {

/// splitmix64, so that a seed means the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform(double low, double high) {
    return low + (high - low) * (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53;
  }
  double normal() { return std::sqrt(-2 * std::log(uniform(0, 1))) * std::cos(2 * M_PI * uniform(0, 1)); }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(next() % static_cast<std::uint64_t>(n)); }

 private:
  std::uint64_t state_;
};

/// Tensors of a problem in one dtype.
struct Side {
  std::vector<Tensor> inputs, inputs_t, parameters, parameters_t, grad_outputs, grad_outputs_t;
  Side to(DType dtype) const {
    const auto convert = [&](const std::vector<Tensor>& list) {
      std::vector<Tensor> result;
      for (const Tensor& tensor : list) {
        result.push_back(tensor.defined() && is_floating(tensor.dtype()) ? tensor.to(dtype) : tensor);
      }
      return result;
    };
    return {convert(inputs),       convert(inputs_t),     convert(parameters),
            convert(parameters_t), convert(grad_outputs), convert(grad_outputs_t)};
  }
};

/// A problem of an op, drawn from a seed.
struct Problem {
  TrialShape shape;
  sdk::Signature signature;
  double terms = 0;  ///< Of the longest sum into one element of any tensor, roughly and not too few.
  OpGraph graph;
  Side given, exact;  ///< In the dtype of the trial; the same values in float64.

  Shape shape_of(const sdk::Argument& argument) const;
};

/// Inputs that suit the op, cotangents, tangents and parameters; constants are the module's own.
/// @throws Error(invalid_argument) for an op without a schema or a shape that is none.
Problem draw_problem(FastPathModule& module, DType dtype, const TrialShape& shape, std::uint64_t seed);

}  // namespace fastpath::verify
