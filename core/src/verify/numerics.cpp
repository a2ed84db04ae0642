#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <set>

#include "fastpath/conformance/cases.hpp"
#include "fastpath/error.hpp"
#include "fastpath/verify.hpp"
#include "ops/make_op_module.hpp"
#include "plugin/elf.hpp"
#include "plugin/loaded.hpp"
#include "plugin/scan.hpp"
#include "verify/op_trial.hpp"

namespace fastpath {
namespace {

namespace fs = std::filesystem;
using conformance::OpCase;
using plugin::Kernel;
using plugin::KernelTraits;
using plugin::LoadedPlugin;
using plugin::OpenDevice;

constexpr std::string_view kPrefix = "numerics.";
constexpr std::array kDTypes{DType::float32, DType::float64};
constexpr std::array kAllPasses{Pass::forward, Pass::backward, Pass::forward_tangent, Pass::backward_tangent};
/// Highest degree that is looked for.
constexpr int kMaxDegree = 12;

/// Ends a check for which there is nothing to do.
struct Nothing {
  std::string why;
};

/// One file, whatever stands beside it.
std::shared_ptr<LoadedPlugin> load(const fs::path& path) {
  plugin::Candidate candidate;
  std::error_code error;
  candidate.path = fs::absolute(path, error);
  candidate.resolved = fs::canonical(path, error);
  const int descriptor = error ? -1 : ::open(candidate.resolved.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    throw Error(ErrorCode::not_found,
                fmt::format("{}: {}", path.string(), error ? error.message() : std::strerror(errno)));
  }
  const std::optional<plugin::FileIdentity> identity = plugin::identify(descriptor);
  plugin::ObjectReport report;
  if (identity) report = plugin::inspect_object(plugin::FileSource(descriptor, identity->size));
  ::close(descriptor);
  if (!identity || report.reason.code != ReasonCode::usable) {
    throw Nothing{fmt::format("the file is no plugin: {}", report.reason.text)};
  }
  candidate.identity = *identity;
  candidate.metadata = report.metadata;
  candidate.id = report.metadata->id;
  candidate.state = PluginState::usable;
  plugin::LoadResult loaded = plugin::load(candidate);
  if (!loaded.plugin) {
    throw Nothing{fmt::format("the plugin is {}: {}", to_string(loaded.state), loaded.reason.text)};
  }
  return loaded.plugin;
}

/// All comparisons of one check.
class Comparison {
 public:
  Comparison(const NumericalOptions& options, const NumericalReport& report, std::string op, DType dtype)
      : options_(options), report_(report), op_(std::move(op)), dtype_(dtype) {}

  void run();

 private:
  struct Offer {
    DeviceInfo device;
    Passes passes;
  };
  void run_device(LoadedPlugin& plugin, const Offer& offer);
  void run_case(LoadedPlugin& plugin, const std::shared_ptr<OpenDevice>& device, const Offer& offer, const OpCase& op);
  bool takes(LoadedPlugin& plugin, const Offer& offer, const OpCase& op, KernelTraits* traits = nullptr) const;
  std::vector<OpCase> cases(LoadedPlugin& plugin, const Offer& offer);
  /// An error just above the limit may come from values that cancel, in a tensor of few elements: then it does not come
  /// again with others.
  static bool is_close(const verify::Finding& finding) {
    constexpr double kClose = 8;
    return finding.fault == verify::Fault::wrong_value && finding.error <= kClose * finding.tolerance;
  }
  bool agrees_again(Kernel& kernel, OpenDevice& device, ops::OpModule& module, const verify::TrialShape& shape,
                    Pass pass, const verify::Request& request);
  void note_finding(const verify::Finding& finding);

  const NumericalOptions& options_;
  const NumericalReport& report_;
  const std::string op_;
  const DType dtype_;
  std::mt19937_64 random_;
  int n_cases_ = 0, n_runs_ = 0, degree_ = -1;
  double worst_ = 0;
};

/// The reference of a radial basis always states its frequencies, so they are in the question too.
OpSpec spec_of(const OpCase& op) {
  OpSpec spec{op.op, op.version, op.config.values()};
  const bool basis = op.op == sdk::RadialBasisConfig::kOp, step = op.op == sdk::MessageStepConfig::kOp;
  const std::string prefix = step ? "radial." : "";
  if ((basis || step) && !op.config.has(prefix + "frequencies")) {
    std::vector<double> frequencies;
    for (std::int64_t n = 1; n <= op.config.integer(prefix + "n_basis"); ++n) {
      frequencies.push_back(static_cast<double>(n) * M_PI / op.config.real(prefix + "r_max"));
    }
    spec.config[prefix + "frequencies"] = std::move(frequencies);
  }
  return spec;
}

void Comparison::run() {
  const std::shared_ptr<LoadedPlugin> plugin = load(options_.plugin);
  const PluginInfo& info = plugin->info();
  bool any = false;
  std::set<DeviceKind> kinds;
  for (const DeviceInfo& device : info.devices) {
    if (!kinds.insert(device.device.kind).second) continue;  // one device of each kind
    for (const KernelInfo& kernel : info.kernels) {
      if (kernel.op != op_ || kernel.device != device.device.kind ||
          std::find(kernel.dtypes.begin(), kernel.dtypes.end(), dtype_) == kernel.dtypes.end()) {
        continue;
      }
      any = true;
      run_device(*plugin, {device, kernel.passes});
    }
  }
  if (!any) throw Nothing{fmt::format("it lists no kernel for {} in {}", op_, to_string(dtype_))};
  if (n_cases_ == 0) throw Nothing{"it takes none of the configurations that were tried"};
  report_.note(fmt::format("{} configurations{}, {} comparisons, largest error {:.1e}", n_cases_,
                           degree_ > 0 ? fmt::format(" up to l = {}", degree_) : "", n_runs_, worst_));
}

bool Comparison::takes(LoadedPlugin& plugin, const Offer& offer, const OpCase& op, KernelTraits* traits) const {
  return static_cast<bool>(plugin.query(spec_of(op), offer.device, dtype_, offer.passes, traits));
}

std::vector<OpCase> Comparison::cases(LoadedPlugin& plugin, const Offer& offer) {
  // The same configurations in both dtypes.
  std::uint64_t state = options_.seed * 0x9E3779B97F4A7C15u + 1;
  for (const char c : op_) state = (state ^ static_cast<unsigned char>(c)) * 1099511628211u;
  random_.seed(state);
  std::vector<OpCase> all = conformance::corner_cases(op_);
  int limit = -1;
  for (int l = 0; l <= kMaxDegree; ++l) {
    OpCase op = conformance::case_of_degree(op_, l);
    if (!takes(plugin, offer, op)) continue;
    limit = l;
    if (op.degree > 0 || l == 0) all.push_back(std::move(op));
    if (op_ == sdk::RadialBasisConfig::kOp || op_ == sdk::RadialMlpConfig::kOp) break;
  }
  if (op_ == sdk::ConvTensorProductConfig::kOp && limit > 3) {
    constexpr int kHighest = 6;  // coupling tensors grow with the fifth power of l
    const int l = std::min(limit, kHighest);
    all.push_back(conformance::cases::conv(fmt::format("2x{}{}", l, l % 2 == 0 ? "e" : "o"),
                                           conformance::cases::edge_irreps(l), l, false));
  }
  const int drawn = options_.quick ? 4 : 12;
  for (int i = 0; i < drawn; ++i) all.push_back(conformance::random_case(op_, random_, std::max(1, limit)));
  all.erase(std::remove_if(all.begin(), all.end(), [&](const OpCase& op) { return !takes(plugin, offer, op); }),
            all.end());
  return all;
}

void Comparison::run_device(LoadedPlugin& plugin, const Offer& offer) {
  const std::shared_ptr<OpenDevice> device = plugin.open(offer.device);
  if (!offer.device.device.is_cpu() && !device->owns_memory()) {
    report_.note(fmt::format("not tried on {}: the plugin brings no memory for it", to_string(offer.device.device)));
    return;
  }
  for (const OpCase& op : cases(plugin, offer)) run_case(plugin, device, offer, op);
}

void Comparison::run_case(LoadedPlugin& plugin, const std::shared_ptr<OpenDevice>& device, const Offer& offer,
                          const OpCase& op) {
  const OpSpec spec = spec_of(op);
  report_.step(fmt::format("{} {}, {}", op.op, op.label, to_string(dtype_)));
  KernelTraits traits;
  if (!takes(plugin, offer, op, &traits)) return;
  std::unique_ptr<Kernel> kernel;
  try {
    kernel = device->create_kernel(spec, dtype_, offer.passes);
  } catch (const Error& error) {
    report_.fail("P-48", error.what(), "a kernel, as query said yes");
    return;
  }
  ++n_cases_;
  degree_ = std::max(degree_, op.degree);
  const std::unique_ptr<ops::OpModule> module = ops::make_op_module(spec);
  std::vector<verify::TrialShape> shapes = verify::standard_shapes(spec);
  if (options_.quick) shapes.resize(std::min<std::size_t>(shapes.size(), 4));
  // Far from one, but so that products of a few stay in range; where they do not, the reference is not finite either.
  for (const double scale : {1.0, -1.0}) {
    verify::TrialShape shape;
    shape.name = scale > 0 ? "large values" : "tiny values";
    shape.scale = std::pow(10.0, scale * (dtype_ == DType::float32 ? 5 : 40));
    shapes.push_back(shape);
  }
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const verify::TrialShape& shape = shapes[i];
    const auto in_window = [&](std::int64_t edges) {
      return edges >= traits.min_edges && (traits.max_edges == 0 || edges <= traits.max_edges);
    };
    if (!in_window(op.signature.needs_graph ? shape.n_edges : shape.n_rows)) continue;
    report_.step(fmt::format("{} {}, {}, {}", op.op, op.label, to_string(dtype_), shape.name));
    verify::OpTrial trial(*module, dtype_, shape, random_());
    if (const plugin::CallStatus bound = trial.bind(*kernel, *device); !bound.ok()) {
      report_.fail("P-48", fmt::format("bind failed: {}", bound.text), "parameters that are taken");
      return;
    }
    for (const Pass pass : kAllPasses) {
      if (!offer.passes.contains(pass)) continue;
      verify::Request request;
      request.threads = 1 + static_cast<int>(i % 2);
      verify::RunResult result = trial.run(*kernel, *device, pass, request);
      ++n_runs_;
      if (result.finding && is_close(*result.finding)) {
        if (agrees_again(*kernel, *device, *module, shape, pass, request)) result.finding.reset();
        // The others bound parameters of their own.
        if (!trial.bind(*kernel, *device).ok()) return;
      }
      for (const verify::TensorResult& tensor : result.tensors) {
        if (std::isfinite(tensor.error)) worst_ = std::max(worst_, tensor.error);
      }
      if (result.finding) note_finding(*result.finding);
      if (pass != Pass::backward || i != 0 || result.finding) continue;
      const verify::RunResult forces = trial.run(*kernel, *device, pass, verify::inputs_only(trial.signature()));
      if (forces.finding) note_finding(*forces.finding);
    }
  }
}

bool Comparison::agrees_again(Kernel& kernel, OpenDevice& device, ops::OpModule& module,
                              const verify::TrialShape& shape, Pass pass, const verify::Request& request) {
  constexpr int kMore = 3;
  for (int i = 0; i < kMore; ++i) {
    verify::OpTrial trial(module, dtype_, shape, random_());
    if (!trial.bind(kernel, device).ok() || trial.run(kernel, device, pass, request).finding) return false;
  }
  return true;
}

void Comparison::note_finding(const verify::Finding& finding) {
  using verify::Fault;
  const bool forward = finding.pass == Pass::forward;
  switch (finding.fault) {
    case Fault::failed:
      return report_.fail("P-48", finding.text, "that it runs, as query said yes");
    case Fault::not_written:
      return report_.fail("P-56", finding.text, "every element written");
    case Fault::input_modified:
    case Fault::wrote_outside:
      return report_.fail("P-57", finding.text, "nothing written but the results");
    case Fault::not_finite:
    case Fault::wrong_value:
      return report_.fail(forward ? "P-60" : "P-61", finding.text, "agreement with the definition of the op");
  }
}

}  // namespace

std::vector<NumericalCheck> numerical_checks() {
  std::vector<NumericalCheck> result;
  for (const std::string& op : conformance::known_ops()) {
    for (const DType dtype : kDTypes) {
      result.push_back({fmt::format("{}{}.{}", kPrefix, op, to_string(dtype)), "P-60",
                        fmt::format("{} in {} agrees with its definition; gradients: P-61, values of any size: P-64",
                                    op, to_string(dtype))});
    }
  }
  return result;
}

void run_numerical_check(const std::string& name, const NumericalOptions& options, const NumericalReport& report) {
  for (const std::string& op : conformance::known_ops()) {
    for (const DType dtype : kDTypes) {
      if (name != fmt::format("{}{}.{}", kPrefix, op, to_string(dtype))) continue;
      try {
        Comparison(options, report, op, dtype).run();
      } catch (const Nothing& nothing) {
        report.skip(nothing.why);
      }
      return;
    }
  }
  throw Error(ErrorCode::not_found, fmt::format("there is no numerical check '{}'", name));
}

}  // namespace fastpath
