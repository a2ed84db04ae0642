// A kernel runs only after it has agreed with the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "dispatch/module_state.hpp"
#include "fastpath/error.hpp"
#include "support/gates.hpp"

namespace fastpath {
namespace {

using test::cpu_ref;
using test::Gate;
using test::Liar;
using test::Lie;
using test::tangents;
using testing::HasSubstr;

TEST_F(Gate, AKernelThatAgreesIsChosen) {
  Liar honest{.id = "honest"};
  const auto c = context(honest);
  const auto module = linear();
  EXPECT_EQ(pick(*module, *c).decisions[0].choice, "honest");
  EXPECT_GT(honest.runs, 0);
}

TEST_F(Gate, EveryLieIsRefusedWithAReasonAndTheNextCandidateRuns) {
  for (const Lie lie : {Lie::wrong_in_forward, Lie::wrong_in_backward, Lie::wrong_parameter_gradient, Lie::not_a_number,
                        Lie::slightly_wrong, Lie::last_not_written, Lie::modifies_an_input, Lie::modifies_a_parameter,
                        Lie::writes_behind, Lie::fails, Lie::zeros_when_busy}) {
    Liar liar{.lie = lie, .status = FP_E_BUSY, .tolerance = 0.5, .id = "liar"};
    const auto c = context(liar, true);
    const auto module = linear();
    const Selection selection = pick(*module, *c);
    ASSERT_EQ(selection.decisions[0].choice, "cpu_ref") << static_cast<int>(lie);
    const Candidate& candidate = selection.decisions[0].candidates[0];
    EXPECT_EQ(candidate.plugin, "liar");
    EXPECT_EQ(candidate.verdict, Candidate::Verdict::refused);
    ASSERT_EQ(candidate.reasons.size(), 1u);
    EXPECT_EQ(candidate.reasons[0].code, ReasonCode::not_verified) << candidate.reasons[0].text;
    EXPECT_FALSE(candidate.reasons[0].text.empty());
  }
}

TEST_F(Gate, TheReasonNamesTensorPassErrorAndTolerance) {
  Liar liar{.lie = Lie::wrong_in_backward, .id = "liar"};
  const auto c = context(liar);
  const auto module = linear();
  const Selection selection = pick(*module, *c);
  EXPECT_EQ(selection.decisions[0].reason.code, ReasonCode::not_verified);
  EXPECT_THAT(selection.decisions[0].candidates[0].reasons[0].text,
              testing::AllOf(HasSubstr("backward"), HasSubstr("gradient of input 'x'"), HasSubstr("differs"),
                             HasSubstr("at most 1e-14 in float64")));
}

TEST_F(Gate, AutomaticIsGatedToo) {
  Liar liar{.lie = Lie::wrong_in_forward};
  const auto c = context(liar);
  const auto module = linear();
  EXPECT_FALSE(pick(*module, *c, DType::float64, kPassesForces, UseFast::automatic));
}

TEST_F(Gate, OnlyThePassesAndTheDtypeThatAreAskedForCount) {
  Liar backward{.lie = Lie::wrong_in_backward};
  const auto module = linear();
  const auto a = context(backward);
  EXPECT_TRUE(pick(*module, *a, DType::float64, kPassesEnergy));
  EXPECT_FALSE(pick(*module, *a, DType::float64, kPassesForces));
  Liar single{.lie = Lie::wrong_in_float32};
  const auto b = context(single);
  EXPECT_TRUE(pick(*module, *b, DType::float64));
  EXPECT_FALSE(pick(*module, *b, DType::float32));
}

TEST_F(Gate, ALieInATangentPassCountsWhereThatPassIsNeeded) {
  struct Case {
    Lie lie;
    const char* pass;
    const char* tensor;
  };
  for (const auto& [lie, pass, tensor] :
       {Case{Lie::wrong_in_forward_tangent, "forward_tangent", "tangent of output 'y'"},
        Case{Lie::wrong_in_backward_tangent, "backward_tangent", "tangent of gradient of input 'x'"},
        Case{Lie::wrong_parameter_tangent, "backward_tangent", "tangent of gradient of parameter 'weight'"},
        Case{Lie::value_wrong_beside_tangent, "forward_tangent", "output 'y'"}}) {
    SCOPED_TRACE(pass + std::string(", ") + tensor);
    Liar liar{.lie = lie, .id = "liar"};
    const auto c = context(liar, false, {}, tangents());
    for (const DType dtype : {DType::float64, DType::float32}) {
      const auto module = linear(false);
      EXPECT_TRUE(pick(*module, *c, dtype, kPassesEnergy));
      EXPECT_TRUE(pick(*module, *c, dtype, kPassesForces));
      const Selection training = pick(*module, *c, dtype, kPassesTraining);
      ASSERT_FALSE(training);
      const std::vector<Reason>& reasons = training.decisions[0].candidates[0].reasons;
      ASSERT_EQ(reasons.size(), 1u);
      EXPECT_EQ(reasons[0].code, ReasonCode::not_verified);
      EXPECT_THAT(reasons[0].text, testing::AllOf(HasSubstr(pass), HasSubstr(tensor), HasSubstr("differs")));
      EXPECT_TRUE(pick(*module, *c, dtype, kPassesForces));  // which is still so
    }
  }
  Liar honest{.id = "honest"};
  const auto c = context(honest, false, {}, tangents());
  const auto module = linear(false);
  EXPECT_TRUE(pick(*module, *c, DType::float64, kPassesTraining));
}

/// Changes a buffer of a module in place, as a host may.
template <class Change>
void change(FastPathModule& module, const std::string& buffer, Change change) {
  change(module.buffer(buffer).template data<double>());
  module.touch();
}

// Once it was looked at, the kernel lies: whoever finds it out has looked again.
TEST_F(Gate, AnotherConfigurationOrOtherConstantsAreTriedAnew) {
  sdk::RadialBasisConfig basis;
  basis.n_basis = 4;
  basis.r_max = 4.0;
  basis.prefactor = 0.7;
  basis.transform = sdk::DistanceTransform::agnesi;
  basis.species_radii = {0.3, 0.7};
  sdk::SymmetricContractionConfig contraction;
  contraction.channels = 2;
  contraction.dim = 4;
  contraction.correlation = 2;
  contraction.n_species = 2;
  contraction.targets = {0, 1};
  contraction.n_paths = {{1, 2}, {1, 2}};
  const auto negate_two = [](double* values) {
    int negated = 0;
    for (std::int64_t i = 0; negated < 2; ++i) negated += values[i] != 0 ? (values[i] = -values[i], 1) : 0;
  };
  const std::string u = "contractions.0.U_matrix_2";
  struct Case {
    const char* what;
    OpSpec spec;
    std::function<void(FastPathModule&)> change;
  };
  const OpSpec radial{"radial_basis", 1, basis.attributes().values()};
  const OpSpec symmetric{"symmetric_contraction", 1, contraction.attributes().values()};
  for (const auto& [what, spec, change_it] :
       {Case{"prefactor", radial, [](auto& m) { change(m, "bessel_fn.prefactor", [](double* v) { *v = 0.9; }); }},
        Case{"cutoff", radial, [](auto& m) { change(m, "cutoff_fn.r_max", [](double* v) { *v = 3.5; }); }},
        Case{"frequencies", radial,
             [](auto& m) { change(m, "bessel_fn.bessel_weights", [](double* v) { v[2] = 5; }); }},
        Case{"transform", radial, [](auto& m) { change(m, "distance_transform.a", [](double* v) { *v = 1.1; }); }},
        Case{"radii", radial,
             [](auto& m) { change(m, "distance_transform.covalent_radii", [](double* v) { v[2] = 0.8; }); }},
        Case{"basis", symmetric, [&](auto& m) { change(m, u, [](double* v) { v[0] += 0.5; }); }},
        Case{"signs of a basis", symmetric, [&](auto& m) { change(m, u, negate_two); }}}) {
    SCOPED_TRACE(what);
    Liar liar{.lie = Lie::wrong_in_forward, .from_run = 1 << 30, .id = "liar"};
    const auto c = context(liar);
    const auto module = ops::make_op_module(spec), unchanged = ops::make_op_module(spec);
    ASSERT_TRUE(pick(*module, *c));
    liar.from_run = 0;
    EXPECT_TRUE(pick(*module, *c));
    change_it(*module);
    const Selection after = pick(*module, *c);
    ASSERT_FALSE(after);
    EXPECT_EQ(after.decisions[0].candidates[0].reasons[0].code, ReasonCode::not_verified);
    EXPECT_TRUE(pick(*unchanged, *c));
  }
}

TEST_F(Gate, AKernelIsTriedOncePerContextWhoeverAsks) {
  Liar honest;
  const auto c = context(honest);
  const auto first = linear(), second = linear();
  pick(*first, *c);
  const int runs = honest.runs;
  EXPECT_TRUE(pick(*second, *c));
  EXPECT_TRUE(pick(*first, *c));
  EXPECT_EQ(honest.runs, runs);
}

TEST_F(Gate, AnotherBuildIsTriedAnew) {
  verify::GateStore store;
  int made = 0;
  const auto make = [&] { return verify::GateResult{++made == 1, true, "text"}; };
  EXPECT_TRUE(store.result("a", false, make).passed);
  EXPECT_TRUE(store.result("a", false, make).passed);
  EXPECT_FALSE(store.result("b", false, make).passed);
  EXPECT_EQ(made, 2);
  Liar old_build{.build = "1"}, new_build{.build = "2"};
  EXPECT_NE(test::LyingPlugin(cpu_ref(), old_build).build(), test::LyingPlugin(cpu_ref(), new_build).build());
  EXPECT_THAT(cpu_ref()->build(), HasSubstr("cpu_ref/"));
}

TEST_F(Gate, AResultThatDoesNotLastIsForgotten) {
  verify::GateStore store;
  int made = 0;
  const auto make = [&] { return verify::GateResult{++made == 2, made == 2, ""}; };
  EXPECT_FALSE(store.result("a", false, make).passed);
  EXPECT_TRUE(store.result("a", false, make).passed);
  EXPECT_EQ(made, 2);
  EXPECT_THROW(store.result("b", false, []() -> verify::GateResult { throw Error(ErrorCode::device_lost, "gone"); }),
               Error);
  EXPECT_TRUE(store.result("b", false, [] { return verify::GateResult{true, true, ""}; }).passed);
}

TEST_F(Gate, ManyThreadsThatAskAtOnceTryOnce) {
  verify::GateStore store;
  std::atomic<int> made{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 50; ++k) {
        const std::string key = std::to_string(k);
        EXPECT_TRUE(store.result(key, false, [&] { return verify::GateResult{++made > 0, true, ""}; }).passed);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(made, 50);
}

TEST_F(Gate, CanBeSwitchedOff) {
  Liar liar{.lie = Lie::wrong_in_forward};
  const auto c = context(liar, false, {.gate = false});
  const auto module = linear();
  EXPECT_TRUE(pick(*module, *c));
  EXPECT_EQ(liar.runs, 0);
}

TEST_F(Gate, AKernelKnownToBeWrongIsNotSupported) {
  Liar liar{.lie = Lie::wrong_in_forward};
  const auto c = context(liar);
  const auto module = linear();
  EXPECT_TRUE(module->fast_supported(Device::cpu(), DType::float64, kPassesForces, c.get()));
  pick(*module, *c);
  const Support support = module->fast_supported(Device::cpu(), DType::float64, kPassesForces, c.get());
  ASSERT_FALSE(support);
  EXPECT_EQ(support.reasons()[0].code, ReasonCode::not_verified);
}

TEST_F(Gate, ChangedParametersAreBoundAndTheKernelIsKept) {
  Liar honest;
  const auto c = context(honest);
  const auto module = linear();
  pick(*module, *c);
  const int creates = honest.creates, runs = honest.runs;
  module->parameter("weight").data<double>()[0] = 3;
  module->touch();
  EXPECT_TRUE(pick(*module, *c));
  EXPECT_EQ(honest.creates, creates);
  EXPECT_EQ(honest.runs, runs);
}

}  // namespace
}  // namespace fastpath
