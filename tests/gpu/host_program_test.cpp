// What is to find races finds them: kernels by hand that are wrong on purpose.
#include "host_program.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "generator/source.hpp"

namespace fastpath_gpu::test {
namespace {

constexpr std::uint32_t kSize = 8;

/// out[group * 8 + i] = the double of what item 7 - i has in `in`, through shared memory.
Program reversal(bool with_barrier, const std::string& extra = "") {
  Source source(Target::of(Language::host, ""), sdk::kFloat64);
  source.begin_kernel("reversal", kSize, {Source::in("in"), Source::out("out")});
  source.shared("kept", kSize);
  source.line("const i64 at = FP_GROUP * ", kSize, ";");
  source.line("kept[FP_LANE] = ", source.real(2), " * in[at + FP_LANE];");
  if (with_barrier) source.line("FP_BARRIER();");
  if (!extra.empty()) source.line(extra);
  source.line("out[at + FP_LANE] = kept[", kSize - 1, " - FP_LANE];");
  source.end_kernel();
  return source.finish();
}

std::vector<double> run(const Program& program, ItemOrder order) {
  std::vector<double> in(2 * kSize), out(2 * kSize, -1.0);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<double>(i);
  Plan plan(program);
  plan.launch_items("reversal", 2 * kSize, {Buffer{Role::input, 0}, Buffer{Role::output, 0}});
  HostProgram host(program);
  for (const Launch& launch : plan.launches()) {
    host.run(
        launch, [&](const Buffer& b) { return b.role == Role::input ? in.data() : out.data(); }, order);
  }
  return out;
}

const std::vector<double> kExpected{14, 12, 10, 8, 6, 4, 2, 0, 30, 28, 26, 24, 22, 20, 18, 16};

TEST(HostProgram, AKernelWithItsBarriersGivesTheSameInEveryOrder) {
  for (const ItemOrder order : {ItemOrder::ascending, ItemOrder::descending, ItemOrder::shuffled}) {
    EXPECT_EQ(run(reversal(true), order), kExpected);
  }
}

TEST(HostProgram, AMissingBarrierShowsAsAResultThatDependsOnTheOrder) {
  const Program program = reversal(false);
  const std::vector<double> ascending = run(program, ItemOrder::ascending);
  EXPECT_NE(ascending, kExpected);
  EXPECT_NE(ascending, run(program, ItemOrder::descending));
}

TEST(HostProgram, SharedMemoryThatWasNotWrittenIsNotANumber) {
  for (const double value :
       {run(reversal(false), ItemOrder::ascending)[0], run(reversal(false), ItemOrder::ascending)[8]}) {
    EXPECT_TRUE(std::isnan(value)) << value;
  }
}

TEST(HostProgram, ABarrierThatNotAllItemsReachIsNamed) {
  const Program program = reversal(true, "if (FP_LANE == 3) FP_BARRIER();");
  for (const ItemOrder order : {ItemOrder::ascending, ItemOrder::shuffled}) {
    try {
      run(program, order);
      ADD_FAILURE() << "no error";
    } catch (const std::runtime_error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("kernel 'reversal', group "));
      EXPECT_THAT(error.what(), testing::HasSubstr("item 0 is at the end, item 3 at the barrier in line "));
    }
  }
}

TEST(HostProgram, SourceThatDoesNotCompileIsAnErrorWithTheWordsOfTheCompiler) {
  try {
    run(reversal(true, "no_such_name = 1;"), ItemOrder::ascending);
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("no_such_name"));
  }
}

}  // namespace
}  // namespace fastpath_gpu::test
