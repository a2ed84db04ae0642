#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include "fastpath/conformance/cases.hpp"
#include "ops/make_op_module.hpp"
#include "plugin/elf.hpp"
#include "plugin/loaded.hpp"
#include "plugin/scan.hpp"
#include "verify/op_trial.hpp"

namespace fastpath::conformance {

void PrintTo(const OpCase& op, std::ostream* out) { *out << op.op << ", " << op.label; }

}  // namespace fastpath::conformance

namespace {

using namespace fastpath;
using conformance::OpCase;

plugin::LoadResult opencl() {
  plugin::Candidate candidate;
  candidate.path = candidate.resolved = FASTPATH_PLUGIN_OPENCL;
  const int descriptor = open(FASTPATH_PLUGIN_OPENCL, O_RDONLY);
  candidate.identity = plugin::identify(descriptor).value();
  const auto report = plugin::inspect_object(plugin::FileSource(descriptor, candidate.identity.size));
  close(descriptor);
  candidate.metadata = report.metadata;
  candidate.id = report.metadata->id;
  candidate.state = PluginState::usable;
  return plugin::load(candidate);
}

std::vector<OpCase> some_cases() {
  using namespace conformance::cases;
  std::vector<OpCase> result{mlp({3, 33}), mlp({8, 64, 64, 64})};
  for (const char* op : {"irreps_linear", "species_linear", "conv_tensor_product"}) {
    result.push_back(conformance::corner_cases(op).at(0));
  }
  for (const std::size_t i : {1, 4}) result.push_back(conformance::corner_cases("message_step").at(i));
  return result;
}

class OpenClStores : public testing::TestWithParam<OpCase> {};

// Compilers make vectors of items: an item that has nothing to store must not store for its neighbours' sake.
TEST_P(OpenClStores, StayWithinResultsOfAnyNumberOfRows) {
  const plugin::LoadResult loaded = opencl();
  if (loaded.plugin == nullptr) {
    const char* required = std::getenv("FASTPATH_REQUIRE_PLUGINS");
    ASSERT_TRUE(required == nullptr || std::string(required).find("opencl") == std::string::npos) << loaded.reason.text;
    ASSERT_EQ(loaded.state, PluginState::idle) << loaded.reason.text;
    GTEST_SKIP() << loaded.reason.text;
  }
  const auto device = loaded.plugin->open(loaded.plugin->info().devices.at(0));
  const OpCase& op = GetParam();
  OpSpec spec{op.op, op.version, op.config.values()};
  if (op.op == "message_step") {  // as the reference always asks
    std::vector<double> frequencies;
    for (std::int64_t n = 1; n <= op.config.integer("radial.n_basis"); ++n) {
      frequencies.push_back(static_cast<double>(n) * M_PI / op.config.real("radial.r_max"));
    }
    spec.config["radial.frequencies"] = std::move(frequencies);
  }
  const auto module = ops::make_op_module(spec);
  const auto kernel = device->create_kernel(spec, DType::float64, kPassesForces);
  ASSERT_NE(kernel, nullptr);
  for (const int rows : {17, 33, 50, 60}) {
    verify::TrialShape shape;
    shape.n_edges = shape.n_rows = rows;
    shape.n_nodes = shape.n_receivers = 8;
    verify::OpTrial trial(*module, DType::float64, shape, 1);
    trial.bind(*kernel, *device);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      const verify::RunResult result = trial.run(*kernel, *device, pass);
      EXPECT_FALSE(result.finding.has_value()) << op.label << ": " << result.finding->text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, OpenClStores, testing::ValuesIn(some_cases()),
                         [](const auto& one) { return one.param.op + std::to_string(one.index); });

}  // namespace
