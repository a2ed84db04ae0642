#include "block_linear.hpp"

#include "fastpath/sdk/check.hpp"

namespace fastpath_gpu {
namespace {

class IrrepsLinear final : public Op {
 public:
  explicit IrrepsLinear(const sdk::IrrepsLinearConfig& config)
      : Op(config.signature()), config_(config), linear_("irreps_linear", config.in, config.out, config.paths(), 0) {}

  Program generate(const Target& target, sdk::DType dtype, std::uint32_t passes) override {
    Source source(target, dtype);
    linear_.write(source, passes, config_.bias);
    return source.finish();
  }
  void plan(const Call& call, Plan& plan) const override { linear_.plan(call, plan); }

 private:
  sdk::IrrepsLinearConfig config_;
  BlockLinear linear_;
};

}  // namespace

OpFactory irreps_linear() {
  using Config = sdk::IrrepsLinearConfig;
  return {Config::kOp, Config::kVersion,
          [](const sdk::Attributes& config, sdk::KernelAnswer& answer) {
            const Config typed = sdk::known_config<Config>(config);
            check_degree("degree of irreps", std::max(typed.in.l_max(), typed.out.l_max()), answer);
          },
          create<IrrepsLinear, Config>};
}

}  // namespace fastpath_gpu
