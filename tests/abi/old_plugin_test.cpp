// A plugin that was built against the header of an earlier ABI version, by either compiler, in the host of today.
#include <gmock/gmock.h>

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "fastpath/context.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/registry.hpp"

namespace fastpath {
namespace {

/// The host's side of the op that tests/abi/v1_0/plugin.c describes.
class EdgeSum final : public FastPathModule {
 public:
  EdgeSum() { register_parameter("weight", Tensor::from({1}, std::vector<double>{kWeight})); }
  const OpSpec& op() const override { return op_; }
  int reference_runs() const { return reference_runs_; }

  static constexpr double kFactor = 0.5, kWeight = 3.0;

 protected:
  void reference(const OpCall& call, const std::vector<Tensor>& parameters) override {
    ++reference_runs_;
    const double scale = kFactor * *parameters[0].data<double>();
    const double* x = call.inputs[0].data<double>();
    const std::int64_t* first = call.graph->receiver_ptr.data<std::int64_t>();
    double grad_weight = 0;
    for (std::int64_t n = 0; n < call.graph->n_receivers; ++n) {
      double sum = 0;
      for (std::int64_t e = first[n]; e < first[n + 1]; ++e) sum += x[e] * x[e];
      if (call.pass == Pass::forward) {
        call.outputs[0].data<double>()[n] = scale * sum;
        continue;
      }
      const double g = call.grad_outputs[0].data<double>()[n];
      for (std::int64_t e = first[n]; e < first[n + 1]; ++e) {
        call.grad_inputs[0].data<double>()[e] = g * scale * 2 * x[e];
      }
      grad_weight += g * kFactor * sum;
    }
    if (call.pass == Pass::backward) *call.grad_parameters[0].data<double>() = grad_weight;
  }
  std::vector<Tensor> schema_tensors() const override { return {parameter("weight")}; }

 private:
  OpSpec op_{"org.example.edge_sum", 1, {{"factor", std::vector<double>{kFactor}}}};
  int reference_runs_ = 0;
};

Tensor ids(std::vector<std::int32_t> values) {
  return Tensor::from({static_cast<std::int64_t>(values.size())}, std::move(values));
}
Tensor offsets(std::vector<std::int64_t> values) {
  return Tensor::from({static_cast<std::int64_t>(values.size())}, std::move(values));
}

/// Edges 0 <- 1, 0 <- 2, 1 <- 0; node 2 is a ghost.
OpGraph small_graph() {
  OpGraph graph;
  graph.n_edges = 3;
  graph.n_nodes = 3;
  graph.n_receivers = 2;
  graph.receiver = ids({0, 0, 1});
  graph.sender = ids({1, 2, 0});
  graph.receiver_ptr = offsets({0, 2, 3, 3});
  graph.sender_ptr = offsets({0, 1, 2, 3});
  graph.sender_edge = offsets({2, 0, 1});
  return graph;
}

/// Outputs, gradient of x, gradient of the weight, by whatever path is active.
std::vector<std::vector<double>> evaluate(EdgeSum& module, const OpGraph& graph) {
  const Tensor x = Tensor::from({3}, std::vector<double>{1.5, -2.0, 4.0});
  const Tensor g = Tensor::from({2}, std::vector<double>{1.0, -3.0});
  Tensor y = Tensor::empty({2}, DType::float64), grad_x = Tensor::empty({3}, DType::float64),
         grad_weight = Tensor::empty({1}, DType::float64);
  OpCall call;
  call.graph = &graph;
  call.inputs = {&x, 1};
  call.outputs = {&y, 1};
  if (const std::uint64_t bytes = module.saved_bytes(call); bytes > 0) {
    call.saved = Tensor::empty({static_cast<std::int64_t>(bytes)}, DType::uint8);
  }
  module.run(call);
  call.pass = Pass::backward;
  call.grad_outputs = {&g, 1};
  call.grad_inputs = {&grad_x, 1};
  call.grad_parameters = {&grad_weight, 1};
  module.run(call);
  const auto values = [](const Tensor& t) {
    const auto span = t.span<double>();
    return std::vector<double>(span.begin(), span.end());
  };
  return {values(y), values(grad_x), values(grad_weight)};
}

class OldPlugin : public testing::TestWithParam<std::string> {};

TEST_P(OldPlugin, IsLoadedAndComputes) {
  const std::filesystem::path folder = std::filesystem::path(FASTPATH_OLD_PLUGINS) / GetParam();
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "it was not built, for want of that compiler";
  ContextOptions options;
  options.registry.search_paths = {folder};
  options.registry.default_paths = false;
  options.registry.use_cache = false;
  Context context(options);

  Module root;
  const auto module = std::make_shared<EdgeSum>();
  root.register_child("sum", module);
  const OpGraph graph = small_graph();
  const auto slow = evaluate(*module, graph);
  EXPECT_EQ(slow, (std::vector<std::vector<double>>{{9.375, 24.0}, {4.5, -6.0, -36.0}, {-20.875}}));

  const std::vector<NamedFastModule> modules = fast_modules(root);
  const Selection selection = select(modules, UseFast::always, nullptr, Device::cpu(), DType::float64,
                                     ProblemSize{3, 3}, kPassesForces, &context);
  const std::vector<PluginInfo> plugins = context.registry().plugins();
  ASSERT_EQ(plugins.size(), 1u);
  EXPECT_EQ(plugins[0].state, PluginState::usable) << plugins[0].reason.text;
  ASSERT_TRUE(selection.any_fast()) << selection.decisions[0].reason.text;
  EXPECT_EQ(selection.decisions[0].choice, "abi_1_0");
  // The same operations on numbers that are exact. The first time the host compares it with the reference.
  EXPECT_EQ(evaluate(*module, graph), slow);
  EXPECT_TRUE(module->fast_active()) << module->last_failure().value_or(Reason{}).text;
  const int runs = module->reference_runs();
  EXPECT_EQ(evaluate(*module, graph), slow);
  EXPECT_EQ(module->reference_runs(), runs) << "the reference ran instead of the kernel";
}

INSTANTIATE_TEST_SUITE_P(V1x0, OldPlugin, testing::Values("gcc", "clang"),
                         [](const auto& vendor) { return vendor.param; });

}  // namespace
}  // namespace fastpath
