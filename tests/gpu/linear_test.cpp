#include <gtest/gtest.h>

#include "agreement.hpp"

namespace fastpath_gpu::test {
namespace {

using fastpath::verify::TrialShape;

sdk::IrrepsLinearConfig linear(const char* in, const char* out, bool bias = false, double scale = 1) {
  return {irreps(in), irreps(out), bias, scale, sdk::PathNormalization::element};
}
TrialShape rows(std::int64_t n) {
  TrialShape shape;
  shape.name = "many rows";
  shape.n_rows = n;
  return shape;
}

TEST(GeneratedIrrepsLinear, AgreesWithTheReference) {
  expect_agreement("uneven", spec(linear("7x0e+3x1o+1x2e", "2x0e+5x1o+1x0o", true, 0.3)), usual_target());
  expect_agreement("one channel", spec(linear("1x0e", "1x0e", true)), usual_target());
  expect_agreement("no paths", spec(linear("3x0e", "2x1o")), usual_target());
  expect_agreement("blocks of one irrep", spec(linear("5x0e+17x1o+2x0e+1x1o", "3x1o+6x0e+4x1o+1x0e", true)),
                   small_target());
  expect_agreement("wide", spec(linear("130x0e+70x1o", "65x0e+129x1o")), usual_target());
  expect_agreement("odd degrees", spec(linear("3x6e+2x3o", "5x6e+3x3o")), small_target());
  expect_agreement("empty blocks", spec(linear("0x0e+4x1o", "3x1o+0x2e")), usual_target());
}

TEST(GeneratedIrrepsLinear, SumsOverManyRowsInPieces) {
  expect_agreement("pieces", spec(linear("5x0e+3x1o", "4x0e+2x1o", true)), usual_target(), {rows(2000)});
}

TEST(GeneratedSpeciesLinear, AgreesWithTheReference) {
  const auto species = [](const char* in, const char* out, std::int64_t n) {
    return spec(sdk::SpeciesLinearConfig{irreps(in), irreps(out), n});
  };
  expect_agreement("uneven", species("7x0e+3x1o", "2x0e+5x1o+1x0o", 4), usual_target());
  expect_agreement("one channel", species("1x0e", "1x0e", 1), usual_target());
  expect_agreement("no paths", species("3x0e", "2x1o", 2), usual_target());
  expect_agreement("most species unused", species("3x0e+2x2e", "5x0e+3x2e", 89), small_target());
  expect_agreement("wide", species("66x0e+33x1o", "65x0e+34x1o", 3), small_target());
}

TEST(GeneratedSpeciesLinear, SumsOverManyRowsInPieces) {
  expect_agreement("pieces", spec(sdk::SpeciesLinearConfig{irreps("5x0e+3x1o"), irreps("4x0e+2x1o"), 3}),
                   usual_target(), {rows(1500)});
}

}  // namespace
}  // namespace fastpath_gpu::test
