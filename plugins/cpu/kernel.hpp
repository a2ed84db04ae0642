#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu/parallel.hpp"
#include "fastpath/sdk/check.hpp"
#include "fastpath/sdk/kernel.hpp"
#include "fastpath/sdk/ops.hpp"

/// What the plugins for the CPU share.
namespace fastpath_cpu {

namespace sdk = fastpath::sdk;

/// Highest degree l of any irrep that these plugins take.
inline constexpr int kMaxDegree = 12;

/// A kernel for elements of type T: checks what it is given, then calls take(), forward() or backward().
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
    plan(counting, sdk::Extents(sizes), sizes.pass);
    return {.scratch_bytes = counting.bytes(), .saved_bytes = 0};
  }
  void run(const sdk::Run& run) final {
    need_parameters();
    sdk::check_run(signature_, run, sdk::dtype_of<T>());
    look_at(signature_.inputs, run.inputs);
    sdk::Scratch scratch(run.scratch, run.scratch_bytes);
    if (run.pass == sdk::Pass::forward) {
      forward(run, scratch);
    } else if (run.pass == sdk::Pass::backward) {
      backward(run, scratch);
    } else {
      throw sdk::Refused("this kernel computes no tangent passes");
    }
  }

 protected:
  /// Copies the parameters into the form that the loops want.
  virtual void take(const sdk::TensorList& parameters) { static_cast<void>(parameters); }
  /// Takes from `scratch` everything that the pass needs, so that its size is known.
  virtual void plan(sdk::Scratch& scratch, const sdk::Extents& extents, sdk::Pass pass) {
    static_cast<void>(scratch), static_cast<void>(extents), static_cast<void>(pass);
  }
  virtual void forward(const sdk::Run& run, sdk::Scratch& scratch) = 0;
  virtual void backward(const sdk::Run& run, sdk::Scratch& scratch) = 0;

  /// Elements of a tensor that is there, or null.
  static const T* read(const sdk::TensorList& list, std::uint64_t i) { return list[i].template view<const T>().data(); }
  static T* write(const sdk::TensorList& list, std::uint64_t i) { return list[i].template view<T>().data(); }
  static const std::int32_t* read_indices(const sdk::TensorList& list, std::uint64_t i) {
    return list[i].template view<const std::int32_t>().data();
  }

  Workers workers_;

 private:
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
};

/// The kernel K<float> or K<double> of a configuration of class Config.
template <template <class> class K, class Config>
std::unique_ptr<sdk::Kernel> create(const sdk::Attributes& config, sdk::DType dtype) {
  const Config typed = Config::from(config);
  if (dtype == sdk::kFloat32) return std::make_unique<K<float>>(typed);
  return std::make_unique<K<double>>(typed);
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
