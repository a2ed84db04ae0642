#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "fastpath/registry.hpp"
#include "plugin/plugin.hpp"

/// A plugin that is another one, except where it lies: kernels of cpu_ref, wrong in one way at a time.
namespace fastpath::test {

enum class Lie {
  none,
  wrong_in_forward,
  wrong_in_backward,
  wrong_parameter_gradient,
  wrong_in_forward_tangent,    ///< In the tangents alone.
  wrong_in_backward_tangent,   ///< In the tangents of gradients of inputs alone.
  wrong_parameter_tangent,     ///< In the tangents of gradients of parameters alone.
  value_wrong_beside_tangent,  ///< In the values of both tangent passes alone.
  wrong_for_degree_3,          ///< In the last component, of kernels whose configuration mentions degree 3.
  wrong_in_float32,
  slightly_wrong,  ///< By 1e-9 of the largest value.
  not_a_number,
  last_not_written,
  modifies_an_input,
  modifies_a_parameter,
  writes_behind,
  zeros_when_busy,  ///< Writes half of its outputs, then fails as busy.
  fails,
};

/// Where a lie is told; counts what happened. Shared by all kernels of one plugin, in whichever threads they run.
struct Liar {
  Lie lie = Lie::none;
  std::int32_t status = 0;  ///< Of Lie::fails and zeros_when_busy.
  Pass failing_pass = Pass::forward;
  std::string only_op = {};  ///< Lies only for this op; empty: for all.
  int from_run = 0;          ///< Tells the truth in the first runs.
  double tolerance = 0;      ///< Promised.
  std::string id = {};       ///< Empty: that of the plugin behind.
  std::string build = {};
  std::atomic<int> runs = 0, creates = 0, binds = 0;
};

class LyingKernel final : public plugin::Kernel {
 public:
  LyingKernel(std::unique_ptr<plugin::Kernel> inner, Liar& liar, bool applies)
      : inner_(std::move(inner)), liar_(liar), traits_(inner_->traits()), applies_(applies) {
    if (liar.tolerance > 0) traits_.tolerance = liar.tolerance;
  }
  const std::string& plugin_id() const noexcept override { return liar_.id.empty() ? inner_->plugin_id() : liar_.id; }
  const plugin::KernelTraits& traits() const noexcept override { return traits_; }
  plugin::CallStatus bind(std::span<const Tensor> parameters, std::uint64_t version) override {
    ++liar_.binds;
    parameters_.assign(parameters.begin(), parameters.end());
    return inner_->bind(parameters, version);
  }
  std::uint64_t saved_bytes(const OpCall& call) override { return inner_->saved_bytes(call); }
  plugin::CallStatus run(const OpCall& call) override {
    const bool lies = applies_ && liar_.runs++ >= liar_.from_run;
    if (lies && liar_.lie == Lie::fails && call.pass == liar_.failing_pass) return {liar_.status, "as told"};
    plugin::CallStatus status = inner_->run(call);
    if (!status.ok() || !lies) return status;
    const bool backward = call.pass == Pass::backward;
    const auto& first = backward ? call.grad_inputs : call.outputs;
    switch (liar_.lie) {
      case Lie::none:
      case Lie::fails:
        break;
      case Lie::wrong_in_forward:
        if (!backward) scale_one(call.outputs, 1.5);
        break;
      case Lie::wrong_in_backward:
        if (backward) scale_one(first, -1.0);
        break;
      case Lie::wrong_parameter_gradient:
        if (backward) scale_one(call.grad_parameters, -1.0);
        break;
      case Lie::wrong_in_forward_tangent:
        if (call.pass == Pass::forward_tangent) scale_one(call.outputs_t, 1.5);
        break;
      case Lie::wrong_in_backward_tangent:
        if (call.pass == Pass::backward_tangent) scale_one(call.grad_inputs_t, -1.0);
        break;
      case Lie::wrong_parameter_tangent:
        if (call.pass == Pass::backward_tangent) scale_one(call.grad_parameters_t, -1.0);
        break;
      case Lie::value_wrong_beside_tangent:
        if (call.pass == Pass::forward_tangent) scale_one(call.outputs, 1.5);
        if (call.pass == Pass::backward_tangent) scale_one(call.grad_inputs, 1.5);
        break;
      case Lie::wrong_for_degree_3:
        scale_one(first, 1.001);
        break;
      case Lie::wrong_in_float32:
        if (call.inputs[0].dtype() == DType::float32) scale_one(first, 1.001);
        break;
      case Lie::slightly_wrong:
        scale_one(first, 1 + 1e-9);
        break;
      case Lie::not_a_number:
        scale_one(first, std::numeric_limits<double>::quiet_NaN());
        break;
      case Lie::last_not_written:
        for (const Tensor& tensor : first) {
          if (tensor.defined() && tensor.numel() > 0) {
            const std::size_t size = size_of(tensor.dtype());
            std::memset(static_cast<std::byte*>(tensor.raw()) + tensor.bytes() - size, 0xff, size);
          }
        }
        break;
      case Lie::modifies_an_input:
        scale_one(call.inputs.first(1), 2.0);
        break;
      case Lie::modifies_a_parameter:
        scale_one(parameters_, 2.0);
        break;
      case Lie::writes_behind:
        for (const Tensor& tensor : first) {
          if (tensor.defined()) std::memset(static_cast<std::byte*>(tensor.raw()) + tensor.bytes(), 0, 8);
        }
        break;
      case Lie::zeros_when_busy:
        if (call.pass != liar_.failing_pass) break;
        for (const Tensor& tensor : first) {
          if (tensor.defined()) std::memset(tensor.raw(), 0, tensor.bytes() / 2);
        }
        return {liar_.status, "half done"};
    }
    return status;
  }

 private:
  /// The largest element of the first tensor there is.
  static void scale_one(std::span<const Tensor> tensors, double factor) {
    for (const Tensor& tensor : tensors) {
      if (!tensor.defined() || tensor.numel() == 0 || !is_floating(tensor.dtype())) continue;
      const auto change = [&](auto* values) {
        std::int64_t largest = 0;
        for (std::int64_t i = 0; i < tensor.numel(); ++i) {
          if (std::abs(values[i]) > std::abs(values[largest])) largest = i;
        }
        values[largest] = static_cast<std::remove_reference_t<decltype(*values)>>(values[largest] * factor);
      };
      tensor.dtype() == DType::float32 ? change(tensor.data<float>()) : change(tensor.data<double>());
      return;
    }
  }

  std::unique_ptr<plugin::Kernel> inner_;
  Liar& liar_;
  plugin::KernelTraits traits_;
  bool applies_;
  std::vector<Tensor> parameters_;
};

class LyingDevice final : public plugin::OpenDevice {
 public:
  LyingDevice(std::shared_ptr<plugin::OpenDevice> inner, Liar& liar) : inner_(std::move(inner)), liar_(liar) {}
  const DeviceInfo& info() const noexcept override { return inner_->info(); }
  bool owns_memory() const noexcept override { return inner_->owns_memory(); }
  Tensor allocate(const Shape& shape, DType dtype) override { return inner_->allocate(shape, dtype); }
  void copy_to_device(const Tensor& a, const Tensor& b) override { inner_->copy_to_device(a, b); }
  void copy_from_device(const Tensor& a, const Tensor& b) override { inner_->copy_from_device(a, b); }
  void fill_zero(const Tensor& tensor) override { inner_->fill_zero(tensor); }
  bool lost() const noexcept override { return inner_->lost(); }
  bool forked() const noexcept override { return inner_->forked(); }
  std::unique_ptr<plugin::Kernel> create_kernel(const OpSpec& op, DType dtype, Passes passes) override {
    ++liar_.creates;
    bool applies = liar_.only_op.empty() || liar_.only_op == op.id;
    if (liar_.lie == Lie::wrong_for_degree_3) applies = applies && mentions_degree_3(op);
    return std::make_unique<LyingKernel>(inner_->create_kernel(op, dtype, passes), liar_, applies);
  }

 private:
  static bool mentions_degree_3(const OpSpec& op) {
    for (const auto& [name, value] : op.config) {
      if (const auto* text = std::get_if<std::string>(&value);
          text != nullptr && text->find('3') != std::string::npos) {
        return true;
      }
      if (const auto* numbers = std::get_if<std::vector<std::int64_t>>(&value);
          name == "l_max" && numbers != nullptr && numbers->front() == 3) {
        return true;
      }
    }
    return false;
  }
  std::shared_ptr<plugin::OpenDevice> inner_;
  Liar& liar_;
};

class LyingPlugin final : public plugin::LoadedPlugin {
 public:
  LyingPlugin(std::shared_ptr<plugin::LoadedPlugin> inner, Liar& liar)
      : inner_(std::move(inner)), liar_(liar), info_(inner_->info()) {
    if (!liar.id.empty()) info_.id = liar.id;
    if (!liar.build.empty()) info_.build_tag = liar.build;
  }
  const PluginInfo& info() const noexcept override { return info_; }
  const DeviceInfo* find_device(const Device& device) const noexcept override { return inner_->find_device(device); }
  Support query(const OpSpec& op, const DeviceInfo& device, DType dtype, Passes passes,
                plugin::KernelTraits* traits) override {
    return inner_->query(op, device, dtype, passes, traits);
  }
  std::shared_ptr<plugin::OpenDevice> open(const DeviceInfo& device) override {
    const std::lock_guard lock(mutex_);
    if (!device_) device_ = std::make_shared<LyingDevice>(inner_->open(device), liar_);
    return device_;
  }

 private:
  std::shared_ptr<plugin::LoadedPlugin> inner_;
  Liar& liar_;
  PluginInfo info_;
  std::mutex mutex_;
  std::shared_ptr<plugin::OpenDevice> device_;
};

/// A plugin from a directory, by id. Null if it is not there.
inline std::shared_ptr<plugin::LoadedPlugin> real_plugin(const std::string& directory, const std::string& id,
                                                         DeviceKind kind = DeviceKind::cpu) {
  static auto* registries = new std::vector<std::unique_ptr<PluginRegistry>>();
  registries->push_back(std::make_unique<PluginRegistry>(
      RegistryOptions{.search_paths = {directory}, .default_paths = false, .enable = {id}}));
  const auto usable = registries->back()->impl().usable(kind);
  return usable.empty() ? nullptr : usable.front();
}

/// A registry of given plugins.
class GivenPlugins final : public PluginRegistry::Impl {
 public:
  explicit GivenPlugins(std::vector<std::shared_ptr<plugin::LoadedPlugin>> plugins) : plugins_(std::move(plugins)) {}
  std::vector<SearchDirectory> search_path() const override { return {}; }
  std::vector<PluginInfo> plugins() override { return known(); }
  std::vector<PluginInfo> known() override {
    std::vector<PluginInfo> result;
    for (const auto& plugin : plugins_) result.push_back(plugin->info());
    return result;
  }
  std::vector<std::shared_ptr<plugin::LoadedPlugin>> usable(DeviceKind) override { return plugins_; }

 private:
  std::vector<std::shared_ptr<plugin::LoadedPlugin>> plugins_;
};

}  // namespace fastpath::test
