#include "runtime/compile_cache.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "offers.hpp"

namespace fastpath_gpu {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class CompileCacheOnDisk : public testing::Test {
 protected:
  CompileCacheOnDisk() {
    std::string name = (fs::temp_directory_path() / "fastpath-compile-cache-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~CompileCacheOnDisk() override { fs::remove_all(folder_); }

  CompileCache cache(std::uint64_t most_bytes = CompileCache::kMostBytes) {
    return {offers_.host(), folder_ / "kernels", most_bytes};
  }
  static CompileKey key(const std::string& source, const std::string& compiler = "compiler 1") {
    Program program;
    program.source = source;
    return CompileKey::of(program, {Language::opencl, "some arch", 256, 1024, true}, compiler);
  }
  static Binary binary(const std::string& code) {
    return {{code.begin(), code.end()}, {{"first", 32, 1024, 0, 4096}, {"second", -1, -1, -1, -1}}};
  }
  static std::string text(const std::optional<Binary>& found) {
    return found ? std::string(found->code.begin(), found->code.end()) : "nothing";
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> result;
    if (!fs::exists(folder_ / "kernels")) return result;
    for (const auto& entry : fs::directory_iterator(folder_ / "kernels")) result.push_back(entry.path());
    return result;
  }
  static std::string read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// In place, so that owner and mode stay.
  static void write(const fs::path& path, const std::string& content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
  }

  fs::path folder_;
  Offers offers_;
};

TEST_F(CompileCacheOnDisk, GivesBackWhatItKeptAlsoToAnotherOfTheSameDirectory) {
  cache().keep(key("source"), binary("code"));
  const std::optional<Binary> found = cache().find(key("source"));
  ASSERT_TRUE(found);
  EXPECT_EQ(text(found), "code");
  ASSERT_EQ(found->resources.size(), 2u);
  EXPECT_EQ(found->resources[0].kernel, "first");
  EXPECT_EQ(found->resources[0].registers, 32);
  EXPECT_EQ(found->resources[0].shared_bytes, 1024);
  EXPECT_EQ(found->resources[0].spill_bytes, 0);
  EXPECT_EQ(found->resources[0].code_bytes, 4096);
  EXPECT_EQ(found->resources[1].registers, -1);
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(CompileCacheOnDisk, KeepsApartWhatMayDiffer) {
  cache().keep(key("source"), binary("code"));
  EXPECT_FALSE(cache().find(key("another source")));
  EXPECT_FALSE(cache().find(key("source", "compiler 2")));
  Program program;
  program.source = "source";
  EXPECT_FALSE(cache().find(CompileKey::of(program, {Language::opencl, "other", 256, 1024, true}, "compiler 1")));
  EXPECT_FALSE(cache().find(CompileKey::of(program, {Language::cuda, "some arch", 256, 1024, true}, "compiler 1")));
  program.kernels.push_back({"kernel", 64, 0, {}});
  EXPECT_FALSE(cache().find(CompileKey::of(program, {Language::opencl, "some arch", 256, 1024, true}, "compiler 1")));
}

TEST_F(CompileCacheOnDisk, TakesTheLatestOfAnyCompilerWhereThereIsNone) {
  cache().keep(key("source", "compiler 1"), binary("old"));
  fs::last_write_time(files().at(0), fs::file_time_type::clock::now() - std::chrono::hours(1));
  cache().keep(key("source", "compiler 2"), binary("new"));
  cache().keep(key("another source", "compiler 3"), binary("other"));
  EXPECT_EQ(text(cache().find(key("source", ""))), "new");
  EXPECT_FALSE(cache().find(key("a third source", "")));
}

TEST_F(CompileCacheOnDisk, KeepsNothingThatHasNoCompilerOrNoCode) {
  cache().keep(key("source", ""), binary("code"));
  cache().keep(key("source"), binary(""));
  EXPECT_THAT(files(), testing::IsEmpty());
}

TEST_F(CompileCacheOnDisk, DoesNotTakeAFileThatIsCutOffAnywhere) {
  cache().keep(key("source"), binary("code"));
  const fs::path file = files().at(0);
  const std::string content = read(file);
  for (std::size_t size = 0; size < content.size(); ++size) {
    write(file, content.substr(0, size));
    EXPECT_FALSE(cache().find(key("source"))) << size << " bytes";
  }
  write(file, content + "x");
  EXPECT_FALSE(cache().find(key("source")));
  write(file, content);
  EXPECT_TRUE(cache().find(key("source")));
}

TEST_F(CompileCacheOnDisk, DoesNotTakeAFileWithAnyByteChanged) {
  cache().keep(key("source"), binary("code"));
  const fs::path file = files().at(0);
  const std::string content = read(file);
  for (std::size_t i = 0; i < content.size(); ++i) {
    std::string changed = content;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    write(file, changed);
    EXPECT_FALSE(cache().find(key("source"))) << "byte " << i;
  }
  EXPECT_THAT(offers_.lines, testing::Contains(HasSubstr("is not used: damaged")));
}

TEST_F(CompileCacheOnDisk, ReplacesADamagedFile) {
  cache().keep(key("source"), binary("code"));
  write(files().at(0), "rubbish");
  EXPECT_FALSE(cache().find(key("source")));
  cache().keep(key("source"), binary("code"));
  EXPECT_EQ(text(cache().find(key("source"))), "code");
  EXPECT_EQ(files().size(), 1u);
}

TEST_F(CompileCacheOnDisk, DoesNotTakeTheFileOfAnotherKey) {
  cache().keep(key("one"), binary("code of one"));
  const fs::path one = files().at(0);
  cache().keep(key("two"), binary("code of two"));
  for (const fs::path& file : files()) {
    if (file != one) fs::copy_file(one, file, fs::copy_options::overwrite_existing);
  }
  EXPECT_EQ(text(cache().find(key("one"))), "code of one");
  EXPECT_FALSE(cache().find(key("two")));
}

TEST_F(CompileCacheOnDisk, DoesNotTakeWhatOthersMayHaveWritten) {
  cache().keep(key("source"), binary("code"));
  for (const mode_t mode : {0620u, 0602u}) {
    ASSERT_EQ(::chmod(files().at(0).c_str(), mode), 0);
    EXPECT_FALSE(cache().find(key("source")));
  }
  ASSERT_EQ(::chmod(files().at(0).c_str(), 0600), 0);
  EXPECT_TRUE(cache().find(key("source")));
  const fs::path elsewhere = folder_ / "elsewhere";
  fs::rename(files().at(0), elsewhere);
  fs::create_symlink(elsewhere,
                     folder_ / "kernels" / (key("source").source + "." + key("source").compiler + ".kernels"));
  EXPECT_FALSE(cache().find(key("source")));
}

TEST_F(CompileCacheOnDisk, StaysWithinItsLimitAndLosesWhatWasNotUsedForLongest) {
  const std::string code(1000, 'c');
  cache().keep(key("0"), binary(code));
  const std::uint64_t one = fs::file_size(files().at(0));
  const std::uint64_t limit = 3 * one;
  for (const char* source : {"1", "2"}) cache(limit).keep(key(source), binary(code));
  const auto now = fs::file_time_type::clock::now();
  for (const fs::path& file : files()) fs::last_write_time(file, now - std::chrono::hours(1));
  EXPECT_TRUE(cache(limit).find(key("0")));  // used: the others are older now
  cache(limit).keep(key("3"), binary(code));
  EXPECT_TRUE(cache(limit).find(key("0")));
  EXPECT_TRUE(cache(limit).find(key("3")));
  EXPECT_EQ(files().size(), 3u);
  cache(limit).keep(key("large"), binary(std::string(limit, 'c')));
  EXPECT_FALSE(cache(limit).find(key("large")));
  EXPECT_EQ(files().size(), 3u);
}

TEST_F(CompileCacheOnDisk, RemovesWhatAProcessThatEndedLeftHalfWritten) {
  fs::create_directories(folder_ / "kernels");
  write(folder_ / "kernels" / "new-abcdef", "half");
  write(folder_ / "kernels" / "new-ghijkl", "half");
  fs::last_write_time(folder_ / "kernels" / "new-abcdef", fs::file_time_type::clock::now() - std::chrono::hours(2));
  cache().keep(key("source"), binary("code"));
  EXPECT_FALSE(fs::exists(folder_ / "kernels" / "new-abcdef"));
  EXPECT_TRUE(fs::exists(folder_ / "kernels" / "new-ghijkl"));  // of a process that is still writing, perhaps
}

TEST_F(CompileCacheOnDisk, KeepsNothingWhereItCannotWriteAndSaysSoOnce) {
  write(folder_ / "kernels", "a file where the directory should be");
  const CompileCache unwritable = cache();
  unwritable.keep(key("source"), binary("code"));
  unwritable.keep(key("another source"), binary("code"));
  EXPECT_FALSE(unwritable.find(key("source")));
  EXPECT_EQ(std::count_if(offers_.lines.begin(), offers_.lines.end(),
                          [](const std::string& line) { return line.starts_with("0 compiled kernels are not kept"); }),
            1);
}

TEST_F(CompileCacheOnDisk, LeavesNothingHalfWrittenOnAFullDisk) {
  // A limit on file sizes stands for it: what exceeds it fails, as it does on a disk without room.
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{600, 600};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    cache().keep(key("source"), binary(std::string(5000, 'c')));
    ::_exit(cache().find(key("source")) ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_THAT(files(), testing::IsEmpty());
}

TEST_F(CompileCacheOnDisk, GivesNoWrongCodeWhileOtherProcessesWriteAndTrim) {
  constexpr int kProcesses = 4, kRounds = 200;
  const auto code = [](int i) {
    return std::string(static_cast<std::size_t>(200 + 40 * i), static_cast<char>('a' + i));
  };
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const CompileCache own = cache(3000);  // some of the keys alone fit
      for (int round = 0; round < kRounds; ++round) {
        const int i = (round * 7 + process) % 8;
        const std::optional<Binary> found = own.find(key(std::to_string(i)));
        if (found && text(found) != code(i)) ::_exit(1);
        own.keep(key(std::to_string(i)), binary(code(i)));
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  for (const fs::path& file : files()) EXPECT_EQ(file.extension(), ".kernels");
}

TEST_F(CompileCacheOnDisk, LiesWhereTheHostSays) {
  CompileCache::of(offers_.host(), Language::opencl).keep(key("source"), binary("code"));
  EXPECT_THAT(files(), testing::IsEmpty());
  offers_.values["cache_dir"] = folder_.string();
  CompileCache::of(offers_.host(), Language::opencl).keep(key("source"), binary("code"));
  EXPECT_TRUE(fs::is_directory(folder_ / "kernels" / "opencl"));
  EXPECT_TRUE(CompileCache::of(offers_.host(), Language::opencl).find(key("source")));
  EXPECT_FALSE(CompileCache::of(offers_.host(), Language::cuda).find(key("source")));
  offers_.values["gpu.cache_bytes"] = "0";
  EXPECT_FALSE(CompileCache::of(offers_.host(), Language::opencl).find(key("source")));
  offers_.values["gpu.cache_bytes"] = "much";
  EXPECT_THROW(CompileCache::of(offers_.host(), Language::opencl), sdk::InvalidArgument);
}

}  // namespace
}  // namespace fastpath_gpu
