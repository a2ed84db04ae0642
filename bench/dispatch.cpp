// fastpath_bench_dispatch: what choosing and calling kernels costs when they do nothing. README.md says how to read it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "count_allocations.hpp"
#include "fastpath/context.hpp"
#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/fast_path.hpp"
#include "fastpath/model.hpp"
#include "harness.hpp"

namespace {

using namespace fastpath;

constexpr const char* kHelp =
    R"(fastpath_bench_dispatch [--check] [--evaluation] [--modules N] [--seconds S]: what it costs to choose and call
kernels.

  --check        only count allocations of the steady state; exit status 1 if there are any
  --evaluation   only count allocations of whole evaluations of a model, by the reference and by cpu_ref
  --modules N    modules of one evaluation (19, as in a model of two layers)
  --seconds S    time for measuring (2)
)";

/// An irreps_linear of a host's own, so that its calls are checked as those of a model are.
class Linear final : public FastPathModule {
 public:
  Linear() { register_parameter("weight", Tensor::zeros({6}, DType::float64)); }
  const OpSpec& op() const override { return spec_; }

 protected:
  void reference(const OpCall&, const std::vector<Tensor>&) override {}
  std::vector<Tensor> schema_tensors() const override { return {parameter("weight"), Tensor()}; }

 private:
  OpSpec spec_{"irreps_linear",
               1,
               {{"irreps_in", std::string("2x0e")},
                {"irreps_out", std::string("3x0e")},
                {"bias", std::vector<std::int64_t>{0}},
                {"scale", std::vector<double>{1.0}},
                {"path_normalization", std::string("element")}}};
};

/// What a call cannot be cheaper than.
struct Callee {
  virtual ~Callee() = default;
  virtual void call(const OpCall& call) = 0;
};
struct Nothing final : Callee {
  void call(const OpCall& call) override { seen = &call; }
  const void* volatile seen = nullptr;
};

class Subject {
 public:
  explicit Subject(int n_modules)
      : context_({.registry = {.search_paths = {BENCH_PLUGINS}, .default_paths = false, .probe = ProbeMode::in_process},
                  .threads = 1,
                  .gate = false}) {
    for (int i = 0; i < n_modules; ++i) {
      modules_.push_back(std::make_unique<Linear>());
      list_.push_back({"interactions.0.block.module_" + std::to_string(i), modules_.back().get()});
      callees_.push_back(std::make_unique<Nothing>());
    }
    forward_.pass = Pass::forward;
    forward_.inputs = x_;
    forward_.outputs = y_;
    backward_.pass = Pass::backward;
    backward_.inputs = x_;
    backward_.grad_outputs = y_;
    backward_.grad_inputs = grad_x_;
  }

  /// Select, then every module forward and backward. The number of edges changes a little, as along a trajectory.
  void evaluate(std::int64_t step) {
    const Selection selection = select(list_, UseFast::always, AutoPolicy::builtin().get(), Device::cpu(),
                                       DType::float64, {1000 + step % 7, 100}, kPassesForces, &context_);
    if (!selection) throw Error(ErrorCode::unavailable, selection.decisions[0].reason.text);
    call();
  }
  void select_only(std::int64_t step) {
    (void)select(list_, UseFast::always, AutoPolicy::builtin().get(), Device::cpu(), DType::float64,
                 {1000 + step % 7, 100}, kPassesForces, &context_);
  }
  void call() {
    for (const auto& module : modules_) module->run(forward_);
    for (const auto& module : modules_) module->run(backward_);
  }
  void call_nothing() {
    for (const auto& callee : callees_) callee->call(forward_);
    for (const auto& callee : callees_) callee->call(backward_);
  }

 private:
  Context context_;
  std::vector<std::unique_ptr<Linear>> modules_;
  std::vector<NamedFastModule> list_;
  std::vector<std::unique_ptr<Callee>> callees_;
  const Tensor x_[1] = {Tensor::zeros({4, 2}, DType::float64)}, y_[1] = {Tensor::zeros({4, 3}, DType::float64)},
               grad_x_[1] = {Tensor::zeros({4, 2}, DType::float64)};
  OpCall forward_, backward_;
};

template <class Function>
bench::Arm arm(const char* name, Function function) {
  return {name, [function] {
            constexpr int kRepeats = 2000;
            const double start = bench::now();
            for (int i = 0; i < kRepeats; ++i) function(i);
            return (bench::now() - start) / kRepeats;
          }};
}

/// Allocations of one evaluation of the demo model in the steady state: what they are for is the caller's results, the
/// graph, and whatever kernels and reference code take for themselves.
void count_evaluations() {
  const auto model = Model::load(BENCH_MODEL);
  const Graph graph = Graph::from_structure(read_extxyz(BENCH_STRUCTURE).front(), model->r_max());
  Context context({.registry = {.search_paths = {BENCH_TREE_PLUGINS}, .default_paths = false}, .threads = 1});
  std::printf("demo model, %lld atoms, %lld edges, float64, forces:\n", static_cast<long long>(graph.n_nodes()),
              static_cast<long long>(graph.n_edges()));
  for (const UseFast use_fast : {UseFast::never, UseFast::always}) {
    EvaluateOptions options;
    options.use_fast = use_fast;
    options.context = &context;
    options.threads = 1;
    for (int i = 0; i < 5; ++i) (void)model->evaluate(graph, options);
    constexpr int kCounted = 20;
    const std::uint64_t before = allocations();
    for (int i = 0; i < kCounted; ++i) (void)model->evaluate(graph, options);
    const std::uint64_t made = allocations() - before;
    std::size_t fast = 0;
    const EvaluationResult result = model->evaluate(graph, options);
    for (const Decision& decision : result.selection.decisions) fast += decision.fast() ? 1 : 0;
    std::printf("  use_fast %s, %zu of %zu modules fast: %.1f allocations per evaluation\n",
                std::string(to_string(use_fast)).c_str(), fast, result.selection.decisions.size(),
                static_cast<double>(made) / kCounted);
  }
}

int run(int argc, char** argv) {
  bool check = false;
  int n_modules = 19;
  double seconds = 2;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--check") {
      check = true;
    } else if (option == "--evaluation") {
      count_evaluations();
      return 0;
    } else if (option == "--modules" && i + 1 < argc && std::atoi(argv[i + 1]) > 0) {
      n_modules = std::atoi(argv[++i]);
    } else if (option == "--seconds" && i + 1 < argc && std::atof(argv[i + 1]) > 0) {
      seconds = std::atof(argv[++i]);
    } else {
      std::fputs(kHelp, option == "--help" ? stdout : stderr);
      return option == "--help" ? 0 : 2;
    }
  }
  Subject subject(n_modules);
  for (int i = 0; i < 20; ++i) subject.evaluate(i);
  constexpr int kCounted = 1000;
  const std::uint64_t before = allocations();
  for (int i = 0; i < kCounted; ++i) subject.evaluate(i);
  const std::uint64_t made = allocations() - before;
  std::printf("%d modules, %d evaluations: %llu allocations\n", n_modules, kCounted,
              static_cast<unsigned long long>(made));
  if (check) return made == 0 ? 0 : 1;

  const auto timings =
      bench::measure({arm("select", [&](int i) { subject.select_only(i); }), arm("call", [&](int) { subject.call(); }),
                      arm("select and call", [&](int i) { subject.evaluate(i); }),
                      arm("empty virtual calls", [&](int) { subject.call_nothing(); })},
                     {.seconds = seconds, .warm_up = 1, .min_rounds = 5, .max_rounds = 100000});
  const double empty = timings.back().median();
  bench::Table table({"per module (forward and backward)", "ns, median", "spread", "least", "times empty calls"});
  for (const bench::Timing& timing : timings) {
    const double unit = 1e9 / n_modules;
    table.add({timing.name, bench::fixed(timing.median() * unit, 1), bench::fixed(timing.mad() * unit, 1),
               bench::fixed(timing.minimum() * unit, 1), bench::fixed(timing.median() / empty, 1)});
  }
  std::fputs(table.text().c_str(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fastpath_bench_dispatch: %s\n", error.what());
    return 1;
  }
}
