#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "fastpath/conformance/conformance.hpp"

/// Each plugin of this folder breaks its contract in one way; `fastpath verify` has to say which obligation that is.
namespace {

namespace kit = fastpath::conformance;
using ::testing::Contains;

struct Lie {
  std::string name;                 ///< Of the file, without `fastpath_lying_` and `.so`.
  std::string obligation;           ///< What it breaks.
  std::vector<std::string> checks;  ///< Those that are run; others may notice as well.
};
void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.name; }

const std::vector<Lie>& lies() {
  static const std::vector<Lie> all{
      // The file.
      {"more_symbols", "P-02", {"file.exports"}},
      {"more_symbols", "P-30", {"file.environment"}},
      {"signal_handler_when_loaded", "P-07", {"file.quiet"}},
      {"crashes_at_exit", "P-07", {"file.quiet"}},
      {"hangs_at_exit", "P-07", {"file.quiet"}},
      {"other_id", "P-13", {"file.identity"}},
      {"kind_not_declared", "P-37", {"file.device_kinds"}},
      // Versions and structs.
      {"size_of_another_header", "P-08", {"versions.struct_sizes"}},
      {"knows_one_size", "P-09", {"versions.newer_host"}},
      {"writes_into_arguments", "P-10", {"versions.newer_host"}},
      {"own_stride", "P-11", {"versions.strides"}},
      {"serves_any_version", "P-12", {"versions.range"}},
      {"null_entry", "P-14", {"versions.entries"}},
      {"takes_no_host", "P-15", {"versions.query_function"}},
      {"reserved_not_zero", "P-17", {"versions.reserved"}},
      // Calls.
      {"unknown_status", "P-18", {"calls.statuses"}},
      {"fails_without_a_text", "P-18", {"calls.statuses"}},
      {"throws", "P-19", {"calls.statuses"}},
      {"throws_a_number", "P-19", {"calls.statuses"}},
      {"exits", "P-20", {"calls.statuses"}},
      {"crashes", "P-20", {"calls.statuses"}},
      {"hangs", "P-21", {"calls.statuses"}},
      {"needs_a_sink", "P-22", {"calls.null_sinks"}},
      {"trusts_its_arguments", "P-23", {"calls.bad_tensors"}},
      {"opens_anything", "P-23", {"calls.bad_arguments"}},
      {"ignores_refused_memory", "P-24", {"calls.no_memory"}},
      {"keeps_memory_after_a_failure", "P-24", {"calls.no_memory"}},
      {"control_characters", "P-25", {"calls.texts"}},
      {"shares_a_buffer", "P-27", {"calls.threads"}},
      {"shares_a_counter", "P-27", {"calls.threads"}},
      {"leaks", "P-28", {"calls.growth"}},
      {"leaks_memory_of_the_host", "P-28", {"calls.growth"}},
      {"talks_after_shutdown", "P-29", {"calls.shutdown"}},
      {"keeps_memory_after_shutdown", "P-29", {"calls.shutdown"}},
      {"crashes_in_shutdown", "P-29", {"calls.shutdown"}},
      {"throws_in_shutdown", "P-19", {"calls.shutdown"}},
      // The process.
      {"floating_point_mode", "P-31", {"process.state"}},
      {"locale", "P-31", {"calls.statuses"}},
      {"environment", "P-31", {"process.state"}},
      {"directory", "P-31", {"process.state"}},
      {"signal_handler", "P-31", {"process.state"}},
      {"prints", "P-32", {"process.output"}},
      {"leaves_a_thread", "P-33", {"process.threads"}},
      {"starts_a_process", "P-34", {"process.children"}},
      // Devices.
      {"device_twice", "P-36", {"devices.enumerate"}},
      {"bad_uuid", "P-39", {"devices.identity"}},
      {"device_ignores_access", "P-23", {"calls.bad_tensors"}},
      {"device_ignores_access", "P-23", {"calls.bad_parameters"}},
      {"device_misaligned", "P-41", {"devices.memory"}},
      {"device_copies_to_the_start", "P-41", {"devices.memory"}},
      {"device_copies_from_the_start", "P-41", {"devices.memory"}},
      {"device_swaps_offsets", "P-41", {"devices.memory"}},
      {"device_fills_half", "P-41", {"devices.memory"}},
      {"device_defers_copies", "P-41", {"devices.memory"}},
      {"device_leaks", "P-28", {"devices.memory"}},
      {"device_does_not_count_releases", "P-28", {"devices.memory"}},
      {"device_does_not_wait", "P-42", {"devices.streams"}},
      {"device_ignores_events", "P-42", {"devices.streams"}},
      {"device_comes_back", "P-43", {"devices.lost"}},
      // What a kernel is asked.
      {"not_pure", "P-44", {"queries.pure"}},
      {"yes_with_a_reason", "P-45", {"queries.answers"}},
      {"no_without_a_reason", "P-45", {"queries.answers"}},
      {"another_verdict", "P-46", {"queries.answers"}},
      {"tolerance", "P-46", {"queries.answers"}},
      {"negative_tolerance", "P-46", {"queries.answers"}},
      {"window", "P-46", {"queries.answers"}},
      {"reduced_math", "P-46", {"queries.answers"}},
      {"any_attribute", "P-47", {"queries.unknown"}},
      {"create_fails", "P-48", {"queries.kept"}},
      {"lists_more_than_it_offers", "P-49", {"queries.ops"}},
      {"offers_more_than_it_lists", "P-49", {"queries.ops"}},
      {"plain_name", "P-50", {"queries.names"}},
      {"depends_on_threads", "P-51", {"queries.deterministic"}},
      {"depends_on_the_run", "P-51", {"queries.deterministic"}},
      // What a kernel does.
      {"ignores_new_parameters", "P-54", {"kernels.bind"}},
      {"keeps_old_parameters", "P-54", {"kernels.bind"}},
      {"wants_other_memory_each_time", "P-55", {"kernels.workspace"}},
      {"writes_past_scratch", "P-55", {"kernels.guards"}},
      {"leaves_a_row", "P-56", {"kernels.written"}},
      {"adds_to_results", "P-56", {"kernels.written"}},
      {"writes_past_the_end", "P-57", {"kernels.guards"}},
      {"changes_an_input", "P-57", {"kernels.guards"}},
      {"remembers_inputs", "P-59", {"kernels.saved"}},
      {"allocates_while_capturing", "P-63", {"kernels.capturing"}},
      {"hides_not_a_number", "P-64", {"kernels.not_finite"}},
      {"does_not_recover", "P-65", {"kernels.retry"}},
      // Numbers.
      {"not_a_number", "P-60", {"numerics.irreps_linear.float64"}},
      {"a_little_off", "P-60", {"numerics.irreps_linear.float32"}},
      {"float32", "P-60", {"numerics.spherical_harmonics.float32"}},
      {"degree_3", "P-60", {"numerics.conv_tensor_product.float64"}},
      {"backward", "P-61", {"numerics.conv_tensor_product.float64"}},
      {"backward", "P-61", {"derivatives.differences"}},
      {"backward", "P-61", {"derivatives.identities"}},
      {"tangent_off", "P-61", {"derivatives.tangents"}},
      {"tangent_off", "P-61", {"numerics.irreps_linear.float64"}},
      {"tangent_of_nothing", "P-61", {"derivatives.tangents"}},
      {"tangent_needs_all", "P-61", {"derivatives.tangents"}},
  };
  return all;
}

kit::Options options_for(const std::string& name, const std::vector<std::string>& checks) {
  kit::Options options;
  options.plugin = std::string(FASTPATH_LYING) + "/fastpath_lying_" + name + ".so";
  options.only = checks;
  options.quick = true;
  options.timeout = 30;
  return options;
}

std::vector<kit::Result> verify(const kit::Options& options) {
  return kit::run_all(options, {FASTPATH_PROGRAM, "verify", options.plugin, "--quick", "--worker"});
}

/// The comparisons belong to the program, so this test does not know them: their names are added here.
void know(const std::string& check) {
  static std::set<std::string> added;
  if (check.rfind("numerics.", 0) != 0 || !added.insert(check).second) return;
  kit::add_check({check, "P-60", "a comparison"}, [](const kit::Options&, kit::Report&) {});
}

class LyingPlugin : public ::testing::TestWithParam<Lie> {};

TEST_P(LyingPlugin, FailsAndTheObligationIsNamed) {
  const Lie& lie = GetParam();
  kit::Options options = options_for(lie.name, lie.checks);
  // What hangs has to be waited for, so it is not given as long as what works.
  if (lie.name.find("hangs") == 0) options.timeout = 3;
  std::vector<kit::Result> results;
  know(lie.checks[0]);
  results = verify(options);
  ASSERT_EQ(results.size(), lie.checks.size());
  std::set<std::string> broken;
  std::string said;
  for (const kit::Result& result : results) {
    for (const kit::Failure& failure : result.failures) {
      broken.insert(failure.obligation);
      said += failure.obligation + ": " + failure.step + ": " + failure.found + ", expected " + failure.expected + "\n";
    }
    said += result.note + "\n";
  }
  EXPECT_THAT(broken, Contains(lie.obligation)) << said;
}

std::string name_of(const ::testing::TestParamInfo<Lie>& info) {
  std::string name = info.param.name + "_" + info.param.checks[0];
  for (char& c : name) c = c == '.' ? '_' : c;
  return name;
}
INSTANTIATE_TEST_SUITE_P(Ways, LyingPlugin, ::testing::ValuesIn(lies()), name_of);

class HonestPlugin : public ::testing::TestWithParam<const char*> {};

TEST_P(HonestPlugin, PassesEveryCheck) {
  const std::vector<kit::Result> results = verify(options_for(GetParam(), {}));
  EXPECT_GT(results.size(), 50u);  // more with the comparisons that the program adds
  for (const kit::Result& result : results) {
    for (const kit::Failure& failure : result.failures) {
      ADD_FAILURE() << result.check << ", " << failure.obligation << ": " << failure.step << ": " << failure.found
                    << ", expected " << failure.expected;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Plugins, HonestPlugin, ::testing::Values("honest", "device_honest"),
                         [](const auto& name) { return std::string(name.param); });

TEST(ConformanceKit, RepeatsAFailureWithItsSeed) {
  kit::Options options = options_for("backward", {"derivatives.differences"});
  const auto failures = [&](std::uint64_t seed) {
    options.seed = seed;
    const std::vector<kit::Result> results = kit::run_all(
        options, {FASTPATH_PROGRAM, "verify", options.plugin, "--quick", "--seed", std::to_string(seed), "--worker"});
    std::string text;
    for (const kit::Failure& failure : results.at(0).failures) text += failure.step + failure.found + "\n";
    return text;
  };
  const std::string first = failures(5), again = failures(5), other = failures(6);
  EXPECT_FALSE(first.empty());
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

// A result just above the limit is looked at again with other parameters, and the passes after it are not to blame.
TEST(ConformanceKit, TakesAResultThatIsALittleOffForNothingElse) {
  know("numerics.irreps_linear.float32");
  const std::vector<kit::Result> results = verify(options_for("a_little_off", {"numerics.irreps_linear.float32"}));
  ASSERT_EQ(results.size(), 1u);
  ASSERT_FALSE(results[0].failures.empty());
  for (const kit::Failure& failure : results[0].failures) {
    const std::size_t by = failure.found.find(" by ");
    ASSERT_NE(by, std::string::npos) << failure.found;
    EXPECT_LT(std::stod(failure.found.substr(by + 4)), 1e-4) << failure.found;
  }
}

TEST(ConformanceKit, FindsResultsThatChangedWhereTheNumericsVersionDidNot) {
  kit::Options options = options_for("a_little_off", {"queries.numerics_version"});
  const auto check = [&](const std::string& earlier) {
    const std::string file = std::string(FASTPATH_LYING) + "/fastpath_lying_" + earlier + ".so";
    return kit::run_all(options, {FASTPATH_PROGRAM, "verify", options.plugin, "--quick", "--against", file, "--worker"})
        .at(0);
  };
  const kit::Result changed = check("honest");
  ASSERT_FALSE(changed.failures.empty()) << changed.note;
  EXPECT_EQ(changed.failures[0].obligation, "P-52");
  EXPECT_EQ(check("a_little_off").verdict, kit::Verdict::passed);
  EXPECT_EQ(check("device_honest").verdict, kit::Verdict::skipped);  // another plugin
}

/// Results of two checks whose workers are this text of a shell, with the name of the check as $0.
std::vector<kit::Result> run_shell(const std::string& text, double timeout, int jobs) {
  kit::Options options = options_for("honest", {"file.object", "file.quiet"});
  options.timeout = timeout;
  options.jobs = jobs;
  return kit::run_all(options, {"/bin/sh", "-c", text});
}

TEST(ConformanceKit, WaitsForAsLongAsACheckTakesSteps) {
  constexpr const char* kSteps =
      "for step in 1 2 3 4; do printf 'S\\t%s\\n' $step >&3; sleep 1; done; printf 'D\\n' >&3";
  for (const kit::Result& result : run_shell(kSteps, 3, 2)) {
    EXPECT_EQ(result.verdict, kit::Verdict::passed) << result.failures.at(0).found;
  }
  const std::vector<kit::Result> hanging = run_shell("printf 'S\\tfirst\\n' >&3; sleep 1000", 1, 2);
  ASSERT_EQ(hanging.size(), 2u);
  EXPECT_EQ(hanging[0].failures.at(0).found, "did not return within 1 s");
  EXPECT_EQ(hanging[0].failures.at(0).step, "first");
}

TEST(ConformanceKit, RunsChecksSideBySideAndKeepsTheirOrder) {
  std::string directory = ::testing::TempDir() + "side_by_side_XXXXXX";
  ASSERT_NE(::mkdtemp(directory.data()), nullptr);
  // Each waits until both have come.
  const std::vector<kit::Result> results =
      run_shell("cd " + directory + "; : > $0; until [ -e file.object -a -e file.quiet ]; do sleep 0.01; done; " +
                    "printf 'D\\n' >&3",
                60, 2);
  std::filesystem::remove_all(directory);
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0].check, "file.object");
  EXPECT_EQ(results[1].check, "file.quiet");
  for (const kit::Result& result : results) EXPECT_EQ(result.verdict, kit::Verdict::passed) << result.note;
}

TEST(ConformanceKit, NamesEveryCheckOnceAndAnObligation) {
  std::set<std::string> names;
  for (const kit::CheckInfo& check : kit::all_checks()) {
    EXPECT_TRUE(names.insert(check.name).second) << check.name;
    EXPECT_THAT(check.obligation, ::testing::MatchesRegex("P-[0-9][0-9]"));
    EXPECT_FALSE(check.statement.empty());
  }
}

}  // namespace
