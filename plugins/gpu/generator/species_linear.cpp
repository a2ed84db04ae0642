#include "block_linear.hpp"

#include "fastpath/sdk/check.hpp"

namespace fastpath_gpu {
namespace {

class SpeciesLinear final : public Op {
 public:
  explicit SpeciesLinear(const sdk::SpeciesLinearConfig& config)
      : Op(config.signature()), linear_("species_linear", config.in, config.out, config.paths(), config.n_species) {}

  Program generate(const Target& target, sdk::DType dtype, std::uint32_t passes) override {
    Source source(target, dtype);
    linear_.write(source, passes, false);
    return source.finish();
  }
  void plan(const Call& call, Plan& plan) const override { linear_.plan(call, plan); }

 private:
  BlockLinear linear_;
};

}  // namespace

OpFactory species_linear() {
  using Config = sdk::SpeciesLinearConfig;
  return {Config::kOp, Config::kVersion,
          [](const sdk::Attributes& config, sdk::KernelAnswer& answer) {
            const Config typed = sdk::known_config<Config>(config);
            check_degree("degree of irreps", std::max(typed.in.l_max(), typed.out.l_max()), answer);
            if (typed.n_species > SpeciesSort::kMostSpecies) {
              answer.blocked(sdk::Reason::config, std::to_string(typed.n_species) + " species, at most " +
                                                      std::to_string(SpeciesSort::kMostSpecies));
            }
          },
          create<SpeciesLinear, Config>};
}

}  // namespace fastpath_gpu
