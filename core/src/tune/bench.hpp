#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "fastpath/model.hpp"
#include "fastpath/tune.hpp"
#include "tune/search.hpp"
#include "verify/op_problem.hpp"

namespace fastpath::tuning {

/// Times evaluations: by the steady clock, with a look at whether the threads of this process had to wait for a
/// processor, or by what a simulated device says.
class Clock {
 public:
  explicit Clock(TuneTimer timer = nullptr) : timer_(std::move(timer)) {}
  /// Seconds; they only grow.
  double now() const;
  Bench::Block time(Arm arm, const ProblemSize& size, int repeats, const std::function<void()>& evaluate);

 private:
  const TuneTimer timer_;
  double simulated_ = 0;
};

/// Evaluations by a clock that several share.
class TimedBench : public Bench {
 public:
  explicit TimedBench(Clock& clock) : clock_(clock) {}
  ProblemSize prepare(std::int64_t n_edges) final { return size_ = make(n_edges); }
  Block run(Arm arm, int repeats) final {
    return clock_.time(arm, size_, repeats, [&] { evaluate(arm); });
  }
  double now() final { return clock_.now(); }

 protected:
  /// Makes ready for about so many edges. @return The size it really is.
  virtual ProblemSize make(std::int64_t n_edges) = 0;
  virtual void evaluate(Arm arm) = 0;

 private:
  Clock& clock_;
  ProblemSize size_;
};

/// The chosen path of a module against its reference, on the CPU, on inputs that are drawn.
class OpBench final : public TimedBench {
 public:
  /// @param module  With the kernel active.
  OpBench(Clock& clock, FastPathModule& module, DType dtype, Passes passes, int threads);

 private:
  ProblemSize make(std::int64_t n_edges) override;
  void evaluate(Arm arm) override;

  FastPathModule& module_;
  const DType dtype_;
  const Passes passes_;
  const int threads_;
  std::optional<verify::Problem> problem_;
  struct Call {
    OpCall call;
    std::vector<Tensor> inputs_t, parameters_t, grad_outputs, grad_outputs_t, outputs, outputs_t, grad_inputs,
        grad_inputs_t, grad_parameters, grad_parameters_t;
  };
  std::vector<std::unique_ptr<Call>> calls_;  // one a pass, in order
  Tensor saved_;
};

/// use_fast true against false, on crystals of the model's elements. Off the CPU the reference runs on the CPU.
class ModelBench final : public TimedBench {
 public:
  /// @param options  Without forces, stress and direction, which the passes say.
  ModelBench(Clock& clock, Model& model, EvaluateOptions options, Passes passes);

 private:
  ProblemSize make(std::int64_t n_edges) override;
  void evaluate(Arm arm) override;

  Model& model_;
  EvaluateOptions options_;
  const Passes passes_;
  std::optional<Graph> graph_;
};

/// A slightly disturbed cubic crystal of a model's elements with at least two atoms and about so many edges.
Structure crystal(const Model& model, std::int64_t n_edges);

}  // namespace fastpath::tuning
