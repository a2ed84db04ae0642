#include "tune/bench.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "fastpath/error.hpp"
#include "fastpath/sdk/attributes.hpp"

namespace fastpath::tuning {
namespace {

constexpr std::uint64_t kSeed = 0x7e57;
/// Edges of a node in what is drawn for ops: between those of a molecule and of a dense crystal.
constexpr std::int64_t kNeighbors = 30;

/// How long the threads of this process were ready to run and did not, in seconds; and how often they were made to
/// stop.
struct Waited {
  double seconds = 0;
  bool known = false;
  std::int64_t switches = 0;

  static Waited now() {
    Waited result;
    std::error_code error;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task", error)) {
      std::ifstream file(task.path() / "schedstat");
      double ran = 0, waited = 0;
      if (!(file >> ran >> waited)) continue;
      result.seconds += 1e-9 * waited;
      result.known = true;
    }
    struct rusage usage {};
    ::getrusage(RUSAGE_SELF, &usage);
    result.switches = usage.ru_nivcsw;
    return result;
  }
};

/// Bytes that the system could give without swapping; 0 where it does not say.
std::uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string key, unit; file >> key;) {
    std::uint64_t kilobytes = 0;
    if (key == "MemAvailable:" && file >> kilobytes) return kilobytes * 1024;
    std::getline(file, unit);
  }
  return 0;
}

/// @throws Error(out_of_memory) if the tensors of a problem, and what is made from them, are too large to be drawn.
void require_memory(const sdk::Signature& signature, const verify::TrialShape& shape) {
  verify::Problem sizes;
  sizes.shape = shape;
  double bytes = 0;
  for (const auto* list : {&signature.inputs, &signature.outputs, &signature.parameters}) {
    for (const sdk::Argument& argument : *list) {
      double elements = 1;
      for (const std::int64_t size : sizes.shape_of(argument)) elements *= static_cast<double>(size);
      bytes += 8 * elements;
    }
  }
  // Values, cotangents, results and the reference's own arrays; in two precisions while they are drawn.
  constexpr double kCopies = 8;
  const auto available = static_cast<double>(available_memory());
  if (available > 0 && kCopies * bytes > available / 2) {
    throw Error(ErrorCode::out_of_memory, fmt::format("{} edges need about {:.1f} GB, and {:.1f} GB are available",
                                                      shape.n_edges, 1e-9 * kCopies * bytes, 1e-9 * available));
  }
}

}  // namespace

double Clock::now() const {
  if (timer_) return simulated_;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Bench::Block Clock::time(Arm arm, const ProblemSize& size, int repeats, const std::function<void()>& evaluate) {
  if (timer_) {
    const double seconds = timer_(arm, size, repeats, evaluate);
    simulated_ += seconds;
    return {seconds, false};
  }
  // A thread that waits this part of a block makes it slower by as much, or more where others wait for it.
  constexpr double kMostWaiting = 0.03, kOneSwitch = 50e-6;
  const Waited before = Waited::now();
  const double start = now();
  for (int i = 0; i < repeats; ++i) evaluate();
  const double seconds = now() - start;
  const Waited after = Waited::now();
  const double waiting = after.known && before.known
                             ? after.seconds - before.seconds
                             : kOneSwitch * static_cast<double>(after.switches - before.switches);
  return {seconds, waiting > kMostWaiting * seconds};
}

OpBench::OpBench(Clock& clock, FastPathModule& module, DType dtype, Passes passes, int threads)
    : TimedBench(clock), module_(module), dtype_(dtype), passes_(passes), threads_(threads) {}

ProblemSize OpBench::make(std::int64_t n_edges) {
  calls_.clear();
  problem_.reset();
  verify::TrialShape shape;
  shape.n_edges = n_edges;
  shape.n_nodes = shape.n_receivers = std::max<std::int64_t>(2, n_edges / kNeighbors);
  // Of ops that count rows the net is one of edges, the others are of nodes.
  shape.n_rows = module_.op().id == sdk::RadialMlpConfig::kOp ? shape.n_edges : shape.n_nodes;
  shape.duplicates = shape.isolated = false;
  const OpSpec& op = module_.op();
  if (const auto signature = sdk::signature_of(op.id, op.version, sdk::Attributes(op.config))) {
    require_memory(*signature, shape);
  }
  problem_ = verify::draw_problem(module_, dtype_, shape, kSeed);
  verify::Problem& problem = *problem_;
  problem.exact = {};
  for (const Pass pass : {Pass::forward, Pass::backward, Pass::forward_tangent, Pass::backward_tangent}) {
    if (!passes_.contains(pass)) continue;
    const bool tangents = pass == Pass::forward_tangent || pass == Pass::backward_tangent;
    const bool backward = pass == Pass::backward || pass == Pass::backward_tangent;
    auto made = std::make_unique<Call>();
    OpCall& call = made->call;
    call.pass = pass;
    call.graph = &problem.graph;
    call.threads = threads_;
    call.inputs = problem.given.inputs;
    if (tangents) {
      call.inputs_t = problem.given.inputs_t;
      call.parameters_t = problem.given.parameters_t;
    }
    const auto& outputs = problem.signature.outputs;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const bool wanted = !outputs[i].optional;
      const auto place = [&] { return wanted ? Tensor::zeros(problem.shape_of(outputs[i]), dtype_) : Tensor(); };
      if (backward) {
        made->grad_outputs.push_back(wanted ? problem.given.grad_outputs[i] : Tensor());
        if (tangents) made->grad_outputs_t.push_back(wanted ? problem.given.grad_outputs_t[i] : Tensor());
      } else {
        made->outputs.push_back(place());
        if (tangents) made->outputs_t.push_back(place());
      }
    }
    if (backward) {
      for (std::size_t i = 0; i < problem.signature.inputs.size(); ++i) {
        const sdk::Argument& input = problem.signature.inputs[i];
        const bool wanted = input.real && input.differentiable && problem.given.inputs[i].defined();
        made->grad_inputs.push_back(wanted ? Tensor::zeros(problem.shape_of(input), dtype_) : Tensor());
        if (tangents) {
          made->grad_inputs_t.push_back(wanted ? Tensor::zeros(problem.shape_of(input), dtype_) : Tensor());
        }
      }
      // Forces need none of the parameters; a training step needs all.
      const bool training = passes_ == kPassesTraining;
      for (std::size_t i = 0; i < problem.signature.parameters.size(); ++i) {
        const sdk::Argument& parameter = problem.signature.parameters[i];
        const bool wanted = training && parameter.differentiable && problem.given.parameters[i].defined();
        made->grad_parameters.push_back(wanted ? Tensor::zeros(problem.shape_of(parameter), dtype_) : Tensor());
        if (tangents) {
          made->grad_parameters_t.push_back(wanted ? Tensor::zeros(problem.shape_of(parameter), dtype_) : Tensor());
        }
      }
    }
    call.outputs = made->outputs, call.outputs_t = made->outputs_t;
    call.grad_outputs = made->grad_outputs, call.grad_outputs_t = made->grad_outputs_t;
    call.grad_inputs = made->grad_inputs, call.grad_inputs_t = made->grad_inputs_t;
    call.grad_parameters = made->grad_parameters, call.grad_parameters_t = made->grad_parameters_t;
    calls_.push_back(std::move(made));
  }
  saved_ = {};
  std::uint64_t bytes = 0;
  for (const auto& each : calls_) bytes = std::max(bytes, module_.saved_bytes(each->call));
  if (bytes > 0) saved_ = Tensor::empty({static_cast<std::int64_t>(bytes)}, DType::uint8);
  return {shape.n_edges, shape.n_nodes};
}

void OpBench::evaluate(Arm arm) {
  for (const auto& each : calls_) {
    if (arm == Arm::reference) {
      each->call.saved = {};
      module_.run_reference(each->call);
      continue;
    }
    each->call.saved = saved_;
    module_.run(each->call);
    if (!module_.fast_active()) {
      throw Error(ErrorCode::kernel_failed,
                  module_.last_failure() ? module_.last_failure()->text : "the kernel failed");
    }
  }
}

Structure crystal(const Model& model, std::int64_t n_edges) {
  // 26 neighbours lie within sqrt(3) spacings; the jitter moves none of them out, and none of the next in.
  constexpr double kNear = 26, kJitter = 0.02;
  const double spacing = model.r_max() / 1.87;
  const auto atoms = std::max<std::int64_t>(2, std::llround(static_cast<double>(n_edges) / kNear));
  const auto side = std::max<std::int64_t>(1, std::llround(std::cbrt(static_cast<double>(atoms))));
  const std::int64_t depth = std::max<std::int64_t>(1, (atoms + side * side / 2) / (side * side));
  const std::int64_t length = side * side * depth < 2 ? 2 : depth;
  verify::Random random(kSeed);
  Structure structure;
  const std::vector<std::int32_t>& numbers = model.atomic_numbers();
  for (std::int64_t i = 0; i < side * side * length; ++i) {
    structure.atomic_numbers.push_back(numbers[static_cast<std::size_t>(i) % numbers.size()]);
    Vec3 position{static_cast<double>(i % side), static_cast<double>(i / side % side),
                  static_cast<double>(i / (side * side))};
    for (double& x : position) x = spacing * (x + kJitter * random.normal());
    structure.positions.push_back(position);
  }
  const double width = spacing * static_cast<double>(side), height = spacing * static_cast<double>(length);
  structure.cell = {Vec3{width, 0, 0}, Vec3{0, width, 0}, Vec3{0, 0, height}};
  structure.pbc = {true, true, true};
  return structure;
}

ModelBench::ModelBench(Clock& clock, Model& model, EvaluateOptions options, Passes passes)
    : TimedBench(clock), model_(model), options_(std::move(options)), passes_(passes) {
  options_.forces = options_.stress = passes.contains(Pass::backward);
  options_.parameter_gradients = passes.contains(Pass::backward_tangent);  // a training step wants them
}

ProblemSize ModelBench::make(std::int64_t n_edges) {
  graph_ = Graph::from_structure(crystal(model_, n_edges), model_.r_max());
  if (passes_.contains(Pass::forward_tangent)) {
    options_.direction = Tensor::empty({graph_->n_nodes(), 3}, DType::float64);
    verify::Random random(kSeed);
    for (double& x : options_.direction.span<double>()) x = random.normal();
  }
  return {graph_->n_edges(), graph_->n_nodes()};
}

void ModelBench::evaluate(Arm arm) {
  EvaluateOptions options = options_;
  options.use_fast = arm == Arm::kernel ? UseFast::always : UseFast::never;
  if (arm == Arm::reference) options.device = Device::cpu();
  model_.evaluate(*graph_, options);
}

}  // namespace fastpath::tuning
