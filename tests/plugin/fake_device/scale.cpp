#include "scale.hpp"

#include <cstring>

namespace fake_device {
namespace {

namespace sdk = fastpath::sdk;

template <class T>
class Scale final : public sdk::Kernel {
 public:
  Scale(double factor, std::int32_t status) : factor_(static_cast<T>(factor)), status_(status) {}

  void bind(const sdk::Bind& bind) override {
    const auto shift = bind.parameters[0].view<const T>();
    if (!shift || shift.size() != 1) throw sdk::InvalidArgument("scale: parameter 'shift' must have one element");
    shift_ = shift[0];
  }

  sdk::Workspace workspace(const sdk::Sizes& sizes) override {
    sdk::Scratch counting;
    counting.take<double>(sizes.n_rows);
    return {counting.bytes(), sizeof(std::int64_t)};
  }

  void run(const sdk::Run& run) override {
    if (status_ != FP_OK) throw sdk::Failure(status_, "scale: was asked to fail");
    const auto x = run.inputs[0].view<const T>();
    if (run.saved == nullptr || run.saved_bytes < sizeof(std::int64_t)) {
      throw sdk::InvalidArgument("scale: no room for what forward keeps");
    }
    sdk::Scratch scratch(run.scratch, run.scratch_bytes);
    double* sums = scratch.take<double>(x.rows());
    if (run.pass == sdk::Pass::forward) {
      const auto y = run.outputs[0].view<T>();
      for (std::int64_t i = 0; i < x.size(); ++i) y[i] = factor_ * x[i] + shift_;
      const std::int64_t size = x.size();
      std::memcpy(run.saved, &size, sizeof size);
      return;
    }
    if (run.pass != sdk::Pass::backward) throw sdk::Refused("scale: no tangents");
    std::int64_t size = 0;
    std::memcpy(&size, run.saved, sizeof size);
    const auto grad_y = run.grad_outputs[0].view<const T>();
    if (size != grad_y.size()) throw sdk::InvalidArgument("scale: forward has saved something else");
    if (const auto grad_x = run.grad_inputs[0].view<T>()) {
      for (std::int64_t i = 0; i < size; ++i) grad_x[i] = factor_ * grad_y[i];
    }
    if (const auto grad_shift = run.grad_parameters[0].view<T>()) {
      double total = 0;
      for (std::int64_t row = 0; row < grad_y.rows(); ++row) {
        sums[row] = 0;
        for (std::int64_t i = 0; i < grad_y.row_size(); ++i) sums[row] += static_cast<double>(grad_y.row(row)[i]);
        total += sums[row];
      }
      grad_shift[0] = static_cast<T>(total);
    }
  }

 private:
  T factor_;
  T shift_ = 0;
  std::int32_t status_;
};

}  // namespace

std::unique_ptr<sdk::Kernel> make_scale(const sdk::KernelQuery& query) {
  const double factor = query.config.real("factor");
  const std::int32_t status =
      query.config.has("status") ? static_cast<std::int32_t>(query.config.integer("status")) : FP_OK;
  if (query.dtype == sdk::kFloat32) return std::make_unique<Scale<float>>(factor, status);
  return std::make_unique<Scale<double>>(factor, status);
}

}  // namespace fake_device
