#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "problem.hpp"

/// Gradients against the kernel's own forward pass: no reference is needed for that.
namespace fastpath::conformance {
namespace {

double dot(const Array& a, const Array& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) sum += a.at(i) * b.at(i);
  return sum;
}
double dot_size(const Array& a, const Array& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i) sum += std::abs(a.at(i) * b.at(i));
  return sum;
}

bool has_gradients(const Subject& subject) {
  constexpr std::uint32_t kBoth = FP_PASS_FORWARD | FP_PASS_BACKWARD;
  return (subject.passes & kBoth) == kBoth;
}

/// The configurations of an op that the plugin takes.
std::vector<OpCase> taken(Session& session, const Subject& subject, Random& random) {
  const int drawn = session.trial.options.quick ? 2 : 8;
  std::vector<OpCase> all = corner_cases(subject.op.op);
  for (int i = 0; i < drawn; ++i) all.push_back(random_case(subject.op.op, random, 4));
  all.erase(std::remove_if(all.begin(), all.end(),
                           [&](const OpCase& op) {
                             return !ask(session, {&op, subject.dtype, subject.passes}, subject.device).yes();
                           }),
            all.end());
  return all;
}

/// <G, forward> and its slope along a direction of one argument, by differences: two widths, so that the error of the
/// wider one is taken out.
void check_differences(Trial& trial) {
  Session session(trial);
  session.watch = false;
  Random random(trial.random);
  for (const Subject& subject : subjects(session)) {
    if (!(subject.dtype == sdk::kFloat64) || !has_gradients(subject)) continue;
    OpenDevice device(session, subject.device);
    for (const OpCase& op : taken(session, subject, random)) {
      trial.step(subject.name() + ", " + op.label);
      Kernel kernel(session, device.get(), subject.device, {&op, subject.dtype, subject.passes});
      const Problem problem(op, subject.dtype, ordinary_graph(3, random), 6, random);
      if (!prepare(session, kernel, problem)) continue;
      Evaluation gradients = problem.backward();
      if (!run_well(session, kernel, gradients)) continue;
      std::uint64_t version = 1;
      // Value and size of <G, forward> with argument `which` moved by h along the direction.
      RunOptions fast;
      fast.check = false;
      const auto value = [&](bool parameter, std::size_t which, const Array& direction, double h, double& size) {
        Problem moved = problem;
        Array& argument = parameter ? moved.parameters[which] : moved.inputs[which];
        for (std::int64_t i = 0; i < argument.numel(); ++i) argument.set(i, argument.at(i) + h * direction.at(i));
        Evaluation evaluation = moved.forward();
        if (!moved.parameters.empty() && !kernel.bind(moved.parameters, ++version).ok()) trial.stop();
        if (!run_well(session, kernel, evaluation, fast)) trial.stop();
        double sum = 0;
        size = 0;
        for (std::size_t o = 0; o < evaluation.outputs.size(); ++o) {
          sum += dot(evaluation.outputs[o], problem.cotangents[o]);
          size += dot_size(evaluation.outputs[o], problem.cotangents[o]);
        }
        return sum;
      };
      const auto compare = [&](bool parameter, std::size_t which, const Array& argument, const Array& gradient,
                               const std::string& name) {
        if (!gradient.present || gradient.numel() == 0) return;
        Array direction = argument;
        for (std::int64_t i = 0; i < direction.numel(); ++i) direction.set(i, normal(random));
        constexpr double kWidth = 2e-4;
        double size = 0, ignored = 0;
        const auto slope = [&](double h) {
          return (value(parameter, which, direction, h, size) - value(parameter, which, direction, -h, ignored)) /
                 (2 * h);
        };
        const double found = dot(gradient, direction), expected = (4 * slope(kWidth) - slope(2 * kWidth)) / 3;
        // Rounding of the two values over the width, and what is left of the fourth order.
        const double allowed =
            1e-14 * size / kWidth * 100 + 1e-7 * (dot_size(gradient, direction) + std::abs(expected));
        trial.expect(std::abs(found - expected) <= allowed, "P-61",
                     "the gradient of " + name + " is " + std::to_string(found) +
                         " along a direction, differences of forward give " + std::to_string(expected),
                     "at most " + std::to_string(allowed) + " between them");
      };
      for (std::size_t i = 0; i < problem.inputs.size(); ++i) {
        compare(false, i, problem.inputs[i], gradients.grad_inputs[i], "input '" + op.signature.inputs[i].name + "'");
      }
      for (std::size_t i = 0; i < problem.parameters.size(); ++i) {
        compare(true, i, problem.parameters[i], gradients.grad_parameters[i],
                "parameter '" + op.signature.parameters[i].name + "'");
      }
    }
  }
}

/// conv_tensor_product is linear in x, y and w each, so its four kernels hang together:
/// <G, F(x, y, w)> = <x, BX> = <y, BY> = <w, BW>.
void check_identities(Trial& trial) {
  Session session(trial);
  session.watch = false;
  Random random(trial.random);
  bool any = false;
  for (const Subject& subject : subjects(session)) {
    if (subject.op.op != sdk::ConvTensorProductConfig::kOp || !has_gradients(subject)) continue;
    any = true;
    OpenDevice device(session, subject.device);
    for (const OpCase& op : taken(session, subject, random)) {
      Kernel kernel(session, device.get(), subject.device, {&op, subject.dtype, subject.passes});
      std::vector<GraphData> graphs = odd_graphs(0, random);
      graphs.push_back(ordinary_graph(0, random));
      for (GraphData& graph : graphs) {
        trial.step(subject.name() + ", " + op.label + ", " + graph.name);
        const Problem problem(op, subject.dtype, std::move(graph), 0, random);
        if (!prepare(session, kernel, problem)) break;
        Evaluation forward = problem.forward(), backward = problem.backward();
        if (!run_well(session, kernel, forward) || !run_well(session, kernel, backward)) continue;
        const double value = dot(forward.outputs[0], problem.cotangents[0]);
        double size = dot_size(forward.outputs[0], problem.cotangents[0]);
        for (std::size_t i = 0; i < 3; ++i) size = std::max(size, dot_size(problem.inputs[i], backward.grad_inputs[i]));
        const double allowed = (subject.dtype == sdk::kFloat32 ? 1e-5 : 1e-12) * size;
        for (std::size_t i = 0; i < 3; ++i) {
          const double other = dot(problem.inputs[i], backward.grad_inputs[i]);
          trial.expect(std::abs(other - value) <= allowed, "P-61",
                       "<G, out> is " + std::to_string(value) + ", <" + op.signature.inputs[i].name +
                           ", its gradient> is " + std::to_string(other),
                       "that they are equal");
        }
      }
    }
  }
  if (!any) trial.skip("it has no conv_tensor_product with forward and backward");
}

void move(std::vector<Array>& arrays, const std::vector<Array>& along, double h) {
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    for (std::int64_t k = 0; along[i].present && k < arrays[i].numel(); ++k) {
      arrays[i].set(k, arrays[i].at(k) + h * along[i].at(k));
    }
  }
}
void clear(std::vector<Array>& arrays) {
  for (Array& array : arrays) array = Array::absent();
}

/// What one configuration's tangent pass must be beside the plain pass of the same kernel.
class TangentChecks {
 public:
  TangentChecks(Session& session, const Subject& subject, Kernel& kernel, const Problem& problem, std::uint32_t pass)
      : session_(session), trial_(session.trial), subject_(subject), kernel_(kernel), problem_(problem), pass_(pass) {
    fast_.check = false;
  }

  void run(bool differences) {
    step("");
    Evaluation found = problem_.of(pass_), plain = problem_.of(plain_pass());
    if (!run_well(session_, kernel_, found) || !run_well(session_, kernel_, plain, fast_)) return;
    const std::size_t n = results_of(plain).size();
    for (std::size_t i = 0; i < n; ++i) {
      expect_same(*results_of(found)[i], *results_of(plain)[i], "value " + std::to_string(i) + " beside its tangent");
    }
    step(": no tangents");
    Evaluation none = problem_.of(pass_, kPoisonFinite);
    for (auto* list : {&none.inputs_t, &none.parameters_t, &none.grad_outputs_t}) clear(*list);
    if (!run_well(session_, kernel_, none, fast_)) return;
    for (std::size_t i = 0; i < n; ++i) {
      expect_same(*results_of(none)[i], *results_of(plain)[i], "value " + std::to_string(i) + " without tangents");
      trial_.expect(largest(*results_of(none)[n + i]) == 0, "P-61",
                    "tangent " + std::to_string(i) + " is " + std::to_string(largest(*results_of(none)[n + i])) +
                        " where no argument has one",
                    "zero");
    }
    absent_ones(n);
    if (differences) slopes(found, n);
  }

 private:
  std::uint32_t plain_pass() const { return pass_ == FP_PASS_FORWARD_TANGENT ? FP_PASS_FORWARD : FP_PASS_BACKWARD; }
  void step(const std::string& what) {
    trial_.step(subject_.name() + ", " + problem_.op.label + ", " + pass_name(pass_) + what);
  }
  void expect_same(const Array& found, const Array& expected, const std::string& what) {
    const double error = difference(found, expected);
    trial_.expect(error <= 4 * tolerance_of(subject_.dtype, subject_.answer.c.tolerance), "P-61",
                  what + " differs by " + std::to_string(error), "what the plain pass gives");
  }

  /// Without the tangents of one kind of argument, and the same with zeros for them; in full runs also of
  /// one of them, but for parameters, of which there may be many.
  void absent_ones(std::size_t n) {
    const Evaluation all = problem_.of(pass_);
    constexpr std::vector<Array> Evaluation::*kLists[] = {&Evaluation::inputs_t, &Evaluation::parameters_t,
                                                          &Evaluation::grad_outputs_t};
    constexpr const char* kNames[] = {"inputs", "parameters", "gradients of outputs"};
    for (std::size_t list = 0; list < 3; ++list) {
      const auto compare = [&](const std::string& what, const std::function<bool(std::size_t)>& chosen) {
        Evaluation without = all, zero = all;
        bool any = false;
        for (std::size_t i = 0; i < (all.*kLists[list]).size(); ++i) {
          Array& zeros = (zero.*kLists[list])[i];
          if (!zeros.present || !chosen(i)) continue;
          any = true;
          zeros = Array::zeros(zeros.shape, zeros.dtype);
          (without.*kLists[list])[i] = Array::absent();
        }
        if (!any) return;
        step(": " + what + " without tangents");
        if (!run_well(session_, kernel_, without, fast_) || !run_well(session_, kernel_, zero, fast_)) return;
        for (std::size_t k = 0; k < 2 * n; ++k) {
          const double error = difference(*results_of(without)[k], *results_of(zero)[k]);
          trial_.expect(error <= 4 * tolerance_of(subject_.dtype, subject_.answer.c.tolerance), "P-61",
                        "result " + std::to_string(k) + " differs by " + std::to_string(error) +
                            " from that with tangents of zeros",
                        "an absent tangent counts as zero");
        }
      };
      compare(kNames[list], [](std::size_t) { return true; });
      const std::size_t size = (all.*kLists[list]).size();
      for (std::size_t i = 0; i < size && size > 1 && list != 1 && !trial_.options.quick; ++i) {
        compare(std::string(kNames[list]) + ", number " + std::to_string(i), [&](std::size_t k) { return k == i; });
      }
    }
  }

  /// Differences of the plain pass with everything moved along the direction.
  void slopes(const Evaluation& found, std::size_t n) {
    step(": differences");
    constexpr double kWidth = 2e-4;
    std::uint64_t version = 1;
    const auto at = [&](double h) {
      Problem moved = problem_;
      move(moved.inputs, problem_.inputs_t, h);
      move(moved.parameters, problem_.parameters_t, h);
      move(moved.cotangents, problem_.cotangents_t, h);
      Evaluation evaluation = moved.of(plain_pass());
      if (!moved.parameters.empty() && !kernel_.bind(moved.parameters, ++version).ok()) trial_.stop();
      if (!run_well(session_, kernel_, evaluation, fast_)) trial_.stop();
      return evaluation;
    };
    const Evaluation up = at(kWidth), down = at(-kWidth), far_up = at(2 * kWidth), far_down = at(-2 * kWidth);
    for (std::size_t i = 0; i < n; ++i) {
      const Array& tangent = *results_of(found)[n + i];
      double size = 0, scale = 0, error = 0;
      for (std::int64_t k = 0; k < tangent.numel(); ++k) {
        const auto slope = [&](const Evaluation& high, const Evaluation& low, double h) {
          return (results_of(high)[i]->at(k) - results_of(low)[i]->at(k)) / (2 * h);
        };
        const double expected = (4 * slope(up, down, kWidth) - slope(far_up, far_down, 2 * kWidth)) / 3;
        size = std::max(size, std::abs(results_of(found)[i]->at(k)));
        scale = std::max({scale, std::abs(expected), std::abs(tangent.at(k))});
        error = std::max(error, std::abs(expected - tangent.at(k)));
      }
      // Rounding of the values over the width, and what is left of the fourth order.
      const double allowed = 1e-14 * size / kWidth * 100 + 1e-7 * scale;
      trial_.expect(error <= allowed, "P-61",
                    "tangent " + std::to_string(i) + " is " + std::to_string(error) + " off the slope of its value",
                    "at most " + std::to_string(allowed));
    }
  }

  Session& session_;
  Trial& trial_;
  const Subject& subject_;
  Kernel& kernel_;
  const Problem& problem_;
  std::uint32_t pass_;
  RunOptions fast_;  // other checks look at the memory around the arrays
};

void check_tangents(Trial& trial) {
  Session session(trial);
  session.watch = false;
  Random random(trial.random);
  bool any = false;
  for (const Subject& subject : subjects(session)) {
    OpenDevice device(session, subject.device);
    for (const auto& [pass, plain] :
         {std::pair{FP_PASS_FORWARD_TANGENT, FP_PASS_FORWARD}, {FP_PASS_BACKWARD_TANGENT, FP_PASS_BACKWARD}}) {
      const auto both = static_cast<std::uint32_t>(pass | plain);
      if ((subject.passes & both) != both) continue;
      any = true;
      std::vector<OpCase> all = taken(session, subject, random);
      const std::size_t most = trial.options.quick ? 4 : 8;
      if (all.size() > most) all.resize(most);
      for (const OpCase& op : all) {
        Kernel kernel(session, device.get(), subject.device, {&op, subject.dtype, subject.passes});
        const Problem problem(op, subject.dtype, ordinary_graph(3, random), 6, random);
        if (!prepare(session, kernel, problem)) continue;
        TangentChecks(session, subject, kernel, problem, pass).run(subject.dtype == sdk::kFloat64);
      }
    }
  }
  if (!any) trial.skip("no kernel has a tangent pass");
}

}  // namespace

void add_derivative_checks(std::vector<Check>& list) {
  list.push_back(
      {{"derivatives.differences", "P-61", "gradients are slopes of forward, by differences"}, "", check_differences});
  list.push_back({{"derivatives.tangents", "P-61", "tangents are slopes of their values, and of none is none"},
                  "",
                  check_tangents});
  list.push_back(
      {{"derivatives.identities", "P-61", "the four kernels of conv_tensor_product agree"}, "", check_identities});
}

}  // namespace fastpath::conformance
