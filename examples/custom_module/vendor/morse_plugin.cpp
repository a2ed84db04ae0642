// A vendor's plugin for the host's op: SDK headers only, no link to the host. It is faster than the reference where it
// matters: its forward pass keeps what backward needs, so that there is one exponential per edge, not two.
#include <cmath>
#include <memory>

#include "fastpath/sdk/plugin.hpp"
#include "morse_op.hpp"

namespace {

namespace sdk = fastpath::sdk;

constexpr std::uint32_t kDTypes = FP_DTYPE_BIT_F32 | FP_DTYPE_BIT_F64;
constexpr std::uint32_t kPasses = FP_PASS_FORWARD | FP_PASS_BACKWARD;

template <class T>
class MorseKernel final : public sdk::Kernel {
 public:
  explicit MorseKernel(double r_max) : r_max_(static_cast<T>(r_max)) {}

  void bind(const sdk::Bind& bind) override {
    depth_ = only(bind.parameters[0]);
    stiffness_ = only(bind.parameters[1]);
    distance_ = only(bind.parameters[2]);
  }

  sdk::Workspace workspace(const sdk::Sizes& sizes) override {
    return {.scratch_bytes = 0, .saved_bytes = static_cast<std::uint64_t>(sizes.n_edges) * sizeof(Derivatives)};
  }

  void run(const sdk::Run& run) override {
    if (!run.graph) throw sdk::InvalidArgument("morse: the call has no graph");
    const sdk::HostGraph graph = run.graph->host();
    const auto vectors = run.inputs[0].view<const T>();
    if (!vectors || vectors.size() != 3 * graph.n_edges) {
      throw sdk::InvalidArgument("morse: edge_vectors must be [n_edges, 3]");
    }
    auto* const kept = static_cast<Derivatives*>(run.saved);
    if (kept != nullptr && run.saved_bytes < static_cast<std::uint64_t>(graph.n_edges) * sizeof(Derivatives)) {
      throw sdk::InvalidArgument("morse: the saved buffer is smaller than workspace() said");
    }
    if (run.pass == sdk::Pass::forward) return forward(graph, vectors, run.outputs[0].view<T>(), kept);
    if (run.pass != sdk::Pass::backward) throw sdk::Refused("morse: no tangents");
    if (kept == nullptr && graph.n_edges > 0) throw sdk::InvalidArgument("morse: backward needs what forward saved");
    backward(graph, vectors, run, kept);
  }

 private:
  /// Of half a pair's energy; the first by the edge vector, divided by that vector.
  struct Derivatives {
    T along_vector, by_depth, by_stiffness, by_distance;
  };

  static T only(const sdk::Tensor& parameter) {
    const auto view = parameter.view<const T>();
    if (!view || view.size() != 1) throw sdk::InvalidArgument("morse: a parameter must have one element");
    return view[0];
  }

  void forward(const sdk::HostGraph& graph, const sdk::TensorView<const T>& vectors, const sdk::TensorView<T>& energies,
               Derivatives* kept) const {
    if (!energies || energies.size() != graph.n_receivers) {
      throw sdk::InvalidArgument("morse: node_energies must be [n_receivers]");
    }
    const T per_r_max2 = 1 / (r_max_ * r_max_);
    for (std::int64_t n = 0; n < graph.n_receivers; ++n) {
      double sum = 0;
      for (std::int64_t e = graph.receiver_ptr[n]; e < graph.receiver_ptr[n + 1]; ++e) {
        const T* v = vectors.row(e);
        const T r2 = v[0] * v[0] + v[1] * v[1] + v[2] * v[2];
        const T left = 1 - r2 * per_r_max2;
        Derivatives d{};
        if (left > 0) {
          const T r = std::sqrt(r2);
          const T decay = std::exp(stiffness_ * (distance_ - r));
          const T end = left * left / 2;  // half: each pair is met twice
          const T well = decay * (decay - 2), slope = 2 * decay * (1 - decay) * end;
          d = {depth_ * (slope * stiffness_ / r - 2 * well * left * per_r_max2), well * end,
               depth_ * slope * (r - distance_), -depth_ * slope * stiffness_};
          sum += static_cast<double>(depth_ * well * end);
        }
        if (kept != nullptr) kept[e] = d;
      }
      energies[n] = static_cast<T>(sum);
    }
  }

  static void backward(const sdk::HostGraph& graph, const sdk::TensorView<const T>& vectors, const sdk::Run& run,
                       const Derivatives* kept) {
    const auto grad_energies = run.grad_outputs[0].view<const T>();
    if (!grad_energies || grad_energies.size() != graph.n_receivers) {
      throw sdk::InvalidArgument("morse: the gradient of node_energies must be [n_receivers]");
    }
    const auto grad_vectors = run.grad_inputs[0].view<T>();
    double depth = 0, stiffness = 0, distance = 0;
    for (std::int64_t n = 0; n < graph.n_receivers; ++n) {
      const T g = grad_energies[n];
      for (std::int64_t e = graph.receiver_ptr[n]; e < graph.receiver_ptr[n + 1]; ++e) {
        const Derivatives& d = kept[e];
        depth += static_cast<double>(g * d.by_depth);
        stiffness += static_cast<double>(g * d.by_stiffness);
        distance += static_cast<double>(g * d.by_distance);
        if (!grad_vectors) continue;
        for (std::int64_t k = 0; k < 3; ++k) grad_vectors.row(e)[k] = g * d.along_vector * vectors.row(e)[k];
      }
    }
    const double sums[3] = {depth, stiffness, distance};
    for (std::uint64_t i = 0; i < 3; ++i) {
      if (const auto out = run.grad_parameters[i].view<T>()) out[0] = static_cast<T>(sums[i]);
    }
  }

  T r_max_;
  T depth_ = 0, stiffness_ = 0, distance_ = 0;
};

class MorsePlugin final : public sdk::Plugin {
 public:
  std::vector<sdk::DeviceDescription> devices() override {
    sdk::DeviceDescription cpu;
    cpu.name = "CPU";
    cpu.dtypes = kDTypes;
    return {cpu};
  }

  std::vector<sdk::OpDescription> ops() override {
    return {{morse::kOp, morse::kVersion, FP_DEVICE_CPU, kDTypes, kPasses}};
  }

  // Every reason why not, so that nobody has to ask twice.
  void query(const sdk::KernelQuery& query, sdk::KernelAnswer& answer) override {
    if (query.op != morse::kOp) return answer.blocked(sdk::Reason::op, "op '" + query.op + "', only " + morse::kOp);
    if (query.op_version != morse::kVersion) answer.blocked(sdk::Reason::op_version, "only version 1");
    if (query.device.type != FP_DEVICE_CPU) answer.blocked(sdk::Reason::device, "only the CPU");
    if (!(query.dtype == sdk::kFloat32) && !(query.dtype == sdk::kFloat64)) {
      answer.blocked(sdk::Reason::dtype, query.dtype.name() + ", only float32 and float64");
    }
    if ((query.passes & ~kPasses) != 0) answer.blocked(sdk::Reason::pass, "tangents, only forward and backward");
    if (!(query.config.real("r_max") > 0)) answer.blocked(sdk::Reason::config, "r_max must be positive");
    answer.flags = FP_KERNEL_DETERMINISTIC;
  }

  std::unique_ptr<sdk::Kernel> create(const sdk::KernelQuery& query, sdk::Device&) override {
    const double r_max = query.config.real("r_max");
    if (query.dtype == sdk::kFloat32) return std::make_unique<MorseKernel<float>>(r_max);
    return std::make_unique<MorseKernel<double>>(r_max);
  }
};

}  // namespace

FASTPATH_PLUGIN(MorsePlugin, "morse", "Example", "1.0.0", "cpu", "");
