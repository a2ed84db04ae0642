#include <algorithm>
#include <cmath>
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
    if (!(subject.dtype == sdk::kFloat64) || subject.passes != (FP_PASS_FORWARD | FP_PASS_BACKWARD)) continue;
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
    if (subject.op.op != sdk::ConvTensorProductConfig::kOp || subject.passes != (FP_PASS_FORWARD | FP_PASS_BACKWARD))
      continue;
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

}  // namespace

void add_derivative_checks(std::vector<Check>& list) {
  list.push_back(
      {{"derivatives.differences", "P-61", "gradients are slopes of forward, by differences"}, "", check_differences});
  list.push_back(
      {{"derivatives.identities", "P-61", "the four kernels of conv_tensor_product agree"}, "", check_identities});
}

}  // namespace fastpath::conformance
