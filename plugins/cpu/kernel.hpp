#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/dual.hpp"
#include "cpu/parallel.hpp"
#include "fastpath/sdk/check.hpp"
#include "fastpath/sdk/kernel.hpp"
#include "fastpath/sdk/ops.hpp"

/// What the plugins for the CPU share.
namespace fastpath_cpu {

namespace sdk = fastpath::sdk;

/// Highest degree l of any irrep that these plugins take.
inline constexpr int kMaxDegree = 12;

inline constexpr std::uint32_t kPlainPasses = FP_PASS_FORWARD | FP_PASS_BACKWARD;
inline constexpr std::uint32_t kAllPasses = kPlainPasses | FP_PASS_FORWARD_TANGENT | FP_PASS_BACKWARD_TANGENT;

/// A kernel for elements of type T: checks what it is given, then calls take(), or what is named after the pass.
template <class T>
class CpuKernel : public sdk::Kernel {
 public:
  explicit CpuKernel(sdk::Signature signature) : signature_(std::move(signature)) {}

  void bind(const sdk::Bind& bind) final {
    sdk::check_bind(signature_, bind, sdk::dtype_of<T>());
    if (bind.version == version_) return;
    take(bind.parameters);
    version_ = bind.version;
  }
  sdk::Workspace workspace(const sdk::Sizes& sizes) final {
    need_parameters();
    sdk::Scratch counting;
    const sdk::Extents extents(sizes);
    if (sizes.pass == sdk::Pass::forward_tangent || sizes.pass == sdk::Pass::backward_tangent) {
      plan_tangent(counting, extents, sizes.pass);
    } else {
      plan(counting, extents, sizes.pass);
    }
    return {.scratch_bytes = counting.bytes(), .saved_bytes = saved_bytes(extents, sizes.pass)};
  }
  void run(const sdk::Run& run) final {
    need_parameters();
    sdk::check_run(signature_, run, sdk::dtype_of<T>());
    look_at(signature_.inputs, run.inputs);
    look_at(signature_.inputs, run.inputs_t);
    look_at(signature_.parameters, run.parameters_t);
    sdk::Scratch scratch(run.scratch, run.scratch_bytes);
    switch (run.pass) {
      case sdk::Pass::forward:
        return forward(run, scratch);
      case sdk::Pass::backward:
        return backward(run, scratch);
      case sdk::Pass::forward_tangent:
        return forward_tangent(run, scratch);
      case sdk::Pass::backward_tangent:
        return backward_tangent(run, scratch);
    }
  }

 protected:
  /// Copies the parameters into the form that the loops want.
  virtual void take(const sdk::TensorList& parameters) { static_cast<void>(parameters); }
  /// Takes from `scratch` everything that the pass needs, so that its size is known.
  virtual void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) {
    static_cast<void>(scratch), static_cast<void>(extents), static_cast<void>(pass);
  }
  /// What the pass forward hands to the one backward, in Run::saved, if the host keeps it.
  virtual std::uint64_t saved_bytes(const sdk::Extents& extents, sdk::Pass pass) const {
    static_cast<void>(extents), static_cast<void>(pass);
    return 0;
  }
  virtual void forward(const sdk::Run& run, sdk::Scratch& scratch) = 0;
  virtual void backward(const sdk::Run& run, sdk::Scratch& scratch) = 0;
  /// The same with tangents; an absent one is zero. Only of ops that say so (Op::passes).
  virtual void plan_tangent(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) {
    plan(scratch, extents, pass == sdk::Pass::forward_tangent ? sdk::Pass::forward : sdk::Pass::backward);
  }
  virtual void forward_tangent(const sdk::Run&, sdk::Scratch&) { refuse_tangents(); }
  virtual void backward_tangent(const sdk::Run&, sdk::Scratch&) { refuse_tangents(); }

  /// Elements of a tensor that is there, or null.
  static const T* read(const sdk::TensorList& list, std::uint64_t i) { return list[i].template view<const T>().data(); }
  static T* write(const sdk::TensorList& list, std::uint64_t i) { return list[i].template view<T>().data(); }
  static ReadPair<T> read(const sdk::TensorList& list, const sdk::TensorList& tangents, std::uint64_t i) {
    return {read(list, i), read(tangents, i)};
  }
  static WritePair<T> write(const sdk::TensorList& list, const sdk::TensorList& tangents, std::uint64_t i) {
    return {write(list, i), write(tangents, i)};
  }
  static const std::int32_t* read_indices(const sdk::TensorList& list, std::uint64_t i) {
    return list[i].template view<const std::int32_t>().data();
  }

  const sdk::Signature& signature() const { return signature_; }

  Workers workers_;

 private:
  [[noreturn]] static void refuse_tangents() { throw sdk::Refused("this kernel computes no tangent passes"); }
  void need_parameters() const {
    if (!signature_.parameters.empty() && version_ == 0) throw sdk::InvalidArgument("parameters were not bound yet");
  }
  /// Refuses inputs that cannot be read, also those that a pass has no use for.
  static void look_at(const std::vector<sdk::Argument>& arguments, const sdk::TensorList& tensors) {
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      arguments[i].real ? static_cast<void>(read(tensors, i)) : static_cast<void>(read_indices(tensors, i));
    }
  }
  sdk::Signature signature_;
  std::uint64_t version_ = 0;
};

/// One op: how its configuration is judged and its kernel made.
struct Op {
  std::string_view id;
  std::int32_t version;
  /// Adds a blocker for everything that the plugin does not take. @throws ConfigError for a malformed configuration.
  void (*check)(const sdk::Attributes& config, sdk::KernelAnswer& answer);
  std::unique_ptr<sdk::Kernel> (*create)(const sdk::Attributes& config, sdk::DType dtype);
  std::uint32_t passes = kAllPasses;  ///< FP_PASS_* bits that its kernel computes.
  /// KernelAnswer::prior_edges in float32 and in float64, in passes without tangents.
  std::int64_t prior_float32 = -1, prior_float64 = -1;
  std::int64_t prior_tangents = -1;  ///< The same in passes with tangents.
};

/// An op that was measured: from how many edges on its kernel is faster than the reference.
inline Op faster_from(std::int64_t float32, std::int64_t float64, Op op) {
  op.prior_float32 = float32;
  op.prior_float64 = float64;
  return op;
}
inline Op faster_from(std::int64_t edges, Op op) { return faster_from(edges, edges, op); }

/// The same for passes with tangents.
inline Op with_tangents_from(std::int64_t edges, Op op) {
  op.prior_tangents = edges;
  return op;
}

/// The kernel K<float> or K<double> of a configuration of class Config.
template <template <class> class K, class Config>
std::unique_ptr<sdk::Kernel> create(const sdk::Attributes& config, sdk::DType dtype) {
  const Config typed = Config::from(config);
  if (dtype == sdk::kFloat32) return std::make_unique<K<float>>(typed);
  return std::make_unique<K<double>>(typed);
}

/// An op of which the kernel K takes every configuration.
template <template <class> class K, class Config>
Op op_of() {
  return {
      Config::kOp, Config::kVersion,
      [](const sdk::Attributes& config, sdk::KernelAnswer&) { static_cast<void>(sdk::known_config<Config>(config)); },
      create<K, Config>};
}

inline void check_degree(const char* what, int l, sdk::KernelAnswer& answer) {
  if (l > kMaxDegree) {
    answer.blocked(sdk::Reason::degree,
                   std::string(what) + " " + std::to_string(l) + ", at most " + std::to_string(kMaxDegree));
  }
}
inline void check_degrees(const sdk::Irreps& in, const sdk::Irreps& out, sdk::KernelAnswer& answer) {
  check_degree("degree of irreps", std::max(in.l_max(), out.l_max()), answer);
}

}  // namespace fastpath_cpu
