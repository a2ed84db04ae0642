#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "plugin/loaded.hpp"
#include "plugin/mapping.hpp"
#include "plugin/probe.hpp"
#include "plugin/probe_cache.hpp"
#include "plugin/probe_record.hpp"
#include "plugin/scan.hpp"

namespace fastpath::plugin {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "fastpath-probe-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

ProbeRecord usable_record() {
  ProbeRecord record;
  record.state = PluginState::usable;
  record.reason = {ReasonCode::usable, ""};
  record.stage = Stage::kernels;
  DeviceInfo device;
  device.device = {DeviceKind::cuda, 3};
  device.vendor = "a\ttab";
  device.name = "a \\ backslash\nand a line end";
  device.arch = "sm_90";
  device.uuid = "GPU-1";
  device.driver = "535.1";
  device.units = 132;
  device.memory_bytes = std::uint64_t{1} << 37;
  device.dtypes = {DType::float32, DType::float64};
  record.devices = {device};
  KernelInfo kernel;
  kernel.op = "org.example.op";
  kernel.op_version = 2;
  kernel.device = DeviceKind::cuda;
  kernel.dtypes = {DType::float32};
  kernel.passes = kPassesForces;
  record.kernels = {kernel, kernel};
  record.notes = {"one", "\\t"};
  return record;
}

ProbeRecord quarantined_record() {
  ProbeRecord record;
  record.state = PluginState::quarantined;
  record.stage = Stage::probe;
  record.reason = {ReasonCode::probe_crashed, "it was killed"};
  return record;
}

void expect_equal(const ProbeRecord& a, const ProbeRecord& b) {
  EXPECT_EQ(write_record(a), write_record(b));
  ASSERT_EQ(a.devices.size(), b.devices.size());
  for (std::size_t i = 0; i < a.devices.size(); ++i) {
    EXPECT_EQ(a.devices[i].name, b.devices[i].name);
    EXPECT_EQ(a.devices[i].vendor, b.devices[i].vendor);
    EXPECT_EQ(a.devices[i].device, b.devices[i].device);
    EXPECT_EQ(a.devices[i].memory_bytes, b.devices[i].memory_bytes);
    EXPECT_EQ(a.devices[i].dtypes, b.devices[i].dtypes);
  }
  ASSERT_EQ(a.kernels.size(), b.kernels.size());
  for (std::size_t i = 0; i < a.kernels.size(); ++i) {
    EXPECT_EQ(a.kernels[i].op, b.kernels[i].op);
    EXPECT_EQ(a.kernels[i].op_version, b.kernels[i].op_version);
    EXPECT_EQ(a.kernels[i].passes, b.kernels[i].passes);
  }
  EXPECT_EQ(a.notes, b.notes);
}

std::string answer_text(const ProbeRecord& record) {
  ProbeAnswer answer;
  answer.token = "secret";
  answer.record = record;
  answer.effects = {"changed the locale"};
  answer.peak_bytes = 4096;
  return write_answer_start("1.2.3", "secret") + write_answer_step(Stage::load) + write_answer_step(Stage::negotiate) +
         write_answer_end(answer);
}

TEST(ProbeAnswer, ComesBackAsItWasWritten) {
  std::string why;
  const auto answer = read_answer(answer_text(usable_record()), why);
  ASSERT_TRUE(answer) << why;
  EXPECT_TRUE(answer->complete);
  EXPECT_EQ(answer->core, "1.2.3");
  EXPECT_EQ(answer->begun, (std::vector{Stage::load, Stage::negotiate}));
  EXPECT_EQ(answer->effects, std::vector<std::string>{"changed the locale"});
  EXPECT_EQ(answer->peak_bytes, 4096u);
  expect_equal(*answer->record, usable_record());
}

TEST(ProbeAnswer, OfAProcessThatEndedEarlyIsIncomplete) {
  const std::string text = answer_text(usable_record());
  const std::size_t start = write_answer_start("1.2.3", "secret").size();
  for (std::size_t size = start; size < text.size(); ++size) {
    std::string why;
    const auto answer = read_answer(std::string_view(text).substr(0, size), why);
    ASSERT_TRUE(answer) << size << ": " << why;
    EXPECT_FALSE(answer->complete) << size;
  }
}

TEST(ProbeAnswer, IsRefusedWithTheLineThatCannotBeRead) {
  const std::string good = answer_text(usable_record());
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return text.replace(at, from.size(), to);
  };
  for (const std::string& text : {std::string("hello\n"),
                                  std::string("hello"),
                                  good + "x\n",
                                  good + good,
                                  replaced("\t1\t", "\t2\t"),
                                  replaced("token\tsecret", "token"),
                                  replaced("state\tusable", "state\tfine"),
                                  replaced("stage\tkernels", "stage"),
                                  replaced("reason\tusable", "reason\tbecause"),
                                  replaced("state\tusable\n", "state\tusable\nstate\tusable\n"),
                                  replaced("state\tusable\n", ""),
                                  replaced("peak\t4096", "peak\t-1"),
                                  replaced("peak\t4096\n", ""),
                                  replaced("end\tsecret", "end\t"),
                                  replaced("end\tsecret", "end\tguess"),
                                  replaced("kernel\t", "colonel\t"),
                                  replaced("\tcuda\t3\t", "\tcuda\t3000000000\t"),
                                  replaced("\tcuda\t3\t", "\ttoaster\t3\t"),
                                  replaced("a\\ttab", "a\\xtab"),
                                  replaced("state\tusable", "state\tidle"),
                                  replaced("at\tload", "at\tnight"),
                                  std::string(1, '\0') + good}) {
    std::string why;
    EXPECT_FALSE(read_answer(text, why)) << text;
    EXPECT_THAT(why, HasSubstr("line"));
  }
}

TEST(ProbeAnswer, IsBounded) {
  std::string why;
  std::string text = write_answer_start("1.2.3", "secret");
  while (text.size() <= kMaxAnswer) text += "note\t" + std::string(1000, 'x') + "\n";
  EXPECT_FALSE(read_answer(text, why));
}

/// A cache in a folder of its own.
class ProbeCacheFile : public ::testing::Test {
 protected:
  ProbeCache cache(const std::string& environment = "core=1\n") const {
    return ProbeCache(folder_.path() / "cache", environment);
  }
  static std::string name(int number) { return std::string(63, 'a') + static_cast<char>('0' + number); }
  /// A file that did not change for a while, and what examining it found.
  FileIdentity identity() const { return {1, 2, 3, 1'000'000'001, 1'000'000'001}; }
  static Examination examination() {
    Examination result;
    result.sha256 = std::string(64, 'b');
    result.reason = {ReasonCode::usable, ""};
    Metadata metadata;
    metadata.abi_version = metadata.abi_min = metadata.abi_max = 0x10000;
    metadata.sdk_version = 1;
    metadata.id = "some_plugin";
    metadata.vendor = "A\tvendor";
    metadata.version = "1.0";
    metadata.device_kinds = {DeviceKind::cpu, DeviceKind::hip};
    result.metadata = metadata;
    return result;
  }
  std::string text_of(const ProbeCache& kept) const {
    std::ifstream file(kept.file());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const ProbeCache& kept, const std::string& text) const {
    std::ofstream(kept.file(), std::ios::trunc) << text;
  }
  TemporaryFolder folder_;
};

TEST_F(ProbeCacheFile, GivesAnotherProcessWhatOneKept) {
  ProbeCache first = cache();
  first.keep_result(name(1), usable_record());
  first.keep_result(name(2), quarantined_record());
  first.keep("/some/where/fastpath_x.so", identity(), examination());
  first.save();
  EXPECT_EQ(first.reason().code, ReasonCode::usable) << first.reason().text;
  ProbeCache second = cache();
  const auto usable = second.take_result(name(1), false);
  ASSERT_TRUE(usable) << second.reason().text;
  expect_equal(*usable, usable_record());
  EXPECT_FALSE(second.take_result(name(2), true));
  EXPECT_FALSE(second.take_result(name(3), false));
  const Examination* const found = second.find("/some/where/fastpath_x.so", identity());
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->sha256, examination().sha256);
  EXPECT_EQ(found->metadata->id, "some_plugin");
  EXPECT_EQ(found->metadata->vendor, "A\tvendor");
  EXPECT_EQ(found->metadata->device_kinds, examination().metadata->device_kinds);
}

TEST_F(ProbeCacheFile, KnowsAFileNoMoreWhenAnythingOfItsIdentityChanged) {
  ProbeCache first = cache();
  first.keep("/x.so", identity(), examination());
  first.save();
  EXPECT_NE(cache().find("/x.so", identity()), nullptr);
  EXPECT_EQ(cache().find("/y.so", identity()), nullptr);
  for (int member = 0; member < 5; ++member) {
    FileIdentity other = identity();
    if (member == 0) ++other.device;
    if (member == 1) ++other.inode;
    if (member == 2) ++other.size;
    if (member == 3) ++other.modified_ns;
    if (member == 4) ++other.changed_ns;
    EXPECT_EQ(cache().find("/x.so", other), nullptr) << member;
  }
}

TEST_F(ProbeCacheFile, DoesNotRememberAFileThatChangedJustNow) {
  const fs::path path = folder_.path() / "fresh.so";
  ProbeCache first = cache();
  FileIdentity fresh = identity();
  fresh.changed_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count() +
      1'000'000'000;
  first.keep(path, fresh, examination());
  EXPECT_EQ(first.find(path, fresh), nullptr);
}

TEST_F(ProbeCacheFile, BelongsToOneEnvironment) {
  ProbeCache first = cache("core=1\n");
  first.keep_result(name(1), usable_record());
  first.save();
  EXPECT_FALSE(cache("core=2\n").take_result(name(1), false));
  // Not even where the names of the files are the same by chance.
  const ProbeCache other = cache("core=2\n");
  fs::copy_file(first.file(), other.file());
  ProbeCache reader = cache("core=2\n");
  EXPECT_FALSE(reader.take_result(name(1), false));
  EXPECT_EQ(reader.reason().code, ReasonCode::usable) << reader.reason().text;
  EXPECT_TRUE(cache("core=1\n").take_result(name(1), false));
}

TEST_F(ProbeCacheFile, KeepsNothingThatDependsOnOtherFilesThanThePlugin) {
  ProbeCache first = cache();
  ProbeRecord record = usable_record();
  record.state = PluginState::rejected;
  int number = 0;
  for (const ReasonCode code : {ReasonCode::missing_dependency, ReasonCode::load_failed, ReasonCode::query_failed,
                                ReasonCode::enumerate_failed, ReasonCode::changed, ReasonCode::probe_unavailable}) {
    record.reason = {code, "for now"};
    first.keep_result(name(number++), record);
  }
  first.save();
  EXPECT_FALSE(fs::exists(first.file()));
}

TEST_F(ProbeCacheFile, ForgetsAfterAWhileThatThereIsNoDevice) {
  ProbeCache first = cache();
  ProbeRecord record;
  record.state = PluginState::idle;
  record.stage = Stage::devices;
  record.reason = {ReasonCode::no_device, "no driver"};
  first.keep_result(name(1), record);
  first.save();
  EXPECT_TRUE(cache().take_result(name(1), false));
  std::string text = text_of(first);
  const std::size_t line = text.find("result\t");
  const std::size_t time = text.find('\t', line + 7) + 1;
  const std::size_t end = text.find('\n', time);
  const std::int64_t seconds = std::stoll(text.substr(time, end - time));
  for (const auto& [age, known] : {std::pair(1800, true), std::pair(7200, false), std::pair(-7200, false)}) {
    std::string changed = text;
    write(first, changed.replace(time, end - time, std::to_string(seconds - age)));
    EXPECT_EQ(cache().take_result(name(1), false).has_value(), known) << age;
  }
}

TEST_F(ProbeCacheFile, KeepsWhatOthersWroteMeanwhile) {
  ProbeCache first = cache();
  ProbeCache second = cache();
  EXPECT_FALSE(first.take_result(name(1), false));
  EXPECT_FALSE(second.take_result(name(2), false));
  first.keep_result(name(1), usable_record());
  second.keep_result(name(2), usable_record());
  first.save();
  second.save();
  ProbeCache third = cache();
  EXPECT_TRUE(third.take_result(name(1), false));
  EXPECT_TRUE(third.take_result(name(2), false));
}

TEST_F(ProbeCacheFile, DoesNotWaitForAnotherWriter) {
  ProbeCache first = cache();
  first.keep_result(name(1), usable_record());
  fs::create_directories(first.file().parent_path());
  const int lock = ::open((first.file().parent_path() / "lock").c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(::flock(lock, LOCK_EX), 0);
  first.save();
  EXPECT_FALSE(fs::exists(first.file()));
  EXPECT_EQ(first.reason().code, ReasonCode::usable);
  ::close(lock);
  first.save();
  EXPECT_TRUE(fs::exists(first.file()));
}

TEST_F(ProbeCacheFile, CutAnywhereIsNoticedAndWrittenAnew) {
  ProbeCache first = cache();
  first.keep_result(name(1), usable_record());
  first.keep("/x.so", identity(), examination());
  first.save();
  const std::string text = text_of(first);
  for (std::size_t size = 0; size < text.size(); ++size) {
    write(first, text.substr(0, size));
    ProbeCache damaged = cache();
    EXPECT_FALSE(damaged.take_result(name(1), false)) << size;
    EXPECT_EQ(damaged.reason().code, ReasonCode::cache_unusable) << size;
    EXPECT_EQ(damaged.find("/x.so", identity()), nullptr) << size;
  }
  ProbeCache repair = cache();
  repair.keep_result(name(2), usable_record());
  repair.save();
  ProbeCache repaired = cache();
  EXPECT_TRUE(repaired.take_result(name(2), false));
  EXPECT_EQ(repaired.reason().code, ReasonCode::usable);
}

TEST_F(ProbeCacheFile, IsBounded) {
  ProbeCache first = cache();
  for (int i = 0; i < 1500; ++i) first.keep_result(std::to_string(i), quarantined_record());
  for (int i = 0; i < 3000; ++i) first.keep("/gone/" + std::to_string(i), identity(), examination());
  first.save();
  CacheContent content;
  std::string why;
  ASSERT_TRUE(read_cache(text_of(first), "core=1\n", content, why)) << why;
  EXPECT_EQ(content.results.size(), 1024u);
  EXPECT_LE(content.memos.size(), 2048u);
  // A record as large as one can be is not kept at all.
  ProbeRecord large = usable_record();
  large.kernels.resize(60'000, large.kernels.front());
  ProbeCache second = cache("core=2\n");
  second.keep_result(name(1), large);
  second.save();
  EXPECT_FALSE(fs::exists(second.file()));
}

TEST_F(ProbeCacheFile, KeepsTheLastEnvironmentsOnly) {
  for (int i = 0; i < 40; ++i) {
    ProbeCache one = cache("core=" + std::to_string(i) + "\n");
    one.keep_result(name(1), usable_record());
    one.save();
  }
  const auto files = std::distance(fs::directory_iterator(folder_.path() / "cache/probe"), fs::directory_iterator());
  EXPECT_LE(files, 33);  // and the lock
  EXPECT_TRUE(cache("core=39\n").take_result(name(1), false));
}

TEST_F(ProbeCacheFile, LeavesNothingHalfWritten) {
  ProbeCache first = cache();
  first.keep_result(name(1), usable_record());
  // As on a disk that is full: no file may have more than a few bytes.
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{10, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ::setrlimit(RLIMIT_FSIZE, &small);
  first.save();
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(first.reason().code, ReasonCode::cache_unusable);
  EXPECT_THAT(first.reason().text, HasSubstr(first.file().string()));
  for (const auto& entry : fs::directory_iterator(first.file().parent_path())) {
    EXPECT_EQ(entry.path().filename(), "lock");
  }
}

TEST(ProbeEnvironment, NamesWhatHidesDevices) {
  ::setenv("HIP_VISIBLE_DEVICES", "0", 1);
  const std::string with = probe_environment("/bin/true");
  ::setenv("HIP_VISIBLE_DEVICES", "1", 1);
  const std::string other = probe_environment("/bin/true");
  ::unsetenv("HIP_VISIBLE_DEVICES");
  EXPECT_NE(with, other);
  EXPECT_NE(with, probe_environment("/bin/true"));
  EXPECT_NE(probe_environment("/bin/false"), probe_environment("/bin/true"));
  EXPECT_EQ(probe_environment("/bin/true"), probe_environment("/bin/true"));
  for (const char* part : {"core=", "library=", "cpu=", "hostname", "ld.so.cache"}) EXPECT_THAT(with, HasSubstr(part));
}

TEST(Mapping, TellsWhichFileIsBehindAnAddress) {
  const auto* const here = reinterpret_cast<const void*>(&mapped_from);
  EXPECT_EQ(mapped_from(here, OpenFile("/proc/self/exe").descriptor()), Mapping::same);
  EXPECT_EQ(mapped_from(here, OpenFile("/bin/sh").descriptor()), Mapping::other);
  EXPECT_EQ(mapped_from(here, -1), Mapping::unknown);
  int local = 0;
  EXPECT_NE(mapped_from(&local, OpenFile("/proc/self/exe").descriptor()), Mapping::same);
}

class ReplacedPlugin : public ::testing::Test {
 protected:
  void SetUp() override { fs::copy_file(FASTPATH_ELF_SAMPLE, file_); }
  Candidate candidate() const {
    RegistryOptions options;
    options.search_paths = {folder_.path()};
    options.default_paths = false;
    auto directories = search_path(options);
    return scan(directories, options).at(0);
  }
  TemporaryFolder folder_;
  const fs::path file_ = folder_.path() / "fastpath_zoo_good.so";
};

TEST_F(ReplacedPlugin, IsLoadedIfNothingChanged) {
  const Candidate examined = candidate();
  EXPECT_EQ(examined.sha256.size(), 64u);
  ::chmod(file_.c_str(), 0700);  // its content is the same
  EXPECT_EQ(load(examined).state, PluginState::usable);
}

TEST_F(ReplacedPlugin, IsRefusedIfAnotherFileTookItsPlace) {
  const Candidate examined = candidate();
  fs::copy_file(file_, folder_.path() / "new");
  fs::rename(folder_.path() / "new", file_);
  const LoadResult result = load(examined);
  EXPECT_EQ(result.state, PluginState::rejected);
  EXPECT_EQ(result.reason.code, ReasonCode::changed);
}

TEST_F(ReplacedPlugin, IsRefusedByTheHelperProcessToo) {
  const Candidate examined = candidate();
  std::string why;
  const fs::path program = find_probe_program({}, why);
  ASSERT_FALSE(program.empty()) << why;
  const Candidate* const candidates[] = {&examined};
  EXPECT_EQ(probe(program, candidates, {}).at(0).reason.code, ReasonCode::usable);
  fs::copy_file(file_, folder_.path() / "new");
  fs::rename(folder_.path() / "new", file_);
  const ProbeRecord record = probe(program, candidates, {}).at(0);
  EXPECT_EQ(record.state, PluginState::rejected);
  EXPECT_EQ(record.reason.code, ReasonCode::changed);
}

TEST_F(ReplacedPlugin, IsRefusedIfItWasWrittenTo) {
  const Candidate examined = candidate();
  std::ofstream(file_, std::ios::app) << "more";
  EXPECT_EQ(load(examined).reason.code, ReasonCode::changed);
}

TEST_F(ReplacedPlugin, IsRefusedIfItIsGone) {
  const Candidate examined = candidate();
  fs::remove(file_);
  EXPECT_EQ(load(examined).reason.code, ReasonCode::changed);
}

}  // namespace
}  // namespace fastpath::plugin
