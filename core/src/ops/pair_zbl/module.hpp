#pragma once

#include <memory>
#include <vector>

#include "fastpath/module.hpp"
#include "models/program.hpp"
#include "ops/pair_zbl/pair_zbl.hpp"

namespace fastpath::ops {

/// `pair_repulsion_fn` of a checkpoint. Reference only.
class PairZblModule : public Module {
 public:
  PairZblModule(int p, std::vector<std::int32_t> atomic_numbers);
  std::string kind() const override { return "pair_zbl"; }
  /// inputs: lengths [edges], species [nodes]. outputs: energy [receivers], eV.
  std::shared_ptr<models::Glue> glue();

 protected:
  void on_change() override;

 private:
  void update();
  std::vector<std::int32_t> atomic_numbers_;
  PairZblConstants constants_;
};

}  // namespace fastpath::ops
