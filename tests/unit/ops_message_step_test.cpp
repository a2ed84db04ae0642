// The fused message step: its reference is its four parts one after the other, and its gradients are slopes.
#include <gtest/gtest.h>

#include <cmath>

#include "fastpath/conformance/cases.hpp"
#include "fastpath/error.hpp"
#include "fastpath/sdk/ops.hpp"
#include "ops/make_op_module.hpp"
#include "verify/op_problem.hpp"

namespace fastpath {
namespace {

using conformance::OpCase;
using ops::OpModule;
using verify::Problem;

template <class Config>
std::unique_ptr<OpModule> module_of(const Config& config) {
  return ops::make_op_module({std::string(Config::kOp), Config::kVersion, config.attributes().values()});
}

/// A step, a problem for it and its parts.
struct Step {
  explicit Step(const OpCase& op, DType dtype)
      : config(sdk::MessageStepConfig::from(op.config)),
        whole(module_of(config)),
        harmonics(module_of(config.harmonics)),
        radial(module_of(config.radial)),
        net(module_of(config.mlp)),
        conv(module_of(config.conv)),
        problem(verify::draw_problem(*whole, dtype, {}, 11)) {}

  OpCall call(Pass pass, const std::vector<Tensor>& inputs) const {
    OpCall result;
    result.pass = pass;
    result.graph = &problem.graph;
    result.inputs = inputs;
    return result;
  }
  Tensor made(std::int64_t rows, std::int64_t width) const {
    return Tensor::empty({rows, width}, problem.given.inputs[0].dtype());
  }

  sdk::MessageStepConfig config;
  std::unique_ptr<OpModule> whole, harmonics, radial, net, conv;
  Problem problem;
};

double largest_difference(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(DType::float64), y = b.to(DType::float64);
  double most = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i)
    most = std::max(most, std::abs(x.data<double>()[i] - y.data<double>()[i]));
  return most;
}

class MessageStep : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(DTypes, MessageStep, testing::Values(DType::float32, DType::float64),
                         [](const auto& one) { return std::string(to_string(one.param)); });

TEST_P(MessageStep, IsItsPartsOneAfterTheOther) {
  for (const OpCase& op : conformance::corner_cases("message_step")) {
    SCOPED_TRACE(op.label);
    const Step s(op, GetParam());
    const std::vector<Tensor>& in = s.problem.given.inputs;
    const std::vector<Tensor>& parameters = s.problem.given.parameters;
    const std::int64_t n = s.problem.graph.n_edges, width = s.config.conv.weight_numel();

    const std::vector<Tensor> sh{s.made(n, s.config.harmonics.dim())}, basis_only{s.made(n, s.config.radial.n_basis)},
        weights{s.made(n, width)};
    OpCall call = s.call(Pass::forward, {in[1]});
    const std::vector<Tensor> vectors{in[1]};
    call.inputs = vectors;
    call.outputs = sh;
    s.harmonics->run_reference(call);
    std::vector<Tensor> basis{basis_only[0], Tensor()};
    if (!s.config.radial.apply_cutoff) basis[1] = Tensor::empty({n}, GetParam());
    const std::vector<Tensor> lengths{in[2], in[3]};
    call.inputs = lengths;
    call.outputs = basis;
    s.radial->run_reference(call, {parameters[0]});
    call.inputs = basis_only;
    call.outputs = weights;
    s.net->run_reference(call, {parameters.begin() + 1, parameters.end()});
    if (basis[1].defined()) {
      for (std::int64_t i = 0; i < weights[0].numel(); ++i) {
        if (GetParam() == DType::float32) {
          weights[0].data<float>()[i] *= basis[1].data<float>()[i / width];
        } else {
          weights[0].data<double>()[i] *= basis[1].data<double>()[i / width];
        }
      }
    }
    const std::vector<Tensor> to_product{in[0], sh[0], weights[0]},
        expected{s.made(s.problem.graph.n_receivers, s.config.conv.out.dim())},
        found{s.made(s.problem.graph.n_receivers, s.config.conv.out.dim())};
    call.inputs = to_product;
    call.outputs = expected;
    s.conv->run_reference(call);
    call.inputs = in;
    call.outputs = found;
    s.whole->run_reference(call, parameters);
    EXPECT_EQ(largest_difference(found[0], expected[0]), 0);
    EXPECT_GT(largest_difference(found[0], s.problem.given.grad_outputs[0]), 0);
  }
}

/// <a, b> over all tensors that are there.
double dot(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double sum = 0;
  for (std::size_t k = 0; k < a.size(); ++k) {
    if (!a[k].defined() || !b[k].defined() || !is_floating(a[k].dtype())) continue;
    for (std::int64_t i = 0; i < a[k].numel(); ++i) sum += a[k].data<double>()[i] * b[k].data<double>()[i];
  }
  return sum;
}

TEST(MessageStepGradients, AreTheSlopesAlongEveryTangent) {
  for (const OpCase& op : conformance::corner_cases("message_step")) {
    SCOPED_TRACE(op.label);
    const Step s(op, DType::float64);
    const verify::Side& given = s.problem.given;
    std::vector<Tensor> out{s.made(s.problem.graph.n_receivers, s.config.conv.out.dim())}, out_t{out[0].clone()};
    OpCall forward = s.call(Pass::forward_tangent, given.inputs);
    forward.inputs_t = given.inputs_t;
    forward.parameters_t = given.parameters_t;
    forward.outputs = out;
    forward.outputs_t = out_t;
    s.whole->run_reference(forward, given.parameters);
    const double slope = dot(given.grad_outputs, out_t);

    std::vector<Tensor> grad_inputs, grad_parameters;
    for (const Tensor& tensor : given.inputs_t) grad_inputs.push_back(tensor.defined() ? tensor.clone() : Tensor());
    for (const Tensor& tensor : given.parameters_t) {
      grad_parameters.push_back(tensor.defined() ? tensor.clone() : Tensor());
    }
    OpCall backward = s.call(Pass::backward, given.inputs);
    backward.grad_outputs = given.grad_outputs;
    backward.grad_inputs = grad_inputs;
    backward.grad_parameters = grad_parameters;
    s.whole->run_reference(backward, given.parameters);
    const double by_gradient = dot(grad_inputs, given.inputs_t) + dot(grad_parameters, given.parameters_t);
    EXPECT_NEAR(by_gradient, slope, 1e-11 * (1 + std::abs(slope)));
    EXPECT_GT(std::abs(slope), 1e-6);
  }
}

TEST(MessageStepConfig, PartsThatDoNotFitAreNamed) {
  const OpCase op = conformance::small_case("message_step");
  const auto problem_with = [&](auto change) -> std::string {
    sdk::MessageStepConfig config = sdk::MessageStepConfig::from(op.config);
    change(config);
    try {
      (void)sdk::MessageStepConfig::from(config.attributes());
    } catch (const sdk::ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(problem_with([](auto&) {}), "");
  EXPECT_EQ(problem_with([](auto& c) { c.harmonics.l_max = 2; }),
            "message_step: the dimension of the harmonics is 9, that of conv.edge is 4");
  EXPECT_EQ(problem_with([](auto& c) { c.mlp.widths.front() = 6; }),
            "message_step: the input width of the net is 6, n_basis is 5");
  EXPECT_EQ(problem_with([](auto& c) { c.mlp.widths.back() = 6; }),
            "message_step: the output width of the net is 6, the number of weights of an edge is 15");
}

}  // namespace
}  // namespace fastpath
