#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "device.hpp"
#include "fastpath/sdk/check.hpp"
#include "fastpath/sdk/kernel.hpp"
#include "generator/op.hpp"

namespace fastpath_gpu {

/// A kernel of any op on any vendor's device. Source is generated, compiled and loaded when it is made, or at a bind
/// where parameters go into the source. Launch lists are kept for the last sizes, so that a call like one before
/// allocates nothing. Results of forward are not saved for backward.
class GpuKernel final : public sdk::Kernel {
 public:
  /// @param device  Outlives the kernel.
  GpuKernel(std::unique_ptr<Op> op, sdk::DType dtype, std::uint32_t passes, GpuDevice& device);

  /// With new values of parameters whose values go into the source it waits for the stream: it has to read them.
  void bind(const sdk::Bind& bind) override;
  sdk::Workspace workspace(const sdk::Sizes& sizes) override;
  void run(const sdk::Run& run) override;

 private:
  struct Place {
    void* memory = nullptr;
    std::uint64_t offset = 0;
  };
  struct Planned {
    Call call;
    Plan plan;
  };

  Place place(const sdk::Tensor& tensor, std::uint32_t access, const char* role, std::size_t index) const;
  void place_all(const std::vector<sdk::Argument>& arguments, const sdk::TensorList& tensors, std::uint32_t access,
                 Role role);
  void place_graph(const sdk::Graph& graph);
  std::vector<Place>& places(Role role) { return places_[static_cast<std::size_t>(role)]; }
  void need_parameters() const;
  void generate();
  std::vector<std::vector<double>> constants(const sdk::Bind& bind);
  const Plan& plan(const Call& call);
  void launch(const Plan& plan, fp_stream* stream);

  std::unique_ptr<Op> op_;
  sdk::DType dtype_;
  std::uint32_t passes_;
  GpuDevice& device_;

  std::optional<Program> program_;  // nothing before the first bind where parameters go into the source
  std::shared_ptr<Module> module_;
  std::vector<std::vector<double>> constants_;
  std::vector<DeviceBuffer> owned_, tables_;
  DeviceBuffer bind_scratch_;
  std::uint64_t version_ = 0;  // of the parameters that are bound

  static constexpr std::size_t kPlans = 8;
  std::vector<std::unique_ptr<Planned>> plans_;  // of program_
  std::size_t next_plan_ = 0;
  Call call_;  // the one at hand; keeps its memory

  std::array<std::vector<Place>, static_cast<std::size_t>(Role::table) + 1> places_;
  std::vector<BoundArgument> arguments_;
};

}  // namespace fastpath_gpu
