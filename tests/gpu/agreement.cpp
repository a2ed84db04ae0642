#include "agreement.hpp"

#include <gtest/gtest.h>

#include "host_device.hpp"
#include "ops/make_op_module.hpp"

namespace fastpath_gpu::test {

using fastpath::DType;
using fastpath::Pass;

Target usual_target() { return Target::of(Language::host, ""); }
Target small_target() {
  Target target = usual_target();
  target.max_group_size = 64;
  target.local_bytes = 16 * 1024;
  return target;
}

void expect_agreement(const std::string& name, const fastpath::OpSpec& op, const Target& target,
                      const std::vector<fastpath::verify::TrialShape>& more_shapes) {
  const auto module = fastpath::ops::make_op_module(op);
  HostDevice device(target);
  for (const DType dtype : {DType::float64, DType::float32}) {
    SCOPED_TRACE(name + (dtype == DType::float64 ? ", float64" : ", float32"));
    const auto kernel = device.create_kernel(op, dtype, fastpath::kPassesForces);
    std::vector<fastpath::verify::TrialShape> shapes = fastpath::verify::standard_shapes(op);
    shapes.insert(shapes.end(), more_shapes.begin(), more_shapes.end());
    std::uint64_t seed = 1;
    for (const fastpath::verify::TrialShape& shape : shapes) {
      fastpath::verify::OpTrial trial(*module, dtype, shape, ++seed);
      const auto bound = trial.bind(*kernel, device);
      ASSERT_TRUE(bound.ok()) << bound.text;
      for (const Pass pass : {Pass::forward, Pass::backward}) {
        const auto result = trial.run(*kernel, device, pass);
        EXPECT_FALSE(result.finding) << result.finding->text;
      }
      auto forces = fastpath::verify::inputs_only(trial.signature());
      forces.optional_outputs = false;
      const auto result = trial.run(*kernel, device, Pass::backward, forces);
      EXPECT_FALSE(result.finding) << result.finding->text;
    }
  }
}

}  // namespace fastpath_gpu::test
