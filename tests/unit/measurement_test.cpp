// Measurements and where they are kept: many processes at once, damaged files, layers, what counts.
#include "fastpath/measurement.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <random>
#include <set>
#include <sstream>

#include "fastpath/error.hpp"
#include "fastpath/version.hpp"

namespace fastpath {
namespace {

namespace fs = std::filesystem;

const auto kNow = static_cast<std::int64_t>(std::time(nullptr));
constexpr std::int64_t kDay = 24 * 3600;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void write(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  ASSERT_TRUE(file.flush().good()) << path;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::stringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<fs::path> shards(const fs::path& directory) {
  std::vector<fs::path> result;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".jsonl") result.push_back(entry.path());
  }
  return result;
}

/// Runs `work` in a child process. @return Its exit status; -1 if a signal ended it.
int in_child(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    int status = 99;
    try {
      status = work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
    }
    ::_exit(status);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status)) return -1;
  return WEXITSTATUS(status);
}

ErrorCode code_of(const std::function<void()>& action, std::string* text = nullptr) {
  try {
    action();
  } catch (const Error& error) {
    if (text != nullptr) *text = error.what();
    return error.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::internal;
}

class Measurements : public testing::Test {
 protected:
  Measurements() {
    std::string name = (fs::temp_directory_path() / "fastpath-measurements-XXXXXX").string();
    folder = ::mkdtemp(name.data());
    directories.user = folder / "user";
  }
  ~Measurements() override {
    std::error_code error;
    fs::remove_all(folder, error);
  }

  /// A record of the n-th configuration.
  static Measurement record(int n, double kernel_seconds = 1e-4, std::int64_t time = kNow) {
    Measurement m;
    m.key = {"conv_tensor_product",
             1,
             fmt::format("{:016x}", n),
             device_class(cpu_info()),
             DType::float64,
             kPassesForces.bits(),
             1,
             "cpu_simd"};
    for (int i = 0; i < 4; ++i) {
      const double scale = std::pow(4.0, i);
      m.points.push_back(
          {8 << (2 * i), 1 << (2 * i), true, 1e-4 / 3 * scale, kernel_seconds / 7 * scale, 0.01, 0.02, 9});
    }
    m.windows = {{20, 0, 0.03, 0}};
    m.plugin_version = "0.1";
    m.plugin_build = "build-a";
    m.driver = cpu_info().driver;
    m.host = "host";
    m.library_version = build_info().version;
    m.unix_time = time;
    return m;
  }
  static MeasurementSituation situation() { return {{cpu_info()}, {{"cpu_simd", "build-a"}}, kNow}; }

  fs::path folder;
  MeasurementDirectories directories;
};

TEST_F(Measurements, WhatIsAddedIsFoundByItsKeyAndBuildByOtherStoresToo) {
  MeasurementStore store(directories);
  EXPECT_TRUE(store.empty());
  EXPECT_FALSE(store.find(record(1).key, "build-a", ""));
  const std::uint64_t before = store.generation();
  store.add(record(1));
  EXPECT_NE(store.generation(), before);
  MeasurementStore other(directories);
  for (MeasurementStore* each : {&store, &other}) {
    const auto found = each->find(record(1).key, "build-a", cpu_info().driver);
    ASSERT_TRUE(found);
    EXPECT_EQ(*found->measurement, record(1));
    EXPECT_FALSE(each->find(record(2).key, "build-a", ""));
    EXPECT_FALSE(each->find(record(1).key, "build-b", "")) << "of another build";
    MeasurementKey key = record(1).key;
    key.threads = 2;
    EXPECT_FALSE(each->find(key, "build-a", ""));
  }
}

TEST_F(Measurements, WithoutDirectoriesItIsKeptInMemory) {
  MeasurementStore store;
  store.add(record(1));
  EXPECT_TRUE(store.find(record(1).key, "build-a", cpu_info().driver));
  EXPECT_EQ(store.records(situation()).at(0).file, fs::path());
  EXPECT_EQ(store.forget([](const Measurement&) { return true; }).removed, 1u);
  EXPECT_TRUE(store.empty());
}

TEST_F(Measurements, AnotherStoreSeesWhatWasAddedOnceItIsTold) {
  MeasurementStore store(directories), other(directories);
  EXPECT_TRUE(other.empty());
  store.add(record(1));
  EXPECT_TRUE(other.empty());
  const std::uint64_t before = other.generation();
  other.reload();
  EXPECT_NE(other.generation(), before);
  EXPECT_FALSE(other.empty());
}

TEST_F(Measurements, NothingIsLostOrDamagedBySixteenProcessesThatAddAtOnceWhileOneMerges) {
  constexpr int kProcesses = 16, kEach = 6;
  MeasurementStore store(directories);
  store.add(record(0));  // a child that goes on with the file of its parent would write into it
  int start[2];
  ASSERT_EQ(::pipe(start), 0);
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int status = 0;
      try {
        char go = 0;
        ::close(start[1]);
        (void)!::read(start[0], &go, 1);  // the end of the pipe: all of them are there
        for (int i = 0; i < kEach; ++i) store.add(record(1 + process * kEach + i));
      } catch (...) {
        status = 1;
      }
      ::_exit(status);
    }
    children.push_back(child);
  }
  ::close(start[0]);
  ::close(start[1]);
  for (std::size_t left = children.size(); left > 0;) {
    const MeasurementChange merged = store.merge();
    EXPECT_TRUE(merged.skipped.empty());
    EXPECT_EQ(merged.removed, 0u);
    for (pid_t& child : children) {
      int status = 0;
      if (child == 0 || ::waitpid(child, &status, WNOHANG) != child) continue;
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
      child = 0;
      --left;
    }
  }
  MeasurementStore reader(directories);
  std::multiset<std::string> configs;
  for (const MeasurementRecord& each : reader.records(situation())) {
    EXPECT_TRUE(each.counts) << (each.reasons.empty() ? "" : each.reasons[0].text);
    configs.insert(each.measurement.key.config);
  }
  EXPECT_EQ(configs.size(), 1u + kProcesses * kEach);
  for (int i = 0; i <= kProcesses * kEach; ++i) EXPECT_EQ(configs.count(record(i).key.config), 1u) << i;
}

TEST_F(Measurements, ADamagedRecordIsNeverTakenForAnother) {
  constexpr int kRecords = 12, kTimes = 1000;
  MeasurementStore store(directories);
  for (int i = 0; i < kRecords; ++i) store.add(record(i, 1e-4 * (i + 1)));
  ASSERT_EQ(shards(directories.user).size(), 1u);
  const fs::path file = shards(directories.user)[0];
  const std::string whole = read(file);
  const std::vector<std::string> original = lines_of(whole);
  ASSERT_EQ(original.size(), static_cast<std::size_t>(kRecords));

  std::mt19937 random(20261202);
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  std::size_t used = 0, skipped = 0;
  for (int time = 0; time < kTimes; ++time) {
    std::string text = whole;
    for (std::size_t changes = 1 + below(3); changes > 0 && !text.empty(); --changes) {
      const std::size_t at = below(text.size()), length = std::min(text.size() - at, 1 + below(200));
      switch (below(7)) {
        case 0:  // a bit
          text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
          break;
        case 1:  // a digit, where there is one
          if (const std::size_t digit = text.find_first_of("0123456789", at); digit != std::string::npos) {
            text[digit] = static_cast<char>('0' + below(10));
          }
          break;
        case 2:  // a hole
          text.replace(at, length, std::string(length, '\0'));
          break;
        case 3:
          text.erase(at, length);
          break;
        case 4:  // twice
          text.insert(at, text.substr(at, length));
          break;
        case 5:  // from elsewhere
          text.replace(at, length, text.substr(below(text.size()), length));
          break;
        default:  // torn
          text.resize(at);
      }
    }
    write(file, text);
    MeasurementStore damaged(directories);
    std::vector<std::string> whole_lines;
    for (const std::string& line : lines_of(text)) {
      if (std::find(original.begin(), original.end(), line) != original.end()) whole_lines.push_back(line);
    }
    std::size_t good = 0;
    for (const MeasurementRecord& each : damaged.records(situation())) {
      if (each.measurement.key.op.empty()) {
        ASSERT_EQ(each.reasons.size(), 1u);
        const ReasonCode code = each.reasons[0].code;
        ASSERT_TRUE(code == ReasonCode::bad_record || code == ReasonCode::record_format) << to_string(code);
        ASSERT_FALSE(each.reasons[0].text.empty());
        ASSERT_GT(each.line, 0);
        ++skipped;
        continue;
      }
      const int n = std::stoi(each.measurement.key.config, nullptr, 16);
      ASSERT_EQ(each.measurement, record(n, 1e-4 * (n + 1))) << "time " << time;
      ++good;
    }
    ASSERT_EQ(good, whole_lines.size()) << "time " << time;
    used += good;
    for (int i = 0; i < kRecords; ++i) {
      const auto found = damaged.find(record(i).key, "build-a", cpu_info().driver);
      const bool there = std::find(whole_lines.begin(), whole_lines.end(), original[i]) != whole_lines.end();
      ASSERT_EQ(found.has_value(), there) << "time " << time;
      if (found) {
        ASSERT_EQ(*found->measurement, record(i, 1e-4 * (i + 1)));
      }
    }
  }
  EXPECT_GT(skipped, 900u);
  EXPECT_GT(used, 5000u);
}

TEST_F(Measurements, ARecordOfALaterFormatIsSkippedAndKept) {
  MeasurementStore(directories).add(record(1));
  const fs::path file = shards(directories.user)[0];
  std::string text = read(file);
  const std::string name = "\"fastpath_measurement\":";
  text.replace(text.find(name) + name.size(), 1, "7");
  write(file, text);
  MeasurementStore store(directories);
  EXPECT_EQ(store.records(situation()).at(0).reasons.at(0).code, ReasonCode::record_format);
  EXPECT_EQ(store.merge().kept, 1u);
  EXPECT_EQ(read(shards(directories.user).at(0)), text);
}

TEST_F(Measurements, ADirectoryThatMayOnlyBeReadIsReadAndAddingNamesIt) {
  const auto readable = fs::perms::owner_read | fs::perms::owner_exec | fs::perms::group_read | fs::perms::group_exec |
                        fs::perms::others_read | fs::perms::others_exec;
  fs::permissions(folder, readable | fs::perms::owner_write);
  MeasurementStore(directories).add(record(1));
  fs::permissions(directories.user, readable);
  const int status = in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return 10;
    MeasurementStore store(directories);
    try {
      store.add(record(2));
      return 1;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::io) return 2;
      const std::string text = error.what();
      if (text.find(directories.user.string()) == std::string::npos) return 3;
      if (text.find("Permission denied") == std::string::npos) return 4;
    }
    return store.find(record(1).key, "build-a", cpu_info().driver) && !store.find(record(2).key, "build-a", "") ? 0 : 5;
  });
  EXPECT_EQ(status, 0);
  fs::permissions(directories.user, fs::perms::owner_all);
}

TEST_F(Measurements, ADirectoryThatCannotBeReachedIsEmptyAndAddingNamesIt) {
  MeasurementStore(directories).add(record(1));
  fs::permissions(folder, fs::perms::none);
  const int status = in_child([&] {
    if (::geteuid() == 0 && ::setuid(65534) != 0) return 10;
    MeasurementStore store(directories);
    if (!store.empty() || store.problems().empty()) return 1;
    std::string text;
    if (code_of([&] { store.add(record(2)); }, &text) != ErrorCode::io) return 2;
    return text.find(directories.user.string()) == std::string::npos ? 3 : 0;
  });
  EXPECT_EQ(status, 0);
  fs::permissions(folder, fs::perms::owner_all);
}

TEST_F(Measurements, OnAFullDiskAddingSaysSoAndLeavesWhatWasThere) {
  const int status = in_child([&] {
    MeasurementStore store(directories);
    store.add(record(1));
    const fs::path file = shards(directories.user).at(0);
    const std::string before = read(file);
    // What a full disk does: the first bytes fit, the others do not.
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{before.size() + 100, RLIM_INFINITY};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 10;
    for (int i = 0; i < 2; ++i) {
      try {
        store.add(record(2));
        return 1;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::io) return 2;
        if (std::string(error.what()).find(file.string()) == std::string::npos) return 3;
        if (std::string(error.what()).find("cannot be written") == std::string::npos) return 4;
      }
      if (read(file) != before) return 5;
      if (store.find(record(2).key, "build-a", "")) return 6;
    }
    // A copy that does not fit leaves the old one.
    write(folder / "copy.jsonl", "old");
    limit.rlim_cur = 50;
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 10;
    try {
      store.export_file(folder / "copy.jsonl");
      return 7;
    } catch (const Error&) {
    }
    if (read(folder / "copy.jsonl") != "old") return 8;
    limit.rlim_cur = RLIM_INFINITY;
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 10;
    store.add(record(2));
    return MeasurementStore(directories).find(record(2).key, "build-a", "") ? 0 : 9;
  });
  EXPECT_EQ(status, 0);
}

TEST_F(Measurements, TheLaterLayerCountsThenTheNewestAndConclusiveOnesBeforeAll) {
  directories.system = {folder / "system"};
  directories.project = folder / "project";
  const auto found = [&] {
    return MeasurementStore(directories).find(record(1).key, "build-a", cpu_info().driver)->measurement->points[0];
  };
  const auto add = [&](const fs::path& directory, const Measurement& m) {
    MeasurementDirectories alone;
    alone.user = directory;
    MeasurementStore(alone).add(m);
  };
  add(folder / "system", record(1, 1e-3, kNow));
  EXPECT_EQ(found(), record(1, 1e-3).points[0]);
  add(directories.user, record(1, 2e-3, kNow - 5));
  EXPECT_EQ(found(), record(1, 2e-3).points[0]);
  add(directories.user, record(1, 3e-3, kNow - 3));
  EXPECT_EQ(found(), record(1, 3e-3).points[0]);
  add(directories.user, record(1, 4e-3, kNow - 4));
  EXPECT_EQ(found(), record(1, 3e-3).points[0]);
  MeasurementStore(directories).add(record(1, 5e-3, kNow - 9), MeasurementLayer::project);
  EXPECT_EQ(found(), record(1, 5e-3).points[0]);
  Measurement nothing = record(1, 6e-3, kNow);
  nothing.inconclusive = true;
  nothing.windows.clear();
  add(directories.project, nothing);
  EXPECT_EQ(found(), record(1, 5e-3).points[0]);

  const std::vector<MeasurementRecord> records = MeasurementStore(directories).records(situation());
  ASSERT_EQ(records.size(), 6u);
  for (const MeasurementRecord& each : records) {
    EXPECT_EQ(each.counts, each.measurement.points[0] == record(1, 5e-3).points[0]);
    if (!each.counts) {
      EXPECT_EQ(each.reasons.at(0).code, ReasonCode::superseded);
    }
  }
  EXPECT_EQ(records.front().layer, MeasurementLayer::system);
  EXPECT_EQ(records.back().layer, MeasurementLayer::project);

  MeasurementStore store(directories);
  EXPECT_EQ(code_of([&] { store.add(record(1), MeasurementLayer::system); }), ErrorCode::invalid_argument);
  EXPECT_EQ(code_of([&] { store.forget([](const Measurement&) { return true; }, MeasurementLayer::system); }),
            ErrorCode::invalid_argument);
}

TEST_F(Measurements, EveryRecordThatDoesNotCountSaysWhyAndStaleOnesCount) {
  MeasurementStore store(directories);
  Measurement other_device = record(1), threads = record(2), build = record(3), plugin = record(4), driver = record(5),
              library = record(6), old = record(7, 1e-4, kNow - 181 * kDay);
  other_device.key.device = "cuda NVIDIA H200 sm_90 132";
  other_device.key.threads = 0;
  threads.key.threads = static_cast<int>(cpu_info().units) + 1;
  build.plugin_build = "build-b";
  plugin.key.plugin = "gone";
  driver.driver = "another";
  library.library_version = "0.0.1";
  for (const Measurement& m : {other_device, threads, build, plugin, driver, library, old}) store.add(m);
  const std::vector<MeasurementRecord> records = store.records(situation());
  ASSERT_EQ(records.size(), 7u);
  const auto check = [&](std::size_t i, bool counts, ReasonCode code, const char* naming) {
    SCOPED_TRACE(i);
    EXPECT_EQ(records[i].counts, counts);
    ASSERT_FALSE(records[i].reasons.empty());
    EXPECT_EQ(records[i].reasons[0].code, code);
    EXPECT_NE(records[i].reasons[0].text.find(naming), std::string::npos) << records[i].reasons[0].text;
  };
  check(0, false, ReasonCode::other_device, "H200");
  check(1, false, ReasonCode::other_device, "threads");
  check(2, false, ReasonCode::other_build, "build-b");
  check(3, false, ReasonCode::other_build, "gone");
  check(4, true, ReasonCode::stale, "another");
  check(5, true, ReasonCode::stale, "0.0.1");
  check(6, true, ReasonCode::stale, "181 days");
  const auto found = store.find(driver.key, "build-a", cpu_info().driver);
  ASSERT_TRUE(found && found->stale);
  EXPECT_NE(found->stale->text.find("another"), std::string::npos);
  // What is not stale counts more, though it is older.
  store.add(record(5, 9e-4, kNow - 100));
  const auto fresh = store.find(driver.key, "build-a", cpu_info().driver);
  EXPECT_EQ(fresh->measurement->points, record(5, 9e-4).points);
}

TEST_F(Measurements, ADateThatIsYetToComeIsBelievedLeast) {
  MeasurementStore store(directories);
  store.add(record(1, 1e-3, kNow - 5 * kDay));
  store.add(record(1, 2e-3, kNow + 400 * kDay));
  store.add(record(2, 3e-3, kNow + 2 * kDay));
  store.add(record(3, 4e-3, kNow + kDay / 2));  // another machine's clock
  const auto found = [&](int i) { return store.find(record(i).key, "build-a", cpu_info().driver); };
  EXPECT_EQ(found(1)->measurement->points, record(1, 1e-3).points);
  EXPECT_FALSE(found(1)->stale);
  EXPECT_EQ(found(2)->measurement->points, record(2, 3e-3).points) << "where there is no other";
  ASSERT_TRUE(found(2)->stale);
  EXPECT_NE(found(2)->stale->text.find("from now"), std::string::npos) << found(2)->stale->text;
  EXPECT_FALSE(found(3)->stale);
  EXPECT_EQ(store.merge().kept, 3u);
  EXPECT_EQ(found(1)->measurement->points, record(1, 1e-3).points);
}

TEST_F(Measurements, WhatIsExportedCanBeImportedOnce) {
  MeasurementStore store(directories);
  for (int i = 0; i < 3; ++i) store.add(record(i));
  const fs::path file = folder / "all.jsonl";
  EXPECT_EQ(store.export_file(file).kept, 3u);
  EXPECT_EQ(
      store.export_file(folder / "one.jsonl", [](const Measurement& m) { return m.key.config == record(1).key.config; })
          .kept,
      1u);
  write(folder / "all.jsonl", read(file) + "not a record\n");
  MeasurementDirectories elsewhere;
  elsewhere.user = folder / "elsewhere";
  MeasurementStore other(elsewhere);
  EXPECT_EQ(other.import_file(folder / "one.jsonl").added, 1u);
  const MeasurementChange change = other.import_file(file);
  EXPECT_EQ(change.added, 2u);
  EXPECT_EQ(change.known, 1u);
  ASSERT_EQ(change.skipped.size(), 1u);
  EXPECT_NE(change.skipped[0].text.find("all.jsonl:4"), std::string::npos) << change.skipped[0].text;
  EXPECT_EQ(*other.find(record(2).key, "build-a", cpu_info().driver)->measurement, record(2));
  MeasurementStore third;
  EXPECT_EQ(third.import_file(elsewhere.user).added, 3u) << "a directory of files";
  std::string text;
  EXPECT_EQ(code_of([&] { third.import_file(folder / "none.jsonl"); }, &text), ErrorCode::not_found);
  EXPECT_NE(text.find("none.jsonl"), std::string::npos);
  // A file of something else is an error, an empty one is not.
  write(folder / "other.csv", "a,b\n1,2\n");
  EXPECT_EQ(code_of([&] { third.import_file(folder / "other.csv"); }, &text), ErrorCode::bad_file);
  EXPECT_NE(text.find("other.csv:1"), std::string::npos) << text;
  write(folder / "empty.jsonl", "");
  EXPECT_EQ(third.import_file(folder / "empty.jsonl").added, 0u);
}

TEST_F(Measurements, MergingLeavesOneFileWithTheNewestOfEachAndForgettingRemovesWhatIsAsked) {
  for (int i = 0; i < 3; ++i) {
    MeasurementStore one(directories);  // a file each
    one.add(record(i, 1e-4, kNow - 10));
    one.add(record(i, 2e-4, kNow - 5));
  }
  write(directories.user / "torn.jsonl", "{\"fastpath_measurement\":1,\"su");
  EXPECT_EQ(shards(directories.user).size(), 4u);
  MeasurementStore store(directories);
  const MeasurementChange merged = store.merge();
  EXPECT_EQ(merged.kept, 3u);
  EXPECT_EQ(merged.removed, 3u);
  ASSERT_EQ(merged.skipped.size(), 1u);
  EXPECT_NE(merged.skipped[0].text.find("torn.jsonl:1"), std::string::npos);
  EXPECT_EQ(shards(directories.user).size(), 1u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(store.find(record(i).key, "build-a", cpu_info().driver)->measurement->points, record(i, 2e-4).points);
  }
  const MeasurementChange forgotten =
      store.forget([](const Measurement& m) { return m.key.config == record(1).key.config; });
  EXPECT_EQ(forgotten.removed, 1u);
  EXPECT_EQ(forgotten.kept, 2u);
  EXPECT_FALSE(store.find(record(1).key, "build-a", ""));
  EXPECT_TRUE(store.find(record(2).key, "build-a", ""));
  EXPECT_EQ(store.forget([](const Measurement&) { return true; }).removed, 2u);
  EXPECT_TRUE(MeasurementStore(directories).empty());
}

TEST_F(Measurements, WhatIsNotCompleteIsRefusedWithItsName) {
  MeasurementStore store(directories);
  const auto refused = [&](const char* naming, const std::function<void(Measurement&)>& change) {
    Measurement m = record(1);
    change(m);
    std::string text;
    EXPECT_EQ(code_of([&] { store.add(m); }, &text), ErrorCode::invalid_argument) << naming;
    EXPECT_NE(text.find(naming), std::string::npos) << text;
  };
  refused("op", [](Measurement& m) { m.key.op.clear(); });
  refused("config", [](Measurement& m) { m.key.config = "xyz"; });
  refused("plugin_build", [](Measurement& m) { m.plugin_build.clear(); });
  refused("its time is -1", [](Measurement& m) { m.unix_time = -1; });
  refused("time", [](Measurement& m) { m.points[1].kernel_seconds = std::nan(""); });
  refused("order", [](Measurement& m) { std::swap(m.points[0], m.points[1]); });
  refused("windows", [](Measurement& m) { m.inconclusive = true; });
  refused("window", [](Measurement& m) { m.windows = {{20, 10, 0, 0}}; });
  EXPECT_TRUE(store.empty());
  EXPECT_FALSE(fs::exists(directories.user)) << "nothing was written, so nothing was made";
}

TEST(Prediction, IsAStraightLineOfTheLogarithmsAndEndsAFactorOfTwoBeyondWhatWasMeasured) {
  std::vector<MeasuredPoint> points = {
      {100, 4, true, 1e-3, 2e-3, 0, 0, 7}, {200, 8, false, 0, 0, 0, 0, 7}, {400, 16, true, 4e-3, 2e-3, 0, 0, 7}};
  EXPECT_DOUBLE_EQ(predict_seconds(points, 100, Arm::reference).value(), 1e-3);
  EXPECT_NEAR(predict_seconds(points, 200, Arm::reference).value(), 2e-3, 1e-12);
  EXPECT_NEAR(predict_seconds(points, 200, Arm::kernel).value(), 2e-3, 1e-12);
  EXPECT_NEAR(predict_seconds(points, 800, Arm::reference).value(), 8e-3, 1e-12);
  EXPECT_NEAR(predict_seconds(points, 50, Arm::reference).value(), 0.5e-3, 1e-12);
  EXPECT_FALSE(predict_seconds(points, 49, Arm::reference));
  EXPECT_FALSE(predict_seconds(points, 801, Arm::kernel));
  points.erase(points.begin() + 1, points.end());
  EXPECT_DOUBLE_EQ(predict_seconds(points, 150, Arm::kernel).value(), 2e-3);
  EXPECT_FALSE(predict_seconds({}, 1, Arm::kernel));
}

TEST(MeasurementDirectories, OfTheEnvironmentMustBeAbsolute) {
  for (const char* name : {"FASTPATH_MEASUREMENTS", "FASTPATH_SYSTEM_MEASUREMENTS"}) {
    const char* const before = std::getenv(name);
    const std::string kept = before != nullptr ? before : "";
    ::setenv(name, "some/where", 1);
    std::string text;
    EXPECT_EQ(code_of([] { MeasurementDirectories::defaults(); }, &text), ErrorCode::invalid_argument);
    EXPECT_NE(text.find(std::string(name) + " is 'some/where'"), std::string::npos) << text;
    ::setenv(name, "/some/where", 1);
    const MeasurementDirectories found = MeasurementDirectories::defaults();
    EXPECT_EQ(std::string(name) == "FASTPATH_MEASUREMENTS" ? found.user : found.system.at(0), "/some/where");
    EXPECT_EQ(found.system.size(), 1u);
    before != nullptr ? ::setenv(name, kept.c_str(), 1) : ::unsetenv(name);
  }
}

// Started without CTest, too.
TEST(MeasurementDirectories, OfTestsAreNotThoseOfTheMachine) {
  const MeasurementDirectories found = MeasurementDirectories::defaults();
  EXPECT_FALSE(fs::exists(found.user)) << found.user;
  ASSERT_EQ(found.system.size(), 1u);
  EXPECT_FALSE(fs::exists(found.system[0])) << found.system[0];
  EXPECT_TRUE(found.project.empty()) << found.project;
}

}  // namespace
}  // namespace fastpath
