#include "host_device.hpp"

#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>

#include "fastpath/plugin.h"

namespace fastpath_gpu::test {
namespace {

using fastpath::OpCall;
using fastpath::Tensor;

constexpr std::size_t kGuard = 256;
constexpr unsigned char kPoison = 0xff, kFence = 0xa5;

/// Memory with bytes behind it that must stay as they are.
class Guarded {
 public:
  explicit Guarded(std::uint64_t bytes) : bytes_(bytes), data_(bytes + kGuard + 63) {
    const auto address = reinterpret_cast<std::uintptr_t>(data_.data());
    begin_ = data_.data() + (64 - address % 64) % 64;
    poison();
    std::memset(begin_ + bytes_, kFence, kGuard);
  }
  void poison() { std::memset(begin_, kPoison, bytes_); }
  unsigned char* data() { return begin_; }
  bool intact() const {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (begin_[bytes_ + i] != kFence) return false;
    }
    return true;
  }

 private:
  std::uint64_t bytes_;
  std::vector<unsigned char> data_;
  unsigned char* begin_ = nullptr;
};

std::vector<double> doubles(const Tensor& tensor) {
  const Tensor wide = tensor.to(fastpath::DType::float64);
  const auto values = wide.span<double>();
  return {values.begin(), values.end()};
}

class HostKernel final : public fastpath::plugin::Kernel {
 public:
  HostKernel(std::unique_ptr<Op> op, Target target, sdk::DType dtype, std::uint32_t passes)
      : op_(std::move(op)), target_(std::move(target)), dtype_(dtype), passes_(passes) {
    if (op_->constants().empty()) make();
  }

  const std::string& plugin_id() const noexcept override { return id_; }
  const fastpath::plugin::KernelTraits& traits() const noexcept override { return traits_; }
  std::uint64_t saved_bytes(const OpCall&) override { return 0; }

  fastpath::plugin::CallStatus bind(std::span<const Tensor> parameters, std::uint64_t) override {
    parameters_.assign(parameters.begin(), parameters.end());
    try {
      if (const auto which = op_->constants(); !which.empty()) {
        std::vector<std::vector<double>> values;
        for (const std::size_t i : which) values.push_back(doubles(parameters_[i]));
        op_->set_constants(values);
        make();
      }
      Plan plan(program_);
      op_->plan_bind(plan);
      Guarded scratch(plan.scratch_bytes());
      for (Guarded& owned : owned_) owned.poison();
      execute(plan, {}, scratch, ItemOrder::descending);
    } catch (const std::exception& error) {
      return {FP_E_INTERNAL, error.what()};
    }
    return {};
  }

  fastpath::plugin::CallStatus run(const OpCall& call) override {
    try {
      Call sizes = sizes_of(call);
      Plan plan(program_), whole(program_);
      op_->plan(sizes, plan);
      for (auto* list : {&sizes.outputs, &sizes.grad_outputs, &sizes.grad_inputs, &sizes.grad_parameters}) {
        list->assign(list->size(), true);
      }
      op_->plan(sizes, whole);
      if (plan.scratch_bytes() != whole.scratch_bytes()) {
        return {FP_E_INTERNAL, "scratch memory of " + std::to_string(plan.scratch_bytes()) +
                                   " bytes depends on what is asked for: " + std::to_string(whole.scratch_bytes())};
      }
      Guarded scratch(plan.scratch_bytes());
      std::vector<unsigned char> first;
      for (const ItemOrder order : {ItemOrder::ascending, ItemOrder::descending, ItemOrder::shuffled}) {
        scratch.poison();
        for_each_result(call, [](const Tensor& tensor) { std::memset(tensor.raw(), kPoison, tensor.bytes()); });
        execute(plan, call, scratch, order);
        std::vector<unsigned char> results;
        for_each_result(call, [&](const Tensor& tensor) {
          const auto* at = static_cast<const unsigned char*>(tensor.raw());
          results.insert(results.end(), at, at + tensor.bytes());
        });
        if (order == ItemOrder::ascending) first = results;
        if (results != first) return {FP_E_INTERNAL, "results depend on the order of work-items"};
      }
    } catch (const std::exception& error) {
      return {FP_E_INTERNAL, error.what()};
    }
    return {};
  }

 private:
  void make() {
    program_ = op_->generate(target_, dtype_, passes_);
    host_.emplace(program_);
    owned_.clear();
    for (const std::uint64_t bytes : program_.owned) owned_.emplace_back(bytes);
  }

  template <class F>
  static void for_each_result(const OpCall& call, const F& f) {
    for (const auto& list : {call.outputs, call.grad_inputs, call.grad_parameters}) {
      for (const Tensor& tensor : list) {
        if (tensor.defined() && tensor.bytes() > 0) f(tensor);
      }
    }
  }
  static std::vector<bool> present(std::span<const Tensor> list, std::size_t n) {
    std::vector<bool> result(n, false);
    for (std::size_t i = 0; i < list.size(); ++i) result[i] = list[i].defined();
    return result;
  }
  Call sizes_of(const OpCall& call) const {
    const sdk::Signature& signature = op_->signature();
    Call sizes;
    sizes.pass = static_cast<sdk::Pass>(call.pass);
    if (call.graph != nullptr) {
      sizes.n_edges = call.graph->n_edges;
      sizes.n_nodes = call.graph->n_nodes;
      sizes.n_receivers = call.graph->n_receivers;
    }
    for (std::size_t i = 0; i < signature.inputs.size(); ++i) {
      if (!call.inputs[i].defined()) continue;
      if (signature.inputs[i].axis == sdk::Axis::rows) sizes.n_rows = call.inputs[i].size(0);
      if (call.graph == nullptr && signature.inputs[i].axis == sdk::Axis::edges) sizes.n_edges = call.inputs[i].size(0);
    }
    sizes.outputs = present(call.outputs, signature.outputs.size());
    sizes.grad_outputs = present(call.grad_outputs, signature.outputs.size());
    sizes.grad_inputs = present(call.grad_inputs, signature.inputs.size());
    sizes.grad_parameters = present(call.grad_parameters, signature.parameters.size());
    return sizes;
  }

  static const Tensor& graph_tensor(const fastpath::OpGraph& graph, GraphArray array) {
    switch (array) {
      case GraphArray::sender:
        return graph.sender;
      case GraphArray::receiver:
        return graph.receiver;
      case GraphArray::receiver_ptr:
        return graph.receiver_ptr;
      case GraphArray::sender_ptr:
        return graph.sender_ptr;
      case GraphArray::sender_edge:
        return graph.sender_edge;
      case GraphArray::species:
        return graph.species;
      case GraphArray::species_ptr:
        return graph.species_ptr;
      case GraphArray::species_node:
        return graph.species_node;
    }
    throw std::logic_error("no array of the graph");
  }

  void execute(const Plan& plan, const OpCall& call, Guarded& scratch, ItemOrder order) {
    const auto at = [](std::span<const Tensor> list, const Buffer& buffer) {
      const Tensor& tensor = list[buffer.index];
      if (!tensor.defined()) throw std::runtime_error("a launch uses a tensor that is absent");
      return tensor.raw();
    };
    const auto memory = [&](const Buffer& buffer) -> void* {
      switch (buffer.role) {
        case Role::input:
          return at(call.inputs, buffer);
        case Role::output:
          return at(call.outputs, buffer);
        case Role::grad_output:
          return at(call.grad_outputs, buffer);
        case Role::grad_input:
          return at(call.grad_inputs, buffer);
        case Role::grad_parameter:
          return at(call.grad_parameters, buffer);
        case Role::parameter:
          return at(parameters_, buffer);
        case Role::graph:
          if (call.graph == nullptr) throw std::runtime_error("a launch uses a graph where there is none");
          return graph_tensor(*call.graph, static_cast<GraphArray>(buffer.index)).raw();
        case Role::scratch:
          return scratch.data();
        case Role::owned:
          return owned_.at(buffer.index).data();
        case Role::table:
          return program_.tables.at(buffer.index).data();
      }
      throw std::logic_error("no such role");
    };
    for (const Launch& launch : plan.launches()) {
      host_->run(launch, memory, order);
      bool intact = scratch.intact();
      for (const Guarded& owned : owned_) intact = intact && owned.intact();
      if (!intact) {
        throw std::runtime_error("kernel '" + program_.kernels[launch.kernel].name + "' writes behind its memory");
      }
    }
  }

  std::unique_ptr<Op> op_;
  Target target_;
  sdk::DType dtype_;
  std::uint32_t passes_;
  std::string id_ = "host";
  fastpath::plugin::KernelTraits traits_;
  Program program_;
  std::optional<HostProgram> host_;
  std::vector<Guarded> owned_;
  std::vector<Tensor> parameters_;
};

}  // namespace

std::unique_ptr<fastpath::plugin::Kernel> HostDevice::create_kernel(const fastpath::OpSpec& op, fastpath::DType dtype,
                                                                    fastpath::Passes passes) {
  const sdk::Attributes config(op.config);
  for (const OpFactory& factory : all_ops()) {
    if (factory.id != op.id || factory.version != op.version) continue;
    sdk::KernelAnswer answer;
    factory.check(config, answer);
    if (!answer.blockers.empty()) throw std::runtime_error(answer.blockers.front().second);
    const sdk::DType type = dtype == fastpath::DType::float32 ? sdk::kFloat32 : sdk::kFloat64;
    return std::make_unique<HostKernel>(factory.create(config), target_, type, passes.bits());
  }
  throw std::runtime_error("no kernels are generated for op '" + op.id + "'");
}

}  // namespace fastpath_gpu::test
