// Plugins that bring down, hold up or change the process that loads them, and what a host that never loads them keeps
// about them between runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "fastpath/context.hpp"
#include "fastpath/error.hpp"
#include "fastpath/extxyz.hpp"
#include "fastpath/model.hpp"
#include "fastpath/registry.hpp"
#include "zoo.hpp"

namespace {

namespace fs = std::filesystem;
using fastpath::FileReport;
using fastpath::PluginInfo;
using fastpath::PluginRegistry;
using fastpath::PluginState;
using fastpath::ProbeMode;
using fastpath::ReasonCode;
using fastpath::RegistryOptions;
using fastpath::ScanReport;
using fastpath::Stage;
using fastpath::StageReport;
using ::testing::HasSubstr;
using zoo::fill;
using zoo::only;
using zoo::TemporaryFolder;
using zoo::Variable;

// No test waits for it but where it says so: a machine may be busy.
constexpr std::chrono::milliseconds kPatience{120'000};
constexpr std::chrono::milliseconds kImpatience{1'000};

struct Expectation {
  std::string name;
  ReasonCode code;
  std::vector<std::string> texts;  ///< Parts of the reason.
};
void PrintTo(const Expectation& expectation, std::ostream* out) { *out << expectation.name; }

const std::vector<Expectation>& quick() {
  static const std::vector<Expectation> files{
      {"exits", ReasonCode::probe_exited, {"with status 3", "in its query function"}},
      {"exits_in_constructor", ReasonCode::probe_exited, {"with status 0", "while it was loaded"}},
      {"aborts", ReasonCode::probe_crashed, {"SIGABRT", "in its query function"}},
      {"crashes", ReasonCode::probe_crashed, {"SIGSEGV", "while it was loaded"}},
      {"crashes_in_query", ReasonCode::probe_crashed, {"SIGSEGV", "in its query function"}},
      {"crashes_in_enumerate", ReasonCode::probe_crashed, {"SIGSEGV", "while it listed its devices"}},
      {"crashes_at_exit", ReasonCode::probe_crashed, {"SIGSEGV", "as its process ended"}},
      {"kills_itself", ReasonCode::probe_crashed, {"SIGKILL", "in its query function"}},
      {"prints_megabytes", ReasonCode::probe_output, {"more than 1024 KiB", "'a line of sixty-four characters"}},
      {"prints_for_ever", ReasonCode::probe_output, {"more than 1024 KiB", "'again again"}},
      {"hogs", ReasonCode::probe_memory, {"1024 MiB"}},
      {"hogs_for_ever", ReasonCode::probe_memory, {"1024 MiB"}},
      {"forks", ReasonCode::probe_side_effects, {"it started a process and left it"}},
      {"daemon", ReasonCode::probe_side_effects, {"it started 2 processes and left them"}},
      {"locale", ReasonCode::probe_side_effects, {"changed the locale from C to"}},
      {"flush_to_zero", ReasonCode::probe_side_effects, {"changed the floating-point mode"}},
      {"rounding", ReasonCode::probe_side_effects, {"changed the floating-point mode: rounding"}},
      {"handler", ReasonCode::probe_side_effects, {"changed the handler of SIGFPE"}},
      {"blocks_signals", ReasonCode::probe_side_effects, {"changed whether SIGTERM is blocked"}},
      {"directory", ReasonCode::probe_side_effects, {"changed the current directory to '/'"}},
      {"umask", ReasonCode::probe_side_effects, {"mask of file modes", "to 000"}},
      {"environment", ReasonCode::probe_side_effects, {"environment variable OMP_NUM_THREADS"}},
      {"closes", ReasonCode::probe_side_effects, {"descriptors that are not its own"}},
      {"closes_output", ReasonCode::probe_side_effects, {"closed the standard output"}},
      {"garbage", ReasonCode::probe_garbage, {"cannot be read: line 5"}},
      {"endless_answer", ReasonCode::probe_garbage, {"more than 4194304 bytes"}},
      {"forgery", ReasonCode::probe_garbage, {"an end that is not the helper's"}},
      {"good", ReasonCode::usable, {""}},
      {"leaks", ReasonCode::usable, {""}},
      {"prints_a_line", ReasonCode::usable, {""}},
      {"thread", ReasonCode::usable, {""}},
  };
  return files;
}

const std::vector<Expectation>& slow() {
  static const std::vector<Expectation> files{
      {"hangs", ReasonCode::probe_timeout, {"it hangs while it was loaded: ended after 1 s"}},
      {"hangs_in_query", ReasonCode::probe_timeout, {"in its query function"}},
      {"hangs_in_enumerate", ReasonCode::probe_timeout, {"while it listed its devices"}},
      {"hangs_at_exit", ReasonCode::probe_timeout, {"as its process ended"}},
      {"stops", ReasonCode::probe_timeout, {"in its query function"}},
  };
  return files;
}

RegistryOptions patient(const fs::path& folder) {
  RegistryOptions options = only(folder);
  options.probe = ProbeMode::helper;
  options.probe_timeout = kPatience;
  options.probe_memory = std::uint64_t{1} << 30;
  return options;
}

FileReport report_of(const ScanReport& report, const std::string& name) {
  const auto found = std::find_if(report.files.begin(), report.files.end(), [&](const FileReport& file) {
    return file.plugin.path.filename() == zoo::file_name(name);
  });
  return found == report.files.end() ? FileReport{} : *found;
}
StageReport step_of(const FileReport& file, Stage stage) {
  const auto found = std::find_if(file.stages.begin(), file.stages.end(),
                                  [&](const StageReport& step) { return step.stage == stage; });
  return found == file.stages.end() ? StageReport{} : *found;
}

class Probe : public ::testing::TestWithParam<Expectation> {
 protected:
  static ScanReport scan(const std::string& name, std::chrono::milliseconds timeout) {
    const TemporaryFolder folder;
    fill(folder.path(), {name});
    RegistryOptions options = patient(folder.path());
    options.probe_timeout = timeout;
    return PluginRegistry(options).scan_report();
  }
  static void check(const ScanReport& report, const Expectation& expected) {
    const FileReport file = report_of(report, expected.name);
    const PluginInfo& plugin = file.plugin;
    const bool usable = expected.code == ReasonCode::usable;
    EXPECT_EQ(to_string(plugin.state), to_string(usable ? PluginState::usable : PluginState::quarantined));
    EXPECT_EQ(to_string(plugin.reason.code), to_string(expected.code)) << plugin.reason.text;
    for (const std::string& text : expected.texts) EXPECT_THAT(plugin.reason.text, HasSubstr(text));
    EXPECT_EQ(plugin.devices.empty(), !usable);
    EXPECT_EQ(to_string(file.stage), to_string(usable ? Stage::kernels : Stage::probe));
    const StageReport probe = step_of(file, Stage::probe);
    EXPECT_EQ(to_string(probe.verdict),
              to_string(usable ? StageReport::Verdict::passed : StageReport::Verdict::failed));
  }
};

class HangingProbe : public Probe {};

TEST_P(Probe, TellsWhatThePluginDidToItsProcess) { check(scan(GetParam().name, kPatience), GetParam()); }
TEST_P(HangingProbe, EndsIt) { check(scan(GetParam().name, kImpatience), GetParam()); }

std::string name_of(const ::testing::TestParamInfo<Expectation>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Zoo, Probe, ::testing::ValuesIn(quick()), name_of);
INSTANTIATE_TEST_SUITE_P(Zoo, HangingProbe, ::testing::ValuesIn(slow()), name_of);

class ProbeNotes : public Probe {};

TEST_F(ProbeNotes, TellWhatAPluginMayDoButSeldomShould) {
  const auto note = [](const std::string& name) {
    return step_of(report_of(scan(name, kPatience), name), Stage::probe).reason.text;
  };
  EXPECT_THAT(note("prints_a_line"), HasSubstr("printed 6 bytes: 'hello"));
  EXPECT_THAT(note("thread"), HasSubstr("runs a thread of its own"));
  EXPECT_EQ(note("good"), "");
}

TEST(ProbedHost, GivesReferenceResultsWithTheWholeZooInOneFolder) {
  const std::string data = FASTPATH_TEST_DATA "/refdata/mace_a/";
  const TemporaryFolder folder;
  for (const auto& entry : fs::directory_iterator(FASTPATH_ZOO)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("fastpath_zoo_")) fs::copy_file(entry.path(), folder.path() / name);
  }
  const auto evaluate = [&](fastpath::UseFast use_fast) {
    fastpath::ContextOptions context_options;
    context_options.registry = patient(folder.path());
    context_options.registry.probe_timeout = kImpatience;
    fastpath::Context context(std::move(context_options));
    fastpath::EvaluateOptions options;
    options.context = &context;
    options.use_fast = use_fast;
    return fastpath::Model::load(data + "model")->evaluate(fastpath::read_extxyz(data + "water8.xyz").front(), options);
  };
  const auto reference = evaluate(fastpath::UseFast::never);
  const auto beside_the_zoo = evaluate(fastpath::UseFast::always);
  EXPECT_EQ(beside_the_zoo.energy, reference.energy);
  EXPECT_TRUE(std::ranges::equal(beside_the_zoo.forces.span<double>(), reference.forces.span<double>()));
}

TEST(ProbedHost, KeepsItsSignalsItsDescriptorsAndItsChildren) {
  const TemporaryFolder folder;
  fill(folder.path(), {"good", "crashes", "forks", "closes"});
  const auto descriptors = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  // A child of the host's own, which nobody else may wait for.
  const pid_t own = ::fork();
  if (own == 0) ::_exit(7);
  sigset_t before, after;
  ::pthread_sigmask(SIG_BLOCK, nullptr, &before);
  struct sigaction child_before {
  }, child_after{};
  ::sigaction(SIGCHLD, nullptr, &child_before);
  const auto open_before = descriptors();
  PluginRegistry(patient(folder.path())).plugins();
  EXPECT_EQ(descriptors(), open_before);
  ::pthread_sigmask(SIG_BLOCK, nullptr, &after);
  ::sigaction(SIGCHLD, nullptr, &child_after);
  for (int number = 1; number < 32; ++number) EXPECT_EQ(::sigismember(&before, number), ::sigismember(&after, number));
  EXPECT_EQ(child_before.sa_handler, child_after.sa_handler);
  int status = 0;
  EXPECT_EQ(::waitpid(own, &status, 0), own);
  EXPECT_EQ(WEXITSTATUS(status), 7);
  EXPECT_EQ(::waitpid(-1, &status, WNOHANG), -1) << "a process is left";
}

TEST(ProbedHost, NeedsNoChildSignals) {
  const TemporaryFolder folder;
  fill(folder.path(), {"good", "exits"});
  const auto before = std::signal(SIGCHLD, SIG_IGN);  // the system then waits for children itself
  const auto plugins = PluginRegistry(patient(folder.path())).plugins();
  std::signal(SIGCHLD, before);
  ASSERT_EQ(plugins.size(), 2u);
  EXPECT_EQ(plugins[0].reason.code, ReasonCode::probe_exited) << plugins[0].reason.text;
  EXPECT_EQ(plugins[1].state, PluginState::usable) << plugins[1].reason.text;
}

TEST(ProbedHost, DoesWithFewDescriptors) {
  const TemporaryFolder folder;
  const std::vector<std::string> names{"good", "gpu_only", "future_kind", "size_larger", "size_smaller", "leaks"};
  fill(folder.path(), names);
  rlimit before{};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const auto open_now = std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  const rlimit few{static_cast<rlim_t>(open_now) + 24, before.rlim_max};  // enough for one helper process, not for six
  ::setrlimit(RLIMIT_NOFILE, &few);
  const auto plugins = PluginRegistry(patient(folder.path())).plugins();
  ::setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_EQ(plugins.size(), names.size());
  for (const PluginInfo& plugin : plugins) EXPECT_EQ(plugin.state, PluginState::usable) << plugin.reason.text;
}

TEST(ProbedHost, LoadsNothingToListIt) {
  const TemporaryFolder folder;
  fill(folder.path(), {"good"});
  PluginRegistry registry(patient(folder.path()));
  ASSERT_EQ(registry.plugins().at(0).state, PluginState::usable);
  std::ifstream maps("/proc/self/maps");
  const std::string all{std::istreambuf_iterator<char>(maps), {}};
  EXPECT_THAT(all, HasSubstr("libfastpath"));
  EXPECT_EQ(all.find(folder.path().string()), std::string::npos);
}

/// What is kept between runs, and a plugin that crashes where ZOO_MOOD says so.
class ProbeMemory : public ::testing::Test {
 protected:
  void SetUp() override { fill(folder_.path(), {"moody"}); }
  RegistryOptions options() const {
    RegistryOptions result = patient(folder_.path());
    result.use_cache = true;
    result.cache_directory = cache_.path() / "cache";
    return result;
  }
  /// As a new process would see it.
  static FileReport look(const RegistryOptions& options) { return PluginRegistry(options).scan_report().files.at(0); }

  TemporaryFolder folder_, cache_;
  Variable mood_{"ZOO_MOOD", nullptr};
};

TEST_F(ProbeMemory, AnswersForAPluginThatWasTriedBefore) {
  const FileReport first = look(options());
  EXPECT_EQ(first.plugin.state, PluginState::usable) << first.plugin.reason.text;
  EXPECT_EQ(step_of(first, Stage::cache).reason.code, ReasonCode::not_cached);
  EXPECT_EQ(step_of(first, Stage::probe).verdict, StageReport::Verdict::passed);
  mood_.set("bad");  // it would crash if it were tried
  const FileReport again = look(options());
  EXPECT_EQ(again.plugin.state, PluginState::usable) << again.plugin.reason.text;
  EXPECT_EQ(step_of(again, Stage::cache).verdict, StageReport::Verdict::passed);
  EXPECT_EQ(step_of(again, Stage::probe).reason.code, ReasonCode::not_needed);
  EXPECT_EQ(again.plugin.devices.size(), first.plugin.devices.size());
  EXPECT_EQ(again.plugin.devices.at(0).name, first.plugin.devices.at(0).name);
  EXPECT_EQ(again.plugin.kernels.at(0).op, first.plugin.kernels.at(0).op);
  EXPECT_EQ(again.plugin.version, first.plugin.version);
  EXPECT_EQ(again.sha256, first.sha256);
  EXPECT_EQ(again.sha256.size(), 64u);
}

TEST_F(ProbeMemory, KeepsTheCauseOfAQuarantineUntilItIsTriedAgainOnRequest) {
  mood_.set("bad");
  EXPECT_EQ(look(options()).plugin.state, PluginState::quarantined);
  mood_.set(nullptr);
  const FileReport kept = look(options());
  EXPECT_EQ(kept.plugin.state, PluginState::quarantined);
  EXPECT_EQ(kept.plugin.reason.code, ReasonCode::probe_crashed);
  EXPECT_THAT(kept.plugin.reason.text, HasSubstr("SIGABRT"));
  EXPECT_EQ(to_string(kept.stage), "probe");
  RegistryOptions retry = options();
  retry.retry = true;
  EXPECT_EQ(look(retry).plugin.state, PluginState::usable);
  EXPECT_EQ(look(options()).plugin.state, PluginState::usable);
}

TEST_F(ProbeMemory, ForgetsWhenTheContentOfTheFileChanges) {
  mood_.set("bad");
  EXPECT_EQ(look(options()).plugin.state, PluginState::quarantined);
  mood_.set(nullptr);
  std::ofstream(folder_.path() / "fastpath_zoo_moody.so", std::ios::app | std::ios::binary) << '\n';
  EXPECT_EQ(look(options()).plugin.state, PluginState::usable);
}

TEST_F(ProbeMemory, ForgetsWhenOtherDevicesAreVisible) {
  mood_.set("bad");
  Variable devices("CUDA_VISIBLE_DEVICES", nullptr);
  EXPECT_EQ(look(options()).plugin.state, PluginState::quarantined);
  mood_.set(nullptr);
  devices.set("1");
  EXPECT_EQ(look(options()).plugin.state, PluginState::usable);
  devices.set(nullptr);
  EXPECT_EQ(look(options()).plugin.state, PluginState::quarantined);
}

TEST_F(ProbeMemory, TakesAPluginByItsContentWhateverItsName) {
  mood_.set("bad");
  EXPECT_EQ(look(options()).plugin.state, PluginState::quarantined);
  mood_.set(nullptr);
  fs::rename(folder_.path() / "fastpath_zoo_moody.so", folder_.path() / "fastpath_renamed.so");
  EXPECT_EQ(look(options()).plugin.state, PluginState::quarantined);
}

TEST_F(ProbeMemory, IsNotNeeded) {
  RegistryOptions without = options();
  without.use_cache = false;
  EXPECT_EQ(look(without).plugin.state, PluginState::usable);
  EXPECT_FALSE(fs::exists(cache_.path() / "cache"));
}

TEST_F(ProbeMemory, IsWrittenAnewWhereItIsDamaged) {
  look(options());
  fs::path file;
  for (const auto& entry : fs::directory_iterator(cache_.path() / "cache/probe")) {
    if (entry.path().extension() == ".txt") file = entry.path();
  }
  ASSERT_FALSE(file.empty());
  const auto size = fs::file_size(file);
  fs::resize_file(file, size / 2);
  const ScanReport damaged = PluginRegistry(options()).scan_report();
  EXPECT_EQ(damaged.files.at(0).plugin.state, PluginState::usable);
  EXPECT_EQ(damaged.cache.code, ReasonCode::cache_unusable);
  EXPECT_THAT(damaged.cache.text, HasSubstr(file.string()));
  EXPECT_EQ(step_of(damaged.files.at(0), Stage::cache).reason.code, ReasonCode::cache_unusable);
  mood_.set("bad");
  const ScanReport repaired = PluginRegistry(options()).scan_report();
  EXPECT_EQ(repaired.cache.code, ReasonCode::usable) << repaired.cache.text;
  EXPECT_EQ(repaired.files.at(0).plugin.state, PluginState::usable);
}

TEST_F(ProbeMemory, LeavesEverythingWorkingWhereItCannotBeWritten) {
  std::ofstream(cache_.path() / "cache") << "a file where the directory should be\n";
  const ScanReport report = PluginRegistry(options()).scan_report();
  EXPECT_EQ(report.files.at(0).plugin.state, PluginState::usable);
  EXPECT_EQ(report.cache.code, ReasonCode::cache_unusable);
  EXPECT_THAT(report.cache.text, HasSubstr(cache_.path().string()));
}

TEST_F(ProbeMemory, DoesNotTrustWhatOthersMayWrite) {
  look(options());
  for (const auto& entry : fs::directory_iterator(cache_.path() / "cache/probe")) {
    fs::permissions(entry.path(), fs::perms::group_write, fs::perm_options::add);
  }
  const ScanReport report = PluginRegistry(options()).scan_report();
  EXPECT_EQ(report.files.at(0).plugin.state, PluginState::usable);
  EXPECT_EQ(report.cache.code, ReasonCode::cache_unusable);
  EXPECT_THAT(report.cache.text, HasSubstr("nobody else"));
}

TEST_F(ProbeMemory, IsThatOfTheUserByDefault) {
  RegistryOptions users = options();
  users.cache_directory.clear();
  const std::string base = cache_.path().string();
  Variable own("FASTPATH_CACHE_DIR", nullptr);
  Variable xdg("XDG_CACHE_HOME", nullptr);
  Variable home("HOME", base.c_str());
  EXPECT_EQ(PluginRegistry(users).scan_report().cache_directory, base + "/.cache/fastpath");
  xdg.set((base + "/xdg").c_str());
  EXPECT_EQ(PluginRegistry(users).scan_report().cache_directory, base + "/xdg/fastpath");
  own.set((base + "/own").c_str());
  EXPECT_EQ(PluginRegistry(users).scan_report().cache_directory, base + "/own");
  EXPECT_TRUE(fs::exists(base + "/own/probe"));
}

/// Which way is taken to try a plugin.
class ProbeChoice : public ::testing::Test {
 protected:
  void SetUp() override { fill(folder_.path(), {"good"}); }
  TemporaryFolder folder_;
  Variable variable_{"FASTPATH_PROBE", nullptr};
};

TEST_F(ProbeChoice, FallsBackToThisProcessWithoutAHelperProgramAndSaysSo) {
  RegistryOptions options = patient(folder_.path());
  options.probe = ProbeMode::automatic;
  for (const char* program : {"/nowhere/fastpath-probe", "/bin/true"}) {  // none, and one that is another
    options.probe_program = program;
    const ScanReport report = PluginRegistry(options).scan_report();
    const FileReport& file = report.files.at(0);
    EXPECT_EQ(file.plugin.state, PluginState::usable) << file.plugin.reason.text;
    EXPECT_EQ(step_of(file, Stage::probe).verdict, StageReport::Verdict::skipped);
    EXPECT_EQ(step_of(file, Stage::probe).reason.code, ReasonCode::probe_unavailable);
  }
  options.probe_program = "/nowhere/fastpath-probe";
  const ScanReport report = PluginRegistry(options).scan_report();
  EXPECT_EQ(report.probe.code, ReasonCode::probe_unavailable);
  EXPECT_THAT(report.probe.text, HasSubstr("/nowhere/fastpath-probe"));
}

TEST_F(ProbeChoice, RefusesWithoutAHelperProgramWhereOneIsAskedFor) {
  for (const char* program : {"/nowhere/fastpath-probe", "/bin/true"}) {
    RegistryOptions options = patient(folder_.path());
    options.probe_program = program;
    const FileReport file = PluginRegistry(options).scan_report().files.at(0);
    EXPECT_EQ(file.plugin.state, PluginState::rejected);
    EXPECT_EQ(file.plugin.reason.code, ReasonCode::probe_unavailable);
    EXPECT_EQ(to_string(file.stage), "probe");
    options.probe = ProbeMode::automatic;
    variable_.set("helper");
    EXPECT_EQ(PluginRegistry(options).plugins().at(0).reason.code, ReasonCode::probe_unavailable);
    variable_.set(nullptr);
  }
}

TEST_F(ProbeChoice, IsThatOfTheOptionsThenOfTheEnvironment) {
  RegistryOptions options = patient(folder_.path());
  const auto way = [&] { return PluginRegistry(options).scan_report().probe.code; };
  variable_.set("in_process");
  EXPECT_EQ(way(), ReasonCode::usable);
  options.probe = ProbeMode::automatic;
  EXPECT_EQ(way(), ReasonCode::disabled);
  variable_.set("");
  EXPECT_EQ(way(), ReasonCode::usable);
  options.probe = ProbeMode::in_process;
  EXPECT_EQ(way(), ReasonCode::disabled);
}

TEST_F(ProbeChoice, NamesAWordOfTheEnvironmentThatIsNoWay) {
  variable_.set("sometimes");
  try {
    PluginRegistry{RegistryOptions{}};
    FAIL() << "accepted";
  } catch (const fastpath::Error& error) {
    EXPECT_EQ(error.code(), fastpath::ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("FASTPATH_PROBE"));
    EXPECT_THAT(error.what(), HasSubstr("'sometimes'"));
    EXPECT_THAT(error.what(), HasSubstr("in_process"));
  }
}

}  // namespace
